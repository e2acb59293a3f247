#include "api_python/codec.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "api_python/actor.h"
#include "api_python/buffers.h"
#include "base/bytes.h"
#include "wire/value_format.h"

namespace weft::python {
namespace {

using core::ArrayHead;
using core::PickleHead;
using core::Tag;
using core::ValueFormat;

template <class T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
// References of one value, in bytes: far more than anybody puts into one, and less than what a count can say.
constexpr size_t kMaxReferencesSize = size_t{1} << 31;

void AppendTag(std::string& out, Tag tag) { out.push_back(static_cast<char>(tag)); }

// Integers beyond 64 bits, in two's complement with the lowest byte first. Private functions before 3.13, which has
// public ones.
size_t BigIntBytes(PyObject* value) {
#if PY_VERSION_HEX >= 0x030D0000
  return static_cast<size_t>(PyLong_AsNativeBytes(value, nullptr, 0, Py_ASNATIVEBYTES_LITTLE_ENDIAN));
#else
  return _PyLong_NumBits(value) / 8 + 1;  // one bit more for the sign
#endif
}
bool WriteBigInt(PyObject* value, unsigned char* to, size_t size) {
#if PY_VERSION_HEX >= 0x030D0000
  return PyLong_AsNativeBytes(value, to, static_cast<Py_ssize_t>(size), Py_ASNATIVEBYTES_LITTLE_ENDIAN) >= 0;
#else
  return _PyLong_AsByteArray(reinterpret_cast<PyLongObject*>(value), to, size, 1, 1) == 0;
#endif
}
PyObject* ReadBigInt(std::string_view bytes) {
#if PY_VERSION_HEX >= 0x030D0000
  return PyLong_FromNativeBytes(bytes.data(), bytes.size(), Py_ASNATIVEBYTES_LITTLE_ENDIAN);
#else
  return _PyLong_FromByteArray(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), 1, 1);
#endif
}

// Encodes one native value. Strings, bytes and containers are numbered in the order they begin, as the decoder does;
// references have numbers of their own, because there may be many.
class NativeEncoder {
 public:
  // `whole`: there is no other way to encode it, so that no size is too large; what cannot be encoded is named by
  // refused().
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

