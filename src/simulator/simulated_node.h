// One life of a node daemon, as far as its place in the cluster goes: links, flows, its lease, and on the head the
// machines that decide for all and the way to the control store. Does what Cluster and HeadLedger do (node/cluster.cc,
// node/head_ledger.cc), with the real NodeLease, Membership, GlobalScheduler and MessageFlow.
// Keep them alike: what those do differently is not covered by any seed.
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

#include "control_store/simulated_store.h"
#include "control_store/tables.h"
#include "head/membership.h"
#include "head/node_lease.h"
#include "scheduling/global_scheduler.h"
#include "simulator/simulated_network.h"
#include "simulator/world.h"
#include "transport/message_flow.h"
#include "wire/node_messages.h"

namespace weft::core {

struct SimulatedMachine;

class SimulatedNode {
 public:
  SimulatedNode(World& world, SimulatedMachine& machine, bool head, uint64_t port);

  void Start();
  // The daemon's process ends, and with it all that it started.
  void End();
  bool ended() const { return ended_; }
  bool is_head() const { return membership_ != nullptr; }
  NodeNumber self() const { return self_; }
  bool Knows(NodeNumber node) const { return nodes_.contains(node); }
  bool MayAppear(NodeNumber node) const;
  const std::map<NodeNumber, NodeDescription>& nodes() const { return nodes_; }
  bool frozen() const { return lease_ && lease_->frozen(); }
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
  struct Peer {
    uint64_t number = 0;
    NodeNumber node;
    StreamPointer stream;
    int side = 0;
    bool ready = false;
    bool to_head = false;
    bool joining = false;
    bool accepted = false;
    NodeNumber flow_with;
    NodeNumber Other(const SimulatedNode& of) const { return to_head ? of.head_ : node; }
  };

  int64_t Now() const;  // this machine's clock
  void Turn(const std::function<void()>& what);
  void ScheduleTick();
  void Tick();

  void Listen();
  bool Accept(const StreamPointer& stream, const std::string& hello);
  void DialHead();
  void Connected(uint64_t peer, StreamPointer stream, bool nobody_listens);
  void AddPeer(Peer peer);
  void Attach(Peer& peer, StreamPointer stream, int side);
  void SendBytes(const Peer& peer, const std::string& bytes);
  void SendDirectly(uint64_t link, const NodeMessage& message);
  void Received(uint64_t peer, const std::string& bytes);
  void Lost(uint64_t peer, bool by_peer, bool nobody_listens);
  void ClosePeer(uint64_t peer);
  bool DialNode(NodeNumber node);

  MessageFlow& FlowWith(NodeNumber node);
  void OpenFlow(uint64_t peer, NodeNumber node, bool sends, bool takes);
  void OpenIncoming(uint64_t peer);
  template <class Event>
  bool FeedFlow(NodeNumber node, Event event);
  void PassMessagesTo(NodeNumber node, uint64_t link);

  void Deliver(NodeNumber from, NodeMessage& message);
  void AtHead(NodeNumber from, NodeMessage& message);
  void Vanish(NodeNumber node, const std::string& why);
  void Perform(std::vector<LeaseAction> actions);
  void Perform(std::vector<MembershipAction> actions);
  void Perform(std::vector<GlobalAction> actions);
  void Accepted(NodeNumber node);
  void Dead(const DeclareDead& news);
  void Joined();
  void Leave(const std::string& why);

  // The head's way to the control store.
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
  NodeIdentity identity_;
  NodeNumber self_, head_, newest_;
  SimulatedDaemon* daemon_ = nullptr;
  bool ended_ = false;
  bool in_turn_ = false;
  std::map<NodeNumber, NodeDescription> nodes_;
  std::set<NodeNumber> gone_;
  std::map<NodeNumber, MessageFlow> flows_;
  std::map<uint64_t, Peer> peers_;
  uint64_t next_peer_ = 1;
  uint64_t head_link_ = 0;
  std::map<NodeNumber, uint64_t> outgoing_;

  std::unique_ptr<NodeLease> lease_;
  std::unique_ptr<Membership> membership_;
  std::unique_ptr<GlobalScheduler> scheduler_;
  uint64_t epoch_ = 0;
  std::set<NodeNumber> here_;
  std::map<NodeNumber, AcceptNode> accepted_;
  std::map<std::pair<NodeNumber, uint64_t>, WishSent> wishes_;
  std::map<ProcessId, JobDescribed> jobs_;
  std::map<NodeNumber, std::set<ProcessId>> told_jobs_;
  uint64_t own_link_ = 0, own_beat_ = 0;
  int64_t dial_again_ns_ = INT64_MAX;
  int64_t join_by_ns_ = INT64_MAX;
  int64_t tick_at_ns_ = INT64_MAX;  // on the simulation's clock

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
