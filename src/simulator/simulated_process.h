// A driver or worker in the simulation: a real Owner (and WorkerMachine) with the parts of Runtime and Executor around
// them that matter for order: what is written to a channel at once, what waits to be sent, what is drained before what.
//
// The link thread, the background thread and the main thread of the real process are three kinds of steps here (Link,
// Drain, Execute), each scheduled with a delay of its own, so that they interleave in every way. A process may die
// between any two of the things it does (CrashPoint).
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/inquiries.h"
#include "runtime/outbox.h"
#include "runtime/owner.h"
#include "runtime/worker_machine.h"
#include "simulator/world.h"
#include "wire/messages.h"
#include "wire/peer_message.h"

namespace weft::core {

SimulatedValue ValueOf(const Object& object);
bool IsError(ValueKind kind);

// In six files: simulated_process.cc (life and the link), simulated_performer.cc (channels and actions),
// simulated_executor.cc, simulated_program.cc, simulated_actors.cc (actors and cancelling) and simulated_waiting.cc.
class SimulatedProcess : private Inquiries::Host {
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
  void KillActors(const std::vector<ObjectId>& actors);  // the driver, at its end

  // The actor that lives here, and which life of it this is.
  ObjectId actor() const { return actor_; }
  uint32_t incarnation() const { return incarnation_; }
  bool is_driver() const { return driver_; }
  bool busy() const { return alive && body_ && !driver_; }
  bool driver_done() const { return driver_ && !body_; }
  // Every object of this process's user code.
  void ForEachHandle(const std::function<void(Object*)>& f);
  bool RunsTaskOf(ProcessId submitter) const {
    return body_ && body_->channel && body_->channel->submitter == submitter;
  }
  std::string Describe();
  void AfterEvent();
  void NoteLosses(const std::vector<Outbox::Entry>& unsent);  // for the coverage: what it takes with it
  void DoomLeased(bool condemn);
  void ChannelEnded(SimulatedChannel& channel);  // its stream; to one that lives
  void Absolve();                                // its lease was returned in order, and it keeps nothing

  World& world;
  const ProcessId id;
  Owner owner;
  WorkerMachine machine;
  WorkerMachine::References references;  // of the task that runs
  bool alive = true;
  bool buried = false;     // the daemon has declared it dead
  bool condemned = false;  // whoever leased it is dead; it will be killed
  bool doomed = false;  // condemned, or it got references from one that is: what was lost with the dead may lack here
  // The doorbell page's flags.
  bool blocked = false;
  bool lends = false;  // and the daemon counts on it
  bool demand = false;
  int64_t paused_until_ns = 0;
  bool frozen = false;                           // stopped by its daemon
  std::vector<std::function<void()>> held_back;  // what would have happened meanwhile
  std::deque<Incoming> inbox;
  std::vector<SimulatedChannel*> workers;     // that we push to
  std::vector<SimulatedChannel*> submitters;  // that push to us
  bool exit_asked = false;
  bool left = false;  // in order: nobody needed it any more

 private:
  // User code that runs: a task's body, or the driver's program.
  struct Body {
    SimulatedChannel* channel = nullptr;  // nullptr: the driver's
    SimulatedTask task;
    TaskSpec spec;
    Random random{0};
    uint32_t steps_left = 0;
    uint32_t children = 0;
    uint64_t execution = 0;
    std::vector<Object*> variables;  // one local reference each
    std::vector<Object*> handles;    // of actors; likewise
    Object* awaited = nullptr;
    bool resuming = false;
    bool handed_back = false;
    uint64_t wait_number = 0;
    int64_t wait_began_ns = 0;
    int64_t deadline_ns = -1;  // of the wait
    bool timed_out = false;
    bool listed = false;        // the wait has lasted a while, and others are told of it
    int64_t look_pause_ns = 0;  // until it is looked into again
    // It was found that the wait cannot end.
    bool found_stuck = false;
    bool found_unschedulable = false;
    int64_t raises_at_ns = 0;
    uint64_t helps_before = 0;  // World::helps when the inquiry began
    std::string chain;
    bool raises = false;         // the wait ends with that
    bool interrupted = false;    // the task was cancelled
    uint64_t question = 0;       // to the daemon, whose answer the body awaits
    Object* creating = nullptr;  // the actor that waits for its name
    bool last_gets = false;      // the driver gets all it still has, and drops it
    bool failed = false;         // a get raised, and the body lets it through
    std::string failure;
    SimulatedReply reply;
    std::vector<std::vector<Object*>> returned;  // references inside the values, until the reply was written
    bool ended = false;
    bool replied = false;
  };

