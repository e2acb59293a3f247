#include "api_python/completions.h"

#include <memory>

#include "api_python/object_ref.h"

namespace weft::python {
namespace {

struct State {
  std::shared_ptr<core::Completions> resolved = std::make_shared<core::Completions>();
  std::vector<PyObject*> handles;  // by number; nullptr: the number is free
  std::vector<uint32_t> free;
  uint32_t epoch = 0;
};

struct CompletionsObject {
  PyObject_HEAD State* state;
};

State& StateOf(PyObject* self) { return *reinterpret_cast<CompletionsObject*>(self)->state; }

PyObject* New(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  if (PyTuple_GET_SIZE(args) > 0 || (kwargs && PyDict_GET_SIZE(kwargs) > 0)) {
    PyErr_SetString(PyExc_TypeError, "Completions() takes no arguments");
    return nullptr;
  }
  if (!NeedRuntime()) return nullptr;
  auto* self = reinterpret_cast<CompletionsObject*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->state = new State();
  self->state->epoch = g_epoch;
  return reinterpret_cast<PyObject*>(self);
}

void Dealloc(PyObject* self) {
  State& state = StateOf(self);
  std::vector<Runtime::Watched> pending;
  for (uint32_t i = 0; i < state.handles.size(); ++i) {
    if (state.handles[i]) pending.push_back({reinterpret_cast<RefObject*>(state.handles[i])->object, i});
  }
  // An ended session has nothing left to forget; the list of resolved objects outlives us if the runtime needs it.
  if (!pending.empty() && state.epoch == g_epoch && g_runtime && !Runtime::forked()) {
    g_runtime->Unwatch(state.resolved, pending);
  }
  for (PyObject* handle : state.handles) Py_XDECREF(handle);
  delete &state;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

Runtime* CheckedRuntime(const State& state) {
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  if (state.epoch == g_epoch) return runtime;
  PyErr_SetString(PyExc_RuntimeError, "these references belong to a weft session that has ended");
  return nullptr;
}

PyObject* Add(PyObject* self, PyObject* refs) {
  State& state = StateOf(self);
  Runtime* runtime = CheckedRuntime(state);
  if (!runtime) return nullptr;
  Owned items(IsRef(refs) ? PyTuple_Pack(1, refs) : PySequence_Tuple(refs));
  if (!items) return nullptr;
  Py_ssize_t count = PyTuple_GET_SIZE(items.get());
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PyTuple_GET_ITEM(items.get(), i);
    if (!IsRef(item)) {
      PyErr_Format(PyExc_TypeError, "expected ObjectRefs, but item %zd is a %.100s", i, Py_TYPE(item)->tp_name);
      return nullptr;
    }
    if (!ObjectOf(item)) return nullptr;
  }
  std::vector<Runtime::Watched> watched(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PyTuple_GET_ITEM(items.get(), i);
    Py_INCREF(item);
    auto number = static_cast<uint32_t>(state.handles.size());
    if (state.free.empty()) {
      state.handles.push_back(item);
    } else {
      number = state.free.back();
      state.free.pop_back();
      state.handles[number] = item;
    }
    watched[static_cast<size_t>(i)] = {reinterpret_cast<RefObject*>(item)->object, number};
  }
  runtime->Watch(state.resolved, watched);
  Py_RETURN_NONE;
}

// All that were resolved since the last call; waits for one if there is none. Empty after the timeout, or if none is
// left.
PyObject* Take(PyObject* self, PyObject* timeout) {
  State& state = StateOf(self);
  bool ok;
  int64_t deadline = DeadlineOf(timeout, &ok);
  if (!ok) return nullptr;
  if (state.handles.size() == state.free.size()) return PyList_New(0);
  Runtime* runtime = CheckedRuntime(state);
  if (!runtime) return nullptr;
  Inside inside(runtime);
  std::vector<uint32_t> numbers;
  for (bool again = true; again;) {
    core::WaitOutcome outcome;
    Py_BEGIN_ALLOW_THREADS outcome = runtime->TakeCompletions(*state.resolved, deadline, numbers);
    Py_END_ALLOW_THREADS again = outcome == core::WaitOutcome::kInterrupted;
    if (again && PyErr_CheckSignals() != 0) return nullptr;
    if (outcome == core::WaitOutcome::kStopped) {
      NeedRuntime();
      if (!PyErr_Occurred()) RaiseSystemError("WeftError\nthe session was shut down while references were waited for");
      return nullptr;
    }
  }
  Owned taken(PyList_New(static_cast<Py_ssize_t>(numbers.size())));
  for (size_t i = 0; i < numbers.size(); ++i) {
    PyObject* handle = state.handles[numbers[i]];
    state.handles[numbers[i]] = nullptr;
    state.free.push_back(numbers[i]);
    if (taken) {
      PyList_SET_ITEM(taken.get(), static_cast<Py_ssize_t>(i), handle);
    } else {
      Py_DECREF(handle);
    }
  }
  return taken.Release();
}

Py_ssize_t Length(PyObject* self) {
  State& state = StateOf(self);
  return static_cast<Py_ssize_t>(state.handles.size() - state.free.size());
}

PyMethodDef methods[] = {
    {"add", Add, METH_O, "add(refs): a reference, or a sequence of them, to be handed out when resolved."},
    {"take", Take, METH_O, "take(timeout): a list of those that were resolved since; waits for at least one."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(New)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
                       {Py_sq_length, reinterpret_cast<void*>(Length)},
                       {Py_tp_methods, methods},
                       {Py_tp_doc, const_cast<char*>("References, handed out again as they are resolved.")},
                       {0, nullptr}};

PyType_Spec spec = {"weft._core.Completions", sizeof(CompletionsObject), 0, Py_TPFLAGS_DEFAULT, slots};

}  // namespace

bool InitCompletionsType(PyObject* module) {
  PyObject* type = PyType_FromSpec(&spec);
  return type && PyModule_AddObject(module, "Completions", type) == 0;
}

}  // namespace weft::python
