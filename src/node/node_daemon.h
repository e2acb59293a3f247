// The node daemon: serves drivers and the workers that it starts for them. That of a private session serves one driver
// and ends with it.
//
// One thread, one loop, no mutex. It decides nothing itself: leases are the LocalScheduler's business, actors the
// ActorDirectory's, starting workers the WorkerPool's, memory the MemoryBudget's; this class carries messages between
// them and the processes, and watches over lives. What a process sends is input: nonsense ends that process's
// connection and with it the process, never the daemon.
//
// A process's life here: connecting (first message awaited), ready, closing (its socket has ended; the exit status is
// awaited for a moment, so that its death can be announced with the reason), gone. Everybody hears of its death;
// whoever routes to it later hears it again.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/actor_directory.h"
#include "actors/actor_names.h"
#include "base/result.h"
#include "control_store/tables.h"
#include "node/channel_broker.h"
#include "node/cluster.h"
#include "node/job.h"
#include "node/lasting_node.h"
#include "node/object_exchange.h"
#include "node/observers.h"
#include "node/program_files.h"
#include "node/sent_wishes.h"
#include "node/worker_pool.h"
#include "object_store/memory_budget.h"
#include "object_store/orphan_table.h"
#include "object_store/segment_keeper.h"
#include "os/child_process.h"
#include "os/event_loop.h"
#include "scheduling/local_scheduler.h"
#include "transport/doorbell.h"
#include "transport/message_stream.h"
#include "wire/messages.h"

namespace weft::core {

class NodeDaemon : private Cluster::Host, private ObjectExchange::Host, private ProgramFiles::Host {
 public:
  // `driver` is the socket to the driver. The calling process must have one thread.
  static Result<std::unique_ptr<NodeDaemon>> Create(UniqueFd driver);
  // A node that drivers come to and leave. Ends by SIGTERM.
  // `started` is called once: with the address of the cluster's head, or with why it could not be.
  using Started = std::function<void(Result<std::string>)>;
  static Result<std::unique_ptr<NodeDaemon>> CreateLasting(const LastingNodeOptions& options, Started started);
  ~NodeDaemon();

  // Serves until the driver is gone or says farewell, then kills and reaps everything that was started. Returns the
  // exit code: 0 for an orderly end, 1 if the driver sent what cannot be understood.
  int Run();
  // After Run: it has ended because it lost its place in the cluster. It may join again, as a new node.
  bool left_cluster() const { return left_cluster_; }
  // After Run: the head could not be reached, or did not want it. Not if it was told to end.
  bool never_joined() const { return refused_; }

 private:
  // The end of what a worker has printed, for those who ask later.
  struct OutputTail {
    std::string text;
    void Append(std::string_view more);
  };
  struct DeadProcess {
    ProcessInfo info;
    SharedFd events;
    OutputTail output[2];
  };
  struct Process {
    enum class Stage : uint8_t { kConnecting, kReady, kClosing };
    ProcessId id;
    Stage stage = Stage::kConnecting;
    bool is_driver = false;
    ProcessId job;                   // its driver's number
    bool python_of_cpp_job = false;  // see WorkerKind
    bool warm = false;               // forked by the warm zygote
    std::unique_ptr<MessageStream> stream;
    EventLoop::WatchId watch = 0;
    std::set<ProcessId> waits_for;  // not read from until these take what it sent them

    pid_t pid = 0;          // known to be a child of ours or of our zygote; 0: not known yet
    pid_t claimed_pid = 0;  // what it says; for display only
    std::optional<int> exit_status;
    int64_t closing_since_ns = 0;
    bool kill_sent = false;
    bool frozen = false;                          // stopped by FreezeWork
    std::map<ResourceAmounts, uint64_t> granted;  // leases that it was told of, in all, by shape
    std::string zygote_end;                       // how its zygote ended, if that was before we learned the pid
    std::string note;                             // why we killed it, for the announcement

    SharedFd doorbell_fd;
    std::shared_ptr<PeerDoorbell> doorbell;
    std::set<SegmentId> opened;  // that it has mapped

    std::string last_stderr;  // until it is ready: explains a failed start
    std::string actor_class;  // of the actor that lives in it
    SharedFd events;          // its event log; none if events are switched off
    OutputTail output[2];     // stdout, stderr
  };

