// Encodes Python values of the native kind (wire/value_format.h). For codec.cc only; with the GIL.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "api_python/actor.h"
#include "api_python/object_ref.h"
#include "wire/value_format.h"

namespace weft::python {

using core::Tag;

template <class T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
inline void AppendTag(std::string& out, Tag tag) { out.push_back(static_cast<char>(tag)); }

// Integers beyond 64 bits, in two's complement with the lowest byte first. Private functions before 3.13, which has
// public ones.
inline size_t BigIntBytes(PyObject* value) {
#if PY_VERSION_HEX >= 0x030D0000
  return static_cast<size_t>(PyLong_AsNativeBytes(value, nullptr, 0, Py_ASNATIVEBYTES_LITTLE_ENDIAN));
#else
  return _PyLong_NumBits(value) / 8 + 1;  // one bit more for the sign
#endif
}
inline bool WriteBigInt(PyObject* value, unsigned char* to, size_t size) {
#if PY_VERSION_HEX >= 0x030D0000
  return PyLong_AsNativeBytes(value, to, static_cast<Py_ssize_t>(size), Py_ASNATIVEBYTES_LITTLE_ENDIAN) >= 0;
#else
  return _PyLong_AsByteArray(reinterpret_cast<PyLongObject*>(value), to, size, 1, 1) == 0;
#endif
}

// Encodes one native value. Strings, bytes and containers are numbered in the order they begin, as the decoder does;
// references have numbers of their own, because there may be many.
class NativeEncoder {
 public:
  // `whole`: there is no other way to encode it, so no size is too large; refused() names what cannot be encoded.
  NativeEncoder(std::string& out, std::vector<Object*>& contained, size_t most_references, bool whole = false)
      : out_(out), contained_(contained), begin_(out.size()), most_references_(most_references), whole_(whole) {}
  PyObject* refused() const { return refused_; }  // borrowed

  bool Encode(PyObject* value, int depth) {
    PyTypeObject* type = Py_TYPE(value);
    if (type == &PyLong_Type) return EncodeInt(value);
    if (value == Py_None) return AppendTag(out_, Tag::kNone), true;
    if (value == Py_True) return AppendTag(out_, Tag::kTrue), true;
    if (value == Py_False) return AppendTag(out_, Tag::kFalse), true;
    if (type == &PyFloat_Type) {
      AppendTag(out_, Tag::kFloat);
      Append(out_, PyFloat_AS_DOUBLE(value));
      return true;
    }
    bool text = type == &PyUnicode_Type;
    bool set = type == &PySet_Type || type == &PyFrozenSet_Type;
    bool container = type == &PyTuple_Type || type == &PyList_Type || type == &PyDict_Type || set;
    if (!text && type != &PyBytes_Type && !container) {
      if (IsRef(value)) return EncodeReference(value);
      if (IsHandle(value)) return EncodeHandle(value);
      return whole_ && EncodeSimilar(value, depth);
    }
    if (depth > 0) {
      for (size_t i = 0; i < seen_count_; ++i) {
        if (seen_[i] == value) {
          if (open_[i]) return false;  // a container inside itself
          AppendTag(out_, Tag::kSame);
          Append(out_, static_cast<uint32_t>(i));
          return true;
        }
      }
    }
    // Beyond this a table would be needed, and pickle has one.
    if (whole_ ? depth > kMaxWholeDepth : seen_count_ == kMaxSeen || depth > kMaxDepth) return false;
    size_t number = seen_count_;
    const bool remembered = number < kMaxSeen;
    if (remembered) {
      ++seen_count_;
      seen_[number] = value;
      open_[number] = container;
    }
    if (text) {
      Py_ssize_t size;
      const char* utf8 = PyUnicode_AsUTF8AndSize(value, &size);
      if (!utf8) return PyErr_Clear(), false;  // lone surrogates: pickle can
      if (size > core::kMaxInlineBytes && !whole_) return false;
      AppendTag(out_, Tag::kString);
      Append(out_, static_cast<uint32_t>(size));
      out_.append(utf8, static_cast<size_t>(size));
      return true;
    }
    if (type == &PyBytes_Type) {
      if (PyBytes_GET_SIZE(value) > (whole_ ? Py_ssize_t{UINT32_MAX} : Py_ssize_t{core::kMaxInlineBytes})) return false;
      AppendTag(out_, Tag::kBytes);
      Append(out_, static_cast<uint32_t>(PyBytes_GET_SIZE(value)));
      out_.append(PyBytes_AS_STRING(value), static_cast<size_t>(PyBytes_GET_SIZE(value)));
      return true;
    }
    bool done = type == &PyTuple_Type  ? EncodeItems(Tag::kTuple, value, PyTuple_GET_SIZE(value), depth)
                : type == &PyList_Type ? EncodeItems(Tag::kList, value, PyList_GET_SIZE(value), depth)
                : set                  ? EncodeSet(type == &PySet_Type ? Tag::kSet : Tag::kFrozenSet, value, depth)
                                       : EncodeDict(value, depth);
    if (remembered) open_[number] = false;
    return done;
  }

 private:
  static constexpr size_t kMaxSeen = 32;
  static constexpr int kMaxDepth = 8;
  static constexpr int kMaxWholeDepth = 60;
  static constexpr Py_ssize_t kMaxItems = 1000;  // and any number of references

