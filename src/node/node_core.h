// The node daemon's decisions without its descriptors: carries events between the machines (LocalScheduler, WorkerPool,
// ActorDirectory, LeaseRouter, ChannelBroker), the processes of this node and other nodes. No clock, no system call:
// what happens comes in as calls with the time, and it acts through NodeIo and NodeLinks.
//
// Owned by NodeDaemon, on its loop thread, and by the simulator, which so runs what is shipped. What a process or
// another node says is input: nonsense ends that process or is ignored.
//
// A process of another node is a client here as long as it has leases or lease requests here (remote_clients_). Its
// messages come as FromProcess, ours to it go as ForProcess. A channel between two nodes is a connection of its own:
// the submitter's node dials it when the worker's node says that it will be needed, and what follows from the daemon
// for that pair waits until it is there (ChannelBroker).
//
// In six files: node_core.cc (processes and the machines' decisions), node_core_cluster.cc (other nodes),
// node_core_actors.cc, node_core_remote_actors.cc, node_core_detached.cc and node_core_restored.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/actor_directory.h"
#include "actors/actor_names.h"
#include "control_store/tables.h"
#include "node/channel_broker.h"
#include "node/lease_router.h"
#include "node/node_io.h"
#include "node/process_table.h"
#include "node/worker_pool.h"
#include "scheduling/local_scheduler.h"
#include "wire/messages.h"
#include "wire/node_messages.h"
#include "wire/peer_message.h"

namespace weft::core {

// A driver's work on this node, wherever the driver is.
struct NodeJob {
  ProcessId driver;     // names the job
  ProcessId output_to;  // gets what its workers print: its driver, or of a cluster job its founder
  std::unique_ptr<WorkerPool> pool;
  std::unique_ptr<WorkerPool> python_pool;  // Python workers in the job of a C++ program; nullptr: none can be had
  bool leaving = false;                     // its driver has said goodbye
  bool ending = false;                      // the driver is gone, and all that is the job's is being killed

  WorkerPool* PoolOf(bool python_of_cpp_job) { return python_of_cpp_job ? python_pool.get() : pool.get(); }
  bool starts_workers() const { return !leaving && !ending; }
};

class NodeCore {
 public:
  struct Config {
    ResourceAmounts resources;  // of this node
    uint32_t max_workers = 1024;
    LeaseRouter::Place place;
    uint32_t channel_slots = 0;  // of one process
  };

  // Planted bugs, to show that the simulator finds them. All off outside the simulator's own tests.
  struct Faults {
    bool keep_deaths_to_itself = false;         // other nodes do not hear that a process has ended
    bool forget_to_request_again = false;       // a new head hears nothing of what the former was told
    bool freeze_only_the_present = false;       // what is started while the node stands still runs
    bool keep_leases_of_the_gone = false;       // those of processes whose node is gone
    bool declare_only_known_processes = false;  // of a node that is gone, those that somebody here had to do with
    bool serve_the_dead = false;                // leases for processes that have died meanwhile
  };

  NodeCore(NodeIo& io, uint32_t channel_slots) : io_(io), channels_(channel_slots) {}

  // Work can be done from now on. `links`: nullptr in a private session.
  void Open(Config config, NodeLinks* links);
  bool is_open() const { return scheduler_ != nullptr; }
  // Nothing is decided any more.
  void End() { ended_ = true; }

  // ---- jobs

  // Workers up to `keep` stay when they are idle, and `prestart` are started ahead (Prestart). `python_workers`: those
  // of a C++ program's job can be had, too.
  NodeJob& OpenJob(ProcessId driver, uint32_t prestart, uint32_t keep, bool python_workers);
  void Prestart(ProcessId driver, int64_t now_ns);
  // Workers can be made better than those that exist.
  void RenewWorkers(ProcessId driver, int64_t now_ns);
  // Its actors get no workers, until it is said with `on` false.
  void HoldActors(ProcessId driver, bool on, int64_t now_ns);
  // All that is the job's is killed.
  void EndJob(NodeJob& job);
  // None of its processes is left.
  void ForgetJob(ProcessId driver);
  NodeJob* FindJob(ProcessId driver);
  const std::map<ProcessId, NodeJob>& jobs() const { return jobs_; }

