#include "api_python/codec.h"

#include <algorithm>
#include <cstring>

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
void AppendTag(std::string& out, Tag tag) { out.push_back(static_cast<char>(tag)); }

// Encodes one native value. Strings, bytes and containers are numbered in the order they begin, as the decoder does.
class NativeEncoder {
 public:
  explicit NativeEncoder(std::string& out) : out_(out) {}

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
    bool container = type == &PyTuple_Type || type == &PyList_Type || type == &PyDict_Type;
    if (!text && type != &PyBytes_Type && !container) return false;
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
    if (seen_count_ == kMaxSeen || depth > kMaxDepth) return false;
    size_t number = seen_count_++;
    seen_[number] = value;
    open_[number] = container;
    if (text) {
      Py_ssize_t size;
      const char* utf8 = PyUnicode_AsUTF8AndSize(value, &size);
      if (!utf8) return PyErr_Clear(), false;  // lone surrogates: pickle can
      if (size > core::kMaxInlineBytes) return false;
      AppendTag(out_, Tag::kString);
      Append(out_, static_cast<uint32_t>(size));
      out_.append(utf8, static_cast<size_t>(size));
      return true;
    }
    if (type == &PyBytes_Type) {
      if (PyBytes_GET_SIZE(value) > core::kMaxInlineBytes) return false;
      AppendTag(out_, Tag::kBytes);
      Append(out_, static_cast<uint32_t>(PyBytes_GET_SIZE(value)));
      out_.append(PyBytes_AS_STRING(value), static_cast<size_t>(PyBytes_GET_SIZE(value)));
      return true;
    }
    bool done = type == &PyTuple_Type  ? EncodeItems(Tag::kTuple, value, PyTuple_GET_SIZE(value), depth)
                : type == &PyList_Type ? EncodeItems(Tag::kList, value, PyList_GET_SIZE(value), depth)
                                       : EncodeDict(value, depth);
    open_[number] = false;
    return done;
  }

 private:
  static constexpr size_t kMaxSeen = 32;
  static constexpr int kMaxDepth = 8;
  static constexpr Py_ssize_t kMaxItems = 1000;

  bool EncodeInt(PyObject* value) {
    int overflow = 0;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return false;  // pickle knows big integers
    if (number >= -128 && number <= 127) {
      AppendTag(out_, Tag::kInt8);
      Append(out_, static_cast<int8_t>(number));
    } else {
      AppendTag(out_, Tag::kInt64);
      Append(out_, static_cast<int64_t>(number));
    }
    return true;
  }

  bool EncodeItems(Tag tag, PyObject* value, Py_ssize_t count, int depth) {
    if (count > kMaxItems) return false;
    AppendTag(out_, tag);
    Append(out_, static_cast<uint32_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* item = tag == Tag::kTuple ? PyTuple_GET_ITEM(value, i) : PyList_GET_ITEM(value, i);
      if (!Encode(item, depth + 1) || out_.size() > core::kMaxInlineBytes) return false;
    }
    return true;
  }

  bool EncodeDict(PyObject* value, int depth) {
    Py_ssize_t count = PyDict_GET_SIZE(value);
    if (count > kMaxItems) return false;
    AppendTag(out_, Tag::kDict);
    Append(out_, static_cast<uint32_t>(count));
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(value, &position, &key, &item)) {
      if (!Encode(key, depth + 1) || !Encode(item, depth + 1) || out_.size() > core::kMaxInlineBytes) return false;
    }
    return true;
  }

  std::string& out_;
  PyObject* seen_[kMaxSeen];
  bool open_[kMaxSeen];
  size_t seen_count_ = 0;
};

class NativeDecoder {
 public:
  explicit NativeDecoder(core::ByteReader& in) : in_(in) {}
  ~NativeDecoder() {
    for (size_t i = 0; i < seen_count_; ++i) Py_DECREF(seen_[i]);
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
      case Tag::kSame: {
        auto number = in_.Fixed<uint32_t>();
        if (number >= seen_count_ || !seen_[number]) break;
        Py_INCREF(seen_[number]);
        return seen_[number];
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
      Owned key(Decode(depth + 1));
      Owned value(key ? Decode(depth + 1) : nullptr);
      if (!value || PyDict_SetItem(dict, key.get(), value.get()) != 0) return Py_DECREF(dict), nullptr;
    }
    return dict;
  }

  core::ByteReader& in_;
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
  if (std::strchr("biufc", letter[0]) == nullptr || std::strlen(type) >= sizeof(ArrayHead::type)) return 0;
  Py_buffer view;
  bool fortran = false;
  if (PyObject_GetBuffer(value, &view, PyBUF_C_CONTIGUOUS) != 0) {
    PyErr_Clear();
    if (PyObject_GetBuffer(value, &view, PyBUF_F_CONTIGUOUS) != 0) {
      PyErr_Clear();
      return 0;
    }
    fortran = true;
  }
  ArrayHead head;
  head.dimensions = static_cast<uint8_t>(view.ndim);
  head.fortran = fortran ? 1 : 0;
  std::strcpy(head.type, type);
  uint64_t offset = ArrayHead::DataOffset(static_cast<uint32_t>(view.ndim));
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
  uint64_t offset = ArrayHead::DataOffset(head.dimensions);
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
  return PyObject_CallFunction(make, "OsOO", memory.get(), head.type, shape.get(), head.fortran ? Py_True : Py_False);
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

bool EncodeNative(PyObject* value, std::string& out) {
  size_t before = out.size();
  NativeEncoder encoder(out);
  if (encoder.Encode(value, 0)) return true;
  out.resize(before);
  return false;
}

bool EncodeValue(PyObject* value, ObjectId id, Encoded& out) {
  out.bytes.clear();
  out.bytes.push_back(static_cast<char>(ValueFormat::kNative));
  if (EncodeNative(value, out.bytes)) return true;
  if (PyErr_Occurred()) return false;
  out.bytes.clear();
  int array = EncodeArray(value, id, out);
  if (array != 0) return array > 0;
  return EncodePickle(value, id, out);
}

PyObject* DecodeValue(std::string_view bytes, bool stored, Object* object) {
  if (bytes.empty()) return Malformed();
  switch (static_cast<ValueFormat>(bytes[0])) {
    case ValueFormat::kNative: {
      core::ByteReader in(bytes.substr(1));
      NativeDecoder decoder(in);
      Owned value(decoder.Decode());
      if (value && !in.ok()) return Malformed();
      return value.Release();
    }
    case ValueFormat::kArray:
      return DecodeArray(bytes, stored, object);
    case ValueFormat::kPickle:
      return DecodePickle(bytes, stored, object);
  }
  return Malformed();
}

namespace {

bool EncodeArgument(PyObject* value, EncodedCall& out, const char* function) {
  if (IsRef(value)) {
    Object* object = ObjectOf(value);
    if (!object) return false;
    AppendTag(out.bytes, Tag::kDependency);
    Append(out.bytes, static_cast<uint32_t>(out.dependencies.size()));
    out.dependencies.push_back(object);
    return true;
  }
  if (out.bytes.size() < core::kMaxInlineBytesPerFrame && EncodeNative(value, out.bytes)) return true;
  if (PyErr_Occurred()) return false;
  Contained inside;
  Encoded encoded;
  if (!EncodeValue(value, {}, encoded)) return false;
  Object* object;
  if (encoded.room.data) {
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
      NativeDecoder decoder(in);
      value = decoder.Decode();
    }
    if (!value) return false;
    args.push_back(value);
  }
  return in.ok() || Malformed() != nullptr;
}

}  // namespace weft::python
