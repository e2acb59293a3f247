// A worker's main thread: takes tasks from the channels of the processes that lease it (or call its actor), runs them,
// and replies.
//
// A task is claimed immediately before its body, with all arguments present. Otherwise it is handed back; the executor
// never waits for an argument. Arguments on another node are requested when the task comes to the front of its channel,
// and the task stays there, unclaimed, until they have come; tasks of other channels run meanwhile, and so does the
// task before it. If a body waits in `get` for longer than a millisecond, the tasks queued behind it are handed back,
// so that they can run elsewhere. The front end runs the body itself (TaskRunner).
//
// An actor's worker runs one constructor and then only calls. Calls of processes other than the creator wait in their
// channels until the constructor has run. Calls run one at a time on the main thread, or concurrently if the front end
// says so (TaskRunner::mode): then the front end starts each call and says when it is done (Complete), and the executor
// takes no more calls than may run. Calls with a concurrency group are taken at once and queued here, so that a full
// group does not block the others. A thread of the front end that has completed a call may take the next ones itself
// (TakeMore), so the main thread need not be woken for each; their replies may then be announced together (WakeOwed).
//
// Results are remembered for a while, so that a task can be queued behind the task whose result it takes. WorkerMachine
// decides that, and what becomes of the references that come with a task.
//
// Threads: Run on the worker's main thread; Poll and Sleep there too, if the front end has an event loop of its own.
// Complete and WakeOwed on any thread, without the lock. TakeMore on any thread that has the language's own lock (the
// interpreter's). The main thread has that lock too, except around sleeping; it guards the main thread's data.
// HandBackQueued from the main thread, inside a body that waits. Adopt, SubmitterEnded, CopyCame, ExitWhenIdle and
// CancelRunning from the link thread, with the runtime's lock held.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/output_marks.h"
#include "runtime/runtime.h"
#include "runtime/worker_machine.h"
#include "runtime/worker_port.h"

namespace weft::core {

// What a worker knows of a task template that a submitter defined.
struct DefinedTemplate {
  TemplateKind kind = TemplateKind::kTask;
  FunctionKey key;
  uint32_t num_returns = 1;
  int32_t max_retries = 0;
  std::string method;
  std::string group;
  std::string actor_options;
  std::string name;
  std::string function_name;
  std::string retry_exceptions;
  std::string body;
  Location stored_body;       // size 0: the body is above
  void* front_end = nullptr;  // the front end's loaded function
  uint32_t event_name = 0;
  uint32_t ended_well = 0;  // how often it has run here to its end, on the main thread
  // Its last run was short: an earlier reply need not be announced before the next run. Relaxed.
  std::atomic<bool> brief{false};
};

// The resources behind a task, and the actor that the worker is (if it is one).
struct AssignedLease {
  LeaseId lease;
  ObjectId actor;
  uint32_t incarnation = 0;
  ResourceAmounts resources;
  AssignedGpus gpus;
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
  uint64_t task = 0;          // as its submitter numbers tasks
  uint64_t first_return = 0;  // the task's id for users; `task` if it returns nothing
  uint32_t attempt = 0;
  uint32_t depth = 0;
  uint64_t execution = 0;  // names this run in this process
};

// One return value, as the front end made it: inline bytes, or a place in this process's segment.
struct TaskReturn {
  std::string bytes;
  StoreRoom room;                  // data != nullptr: stored
  std::vector<Object*> contained;  // alive until the reply is written
};

struct TaskOutcome {
  ReplyKind kind = ReplyKind::kValues;
  std::vector<TaskReturn> values;
  std::string error;
};

struct Submitter;

// One task or call, from its frame to its reply.
struct Execution {
  TaskCall call;
  std::vector<ObjectId> returns;
  TaskOutcome outcome;
  Submitter* submitter = nullptr;
  WorkerMachine::References references;
  void* front_end = nullptr;  // of a concurrent call: the front end's
  EventLog::Running event;    // in the event log, from its start to its reply
};

// How an actor's calls run.
struct ActorMode {
  bool concurrent = false;
  bool loop = false;   // the front end has an event loop; calls start and complete on the main thread
  uint32_t limit = 1;  // calls at once, those in groups not counted
  std::map<std::string, uint32_t> groups;
};

// The front end's half. Calls on the main thread, without any lock, unless said otherwise.
class TaskRunner {
 public:
  virtual ~TaskRunner() = default;
  // Decodes the arguments; afterwards the bytes of the call are gone. Remembers an error for Run to report.
  virtual void Prepare(const TaskCall& call) = 0;
  // Runs the body. `returns` are the objects its values will be.
  virtual void Run(const std::vector<ObjectId>& returns, TaskOutcome& outcome) = 0;
  // Around sleeping: let other threads of the language run.
  virtual void BeforeSleep() = 0;
  virtual void AfterSleep() = 0;

