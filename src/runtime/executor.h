// A worker's main thread: takes tasks from the channels of those who lease it, runs them one at a time, and replies.
//
// A task is claimed immediately before its body, with all arguments present; otherwise it is handed back, the executor
// never waits for one. While a body waits in `get` for longer than a millisecond, what is queued behind it is handed
// back, so that it can run elsewhere. The body itself is the front end's (TaskRunner).
//
// Results are remembered for a while, so that a task that takes the result of an earlier one can be queued behind it;
// that, and what becomes of the references that come with a task, is decided by WorkerMachine.
//
// Threads: Run on the worker's main thread. HandBackQueued from the same thread, inside a body that waits. Adopt and
// ExitWhenIdle from the link thread, with the runtime's lock held.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/runtime.h"
#include "runtime/worker_machine.h"

namespace weft::core {

// What a worker knows of a task template that a submitter defined.
struct DefinedTemplate {
  FunctionKey key;
  uint32_t num_returns = 1;
  std::string name;
  std::string function_name;
  std::string retry_exceptions;
  std::string body;
  Location stored_body;       // size 0: the body is above
  void* front_end = nullptr;  // the front end's loaded function
};

// The value of a reference among the arguments.
struct TaskArgument {
  std::string_view bytes;
  bool stored = false;
  Object* object = nullptr;  // stored: keeps it alive; the front end may add references for views
};

struct TaskCall {
  DefinedTemplate* what = nullptr;
  std::string_view arguments;
  std::vector<TaskArgument> dependencies;
  ProcessId submitter;
  uint64_t task = 0;
  uint32_t attempt = 0;
  uint32_t depth = 0;
};

// One return value, as the front end made it: inline bytes, or a place in this process's segment.
struct TaskReturn {
  std::string bytes;
  StoreRoom room;                  // data != nullptr: stored
  std::vector<Object*> contained;  // alive until the reply was written
};

struct TaskOutcome {
  ReplyKind kind = ReplyKind::kValues;
  std::vector<TaskReturn> values;
  std::string error;
};

// The front end's half. All calls on the main thread, without any lock.
class TaskRunner {
 public:
  virtual ~TaskRunner() = default;
  // Decodes the arguments; afterwards the bytes of the call are gone. What fails here is remembered and reported by
  // Run.
  virtual void Prepare(const TaskCall& call) = 0;
  // Runs the body. `returns` are the objects its values will be.
  virtual void Run(const std::vector<ObjectId>& returns, TaskOutcome& outcome) = 0;
  // Around sleeping: let other threads of the language run. False: leave the loop.
  virtual void BeforeSleep() = 0;
  virtual void AfterSleep() = 0;
};

class Executor {
 public:
  Executor(Runtime& runtime, TaskRunner& runner);
  ~Executor();
  void Run();

  void HandBackQueued();  // the runtime's lock is held
  // The task that the calling thread runs; nothing is filled in if it runs none. On threads that run bodies.
  void Describe(WaitFact& fact) const;
  void Adopt(Runtime::Peer* peer);
  void ExitWhenIdle(bool at_once);  // or only when nobody borrows what this process owns

 private:
  struct Submitter {
    Runtime::Peer* peer = nullptr;
    std::unordered_map<uint32_t, std::unique_ptr<DefinedTemplate>> templates;
    bool owes_wake_up = false;
  };
  bool Step();  // one frame; false if there was none
  bool TakeFrame(Submitter& submitter, const Frame& frame);
  void Define(Submitter& submitter, std::string_view bytes);
  void RunTask(Submitter& submitter, std::string_view bytes);
  void HandBack(Submitter& submitter, uint64_t task, ReplyKind kind);
  uint8_t* RoomForReply(Submitter& submitter, uint32_t size);
  void SendReply(Submitter& submitter, uint32_t size);
  void WakeSubmitters();

  Runtime& runtime_;
  TaskRunner& runner_;
  std::vector<std::unique_ptr<Submitter>> submitters_;
  size_t next_ = 0;
  std::vector<Runtime::Peer*> adopted_;  // guarded by the runtime's lock
  std::atomic<bool> news_{false};
  std::atomic<bool> exit_{false};
  std::atomic<bool> exit_at_once_{false};
  WorkerMachine machine_;  // guarded by the runtime's lock where it touches objects
  TaskCall call_;
  uint64_t runs_ = 0;  // bodies begun
  TaskOutcome outcome_;
  std::vector<ObjectId> returns_;
  SpinGate spin_;
  bool may_spin_ = false;  // the last task's submitter saw a core free for us
};

}  // namespace weft::core
