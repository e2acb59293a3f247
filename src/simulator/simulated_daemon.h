// The node daemon in the simulation: the real local scheduler, worker pool and actor directory, with what NodeDaemon
// does around them.
// Keep the two alike: what NodeDaemon does differently is not covered by any seed.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "head/actor_directory.h"
#include "node/worker_pool.h"
#include "scheduling/local_scheduler.h"
#include "simulator/world.h"
#include "wire/messages.h"

namespace weft::core {

class SimulatedDaemon {
 public:
  explicit SimulatedDaemon(World& world);

  void OpenSession();
  void Send(ProcessId from, Message message);  // called by the process; handled later
  void Died(ProcessId process);                // its process is gone; noticed later
  // Declares a process dead that is not, as after waiting in vain for its end.
  void BuryAlive(ProcessId process);
  void RecallEverything();
  void Pause(int64_t until_ns) { paused_until_ns = until_ns; }
  void CheckRest();
  bool Knows(ProcessId process) const { return processes_.contains(process); }
  std::string Describe() const;
  void NoteLosses(ProcessId process);  // for the coverage: messages of a process that dies

  LocalScheduler scheduler;
  uint64_t next_number_ = 2;  // 1 is the driver
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
    std::set<ProcessId> workers;  // that it has a channel to; two workers may have one in each direction
    int64_t not_before_ns = 0;    // its messages are held up until then
  };

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

  World& world_;
  std::map<ProcessId, Process> processes_;
  std::vector<SchedulerAction> scheduler_actions_;
  std::vector<PoolAction> pool_actions_;
  std::vector<DirectoryAction> directory_actions_;
  std::map<std::pair<ProcessId, uint64_t>, CreateActor> creations_;  // asked with a name and not yet answered
  std::map<std::pair<ProcessId, uint64_t>, std::string> lookups_;
  bool settling_ = false;
  bool awake_ = false;
  int64_t timer_ns_ = INT64_MAX;
};

}  // namespace weft::core
