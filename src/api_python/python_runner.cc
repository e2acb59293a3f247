#include "api_python/python_runner.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "api_python/actor.h"
#include "api_python/buffers.h"
#include "base/clock.h"
#include "wire/languages.h"
#include "wire/placement.h"

namespace weft::python {

PythonRunner* g_runner = nullptr;
PyObject* g_local_task = nullptr;
PyObject* g_call_in_context = nullptr;

namespace {

// Their ids travel in the reply's frame, which has a quarter of a megabyte.
constexpr size_t kMaxReferencesPerReturn = 14'000;

// What this thread runs.
thread_local const PythonCall* t_call = nullptr;
thread_local PyThreadState* t_saved = nullptr;

// The signal that interrupts the main thread; weft._worker installs its handler.
int InterruptSignal() { return SIGRTMIN + 6; }

}  // namespace

void PythonCall::DropArguments() {
  for (PyObject* argument : arguments) Py_XDECREF(argument);
  arguments.clear();
  Py_CLEAR(kwnames);
}

PythonRunner::PythonRunner(Runtime& runtime) : runtime_(runtime), main_thread_(pthread_self()) { g_runner = this; }

PyObject* PythonRunner::FunctionOf(const core::TaskCall& from) {
  core::DefinedTemplate& what = *from.what;
  if (what.front_end) return static_cast<PyObject*>(what.front_end);
  if (what.kind == core::TemplateKind::kCall) {
    PyObject* find = Callback("weft._actor_worker", "find_method");
    // Kept by the template (Forget).
    PyObject* method = find ? PyObject_CallFunction(find, "Os", instance_, what.method.c_str()) : nullptr;
    what.front_end = method;
    return method;
  }
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
    if (!what.body.starts_with(core::kImportMark)) {
      what.body.clear();
      what.body.shrink_to_fit();
    }
  }
  what.front_end = loaded;
  return loaded;
}

void PythonRunner::Forget(core::DefinedTemplate& what) {
  if (what.kind == core::TemplateKind::kCall) Py_XDECREF(static_cast<PyObject*>(what.front_end));
}

void PythonRunner::Prepare(const core::TaskCall& from) {
  if (mode_.concurrent && !mode_.loop) WakeOwedBefore(*from.what);  // its arguments may be slow, too
  PythonCall& call = main_;
  call.what = from.what;
  call.arguments.clear();
  call.kwnames = nullptr;
  call.attempt = from.attempt;
  call.submitter = from.submitter;
  call.task = from.first_return;
  call.execution = from.execution;
  call.function = FunctionOf(from);
  call.native = from.what->key == core::kNativeCall || from.what->body.starts_with(core::kImportMark);
  call.failed = !call.function || !DecodeCall(from, call.arguments, &call.num_positional, &call.kwnames);
}

PyObject* PythonRunner::Invoke(PythonCall& call) {
  if (call.what->kind != core::TemplateKind::kCreation) [[likely]] {
    return PyObject_Vectorcall(call.function, call.arguments.data(), call.num_positional, call.kwnames);
  }
  PyObject* construct = Callback("weft._actor_worker", "construct");
  Owned positional(PyTuple_New(static_cast<Py_ssize_t>(call.num_positional))), named(PyDict_New());
  if (!construct || !positional || !named) return nullptr;
  for (size_t i = 0; i < call.num_positional; ++i) {
    Py_INCREF(call.arguments[i]);
    PyTuple_SET_ITEM(positional.get(), static_cast<Py_ssize_t>(i), call.arguments[i]);
  }
  for (Py_ssize_t i = 0; call.kwnames && i < PyTuple_GET_SIZE(call.kwnames); ++i) {
    PyObject* value = call.arguments[call.num_positional + static_cast<size_t>(i)];
    if (PyDict_SetItem(named.get(), PyTuple_GET_ITEM(call.kwnames, i), value) != 0) return nullptr;
  }
  // What its worker needs to know, and what its callers do.
  const std::string& options = call.what->actor_options;
  uint32_t size = 0;
  if (options.size() >= sizeof size) std::memcpy(&size, options.data(), sizeof size);
  if (options.size() < sizeof size + size) {
    PyErr_SetString(PyExc_ValueError, "an actor came without its options");
    return nullptr;
  }
  blob_ = options.substr(sizeof size + size);
  // (instance, settings)
  Owned made(PyObject_CallFunction(construct, "y#OOO", options.data() + sizeof size, static_cast<Py_ssize_t>(size),
                                   call.function, positional.get(), named.get()));
  if (!made) return nullptr;
  if (!PyArg_ParseTuple(made.get(), "OO", &instance_, &settings_)) return nullptr;
  Py_INCREF(instance_);
  Py_INCREF(settings_);
  Py_RETURN_NONE;
}

