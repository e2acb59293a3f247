#include "api_python/options.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "api_python/object_ref.h"
#include "wire/languages.h"

namespace weft::python {
namespace {

void AddAmount(core::ResourceAmounts& shape, const std::string& name, double amount) {
  auto units = static_cast<int64_t>(std::llround(amount * static_cast<double>(core::kResourceUnit)));
  if (units > 0) shape.emplace_back(name, units);
}

}  // namespace

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

bool Flag(PyObject* options, const char* name, bool* value) {
  Owned attribute(PyObject_GetAttrString(options, name));
  if (!attribute) return false;
  int truth = PyObject_IsTrue(attribute.get());
  *value = truth == 1;
  return truth >= 0;
}

bool ReadShape(PyObject* options, const char* cpus_name, core::ResourceAmounts& shape) {
  double cpus, gpus, memory;
  if (!Number(options, cpus_name, &cpus) || !Number(options, "num_gpus", &gpus) ||
      !Number(options, "memory", &memory)) {
    return false;
  }
  AddAmount(shape, "CPU", cpus);
  AddAmount(shape, "GPU", gpus);
  AddAmount(shape, "memory", memory);
  Owned resources(PyObject_GetAttrString(options, "resources"));
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
  return true;
}

bool ReadPlacement(PyObject* options, core::ResourceAmounts& shape) {
  std::string placement;
  if (!Text(options, "placement", &placement)) return false;
  if (!placement.empty()) shape.emplace_back(std::move(placement), 1);
  std::sort(shape.begin(), shape.end());
  return true;
}

void AskForPythonWorker(Runtime* runtime, core::ResourceAmounts& shape) {
  if (runtime->welcome().python_workers != 0) return;
  shape.emplace_back(core::kPythonWorker, 1);
  std::sort(shape.begin(), shape.end());
}

const core::Function* InternExported(Runtime* runtime, PyObject* exported) {
  const char* key_bytes;
  Py_ssize_t key_size, body_size;
  const char *body, *name;
  if (!PyArg_ParseTuple(exported, "y#y#s", &key_bytes, &key_size, &body, &body_size, &name)) return nullptr;
  if (key_size != sizeof(core::FunctionKey)) {
    PyErr_SetString(PyExc_ValueError, "a function's key has 16 bytes");
    return nullptr;
  }
  core::FunctionKey key;
  std::memcpy(&key, key_bytes, sizeof key);
  core::Result<const core::Function*> function = nullptr;
  Py_BEGIN_ALLOW_THREADS function = runtime->InternFunction(key, name, {body, static_cast<size_t>(body_size)});
  Py_END_ALLOW_THREADS if (!function) return RaiseCoreError(function.error()), nullptr;
  return *function;
}

PyObject* NewRefs(const std::vector<Object*>& objects) {
  if (objects.empty()) Py_RETURN_NONE;
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(objects.size()));
  for (size_t i = 0; list && i < objects.size(); ++i) {
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), NewRef(objects[i], false));
  }
  return list;
}

}  // namespace weft::python
