// The node daemon in the simulation: the real local scheduler, worker pool and actor directory, with what NodeDaemon
// does around them; of a cluster, also what it does for processes of other nodes (simulated_daemon_cluster.cc).
// Keep the two alike: what NodeDaemon does differently is not covered by any seed.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/actor_directory.h"
#include "node/channel_broker.h"
#include "node/sent_wishes.h"
#include "node/worker_pool.h"
#include "scheduling/local_scheduler.h"
#include "simulator/simulated_network.h"
#include "simulator/world.h"
#include "wire/messages.h"
#include "wire/node_messages.h"

namespace weft::core {

class SimulatedNode;

class SimulatedDaemon {
 public:
  explicit SimulatedDaemon(World& world, SimulatedNode* node = nullptr);

  void OpenSession();
  void Send(ProcessId from, Message message);  // called by the process; handled later
  void Died(ProcessId process);                // its process is gone; noticed later
  // Declares a process dead that is not, as after waiting in vain for its end.
  void BuryAlive(ProcessId process);
  void RecallEverything();
  void Pause(int64_t until_ns);
  // Its process has ended, and with it all that it had started.
  void End();
  bool ended() const { return ended_; }
  size_t machine() const;
  void CheckRest();
  bool Knows(ProcessId process) const { return processes_.contains(process); }
  // Somebody on another node would start what it runs again, if this node were dead.
  bool CouldRunElsewhere(ProcessId process) const;

  // ---- called by the node's place in the cluster (simulated_daemon_cluster.cc)
  void Open();
  void HeadForgot();
  void FreezeWork();
  void ThawWork();
  void NodeMessageCame(NodeNumber from, NodeMessage& message);
  void NodeIsGone(NodeNumber node, const std::string& why);
  void ChannelConnected(ProcessId submitter, ProcessId worker, bool dialled, StreamPointer stream);
  void EndTurn();

  std::string Describe() const;
  void NoteLosses(ProcessId process);  // for the coverage: messages of a process that dies

  LocalScheduler scheduler;
  uint64_t next_number_;
  WorkerPool pool;
  ActorDirectory directory;
  int64_t paused_until_ns = 0;

 private:
  enum class Stage { kConnecting, kReady, kClosing };
  struct Incoming {
    Message message;
    int64_t sent_ns;
  };
  struct Process {
    Stage stage = Stage::kConnecting;
    std::deque<Incoming> inbox;
    int64_t not_before_ns = 0;  // its messages are held up until then
    std::map<ResourceAmounts, uint64_t> granted;
  };

  void Later(int64_t delay_ns, std::function<void()> what);
  bool IsElsewhere(ProcessId process) const { return node_ != nullptr && NodeOf(process) != self_; }
  void Wake();
  void Run();
  void ReadAll(ProcessId id);
  void Handle(ProcessId from, Message& message);
  void Tell(ProcessId to, Message message);
  void Settle();
  void Perform(const GrantLease& action);
  void Perform(const RecallLease& action);
  void Perform(const RefuseLeases& action);
  void Perform(const WantWorkers& action);
  void Perform(const SetDemand& action);
  void Perform(const KillWorker& action);
  void Perform(const GrantActor& action);
  void Perform(const RefuseActor& action);
  void Perform(const StartWorker& action);
  void Perform(const RetireWorker& action);
  void Perform(const AbandonStart& action);
  void Perform(const GiveUpStarting& action);
  // Actors (simulated_daemon_actors.cc).
  bool HandleOfActors(ProcessId from, Message& message);
  void Perform(const WantActor& action);
  void Perform(const UnwantActor& action);
  void Perform(const SettleActor& action);
  void Perform(const TellWatcher& action);
  void Perform(const AnswerCreator& action);
  void Perform(const AnswerList& action);
  void Perform(const KillActorWorker& action);
  void Perform(const LetWorkerLeave& action);
  void Perform(const RefuseSender& action);
  void Perform(const FreeName&) {}  // one node: the directory keeps the names itself
  void TellOfActorsThatEndWith(ProcessId id);
  void OpenChannel(ProcessId submitter, ProcessId worker);
  void Kill(ProcessId id);
  void RereadBlockedFlags();
  void BeginClosing(ProcessId id);
  void Bury(ProcessId id);
  void ScheduleTimer();

  // Of a cluster.
  void HandleNode(NodeNumber from, JobDescribed& message);
  void HandleNode(NodeNumber from, WorkAssigned& message);
  void HandleNode(NodeNumber from, WishServed& message);
  void HandleNode(NodeNumber from, WishRefused& message);
  void HandleNode(NodeNumber from, ForProcess& message);
  void HandleNode(NodeNumber from, FromProcess& message);
  void HandleNode(NodeNumber from, RoutedAcross& message);
  void HandleNode(NodeNumber from, ProcessVanished& message);
  void HandleNode(NodeNumber from, ChannelWanted& message);
  void HandleNode(NodeNumber from, ChannelBroken& message);
  bool HasDied(ProcessId process) const;
  void SendElsewhere(ProcessId process, const Message& message);
  void GrantElsewhere(const GrantLease& action);
  void RouteElsewhere(ProcessId from, RouteTo& message);
  void RemoteProcessDied(ProcessId id, const std::string& how);
  void EndUnreachable(ProcessId worker);
  void EndProcessesOfJob();
  bool EnsureJob(ProcessId driver);
  void TellHeadOfJob();
  void TellHead();
  void FreezeIfNeeded(ProcessId process);

  World& world_;
  SimulatedNode* const node_;  // nullptr: one node
  const NodeNumber self_;
  bool ended_ = false;
  std::map<ProcessId, Process> processes_;
  std::vector<SchedulerAction> scheduler_actions_;
  std::vector<PoolAction> pool_actions_;
  std::vector<DirectoryAction> directory_actions_;
  std::map<std::pair<ProcessId, uint64_t>, CreateActor> creations_;  // asked with a name and not yet answered
  std::map<std::pair<ProcessId, uint64_t>, std::string> lookups_;
  bool settling_ = false;
  bool awake_ = false;
  int64_t timer_ns_ = INT64_MAX;

  // Of a cluster. There is one job, the driver's.
  ProcessId job_;  // 0: not known here
  bool job_ending_ = false;
  bool told_job_ = false;
  bool frozen_ = false;
  std::map<ProcessId, std::string> deaths_;
  std::set<ProcessId> remote_clients_, remote_peers_;
  ChannelBroker channels_{UINT32_MAX};
  uint64_t next_wish_ = 1;
  SentWishes sent_wishes_{&next_wish_};
  uint64_t placements_seen_ = 0;
  NodeLoad told_load_;
  bool load_told_ = false;
};

}  // namespace weft::core
