#include "api_python/remote_function.h"

#include <structmember.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "api_python/codec.h"

namespace weft::python {
namespace {

struct RemoteFunctionObject {
  PyObject_HEAD PyObject* dict;
  PyObject* function;
  PyObject* options;
  PyObject* exported;  // (key, body, name), made at the first call
  PyObject* weak_references;
  const core::TaskTemplate* what;  // of the session `epoch`
  uint32_t epoch;
};
PyTypeObject* g_type = nullptr;

RemoteFunctionObject* Self(PyObject* self) { return reinterpret_cast<RemoteFunctionObject*>(self); }

int Init(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"function", "options", "exported", nullptr};
  PyObject *function, *options, *exported = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O", const_cast<char**>(names), &function, &options, &exported)) {
    return -1;
  }
  auto* f = Self(self);
  Py_INCREF(function);
  Py_INCREF(options);
  Py_XSETREF(f->function, function);
  Py_XSETREF(f->options, options);
  if (exported == Py_None) exported = nullptr;
  Py_XINCREF(exported);
  Py_XSETREF(f->exported, exported);
  f->epoch = 0;
  f->what = nullptr;
  return 0;
}

int Traverse(PyObject* self, visitproc visit, void* arg) {
  auto* f = Self(self);
  Py_VISIT(f->dict);
  Py_VISIT(f->function);
  Py_VISIT(f->options);
  Py_VISIT(f->exported);
  Py_VISIT(Py_TYPE(self));
  return 0;
}

int Clear(PyObject* self) {
  auto* f = Self(self);
  Py_CLEAR(f->dict);
  Py_CLEAR(f->function);
  Py_CLEAR(f->options);
  Py_CLEAR(f->exported);
  return 0;
}

void Dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  if (Self(self)->weak_references) PyObject_ClearWeakRefs(self);
  Clear(self);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

bool Number(PyObject* options, const char* name, double* value) {
  Owned attribute(PyObject_GetAttrString(options, name));
  if (!attribute) return false;
  if (attribute.get() == Py_None) {
    *value = 0;
    return true;
  }
  *value = PyFloat_AsDouble(attribute.get());
  return !PyErr_Occurred();
}

bool Text(PyObject* options, const char* name, std::string* value) {
  Owned attribute(PyObject_GetAttrString(options, name));
  if (!attribute) return false;
  if (attribute.get() == Py_None) return true;
  char* bytes;
  Py_ssize_t size;
  if (PyBytes_Check(attribute.get())) {
    if (PyBytes_AsStringAndSize(attribute.get(), &bytes, &size) != 0) return false;
    value->assign(bytes, static_cast<size_t>(size));
    return true;
  }
  const char* utf8 = PyUnicode_AsUTF8AndSize(attribute.get(), &size);
  if (!utf8) return false;
  value->assign(utf8, static_cast<size_t>(size));
  return true;
}

void AddAmount(core::ResourceAmounts& shape, const std::string& name, double amount) {
  auto units = static_cast<int64_t>(std::llround(amount * static_cast<double>(core::kResourceUnit)));
  if (units > 0) shape.emplace_back(name, units);
}

// The template for the present session: the function is exported once, the options are read once.
bool Prepare(RemoteFunctionObject* f, Runtime* runtime) {
  if (!f->exported) {
    PyObject* export_function = Callback("weft._functions", "export");
    if (!export_function) return false;
    // References that the body captures are kept for good: any worker may load it at any time.
    Contained captured;
    PyObject* exported = PyObject_CallFunctionObjArgs(export_function, f->function, nullptr);
    if (!exported) return false;
    captured.objects.clear();
    f->exported = exported;
  }
  const char* key_bytes;
  Py_ssize_t key_size, body_size;
  const char *body, *name;
  if (!PyArg_ParseTuple(f->exported, "y#y#s", &key_bytes, &key_size, &body, &body_size, &name)) return false;
  if (key_size != sizeof(core::FunctionKey)) {
    PyErr_SetString(PyExc_ValueError, "a function's key has 16 bytes");
    return false;
  }
  core::FunctionKey key;
  std::memcpy(&key, key_bytes, sizeof key);
  core::TaskTemplate what;
  core::ResourceAmounts shape;
  double cpus, gpus, memory, num_returns, max_retries;
  if (!Number(f->options, "num_cpus", &cpus) || !Number(f->options, "num_gpus", &gpus) ||
      !Number(f->options, "memory", &memory) || !Number(f->options, "num_returns", &num_returns) ||
      !Number(f->options, "max_retries", &max_retries) || !Text(f->options, "name", &what.name) ||
      !Text(f->options, "retry_payload", &what.retry_exceptions)) {
    return false;
  }
  AddAmount(shape, "CPU", cpus);
  AddAmount(shape, "GPU", gpus);
  AddAmount(shape, "memory", memory);
  Owned resources(PyObject_GetAttrString(f->options, "resources"));
  if (!resources) return false;
  if (PyDict_Check(resources.get())) {
    PyObject *resource, *amount;
    Py_ssize_t position = 0;
    while (PyDict_Next(resources.get(), &position, &resource, &amount)) {
      const char* resource_name = PyUnicode_AsUTF8(resource);
      double value = resource_name ? PyFloat_AsDouble(amount) : 0;
      if (PyErr_Occurred()) return false;
      AddAmount(shape, resource_name, value);
    }
  }
  std::sort(shape.begin(), shape.end());
  if (what.name.empty()) what.name = name;
  what.num_returns = static_cast<uint32_t>(num_returns);
  what.max_retries = static_cast<int32_t>(max_retries);
  core::Result<const core::Function*> function = nullptr;
  Py_BEGIN_ALLOW_THREADS function = runtime->InternFunction(key, name, {body, static_cast<size_t>(body_size)});
  Py_END_ALLOW_THREADS if (!function) return RaiseCoreError(function.error()), false;
  what.function = *function;
  f->what = runtime->InternTemplate(std::move(what), shape);
  f->epoch = g_epoch;
  return true;
}

