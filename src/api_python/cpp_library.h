// What weft.cpp needs of C++: loading libraries of tasks, and describing actors of their classes. GIL held.
#pragma once

#include "api_python/state.h"

namespace weft::python {

bool AddCppFunctions(PyObject* module);

}  // namespace weft::python
