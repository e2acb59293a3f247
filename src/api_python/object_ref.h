// `weft.ObjectRef`: a handle to an object. One local reference in the runtime per handle.
#pragma once

#include "api_python/state.h"

namespace weft::python {

struct RefObject {
  PyObject_HEAD Object* object;
  uint32_t epoch;
  uint32_t stamp;  // of the last wait() that has seen it
  bool alias;      // there may be other handles of the same object in this process
  PyObject* weak_references;
};

extern PyTypeObject* g_ref_type;
bool InitRefType(PyObject* module);

inline bool IsRef(PyObject* object) { return Py_TYPE(object) == g_ref_type; }
// Takes over one local reference.
PyObject* NewRef(Object* object, bool alias);
// The object, if the handle belongs to the present session; else nullptr with an exception set.
Object* ObjectOf(PyObject* ref);

// While a value is being encoded on this thread, references pickled with it are noted here.
struct Contained {
  std::vector<Object*> objects;  // one local reference each
  Contained* outer;
  Contained();
  ~Contained();
  Contained(const Contained&) = delete;
};

// An object that is part of the value being encoded on this thread; false if none is.
bool NoteContained(Object* object);

}  // namespace weft::python