PyObject* Remote(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  auto* f = Self(self);
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  if (f->epoch != g_epoch && !Prepare(f, runtime)) return nullptr;
  const core::TaskTemplate* what = f->what;

  ScratchCall scratch;
  EncodedCall& call = *scratch;
  call.inline_references = true;
  bool encoded = EncodeCall(args, nargs, kwnames, call, what->name.c_str());
  PyObject* result = nullptr;
  if (encoded) {
    if (what->num_returns == 1) {
      Object* object;
      runtime->Submit(what, call.bytes, call.dependencies, call.contained, &object);
      result = NewRef(object, false);
    } else {
      std::vector<Object*> objects(what->num_returns);
      runtime->Submit(what, call.bytes, call.dependencies, call.contained, objects.data());
      if (what->num_returns == 0) {
        result = Py_None;
        Py_INCREF(result);
      } else {
        result = PyList_New(what->num_returns);
        for (uint32_t i = 0; result && i < what->num_returns; ++i)
          PyList_SET_ITEM(result, i, NewRef(objects[i], false));
      }
    }
  }
  for (Object* object : call.owned) runtime->DropReference(object);
  return result;
}

PyObject* CallPython(const char* name, PyObject* self, PyObject* argument) {
  PyObject* function = Callback("weft._remote_function", name);
  return function ? PyObject_CallFunctionObjArgs(function, self, argument, nullptr) : nullptr;
}

PyObject* Options(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (PyTuple_GET_SIZE(args) > 0) {
    PyErr_SetString(PyExc_TypeError, "options() takes keyword arguments only, as in f.options(num_cpus=2)");
    return nullptr;
  }
  Owned empty(kwargs ? nullptr : PyDict_New());
  return CallPython("with_options", self, kwargs ? kwargs : empty.get());
}

PyObject* Call(PyObject* self, PyObject*, PyObject*) { return CallPython("refuse_direct_call", self, nullptr); }

PyObject* Reduce(PyObject* self, PyObject*) {
  PyObject* rebuild = Callback("weft._remote_function", "rebuild");
  if (!rebuild) return nullptr;
  return Py_BuildValue("O(OO)", rebuild, Self(self)->function, Self(self)->options);
}

PyMethodDef methods[] = {
    {"remote", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Remote)), METH_FASTCALL | METH_KEYWORDS,
     "Runs the function as a task; returns at once with an ObjectRef (or a list of them)."},
    {"options", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Options)), METH_VARARGS | METH_KEYWORDS,
     "The same function with other options."},
    {"__reduce__", Reduce, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef members[] = {
    {"_function", T_OBJECT_EX, offsetof(RemoteFunctionObject, function), READONLY, nullptr},
    {"_options", T_OBJECT_EX, offsetof(RemoteFunctionObject, options), READONLY, nullptr},
    {"_exported", T_OBJECT, offsetof(RemoteFunctionObject, exported), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(RemoteFunctionObject, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(RemoteFunctionObject, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef getset[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                        {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot slots[] = {{Py_tp_init, reinterpret_cast<void*>(Init)},
                       {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
                       {Py_tp_traverse, reinterpret_cast<void*>(Traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(Clear)},
                       {Py_tp_call, reinterpret_cast<void*>(Call)},
                       {Py_tp_methods, methods},
                       {Py_tp_members, members},
                       {Py_tp_getset, getset},
                       {Py_tp_doc, const_cast<char*>("A function that runs as a task: call it with .remote(...).")},
                       {0, nullptr}};

PyType_Spec spec = {"weft.RemoteFunction", sizeof(RemoteFunctionObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                    slots};

}  // namespace

bool InitRemoteFunctionType(PyObject* module) {
  g_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (!g_type) return false;
  Py_INCREF(g_type);
  return PyModule_AddObject(module, "RemoteFunction", reinterpret_cast<PyObject*>(g_type)) == 0;
}

}  // namespace weft::python