  // Time for an exit status to arrive after the socket has ended; then the process is killed, which a process that
  // only closed its descriptors needs; then its death is announced in any case. In sum well under a second.
  static constexpr int64_t kStatusWaitNs = 150'000'000;
  static constexpr int64_t kKillWaitNs = 300'000'000;

  explicit NodeDaemon(EventLoop loop);
  static Result<std::unique_ptr<NodeDaemon>> Prepare();
  Status AddDriver(UniqueFd socket);
  void OnDriverConnected();

  // ---- messages
  void OnProcessEvent(ProcessId id, uint32_t epoll_events);
  void ReadFrom(Process& process, bool to_the_end);
  void HandleMessage(Process& process, ReceivedMessage received);
  void Handle(Process& process, OpenSession& message);
  void Handle(Process& process, WorkerReady& message);
  void Handle(Process& process, RequestLeases& message);
  void Handle(Process& process, ReturnLease& message);
  void Handle(Process& process, Blocked& message);
  void Handle(Process& process, Unblocked& message);
  void Handle(Process& process, OpenSegment& message);
  void Handle(Process& process, ReserveMemory& message);
  void Handle(Process& process, ReleaseMemory& message);
  void Handle(Process& process, RouteTo& message);
  void Handle(Process& process, FreeObjects& message);
  void Handle(Process& process, CloseSession& message);
  void Handle(Process& process, CreateActor& message);
  void Handle(Process& process, PlaceActor& message);
  void Handle(Process& process, LookupActor& message);
  void Handle(Process& process, ListActors& message);
  void Handle(Process& process, WatchActor& message);
  void Handle(Process& process, ReleaseActor& message);
  void Handle(Process& process, KillActor& message);
  void Handle(Process& process, ActorConstructed& message);
  void Handle(Process& process, ActorExiting& message);
  void Handle(Process& process, AskShape& message);
  void Handle(Process& process, KeepActor& message);
  void Handle(Process& process, FetchObject& message);
  void Handle(Process& process, ChannelLost& message);
  void Handle(Process& process, ReleaseObject& message);
  void Handle(Process& process, HandOverActor& message);
  void Handle(Process& process, ShareLibrary& message);
  void Handle(Process& process, FindLibrary& message);
  void Handle(Process& process, OrphansFound& message);
  void Handle(Process& process, HeldObjects& message);
  void Handle(Process& process, HoldsEnded& message);
  void Handle(Process& process, HoldOrphan& message);
  void HandleSegmentCreated(Process& process, SegmentCreated& message, UniqueFd fd);
  // Its peer sent what no correct process sends.
  void Refuse(Process& process, const std::string& why);
  void Send(Process& process, const Message& message, std::vector<SharedFd> fds = {});
  // For messages that a sender causes: it is not read from while the target is far behind.
  void Forward(Process& sender, Process& target, const Message& message);
  void FlushAll();
  void ResumeSendersTo(ProcessId target);
  void UpdateInterest(Process& process);
  bool Welcomed(Process& process);  // makes the doorbell and greets; false if that failed

  // ---- decisions of the machines
  void Settle();
  void Perform(const GrantLease& action);
  void Perform(const RecallLease& action);
  void Perform(const RefuseLeases& action);
  void Perform(const WantWorkers& action);
  // Of a worker that is known.
  WorkerPool& PoolOf(ProcessId worker);
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
  void Perform(const MemoryBudget::Grant& action);
  void Perform(const MemoryBudget::Refuse& action);
  void Perform(const MemoryBudget::AskTrim& action);
  void Perform(const OrphanTable::Ask& action);
  void Perform(const OrphanTable::Free& action);
  void Perform(const OrphanTable::AnswerNode& action);
  void Perform(const OrphanTable::TellNodeEnded& action);
  // Workers that have resumed take their lent CPUs back before anything is decided.
  void RereadBlockedFlags();
  void TakeLoan(Process& process);
  bool NothingRuns() const;  // every leased worker waits, or has nothing to do
  bool OpenChannel(Process& submitter, Process& worker);
  void EndLease(ProcessId holder, LeaseId lease);
  // Before it is told of one.
  static void CountGrant(Process& process, const ResourceAmounts& shape);