void PythonRunner::Run(const std::vector<ObjectId>& returns, core::TaskOutcome& outcome) {
  PythonCall& call = main_;
  t_call = &call;
  for (;;) {
    Owned result;
    if (!call.failed) {
      // Only the body is interrupted: the code after it must be able to say how it ended.
      running_.store(call.execution, std::memory_order_release);
      result = Owned(Invoke(call));
      running_.store(0, std::memory_order_release);
    }
    if (!result && RunAgain(call)) continue;
    call.DropArguments();
    Conclude(call, returns, result.get(), outcome);
    break;
  }
  t_call = nullptr;
}

void PythonRunner::Conclude(PythonCall& call, const std::vector<ObjectId>& returns, PyObject* result,
                            core::TaskOutcome& outcome) {
  if (!result) return Fail(call, outcome);
  size_t inline_bytes = 0;
  if (returns.size() == 1) {
    outcome.values.emplace_back();
    if (!Encode(call, result, returns[0], outcome.values[0], &inline_bytes)) Fail(call, outcome);
    return;
  }
  if (returns.empty()) return;
  Owned items(PyTuple_CheckExact(result) || PyList_CheckExact(result) ? PySequence_Fast(result, "")
                                                                      : PySequence_Tuple(result));
  if (!items) {
    PyErr_Format(PyExc_TypeError, "task '%s' has num_returns=%zu, but it returned a %s, which cannot be divided",
                 call.what->name.c_str(), returns.size(), Py_TYPE(result)->tp_name);
    return Fail(call, outcome);
  }
  auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.get()));
  if (count != returns.size()) {
    PyErr_Format(PyExc_ValueError, "task '%s' has num_returns=%zu, but it returned %zu values", call.what->name.c_str(),
                 returns.size(), count);
    return Fail(call, outcome);
  }
  outcome.values.resize(count);
  for (size_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.get(), static_cast<Py_ssize_t>(i));
    if (!Encode(call, item, returns[i], outcome.values[i], &inline_bytes)) return Fail(call, outcome);
  }
}

// Turns a message about a value into one about a result of this task.
static void ExplainResult(const PythonCall& call, PyObject* value) {
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  Owned kept_type(type), kept_error(error), kept_traceback(traceback);
  PyObject* why = Callback("weft._serialization", "why_no_result");
  Owned explained(why ? PyObject_CallFunction(why, "OsO", value, call.what->name.c_str(), error) : nullptr);
  if (!explained) PyErr_Clear();
  PyObject* told = explained ? explained.get() : error;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(told)), told);
}

