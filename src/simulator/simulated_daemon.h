// The node daemon in the simulation: the shipped NodeCore, with simulated processes, messages that take their time,
// starts that fail and ends that are noticed late.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "node/node_core.h"
#include "simulator/simulated_network.h"
#include "simulator/world.h"
#include "wire/messages.h"
#include "wire/node_messages.h"

namespace weft::core {

class SimulatedNode;

class SimulatedDaemon : private NodeIo {
 public:
  explicit SimulatedDaemon(World& world, SimulatedNode* node = nullptr);

  void OpenSession();
  void Send(ProcessId from, Message message);  // called by the process; handled later
  void Died(ProcessId process);                // its process is gone; noticed later
  // Declares a process dead that is not, as after waiting in vain for its end.
  void DeclareDeadAlive(ProcessId process);
  void RecallEverything();
  void Pause(int64_t until_ns);
  // Its process has ended, and with it all that it had started.
  void End();
  bool ended() const { return ended_; }
  size_t machine() const;
  void CheckRest();
  bool Knows(ProcessId process) const { return core_.processes().Contains(process); }
  // Somebody on another node would start what it runs again, if this node were dead.
  bool CouldRunElsewhere(ProcessId process) const;

  // ---- called by the node's place in the cluster
  void Open();
  void HeadForgot();
  void FreezeWork();
  void ThawWork() { core_.ThawWork(); }
  void NodeMessageCame(NodeNumber from, NodeMessage& message);
  void NodeIsGone(NodeNumber node, const std::string& why);
  void ChannelConnected(ProcessId submitter, ProcessId worker, bool dialled, StreamPointer stream);
  void EndTurn();

  const LocalScheduler& scheduler() const { return core_.scheduler(); }
  const ActorDirectory& directory() const { return core_.directory(); }
  std::string Describe() const;
  void NoteLosses(ProcessId process);  // for the coverage: messages of a process that dies

 private:
  struct Incoming {
    Message message;
    int64_t sent_ns;
  };
  struct Inbox {
    std::deque<Incoming> messages;
    int64_t not_before_ns = 0;  // its messages are held up until then
  };

  // ---- NodeIo
  void Send(ProcessId to, const Message& message, ProcessId because_of) override;
  void HoldBackFor(NodeNumber, ProcessId) override {}
  bool OpenRing(ChannelBroker::Pair pair, ChannelBroker& channels) override;
  std::string Construct(uint32_t slot, const ConstructActor& construct) override;
  Status Launch(const StartWorker& start) override;
  void Kill(ProcessId process, const std::string& why) override;
  void Refuse(ProcessId process, const std::string& why) override;
  bool Stop(ProcessId process) override;
  void Continue(ProcessId process) override;
  int32_t PidOf(ProcessId) const override { return 0; }
  void SetDemand(ProcessId worker, bool on) override;
  Loan TakeLoan(ProcessId worker) override;
  void ReturnLoan(ProcessId worker, Loan loan) override;
  bool Lends(ProcessId worker) const override;
  bool RunsTask(ProcessId worker) const override;
  void OpenJob(const JobDescribed& described) override;
  JobDescribed DescribeJob(ProcessId driver) const override { return {driver, "", {}}; }
  void EndJob(ProcessId) override {}
  void FreeHere(SegmentId segment, std::vector<Location> locations, ProcessId because_of) override;
  void RemoteOwnerDied(ProcessId) override {}
  void Log(LogLevel, const char*, const std::string&) override {}
  void Decided(const SchedulerAction& action) override;
  void Decided(const DirectoryAction& action) override;
  void Decided(const PoolAction& action) override;
  void Happened(const char* what) override;

  void Later(int64_t delay_ns, std::function<void()> what);
  void JoinDriver(ProcessId driver);
  void Wake();
  void Run();
  void ReadAll(ProcessId id);
  void Handle(ProcessId from, Message& message);
  void NoteQuestion(ProcessId from, const Message& message);
  void Settle();
  void BeginClosing(ProcessId id);
  void DeclareDead(ProcessId id);
  void ScheduleTimer();

  World& world_;
  SimulatedNode* const node_;  // nullptr: one node
  const NodeNumber self_;
  const uint32_t cpus_;
  NodeCore core_;
  ResourceLedger all_free_;
  bool ended_ = false;
  bool freezing_ = false;
  std::map<ProcessId, Inbox> inboxes_;
  std::map<std::pair<ProcessId, uint64_t>, CreateActor> creations_;  // asked with a name and not yet answered
  std::map<std::pair<ProcessId, uint64_t>, std::string> lookups_;
  bool awake_ = false;
  int64_t timer_ns_ = INT64_MAX;
  int64_t paused_until_ns_ = 0;
};

}  // namespace weft::core