  // ---- lives
  Status Launch(ProcessId worker, const WorkerKind& kind);
  Status EnsureZygote(Job& job, JobZygote& zygote);
  void StartWarmZygote(Job& job);
  void WarmZygoteEnded(Job& job, int status, const std::string& how);
  void PreloadSettled(Job& job, Preload preload);
  void Prestart(Job& job);
  void Warn(const Job& job, const std::string& text);
  void AdoptClaimedPid(Process& process);
  void OnZygoteEvent(Job& job, JobZygote& zygote);
  void ZygoteEnded(Job& job, JobZygote& zygote, int status);
  void OnSignal();
  void ReapChildren();
  void OnExit(pid_t pid, int status);
  void Kill(Process& process, std::string note);
  void BeginClosing(Process& process);
  // Somebody on another node would start it again if this node were dead.
  bool CouldRunElsewhere(const Process& process) const;
  size_t FreezeWhatIsNew();  // how many processes
  void Bury(ProcessId id);
  void CheckClosing();
  std::string DescribeDeath(const Process& process) const;
  void EndSession(int exit_code, const std::string& why = "");  // why: for the drivers that are still here
  void LeaveWhenAlone(Job& job);
  // Its driver has gone, or must go: all that is the job's ends. A private session ends with it.
  void EndJob(ProcessId driver, int exit_code);
  void ForgetEndedJobs();
  void KillEverything();

  void TellOfActorsThatEndWith(ProcessId process, int32_t pid, const std::string& how);

  // ---- other nodes (node_daemon_cluster.cc)
  void ClusterJoined(NodeNumber self) override;
  void ClusterRefused(const std::string& why) override;
  void ClusterAwaited() override;
  void HeadForgot() override;
  void ClusterLeft(const std::string& why) override;
  void FreezeWork(const std::string& why) override;
  void ThawWork() override;
  void NodeMessageCame(NodeNumber from, NodeMessage& message) override;
  void NodeIsGone(NodeNumber node, const std::string& why) override;
  void ChannelConnected(ProcessId submitter, ProcessId worker, bool dialled, Result<UniqueFd> socket) override;
  uint8_t* ChunkBegan(NodeNumber from, const ChunkHead& head, size_t bytes) override;
  void ChunkEnded(NodeNumber from, const ChunkHead& head, size_t bytes) override;
  void LinkBroken(NodeNumber node) override;
  void NodeHasRoom(NodeNumber node) override;
  void SendFor(Process& process, NodeNumber node, const NodeMessage& message);
  void TellProcess(ProcessId process, const Message& message) override;
  void FreeNow(const std::vector<Location>& locations) override;
  void HandleNode(NodeNumber from, JobDescribed& message);
  void HandleNode(NodeNumber from, WorkAssigned& message);
  void HandleNode(NodeNumber from, WishServed& message);
  void HandleNode(NodeNumber from, WishRefused& message);
  void HandleNode(NodeNumber from, ForProcess& message);
  void HandleNode(NodeNumber from, FromProcess& message);
  void HandleNode(NodeNumber from, RoutedAcross& message);
  void HandleNode(NodeNumber from, ProcessVanished& message);
  void HandleNode(NodeNumber from, ChannelWanted& message);
  void HandleNode(NodeNumber from, ActorOffered& message);
  void HandleNode(NodeNumber from, ActorNotPlaced& message);
  void HandleNode(NodeNumber from, EndActorWorker& message);
  void HandleNode(NodeNumber from, ConstructActor& message);
  void HandleNode(NodeNumber from, NameAsked& message);
  void HandleNode(NodeNumber from, NameAnswered& message);
  void HandleNode(NodeNumber from, NameReleased& message);
  void HandleNode(NodeNumber from, JobEnded& message);
  void HandleNode(NodeNumber from, AskNodes& message);
  void HandleNode(NodeNumber from, NodesTold& message);
  void Open();
  bool IsElsewhere(ProcessId process) const;
  // As far as we have heard.
  bool HasDied(ProcessId process) const;
  void SendElsewhere(ProcessId process, const Message& message);
  void WantChannel(ProcessId submitter, ProcessId worker);
  void GrantElsewhere(const GrantLease& action);
  void RemoteProcessDied(ProcessId id, int32_t pid, const std::string& how);
  void EndProcessesOf(Job& job);
  void FreeHere(const std::vector<Location>& locations, Process* sender);
  void FreeInSegment(SegmentId segment, std::vector<Location> locations, Process* sender);
  void TellHead();
  void TellHeadOfJob(ProcessId driver);
  // Opens it if the head can say how; nullptr: it cannot.
  Job* EnsureJob(ProcessId driver);