  // ---- processes of this node

  ProcessId NextNumber() { return processes_.NextNumber(); }
  LocalProcess& AddDriver(ProcessId id);
  void DriverJoined(ProcessId driver, int64_t now_ns);
  // A start of the worker pool's has succeeded so far.
  void WorkerStarted(ProcessId worker, const WorkerKind& kind);
  void StartFailed(const StartWorker& start, const std::string& why, int64_t now_ns);
  void Start(const StartWorker& start, int64_t now_ns);
  void WorkerBecameReady(ProcessId worker, int64_t now_ns);
  // False: it is not for the core. Settle follows.
  bool MessageCame(ProcessId from, Message& message, int64_t now_ns);
  // Its socket has ended; its exit status is awaited.
  void ProcessClosing(ProcessId process, int64_t now_ns);
  // Everything that it sent was handled before. Settle follows.
  void ProcessIsGone(ProcessId process, int32_t pid, const std::string& how, const std::string& why_not_started,
                     int64_t now_ns);
  void Kill(ProcessId process, const std::string& why);

  // ---- other nodes (node_core_cluster.cc)

  // False: it is not for the core.
  bool NodeMessageCame(NodeNumber from, NodeMessage& message, int64_t now_ns);
  void NodeIsGone(NodeNumber node, const std::string& why, int64_t now_ns);
  // There is a new head, which knows nothing of what the former was told, and has no answers to what that was asked.
  void HeadForgot(int64_t now_ns);
  // A connection for a channel was made, or not: then `why_not` is not empty. `use` is called with the slot of the
  // process of this node, if the connection is wanted.
  void ChannelConnected(ProcessId submitter, ProcessId worker, bool dialled, const std::string& why_not,
                        const std::function<void(uint32_t slot)>& use, int64_t now_ns);
  // What others would start again if this node were dead stands still, until it is known to be a member. Gives how many
  // processes were stopped.
  size_t FreezeWork();
  void ThawWork();
  // On a head that begins: what an earlier one has persisted of detached actors.
  void Restore(uint64_t epoch, std::vector<ActorRecord> actors, std::vector<JobRecord> jobs, int64_t now_ns);

  // ---- time

  // Performs what the machines have decided.
  void Settle(int64_t now_ns);
  void Tick(int64_t now_ns);
  int64_t next_wakeup_ns() const;
  // At the end of each turn of the loop: what the head should know and does not, and whoever must stand still.
  void EndTurn(int64_t now_ns);

  // ---- questions

  bool IsElsewhere(ProcessId process) const {
    return links_ != nullptr && NodeOf(process) != links_->self() && (process.value & kObserverBit) == 0;
  }
  // As far as this node has heard.
  bool HasDied(ProcessId process) const;
  // Somebody on another node would start it again if this node were dead.
  bool CouldRunElsewhere(const LocalProcess& process) const;
  ShapeFact Explain(const ResourceAmounts& shape);
  LocalProcess* Find(ProcessId process) { return processes_.Find(process); }
  const ProcessTable& processes() const { return processes_; }
  const LocalScheduler& scheduler() const { return *scheduler_; }
  const ActorDirectory& directory() const { return directory_; }
  const ResourceAmounts& resources() const { return resources_; }
  void CheckInvariants() const;

  // ---- for the daemon

  void StartNumbersAt(uint64_t number) { processes_.StartNumbersAt(number); }
  // To a process of this node or another.
  void Answer(ProcessId process, const Message& message);
  void SendElsewhere(ProcessId process, const Message& message);
  // Ranges in segments of this node or others. `sender`: a process of this node, or 0.
  void FreeRanges(const std::vector<Location>& locations, ProcessId sender);
  void TellHeadOfJob(ProcessId driver);
  void TellLoadAgain() { router_->TellLoadAgain(); }

  Faults faults;
  void SetFaults(const LocalScheduler::Faults& scheduler, const ActorDirectory::Faults& directory,
                 const LeaseRouter::Faults& router);

