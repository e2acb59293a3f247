// `weft._core.ActorInfo`, `ActorHandle` and `ActorMethod`: what callers of actors hold. A handle has one local
// reference to the actor's handle object; the runtime keeps everything else.
#pragma once

#include <string_view>

#include "api_python/state.h"

namespace weft::python {

bool InitActorTypes(PyObject* module);

// Takes over one local reference. `info` is borrowed.
PyObject* NewHandle(Object* object, PyObject* info);

bool IsHandle(PyObject* value);
// nullptr with an exception set if its session has ended. `info`: what travels with it.
Object* ObjectOfHandle(PyObject* handle, std::string_view* info);
// A handle that arrives in a value.
PyObject* HandleOf(ObjectId id, std::string_view info);

}  // namespace weft::python
