// Decodes bytes of the native kind (wire/value_format.h) to Python values, and the references in them. For codec.cc
// only; with the GIL.
#pragma once

#include <string_view>
#include <vector>

#include "api_python/actor.h"
#include "api_python/object_ref.h"
#include "base/bytes.h"
#include "wire/value_format.h"

namespace weft::python {

using core::Tag;

// As NativeEncoder writes them.
inline PyObject* ReadBigInt(std::string_view bytes) {
#if PY_VERSION_HEX >= 0x030D0000
  return PyLong_FromNativeBytes(bytes.data(), bytes.size(), Py_ASNATIVEBYTES_LITTLE_ENDIAN);
#else
  return _PyLong_FromByteArray(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), 1, 1);
#endif
}

// The references of one value or of all arguments of a call. Those that no Held knows are looked up together at the
// end, under one lock; until then their handles are hollow, and no code that hashes them may see them.
class ReferenceDecoder {
 public:
  ReferenceDecoder() = default;
  ReferenceDecoder(const ReferenceDecoder&) = delete;
  ~ReferenceDecoder() {
    for (PyObject* handle : handles_) Py_DECREF(handle);
  }

  PyObject* New(ObjectId id) {
    Held* held = Held::Current();
    Object* object = held ? held->Next(id) : nullptr;
    PyObject* handle = NewRef(object, true);
    if (!handle) {
      if (object && g_runtime) g_runtime->DropReference(object);
      return nullptr;
    }
    if (!object) {
      reinterpret_cast<RefObject*>(handle)->epoch = 0;  // of no session: nothing is dropped with it
      if (hollow_.empty()) hollow_.reserve(16);
      hollow_.push_back(handles_.size());
      ids_.push_back(id);
    }
    Py_INCREF(handle);
    handles_.push_back(handle);
    return handle;
  }

  size_t count() const { return handles_.size(); }
  PyObject* Again(size_t number) {
    if (number >= handles_.size()) return nullptr;
    Py_INCREF(handles_[number]);
    return handles_[number];
  }

  // Gives the hollow handles their objects. False with an exception set.
  bool Fill() {
    if (hollow_.empty()) return true;
    Runtime* runtime = NeedRuntime();
    if (!runtime) return false;
    std::vector<Object*> objects(ids_.size());
    runtime->FindReferences(ids_, objects.data());
    bool lost = false;
    for (size_t i = 0; i < objects.size(); ++i) {
      auto* ref = reinterpret_cast<RefObject*>(handles_[hollow_[i]]);
      if (!objects[i]) {
        lost = true;
        continue;
      }
      ref->object = objects[i];
      ref->epoch = g_epoch;
    }
    hollow_.clear();
    ids_.clear();
    if (lost) RaiseSystemError("ObjectLostError\na value refers to an object that no longer exists");
    return !lost;
  }

 private:
  std::vector<PyObject*> handles_;  // in the order of their numbers
  std::vector<size_t> hollow_;
  std::vector<ObjectId> ids_;  // of the hollow ones
};

class NativeDecoder {
 public:
  NativeDecoder(core::ByteReader& in, ReferenceDecoder& references)
      : in_(in), references_(references), first_reference_(references.count()) {}
  ~NativeDecoder() {
    for (size_t i = 0; i < seen_count_; ++i) Py_XDECREF(seen_[i]);
  }

