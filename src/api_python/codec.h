// Python values to bytes and back, in the formats of wire/value_format.h.
//
// None, bool, int, float, str, bytes, references, and small tuples, lists, dicts and sets of exactly these types are
// encoded here and keep type and identity; a container of references may be large. NumPy arrays go as arrays.
// Everything else is pickled by weft._serialization, with large buffers outside the pickle.
#pragma once

#include <optional>

#include "api_python/object_ref.h"
#include "runtime/executor.h"

namespace weft::python {

// Appends the tagged form, and to `contained` the objects of the references inside, without a local reference: the
// caller adds those before it releases the GIL or runs Python. At most `most_references` bytes of references. False
// without an exception if the value is not of the native kind (nothing is appended then); false with one if something
// failed.
bool EncodeNative(PyObject* value, std::string& out, std::vector<Object*>& contained, size_t most_references);

// Where an encoded value ended up. Either bytes are set, or room has data.
struct Encoded {
  std::string bytes;
  core::StoreRoom room;
  bool sealed_room = false;  // an array made by weft.empty: the room already belongs to an object
  PyObject* room_object = nullptr;
};

// Encodes a whole value: inline if it is small, else into the store, where it will belong to `id` (none: to be put).
// References inside are collected by the caller's Contained. False with an exception set.
bool EncodeValue(PyObject* value, ObjectId id, Encoded& out, bool native = false);

// Decodes a whole value. Views of stored bytes keep `object` alive; it may be nullptr for bytes that are not stored.
PyObject* DecodeValue(std::string_view bytes, bool stored, Object* object);

// Encodes the arguments of a call. Dependencies and contained references come with one local reference each.
struct EncodedCall {
  bool inline_references = false;  // set by a caller that submits `contained`; else such arguments become dependencies
  bool native = false;             // for another language: nothing is pickled
  std::string bytes;
  std::vector<Object*> dependencies;
  std::vector<Object*> contained;  // references inside the arguments
  std::vector<Object*> owned;      // among both: to be dropped after submission
};
// One to encode into, whose memory is used again. Encoding may run Python (__reduce__), and that may call remote
// functions: each call under way on a thread has its own.
class ScratchCall {
 public:
  ScratchCall();
  ~ScratchCall();
  ScratchCall(const ScratchCall&) = delete;
  EncodedCall* operator->() { return &call_; }
  EncodedCall& operator*() { return call_; }

 private:
  EncodedCall& call_;
};
bool EncodeCall(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, EncodedCall& out, const char* function);

// Decodes them; args gets the positional values first, then those of kwnames. False with an exception set.
bool DecodeCall(const core::TaskCall& call, std::vector<PyObject*>& args, size_t* num_positional, PyObject** kwnames);

}  // namespace weft::python
