#include "api_python/python_runner.h"

#include <unistd.h>

#include "api_python/buffers.h"

namespace weft::python {
namespace {

// Their ids travel in the reply's frame, which has a quarter of a megabyte.
constexpr size_t kMaxReferencesPerReturn = 14'000;

}  // namespace

PyObject* PythonRunner::FunctionOf(core::DefinedTemplate& what) {
  if (what.front_end) return static_cast<PyObject*>(what.front_end);
  PyObject*& loaded = loaded_[what.key];
  if (!loaded) {
    PyObject* load = Callback("weft._functions", "load");
    if (!load) return nullptr;
    std::string_view body = what.body;
    if (what.stored_body.size > 0) {
      auto data = runtime_.MapStored(what.stored_body);
      if (!data) return RaiseCoreError(data.error()), nullptr;
      body = {reinterpret_cast<const char*>(*data), what.stored_body.size};
    }
    loaded = PyObject_CallFunction(load, "y#", body.data(), static_cast<Py_ssize_t>(body.size()));
    if (!loaded) {
      loaded_.erase(what.key);
      return nullptr;
    }
    what.body.clear();
    what.body.shrink_to_fit();
  }
  what.front_end = loaded;
  return loaded;
}

void PythonRunner::Prepare(const core::TaskCall& call) {
  what_ = call.what;
  arguments_.clear();
  kwnames_ = nullptr;
  function_ = FunctionOf(*what_);
  failed_ = !function_ || !DecodeCall(call, arguments_, &num_positional_, &kwnames_);
}

void PythonRunner::Run(const std::vector<ObjectId>& returns, core::TaskOutcome& outcome) {
  Owned result;
  if (!failed_) {
    result = Owned(PyObject_Vectorcall(function_, arguments_.data(), num_positional_, kwnames_));
  }
  for (PyObject* argument : arguments_) Py_XDECREF(argument);
  arguments_.clear();
  Py_CLEAR(kwnames_);
  if (!result) return Fail(outcome);

  size_t inline_bytes = 0;
  if (returns.size() == 1) {
    outcome.values.emplace_back();
    if (!Encode(result.get(), returns[0], outcome.values[0], &inline_bytes)) Fail(outcome);
    return;
  }
  if (returns.empty()) return;
  Owned items(PyTuple_CheckExact(result.get()) || PyList_CheckExact(result.get()) ? PySequence_Fast(result.get(), "")
                                                                                  : PySequence_Tuple(result.get()));
  if (!items) {
    PyErr_Format(PyExc_TypeError, "task '%s' has num_returns=%zu, but it returned a %s, which cannot be divided",
                 what_->name.c_str(), returns.size(), Py_TYPE(result.get())->tp_name);
    return Fail(outcome);
  }
  auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.get()));
  if (count != returns.size()) {
    PyErr_Format(PyExc_ValueError, "task '%s' has num_returns=%zu, but it returned %zu values", what_->name.c_str(),
                 returns.size(), count);
    return Fail(outcome);
  }
  outcome.values.resize(count);
  for (size_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.get(), static_cast<Py_ssize_t>(i));
    if (!Encode(item, returns[i], outcome.values[i], &inline_bytes)) return Fail(outcome);
  }
}

bool PythonRunner::Encode(PyObject* value, ObjectId id, core::TaskReturn& out, size_t* inline_bytes) {
  Contained inside;
  Encoded encoded;
  encoded.bytes.swap(out.bytes);
  if (!EncodeValue(value, id, encoded)) return false;
  if (inside.objects.size() > kMaxReferencesPerReturn) {
    if (encoded.room.data) runtime_.Abandon(encoded.room);
    PyErr_Format(
        PyExc_ValueError,
        "the value that task '%s' returned holds %zu references; at most %zu fit into one return value: return "
        "lists of fewer references, put() together",
        what_->name.c_str(), inside.objects.size(), kMaxReferencesPerReturn);
    return false;
  }
  out.contained.swap(inside.objects);  // their references go with the reply
  out.bytes.swap(encoded.bytes);
  out.room = encoded.room;
  *inline_bytes += out.bytes.size();
  if (!out.room.data && *inline_bytes > core::kMaxInlineBytesPerFrame) {
    // Many small values would not fit into one frame.
    auto room = runtime_.Allocate(out.bytes.size(), id, core::Populate::kNow);
    if (!room) {
      RaiseCoreError(room.error());
      return false;
    }
    std::memcpy(room->data, out.bytes.data(), out.bytes.size());
    out.room = *room;
    out.bytes.clear();
  }
  return true;
}

void PythonRunner::Fail(core::TaskOutcome& outcome) {
  for (core::TaskReturn& value : outcome.values) {
    if (value.room.data) runtime_.Abandon(value.room);
    for (Object* object : value.contained) runtime_.DropReference(object);
  }
  outcome.values.clear();
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  outcome.kind = core::ReplyKind::kTaskError;
  if (!what_->retry_exceptions.empty()) {
    PyObject* judge = Callback("weft._errors", "should_retry");
    Owned verdict(judge ? PyObject_CallFunction(judge, "Oy#", value, what_->retry_exceptions.data(),
                                                static_cast<Py_ssize_t>(what_->retry_exceptions.size()))
                        : nullptr);
    if (verdict && PyObject_IsTrue(verdict.get()) == 1) outcome.kind = core::ReplyKind::kRetryableError;
    PyErr_Clear();
  }
  PyObject* pack = Callback("weft._errors", "pack_exception");
  Owned packed(pack ? PyObject_CallFunction(pack, "Osi", value, what_->name.c_str(), static_cast<int>(getpid()))
                    : nullptr);
  char* bytes;
  Py_ssize_t size;
  if (packed && PyBytes_AsStringAndSize(packed.get(), &bytes, &size) == 0) {
    outcome.error.assign(bytes, static_cast<size_t>(size));
  }
  PyErr_Clear();
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
}

void PythonRunner::BeforeSleep() { saved_ = PyEval_SaveThread(); }
void PythonRunner::AfterSleep() { PyEval_RestoreThread(saved_); }

}  // namespace weft::python
