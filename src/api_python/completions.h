// `weft._core.Completions`: returns references in the order in which they are resolved.
//
// Adding one and taking one cost the same however many there are. One consumer at a time. Guarded by the GIL, except
// the list of resolved ones, which is the runtime's.
#pragma once

#include "api_python/state.h"

namespace weft::python {

bool InitCompletionsType(PyObject* module);

}  // namespace weft::python
