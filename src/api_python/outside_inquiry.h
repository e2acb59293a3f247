// Finds out from outside a session what its objects and its threads wait for: the command `weft explain`. It asks the
// processes as a thread of the session would that waits (src/runtime/runtime_explain.cc), through the daemon's socket
// for observers, and the same WaitGraph judges.
//
// For python/weft/_commands.py, in one thread of a program that need not belong to the session. Changes nothing there.
#pragma once

#include <nanobind/nanobind.h>

namespace weft::python {

void DefineOutsideInquiry(nanobind::module_& m);

}  // namespace weft::python