  // The tasks that follow run with these resources.
  virtual void Assigned(const AssignedLease&) {}
  // After a constructor has succeeded.
  virtual ActorMode mode() { return {}; }
  // Instead of Run, in a concurrent actor: Keep keeps what Prepare made, and Start starts it, at once or later. The
  // front end calls Executor::NoteBegin just before the body. Start is also called from within Complete, on its thread.
  virtual void Keep(Execution&) {}
  virtual void Start(Execution&) {}
  // Runs the event loop of a `loop` actor, which calls Executor::Poll and Sleep, until Poll says to leave.
  virtual void RunLoop() {}
  // Asks the execution, which runs now, to end soon. On the link thread, with the runtime's lock held.
  virtual void Interrupt(uint64_t) {}
  // The template goes: its submitter has ended, and none of its tasks runs.
  virtual void Forget(DefinedTemplate&) {}
};

// A process that sends tasks to this worker.
struct Submitter {
  Runtime::Peer* peer = nullptr;
  std::unordered_map<uint32_t, std::unique_ptr<DefinedTemplate>> templates;
  std::atomic<bool> owes_wake_up{false};   // it was not woken for a reply yet; relaxed
  std::atomic<uint32_t> precious_owed{0};  // such replies to tasks that would not run again; relaxed
  // Arguments on other nodes of the task at the front of its channel: their copies are awaited, or used until the task
  // has its arguments.
  std::vector<Location> awaited;
  bool awaited_early = false;   // since the task before it began; copies that have failed since are tried once more
  std::vector<Location> ahead;  // likewise, of a few tasks behind it
};

class Executor {
 public:
  Executor(Runtime& runtime, TaskRunner& runner);
  ~Executor();
  void Run();

  // For a front end's event loop. Poll takes waiting calls, at most `limit`, and returns how many, or -1: leave. Sleep
  // returns when there may be something, after Wake, or at the deadline. Rest returns only when there is something, or
  // after Wake or a signal; the runtime knows meanwhile that the loop rests (Runtime::SetLoopRests).
  int Poll(int limit);
  void Sleep(int64_t deadline_ns);
  void Rest();
  void Wake();  // any thread

  // Concurrent calls.
  void NoteBegin(Execution& execution);  // its body begins now; notes that in the event log
  // The execution has its outcome, and is deleted. `in_language`: the caller has the language's own lock, which is
  // released while the reply has to wait. Without a loop, such a caller then calls TakeMore, and soon WakeOwed.
  void Complete(Execution* execution, bool in_language);
  void TakeMore();  // starts the calls that may run now
  void WakeOwed();  // wakes the caller whose replies were not announced yet

  // The runtime's lock is held. False: some tasks are left, since their submitter has not taken its replies.
  bool HandBackQueued();
  // Describes the task or call that the calling thread runs; fills in nothing if it runs none. Slots says how many may
  // run at once. The runtime's lock is held for all of them.
  void Describe(WaitFact& fact, bool main_thread);
  void DescribeCall(WaitFact& fact, uint64_t execution);  // a concurrent one
  std::vector<SlotFact> Slots() const;
  // For a front end with its own output buffers, about the running task, on its thread. See OutputMarks.
  std::string MarkBeforeText(int stream, const DefinedTemplate& what) {
    return is_actor_ ? std::string() : marks_.BeforeText(stream, what.event_name, what.name);
  }
  void Adopt(Runtime::Peer* peer);
  void SubmitterEnded() { submitter_ended_.store(true); }
  void CopyCame() { copy_came_ = true; }  // or will not; the runtime's lock is held
  void ExitWhenIdle(bool at_once);        // false: only when no process borrows what this one owns
  void CancelRunning(ProcessId submitter, uint64_t task, bool force, bool recursive);

  const AssignedLease& lease() const { return lease_; }
  bool is_actor() const { return is_actor_; }

