#include "api_python/cpp_library.h"

#include <optional>
#include <stdexcept>

#include "api_cpp/actor_settings.h"
#include "api_cpp/exports.h"
#include "api_cpp/identity.h"
#include "api_cpp/library_origin.h"
#include "api_python/codec.h"
#include "weft/actor.h"
#include "weft/errors.h"
#include "wire/languages.h"

namespace weft::python {
namespace {

PyObject* Bytes(const std::string& bytes) {
  return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
}

PyObject* Describe(const detail::Export& item) {
  Owned parameters(PyTuple_New(static_cast<Py_ssize_t>(item.parameters.size())));
  for (size_t i = 0; parameters && i < item.parameters.size(); ++i) {
    PyTuple_SET_ITEM(parameters.get(), static_cast<Py_ssize_t>(i), PyUnicode_FromString(item.parameters[i].c_str()));
  }
  static const char* const kinds[] = {"function", "class", "method"};
  core::FunctionKey key = detail::KeyOf(*item.record);
  std::string cpp_name(item.record->name);
  return Py_BuildValue("{ss ss ss sy# sI sO ss ss ss sI}", "kind", kinds[item.record->kind], "name", item.name.c_str(),
                       "class_name", item.class_name.c_str(), "key", reinterpret_cast<const char*>(&key),
                       static_cast<Py_ssize_t>(sizeof key), "num_returns", item.record->num_returns, "parameters",
                       parameters.get(), "result", item.result.c_str(), "cpp_name", cpp_name.c_str(), "file", item.file,
                       "line", item.line);
}

// Its path, or what else it is known by: the body that another process has made of it. Returns
// (path, text, body of its functions, [export, ...])
PyObject* LoadLibrary(PyObject*, PyObject* args) {
  PyObject* encoded = nullptr;
  const char* body_bytes = nullptr;
  Py_ssize_t body_size = 0;
  if (!PyArg_ParseTuple(args, "O&|y#", PyUnicode_FSConverter, &encoded, &body_bytes, &body_size)) return nullptr;
  Owned owned(encoded);
  std::string body(body_bytes ? body_bytes : "", static_cast<size_t>(body_size));
  Runtime* runtime = body.empty() ? nullptr : g_runtime;
  std::optional<Inside> inside;
  if (runtime) inside.emplace(runtime);
  detail::LoadedLibrary library;
  std::string error;
  Py_BEGIN_ALLOW_THREADS try {
    library = runtime ? detail::LoadLibraryOf(*runtime, body, {}, Interrupted)
                      : detail::LoadTaskLibrary(PyBytes_AS_STRING(encoded));
    // On one machine a library is known by the file at its path.
    if (!runtime || !runtime->in_cluster()) body = detail::BodyOf(library);
  } catch (const VersionMismatchError& thrown) {
    error = std::string("VersionMismatchError\n") + thrown.what();
  } catch (const RuntimeEnvSetupError& thrown) {
    error = std::string("RuntimeEnvSetupError\n") + thrown.what();
  } catch (const std::exception& thrown) {
    error = std::string("WeftError\n") + thrown.what();
  }
  Py_END_ALLOW_THREADS if (PyErr_Occurred()) return nullptr;  // a handler has raised
  if (!error.empty()) {
    RaiseSystemError(error);
    return nullptr;
  }
  Owned exports(PyList_New(0));
  for (const detail::Export* item : library.exports) {
    Owned described(Describe(*item));
    if (!exports || !described || PyList_Append(exports.get(), described.get()) != 0) return nullptr;
  }
  Owned path(PyUnicode_DecodeFSDefault(library.path.c_str())), bytes(Bytes(body));
  if (!path || !bytes) return nullptr;
  return Py_BuildValue("OsOO", path.get(), library.text.c_str(), bytes.get(), exports.get());
}

PyObject* ActorInfo(PyObject*, PyObject* args) {
  const char *class_name, *name;
  int max_pending_calls, max_task_retries, retry_exceptions;
  PyObject* methods;
  if (!PyArg_ParseTuple(args, "siipsO!", &class_name, &max_pending_calls, &max_task_retries, &retry_exceptions, &name,
                        &PyList_Type, &methods)) {
    return nullptr;
  }
  detail::ActorInfoFields fields{class_name, max_pending_calls, max_task_retries, retry_exceptions != 0, name, {}};
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(methods); ++i) {
    const char *method, *parameters;
    unsigned int num_returns;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(methods, i), "sIs", &method, &num_returns, &parameters)) return nullptr;
    std::get<5>(fields).emplace_back(method, num_returns, parameters);
  }
  return Bytes(detail::PackActorInfo(fields));
}

PyObject* ReadActorInfo(PyObject*, PyObject* argument) {
  char* bytes;
  Py_ssize_t size;
  if (PyBytes_AsStringAndSize(argument, &bytes, &size) != 0) return nullptr;
  try {
    auto* data = reinterpret_cast<const uint8_t*>(bytes);
    if (size < 1 || data[0] != detail::kNativeFormat) detail::ThrowMalformed();
    Decoder in(data + 1, data + size);
    auto [class_name, pending, retries, retry_exceptions, name, methods] = Codec<detail::ActorInfoFields>::Decode(in);
    Owned list(PyList_New(0));
    for (const auto& [method, num_returns, parameters] : methods) {
      Owned described(Py_BuildValue("sIs", method.c_str(), num_returns, parameters.c_str()));
      if (!list || !described || PyList_Append(list.get(), described.get()) != 0) return nullptr;
    }
    if (!list) return nullptr;
    return Py_BuildValue("siiOsO", class_name.c_str(), pending, retries, retry_exceptions ? Py_True : Py_False,
                         name.c_str(), list.get());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return nullptr;
  }
}

PyObject* ActorSettings(PyObject*, PyObject* args) {
  unsigned int limit;
  PyObject *groups, *info;
  const char* name;
  if (!PyArg_ParseTuple(args, "IO!sS", &limit, &PyDict_Type, &groups, &name, &info)) return nullptr;
  detail::ActorSettings settings{
      limit, {}, name, {PyBytes_AS_STRING(info), static_cast<size_t>(PyBytes_GET_SIZE(info))}};
  PyObject *key, *value;
  Py_ssize_t position = 0;
  while (PyDict_Next(groups, &position, &key, &value)) {
    const char* group = PyUnicode_AsUTF8(key);
    unsigned long size = PyLong_AsUnsignedLong(value);
    if (!group || PyErr_Occurred()) return nullptr;
    std::get<1>(settings).emplace_back(group, static_cast<uint32_t>(size));
  }
  return Bytes(detail::PackActorSettings(settings));
}

PyObject* DecodeNative(PyObject*, PyObject* argument) {
  char* bytes;
  Py_ssize_t size;
  if (PyBytes_AsStringAndSize(argument, &bytes, &size) != 0) return nullptr;
  return DecodeValue({bytes, static_cast<size_t>(size)}, false, nullptr);
}

PyMethodDef functions[] = {{"decode_native", DecodeNative, METH_O, nullptr},
                           {"load_cpp_library", LoadLibrary, METH_VARARGS, nullptr},
                           {"cpp_actor_info", ActorInfo, METH_VARARGS, nullptr},
                           {"read_cpp_actor_info", ReadActorInfo, METH_O, nullptr},
                           {"cpp_actor_settings", ActorSettings, METH_VARARGS, nullptr},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool AddCppFunctions(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace weft::python
