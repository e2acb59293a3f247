// One life of a node daemon, as far as its place in the cluster goes: the Io and the Host of a shipped Member, over the
// simulated network. What only the head runs is still a copy of node/cluster_head.cc and node/head_ledger.cc, with the
// real Membership and GlobalScheduler. Keep these alike: what they do differently is not covered by any seed.
//
// What concerns processes is SimulatedDaemon's business, which is made when the node has its number. A life that has
// lost its place ends; SimulatedCluster begins another on the same machine.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/member.h"
#include "control_store/simulated_store.h"
#include "control_store/tables.h"
#include "head/membership.h"
#include "scheduling/global_scheduler.h"
#include "simulator/simulated_network.h"
#include "simulator/world.h"
#include "wire/node_messages.h"

namespace weft::core {

struct SimulatedMachine;

class SimulatedNode final : private Member::Io, private Member::Host, private Member::HeadSide {
 public:
  SimulatedNode(World& world, SimulatedMachine& machine, bool head, uint64_t port);

  void Start();
  // The daemon's process ends, and with it all that it started.
  void End();
  bool ended() const { return ended_; }
  bool is_head() const { return membership_ != nullptr; }
  NodeNumber self() const { return member_.self(); }
  bool Knows(NodeNumber node) const { return member_.Knows(node); }
  bool MayAppear(NodeNumber node) const;
  const std::map<NodeNumber, NodeDescription>& nodes() const { return member_.nodes(); }
  const SimulatedMachine& machine() const { return machine_; }
  const GlobalScheduler* scheduler() const { return scheduler_.get(); }

  void Send(NodeNumber to, const NodeMessage& message);
  void SendToHead(const NodeMessage& message) { Send({}, message); }
  void SendToAll(const NodeMessage& message);
  void DialChannel(ProcessId submitter, ProcessId worker);
  const JobDescribed* FindJob(ProcessId job) const;

  // Runs in this daemon, later if its machine stands still; never if it has ended.
  void Later(int64_t delay_ns, std::function<void()> what);
  void CheckRest() const;
  std::string Describe() const;

 private:
  struct Stream {
    StreamPointer pointer;  // null: it is being dialled
    int side = SimulatedStream::kDialler;
    std::string address;  // that was dialled
  };

  int64_t Now() const;  // this machine's clock
  void Turn(const std::function<void()>& what);
  void ScheduleTick();
  void Tick();

  // Member::Io
  Status Dial(uint64_t link, const std::string& address, const std::string& hello, int64_t timeout_ns) override;
  Result<std::string> Listen() override;
  void Send(uint64_t link, std::string_view bytes) override;
  bool Pass(uint64_t link, std::string_view bytes) override;
  void Close(uint64_t link, const std::string& breach) override;
  void CloseWhenSent(uint64_t link) override;
  void Log(const std::string& line) override;
  // Member::Host
  void ClusterJoined(NodeNumber self) override;
  void ClusterRefused(const std::string& why) override { Leave(why); }
  void HeadForgot() override;
  void ClusterLeft(const std::string& why) override { Leave(why); }
  void FreezeWork(const std::string& why) override;
  void ThawWork() override;
  void NodeMessageCame(NodeNumber from, NodeMessage& message) override;
  void NodeIsGone(NodeNumber node, const std::string& why) override;
  void LinkBroken(NodeNumber) override {}
  void NodeHasRoom(NodeNumber) override {}
  // Member::HeadSide
  void JoinCame(uint64_t link, NodeJoins& joins) override;
  void HeadHeard(NodeNumber from, NodeMessage& message) override;
  void JoinLinkLost(uint64_t link, bool by_peer) override;
  NodeNumber MemberAt(uint64_t link) const override { return membership_->NodeOf(link); }

  bool Accept(const StreamPointer& stream, const std::string& hello);
  void Connected(uint64_t link, StreamPointer stream, bool nobody_listens);
  void Attach(uint64_t link, StreamPointer stream, int side);
  void Lost(uint64_t link, ErrorKind kind, bool nobody_listens);
  void Leave(const std::string& why);

  // ---- of the head: a copy
  void Tell(uint64_t link, const NodeMessage& message) { member_.SayFromHead(link, message, Now()); }
  void TellAllBut(NodeNumber node, const NodeMessage& message);
  void Perform(std::vector<MembershipAction> actions);
  void Perform(std::vector<GlobalAction> actions);
  void Accepted(NodeNumber node);
  void Dead(const DeclareDead& news);
  void Acquire();
  void Acquired(StoreResult<Leadership> outcome);
  void Opened(uint64_t epoch, std::vector<std::pair<NodeNumber, NodeDescription>> members, NodeNumber next);
  void Commit(WriteBatch batch, std::function<void()> then);
  void Submit();
  void Committed(const StoreStatus& outcome);
  void PumpStore();

  World& world_;
  SimulatedMachine& machine_;
  const bool head_options_;
  const uint64_t port_;
  Member member_;
  std::map<uint64_t, Stream> streams_;
  SimulatedDaemon* daemon_ = nullptr;
  bool ended_ = false;
  bool in_turn_ = false;
  int64_t tick_at_ns_ = INT64_MAX;  // on the simulation's clock

  std::unique_ptr<Membership> membership_;
  std::unique_ptr<GlobalScheduler> scheduler_;
  uint64_t epoch_ = 0;
  std::map<NodeNumber, NodeDescription> known_;
  std::set<NodeNumber> here_;
  std::map<NodeNumber, AcceptNode> accepted_;
  std::map<std::pair<NodeNumber, uint64_t>, WishSent> wishes_;
  std::map<ProcessId, JobDescribed> jobs_;
  std::map<NodeNumber, std::set<ProcessId>> told_jobs_;
  std::unique_ptr<SimulatedStore> store_;
  ClusterRecord cluster_;
  struct Change {
    WriteBatch batch;
    std::function<void()> then;
  };
  std::deque<Change> changes_;
  bool submitted_ = false;
  int64_t renew_at_ns_ = INT64_MAX;
  bool pumping_store_ = false;
};

}  // namespace weft::core
