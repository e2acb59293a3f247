// `weft.RemoteFunction`: the result of @weft.remote. Its `.remote(...)` is one call into C++.
#pragma once

#include "api_python/state.h"

namespace weft::python {

bool InitRemoteFunctionType(PyObject* module);

}  // namespace weft::python
