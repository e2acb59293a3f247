// The node daemon: serves drivers and the workers that it starts for them. That of a private session serves one driver
// and ends with it.
//
// One thread, one loop, no mutex. What is decided, NodeCore and its machines decide; this class is the input and output
// around it (NodeIo): sockets, signals, children, descriptors, shared memory, output. Memory is the MemoryBudget's
// business, objects of dead owners the OrphanTable's. What a process sends is input: nonsense ends that process's
// connection and with it the process, never the daemon.
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

#include "base/result.h"
#include "node/cluster.h"
#include "node/job.h"
#include "node/lasting_node.h"
#include "node/node_core.h"
#include "node/object_exchange.h"
#include "node/observers.h"
#include "node/program_files.h"
#include "object_store/memory_budget.h"
#include "object_store/orphan_table.h"
#include "object_store/segment_keeper.h"
#include "os/child_process.h"
#include "os/event_loop.h"
#include "transport/doorbell.h"
#include "transport/message_stream.h"
#include "wire/messages.h"

namespace weft::core {

class NodeDaemon : private NodeIo, private Cluster::Host, private ObjectExchange::Host, private ProgramFiles::Host {
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
    explicit Process(LocalProcess& known) : local(known), id(known.id) {}
    LocalProcess& local;  // NodeCore's
    const ProcessId id;
    bool warm = false;  // forked by the warm zygote
    std::unique_ptr<MessageStream> stream;
    EventLoop::WatchId watch = 0;
    std::set<ProcessId> waits_for;  // not read from until these take what it sent them

    pid_t pid = 0;          // known to be a child of ours or of our zygote; 0: not known yet
    pid_t claimed_pid = 0;  // what it says; for display only
    std::optional<int> exit_status;
    int64_t closing_since_ns = 0;
    std::string zygote_end;  // how its zygote ended, if that was before we learned the pid
    std::string note;        // why we killed it, for the announcement

    SharedFd doorbell_fd;
    std::shared_ptr<PeerDoorbell> doorbell;
    std::set<SegmentId> opened;  // that it has mapped

    std::string last_stderr;  // until it is ready: explains a failed start
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
  void Handle(Process& process, OpenSegment& message);
  void Handle(Process& process, ReserveMemory& message);
  void Handle(Process& process, ReleaseMemory& message);
  void Handle(Process& process, CloseSession& message);
  void Handle(Process& process, FetchObject& message);
  void Handle(Process& process, ReleaseObject& message);
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
  void Perform(const MemoryBudget::Grant& action);
  void Perform(const MemoryBudget::Refuse& action);
  void Perform(const MemoryBudget::AskTrim& action);
  void Perform(const OrphanTable::Ask& action);
  void Perform(const OrphanTable::Free& action);
  void Perform(const OrphanTable::AnswerNode& action);
  void Perform(const OrphanTable::TellNodeEnded& action);

  // ---- lives
  Status StartProcess(const StartWorker& start);
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
  void BeginClosing(Process& process);
  void DeclareDead(ProcessId id);
  void CheckClosing();
  std::string DescribeDeath(const Process& process) const;
  void EndSession(int exit_code, const std::string& why = "");  // why: for the drivers that are still here
  void LeaveWhenAlone(Job& job);
  // Its driver has gone, or must go: all that is the job's ends. A private session ends with it.
  void EndJobOf(ProcessId driver, int exit_code);
  void ForgetEndedJobs();
  void KillEverything();

