// Finds out from outside a session what its objects and threads wait for: the command `weft explain`. It asks the
// processes like a waiting thread of the session would (src/runtime/runtime_explain.cc), through the daemon's socket
// for observers, and the same WaitGraph judges.
//
// For python/weft/_commands.py, in one thread of a program that need not belong to the session. Changes nothing in the
// session.
#pragma once

#include <nanobind/nanobind.h>

namespace weft::python {

void DefineOutsideInquiry(nanobind::module_& m);

}  // namespace weft::python