bool PythonRunner::Encode(const PythonCall& call, PyObject* value, ObjectId id, core::TaskReturn& out,
                          size_t* inline_bytes) {
  Contained inside;
  Encoded encoded;
  encoded.bytes.swap(out.bytes);
  if (!EncodeValue(value, id, encoded, call.native)) {
    ExplainResult(call, value);
    return false;
  }
  if (inside.objects.size() > kMaxReferencesPerReturn) {
    if (encoded.room.data) runtime_.Abandon(encoded.room);
    PyErr_Format(
        PyExc_ValueError,
        "the value that task '%s' returned holds %zu references; at most %zu fit into one return value: return "
        "lists of fewer references, put() together",
        call.what->name.c_str(), inside.objects.size(), kMaxReferencesPerReturn);
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

void PythonRunner::Fail(PythonCall& call, core::TaskOutcome& outcome) {
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
  // Cancelled, or the end of the actor: no exceptions of the user's.
  PyObject* classify = Callback("weft._actor_worker", "classify");
  Owned verdict(classify ? PyObject_CallFunction(classify, "Os", value, call.what->name.c_str()) : nullptr);
  if (verdict && verdict.get() != Py_None) {
    int exits;
    const char* text;
    if (PyArg_ParseTuple(verdict.get(), "ps", &exits, &text)) {
      outcome.kind = exits ? core::ReplyKind::kExited : core::ReplyKind::kCancelled;
      outcome.error = text;
      Py_XDECREF(type);
      Py_XDECREF(value);
      Py_XDECREF(traceback);
      return;
    }
  }
  PyErr_Clear();
  if (!call.what->retry_exceptions.empty() && call.what->kind == core::TemplateKind::kTask) {
    PyObject* judge = Callback("weft._errors", "should_retry");
    Owned again(judge ? PyObject_CallFunction(judge, "Oy#", value, call.what->retry_exceptions.data(),
                                              static_cast<Py_ssize_t>(call.what->retry_exceptions.size()))
                      : nullptr);
    if (again && PyObject_IsTrue(again.get()) == 1) outcome.kind = core::ReplyKind::kRetryableError;
    PyErr_Clear();
  }
  PyObject* pack = Callback("weft._errors", "pack_exception");
  Owned packed(pack ? PyObject_CallFunction(pack, "Osi", value, call.what->name.c_str(), static_cast<int>(getpid()))
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

// Calls are retried here and at once, so that no later call comes in between.
bool PythonRunner::RunAgain(PythonCall& call) {
  if (call.failed || call.what->kind != core::TemplateKind::kCall || call.what->retry_exceptions.empty()) return false;
  if (call.what->max_retries >= 0 && call.attempt >= static_cast<uint32_t>(call.what->max_retries)) return false;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyObject* judge = Callback("weft._errors", "should_retry");
  Owned verdict(judge ? PyObject_CallFunction(judge, "Oy#", value, call.what->retry_exceptions.data(),
                                              static_cast<Py_ssize_t>(call.what->retry_exceptions.size()))
                      : nullptr);
  const bool again = verdict && PyObject_IsTrue(verdict.get()) == 1;
  PyErr_Clear();
  if (again) {
    ++call.attempt;
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
  } else {
    PyErr_Restore(type, value, traceback);
  }
  return again;
}

void PythonRunner::BeforeSleep() { t_saved = PyEval_SaveThread(); }

void PythonRunner::AfterSleep() {
  PyEval_RestoreThread(t_saved);
  if (any_to_cancel_.load(std::memory_order_acquire) && pthread_equal(pthread_self(), main_thread_)) TakeCancels();
}

void PythonRunner::Assigned(const core::AssignedLease& lease) {
  PyObject* assigned = Callback("weft._worker", "set_gpus");
  Owned numbers(PyList_New(0));
  for (const auto& [number, amount] : lease.gpus) {
    Owned item(PyLong_FromUnsignedLong(number));
    if (numbers && item) PyList_Append(numbers.get(), item.get());
  }
  Owned done(assigned && numbers ? PyObject_CallFunctionObjArgs(assigned, numbers.get(), nullptr) : nullptr);
  if (!done) PyErr_WriteUnraisable(Py_None);
}

// ---- actors -------------------------------------------------------------------------------------------------------

core::ActorMode PythonRunner::mode() {
  core::ActorMode mode;
  // (is_async, max_concurrency, groups)
  PyObject* describe = Callback("weft._actor_worker", "describe_mode");
  Owned description(describe ? PyObject_CallFunctionObjArgs(describe, settings_, nullptr) : nullptr);
  int is_async;
  unsigned int limit;
  PyObject* groups;
  if (!description || !PyArg_ParseTuple(description.get(), "pIO!", &is_async, &limit, &PyDict_Type, &groups)) {
    PyErr_WriteUnraisable(Py_None);
    return mode;
  }
  mode.loop = is_async != 0;
  mode.limit = limit;
  pool_limit_ = limit;
  PyObject *name, *count;
  Py_ssize_t position = 0;
  while (PyDict_Next(groups, &position, &name, &count)) {
    auto number = static_cast<uint32_t>(PyLong_AsUnsignedLong(count));
    mode.groups[PyUnicode_AsUTF8(name)] = number;
    pool_limit_ += number;
  }
  mode.concurrent = mode.loop || limit > 1 || !mode.groups.empty();
  mode_ = mode;
  return mode;
}

void PythonRunner::Keep(core::Execution& execution) {
  auto* call = new PythonCall();
  std::swap(*call, main_);
  if (call->failed) {
    PyObject *type, *traceback;
    PyErr_Fetch(&type, &call->error, &traceback);
    PyErr_NormalizeException(&type, &call->error, &traceback);
    if (traceback) PyException_SetTraceback(call->error, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
  }
  kept_[call->execution] = call;
  call->concurrent = &execution;
  execution.front_end = call;
}

void PythonRunner::Start(core::Execution& execution) {
  if (mode_.loop) {
    executor_->NoteBegin(execution);
    return StartSoon(execution);
  }
  pool_queue_.push_back(&execution);
  NeedSeeker();
}

bool PythonRunner::NeedSeeker() {
  if (pool_seekers_ > 0) return false;
  ++pool_seekers_;
  if (pool_idle_ > 0) {
    --pool_idle_;
    std::lock_guard lock(pool_mutex_);
    ++pool_called_;
    pool_wakes_.notify_one();
    return false;
  }
  // If all threads are busy, the next that is done looks at the queue.
  if (pool_threads_ < pool_limit_) {
    ++pool_threads_;
    PyObject* start_thread = Callback("weft._actor_worker", "start_thread");
    Owned started(start_thread ? PyObject_CallNoArgs(start_thread) : nullptr);
    if (started) return true;
    PyErr_WriteUnraisable(Py_None);
    --pool_threads_;
  }
  --pool_seekers_;
  return false;
}

// If a call blocks that was short so far, the seeker does it.
void PythonRunner::WakeOwedBefore(const core::DefinedTemplate& what) {
  if (pool_seekers_ == 0 || !what.brief.load(std::memory_order_relaxed)) executor_->WakeOwed();
}

// A call that releases the GIL, or has had it for too long, thereby gives it to the seeker. So calls queued behind a
// blocking call begin at once, and short calls run back to back on one thread.
void PythonRunner::ServeCalls() {
  for (;;) {
    --pool_seekers_;
    // The thread that had the GIL may not be back soon.
    executor_->WakeOwed();
    for (;;) {
      // Even before the last one, which may block and then leave no seeker for calls that may run since another ended.
      if (pool_queue_.size() <= 1) executor_->TakeMore();
      if (pool_queue_.size() > 1 && NeedSeeker()) continue;
      if (pool_queue_.empty()) break;
      core::Execution* execution = pool_queue_.front();
      pool_queue_.pop_front();
      Serve(*execution);
    }
    executor_->WakeOwed();
    ++pool_idle_;  // with the GIL: calls queued from now on wake us
    Py_BEGIN_ALLOW_THREADS {
      std::unique_lock lock(pool_mutex_);
      pool_wakes_.wait(lock, [&] { return pool_called_ > 0; });
      --pool_called_;
    }
    Py_END_ALLOW_THREADS
  }
}

void PythonRunner::Serve(core::Execution& execution) {
  auto* call = static_cast<PythonCall*>(execution.front_end);
  WakeOwedBefore(*call->what);
  executor_->NoteBegin(execution);
  t_call = call;
  Runtime::SetCurrentExecution(call->execution);
  call->thread = PyThread_get_thread_ident();
  for (;;) {
    Owned result;
    if (call->cancelled) {
      PyObject* cancelled = Callback("weft._actor_worker", "Cancelled");
      if (cancelled) PyErr_SetNone(cancelled);
    } else if (!call->failed) {
      result = Owned(Invoke(*call));
    } else {
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(call->error)), call->error);
    }
    if (!result && RunAgain(*call)) continue;
    call->thread = 0;
    call->DropArguments();
    Conclude(*call, execution.returns, result.get(), execution.outcome);
    break;
  }
  PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), nullptr);  // a cancel that came too late
  t_call = nullptr;
  Runtime::SetCurrentExecution(0);
  kept_.erase(call->execution);
  Py_CLEAR(call->error);
  delete call;
  execution.front_end = nullptr;
  executor_->Complete(&execution, true);
}

// ---- asyncio ------------------------------------------------------------------------------------------------------

namespace {

PyObject* OnTaskDone(PyObject* capsule, PyObject* how) {
  auto* execution = static_cast<core::Execution*>(PyCapsule_GetPointer(capsule, nullptr));
  PyObject *result, *error;
  if (!execution || !PyArg_ParseTuple(how, "OO", &result, &error)) return nullptr;
  g_runner->Finished(execution, result, error);
  Py_RETURN_NONE;
}
PyMethodDef on_task_done = {"call_done", OnTaskDone, METH_O, nullptr};

}  // namespace

// A call that ends at once begins the next of its group, or itself again: not one inside the other, of which there may
// be thousands.
void PythonRunner::StartSoon(core::Execution& execution) {
  to_start_.push_back(&execution);
  if (starting_) return;
  starting_ = true;
  while (!to_start_.empty()) {
    core::Execution* next = to_start_.front();
    to_start_.pop_front();
    StartOnLoop(*next);
  }
  starting_ = false;
}

void PythonRunner::StartOnLoop(core::Execution& execution) {
  auto* call = static_cast<PythonCall*>(execution.front_end);
  const uint64_t number = call->execution;
  t_call = call;
  Owned result;
  if (call->cancelled) {
    PyObject* cancelled = Callback("weft._actor_worker", "Cancelled");
    if (cancelled) PyErr_SetNone(cancelled);
  } else if (!call->failed) {
    result = Owned(Invoke(*call));
  } else {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(call->error)), call->error);
  }
  t_call = nullptr;
  const bool awaits = result && PyCoro_CheckExact(result.get());
  if (awaits) {
    PyObject* start = Callback("weft._actor_worker", "start_task");
    Owned capsule(PyCapsule_New(&execution, nullptr, nullptr));
    Owned done(capsule ? PyCFunction_New(&on_task_done, capsule.get()) : nullptr);
    Owned task(start && done ? PyObject_CallFunction(start, "OKO", result.get(),
                                                     static_cast<unsigned long long>(number), done.get())
                             : nullptr);
    if (task) {
      // From Python 3.12 on a coroutine that has nothing to wait for has ended by now, and its call with it.
      auto kept = kept_.find(number);
      if (kept != kept_.end() && !kept->second->aio_task) kept->second->aio_task = task.Release();
      return;
    }
    result = Owned();
  }
  if (!result && RunAgain(*call)) return StartSoon(execution);
  call->DropArguments();
  Conclude(*call, execution.returns, result.get(), execution.outcome);
  kept_.erase(call->execution);
  Py_CLEAR(call->error);
  delete call;
  execution.front_end = nullptr;
  executor_->Complete(&execution, true);
}

