// `weft._core.ActorInfo`, `ActorHandle` and `ActorMethod`: what callers of actors hold. A handle has one local
// reference to the actor's handle object; everything else about an actor is the runtime's.
#pragma once

#include "api_python/state.h"

namespace weft::python {

bool InitActorTypes(PyObject* module);

// Takes over one local reference. `info` is borrowed.
PyObject* NewHandle(Object* object, PyObject* info);

}  // namespace weft::python
