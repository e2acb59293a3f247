// A driver or worker in the simulation: a real Owner (and WorkerMachine) with the parts of Runtime and Executor around
// them that matter for order: what is written to a channel at once, what waits to be sent, what is drained before what.
//
// The link thread, the background thread and the main thread of the real process are three kinds of steps here (Link,
// Drain, Execute), each scheduled with a delay of its own, so that they interleave in every way. A process may die
// between any two of the things it does (CrashPoint).
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/owner.h"
#include "runtime/worker_machine.h"
#include "simulator/world.h"
#include "wire/messages.h"
#include "wire/peer_message.h"

namespace weft::core {

class SimulatedProcess {
 public:
  SimulatedProcess(World& world, ProcessId id, bool driver);

  // ---- called by the daemon
  struct Incoming {
    Message message;
    int64_t sent_ns;
  };
  void Receive(Message message);
  void SayReady();                          // a worker's first message
  void WakeExecutor(int64_t extra_ns = 0);  // a frame or a request to revoke is there
  void WakeDrain(int64_t delay_ns, int64_t extra_ns = 0);
  // Dies at once, wherever it is.
  void Die();
  void StartDriver();
  void ForgetGlobals();

  bool busy() const { return alive && body_ && !driver_; }
  bool driver_done() const { return driver_ && !body_; }
  // Every object of this process's user code.
  void ForEachHandle(const std::function<void(Object*)>& f);
  bool RunsTaskOf(ProcessId submitter) const {
    return body_ && body_->channel && body_->channel->submitter == submitter;
  }
  std::string Describe();
  void AfterEvent();
  void NoteLosses();  // for the coverage: what it takes with it
  void DoomLeased(bool condemn);
  void Absolve();  // its lease was returned in order, and it keeps nothing

  World& world;
  const ProcessId id;
  Owner owner;
  WorkerMachine machine;
  WorkerMachine::References references;  // of the task that runs
  bool alive = true;
  bool buried = false;     // the daemon has declared it dead
  bool condemned = false;  // whoever leased it is dead; it will be killed
  bool doomed = false;   // condemned, or it got references from one that is: what was lost with the dead may lack here
  bool blocked = false;  // the doorbell page's flags
  bool demand = false;
  int64_t paused_until_ns = 0;
  std::deque<Incoming> inbox;
  std::vector<SimulatedChannel*> workers;     // that we push to
  std::vector<SimulatedChannel*> submitters;  // that push to us
  bool exit_asked = false;

 private:
  // User code that runs: a task's body, or the driver's program.
  struct Body {
    SimulatedChannel* channel = nullptr;  // nullptr: the driver's
    SimulatedTask task;
    TaskSpec spec;
    Random random{0};
    uint32_t steps_left = 0;
    uint32_t children = 0;
    std::vector<Object*> variables;  // one local reference each
    Object* awaited = nullptr;
    bool resuming = false;
    bool handed_back = false;
    uint64_t wait_number = 0;
    bool last_gets = false;  // the driver gets all it still has, and drops it
    bool failed = false;     // a get raised, and the body lets it through
    std::string failure;
    SimulatedReply reply;
    std::vector<std::vector<Object*>> returned;  // references inside the values, until the reply was written
    bool ended = false;
    bool replied = false;
  };

  void CrashIf(CrashPoint point);

  // link
  void WakeLink();
  void Link();
  void Handle(Message& message);
  void HandlePeerMessage(ProcessId from, const PeerMessage& message);
  void Send(Message message);
  void Route(ProcessId to, const PeerMessage& message);
  void Flush();
  void OrphanMentions(const Message& message);  // it will not arrive
  void OrphanMentions(const SimulatedReply& reply, ProcessId submitter);

  // draining and performing
  void Drain();
  void DrainChannel(SimulatedChannel& channel);
  void TakeReply(SimulatedChannel& channel, const SimulatedReply& reply);
  void NoteLost(const Task& task);  // it may have run, and its worker is dead
  void DrainDrops();
  void Perform();
  bool PushTask(const Action& action);
  void RevokeTask(const Action& action);
  void ScheduleTick();
  SimulatedChannel* ChannelTo(ProcessId worker);
  void ScanFinished();

  // executing
  void Execute();
  void TakeTask(SimulatedChannel& channel);
  void AnswerRevokes();
  void HandBack(SimulatedChannel& channel, const SimulatedTask& task, ReplyKind kind);
  void HandBackQueued();
  bool SendReplies();  // false: no room yet
  void Step();
  void EndBody();
  void AfterReply();
  void ScheduleStep(int64_t delay_ns);

  // user code
  void AddReference(Object* object) { object->local_references.fetch_add(1, std::memory_order_relaxed); }
  void Drop(Object* object);
  void DoStep();
  void SubmitChild();
  void PutValue();
  void BeginGet(Object* object);
  void EndGet();
  Object* PickVariable();
  const TaskTemplate* TemplateOf(const TaskSpec& spec);

  const bool driver_;
  const Function* function_;
  Actions actions_;
  std::vector<Message> outbox_, routed_outbox_;
  std::deque<Message> sending_;  // while it flushes
  std::vector<Location> free_outbox_;
  std::vector<Object*> dropped_;
  std::vector<uint64_t> pending_;  // instances submitted and not seen to be finished
  size_t known_live_ = 0;
  std::unique_ptr<Body> body_;
  std::vector<Object*> globals_;  // references and views that user code keeps between tasks
  struct PendingReply {
    SimulatedChannel* channel;
    SimulatedReply reply;
    bool of_body;
  };
  std::deque<PendingReply> replies_;
  size_t next_submitter_ = 0;
  uint64_t next_wait_ = 1;
  std::set<ProcessId> known_dead_;
  bool link_awake_ = false, executor_awake_ = false;
  int64_t link_not_before_ns_ = 0, executor_not_before_ns_ = 0, drain_not_before_ns_ = 0;
  int64_t drain_at_ns_ = -1;
  int64_t tick_at_ns_ = -1;
};

}  // namespace weft::core