void PythonRunner::Finished(core::Execution* execution, PyObject* value, PyObject* error) {
  auto* call = static_cast<PythonCall*>(execution->front_end);
  PyObject* result = error == Py_None ? value : nullptr;
  Py_CLEAR(call->aio_task);
  if (!result) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
  if (!result && RunAgain(*call)) return StartSoon(*execution);
  call->DropArguments();
  t_call = call;
  Conclude(*call, execution->returns, result, execution->outcome);
  t_call = nullptr;
  kept_.erase(call->execution);
  Py_CLEAR(call->error);
  delete call;
  execution->front_end = nullptr;
  executor_->Complete(execution, true);
}

void PythonRunner::NeverBegan(uint64_t number) {
  auto it = kept_.find(number);
  if (it == kept_.end()) return;
  PyObject* cancelled = Callback("weft._actor_worker", "Cancelled");
  Owned error(cancelled ? PyObject_CallNoArgs(cancelled) : nullptr);
  if (error) Finished(it->second->concurrent, Py_None, error.get());
}

void PythonRunner::RunLoop() {
  PyObject* run = Callback("weft._actor_worker", "run_loop");
  Owned done(run ? PyObject_CallNoArgs(run) : nullptr);
  if (!done) PyErr_Print();
}

int PythonRunner::Poll(int limit) {
  if (any_to_cancel_.load(std::memory_order_acquire)) TakeCancels();
  return executor_->Poll(limit);
}

