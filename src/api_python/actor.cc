#include "api_python/actor.h"

#include <structmember.h>

#include <cstring>
#include <vector>

#include "api_python/codec.h"
#include "api_python/object_ref.h"
#include "api_python/options.h"
#include "api_python/python_runner.h"
#include "api_python/submission.h"
#include "wire/languages.h"

namespace weft::python {
namespace {

PyTypeObject* g_info_type = nullptr;
PyTypeObject* g_handle_type = nullptr;
PyTypeObject* g_method_type = nullptr;

// Shared by all calls of one method with one set of options.
struct MethodEntry {
  PyObject* options = nullptr;  // weft._options.MethodOptions
  Py_ssize_t min_args = 0, max_args = -1;
  const core::TaskTemplate* what = nullptr;  // of the session `epoch`
  uint32_t epoch = 0;
};

struct InfoObject {
  PyObject_HEAD PyObject* name;
  PyObject* methods;  // dict: name -> MethodOptions
  PyObject* blob;
  PyObject* entries;  // dict: name -> capsule of MethodEntry
  PyObject* weak_references;
  int64_t max_pending_calls;
};

struct HandleObject {
  PyObject_HEAD Object* object;
  PyObject* info;
  uint32_t epoch;
  PyObject* weak_references;
};

struct MethodObject {
  PyObject_HEAD PyObject* handle;
  PyObject* name;
  PyObject* options;
  MethodEntry* entry;  // the info's
  MethodEntry* own;    // or this method's own, which was made by options()
};

InfoObject* Info(PyObject* self) { return reinterpret_cast<InfoObject*>(self); }
HandleObject* Handle(PyObject* self) { return reinterpret_cast<HandleObject*>(self); }
MethodObject* Method(PyObject* self) { return reinterpret_cast<MethodObject*>(self); }

// C++ classes say so by how their description begins.
bool IsCpp(PyObject* info) { return PyBytes_AS_STRING(Info(info)->blob)[0] == core::kCppActor; }

Object* ObjectOfHandle(PyObject* self) {
  if (Handle(self)->epoch != g_epoch || !g_runtime) {
    PyErr_SetString(PyExc_RuntimeError,
                    "this actor handle belongs to a weft session that has ended; its actor is gone");
    return nullptr;
  }
  return Handle(self)->object;
}

bool ReadEntry(PyObject* options, MethodEntry* entry) {
  double min_args, max_args;
  if (!Number(options, "min_args", &min_args) || !Number(options, "max_args", &max_args)) return false;
  entry->options = options;
  entry->min_args = static_cast<Py_ssize_t>(min_args);
  entry->max_args = static_cast<Py_ssize_t>(max_args);
  return true;
}

// ---- ActorInfo ----------------------------------------------------------------------------------------------------

void FreeEntry(PyObject* capsule) { delete static_cast<MethodEntry*>(PyCapsule_GetPointer(capsule, nullptr)); }

int InfoInit(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"name", "methods", "blob", "max_pending_calls", nullptr};
  PyObject *name, *methods, *blob;
  long long max_pending = -1;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UO!S|L", const_cast<char**>(names), &name, &PyDict_Type, &methods,
                                   &blob, &max_pending)) {
    return -1;
  }
  Owned entries(PyDict_New());
  if (!entries) return -1;
  PyObject *key, *options;
  Py_ssize_t position = 0;
  while (PyDict_Next(methods, &position, &key, &options)) {
    auto* entry = new MethodEntry();
    Owned capsule(PyCapsule_New(entry, nullptr, FreeEntry));
    if (!capsule || !ReadEntry(options, entry) || PyDict_SetItem(entries.get(), key, capsule.get()) != 0) return -1;
  }
  auto* info = Info(self);
  Py_INCREF(name);
  Py_INCREF(methods);
  Py_INCREF(blob);
  Py_XSETREF(info->name, name);
  Py_XSETREF(info->methods, methods);
  Py_XSETREF(info->blob, blob);
  Py_XSETREF(info->entries, entries.Release());
  info->max_pending_calls = max_pending;
  return 0;
}