  // Subclasses of numbers and strings, and NumPy's scalars, as what they are alike to.
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

// The references of one value or of all arguments of a call. Those that no Held knows are looked up together at the
// end, under one lock; until then their handles are hollow, which must not be seen by anybody who hashes them.
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
    // Collected first: a frozenset that somebody else knows of takes no more items.
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

// Room for an encoded value of `size` bytes: in the string if it is small, else in the store.
uint8_t* MakeRoom(uint64_t size, ObjectId id, Encoded& out) {
  if (size <= core::kMaxInlineBytes) {
    out.bytes.resize(size);
    return reinterpret_cast<uint8_t*>(out.bytes.data());
  }
  Runtime* runtime = g_runtime;
  for (;;) {
    core::Result<core::StoreRoom> room = core::Error{};
    Py_BEGIN_ALLOW_THREADS room = runtime->Allocate(size, id, core::Populate::kWhileCopying);
    Py_END_ALLOW_THREADS if (room) {
      out.room = *room;
      return room->data;
    }
    if (room.error().kind != core::ErrorKind::kTimeout) {
      RaiseCoreError(room.error());
      return nullptr;
    }
    if (PyErr_CheckSignals() != 0) return nullptr;
  }
}

// Copies to `offset` of the value.
bool CopyIn(Encoded& out, uint64_t offset, const void* from, uint64_t size) {
  if (size == 0) return true;
  if (!out.room.data) {
    std::memcpy(out.bytes.data() + offset, from, size);
    return true;
  }
  core::Status status;
  if (size < 256 * 1024) {
    status = g_runtime->Fill(out.room, offset, from, size);
  } else {
    Py_BEGIN_ALLOW_THREADS status = g_runtime->Fill(out.room, offset, from, size);
    Py_END_ALLOW_THREADS
  }
  if (status.ok()) return true;
  RaiseCoreError(status.error());
  return false;
}

bool IsNumpyArray(PyObject* value) { return std::strcmp(Py_TYPE(value)->tp_name, "numpy.ndarray") == 0; }

// 1: encoded; 0: not an array that this format takes; -1: exception.
int EncodeArray(PyObject* value, ObjectId id, Encoded& out) {
  if (!IsNumpyArray(value)) return 0;
  Owned dtype(PyObject_GetAttrString(value, "dtype"));
  Owned kind(dtype ? PyObject_GetAttrString(dtype.get(), "kind") : nullptr);
  Owned text(kind ? PyObject_GetAttrString(dtype.get(), "str") : nullptr);
  if (!text) return -1;
  const char* letter = PyUnicode_AsUTF8(kind.get());
  const char* type = PyUnicode_AsUTF8(text.get());
  if (!letter || !type) return -1;
  bool is_struct = letter[0] == 'V';
  if ((!is_struct && std::strchr("biufc", letter[0]) == nullptr) || std::strlen(type) >= sizeof(ArrayHead::type)) {
    return 0;
  }
  Owned described;
  std::string_view layout;
  if (is_struct) {
    PyObject* describe = Callback("weft._layouts", "layout_of");
    described = Owned(describe ? PyObject_CallFunctionObjArgs(describe, dtype.get(), nullptr) : nullptr);
    Py_ssize_t length = 0;
    const char* bytes = described ? PyUnicode_AsUTF8AndSize(described.get(), &length) : nullptr;
    if (!bytes) return -1;
    if (length == 0) return 0;
    layout = {bytes, static_cast<size_t>(length)};
  }
  Py_buffer view;
  bool fortran = false;
  if (PyObject_GetBuffer(value, &view, PyBUF_C_CONTIGUOUS) != 0) {
    PyErr_Clear();
    if (PyObject_GetBuffer(value, &view, PyBUF_F_CONTIGUOUS) != 0) {
      // It has gaps: what is sent has none, so that other languages can read it.
      PyErr_Clear();
      Owned dense(PyObject_CallMethod(value, "copy", nullptr));
      return dense ? EncodeArray(dense.get(), id, out) : -1;
    }
    fortran = true;
  }
  ArrayHead head;
  head.dimensions = static_cast<uint8_t>(view.ndim);
  head.flags = static_cast<uint8_t>((fortran ? ArrayHead::kColumns : 0) | (layout.empty() ? 0 : ArrayHead::kLayout));
  std::strcpy(head.type, type);
  uint64_t offset = ArrayHead::DataOffset(static_cast<uint32_t>(view.ndim), layout.size());
  auto size = static_cast<uint64_t>(view.len);

  // An array made by weft.empty is in the store already. Nobody else may be able to write to it: the array is known by
  // one name and the call, and its memory by the array alone.
  Owned base(PyObject_GetAttrString(value, "base"));
  if (!base) {
    PyBuffer_Release(&view);
    return -1;
  }
  PyObject* owner = base.get();
  uint8_t* to = nullptr;
  if (Py_TYPE(owner) == g_room_type) {
    auto* room = reinterpret_cast<RoomObject*>(owner);
    bool whole = view.buf == room->room.data + room->data_offset && size == room->data_size &&
                 offset == room->data_offset && room->epoch == g_epoch && !room->sealed;
    // The array: its name, the caller's stack, our buffer. The memory: the array, and `base`.
    if (whole && Py_REFCNT(value) <= 3 && Py_REFCNT(owner) <= 2) {
      Owned flags(PyObject_GetAttrString(value, "flags"));
      if (!flags || PyObject_SetAttrString(flags.get(), "writeable", Py_False) != 0) {
        PyBuffer_Release(&view);
        return -1;
      }
      room->sealed = true;
      out.room = room->room;
      out.sealed_room = true;
      out.room_object = owner;
      to = room->room.data;
    }
  }
  bool in_place = to != nullptr;
  if (!in_place) to = MakeRoom(offset + size, id, out);
  if (to) {
    std::string header(offset, 0);
    std::memcpy(header.data(), &head, sizeof head);
    for (int i = 0; i < view.ndim; ++i) {
      auto length = static_cast<uint64_t>(view.shape[i]);
      std::memcpy(header.data() + sizeof head + 8 * static_cast<size_t>(i), &length, 8);
    }
    if (!layout.empty()) {
      char* at = header.data() + sizeof head + 8 * static_cast<size_t>(view.ndim);
      auto length = static_cast<uint32_t>(layout.size());
      std::memcpy(at, &length, sizeof length);
      std::memcpy(at + sizeof length, layout.data(), layout.size());
    }
    if (in_place) {
      std::memcpy(to, header.data(), header.size());
    } else if (!CopyIn(out, 0, header.data(), offset) || !CopyIn(out, offset, view.buf, size)) {
      g_runtime->Abandon(out.room);
      to = nullptr;
    }
  }
  PyBuffer_Release(&view);
  return to ? 1 : -1;
}

bool EncodePickle(PyObject* value, ObjectId id, Encoded& out) {
  PyObject* dumps = Callback("weft._serialization", "dumps");
  if (!dumps) return false;
  Owned pair(PyObject_CallFunctionObjArgs(dumps, value, nullptr));
  if (!pair) return false;
  PyObject *pickle, *buffers;
  if (!PyArg_ParseTuple(pair.get(), "OO", &pickle, &buffers)) return false;
  Py_buffer stream;
  if (PyObject_GetBuffer(pickle, &stream, PyBUF_SIMPLE) != 0) return false;
  std::vector<Py_buffer> views;
  bool ok = true;
  Py_ssize_t count = PyList_GET_SIZE(buffers);
  views.reserve(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count && ok; ++i) {
    Py_buffer view;
    ok = PyObject_GetBuffer(PyList_GET_ITEM(buffers, i), &view, PyBUF_SIMPLE) == 0;
    if (ok) views.push_back(view);
  }
  if (ok) {
    PickleHead head;
    head.num_buffers = static_cast<uint32_t>(views.size());
    head.pickle_size = static_cast<uint64_t>(stream.len);
    uint64_t size = sizeof head + 16 * views.size() + head.pickle_size;
    std::vector<std::pair<uint64_t, uint64_t>> table;
    for (const Py_buffer& view : views) {
      size = core::AlignUp(size, core::kDataAlignment);
      table.emplace_back(size, static_cast<uint64_t>(view.len));
      size += static_cast<uint64_t>(view.len);
    }
    uint8_t* to = MakeRoom(size, id, out);
    ok = to != nullptr;
    if (ok) {
      ok = CopyIn(out, 0, &head, sizeof head) && CopyIn(out, sizeof head, table.data(), 16 * table.size()) &&
           CopyIn(out, sizeof head + 16 * table.size(), stream.buf, head.pickle_size);
      for (size_t i = 0; i < views.size() && ok; ++i) ok = CopyIn(out, table[i].first, views[i].buf, table[i].second);
      if (!ok && out.room.data) g_runtime->Abandon(out.room);
    }
  }
  for (Py_buffer& view : views) PyBuffer_Release(&view);
  PyBuffer_Release(&stream);
  return ok;
}

PyObject* Malformed() {
  PyErr_SetString(PyExc_ValueError, "weft: an object's bytes are not a value");
  return nullptr;
}

// Memory that Python may keep looking at: a view of the stored object, or a copy.
PyObject* KeepableMemory(std::string_view bytes, bool stored, Object* object) {
  if (!stored) return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
  Runtime::AddReference(object);
  return NewView(object, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

PyObject* DecodeArray(std::string_view bytes, bool stored, Object* object) {
  ArrayHead head;
  if (bytes.size() < sizeof head) return Malformed();
  std::memcpy(&head, bytes.data(), sizeof head);
  head.type[sizeof head.type - 1] = 0;
  std::string layout;
  if (head.flags & ArrayHead::kLayout) {
    uint64_t at = sizeof head + 8 * uint64_t{head.dimensions};
    uint32_t size;
    if (bytes.size() < at + sizeof size) return Malformed();
    std::memcpy(&size, bytes.data() + at, sizeof size);
    if (size == 0 || bytes.size() - at - sizeof size < size) return Malformed();
    layout = bytes.substr(at + sizeof size, size);
  }
  uint64_t offset = ArrayHead::DataOffset(head.dimensions, layout.size());
  if (offset > bytes.size()) return Malformed();
  PyObject* make = Callback("weft._serialization", "array_from_buffer");
  if (!make) return nullptr;
  Owned shape(PyTuple_New(head.dimensions));
  if (!shape) return nullptr;
  for (int i = 0; i < head.dimensions; ++i) {
    uint64_t length;
    std::memcpy(&length, bytes.data() + sizeof head + 8 * static_cast<size_t>(i), 8);
    PyObject* number = PyLong_FromUnsignedLongLong(length);
    if (!number) return nullptr;
    PyTuple_SET_ITEM(shape.get(), i, number);
  }
  Owned memory(KeepableMemory(bytes.substr(offset), stored, object));
  if (!memory) return nullptr;
  return PyObject_CallFunction(make, "OsOO", memory.get(), layout.empty() ? head.type : layout.c_str(), shape.get(),
                               head.flags & ArrayHead::kColumns ? Py_True : Py_False);
}

PyObject* DecodePickle(std::string_view bytes, bool stored, Object* object) {
  PickleHead head;
  if (bytes.size() < sizeof head) return Malformed();
  std::memcpy(&head, bytes.data(), sizeof head);
  uint64_t table_end = sizeof head + 16ull * head.num_buffers;
  if (table_end > bytes.size() || head.pickle_size > bytes.size() - table_end) return Malformed();
  PyObject* loads = Callback("weft._serialization", "loads");
  if (!loads) return nullptr;
  Owned buffers(PyList_New(head.num_buffers));
  if (!buffers) return nullptr;
  Owned whole;
  if (head.num_buffers > 0 && !stored) {
    whole = Owned(KeepableMemory(bytes, false, nullptr));
    if (!whole) return nullptr;
  }
  for (uint32_t i = 0; i < head.num_buffers; ++i) {
    uint64_t entry[2];
    std::memcpy(entry, bytes.data() + sizeof head + 16ull * i, sizeof entry);
    if (entry[0] > bytes.size() || entry[1] > bytes.size() - entry[0]) return Malformed();
    PyObject* buffer;
    if (stored) {
      buffer = KeepableMemory(bytes.substr(entry[0], entry[1]), true, object);
    } else {
      Owned view(PyMemoryView_FromObject(whole.get()));
      buffer = view ? PySequence_GetSlice(view.get(), static_cast<Py_ssize_t>(entry[0]),
                                          static_cast<Py_ssize_t>(entry[0] + entry[1]))
                    : nullptr;
    }
    if (!buffer) return nullptr;
    PyList_SET_ITEM(buffers.get(), i, buffer);
  }
  // The stream is only read during the call, so it needs no owner.
  Owned stream(PyMemoryView_FromMemory(const_cast<char*>(bytes.data()) + table_end,
                                       static_cast<Py_ssize_t>(head.pickle_size), PyBUF_READ));
  if (!stream) return nullptr;
  return PyObject_CallFunctionObjArgs(loads, stream.get(), buffers.get(), nullptr);
}

}  // namespace

bool EncodeNative(PyObject* value, std::string& out, std::vector<Object*>& contained, size_t most_references) {
  size_t before = out.size(), contained_before = contained.size();
  NativeEncoder encoder(out, contained, most_references);
  if (encoder.Encode(value, 0)) return true;
  out.resize(before);
  contained.resize(contained_before);
  return false;
}

namespace {

// Native values that hold many references are too large for frames.
bool MoveToRoom(ObjectId id, Encoded& out) {
  if (out.bytes.size() <= core::kMaxInlineBytes) return true;
  std::string bytes;
  bytes.swap(out.bytes);
  if (!MakeRoom(bytes.size(), id, out)) return false;
  if (CopyIn(out, 0, bytes.data(), bytes.size())) return true;
  g_runtime->Abandon(out.room);
  return false;
}

}  // namespace

bool EncodeValue(PyObject* value, ObjectId id, Encoded& out, bool native) {
  out.bytes.clear();
  out.bytes.push_back(static_cast<char>(ValueFormat::kNative));
  std::vector<Object*> references;
  Contained* inside = Contained::Current();
  if (EncodeNative(value, out.bytes, references, inside ? kMaxReferencesSize : 0)) {
    for (Object* object : references) Runtime::AddReference(object);
    if (!references.empty()) {
      inside->objects.insert(inside->objects.end(), references.begin(), references.end());
    }
    return MoveToRoom(id, out);
  }
  if (PyErr_Occurred()) return false;
  out.bytes.clear();
  int array = EncodeArray(value, id, out);
  if (array != 0) return array > 0;
  if (native && inside) {
    references.clear();
    out.bytes.assign(1, static_cast<char>(ValueFormat::kNative));
    NativeEncoder encoder(out.bytes, references, kMaxReferencesSize, true);
    if (encoder.Encode(value, 0)) {
      for (Object* object : references) Runtime::AddReference(object);
      inside->objects.insert(inside->objects.end(), references.begin(), references.end());
      return MoveToRoom(id, out);
    }
    if (PyErr_Occurred()) return false;
    out.bytes.clear();
  }
  return EncodePickle(value, id, out);
}

PyObject* DecodeValue(std::string_view bytes, bool stored, Object* object) {
  if (bytes.empty()) return Malformed();
  switch (static_cast<ValueFormat>(bytes[0])) {
    case ValueFormat::kNative: {
      core::ByteReader in(bytes.substr(1));
      Held held(object);
      ReferenceDecoder references;
      NativeDecoder decoder(in, references);
      Owned value(decoder.Decode());
      if (value && !in.ok()) return Malformed();
      if (value && !references.Fill()) return nullptr;
      return value.Release();
    }
    case ValueFormat::kArray:
      return DecodeArray(bytes, stored, object);
    case ValueFormat::kPickle: {
      Held held(object);
      return DecodePickle(bytes, stored, object);
    }
  }
  return Malformed();
}

namespace {

// An object that holds the value in the native format, whatever its size. nullptr with an exception set: other
// languages cannot read it.
Object* PutNative(PyObject* value, const char* function) {
  std::string bytes(1, static_cast<char>(core::ValueFormat::kNative));
  std::vector<Object*> contained;
  NativeEncoder encoder(bytes, contained, kMaxReferencesSize, true);
  if (!encoder.Encode(value, 0)) {
    if (PyErr_Occurred()) return nullptr;
    const bool named = encoder.refused() != nullptr;
    PyErr_Format(
        PyExc_TypeError,
        "'%s' is C++ and cannot take a %s%s: numbers, strings, bytes, lists, tuples, dicts, sets, NumPy arrays "
        "(not inside others), references and handles of actors can be passed",
        function, Py_TYPE(named ? encoder.refused() : value)->tp_name,
        named && encoder.refused() != value ? " inside its arguments" : "");
    return nullptr;
  }
  if (bytes.size() <= core::kMaxInlineBytes) return g_runtime->PutInline(bytes, contained);
  auto room = g_runtime->Allocate(bytes.size(), {}, core::Populate::kWhileCopying);
  if (!room) return RaiseCoreError(room.error()), nullptr;
  core::Status filled;
  Py_BEGIN_ALLOW_THREADS filled = g_runtime->Fill(*room, 0, bytes.data(), bytes.size());
  Py_END_ALLOW_THREADS if (!filled.ok()) {
    g_runtime->Abandon(*room);
    return RaiseCoreError(filled.error()), nullptr;
  }
  return g_runtime->PutStored(*room, contained);
}

bool EncodeArgument(PyObject* value, EncodedCall& out, const char* function) {
  if (IsRef(value)) {
    Object* object = ObjectOf(value);
    if (!object) return false;
    AppendTag(out.bytes, Tag::kDependency);
    Append(out.bytes, static_cast<uint32_t>(out.dependencies.size()));
    out.dependencies.push_back(object);
    return true;
  }
  // The ids of references inside travel beside the arguments once more.
  size_t known = out.contained.size();
  if (out.bytes.size() + known * sizeof(ObjectId) < core::kMaxInlineBytesPerFrame &&
      EncodeNative(value, out.bytes, out.contained, out.inline_references ? core::kMaxInlineBytes : 0)) {
    for (size_t i = known; i < out.contained.size(); ++i) {
      Runtime::AddReference(out.contained[i]);
      out.owned.push_back(out.contained[i]);
    }
    return true;
  }
  if (PyErr_Occurred()) return false;
  Contained inside;
  Encoded encoded;
  const bool native = out.native && !IsNumpyArray(value);
  if (!native && !EncodeValue(value, {}, encoded)) return false;
  Object* object;
  if (native) {
    object = PutNative(value, function);
    if (!object) return false;
  } else if (encoded.room.data) {
    if (encoded.room.location.size >= (1u << 20)) {
      PyObject* note = Callback("weft._functions", "note_large_argument");
      if (!note) return false;
      Owned done(PyObject_CallFunction(note, "OKs", value, static_cast<unsigned long long>(encoded.room.location.size),
                                       function));
      if (!done) return false;
    }
    object = g_runtime->PutStored(encoded.room, inside.objects);
    if (encoded.sealed_room) {
      reinterpret_cast<RoomObject*>(encoded.room_object)->object = object;
      Runtime::AddReference(object);
    }
  } else {
    object = g_runtime->PutInline(encoded.bytes, inside.objects);
  }
  AppendTag(out.bytes, Tag::kDependency);
  Append(out.bytes, static_cast<uint32_t>(out.dependencies.size()));
  out.dependencies.push_back(object);
  out.owned.push_back(object);
  return true;
}

}  // namespace

namespace {

thread_local std::deque<EncodedCall> t_calls;  // in use: the first t_calls_used
thread_local size_t t_calls_used = 0;

EncodedCall& NextCall() {
  if (t_calls_used == t_calls.size()) t_calls.emplace_back();
  return t_calls[t_calls_used++];
}

}  // namespace

ScratchCall::ScratchCall() : call_(NextCall()) {
  call_.inline_references = call_.native = false;
  call_.bytes.clear();
  call_.dependencies.clear();
  call_.contained.clear();
  call_.owned.clear();
}
ScratchCall::~ScratchCall() { --t_calls_used; }

bool EncodeCall(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, EncodedCall& out, const char* function) {
  Py_ssize_t num_keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  Append(out.bytes, static_cast<uint32_t>(nargs));
  Append(out.bytes, static_cast<uint32_t>(num_keywords));
  for (Py_ssize_t i = 0; i < num_keywords; ++i) {
    Py_ssize_t size;
    const char* name = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(kwnames, i), &size);
    if (!name) return false;
    Append(out.bytes, static_cast<uint32_t>(size));
    out.bytes.append(name, static_cast<size_t>(size));
  }
  for (Py_ssize_t i = 0; i < nargs + num_keywords; ++i) {
    if (!EncodeArgument(args[i], out, function)) return false;
  }
  return true;
}

bool DecodeCall(const core::TaskCall& call, std::vector<PyObject*>& args, size_t* num_positional, PyObject** kwnames) {
  core::ByteReader in(call.arguments);
  auto positional = in.Fixed<uint32_t>();
  auto keywords = in.Fixed<uint32_t>();
  *num_positional = positional;
  *kwnames = nullptr;
  if (!in.ok() || uint64_t{positional} + keywords > in.remaining()) return Malformed() != nullptr;
  if (keywords > 0) {
    *kwnames = PyTuple_New(keywords);
    if (!*kwnames) return false;
    for (uint32_t i = 0; i < keywords; ++i) {
      auto name = in.Bytes();
      PyObject* text = PyUnicode_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size()));
      if (!text) return false;
      PyUnicode_InternInPlace(&text);
      PyTuple_SET_ITEM(*kwnames, i, text);
    }
  }
  ReferenceDecoder references;
  for (uint32_t i = 0; i < positional + keywords; ++i) {
    core::ByteReader ahead = in;
    PyObject* value;
    if (static_cast<Tag>(ahead.Fixed<uint8_t>()) == Tag::kDependency) {
      in.Fixed<uint8_t>();
      auto number = in.Fixed<uint32_t>();
      if (number >= call.dependencies.size()) return Malformed() != nullptr;
      const core::TaskArgument& argument = call.dependencies[number];
      value = DecodeValue(argument.bytes, argument.stored, argument.object);
    } else {
      NativeDecoder decoder(in, references);
      value = decoder.Decode();
    }
    if (!value) return false;
    args.push_back(value);
  }
  if (!in.ok()) return Malformed() != nullptr;
  return references.Fill();
}

}  // namespace weft::python