// ---- cancelling ---------------------------------------------------------------------------------------------------

void PythonRunner::Interrupt(uint64_t execution) {
  if (!mode_.concurrent) {
    interrupt_.store(execution);
    pthread_kill(main_thread_, InterruptSignal());
    std::thread([this, execution] { SignalUntilTaken(execution); }).detach();
    return;
  }
  {
    std::lock_guard lock(cancel_mutex_);
    to_cancel_.push_back(execution);
    any_to_cancel_.store(true, std::memory_order_release);
  }
  executor_->Wake();
}

// A signal that comes just before the main thread begins to sleep in a system call does not end that sleep: send it
// again.
void PythonRunner::SignalUntilTaken(uint64_t execution) {
  while (interrupt_.load() == execution && running_.load() == execution) {
    timespec pause{0, 10'000'000};
    nanosleep(&pause, nullptr);
    if (interrupt_.load() == execution) pthread_kill(main_thread_, InterruptSignal());
  }
}

bool PythonRunner::TakeInterrupt() {
  uint64_t execution = interrupt_.exchange(0);
  return execution != 0 && execution == running_.load();
}

void PythonRunner::TakeCancels() {
  std::vector<uint64_t> numbers;
  {
    std::lock_guard lock(cancel_mutex_);
    numbers.swap(to_cancel_);
    any_to_cancel_.store(false, std::memory_order_relaxed);
  }
  for (uint64_t number : numbers) {
    auto it = kept_.find(number);
    if (it == kept_.end()) continue;
    PythonCall* call = it->second;
    if (call->aio_task) {
      PyObject* cancel = Callback("weft._actor_worker", "cancel_task");
      Owned done(cancel ? PyObject_CallFunction(cancel, "OK", call->aio_task, static_cast<unsigned long long>(number))
                        : nullptr);
      if (!done) PyErr_WriteUnraisable(call->aio_task);
    } else if (call->thread != 0) {
      PyObject* cancelled = Callback("weft._actor_worker", "Cancelled");
      if (cancelled) PyThreadState_SetAsyncExc(call->thread, cancelled);
    } else {
      call->cancelled = true;
    }
  }
}

