// What everything in one simulation shares: virtual time, chance, faults, the trace, and the truth that no single
// process knows: what each task is, how often its body started, what it produced, which memory is in use. Processes and
// the daemon report to it what they do; it fails the simulation as soon as something happens that must not.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "runtime/owner.h"
#include "simulator/coverage.h"
#include "simulator/event_queue.h"
#include "simulator/script.h"
#include "simulator/simulated_channel.h"
#include "simulator/simulation.h"

namespace weft::core {

class SimulatedProcess;
class SimulatedCluster;
class SimulatedDaemon;

// Thrown where a promise was found broken; ends the simulation.
struct SimulationFailed {
  std::string why;
};
// Thrown inside a process where it dies; ends what it was doing.
struct ProcessCrashed {};

// One submission of a task.
struct Submitted {
  TaskSpec spec;
  ProcessId submitter;
  uint64_t handle = 0;  // known once it was pushed
  std::vector<ObjectId> returns;
  std::vector<ObjectId> dependencies, contained;
  uint32_t starts = 0;  // of its body
  uint32_t lost = 0;    // attempts that went with their worker
  uint32_t raised = 0;  // attempts whose exception asked for a retry
  bool finished = false;
  bool cancel_asked = false;
  ObjectId actor;                                // of a call or a constructor
  std::map<uint32_t, uint32_t> starts_in;        // by the actor's incarnation
  std::map<ProcessId, SimulatedReply> produced;  // by whom
  bool replied = false;                          // below: the reply that its submitter took
  SimulatedReply reply;
  uint32_t replied_in = 0;  // of an actor's call: in which incarnation
};

// What is known of an object beyond its owner.
struct KnownObject {
  uint64_t instance = 0;  // of the task that makes it; 0: it was put
  uint32_t number = 0;    // which return
  bool resolved = false;
  bool vanished = false;  // freed in the moment it ended, before anybody could look
  SimulatedValue outcome;
};

// What is known of an actor beyond its owner and the daemon. Named, as everywhere, by its handle object.
struct KnownActor {
  ActorSpec spec;
  ProcessId creator;
  uint64_t constructor = 0;  // its instance
  bool abandoned = false;    // its name was taken
  bool killed = false;       // for good, and the daemon knows
  bool dead = false;         // the daemon says so
  ProcessId worker;          // the daemon's word
  uint32_t incarnation = 0;
  std::map<std::pair<uint32_t, ProcessId>, uint64_t> last_calls;  // by incarnation and caller: what was begun last
  std::map<ProcessId, uint64_t> killed_by;                        // for good; calls from this instance on must not run
};

struct StoredRange {
  ObjectId id;
  ProcessId writer;
  bool delivered = false;  // its owner knows of it
  bool let_go = false;     // by its owner
  bool freed = false;
};

class World {
 public:
  explicit World(const SimulationOptions& options);
  ~World();

  // ---- time and chance
  int64_t now() const { return queue.now(); }
  int64_t Delay();      // of a step that somebody will make soon
  int64_t LongDelay();  // of one that may be put off
  // Runs `what` in `process` if it lives then; later if it is paused.
  void Later(SimulatedProcess* process, int64_t delay_ns, Happening reason, std::function<void()> what);
  void Note(const char* what, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0);
  [[noreturn]] void Fail(const std::string& why);

  // ---- faults
  bool faulty() const { return !healed; }
  // True: the process dies here.
  bool CrashesAt(CrashPoint point);
  // Something was sent; nullptr is the other's daemon. A planned fault may strike; the result is an extra delay.
  int64_t Sent(Happening happening, SimulatedProcess* sender, SimulatedProcess* receiver);
  void Handled(Happening happening, int64_t sent_ns);
  void ScheduleFaults();
  void Heal();

  // ---- processes
  SimulatedProcess* Find(ProcessId id);
  // Of the node that the process belongs to; nullptr if that has ended.
  SimulatedDaemon* DaemonOf(ProcessId id);
  SimulatedDaemon* DaemonOf(NodeNumber node);
  bool Alive(ProcessId id);
  bool Trusted(ProcessId id);  // alive, and neither declared dead nor about to be killed
  SimulatedChannel* OpenChannel(ProcessId submitter, ProcessId worker);
  // Channels between nodes: what is written arrives later, or never.
  bool IsFar(const SimulatedChannel& channel) const;
  void SendAcross(SimulatedChannel& channel, ProcessId from, std::function<void()> arrives);
  void SendReply(SimulatedChannel& channel, SimulatedReply reply, int64_t delay_ns, int64_t extra_ns);
  void CloseChannel(SimulatedChannel& channel, ProcessId by);

  // ---- truth
  void Submit(uint64_t instance, const TaskSpec& spec, ProcessId submitter, const std::vector<Object*>& returns,
              const Submission& submission);
  void Put(ObjectId id, SimulatedValue value);
  void BodyStarted(const SimulatedTask& frame, SimulatedProcess& worker);
  void Produced(const SimulatedReply& reply, SimulatedProcess& worker);
  // The owner has this value for the object now, for good.
  void CheckOutcome(Submitted& task, uint32_t i, const SimulatedValue& value);
  // A process looks at a value, which came to it by whatever way.
  void CheckRead(SimulatedProcess& reader, ObjectId id, const SimulatedValue& value);
  void CheckStored(SimulatedProcess& reader, const Location& location, const char* what);
  void CheckHeld();  // nothing that somebody uses was freed

