// `weft.ObjectRef`: a handle to an object. One local reference in the runtime per handle.
#pragma once

#include "api_python/state.h"

namespace weft::python {

struct RefObject {
  PyObject_HEAD Object* object;
  uint32_t epoch;
  uint32_t stamp;   // of the last wait() or encoding that has seen it
  uint32_t number;  // in that encoding
  bool alias;       // there may be other handles of the same object in this process
  PyObject* weak_references;
};

extern PyTypeObject* g_ref_type;
bool InitRefType(PyObject* module);

inline bool IsRef(PyObject* object) { return Py_TYPE(object) == g_ref_type; }
// Takes over one local reference.
PyObject* NewRef(Object* object, bool alias);
// The object, if the handle belongs to the present session; otherwise nullptr with an exception set.
Object* ObjectOf(PyObject* ref);

// A number that no handle has as its stamp, so that the caller can mark the handles that it has seen.
uint32_t NextStamp();

// While a value is being encoded on this thread, references pickled with it are noted here.
struct Contained {
  std::vector<Object*> objects;  // one local reference each
  Contained* outer;
  Contained();
  ~Contained();
  Contained(const Contained&) = delete;
  static Contained* Current();  // of this thread; nullptr if nothing is being encoded
};

// While a value is being decoded on this thread: the references inside it are those that its object holds, in the order
// in which they were encoded. A reference found here costs neither a lock nor a search; others are looked up.
class Held {
 public:
  explicit Held(Object* of);  // may be nullptr; must be kept alive by the caller
  ~Held();
  Held(const Held&) = delete;
  // With a local reference; nullptr if it is not the next one.
  Object* Next(ObjectId id);
  static Held* Current();

 private:
  Object* const* at_ = nullptr;
  Object* const* end_ = nullptr;
  Held* outer_;
};

// Adds an object to the value being encoded on this thread; false if none is.
bool NoteContained(Object* object);

}  // namespace weft::python