  struct EarlyCancel {
    ProcessId submitter;
    uint64_t task = 0;
    bool force = false;
  };

  void CrashIf(CrashPoint point);

  // link
  void WakeLink();
  void Link();
  void Handle(Message& message);
  void HandlePeerMessage(ProcessId from, const PeerMessage& message);
  void Send(Message message) { outbox_.Send(std::move(message)); }
  void Route(ProcessId to, const PeerMessage& message) { outbox_.Route(to, message); }
  void Flush();
  void OrphanMentions(const Message& message);  // it will not arrive
  void OrphanMentions(const SimulatedReply& reply, ProcessId submitter);
  void OrphanPushed();
  void TaintIfDoomed(const std::vector<ObjectId>& ids);

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
  bool MayTake(const SimulatedTask& task) const { return task.kind != TemplateKind::kCall || constructed_; }
  bool MayLeave() { return exit_asked && owner.live_tasks() == 0 && !owner.AnyBorrowed() && !owner.AnyActors(); }
  [[noreturn]] void Leave();
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
  Object* PickVariable();
  bool MaySubmit() const;
  void NoteSubmitted(uint64_t instance, const TaskSpec& spec, const std::vector<Object*>& returns,
                     const Submission& submission);
  void AddContained(std::vector<Object*>& contained, uint64_t percent, size_t most);
  bool Excused(ObjectId reference, ProcessId from) const;
  void Keep(Object* object);  // in a variable, with a reference of its own

  // actors and cancelling
  void MakeActor();
  void CallActor();
  void LookUpActor();
  void AwaitAnswer(uint64_t question);
  void EndQuestion();
  Object* FindReference(ObjectId id);
  void KillSomeActor();
  void CancelSomething();
  void CancelRunning(ProcessId submitter, uint64_t task, bool force, bool recursive);
  void TakeEarlyCancel();
  void CancelOwned(Object* object, bool force, bool recursive);
  void NoteCancelled(const Task& task);
  void Constructed(bool ok);
  static uint64_t InstanceOf(const Task& task);

  // waiting
  void BeginGet(Object* object);
  void EndGet();
  void HandBackWhileWaiting();
  void ScheduleLook(int64_t delay_ns);
  void Look();
  WaitFact FactOfWait() const;
  ProcessFact FactOfSelf() override;
  void AnswerWhy(ProcessId requester, ObjectId subject, uint64_t request);
  void Inquired(const WaitVerdict& verdict);
  // Inquiries::Host
  void TakeReplies() override { Drain(); }
  void AskShape(uint64_t number, const ResourceAmounts& shape) override;
  void AskWhy(uint64_t number, ObjectId subject) override;
  ObjectFact FactOfObject(ObjectId own) override { return owner.Explain(own); }
  void InquiryEnded(Inquiry& inquiry) override;
  const TaskTemplate* TemplateOf(const TaskSpec& spec);

  const bool driver_;
  const Function* function_;
  Actions actions_;
  Outbox outbox_;
  std::deque<Message> sending_;  // while it flushes
  std::vector<Object*> dropped_;
  std::vector<uint64_t> pending_;  // instances submitted and not seen to be finished
  uint64_t known_finished_ = 0;
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
  uint64_t next_execution_ = 1;
  uint64_t next_question_ = 1;
  Inquiries inquiries_{*this};
  std::unique_ptr<Inquiry> inquiry_;  // of the wait with this number; helps: World::helps when it began
  uint64_t inquiry_wait_ = 0, inquiry_helps_ = 0;
  std::map<uint64_t, ActorAnswer> answers_;
  std::deque<EarlyCancel> early_cancels_;
  ObjectId actor_;
  uint32_t incarnation_ = 0;
  bool constructed_ = false;
  std::set<ProcessId> known_dead_;
  bool link_awake_ = false, executor_awake_ = false;
  int64_t link_not_before_ns_ = 0, executor_not_before_ns_ = 0, drain_not_before_ns_ = 0;
  int64_t drain_at_ns_ = -1;
  int64_t tick_at_ns_ = -1;
};

}  // namespace weft::core
