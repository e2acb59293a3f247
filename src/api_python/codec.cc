#include "api_python/codec.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "api_python/actor.h"
#include "api_python/buffers.h"
#include "api_python/native_decoder.h"
#include "api_python/native_encoder.h"
#include "base/bytes.h"
#include "wire/value_format.h"

namespace weft::python {
namespace {

using core::ArrayHead;
using core::PickleHead;
using core::ValueFormat;

// References of one value, in bytes: far more than any program puts into one, and less than a count can say.
constexpr size_t kMaxReferencesSize = size_t{1} << 31;

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
      // It has gaps: send it without, so that other languages can read it.
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

  // An array made by weft.empty is in the store already. Nothing else may be able to write to it: only one name and the
  // call refer to the array, and only the array to its memory.
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

// Memory that Python may keep: a view of the stored object, or a copy.
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
  // The ids of references inside also travel beside the arguments.
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
