// Asks the node daemon of a session, this program's or another one of the same user, for its state and history. For
// weft.state, weft.timeline and the command line; python/weft/_observe.py interprets the answer.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

#include "api_python/state.h"

namespace weft::python {

void DefineObserve(nanobind::module_& m);

// Names come from other processes and may hold any bytes.
nanobind::object Text(std::string_view text);

}  // namespace weft::python
