// Runs the bodies of Python tasks, and the methods of a Python actor, in a worker.
//
// The GIL is held unless said otherwise (released around sleeping). Bodies run one at a time on the main thread; or,
// for an actor that says so, on threads of a pool (ServeCalls) or as asyncio tasks of the loop that weft._actor_worker
// runs on the main thread.
//
// Cancelling. Interrupt is called on the link thread, which must not wait for the GIL. A body on the main thread is
// interrupted by a signal, whose Python handler raises (TakeInterrupt). A body on another thread is interrupted by the
// main thread when it wakes up (AfterSleep, or the loop's poll).
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "api_python/codec.h"
#include "runtime/executor.h"

namespace weft::python {

// A task or call with its arguments decoded.
struct PythonCall {
  core::DefinedTemplate* what = nullptr;
  PyObject* function = nullptr;  // borrowed from the template
  std::vector<PyObject*> arguments;
  size_t num_positional = 0;
  PyObject* kwnames = nullptr;
  bool native = false;  // for a caller of another language: results in the native format, if possible
  bool failed = false;  // decoding failed; the exception is in `error`
  PyObject* error = nullptr;
  uint32_t attempt = 0;
  // For current_call().
  core::ProcessId submitter;
  uint64_t task = 0;
  uint64_t execution = 0;
  bool cancelled = false;                 // before it began
  unsigned long thread = 0;               // the thread that runs it, in Python's numbering
  PyObject* aio_task = nullptr;           // or the asyncio task
  core::Execution* concurrent = nullptr;  // its execution, if it is a concurrent call
  void DropArguments();
};

class PythonRunner final : public core::TaskRunner {
 public:
  explicit PythonRunner(Runtime& runtime);
  void SetExecutor(core::Executor* executor) { executor_ = executor; }

  void Prepare(const core::TaskCall& call) override;
  void Run(const std::vector<ObjectId>& returns, core::TaskOutcome& outcome) override;
  void BeforeSleep() override;
  void AfterSleep() override;
  void Assigned(const core::AssignedLease& lease) override;
  core::ActorMode mode() override;
  void Keep(core::Execution& execution) override;
  void Start(core::Execution& execution) override;
  void RunLoop() override;
  void Interrupt(uint64_t execution) override;
  void Forget(core::DefinedTemplate& what) override;

  // For weft._actor_worker and the signal handler.
  bool TakeInterrupt();
  void ServeCalls();  // a thread of the pool; returns never
  int Poll(int limit);
  void Sleep(int64_t deadline_ns) { executor_->Sleep(deadline_ns); }
  void Wake() { executor_->Wake(); }
  void Finished(core::Execution* execution, PyObject* value, PyObject* error);  // an asyncio task; error None: none
  void NeverBegan(uint64_t execution);  // an asyncio task that was cancelled before its first step
  core::Executor* executor() { return executor_; }
  const std::string& blob() const { return blob_; }
  const PythonCall* Current() const;  // on this thread, or in this context; nullptr: none

 private:
  PyObject* FunctionOf(const core::TaskCall& from);
  PyObject* Invoke(PythonCall& call);
  // The values of a call that has returned `result`, or its exception (result nullptr, exception set).
  void Conclude(PythonCall& call, const std::vector<ObjectId>& returns, PyObject* result, core::TaskOutcome& outcome);
  bool Encode(const PythonCall& call, PyObject* value, ObjectId id, core::TaskReturn& out, size_t* inline_bytes);
  void Fail(PythonCall& call, core::TaskOutcome& outcome);
  bool RunAgain(PythonCall& call);  // a retryable exception of an actor's call
  void StartSoon(core::Execution& execution);
  void StartOnLoop(core::Execution& execution);
  bool NeedSeeker();                                       // true: the GIL was released meanwhile, look again
  void WakeOwedBefore(const core::DefinedTemplate& what);  // before it runs, announces the replies so far
  void Serve(core::Execution& execution);                  // runs a call of the pool
  void SignalUntilTaken(uint64_t execution);
  void TakeCancels();

  Runtime& runtime_;
  core::Executor* executor_ = nullptr;
  PythonCall main_;
  std::unordered_map<core::FunctionKey, PyObject*> loaded_;
  pthread_t main_thread_;
  std::atomic<uint64_t> running_{0};    // the execution on the main thread
  std::atomic<uint64_t> interrupt_{0};  // the execution that a signal was sent for

  // ---- an actor
  PyObject* instance_ = nullptr;
  PyObject* settings_ = nullptr;  // weft._actor.WorkerSettings
  std::string blob_;              // of its ActorInfo
  core::ActorMode mode_;
  std::mutex cancel_mutex_;
  std::vector<uint64_t> to_cancel_;
  std::atomic<bool> any_to_cancel_{false};
  std::unordered_map<uint64_t, PythonCall*> kept_;  // GIL; by execution
  // The pool. Seekers are threads that were woken or started to look at the queue and have not done so yet, mostly
  // because another has the GIL. While calls are queued there is one, unless all threads are busy. GIL.
  std::deque<core::Execution*> to_start_;  // on the loop
  bool starting_ = false;
  std::deque<core::Execution*> pool_queue_;
  uint32_t pool_seekers_ = 0, pool_threads_ = 0, pool_limit_ = 0;
  uint32_t pool_idle_ = 0;  // threads that sleep, or are about to, and were not called
  std::mutex pool_mutex_;   // no thread waits for the GIL while it holds this
  std::condition_variable pool_wakes_;
  uint32_t pool_called_ = 0;  // idle threads that are to wake up; guarded by pool_mutex_
};

extern PythonRunner* g_runner;       // in a worker
extern PyObject* g_local_task;       // local mode: runs a task here
extern PyObject* g_call_in_context;  // an asyncio actor: the ContextVar of the present call's number; otherwise nullptr

// Before a submission: which execution submits.
inline void NoteExecution() {
  if (!g_call_in_context) return;
  PyObject* number = nullptr;
  if (PyContextVar_Get(g_call_in_context, nullptr, &number) == 0 && number) {
    Runtime::SetCurrentExecution(PyLong_AsUnsignedLongLong(number));
    Py_DECREF(number);
  } else {
    Runtime::SetCurrentExecution(0);
  }
}

bool AddWorkerFunctions(PyObject* module);

}  // namespace weft::python