 private:
  // ---- messages of processes
  void Handle(LocalProcess& process, RequestLeases& message);
  void Handle(LocalProcess& process, ReturnLease& message);
  void Handle(LocalProcess& process, Blocked& message);
  void Handle(LocalProcess& process, Unblocked& message);
  void Handle(LocalProcess& process, RouteTo& message);
  void Handle(LocalProcess& process, FreeObjects& message);
  void Handle(LocalProcess& process, AskShape& message);
  void Handle(LocalProcess& process, ChannelLost& message);
  void Handle(LocalProcess& process, CreateActor& message);
  void Handle(LocalProcess& process, PlaceActor& message);
  void Handle(LocalProcess& process, LookupActor& message);
  void Handle(LocalProcess& process, ListActors& message);
  void Handle(LocalProcess& process, WatchActor& message);
  void Handle(LocalProcess& process, ReleaseActor& message);
  void Handle(LocalProcess& process, KillActor& message);
  void Handle(LocalProcess& process, ActorConstructed& message);
  void Handle(LocalProcess& process, ActorExiting& message);
  void Handle(LocalProcess& process, KeepActor& message);
  void Handle(LocalProcess& process, HandOverActor& message);

  // ---- decisions of the machines
  void Perform(const GrantLease& action);
  void Perform(const RecallLease& action);
  void Perform(const RefuseLeases& action);
  void Perform(const WantWorkers& action);
  void Perform(const SetDemand& action);
  void Perform(const KillWorker& action);
  void Perform(const GrantActor& action);
  void Perform(const RefuseActor& action);
  void Perform(const WantActor& action);
  void Perform(const UnwantActor& action);
  void Perform(const SettleActor& action);
  void Perform(const TellWatcher& action);
  void Perform(const AnswerCreator& action);
  void Perform(const AnswerList& action);
  void Perform(const KillActorWorker& action);
  void Perform(const LetWorkerLeave& action);
  void Perform(const RefuseSender& action);
  void Perform(const FreeName& action);
  void Perform(const StartWorker& action);
  void Perform(const RetireWorker& action);
  void Perform(const AbandonStart& action);
  void Perform(const GiveUpStarting& action);
  template <class Actions>
  void PerformAll(Actions& actions);
  void SettleNow();

  WorkerPool& PoolOf(const LocalProcess& worker);
  void Send(const LocalProcess& process, const Message& message) { io_.Send(process.id, message); }
  // Workers that have resumed take their lent CPUs back before anything is decided.
  void RereadBlockedFlags();
  void TakeLoan(ProcessId worker);
  bool NothingRuns() const;  // every leased worker waits, or has nothing to do
  bool OpenChannel(ProcessId submitter, ProcessId worker);
  void EndLease(ProcessId holder, LeaseId lease);
  // Before it is told of one.
  static void CountGrant(LocalProcess& process, const ResourceAmounts& shape);
  void TellOfActorsThatEndWith(ProcessId process, int32_t pid, const std::string& how);
  // Of this node or another.
  void AnnounceDeath(ProcessId process, int32_t pid, const std::string& how);