  PyObject* Decode(int depth = 0) {
    switch (static_cast<Tag>(in_.Fixed<uint8_t>())) {
      case Tag::kNone:
        if (!in_.ok()) break;
        Py_RETURN_NONE;
      case Tag::kFalse:
        Py_RETURN_FALSE;
      case Tag::kTrue:
        Py_RETURN_TRUE;
      case Tag::kInt8:
        return PyLong_FromLong(in_.Fixed<int8_t>());
      case Tag::kInt64:
        return PyLong_FromLongLong(in_.Fixed<int64_t>());
      case Tag::kBigInt:
        return ReadBigInt(in_.Bytes());
      case Tag::kFloat:
        return PyFloat_FromDouble(in_.Fixed<double>());
      case Tag::kString: {
        auto text = in_.Bytes();
        return Remember(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
      }
      case Tag::kBytes: {
        auto bytes = in_.Bytes();
        return Remember(PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
      }
      case Tag::kTuple:
        return DecodeTuple(depth);
      case Tag::kList:
        return DecodeList(depth);
      case Tag::kDict:
        return DecodeDict(depth);
      case Tag::kSet:
        return DecodeSet(PySet_New(nullptr), depth);
      case Tag::kFrozenSet:
        return DecodeSet(PyFrozenSet_New(nullptr), depth);
      case Tag::kSame: {
        auto number = in_.Fixed<uint32_t>();
        if (number >= seen_count_ || !seen_[number]) break;
        Py_INCREF(seen_[number]);
        return seen_[number];
      }
      case Tag::kReference: {
        auto id = in_.Fixed<ObjectId>();
        if (!in_.ok()) break;
        return references_.New(id);
      }
      case Tag::kAgain: {
        in_.Fixed<ObjectId>();
        PyObject* handle = references_.Again(first_reference_ + in_.Fixed<uint32_t>());
        if (!handle) break;
        return handle;
      }
      case Tag::kHandle: {
        auto id = in_.Fixed<ObjectId>();
        auto info = in_.Bytes();
        if (!in_.ok()) break;
        return HandleOf(id, info);
      }
      default:
        break;
    }
    PyErr_SetString(PyExc_ValueError, "weft: bytes that are not a native value");
    return nullptr;
  }

 private:
  static constexpr size_t kMaxSeen = 32;

  PyObject* Remember(PyObject* value) {
    if (value && seen_count_ < kMaxSeen) {
      Py_INCREF(value);
      seen_[seen_count_++] = value;
    }
    return value;
  }
  bool Count(uint32_t* count, int depth) {
    *count = in_.Fixed<uint32_t>();
    if (in_.ok() && *count <= in_.remaining() && depth < 64) return true;
    PyErr_SetString(PyExc_ValueError, "weft: bytes that are not a native value");
    return false;
  }
  PyObject* DecodeTuple(int depth) {
    uint32_t count;
    if (!Count(&count, depth)) return nullptr;
    PyObject* tuple = Remember(PyTuple_New(count));
    for (uint32_t i = 0; tuple && i < count; ++i) {
      PyObject* item = Decode(depth + 1);
      if (!item) return Py_DECREF(tuple), nullptr;
      PyTuple_SET_ITEM(tuple, i, item);
    }
    return tuple;
  }
  PyObject* DecodeList(int depth) {
    uint32_t count;
    if (!Count(&count, depth)) return nullptr;
    PyObject* list = Remember(PyList_New(count));
    for (uint32_t i = 0; list && i < count; ++i) {
      PyObject* item = Decode(depth + 1);
      if (!item) return Py_DECREF(list), nullptr;
      PyList_SET_ITEM(list, i, item);
    }
    return list;
  }
  PyObject* DecodeDict(int depth) {
    uint32_t count;
    if (!Count(&count, depth)) return nullptr;
    PyObject* dict = Remember(PyDict_New());
    for (uint32_t i = 0; dict && i < count; ++i) {
      Owned key(DecodeHashed(depth));
      Owned value(key ? Decode(depth + 1) : nullptr);
      if (!value || PyDict_SetItem(dict, key.get(), value.get()) != 0) return Py_DECREF(dict), nullptr;
    }
    return dict;
  }
  PyObject* DecodeSet(PyObject* set, int depth) {
    uint32_t count;
    if (!set || !Count(&count, depth)) return Py_XDECREF(set), nullptr;
    // Collected first: a frozenset that has another reference takes no more items.
    size_t number = seen_count_;
    if (number < kMaxSeen) seen_[seen_count_++] = nullptr;
    std::vector<PyObject*> items;
    PyObject* item = set;
    while (item && items.size() < count) {
      item = Decode(depth + 1);
      if (item) items.push_back(item);
    }
    bool ok = item && references_.Fill();
    for (PyObject* each : items) {
      ok = ok && PySet_Add(set, each) == 0;
      Py_DECREF(each);
    }
    if (!ok) return Py_DECREF(set), nullptr;
    if (number < kMaxSeen) {
      Py_INCREF(set);
      seen_[number] = set;
    }
    return set;
  }
  // An item that will be hashed.
  PyObject* DecodeHashed(int depth) {
    PyObject* item = Decode(depth + 1);
    if (!item || (!IsRef(item) && !PyTuple_CheckExact(item))) return item;  // a frozenset has seen to its items
    if (references_.Fill()) return item;
    Py_DECREF(item);
    return nullptr;
  }

  core::ByteReader& in_;
  ReferenceDecoder& references_;
  const size_t first_reference_;  // a call's arguments share one, and number their own
  PyObject* seen_[kMaxSeen];
  size_t seen_count_ = 0;
};

}  // namespace weft::python