// ---- for Python ---------------------------------------------------------------------------------------------------

const PythonCall* PythonRunner::Current() const {
  if (t_call) return t_call;
  if (!g_call_in_context) return nullptr;
  PyObject* number = nullptr;
  if (PyContextVar_Get(g_call_in_context, nullptr, &number) != 0 || !number) return nullptr;
  auto it = kept_.find(PyLong_AsUnsignedLongLong(number));
  Py_DECREF(number);
  return it == kept_.end() ? nullptr : it->second;
}

namespace {

PyObject* CurrentCall(PyObject*, PyObject*) {
  const PythonCall* call = g_runner ? g_runner->Current() : nullptr;
  if (!call) Py_RETURN_NONE;
  const core::AssignedLease& lease = g_runner->executor()->lease();
  Owned gpus(PyList_New(0)), resources(PyDict_New());
  if (!gpus || !resources) return nullptr;
  for (const auto& [number, amount] : lease.gpus) {
    Owned item(Py_BuildValue("(Id)", number, static_cast<double>(amount) / core::kResourceUnit));
    if (!item || PyList_Append(gpus.get(), item.get()) != 0) return nullptr;
  }
  for (const auto& [name, amount] : lease.resources) {
    if (name == core::kPythonWorker || core::IsPlacement(name)) continue;
    Owned item(PyFloat_FromDouble(static_cast<double>(amount) / core::kResourceUnit));
    if (!item || PyDict_SetItemString(resources.get(), name.c_str(), item.get()) != 0) return nullptr;
  }
  std::string actor = lease.actor ? core::ToString(lease.actor) : "";
  return Py_BuildValue("{sssssIszsIsOsOsK}", "task_id", core::ToString(ObjectId{call->submitter, call->task}).c_str(),
                       "name", call->what->name.c_str(), "attempt", call->attempt, "actor_id",
                       lease.actor ? actor.c_str() : nullptr, "incarnation", lease.incarnation, "gpus", gpus.get(),
                       "resources", resources.get(), "submitter",
                       static_cast<unsigned long long>(call->submitter.value));
}

// The mark to print before text of this thread's task; None: nothing. Called at every print.
PyObject* MarkBeforeText(PyObject*, PyObject* is_stderr) {
  const PythonCall* call = g_runner ? g_runner->Current() : nullptr;
  if (!call) Py_RETURN_NONE;
  const std::string mark = g_runner->executor()->MarkBeforeText(PyObject_IsTrue(is_stderr) == 1 ? 1 : 0, *call->what);
  if (mark.empty()) Py_RETURN_NONE;
  // The name of a C++ function may have any bytes: printing must work all the same.
  return PyUnicode_DecodeUTF8(mark.data(), static_cast<Py_ssize_t>(mark.size()), "replace");
}

PyObject* CurrentActor(PyObject*, PyObject*) {
  if (!g_runner || !g_runner->executor()->lease().actor) Py_RETURN_NONE;
  PyObject* from_blob = Callback("weft._actor", "info_from_blob");
  const std::string& blob = g_runner->blob();
  Owned info(from_blob ? PyObject_CallFunction(from_blob, "y#", blob.data(), static_cast<Py_ssize_t>(blob.size()))
                       : nullptr);
  Object* object = info ? g_runtime->FindReference(g_runner->executor()->lease().actor) : nullptr;
  if (!object) {
    if (!PyErr_Occurred()) RaiseSystemError("ActorDiedError\nthe actor has ended");
    return nullptr;
  }
  return NewHandle(object, info.get());
}

PyObject* ProcessInfo(PyObject*, PyObject*) {
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  const core::Welcome& welcome = runtime->welcome();
  char job[17];
  const std::string node = core::NodeIdText(welcome.session, core::NodeOf(welcome));
  std::snprintf(job, sizeof job, "%08llx", static_cast<unsigned long long>(welcome.driver.value));
  return Py_BuildValue("{sKsKsOsssssI}", "process", static_cast<unsigned long long>(welcome.process.value), "driver",
                       static_cast<unsigned long long>(welcome.driver.value), "is_worker",
                       g_runner ? Py_True : Py_False, "node_id", node.c_str(), "job_id", job, "cpus", welcome.cpus);
}

PyObject* TakeInterrupt(PyObject*, PyObject*) { return PyBool_FromLong(g_runner && g_runner->TakeInterrupt()); }
PyObject* InterruptSignalNumber(PyObject*, PyObject*) { return PyLong_FromLong(InterruptSignal()); }

PyObject* ServeCalls(PyObject*, PyObject*) {
  g_runner->ServeCalls();
  Py_RETURN_NONE;
}

PyObject* Poll(PyObject*, PyObject* limit) {
  return PyLong_FromLong(g_runner->Poll(static_cast<int>(PyLong_AsLong(limit))));
}

// _sleep(seconds or None, rests): 1: the loop rests (Runtime::SetLoopRests), 2: it was asked and does not.
PyObject* Sleep(PyObject*, PyObject* args) {
  PyObject* timeout;
  int rests = 0;
  if (!PyArg_ParseTuple(args, "O|i", &timeout, &rests)) return nullptr;
  int64_t deadline = core::kNoDeadline;
  if (timeout != Py_None) {
    double seconds = PyFloat_AsDouble(timeout);
    if (PyErr_Occurred()) return nullptr;
    deadline = core::NowNs() + static_cast<int64_t>(seconds * 1e9);
  }
  if (rests == 1) {
    g_runner->executor()->Rest();
  } else {
    if (rests == 2) g_runtime->SetLoopRests(false);
    g_runner->Sleep(deadline);
  }
  if (PyErr_CheckSignals() != 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* Wake(PyObject*, PyObject*) {
  if (g_runner) g_runner->Wake();
  Py_RETURN_NONE;
}

PyObject* CallNeverBegan(PyObject*, PyObject* number) {
  g_runner->NeverBegan(PyLong_AsUnsignedLongLong(number));
  Py_RETURN_NONE;
}

PyObject* SetCallVariable(PyObject*, PyObject* variable) {
  Py_INCREF(variable);
  Py_XSETREF(g_call_in_context, variable);
  Py_RETURN_NONE;
}

PyObject* SetLocalMode(PyObject*, PyObject* callbacks) {
  PyObject* task = nullptr;
  if (callbacks != Py_None) {
    task = PyMapping_GetItemString(callbacks, "task");
    if (!task) return nullptr;
  }
  Py_XSETREF(g_local_task, task);
  Py_RETURN_NONE;
}

PyObject* PutError(PyObject*, PyObject* args) {
  const char* bytes;
  Py_ssize_t size;
  int is_system = 0;
  if (!PyArg_ParseTuple(args, "y#|p", &bytes, &size, &is_system)) return nullptr;
  Runtime* runtime = NeedRuntime();
  if (!runtime) return nullptr;
  auto kind = is_system ? core::ValueKind::kSystemError : core::ValueKind::kTaskError;
  return NewRef(runtime->PutError(kind, {bytes, static_cast<size_t>(size)}), false);
}

PyMethodDef functions[] = {{"current_call", CurrentCall, METH_NOARGS, nullptr},
                           {"current_actor", CurrentActor, METH_NOARGS, nullptr},
                           {"_mark_before_text", MarkBeforeText, METH_O, nullptr},
                           {"process_info", ProcessInfo, METH_NOARGS, nullptr},
                           {"_take_interrupt", TakeInterrupt, METH_NOARGS, nullptr},
                           {"_interrupt_signal", InterruptSignalNumber, METH_NOARGS, nullptr},
                           {"_serve_calls", ServeCalls, METH_NOARGS, nullptr},
                           {"_poll", Poll, METH_O, nullptr},
                           {"_sleep", Sleep, METH_VARARGS, nullptr},
                           {"_wake", Wake, METH_NOARGS, nullptr},
                           {"_call_never_began", CallNeverBegan, METH_O, nullptr},
                           {"_set_call_variable", SetCallVariable, METH_O, nullptr},
                           {"set_local_mode", SetLocalMode, METH_O, nullptr},
                           {"put_error", PutError, METH_VARARGS, nullptr},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool AddWorkerFunctions(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace weft::python