  // Subclasses of numbers and strings, and NumPy's scalars, as the plain type.
  bool EncodeSimilar(PyObject* value, int depth) {
    Owned plain;
    if (PyFloat_Check(value)) {
      plain = Owned(PyFloat_FromDouble(PyFloat_AS_DOUBLE(value)));
    } else if (PyUnicode_Check(value)) {
      plain = Owned(PyUnicode_FromObject(value));
    } else if (Py_TYPE(value)->tp_as_number && Py_TYPE(value)->tp_as_number->nb_index) {
      plain = Owned(PyNumber_Index(value));
      if (plain && !PyLong_CheckExact(plain.get())) plain = Owned(PyNumber_Long(plain.get()));
    } else if (PyObject* item = PyObject_GetAttrString(value, "item"); item && PyObject_HasAttrString(value, "dtype")) {
      plain = Owned(PyObject_CallNoArgs(item));  // float32, bool_
      Py_DECREF(item);
    } else {
      Py_XDECREF(item);
    }
    PyErr_Clear();
    if (plain && Py_TYPE(plain.get()) != Py_TYPE(value)) return Encode(plain.get(), depth);
    if (!refused_) refused_ = value;
    return false;
  }

  bool EncodeHandle(PyObject* value) {
    std::string_view info;
    Object* object = ObjectOfHandle(value, &info);
    if (!object) return false;
    AppendTag(out_, Tag::kHandle);
    Append(out_, object->id);
    Append(out_, static_cast<uint32_t>(info.size()));
    out_.append(info);
    references_ += 1 + sizeof(ObjectId) + sizeof(uint32_t) + info.size();
    if (references_ > most_references_) return false;
    contained_.push_back(object);
    return true;
  }

  bool EncodeInt(PyObject* value) {
    int overflow = 0;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) {
      size_t size = BigIntBytes(value);
      if (size > core::kMaxInlineBytes) return false;
      AppendTag(out_, Tag::kBigInt);
      Append(out_, static_cast<uint32_t>(size));
      out_.resize(out_.size() + size);
      return WriteBigInt(value, reinterpret_cast<unsigned char*>(out_.data()) + out_.size() - size, size);
    }
    if (number >= -128 && number <= 127) {
      AppendTag(out_, Tag::kInt8);
      Append(out_, static_cast<int8_t>(number));
    } else {
      AppendTag(out_, Tag::kInt64);
      Append(out_, static_cast<int64_t>(number));
    }
    return true;
  }

  bool EncodeReference(PyObject* value) {
    Object* object = ObjectOf(value);
    if (!object) return false;
    auto* ref = reinterpret_cast<RefObject*>(value);
    if (stamp_ == 0) stamp_ = NextStamp();
    bool again = ref->stamp == stamp_;
    char item[1 + sizeof(ObjectId) + sizeof(uint32_t)];
    item[0] = static_cast<char>(again ? Tag::kAgain : Tag::kReference);
    std::memcpy(item + 1, &object->id, sizeof(ObjectId));
    std::memcpy(item + 1 + sizeof(ObjectId), &ref->number, sizeof(uint32_t));
    size_t size = again ? sizeof item : 1 + sizeof(ObjectId);
    references_ += size;
    if (references_ > most_references_) return false;
    out_.append(item, size);
    if (!again) {
      ref->stamp = stamp_;
      ref->number = count_++;
      contained_.push_back(object);
    }
    return true;
  }

  bool TooLarge() const { return !whole_ && out_.size() - begin_ - references_ > core::kMaxInlineBytes; }

  bool EncodeItems(Tag tag, PyObject* value, Py_ssize_t count, int depth) {
    PyObject** items =
        tag == Tag::kTuple ? &PyTuple_GET_ITEM(value, 0) : reinterpret_cast<PyListObject*>(value)->ob_item;
    if (count > kMaxItems && !whole_ && !IsRef(items[0])) return false;
    AppendTag(out_, tag);
    Append(out_, static_cast<uint32_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (i >= kMaxItems && !whole_ && !IsRef(items[i])) return false;
      if (!Encode(items[i], depth + 1) || TooLarge()) return false;
    }
    return true;
  }

  bool EncodeDict(PyObject* value, int depth) {
    Py_ssize_t count = PyDict_GET_SIZE(value);
    AppendTag(out_, Tag::kDict);
    Append(out_, static_cast<uint32_t>(count));
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(value, &position, &key, &item)) {
      if (count > kMaxItems && !whole_ && !IsRef(item) && !IsRef(key)) return false;
      if (!Encode(key, depth + 1) || !Encode(item, depth + 1) || TooLarge()) return false;
    }
    return true;
  }

  bool EncodeSet(Tag tag, PyObject* value, int depth) {
    Py_ssize_t count = PySet_GET_SIZE(value);
    AppendTag(out_, tag);
    Append(out_, static_cast<uint32_t>(count));
    auto encode = [&](PyObject* item) {
      if (count > kMaxItems && !whole_ && !IsRef(item)) return false;
      return Encode(item, depth + 1) && !TooLarge();
    };
#if PY_VERSION_HEX >= 0x030D0000
    Owned items(PyObject_GetIter(value));
    if (!items) return false;
    while (PyObject* item = PyIter_Next(items.get())) {
      Owned held(item);
      if (!encode(item)) return false;
    }
    return !PyErr_Occurred();
#else
    // Without an iterator, whose allocation may collect garbage and so run anything.
    PyObject* item;
    Py_hash_t hash;
    Py_ssize_t position = 0;
    while (_PySet_NextEntry(value, &position, &item, &hash)) {
      if (!encode(item)) return false;
    }
    return true;
#endif
  }

  std::string& out_;
  std::vector<Object*>& contained_;
  const size_t begin_;
  const size_t most_references_;
  const bool whole_;
  PyObject* refused_ = nullptr;
  size_t references_ = 0;  // bytes of them
  uint32_t stamp_ = 0;
  uint32_t count_ = 0;  // of references, each handle once
  PyObject* seen_[kMaxSeen];
  bool open_[kMaxSeen];
  size_t seen_count_ = 0;
};

}  // namespace weft::python