  // ---- actors of several nodes (node_daemon_far_actors.cc)
  // Where the actor's state is known: the node of its creator; of a detached one, the head (0).
  bool IsHome(ObjectId actor) const;
  NodeNumber HomeOf(ObjectId actor) const;
  void AskElsewhere(Process& process, ObjectId actor, const Message& message);
  void TellElsewhere(const TellWatcher& action);
  // To a process of this node that watches; the channel to the actor's worker first.
  void DeliverChange(Process& watcher, const ActorChanged& change);
  void TellUnreachable(Process& watcher, const ActorChanged& change, const std::string& why);
  void PlaceFarActor(WorkAssigned& message);
  void DeclineFarActor(ObjectId actor);
  bool OfferActor(const GrantActor& action, Process& worker);
  bool RefuseFarActor(const RefuseActor& action);
  bool TellHome(Process& worker, ObjectId actor, const Message& message);
  void EndFarWorkersOf(NodeNumber home, const std::string& why);
  void TellHeadOfActors();
  void ForgetActorWish(ObjectId actor);
  void WishAnew();
  bool ActorWishRefused(const WishRefused& message);

  // ---- names and detached actors (node_daemon_detached.cc)
  void Answer(ProcessId process, const Message& message);
  void AskForName(Process& process, CreateActor& message);
  void NameAnew();
  // True if its creation waits for the head, and the message with it.
  bool WaitsForName(const Process& process, ObjectId actor, const Message& message);
  void LookUp(ProcessId process, const LookupActor& message);
  void ListNames(ProcessId process, const ListActors& message);
  void AskHead(Process& process, const Message& message);
  void CreateDetached(ProcessId creator, ProcessId driver, CreateActor& message);
  ProcessId LastingJobOf(ProcessId driver, const JobDescribed& described);
  void ActorHandedOver(ProcessId from, HandOverActor& message);
  void EndActorsNotHandedOver(ProcessId creator);
  void TellKeeper(const ActorChanged& change);
  void RememberHow(ProcessId id, std::string how);
  void EndLastingJob(ProcessId id);
  void EndJobOfNobody(ProcessId job, ObjectId last, bool was_written);
  void WriteDown(ObjectId actor, std::function<void()> then);
  void StrikeOut(ObjectId actor, bool was_written, ProcessId job, bool job_ends);
  void Restore();
  void ToldOrGone(NodeNumber node);
  void StartTheMissed();
  void TellOfDetached();
  void HandleNode(NodeNumber from, DetachedHeld& message);
  void HandleNode(NodeNumber from, DetachedTold& message);
  void Construct(const ConstructActor& message);

  // ---- programs of other nodes (node_daemon_programs.cc)
  void SendToNode(NodeNumber node, const NodeMessage& message) override;
  std::string NameOf(NodeNumber node) const override;
  void ProgramSettled(ProcessId job, const std::string& why_not) override;
  void LibrarySettled(ProcessId id, uint64_t request, std::vector<std::string> paths,
                      const std::string& error) override;
  void HandleNode(NodeNumber from, ProgramPieceWanted& message);
  void HandleNode(NodeNumber from, ProgramPiece& message);
  void HandleNode(NodeNumber from, ProgramDenied& message);
  void HandleNode(NodeNumber from, ProgramReplaced& message);
  void HandleNode(NodeNumber from, ChannelBroken& message);
  void EndUnreachable(ProcessId worker, ProcessId other);
  // True if the worker is started later, when the files that it is made of are here.
  bool AwaitsProgram(const Job& job, const StartWorker& action);
  // Those among them that live and are not this one, each once.
  std::vector<NodeNumber> Others(const std::vector<NodeNumber>& nodes) const;
  // True if workers are started ahead only if the files turn out to be here: nothing is sent before it is needed.
  bool LooksForProgram(const Job& job);
  void AdaptToThisNode(const Job& job, ChildProgram& program);
  void ForgetProgram(ProcessId job);

