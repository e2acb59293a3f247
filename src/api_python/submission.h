// What `f.remote(...)` and `actor.method.remote(...)` share: from the arguments of a call to references.
//
// On the calling thread, with the GIL. No allocation of its own for a call with one return.
#pragma once

#include <vector>

#include "api_python/codec.h"
#include "api_python/object_ref.h"
#include "api_python/python_runner.h"
#include "api_python/state.h"

namespace weft::python {

// Converts vectorcall arguments to a tuple and a dictionary. False with an exception set.
inline bool AsTupleAndDict(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, Owned& positional,
                           Owned& named) {
  positional = Owned(PyTuple_New(nargs));
  named = Owned(PyDict_New());
  if (!positional || !named) return false;
  for (Py_ssize_t i = 0; i < nargs; ++i) {
    Py_INCREF(args[i]);
    PyTuple_SET_ITEM(positional.get(), i, args[i]);
  }
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) {
    if (PyDict_SetItem(named.get(), PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) != 0) return false;
  }
  return true;
}

// Encodes the arguments and calls submit(call, returns), which has room for what->num_returns objects and says false,
// with an exception set, if it did not take them. `native`: for C++. The reference, or the list of them; nullptr with
// an exception set.
template <class Submit>
PyObject* EncodeAndSubmit(Runtime* runtime, const core::TaskTemplate* what, PyObject* const* args, Py_ssize_t nargs,
                          PyObject* kwnames, bool native, Submit submit) {
  NoteExecution();
  ScratchCall scratch;
  EncodedCall& call = *scratch;
  call.inline_references = true;
  call.native = native;
  PyObject* result = nullptr;
  if (EncodeCall(args, nargs, kwnames, call, what->name.c_str())) {
    if (what->num_returns == 1) {
      Object* object;
      if (submit(call, &object)) result = NewRef(object, false);
    } else {
      std::vector<Object*> objects(what->num_returns);
      if (submit(call, objects.data())) result = NewRefs(objects);
    }
  }
  for (Object* object : call.owned) runtime->DropReference(object);
  return result;
}

}  // namespace weft::python
