#include "api_python/object_ref.h"

#include <structmember.h>

namespace weft::python {

PyTypeObject* g_ref_type = nullptr;

namespace {

thread_local Contained* t_contained = nullptr;
thread_local Held* t_held = nullptr;
uint32_t g_stamp = 0;

constexpr ptrdiff_t kMostSkipped = 4;  // entries of a value's list that Held::Next passes over in search

void Dealloc(PyObject* self) {
  auto* ref = reinterpret_cast<RefObject*>(self);
  if (ref->weak_references) PyObject_ClearWeakRefs(self);
  if (ref->epoch == g_epoch && g_runtime && !Runtime::forked()) g_runtime->DropReference(ref->object);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

std::string Hex(PyObject* self) {
  auto* ref = reinterpret_cast<RefObject*>(self);
  if (ref->epoch != g_epoch || !g_runtime) return "ended session";
  return core::ToString(ref->object->id);
}

// How a reference is printed: weft.compat.ray changes it for programs that expect Ray's form of 2018. Guarded by the
// GIL.
std::string g_printed_name = "ObjectRef";
size_t g_printed_digits = 0;  // padded with zeros to this length

PyObject* Repr(PyObject* self) {
  std::string id = Hex(self);
  if (id.size() < g_printed_digits && id.find(' ') == std::string::npos) id.append(g_printed_digits - id.size(), '0');
  return PyUnicode_FromFormat("%s(%s)", g_printed_name.c_str(), id.c_str());
}

PyObject* PrintReferencesAs(PyObject*, PyObject* arguments) {
  const char* name = nullptr;
  Py_ssize_t digits = 0;
  if (!PyArg_ParseTuple(arguments, "sn", &name, &digits)) return nullptr;
  if (digits < 0 || digits > 1000) {
    PyErr_SetString(PyExc_ValueError, "digits must be between 0 and 1000");
    return nullptr;
  }
  g_printed_name = name;
  g_printed_digits = static_cast<size_t>(digits);
  Py_RETURN_NONE;
}

PyObject* HexMethod(PyObject* self, PyObject*) { return PyUnicode_FromString(Hex(self).c_str()); }

PyObject* Binary(PyObject* self, PyObject*) {
  Object* object = ObjectOf(self);
  if (!object) return nullptr;
  const uint64_t words[2] = {__builtin_bswap64(object->id.owner.value), __builtin_bswap64(object->id.index)};
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(words), sizeof words);
}

Py_hash_t Hash(PyObject* self) {
  auto* ref = reinterpret_cast<RefObject*>(self);
  auto hash = static_cast<Py_hash_t>(reinterpret_cast<uintptr_t>(ref->object) >> 4);
  return hash == -1 ? -2 : hash;
}

PyObject* Compare(PyObject* left, PyObject* right, int operation) {
  if (!IsRef(right) || (operation != Py_EQ && operation != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
  auto* a = reinterpret_cast<RefObject*>(left);
  auto* b = reinterpret_cast<RefObject*>(right);
  bool same = a->object == b->object && a->epoch == b->epoch;
  return PyBool_FromLong(same == (operation == Py_EQ));
}

PyObject* Reduce(PyObject* self, PyObject*) {
  Object* object = ObjectOf(self);
  if (!object) return nullptr;
  if (!NoteContained(object)) {
    PyErr_SetString(
        PyExc_TypeError,
        "an ObjectRef can only be pickled by weft itself (as part of a value that is put, passed to a task "
        "or returned from one), because its object must be kept alive for the receiver; get() the value and "
        "pickle that instead");
    return nullptr;
  }
  PyObject* restore = Callback("weft._core", "_restore_reference");
  if (!restore) return nullptr;
  return Py_BuildValue("O(KK)", restore, static_cast<unsigned long long>(object->id.owner.value),
                       static_cast<unsigned long long>(object->id.index));
}

PyObject* CallPython(const char* name, PyObject* self) {
  PyObject* function = Callback("weft._futures", name);
  return function ? PyObject_CallFunctionObjArgs(function, self, nullptr) : nullptr;
}
PyObject* Future(PyObject* self, PyObject*) { return CallPython("future_of", self); }
PyObject* Await(PyObject* self) { return CallPython("await_ref", self); }

PyObject* ClassGetItem(PyObject* type, PyObject*) {
  Py_INCREF(type);
  return type;
}

PyObject* New(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "an ObjectRef is made by put() or by calling a remote function, not directly");
  return nullptr;
}

PyMethodDef methods[] = {{"hex", HexMethod, METH_NOARGS, "The object's id as 32 hexadecimal digits."},
                         {"binary", Binary, METH_NOARGS, "The object's id as 16 bytes."},
                         {"future", Future, METH_NOARGS, "A concurrent.futures.Future of the value."},
                         {"__reduce__", Reduce, METH_NOARGS, nullptr},
                         {"__class_getitem__", ClassGetItem, METH_O | METH_CLASS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyMemberDef members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(RefObject, weak_references), READONLY, nullptr},
                         {nullptr, 0, 0, 0, nullptr}};

PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
                       {Py_tp_repr, reinterpret_cast<void*>(Repr)},
                       {Py_tp_hash, reinterpret_cast<void*>(Hash)},
                       {Py_tp_richcompare, reinterpret_cast<void*>(Compare)},
                       {Py_tp_methods, methods},
                       {Py_tp_members, members},
                       {Py_am_await, reinterpret_cast<void*>(Await)},
                       {Py_tp_new, reinterpret_cast<void*>(New)},
                       {Py_tp_doc, const_cast<char*>("A handle to an immutable object, perhaps not computed yet.")},
                       {0, nullptr}};

PyMethodDef functions[] = {{"_print_references_as", PrintReferencesAs, METH_VARARGS, nullptr},
                           {nullptr, nullptr, 0, nullptr}};

PyType_Spec spec = {"weft.ObjectRef", sizeof(RefObject), 0, Py_TPFLAGS_DEFAULT, slots};

}  // namespace

uint32_t NextStamp() {
  if (++g_stamp == 0) ++g_stamp;  // new handles have none
  return g_stamp;
}

Held::Held(Object* of) : outer_(t_held) {
  // The list of a value that is in use stays as long as the object does.
  const auto* contained = of && of->resolved() ? of->contained : nullptr;
  if (contained) {
    at_ = contained->data();
    end_ = at_ + contained->size();
  }
  t_held = this;
}
Held::~Held() { t_held = outer_; }
Held* Held::Current() { return t_held; }

Object* Held::Next(ObjectId id) {
  // Handles of actors are in the list too, and are found in another way.
  Object* const* at = at_;
  while (at != end_ && (*at)->id != id) {
    if (++at - at_ > kMostSkipped) return nullptr;
  }
  if (at == end_) return nullptr;
  Object* object = *at;
  at_ = at + 1;
  Runtime::AddReference(object);
  return object;
}

Contained* Contained::Current() { return t_contained; }
Contained::Contained() : outer(t_contained) { t_contained = this; }
Contained::~Contained() {
  t_contained = outer;
  for (Object* object : objects) {
    if (g_runtime) g_runtime->DropReference(object);
  }
}

bool NoteContained(Object* object) {
  if (!t_contained) return false;
  Runtime::AddReference(object);
  t_contained->objects.push_back(object);
  return true;
}

bool InitRefType(PyObject* module) {
  g_ref_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (!g_ref_type) return false;
  Py_INCREF(g_ref_type);
  return PyModule_AddFunctions(module, functions) == 0 &&
         PyModule_AddObject(module, "ObjectRef", reinterpret_cast<PyObject*>(g_ref_type)) == 0;
}

PyObject* NewRef(Object* object, bool alias) {
  auto* ref = PyObject_New(RefObject, g_ref_type);
  if (!ref) return nullptr;
#if PY_VERSION_HEX < 0x03080000
  Py_INCREF(g_ref_type);
#endif
  ref->object = object;
  ref->epoch = g_epoch;
  ref->stamp = 0;
  ref->number = 0;
  ref->alias = alias;
  ref->weak_references = nullptr;
  return reinterpret_cast<PyObject*>(ref);
}

Object* ObjectOf(PyObject* self) {
  auto* ref = reinterpret_cast<RefObject*>(self);
  if (ref->epoch != g_epoch || !g_runtime) {
    PyErr_SetString(PyExc_RuntimeError, "this ObjectRef belongs to a weft session that has ended; its object is gone");
    return nullptr;
  }
  return ref->object;
}

}  // namespace weft::python