  // ---- NodeIo
  void Send(ProcessId to, const Message& message, ProcessId because_of) override;
  void HoldBackFor(NodeNumber node, ProcessId process) override;
  bool OpenRing(ChannelBroker::Pair pair, ChannelBroker& channels) override;
  std::string Construct(uint32_t slot, const ConstructActor& construct) override;
  Status Launch(const StartWorker& start) override;
  void Kill(ProcessId process, const std::string& why) override;
  void Refuse(ProcessId process, const std::string& why) override;
  bool Stop(ProcessId process) override;
  void Continue(ProcessId process) override;
  int32_t PidOf(ProcessId process) const override;
  void SetDemand(ProcessId worker, bool on) override;
  Loan TakeLoan(ProcessId worker) override;
  void ReturnLoan(ProcessId worker, Loan loan) override;
  bool Lends(ProcessId worker) const override;
  bool RunsTask(ProcessId worker) const override;
  void OpenJob(const JobDescribed& described) override;
  JobDescribed DescribeJob(ProcessId driver) const override;
  void EndJob(ProcessId driver) override;
  void FreeHere(SegmentId segment, std::vector<Location> locations, ProcessId because_of) override;
  void RemoteOwnerDied(ProcessId process) override;
  void Log(LogLevel level, const char* what, const std::string& text) override;

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
  void TellProcess(ProcessId process, const Message& message) override;
  void FreeNow(const std::vector<Location>& locations) override;
  void HandleNode(NodeNumber from, AskNodes& message);
  void HandleNode(NodeNumber from, NodesTold& message);
  void Open();
  bool IsElsewhere(ProcessId process) const { return core_.IsElsewhere(process); }
  void FreeInSegment(SegmentId segment, std::vector<Location> locations, ProcessId because_of);

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

  // ---- output
  void ForwardOutput(ProcessId worker, bool is_stderr, std::string text, const std::string& printer);
  void PauseOrResumeOutput();

  // ---- observers (node_daemon_observers.cc)
  void ListenForObservers();
  void AnswerObserver(uint64_t observer, const Observe& question);
  void AnswerObserver(uint64_t observer, const Observe& question, const std::vector<NodeListed>& nodes);
  void RouteForObserver(uint64_t observer, RouteTo& question);
  ProcessInfo Describe(const Process& process) const;
  void Handle(Process& process, StateReport& message);
  void RememberDead(Process& process, const std::string& how);
  // ---- of all nodes (node_daemon_nodes.cc)
  std::vector<NodeListed> OwnNodes() const;
  void AskHeadForNodes(uint64_t observer, const Observe& question);
  void AnswerWithoutHead(int64_t now_ns);

  int64_t NextDeadline() const;
  Process* Find(ProcessId id);
  const Process* Find(ProcessId id) const { return const_cast<NodeDaemon*>(this)->Find(id); }
  Job* FindJob(ProcessId driver);
  void SetUp(ResourceAmounts resources, uint64_t store_bytes);
  Job& AddJob(ProcessId driver, OpenSession session);

  EventLoop loop_;
  UniqueFd signals_;
  std::map<ProcessId, std::unique_ptr<Process>> processes_;
  std::map<pid_t, ProcessId> pids_;
  std::set<ProcessId> unflushed_;
  std::set<ProcessId> closing_;
  bool lasting_ = false;                            // does not end with a driver
  std::map<ProcessId, std::unique_ptr<Job>> jobs_;  // by driver

  NodeCore core_{*this, kDoorbellSlots};
  std::unique_ptr<MemoryBudget> budget_;
  SegmentKeeper segments_;
  OrphanTable orphans_;
  std::vector<MemoryBudget::Action> budget_actions_;
  std::vector<OrphanTable::Action> orphan_actions_;
  bool settling_ = false;

  UniqueFd null_;

  // Of a lasting node.
  UniqueFd driver_listener_;
  LastingNodeOptions options_;
  Started started_;
  std::set<SegmentId> orphan_segments_;  // of lasting jobs that have ended: others may read what was written there
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
  uint64_t next_nodes_request_ = 1;
  std::deque<DeadProcess> dead_;  // the latest ones
  bool keep_events_ = true;
  int64_t started_ns_ = 0;
  uint64_t session_ = 0;  // Welcome

  std::string test_streams_;  // WEFT_STREAM_CHANNELS, for tests: processes of this node get streams ("tcp": over TCP)
  uint64_t descriptor_limit_ = 1024;
  bool ended_ = false;
  bool left_cluster_ = false;
  bool refused_ = false;
  int exit_code_ = 0;
};

}  // namespace weft::core