  // ---- objects of dead owners (node_daemon_orphans.cc)
  void FindOrphans(std::vector<SealedObject> objects);
  // What a dead process has written, and what was its own.
  void FindOrphansOf(ProcessId dead, const std::vector<SealedObject>& written);
  bool MayHaveDied(ProcessId owner) const;
  void ForgetSegment(SegmentId segment);
  // Something in a segment whose writer is dead has gone: with the last of it the segment.
  void SegmentChanged(SegmentId segment);
  void HandleNode(NodeNumber from, HeldAsked& message);
  void HandleNode(NodeNumber from, HeldTold& message);
  void HandleNode(NodeNumber from, HoldsOver& message);

  // ---- places (node_daemon_placement.cc)
  bool MayServe(const ResourceAmounts& shape) const;
  std::string OwnNodeId() const;
  bool MayBeServedElsewhere(const ResourceAmounts& shape) const;
  std::string WhyMisplaced(const ResourceAmounts& shape) const;
  bool WishForActorsPlace(const WantActor& action, ProcessId creator);
  bool PlaceActorAtHome(ObjectId actor);
  bool WishForPlace(Process& process, const RequestLeases& message);
  void WishWasPlaced(ProcessId process, const ResourceAmounts& shape);
  std::vector<LocalScheduler::UnmetWish> WishesForHead();

  // ---- output
  void ForwardOutput(ProcessId worker, bool is_stderr, std::string text, const std::string& printer);
  void PauseOrResumeOutput();

  // ---- observers (node_daemon_observers.cc)
  void ListenForObservers();
  void AnswerObserver(uint64_t observer, const Observe& question);
  void AnswerObserver(uint64_t observer, const Observe& question, const std::vector<NodeListed>& nodes);
  void RouteForObserver(uint64_t observer, RouteTo& question);
  ShapeFact Explain(const ResourceAmounts& shape);
  ProcessInfo Describe(const Process& process) const;
  void Handle(Process& process, StateReport& message);
  void RememberDead(Process& process, const std::string& how);
  // ---- of all nodes (node_daemon_nodes.cc)
  std::vector<NodeListed> OwnNodes() const;
  void AskHeadForNodes(uint64_t observer, const Observe& question);
  void AnswerWithoutHead(int64_t now_ns);
  void RememberQuestion(const Process& process, const Message& message, const std::string& encoded);
  void AskAnew();

  int64_t NextDeadline() const;
  Process* Find(ProcessId id);
  Job* FindJob(ProcessId driver);
  void SetUp(ResourceAmounts resources, uint64_t store_bytes);
  Job& OpenJob(ProcessId driver, OpenSession session);

  EventLoop loop_;
  UniqueFd signals_;
  std::map<ProcessId, std::unique_ptr<Process>> processes_;
  std::map<pid_t, ProcessId> pids_;
  std::map<ProcessId, std::string> deaths_;  // how processes died, the latest ones
  std::deque<ProcessId> deaths_in_order_;
  std::set<ProcessId> unflushed_;
  std::set<ProcessId> closing_;
  uint64_t next_number_ = 1;  // for a process
  bool lasting_ = false;      // does not end with a driver
  ResourceAmounts resources_;
  std::map<ProcessId, std::unique_ptr<Job>> jobs_;  // by driver

  std::unique_ptr<LocalScheduler> scheduler_;
  ActorDirectory directory_;
  std::unique_ptr<MemoryBudget> budget_;
  SegmentKeeper segments_;
  OrphanTable orphans_;
  std::vector<SchedulerAction> scheduler_actions_;
  std::vector<DirectoryAction> directory_actions_;
  std::vector<PoolAction> pool_actions_;
  std::vector<MemoryBudget::Action> budget_actions_;
  std::vector<OrphanTable::Action> orphan_actions_;
  bool settling_ = false;

  UniqueFd null_;