  // ---- the truth about actors (world_actors.cc)
  void ActorSubmitted(ObjectId actor, const ActorSpec& spec, ProcessId creator, uint64_t constructor);
  void ConstructorStarted(const SimulatedTask& frame, SimulatedProcess& worker);
  void CallStarted(const SimulatedTask& frame, SimulatedProcess& worker);
  void KillAsked(ObjectId actor, bool no_restart, ProcessId by);
  void CancelAsked(ObjectId object);
  void CancelAsked(uint64_t instance);
  // What the daemon decides.
  void ActorPlaced(ObjectId actor, ProcessId worker);
  void ActorWanted(ObjectId actor);
  void ActorToldOf(const ActorChanged& change);
  void NameAnswered(const CreateActor& asked, const ActorAnswer& answer);
  void NameFound(const std::string& name, const ActorAnswer& answer);
  std::string WhyCallMayNotFailSo(const Submitted& task, const SimulatedValue& value);
  bool MayHaveEndedSo(const KnownObject& object, ProcessId owner, const SimulatedValue& value);
  // At rest, before the detached are ended: those that should have ended by themselves have. The rest is returned.
  std::vector<ObjectId> CheckActorsAtRest();
  // Something came from outside that may end a wait which could not have ended by itself.
  void Helped() { ++helps; }
  bool IsActor(ObjectId id) const { return actors.contains(id); }
  // A reference may have been handed to a living actor without its owner's knowledge, because who handed it on died in
  // between. A known gap: whoever leases a worker takes it along, but callers of an actor do not.
  void Taint(ObjectId id) { tainted.insert(id); }
  bool Tainted(ObjectId id) const { return tainted.contains(id); }

  void LetGo(SimulatedProcess& owner, const Location& location);
  void Freed(const Location& location);
  void CheckRest();
  void CheckNames();
  // A process told the owner that `receiver` borrows the object, and may have died before it handed it over: the owner
  // counts a borrower that knows nothing of it. A known gap; such objects stay until the receiver ends.
  void MentionOrphaned(ObjectId object, ProcessId receiver) { orphaned.insert({object, receiver}); }
  // From one node to another (crossing).
  void MentionsSent(std::string_view routed);
  void MentionsCame(std::string_view routed);
  std::string Dump();

  SimulationOptions options;
  Random random;
  EventQueue queue;
  Coverage coverage;
  NodeCoverage node_coverage;
  Workload workload;
  // By the number of their node, which in a simulation of one node is 0. Those that have ended are kept, too.
  std::map<NodeNumber, std::unique_ptr<SimulatedDaemon>> daemons;
  std::unique_ptr<SimulatedCluster> cluster;  // nullptr: one node
  ProcessId driver;                           // 0: its node has not joined yet
  std::map<ProcessId, std::unique_ptr<SimulatedProcess>> processes;
  std::map<std::pair<ProcessId, ProcessId>, std::unique_ptr<SimulatedChannel>> channels;
  std::map<uint64_t, Submitted> tasks;  // by instance
  std::map<ObjectId, KnownObject> objects;
  std::map<Location, StoredRange> store;
  std::map<ObjectId, KnownActor> actors;
  std::set<ObjectId> tainted;
  // Handles that their owner may let go although somebody knows them: those that were found by name, until it hears of
  // it, and those that the actor itself knows and may hand on, as an actor that knows itself does not keep itself.
  std::set<ObjectId> loose;
  uint64_t helps = 0;
  std::set<std::pair<ObjectId, ProcessId>> orphaned;
  // In replies and mentions between nodes that have not arrived; at rest: that were lost with their connection or with
  // the sender's node. The same gap, and its reverse: the owner hears of what was given back, and not of the borrower.
  std::multiset<std::pair<ObjectId, ProcessId>> crossing;
  uint64_t next_instance = 1;
  int64_t last_activity_ns = 0;  // of any process
  uint64_t next_offset = 0;
  uint32_t tasks_left = 0;
  uint32_t actors_left = 0, holders_left = 0;
  uint64_t trace_hash = 0xcbf29ce484222325ull;
  bool healed = false;
  bool closing = false;  // the driver's program has ended: user code keeps nothing any more
  int64_t healed_ns = 0;
  bool gave_up_starting = false;  // so tasks may have been refused

  // How rough this simulation is.
  bool calm = false;
  uint32_t tail_percent = 0;  // of the delays are long
  int64_t tail_ns = 0;
  uint32_t refuse_percent = 0;  // pushes refused without need
  uint32_t hand_back_percent = 0;
  uint32_t forget_percent = 0;  // results forgotten
  uint32_t fail_start_percent = 0;
  bool asynchronous = false;   // channels
  int64_t first_look_ns = 0;   // after which a wait is looked into
  int64_t slow_answer_ns = 0;  // at most, until somebody says why something waits
  size_t room = 0;             // in a channel
  size_t most_pushed = 0;      // to one worker

 private:
  struct PlannedCrash {
    CrashPoint point;
    uint32_t after;  // so many times past it
  };
  struct PlannedFault {
    FaultKind kind;
    Happening happening;
    uint32_t after;
  };
  std::set<ObjectId> Leftovers();  // checked: only what nobody could have freed
  bool Same(const SimulatedValue& a, const SimulatedValue& b) const;
  void RunIn(SimulatedProcess* process, Happening reason, const std::function<void()>& what);

  std::vector<PlannedCrash> planned_crashes_;
  std::vector<PlannedFault> planned_faults_;
  uint64_t checks_ = 0;
};

}  // namespace weft::core
