#include "api_python/remote_function.h"

#include <structmember.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "api_python/codec.h"
#include "api_python/options.h"
#include "api_python/python_runner.h"
#include "api_python/submission.h"
#include "wire/library_body.h"

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
  bool native;  // it is C++
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
  const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(f->exported, 2));
  if (!name) return false;
  core::TaskTemplate what;
  core::ResourceAmounts shape;
  double num_returns, max_retries;
  if (!ReadShape(f->options, "num_cpus", shape) || !ReadPlacement(f->options, shape) ||
      !Number(f->options, "num_returns", &num_returns) || !Number(f->options, "max_retries", &max_retries) ||
      !Text(f->options, "name", &what.name) || !Text(f->options, "retry_payload", &what.retry_exceptions)) {
    return false;
  }
  if (what.name.empty()) what.name = name;
  what.num_returns = static_cast<uint32_t>(num_returns);
  what.max_retries = static_cast<int32_t>(max_retries);
  what.function = InternExported(runtime, f->exported);
  if (!what.function) return false;
  f->native = core::IsLibraryBody(what.function->body);
  if (!f->native) AskForPythonWorker(runtime, shape);
  f->what = runtime->InternTemplate(std::move(what), shape);
  f->epoch = g_epoch;
  return true;
}

// In local mode the task runs here and now.
PyObject* CallLocal(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Owned positional, named;
  if (!AsTupleAndDict(args, nargs, kwnames, positional, named)) return nullptr;
  return PyObject_CallFunctionObjArgs(g_local_task, self, positional.get(), named.get(), nullptr);
}

PyObject* Remote(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  auto* f = Self(self);
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  if (g_local_task) return CallLocal(self, args, nargs, kwnames);
  if (f->epoch != g_epoch && !Prepare(f, runtime)) return nullptr;
  const core::TaskTemplate* what = f->what;
  return EncodeAndSubmit(runtime, what, args, nargs, kwnames, f->native,
                         [&](const EncodedCall& call, Object** returns) {
                           runtime->Submit(what, call.bytes, call.dependencies, call.contained, returns);
                           return true;
                         });
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

PyObject* Repr(PyObject* self) {
  PyObject* name = PyObject_GetAttrString(self, "__qualname__");
  if (!name) {  // a callable object without one
    PyErr_Clear();
    return PyUnicode_FromString("RemoteFunction");
  }
  PyObject* text = PyUnicode_FromFormat("RemoteFunction(%S)", name);
  Py_DECREF(name);
  return text;
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
                       {Py_tp_repr, reinterpret_cast<void*>(Repr)},
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