  // Of a lasting node.
  UniqueFd driver_listener_;
  LastingNodeOptions options_;
  Started started_;
  std::map<ProcessId, ProcessId> remote_clients_;  // processes of other nodes that the scheduler knows, and their jobs
  std::set<ProcessId> remote_peers_;               // that ours share or shared a channel with
  ChannelBroker channels_{kDoorbellSlots};
  uint64_t next_wish_ = 1;
  SentWishes sent_wishes_{&next_wish_};
  struct PlacedWish {
    uint32_t count = 0;
    uint32_t depth = 0;
  };
  std::map<std::pair<ProcessId, ResourceAmounts>, PlacedWish> placed_wishes_;  // that only the head may serve
  std::set<ProcessId> told_jobs_;
  // Actors that have another node for their home.
  struct FarWanted {
    NodeNumber home;
    ProcessId creator;
    std::string class_name;
    uint64_t wish = 0;
    uint64_t placement = 0;
  };
  struct FarWorker {
    ObjectId actor;
    NodeNumber home;
    AssignedGpus gpus;
    // Of a detached one, for a new head:
    uint32_t incarnation = 0;  // 0: nobody has had it constructed yet
    bool constructed = false;
    bool failed = false;   // its constructor has
    bool exiting = false;  // it has said so
  };
  std::map<ObjectId, FarWanted> far_wanted_;         // the local scheduler looks for a worker
  std::map<ProcessId, FarWorker> far_workers_;       // ours
  std::map<ObjectId, std::set<ProcessId>> watched_;  // by ours
  // Actors that have us for their home, and wait at the head; and those among them that only the head may place.
  std::map<ObjectId, LocalScheduler::UnmetActor> placed_actors_;
  std::map<ObjectId, uint64_t> actor_wishes_;
  std::map<uint64_t, ObjectId> actors_of_wishes_;
  uint64_t told_decisions_ = 0;  // of the local scheduler
  struct Naming {
    CreateActor message;
    std::vector<Message> later;  // from its creator
  };
  std::map<ObjectId, Naming> naming_;  // the head was asked for the name
  // On the head: names, and detached actors that are not dead.
  struct Kept {
    ProcessId creator;
    ProcessId driver;      // of the creator
    ProcessId job;         // the lasting one
    uint64_t request = 0;  // of the creator, until it is answered
    std::string recipe;    // empty: its arguments are not there yet
    ActorRecord record;    // what else is written of it
    bool written = false;
  };
  ActorNames names_;
  std::map<ObjectId, Kept> kept_;
  std::map<ProcessId, ProcessId> lasting_jobs_;  // by driver
  uint64_t next_detached_ = 1;
  uint64_t next_lasting_job_ = 1;
  std::set<ProcessId> written_jobs_;      // lasting ones
  std::set<ProcessId> told_of_store_;     // drivers that know why their detached actors wait
  std::set<NodeNumber> untold_;           // members of an earlier head that have not said which actors they have
  std::map<ObjectId, ProcessId> exited_;  // on a node: detached actors that have, since it has this head
  std::set<SegmentId> orphan_segments_;   // of lasting jobs that have ended: others may read what was written there
  uint64_t placements_seen_ = 0;
  NodeLoad told_load_;
  bool load_told_ = false;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<ObjectExchange> exchange_;
  std::unique_ptr<ProgramFiles> programs_;
  std::map<ProcessId, std::vector<StartWorker>> awaiting_program_;  // by job

  std::unique_ptr<Observers> observers_;
  struct AskedNodes {
    uint64_t observer = 0;
    Observe question;
    int64_t until_ns = 0;
  };
  std::map<uint64_t, AskedNodes> asked_nodes_;  // observers for whom the head was asked, by request
  std::map<std::pair<ProcessId, uint64_t>, std::string> asked_head_;  // processes, and their questions, by request
  uint64_t next_nodes_request_ = 1;
  std::deque<DeadProcess> dead_;  // the latest ones
  bool keep_events_ = true;
  int64_t started_ns_ = 0;
  uint64_t session_ = 0;  // Welcome

  std::string test_streams_;  // WEFT_STREAM_CHANNELS, for tests: processes of this node get streams ("tcp": over TCP)
  uint64_t descriptor_limit_ = 1024;
  bool ended_ = false;
  bool frozen_ = false;  // what could run elsewhere stands still
  bool left_cluster_ = false;
  bool refused_ = false;
  int exit_code_ = 0;
};

}  // namespace weft::core