void InfoDealloc(PyObject* self) {
  auto* info = Info(self);
  if (info->weak_references) PyObject_ClearWeakRefs(self);
  Py_CLEAR(info->name);
  Py_CLEAR(info->entries);
  Py_CLEAR(info->methods);
  Py_CLEAR(info->blob);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef info_members[] = {
    {"name", T_OBJECT_EX, offsetof(InfoObject, name), READONLY, nullptr},
    {"methods", T_OBJECT_EX, offsetof(InfoObject, methods), READONLY, nullptr},
    {"blob", T_OBJECT_EX, offsetof(InfoObject, blob), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(InfoObject, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot info_slots[] = {{Py_tp_init, reinterpret_cast<void*>(InfoInit)},
                            {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(InfoDealloc)},
                            {Py_tp_members, info_members},
                            {Py_tp_doc, const_cast<char*>("What callers know of an actor class.")},
                            {0, nullptr}};
PyType_Spec info_spec = {"weft._core.ActorInfo", sizeof(InfoObject), 0, Py_TPFLAGS_DEFAULT, info_slots};

// ---- ActorHandle --------------------------------------------------------------------------------------------------

void HandleDealloc(PyObject* self) {
  auto* handle = Handle(self);
  if (handle->weak_references) PyObject_ClearWeakRefs(self);
  if (handle->epoch == g_epoch && g_runtime && !Runtime::forked()) g_runtime->DropReference(handle->object);
  Py_CLEAR(handle->info);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* HandleGetAttribute(PyObject* self, PyObject* name) {
  // A method of the actor's class; everything else is the handle's own.
  PyObject* capsule = PyDict_GetItemWithError(Info(Handle(self)->info)->entries, name);
  if (capsule) {
    auto* method = PyObject_New(MethodObject, g_method_type);
    if (!method) return nullptr;
    Py_INCREF(self);
    Py_INCREF(name);
    method->handle = self;
    method->name = name;
    method->entry = static_cast<MethodEntry*>(PyCapsule_GetPointer(capsule, nullptr));
    method->own = nullptr;
    method->options = method->entry->options;
    Py_INCREF(method->options);
    return reinterpret_cast<PyObject*>(method);
  }
  if (PyErr_Occurred()) return nullptr;
  PyObject* own = PyObject_GenericGetAttr(self, name);
  if (own || !PyErr_ExceptionMatches(PyExc_AttributeError)) return own;
  const char* text = PyUnicode_AsUTF8(name);
  if (text && std::strncmp(text, "__", 2) == 0) return nullptr;  // Python asks for these by itself
  PyErr_Clear();
  PyObject* missing = Callback("weft._actor", "missing_method");
  return missing ? PyObject_CallFunctionObjArgs(missing, self, name, nullptr) : nullptr;
}

PyObject* HandleActorId(PyObject* self, void*) {
  Object* object = ObjectOfHandle(self);
  return object ? PyUnicode_FromString(core::ToString(object->id).c_str()) : nullptr;
}

PyObject* HandleRepr(PyObject* self) {
  const bool ended = Handle(self)->epoch != g_epoch || !g_runtime;
  std::string id = ended ? "ended session" : core::ToString(Handle(self)->object->id);
  return PyUnicode_FromFormat("Actor(%U, %s)", Info(Handle(self)->info)->name, id.c_str());
}

Py_hash_t HandleHash(PyObject* self) {
  auto hash = static_cast<Py_hash_t>(reinterpret_cast<uintptr_t>(Handle(self)->object) >> 4);
  return hash == -1 ? -2 : hash;
}

PyObject* HandleCompare(PyObject* left, PyObject* right, int operation) {
  if (Py_TYPE(right) != g_handle_type || (operation != Py_EQ && operation != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
  bool same = Handle(left)->object == Handle(right)->object && Handle(left)->epoch == Handle(right)->epoch;
  return PyBool_FromLong(same == (operation == Py_EQ));
}

PyObject* HandleReduce(PyObject* self, PyObject*) {
  Object* object = ObjectOfHandle(self);
  if (!object) return nullptr;
  if (!NoteContained(object)) {
    PyErr_SetString(PyExc_TypeError,
                    "an actor handle can only be pickled by weft itself (as part of a value that is put, passed to a "
                    "task or actor, or returned), because the actor must be kept alive for the receiver; to find an "
                    "actor from elsewhere, give it a name and use weft.get_actor(name)");
    return nullptr;
  }
  PyObject* restore = Callback("weft._core", "_restore_handle");
  if (!restore) return nullptr;
  return Py_BuildValue("O(KKO)", restore, static_cast<unsigned long long>(object->id.owner.value),
                       static_cast<unsigned long long>(object->id.index), Info(Handle(self)->info)->blob);
}

PyObject* HandleNew(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "an actor handle is made by Class.remote(...) or get_actor(), not directly");
  return nullptr;
}

PyObject* ClassGetItem(PyObject* type, PyObject*) {
  Py_INCREF(type);
  return type;
}

PyMethodDef handle_methods[] = {{"__reduce__", HandleReduce, METH_NOARGS, nullptr},
                                {"__class_getitem__", ClassGetItem, METH_O | METH_CLASS, nullptr},
                                {nullptr, nullptr, 0, nullptr}};
PyMemberDef handle_members[] = {
    {"_info", T_OBJECT_EX, offsetof(HandleObject, info), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(HandleObject, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef handle_getset[] = {{"_actor_id", HandleActorId, nullptr, "The actor's id, 32 hexadecimal digits.", nullptr},
                               {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot handle_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(HandleDealloc)},
                              {Py_tp_getattro, reinterpret_cast<void*>(HandleGetAttribute)},
                              {Py_tp_repr, reinterpret_cast<void*>(HandleRepr)},
                              {Py_tp_hash, reinterpret_cast<void*>(HandleHash)},
                              {Py_tp_richcompare, reinterpret_cast<void*>(HandleCompare)},
                              {Py_tp_methods, handle_methods},
                              {Py_tp_members, handle_members},
                              {Py_tp_getset, handle_getset},
                              {Py_tp_new, reinterpret_cast<void*>(HandleNew)},
                              {Py_tp_doc, const_cast<char*>("A handle of an actor: call its methods with .remote().")},
                              {0, nullptr}};
PyType_Spec handle_spec = {"weft.ActorHandle", sizeof(HandleObject), 0, Py_TPFLAGS_DEFAULT, handle_slots};

// ---- ActorMethod --------------------------------------------------------------------------------------------------

int MethodInit(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"handle", "name", "options", nullptr};
  PyObject *handle, *name, *options;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!UO", const_cast<char**>(names), g_handle_type, &handle, &name,
                                   &options)) {
    return -1;
  }
  auto* own = new MethodEntry();
  if (!ReadEntry(options, own)) {
    delete own;
    return -1;
  }
  auto* method = Method(self);
  Py_INCREF(handle);
  Py_INCREF(name);
  Py_INCREF(options);
  Py_XSETREF(method->handle, handle);
  Py_XSETREF(method->name, name);
  Py_XSETREF(method->options, options);
  delete method->own;
  method->entry = method->own = own;
  return 0;
}

void MethodDealloc(PyObject* self) {
  auto* method = Method(self);
  Py_CLEAR(method->handle);
  Py_CLEAR(method->name);
  Py_CLEAR(method->options);
  delete method->own;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

bool PrepareMethod(MethodObject* method, Runtime* runtime) {
  MethodEntry* entry = method->entry;
  core::TaskTemplate what;
  what.kind = core::TemplateKind::kCall;
  double num_returns, max_retries;
  if (!Number(entry->options, "num_returns", &num_returns) ||
      !Number(entry->options, "max_task_retries", &max_retries) || !Text(entry->options, "name", &what.name) ||
      !Text(entry->options, "retry_payload", &what.retry_exceptions) ||
      !Text(entry->options, "concurrency_group", &what.group)) {
    return false;
  }
  const char* name = PyUnicode_AsUTF8(method->name);
  const char* class_name = PyUnicode_AsUTF8(Info(Handle(method->handle)->info)->name);
  if (!name || !class_name) return false;
  what.method = name;
  if (what.name.empty()) what.name = std::string(class_name) + "." + name;
  what.num_returns = static_cast<uint32_t>(num_returns);
  what.max_retries = static_cast<int32_t>(max_retries);
  // Calls name a method; the class itself was sent with the constructor.
  static const core::FunctionKey no_key{};
  auto function = runtime->InternFunction(no_key, "", "");
  if (!function) return RaiseCoreError(function.error()), false;
  what.function = *function;
  entry->what = runtime->InternTemplate(std::move(what), {});
  entry->epoch = g_epoch;
  return true;
}

PyObject* MethodRemote(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  auto* method = Method(self);
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  Object* handle = ObjectOfHandle(method->handle);
  if (!handle) return nullptr;
  MethodEntry* entry = method->entry;
  if (entry->epoch != g_epoch && !PrepareMethod(method, runtime)) return nullptr;
  Owned replaced;
  if (nargs < entry->min_args || (entry->max_args >= 0 && nargs > entry->max_args) || kwnames) {
    // Perhaps wrong: Python checks in detail.
    PyObject* check = Callback("weft._actor", "check_arguments");
    Owned positional, named;
    if (!check || !AsTupleAndDict(args, nargs, kwnames, positional, named)) return nullptr;
    Owned fine(PyObject_CallFunctionObjArgs(check, self, positional.get(), named.get(), nullptr));
    if (!fine) return nullptr;
    if (PyTuple_Check(fine.get())) {
      replaced = std::move(fine);
      args = PySequence_Fast_ITEMS(replaced.get());
    }
  }
  const core::TaskTemplate* what = entry->what;
  const int64_t limit = Info(Handle(method->handle)->info)->max_pending_calls;
  const size_t max_pending = limit > 0 ? static_cast<size_t>(limit) : 0;
  return EncodeAndSubmit(
      runtime, what, args, nargs, kwnames, IsCpp(Handle(method->handle)->info),
      [&](const EncodedCall& call, Object** returns) {
        if (runtime->SubmitCall(handle, what, call.bytes, call.dependencies, call.contained, max_pending, returns)) {
          return true;
        }
        RaiseSystemError("PendingCallsLimitExceeded\n" + std::to_string(max_pending) +
                         " calls of this process to the actor are pending, as many as its max_pending_calls allows; '" +
                         what->name + "' was not called. Wait for some of them (weft.wait) before calling again");
        return false;
      });
}

PyObject* CallActorModule(const char* name, PyObject* self, PyObject* argument) {
  PyObject* function = Callback("weft._actor", name);
  return function ? PyObject_CallFunctionObjArgs(function, self, argument, nullptr) : nullptr;
}

PyObject* MethodWithOptions(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (PyTuple_GET_SIZE(args) > 0) {
    PyErr_SetString(PyExc_TypeError, "options() takes keyword arguments only, as in method.options(num_returns=2)");
    return nullptr;
  }
  Owned empty(kwargs ? nullptr : PyDict_New());
  return CallActorModule("method_with_options", self, kwargs ? kwargs : empty.get());
}

PyObject* MethodCall(PyObject* self, PyObject*, PyObject*) {
  return CallActorModule("refuse_method_call", self, nullptr);
}

PyObject* MethodRepr(PyObject* self) {
  return PyUnicode_FromFormat("ActorMethod(%U.%U)", Info(Handle(Method(self)->handle)->info)->name, Method(self)->name);
}

// A method is its handle and a name: it travels as both.
PyObject* MethodReduce(PyObject* self, PyObject*) {
  auto* method = Method(self);
  return Py_BuildValue("O(OOO)", g_method_type, method->handle, method->name, method->options);
}

PyMethodDef method_methods[] = {
    {"remote", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(MethodRemote)), METH_FASTCALL | METH_KEYWORDS,
     "Calls the method; returns at once with an ObjectRef (or a list of them)."},
    {"options", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(MethodWithOptions)),
     METH_VARARGS | METH_KEYWORDS, "The same method with other options."},
    {"__reduce__", MethodReduce, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyMemberDef method_members[] = {{"_handle", T_OBJECT_EX, offsetof(MethodObject, handle), READONLY, nullptr},
                                {"_name", T_OBJECT_EX, offsetof(MethodObject, name), READONLY, nullptr},
                                {"_options", T_OBJECT_EX, offsetof(MethodObject, options), READONLY, nullptr},
                                {nullptr, 0, 0, 0, nullptr}};
PyType_Slot method_slots[] = {{Py_tp_init, reinterpret_cast<void*>(MethodInit)},
                              {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
                              {Py_tp_dealloc, reinterpret_cast<void*>(MethodDealloc)},
                              {Py_tp_call, reinterpret_cast<void*>(MethodCall)},
                              {Py_tp_repr, reinterpret_cast<void*>(MethodRepr)},
                              {Py_tp_methods, method_methods},
                              {Py_tp_members, method_members},
                              {Py_tp_doc, const_cast<char*>("A method of an actor: call it with .remote(...).")},
                              {0, nullptr}};
PyType_Spec method_spec = {"weft.ActorMethod", sizeof(MethodObject), 0, Py_TPFLAGS_DEFAULT, method_slots};

// ---- functions ----------------------------------------------------------------------------------------------------

PyObject* HandleFrom(const Runtime::FoundActor& found) {
  if (!found.handle) {
    RaiseSystemError("ActorDiedError\nthe actor has ended");
    return nullptr;
  }
  PyObject* from_blob = Callback("weft._actor", "info_from_blob");
  Owned info(from_blob ? PyObject_CallFunction(from_blob, "y#", found.metadata.data(),
                                               static_cast<Py_ssize_t>(found.metadata.size()))
                       : nullptr);
  return info ? NewHandle(found.handle, info.get()) : nullptr;
}

// Raises the outcome of a question to the daemon as a Python exception, if it is not one already.
PyObject* RaiseAnswer(const core::Error& error) {
  if (PyErr_Occurred()) return nullptr;
  if (error.kind == core::ErrorKind::kInvalid) {
    PyErr_SetString(PyExc_ValueError, error.message.c_str());
  } else {
    RaiseCoreError(error);
  }
  return nullptr;
}

// The answer came together with a signal whose handler raised.
bool WasInterrupted(Runtime* runtime, const Runtime::FoundActor& found) {
  if (!PyErr_Occurred()) return false;
  if (found.handle) runtime->DropReference(found.handle);
  return true;
}

PyObject* CreateActor(PyObject*, PyObject* args) {
  PyObject *info, *creation, *exported, *positional, *named;
  if (!PyArg_ParseTuple(args, "O!OO!O!O!:create_actor", g_info_type, &info, &creation, &PyTuple_Type, &exported,
                        &PyTuple_Type, &positional, &PyDict_Type, &named)) {
    return nullptr;
  }
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  Runtime::ActorRequest request;
  core::TaskTemplate what;
  what.kind = core::TemplateKind::kCreation;
  what.num_returns = 0;
  what.max_retries = 0;
  double max_restarts;
  if (!ReadShape(creation, "placement_cpus", request.to_place) || !ReadPlacement(creation, request.to_place) ||
      !ReadShape(creation, "num_cpus", request.to_hold) || !Number(creation, "max_restarts", &max_restarts) ||
      !Text(creation, "name", &request.name) || !Text(creation, "namespace", &request.name_space) ||
      !Flag(creation, "detached", &request.detached) || !Flag(creation, "get_if_exists", &request.get_if_exists) ||
      !Flag(creation, "out_of_order", &request.out_of_order) || !Text(creation, "worker_blob", &what.actor_options)) {
    return nullptr;
  }
  request.max_restarts = static_cast<int32_t>(max_restarts);
  if (!IsCpp(info)) {
    AskForPythonWorker(runtime, request.to_place);
    AskForPythonWorker(runtime, request.to_hold);
  }
  Py_ssize_t size;
  const char* class_name = PyUnicode_AsUTF8AndSize(Info(info)->name, &size);
  if (!class_name) return nullptr;
  request.class_name.assign(class_name, static_cast<size_t>(size));
  what.name = request.class_name + ".__init__";
  request.metadata.assign(PyBytes_AS_STRING(Info(info)->blob), static_cast<size_t>(PyBytes_GET_SIZE(Info(info)->blob)));
  if (!IsCpp(info)) {  // for a C++ class all of it is in the options already
    const auto size_of_blob = static_cast<uint32_t>(what.actor_options.size());
    what.actor_options.insert(0, reinterpret_cast<const char*>(&size_of_blob), sizeof size_of_blob);
    what.actor_options += request.metadata;
  }
  what.function = InternExported(runtime, exported);
  if (!what.function) return nullptr;
  request.constructor = runtime->InternTemplate(std::move(what), request.to_hold);

  // As a vectorcall has them: positional values, then named ones, whose names are a tuple.
  std::vector<PyObject*> values;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positional); ++i) values.push_back(PyTuple_GET_ITEM(positional, i));
  Owned names(PyDict_GET_SIZE(named) > 0 ? PyTuple_New(PyDict_GET_SIZE(named)) : nullptr);
  PyObject *key, *value;
  Py_ssize_t position = 0, at = 0;
  while (PyDict_Next(named, &position, &key, &value)) {
    Py_INCREF(key);
    PyTuple_SET_ITEM(names.get(), at++, key);
    values.push_back(value);
  }
  EncodedCall call;
  call.native = IsCpp(info);
  NoteExecution();
  if (!EncodeCall(values.data(), PyTuple_GET_SIZE(positional), names.get(), call, request.constructor->name.c_str())) {
    for (Object* object : call.owned) runtime->DropReference(object);
    return nullptr;
  }
  request.arguments = call.bytes;
  request.dependencies = call.dependencies;
  core::Result<Runtime::FoundActor> made = core::Error{};
  ++runtime->users;
  Py_BEGIN_ALLOW_THREADS made = runtime->CreateActor(request, Interrupted);
  Py_END_ALLOW_THREADS-- runtime->users;
  for (Object* object : call.owned) runtime->DropReference(object);
  if (!made) return RaiseAnswer(made.error());
  if (WasInterrupted(runtime, *made)) return nullptr;
  return made->metadata.empty() ? NewHandle(made->handle, info) : HandleFrom(*made);
}

PyObject* LookupActor(PyObject*, PyObject* args) {
  const char *name, *name_space;
  if (!PyArg_ParseTuple(args, "ss:lookup_actor", &name, &name_space)) return nullptr;
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  core::Result<Runtime::FoundActor> found = core::Error{};
  ++runtime->users;
  Py_BEGIN_ALLOW_THREADS found = runtime->LookupActor(name, name_space, Interrupted);
  Py_END_ALLOW_THREADS-- runtime->users;
  if (!found) return RaiseAnswer(found.error());
  if (WasInterrupted(runtime, *found)) return nullptr;
  return HandleFrom(*found);
}

PyObject* ListActors(PyObject*, PyObject* args) {
  int all;
  const char* name_space;
  if (!PyArg_ParseTuple(args, "ps:list_actors", &all, &name_space)) return nullptr;
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  core::Result<std::vector<std::pair<std::string, std::string>>> found = core::Error{};
  ++runtime->users;
  Py_BEGIN_ALLOW_THREADS found = runtime->ListActors(all != 0, name_space, Interrupted);
  Py_END_ALLOW_THREADS-- runtime->users;
  if (!found) return RaiseAnswer(found.error());
  if (PyErr_Occurred()) return nullptr;  // the answer came together with a signal whose handler raised
  Owned list(PyList_New(0));
  for (const auto& [space, name] : *found) {
    Owned item(Py_BuildValue("(ss)", space.c_str(), name.c_str()));
    if (!list || !item || PyList_Append(list.get(), item.get()) != 0) return nullptr;
  }
  return list.Release();
}

PyObject* KillActor(PyObject*, PyObject* args) {
  PyObject* handle;
  int no_restart;
  if (!PyArg_ParseTuple(args, "O!p:kill_actor", g_handle_type, &handle, &no_restart)) return nullptr;
  Object* object = ObjectOfHandle(handle);
  if (!object || !NeedRuntime()) return nullptr;
  g_runtime->KillActor(object, no_restart != 0);
  Py_RETURN_NONE;
}

PyObject* Cancel(PyObject*, PyObject* args) {
  PyObject* ref;
  int force, recursive;
  if (!PyArg_ParseTuple(args, "O!pp:cancel", g_ref_type, &ref, &force, &recursive)) return nullptr;
  Object* object = ObjectOf(ref);
  Runtime* runtime = object ? NeedRuntime() : nullptr;
  if (!runtime) return nullptr;
  if (force && runtime->IsCall(object)) {
    PyErr_SetString(PyExc_ValueError,
                    "force=True is for tasks: it would end the actor with all its calls; cancel without force, or "
                    "weft.kill(handle)");
    return nullptr;
  }
  runtime->Cancel(object, force != 0, recursive != 0);
  Py_RETURN_NONE;
}

// A plain function, because a pickle names it.
PyObject* RestoreHandle(PyObject*, PyObject* args) {
  unsigned long long owner, index;
  PyObject* blob;
  if (!PyArg_ParseTuple(args, "KKS", &owner, &index, &blob)) return nullptr;
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  Runtime::FoundActor found{runtime->FindReference({{owner}, index}),
                            {PyBytes_AS_STRING(blob), static_cast<size_t>(PyBytes_GET_SIZE(blob))}};
  return HandleFrom(found);
}

PyMethodDef functions[] = {{"create_actor", CreateActor, METH_VARARGS, nullptr},
                           {"lookup_actor", LookupActor, METH_VARARGS, nullptr},
                           {"list_actors", ListActors, METH_VARARGS, nullptr},
                           {"kill_actor", KillActor, METH_VARARGS, nullptr},
                           {"cancel", Cancel, METH_VARARGS, nullptr},
                           {"_restore_handle", RestoreHandle, METH_VARARGS, nullptr},
                           {nullptr, nullptr, 0, nullptr}};

bool AddType(PyObject* module, PyType_Spec& spec, const char* name, PyTypeObject** type) {
  *type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (!*type) return false;
  Py_INCREF(*type);
  return PyModule_AddObject(module, name, reinterpret_cast<PyObject*>(*type)) == 0;
}

}  // namespace

bool IsHandle(PyObject* value) { return Py_TYPE(value) == g_handle_type; }

Object* ObjectOfHandle(PyObject* handle, std::string_view* info) {
  PyObject* blob = Info(Handle(handle)->info)->blob;
  *info = {PyBytes_AS_STRING(blob), static_cast<size_t>(PyBytes_GET_SIZE(blob))};
  return ObjectOfHandle(handle);
}

PyObject* HandleOf(ObjectId id, std::string_view info) {
  Runtime* runtime = NeedRuntime();
  return runtime ? HandleFrom({runtime->FindReference(id), std::string(info)}) : nullptr;
}

PyObject* NewHandle(Object* object, PyObject* info) {
  auto* handle = PyObject_New(HandleObject, g_handle_type);
  if (!handle) return nullptr;
  handle->object = object;
  handle->epoch = g_epoch;
  handle->weak_references = nullptr;
  Py_INCREF(info);
  handle->info = info;
  return reinterpret_cast<PyObject*>(handle);
}

bool InitActorTypes(PyObject* module) {
  return AddType(module, info_spec, "ActorInfo", &g_info_type) &&
         AddType(module, handle_spec, "ActorHandle", &g_handle_type) &&
         AddType(module, method_spec, "ActorMethod", &g_method_type) && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace weft::python