  // ---- other nodes (node_core_cluster.cc)
  void HandleNode(NodeNumber from, JobDescribed& message);
  void HandleNode(NodeNumber from, WorkAssigned& message);
  void HandleNode(NodeNumber from, RequestAssigned& message);
  void HandleNode(NodeNumber from, RequestRefused& message);
  void HandleNode(NodeNumber from, ForProcess& message);
  void HandleNode(NodeNumber from, FromProcess& message);
  void HandleNode(NodeNumber from, RoutedAcross& message);
  void HandleNode(NodeNumber from, ProcessVanished& message);
  void HandleNode(NodeNumber from, ChannelWanted& message);
  void HandleNode(NodeNumber from, ChannelBroken& message);
  void HandleNode(NodeNumber from, ActorOffered& message);
  void HandleNode(NodeNumber from, ActorNotPlaced& message);
  void HandleNode(NodeNumber from, EndActorWorker& message);
  void HandleNode(NodeNumber from, ConstructActor& message);
  void HandleNode(NodeNumber from, NameAsked& message);
  void HandleNode(NodeNumber from, NameAnswered& message);
  void HandleNode(NodeNumber from, NameReleased& message);
  void HandleNode(NodeNumber from, JobEnded& message);
  void HandleNode(NodeNumber from, DetachedHeld& message);
  void HandleNode(NodeNumber from, DetachedTold& message);
  void SendToHead(const NodeMessage& message) { links_->Send({}, message); }
  // A node besides `except` has that much in all.
  bool AnyFits(const ResourceAmounts& shape, NodeNumber except) const;
  void SendFor(const LocalProcess& process, NodeNumber node, const NodeMessage& message);
  void GrantCame(NodeNumber from, ProcessId process, Message message);
  void LeaseWasGranted(ProcessId process, const ResourceAmounts& shape);
  void WantChannel(ProcessId submitter, ProcessId worker);
  void GrantElsewhere(const GrantLease& action);
  void NotConnected(ChannelBroker::Pair pair, const std::string& why_not);
  void EndUnreachable(ProcessId worker, ProcessId other);
  void RemoteProcessDied(ProcessId id, int32_t pid, const std::string& how);
  void JoinAsClient(ProcessId process, ProcessId job);
  void TellHead();
  size_t FreezeWhatIsNew();
  bool MayBeServedElsewhere(const ResourceAmounts& shape) const;
  // Opens it if the head can say how; nullptr: it cannot.
  NodeJob* EnsureJob(ProcessId driver);
  void AskHead(LocalProcess& process, const Message& message);
  void RememberQuestion(const LocalProcess& process, const Message& message, const std::string& encoded);
  void AskAgain();

  // ---- actors of several nodes (node_core_remote_actors.cc)
  // Where the actor's state is known: the node of its creator; of a detached one, the head (0).
  bool IsHome(ObjectId actor) const;
  NodeNumber HomeOf(ObjectId actor) const;
  void AskElsewhere(LocalProcess& process, ObjectId actor, const Message& message);
  void TellElsewhere(const TellWatcher& action);
  // To a process of this node that watches; the channel to the actor's worker first.
  void DeliverChange(const LocalProcess& watcher, const ActorChanged& change);
  void TellUnreachable(const LocalProcess& watcher, const ActorChanged& change, const std::string& why);
  // True if only the head may place it: it is asked, and the local scheduler hears nothing of it.
  bool AskHeadForPlace(const WantActor& action, ProcessId creator);
  bool PlaceActorAtHome(ObjectId actor);
  void PlaceRemoteActor(WorkAssigned& message);
  void DeclineRemoteActor(ObjectId actor);
  bool OfferActor(const GrantActor& action, LocalProcess& worker);
  bool RefuseRemoteActor(const RefuseActor& action);
  bool TellHome(LocalProcess& worker, ObjectId actor, const Message& message);
  void EndRemoteWorkersOf(NodeNumber home, const std::string& why);
  void TellWatchersOfLostHome(NodeNumber node, const std::string& why);
  void TellHeadOfActors();
  void ForgetActorRequest(ObjectId actor);
  void RequestActorsAgain();
  bool ActorRequestRefused(const RequestRefused& message);

  // ---- names and detached actors (node_core_detached.cc, node_core_restored.cc)
  void AskForName(LocalProcess& process, CreateActor& message);
  void AskForNamesAgain();
  // True if its creation waits for the head, and the message with it.
  bool WaitsForName(const LocalProcess& process, ObjectId actor, const Message& message);
  void LookUp(ProcessId process, const LookupActor& message);
  void ListNames(ProcessId process, const ListActors& message);
  void CreateDetached(ProcessId creator, ProcessId driver, CreateActor& message);
  ProcessId ClusterJobOf(ProcessId driver, const JobDescribed& described);
  void ActorHandedOver(ProcessId from, HandOverActor& message);
  void EndActorsNotHandedOver(ProcessId creator);
  void TellKeeper(const ActorChanged& change);
  void EndClusterJob(ProcessId id);
  void EndJobOfNobody(ProcessId job, ObjectId last, bool was_persisted);
  void Persist(ObjectId actor, std::function<void()> then);
  void Delete(ObjectId actor, bool was_persisted, ProcessId job, bool job_ends);
  void RestoreJob(JobRecord& record);
  void RestoreActor(ActorRecord& record);
  void ToldOrGone(NodeNumber node);
  void StartTheMissed();
  void TellOfDetached();
  void Construct(const ConstructActor& message);

