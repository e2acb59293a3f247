// The C++ half of a worker: finds the function or method that a task names, makes its arguments, calls it, encodes its
// results. Keeps the actor's object, if the worker is an actor's.
//
// Called by Executor on the worker's main thread; Interrupt on the link thread, with the runtime's lock held. Calls of
// an actor with max_concurrency or concurrency groups run on threads of a pool.
//
// Cancelling is a flag: waits in weft (get, wait, this_task::sleep_for) check it and throw; other code calls
// this_task::is_cancelled.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "api_cpp/state.h"
#include "runtime/executor.h"
#include "weft/errors.h"

namespace weft::detail {

// Where the results of the running task go.
struct Returning {
  SessionState& state;
  const std::vector<core::ObjectId>& ids;
  core::TaskOutcome& outcome;
  size_t inline_bytes = 0;
};

// A task or call with its decoded arguments.
struct CppCall {
  core::DefinedTemplate* what = nullptr;
  FunctionRecord* function = nullptr;
  void* storage = nullptr;  // of the arguments; nullptr: they are gone, or were never made
  std::string failed;       // not empty: what went wrong before the call
  bool refused = false;     // that is a system error
  core::ProcessId submitter;
  uint64_t task = 0;
  std::atomic<uint64_t> execution{0};
  uint32_t attempt = 0;
  std::atomic<uint32_t> cancelled{0};  // the low bits of the cancelled execution's number; a futex word
  alignas(64) unsigned char small[256];
  std::unique_ptr<void, decltype(&std::free)> large{nullptr, &std::free};

  ~CppCall() { DropArguments(); }
  bool is_cancelled() const {
    return cancelled.load() == static_cast<uint32_t>(execution.load(std::memory_order_relaxed));
  }
  void DropArguments() {
    if (storage && function->destroy) function->destroy(storage);
    storage = nullptr;
  }
};

// What a wait of a cancelled task throws; and exit_actor.
struct Cancelled : TaskCancelledError {
  using TaskCancelledError::TaskCancelledError;
};
struct ActorExit {};

class CppRunner final : public core::TaskRunner {
 public:
  explicit CppRunner(SessionState& state) : state_(state) {}
  void DestroyInstance();
  void SetExecutor(core::Executor* executor) { executor_ = executor; }
  void Prepare(const core::TaskCall& call) override;
  void Run(const std::vector<core::ObjectId>& returns, core::TaskOutcome& outcome) override;
  void BeforeSleep() override {}
  void AfterSleep() override {}
  void Assigned(const core::AssignedLease& lease) override;
  core::ActorMode mode() override;
  void Keep(core::Execution& execution) override;
  void Start(core::Execution& execution) override;
  void Interrupt(uint64_t execution) override;

  static CppCall* Current();  // of this thread; nullptr: none
  core::Executor* executor() { return executor_; }
  bool is_actor() const { return instance_.object != nullptr || constructing_; }
  const std::string& info_bytes() const { return info_bytes_; }
  const std::string& actor_name() const { return actor_name_; }

 private:
  void PrepareIn(CppCall& call, const core::TaskCall& from);
  void Invoke(CppCall& call, const std::vector<core::ObjectId>& returns, core::TaskOutcome& outcome);
  FunctionRecord* FunctionOf(core::DefinedTemplate& what, core::ProcessId submitter);
  static void Refuse(CppCall& call, const char* error_class, const WeftError& error);
  FunctionRecord* MethodByName(const std::string& name);
  void TakeOptions(const std::string& options);
  void Fail(core::TaskOutcome& outcome, core::ReplyKind kind, std::string error);
  void ServeCalls();

  SessionState& state_;
  core::Executor* executor_ = nullptr;
  CppCall main_;
  std::optional<std::string> visible_gpus_;  // of the driver
  std::unique_ptr<CppCall> kept_;            // Prepare made it, for Keep

  // ---- an actor
  Instance instance_;
  bool constructing_ = false;
  std::string info_bytes_, actor_name_;
  core::ActorMode mode_;
  // What runs now, for Interrupt; the pool. Guarded by mutex_.
  std::mutex mutex_;
  std::vector<CppCall*> running_;
  std::condition_variable wakes_;
  std::deque<core::Execution*> queue_;
  uint32_t idle_ = 0, threads_ = 0, limit_ = 0;
};

extern CppRunner* g_runner;  // in a worker

// In a worker of another language: C++'s half of it. Neither the session nor the runner is ever freed.
CppRunner* JoinSession(Runtime& runtime, const std::string& name_space, core::Executor& executor);
// When the worker is about to exit: destroys the actor, and tells waiting coroutines of the end.
void LeaveSession();

}  // namespace weft::detail
