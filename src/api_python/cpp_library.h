// The C++ part of weft.cpp: loads libraries of tasks, and describes actors of their classes. GIL held.
#pragma once

#include "api_python/state.h"

namespace weft::python {

bool AddCppFunctions(PyObject* module);

}  // namespace weft::python