  // Actors whose worker, home and callers are on different nodes.
  struct RemoteWanted {  // its home is another node
    NodeNumber home;
    ProcessId creator;
    std::string class_name;
    uint64_t request = 0;
    uint64_t placement = 0;
  };
  struct RemoteWorker {
    ObjectId actor;
    NodeNumber home;
    AssignedGpus gpus;
    // Of a detached one, for a new head:
    uint32_t incarnation = 0;  // 0: nobody has had it constructed yet
    bool constructed = false;
    bool failed = false;   // its constructor has
    bool exiting = false;  // it has said so
  };
  struct RemoteActors {
    std::map<ObjectId, RemoteWanted> wanted;          // the local scheduler looks for a worker
    std::map<ProcessId, RemoteWorker> workers;        // ours
    std::map<ObjectId, std::set<ProcessId>> watched;  // by ours
    // Actors that have us for their home, and wait at the head; and those among them that only the head may place.
    std::map<ObjectId, LocalScheduler::UnmetActor> for_head;
    std::map<ObjectId, uint64_t> requests;
    std::map<uint64_t, ObjectId> of_requests;
    uint64_t told_decisions = 0;           // of the local scheduler
    std::map<ObjectId, ProcessId> exited;  // detached actors that have, since this node has this head
  };
  struct Naming {
    CreateActor message;
    std::vector<Message> later;  // from its creator
  };
  // On the head: names, and detached actors that are not dead.
  struct Kept {
    ProcessId creator;
    ProcessId driver;      // of the creator
    ProcessId job;         // the cluster job
    uint64_t request = 0;  // of the creator, until it is answered
    std::string recipe;    // empty: its arguments are not there yet
    ActorRecord record;    // what else is persisted of it
    bool persisted = false;
  };
  struct DetachedActors {
    std::map<ObjectId, Kept> kept;
    std::map<ProcessId, ProcessId> cluster_jobs;  // by driver
    uint64_t next_actor = 1;
    uint64_t next_job = 1;
    std::set<ProcessId> persisted_jobs;
    std::set<ProcessId> told_of_store;  // drivers that know why their detached actors wait
    std::set<NodeNumber> untold;        // members of an earlier head that have not said which actors they have
  };

  NodeIo& io_;
  NodeLinks* links_ = nullptr;
  ResourceAmounts resources_;
  int64_t now_ns_ = 0;  // of the event that is being handled
  bool ended_ = false;
  bool settling_ = false;
  bool frozen_ = false;  // what could run elsewhere stands still
  ProcessTable processes_;
  std::map<ProcessId, NodeJob> jobs_;  // by driver
  std::unique_ptr<LocalScheduler> scheduler_;
  ActorDirectory directory_;
  std::unique_ptr<LeaseRouter> router_;
  ChannelBroker channels_;
  std::vector<SchedulerAction> scheduler_actions_;
  std::vector<DirectoryAction> directory_actions_;
  std::vector<PoolAction> pool_actions_;
  std::map<ProcessId, ProcessId> remote_clients_;  // processes of other nodes that the scheduler knows, and their jobs
  std::set<ProcessId> remote_peers_;               // that ours share or shared a channel with
  std::set<ProcessId> told_jobs_;                  // the head was told how their workers are started
  std::map<std::pair<ProcessId, uint64_t>, std::string> asked_head_;  // processes, and their questions, by request
  RemoteActors remote_;
  std::map<ObjectId, Naming> naming_;  // the head was asked for the name
  ActorNames names_;                   // on the head
  DetachedActors detached_;            // on the head
};

}  // namespace weft::core