 private:
  struct Group {
    uint32_t limit = 1;
    uint32_t running = 0;
    std::deque<Execution*> waiting;
  };
  void RunUntilLeaving();
  void TakeAdopted();                        // the runtime's lock is held
  void ForgetEndedSubmitters();              // main thread, with the language's lock and without the runtime's
  bool IsInUse(const Submitter& submitter);  // the runtime's lock is held
  bool Step();                               // one frame; false if there was none
  void TakeFrame(Submitter& submitter, const Frame& frame);
  bool MayTake(Submitter& submitter, const Frame& frame);
  bool ArgumentsAreHere(Submitter& submitter, const Frame& frame, bool early);
  // The runtime's lock is held.
  void StopAwaiting(Submitter& submitter);
  void Await(std::vector<Location>& awaited, std::vector<Location> wanted);
  void AwaitAhead(Submitter& submitter);
  void PopTask(Submitter& submitter);
  bool Idle(int64_t deadline_ns);  // false: leave
  bool AnythingToTake();
  bool MayLeave();  // the runtime's lock is held
  void Define(Submitter& submitter, std::string_view bytes);
  void TakeLease(std::string_view bytes);
  void RunTask(Submitter& submitter, std::string_view bytes);
  enum class Begun : uint8_t {
    kReady,
    kHandedBack,
    kImpossible,  // the outcome says why, and is to be replied
  };
  Begun Begin(Execution& execution, Submitter& submitter, std::string_view bytes);
  void StartConcurrent(std::unique_ptr<Execution> execution);
  void Reply(Execution& execution, bool in_language);
  void Constructed(Execution& execution);
  void TakeEarlyCancel(ProcessId submitter, uint64_t task, uint64_t execution);
  // The run of this task on the main thread, or 0. Any thread.
  uint64_t RunningNow(ProcessId submitter, uint64_t task) const;
  std::unique_lock<std::mutex> AsOnlyWriter(bool in_language);
  void HandBack(Submitter& submitter, uint64_t task, ReplyKind kind, const std::vector<Location>& lost = {},
                std::string_view error = {});
  uint8_t* RoomForReply(Submitter& submitter, uint32_t size, bool in_language);
  void SendReply(Submitter& submitter, uint32_t size, bool precious, bool failed);
  void OweWakeUp(Submitter& submitter);
  void WakeSubmitters();
  void GatherReplies();
  // Whether the task at the front has run here before without harm.
  static bool IsProven(const Submitter& submitter, std::string_view bytes);

  Runtime::WorkerPort runtime_;
  TaskRunner& runner_;
  std::vector<std::unique_ptr<Submitter>> submitters_;
  size_t next_ = 0;
  uint32_t streak_ = 0;                    // frames taken from submitter next_ in a row
  std::vector<Runtime::Peer*> adopted_;    // guarded by the runtime's lock
  bool copy_came_ = false;                 // since Idle was about to sleep; guarded by the runtime's lock
  std::atomic<bool> owes_streams_{false};  // a submitter on a stream is owed a wake-up; relaxed
  std::atomic<bool> news_{false};
  std::atomic<bool> submitter_ended_{false};
  std::atomic<bool> exit_{false};
  std::atomic<bool> exit_at_once_{false};
  std::atomic<bool> woken_{false};
  Waiter idle_;                 // the main thread, in Idle
  bool was_disturbed_ = false;  // Idle ended by Wake or a signal
  OutputMarks marks_;
  WorkerMachine machine_;  // guarded by the runtime's lock where it touches objects
  AssignedLease lease_;
  Execution main_;  // what runs on the main thread, one at a time
  uint64_t next_execution_ = 1;
  SpinGate spin_;
  // The frame at the front of a channel is being read. That may wait for a segment that is not mapped yet, and the
  // user's code that decodes functions and arguments may wait for anything.
  bool reading_ = false;
  std::atomic<bool> may_spin_{false};  // the last task's submitter saw a free core for this worker; relaxed
  // Guarded by the language's lock: a thread is inside Step, and may have released that lock there; or the main thread
  // has left.
  bool stepping_ = false;

  // What runs on the main thread, for CancelRunning. Sequentially consistent with early_cancels_: one side sees the
  // other's.
  // Written in this order, with current_task_ 0 in between (RunTask); read in the reverse order (RunningNow).
  std::atomic<uint64_t> current_execution_{0};
  std::atomic<uint64_t> current_submitter_{0};
  std::atomic<uint64_t> current_task_{0};
  struct EarlyCancel {  // came before the task was seen to run, or after it had ended
    ProcessId submitter;
    uint64_t task = 0;
    bool force = false;
    int64_t at_ns = 0;
  };
  std::deque<EarlyCancel> early_cancels_;  // guarded by the runtime's lock
  std::atomic<uint32_t> num_early_cancels_{0};

  bool is_actor_ = false;  // the constructor has come
  bool constructed_ = false;
  ActorMode mode_;
  std::mutex reply_mutex_;  // concurrent, without a loop (AsOnlyWriter): one writer to a channel at a time
  std::atomic<Submitter*> owed_{nullptr};  // noted by OweWakeUp and not woken since
  std::atomic<uint32_t> num_owed_{0};      // about how many replies; relaxed
  std::atomic<uint32_t> waking_{0};        // threads that take a submitter from owed_ and ring
  // Concurrent calls. Guarded by running_mutex_, which is taken inside the runtime's.
  std::mutex running_mutex_;
  std::unordered_map<uint64_t, std::unique_ptr<Execution>> running_;
  uint32_t running_ungrouped_ = 0;
  std::map<std::string, Group> groups_;
};

}  // namespace weft::core
