#include "simulator/simulated_node.h"

#include <algorithm>
#include <cstring>

#include "simulator/simulated_cluster.h"
#include "simulator/simulated_daemon.h"
#include "simulator/simulated_process.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
// A tenth of those in node/cluster.cc and node/head_ledger.cc, as the lease is, too.
constexpr int64_t kDialSoonNs = kMs;
constexpr int64_t kDialAgainNs = 10 * kMs;
constexpr int64_t kJoinNs = 1'500 * kMs;
constexpr int64_t kGraceNs = 100 * kMs;
constexpr int64_t kFreezeNs = 40 * kMs;
constexpr int64_t kStoreAgainNs = 20 * kMs;
constexpr int64_t kRenewNs = 100 * kMs;
constexpr uint64_t kHeadPort = 1;

Identity ToIdentity(const NodeIdentity& identity) {
  Identity bytes;
  std::memcpy(bytes.data(), &identity, sizeof identity);
  return bytes;
}

NodeIdentity FromIdentity(const Identity& bytes) {
  NodeIdentity identity;
  std::memcpy(&identity, bytes.data(), sizeof identity);
  return identity;
}

// An address is the number of a machine and a port.
std::string Address(size_t machine, uint64_t port) {
  return std::to_string(machine).append(":").append(std::to_string(port));
}

std::string NameOf(size_t machine) { return std::string("machine-").append(std::to_string(machine)); }

std::pair<size_t, uint64_t> ParseAddress(const std::string& address) {
  const size_t colon = address.find(':');
  return {std::stoull(address.substr(0, colon)), std::stoull(address.substr(colon + 1))};
}

}  // namespace

SimulatedNode::SimulatedNode(World& world, SimulatedMachine& machine, bool head, uint64_t port)
    : world_(world), machine_(machine), head_options_(head), port_(port) {
  identity_ = {world.random.Next(), world.random.Next()};
}

int64_t SimulatedNode::Now() const { return machine_.Clock(world_.now()); }

void SimulatedNode::Start() {
  if (head_options_) {
    store_ = std::make_unique<SimulatedStore>(world_.cluster->storage);
    return Acquire();
  }
  lease_ = std::make_unique<NodeLease>(NodeLease::Config{.freeze_after_link_loss_ns = kFreezeNs});
  lease_->faults = world_.options.lease_faults;
  join_by_ns_ = Now() + kJoinNs;
  Turn([this] { DialHead(); });
}

void SimulatedNode::End() {
  if (std::exchange(ended_, true)) return;
  world_.Note("daemon ends", machine_.number, self_.value);
  world_.cluster->Trouble(machine_.number, world_.now());
  world_.cluster->network.StopListening(machine_.number, port_);
  for (auto& [number, peer] : peers_) {
    if (peer.stream) world_.cluster->network.Close(peer.stream, peer.side, NetworkFault::kCrash);
  }
  if (daemon_) daemon_->End();
  if (store_) store_.reset();
}

bool SimulatedNode::MayAppear(NodeNumber node) const {
  const bool may = lease_ && node.value > newest_.value && !world_.options.cluster_faults.take_the_unheard_of_for_dead;
  if (may) world_.node_coverage.Did("a message waited for word of its node");
  return may;
}

void SimulatedNode::Leave(const std::string& why) {
  if (ended_) return;
  world_.Note("leaves", machine_.number, self_.value);
  world_.node_coverage.Did(self_ ? "a node lost its place" : "a node was not taken in");
  End();
  world_.cluster->StartAgain(machine_, kMs + static_cast<int64_t>(world_.random.Below(100 * kMs)));
  (void)why;
}

void SimulatedNode::Later(int64_t delay_ns, std::function<void()> what) {
  world_.queue.At(world_.now() + delay_ns, [this, what = std::move(what)] {
    if (ended_) return;
    const int64_t paused = world_.cluster->network.PausedUntil(machine_.number);
    if (paused > world_.now()) return Later(paused - world_.now(), what);
    Turn(what);
  });
}

void SimulatedNode::Turn(const std::function<void()>& what) {
  if (ended_) return;
  if (in_turn_) return what();
  in_turn_ = true;
  what();
  if (!ended_ && daemon_) daemon_->EndTurn();
  in_turn_ = false;
  if (ended_) return;
  if (lease_) lease_->CheckInvariants();
  if (membership_) membership_->CheckInvariants();
  if (scheduler_) scheduler_->CheckInvariants();
  for (const auto& [node, flow] : flows_) flow.CheckInvariants();
  ScheduleTick();
}

void SimulatedNode::ScheduleTick() {
  int64_t next = std::min({dial_again_ns_, renew_at_ns_, INT64_MAX});
  if (lease_ && !self_) next = std::min(next, join_by_ns_);
  if (lease_) next = std::min(next, lease_->next_wakeup_ns());
  if (membership_) next = std::min(next, membership_->next_wakeup_ns());
  for (const auto& [node, flow] : flows_) next = std::min(next, flow.next_wakeup_ns());
  if (next == INT64_MAX) return;
  const int64_t at = std::max(world_.now(), machine_.When(next) + 1'000);
  if (tick_at_ns_ <= at) return;
  tick_at_ns_ = at;
  Later(at - world_.now(), [this, at] {
    if (tick_at_ns_ == at) tick_at_ns_ = INT64_MAX;
    Tick();
  });
}

void SimulatedNode::Tick() {
  const int64_t now = Now();
  if (lease_ && !self_ && join_by_ns_ <= now) return Leave("the head does not answer");
  if (lease_ && lease_->next_wakeup_ns() <= now) {
    std::vector<LeaseAction> actions;
    lease_->Handle(LeaseTicked{now}, actions);
    Perform(std::move(actions));
    if (ended_) return;
  }
  if (dial_again_ns_ <= now) {
    dial_again_ns_ = INT64_MAX;
    if (head_link_ == 0) DialHead();
  }
  if (membership_) {
    std::vector<MembershipAction> actions;
    if (membership_->members().contains(self_)) {
      membership_->Handle(BeatCame{own_link_, ++own_beat_, epoch_, now}, actions);
    }
    membership_->Handle(MembershipTicked{now}, actions);
    Perform(std::move(actions));
  }
  if (store_ && renew_at_ns_ <= now) {
    renew_at_ns_ = now + kRenewNs;
    [[maybe_unused]] StoreStatus status = store_->Renew([this](StoreStatus outcome) {
      if (outcome.code() == StoreCode::kFenced) Leave("another head has taken over this cluster");
    });
    PumpStore();
  }
  if (ended_) return;
  std::vector<NodeNumber> due;
  for (const auto& [node, flow] : flows_) {
    if (flow.next_wakeup_ns() <= now) due.push_back(node);
  }
  for (NodeNumber node : due) FeedFlow(node, FlowTicked{now});
}

// ---- links --------------------------------------------------------------------------------------------------------

void SimulatedNode::Listen() {
  world_.cluster->network.Listen(machine_.number, port_, [this](const StreamPointer& stream, const std::string& hello) {
    return Accept(stream, hello);
  });
}

void SimulatedNode::AddPeer(Peer peer) { peers_[peer.number] = std::move(peer); }

void SimulatedNode::Attach(Peer& peer, StreamPointer stream, int side) {
  peer.stream = std::move(stream);
  peer.side = side;
  peer.ready = true;
  peer.stream->side[side].closed = [this, number = peer.number](bool by_peer) {
    Turn([&] { Lost(number, by_peer, false); });
  };
  peer.stream->side[side].message = [this, number = peer.number](const std::string& bytes) {
    Turn([&] { Received(number, bytes); });
  };
}

void SimulatedNode::DialHead() {
  Peer peer{.number = next_peer_++};
  peer.to_head = true;
  head_link_ = peer.number;
  AddPeer(peer);
  world_.cluster->network.Dial(machine_.number, 0, kHeadPort, true,
                               EncodeHello({.purpose = static_cast<uint8_t>(LinkPurpose::kJoin)}),
                               [this, number = peer.number](StreamPointer stream, bool nobody_listens) {
                                 Later(0, [=, this] { Connected(number, stream, nobody_listens); });
                               });
}

bool SimulatedNode::DialNode(NodeNumber node) {
  auto known = nodes_.find(node);
  if (known == nodes_.end() || outgoing_.contains(node)) return known != nodes_.end();
  auto [machine, port] = ParseAddress(known->second.address);
  Peer peer{.number = next_peer_++, .node = node};
  outgoing_[node] = peer.number;
  AddPeer(peer);
  world_.cluster->network.Dial(
      machine_.number, machine, port, true,
      EncodeHello({.purpose = static_cast<uint8_t>(LinkPurpose::kNode), .node = self_, .to = node}),
      [this, number = peer.number](StreamPointer stream, bool nobody_listens) {
        Later(0, [=, this] { Connected(number, stream, nobody_listens); });
      });
  return true;
}

void SimulatedNode::Connected(uint64_t number, StreamPointer stream, bool nobody_listens) {
  auto found = peers_.find(number);
  if (found == peers_.end()) {
    if (stream) world_.cluster->network.Close(stream, SimulatedStream::kDialler);
    return;
  }
  if (!stream) return Lost(number, false, nobody_listens);
  Peer& peer = found->second;
  if (!stream->side[SimulatedStream::kDialler].open) return Lost(number, true, false);
  Attach(peer, stream, SimulatedStream::kDialler);
  if (peer.to_head) {
    Listen();
    std::vector<LeaseAction> actions;
    lease_->Handle(HeadLinked{Now()}, actions);
    return Perform(std::move(actions));
  }
  if (peer.node != head_) OpenFlow(number, peer.node, true, false);
}

bool SimulatedNode::Accept(const StreamPointer& stream, const std::string& bytes) {
  NodeHello hello;
  if (ended_ || !DecodeHello(bytes, &hello)) return false;
  switch (static_cast<LinkPurpose>(hello.purpose)) {
    case LinkPurpose::kChannel:
      if (!daemon_) return false;
      Turn([&] { daemon_->ChannelConnected(hello.submitter, hello.worker, false, stream); });
      return true;
    case LinkPurpose::kJoin:
    case LinkPurpose::kNode: {
      const bool joining = static_cast<LinkPurpose>(hello.purpose) == LinkPurpose::kJoin;
      if (joining && (!is_head() || !Knows(self_))) return false;
      if (!joining && (!hello.node || gone_.contains(hello.node) || !self_ || hello.to != self_)) return false;
      Peer peer{.number = next_peer_++, .node = joining ? NodeNumber{} : hello.node};
      peer.joining = joining;
      peer.accepted = !joining;
      const uint64_t number = peer.number;
      AddPeer(std::move(peer));
      Attach(peers_.at(number), stream, SimulatedStream::kListener);
      if (!joining && nodes_.contains(hello.node)) Turn([&] { OpenIncoming(number); });
      return true;
    }
  }
  return false;
}

void SimulatedNode::SendBytes(const Peer& peer, const std::string& bytes) {
  if (!peer.ready || !peer.stream) return;
  const int to = 1 - peer.side;
  Parcel parcel;
  parcel.kind = static_cast<uint8_t>(bytes[0]);
  parcel.arrives = [stream = std::weak_ptr<SimulatedStream>(peer.stream), to, bytes] {
    if (auto alive = stream.lock(); alive && alive->side[to].message) alive->side[to].message(bytes);
  };
  world_.cluster->network.Send(peer.stream, peer.side, std::move(parcel));
}

void SimulatedNode::SendDirectly(uint64_t link, const NodeMessage& message) {
  auto found = peers_.find(link);
  if (found != peers_.end()) SendBytes(found->second, EncodeNodeMessage(message));
}

void SimulatedNode::Send(NodeNumber to, const NodeMessage& message) {
  if (ended_) return;
  if (to ? to == self_ : is_head()) {
    NodeMessage copy = message;
    if (!to) return Deliver(self_, copy);
    if (daemon_) daemon_->NodeMessageCame(self_, copy);
    return;
  }
  if (!IsInFlow(message)) return SendDirectly(head_link_, message);
  const NodeNumber node = to ? to : head_;
  if (!node || (node != head_ && !nodes_.contains(node) && !MayAppear(node))) return;
  FlowWith(node);
  FeedFlow(node, MessageWritten{EncodeNodeMessage(message), Now()});
}

void SimulatedNode::SendToAll(const NodeMessage& message) {
  std::vector<NodeNumber> others;
  for (const auto& [node, other] : nodes_) {
    if (node != self_) others.push_back(node);
  }
  for (NodeNumber node : others) Send(node, message);
}

void SimulatedNode::DialChannel(ProcessId submitter, ProcessId worker) {
  auto known = nodes_.find(NodeOf(worker));
  if (known == nodes_.end()) {
    return Later(0, [=, this] { daemon_->ChannelConnected(submitter, worker, true, nullptr); });
  }
  auto [machine, port] = ParseAddress(known->second.address);
  world_.cluster->network.Dial(machine_.number, machine, port, false,
                               EncodeHello({.purpose = static_cast<uint8_t>(LinkPurpose::kChannel),
                                            .node = self_,
                                            .submitter = submitter,
                                            .worker = worker}),
                               [=, this](StreamPointer stream, bool) {
                                 if (ended_ && stream) {
                                   world_.cluster->network.Close(stream, SimulatedStream::kDialler);
                                 }
                                 Later(0, [=, this] { daemon_->ChannelConnected(submitter, worker, true, stream); });
                               });
}

void SimulatedNode::Received(uint64_t number, const std::string& bytes) {
  auto found = peers_.find(number);
  if (found == peers_.end() || !found->second.ready) return;
  Peer& peer = found->second;
  NodeMessage message = DecodeNodeMessage(bytes);
  if (std::holds_alternative<std::monostate>(message)) world_.Fail("a message between daemons does not decode");
  if (peer.to_head && number != head_link_) return;
  if (peer.joining) {
    if (auto* joins = std::get_if<NodeJoins>(&message)) {
      JoinAsked asked{.link = number,
                      .was = joins->was,
                      .epoch = joins->epoch,
                      .beat = joins->beat,
                      .protocol = joins->protocol,
                      .node = {joins->identity, joins->name, joins->address, joins->resources, joins->labels},
                      .now_ns = Now()};
      std::vector<MembershipAction> actions;
      membership_->Handle(asked, actions);
      return Perform(std::move(actions));
    }
    peer.node = membership_->NodeOf(number);
    if (!peer.node) return;
  }
  if (!peer.to_head && !nodes_.contains(peer.node)) return;
  const auto* taken = std::get_if<FlowTaken>(&message);
  if (taken != nullptr || IsInFlow(message)) {
    const NodeNumber flow = peer.flow_with;
    if (!flows_.contains(flow)) return;
    if (taken != nullptr) {
      FeedFlow(flow, TakenHeard{number, taken->through});
      return;
    }
    if (!FeedFlow(flow, MessageArrived{number, bytes.size(), Now()})) return;
  }
  found = peers_.find(number);
  if (found == peers_.end()) return;
  Deliver(found->second.to_head ? NodeNumber{} : found->second.node, message);
}

void SimulatedNode::Lost(uint64_t number, bool by_peer, bool nobody_listens) {
  auto found = peers_.find(number);
  if (found == peers_.end()) return;
  Peer peer = found->second;
  peers_.erase(found);
  const int64_t now = Now();
  const NodeNumber other = peer.Other(*this);
  const bool dialled = !peer.to_head && !peer.joining && !peer.accepted;
  if (peer.flow_with && flows_.contains(peer.flow_with)) {
    FeedFlow(peer.flow_with, FlowLinkClosed{number, now});
  } else if (dialled && !peer.ready && flows_.contains(other)) {
    FeedFlow(other, ConnectingFailed{now});
  }
  if (auto out = outgoing_.find(peer.node); dialled && out != outgoing_.end() && out->second == number) {
    outgoing_.erase(out);
  }
  if (peer.to_head) {
    if (head_link_ != number) return;
    head_link_ = 0;
    const bool may_change = peer.ready && by_peer;
    if (!self_ && !may_change) return Leave("the head cannot be reached");
    dial_again_ns_ = now + (peer.ready ? kDialSoonNs : kDialAgainNs);
    std::vector<LeaseAction> actions;
    lease_->Handle(HeadLinkLost{now}, actions);
    if (nobody_listens) {
      world_.node_coverage.Did("a node saw that the head had ended");
      lease_->Handle(HeadEnded{now}, actions);
    }
    return Perform(std::move(actions));
  }
  if (peer.joining) {
    std::vector<MembershipAction> actions;
    membership_->Handle(MemberLinkClosed{number, by_peer, now}, actions);
    Perform(std::move(actions));
  }
}

// By our own decision; nothing follows from it here.
void SimulatedNode::ClosePeer(uint64_t number) {
  auto found = peers_.find(number);
  if (found == peers_.end()) return;
  if (found->second.stream) world_.cluster->network.Close(found->second.stream, found->second.side);
  peers_.erase(found);
}

// ---- flows --------------------------------------------------------------------------------------------------------

MessageFlow& SimulatedNode::FlowWith(NodeNumber node) {
  auto found = flows_.find(node);
  if (found != flows_.end()) return found->second;
  MessageFlow::Config config;
  config.connects = !is_head() && node != head_;
  MessageFlow& flow = flows_.emplace(node, MessageFlow(config)).first->second;
  flow.faults = world_.options.flow_faults;
  return flow;
}

void SimulatedNode::OpenFlow(uint64_t number, NodeNumber node, bool sends, bool takes) {
  Peer& peer = peers_.at(number);
  if (peer.flow_with == node) return;
  peer.flow_with = node;
  FlowWith(node);
  FeedFlow(node, FlowLinkOpened{number, sends, takes, Now()});
}

void SimulatedNode::OpenIncoming(uint64_t number) {
  const NodeNumber node = peers_.at(number).node;
  std::vector<uint64_t> older;
  for (const auto& [other_number, other] : peers_) {
    if (other.accepted && other.ready && other.node == node && other_number < number) older.push_back(other_number);
  }
  for (uint64_t old : older) {
    if (auto found = peers_.find(old); found != peers_.end() && found->second.stream) {
      world_.cluster->network.Close(found->second.stream, found->second.side);
    }
    Lost(old, false, false);
  }
  if (!is_head()) OpenFlow(number, node, false, true);
}

template <class Event>
bool SimulatedNode::FeedFlow(NodeNumber node, Event event) {
  std::vector<FlowAction> actions;
  flows_.at(node).Handle(std::move(event), actions);
  bool take = false;
  for (const FlowAction& action : actions) {
    if (const auto* pass = std::get_if<PassMessages>(&action)) {
      PassMessagesTo(node, pass->link);
    } else if (std::holds_alternative<TakeMessage>(action)) {
      take = true;
    } else if (const auto* say = std::get_if<SayTaken>(&action)) {
      SendDirectly(say->link, FlowTaken{say->through});
    } else if (std::holds_alternative<ConnectFlow>(action)) {
      if (!DialNode(node)) FeedFlow(node, ConnectingFailed{Now()});
    } else if (const auto* end = std::get_if<BreakFlowLink>(&action)) {
      if (!world_.faulty()) world_.Fail("a link was broken because " + end->why);
      if (auto found = peers_.find(end->link); found != peers_.end() && found->second.stream) {
        world_.cluster->network.Close(found->second.stream, found->second.side);
      }
      Lost(end->link, false, false);
    } else if (const auto* complain = std::get_if<ComplainOfOther>(&action)) {
      world_.node_coverage.Did("a node complained of another");
      SendToHead(NodeUnreachable{node, Now() - complain->since_ns, "nothing is heard of it"});
    } else if (std::holds_alternative<TakeBackComplaint>(action)) {
      SendToHead(NodeReachable{node});
    }
  }
  if (auto found = flows_.find(node); found != flows_.end() && found->second.kept_messages() > 1'000'000) {
    world_.Fail("messages to another node are kept without bound");
  }
  return take;
}

void SimulatedNode::PassMessagesTo(NodeNumber node, uint64_t number) {
  auto found = peers_.find(number);
  if (found == peers_.end()) return;
  MessageFlow& flow = flows_.at(node);
  std::vector<FlowAction> none;
  while (const std::string* next = flow.Next()) {
    if (world_.faulty() && world_.random.Chance(world_.refuse_percent)) {
      flow.Handle(FlowLinkFull{}, none);
      Later(world_.Delay(), [=, this] {
        if (flows_.contains(node)) FeedFlow(node, FlowLinkDrained{number});
      });
      return;
    }
    SendBytes(found->second, *next);
    flow.Handle(MessagePassed{}, none);
  }
}

// ---- messages -----------------------------------------------------------------------------------------------------

void SimulatedNode::Deliver(NodeNumber from, NodeMessage& message) {
  world_.Note("node hears", self_.value, from.value, message.index());
  if (is_head()) {
    if (std::holds_alternative<NodeBeat>(message) || std::holds_alternative<NodeLoad>(message) ||
        std::holds_alternative<WishSent>(message) || std::holds_alternative<JobDescribed>(message) ||
        std::holds_alternative<WorkDeclined>(message) || std::holds_alternative<NodeFarewell>(message) ||
        std::holds_alternative<NodeUnreachable>(message) || std::holds_alternative<NodeReachable>(message)) {
      return AtHead(from, message);
    }
  } else if (!from) {
    if (auto* accepted = std::get_if<NodeAccepted>(&message)) {
      if (!lease_->Accepts(accepted->epoch)) return;
      std::vector<LeaseAction> actions;
      const bool first = !self_;
      const bool is_new = accepted->epoch != lease_->epoch();
      lease_->Handle(HeadAccepted{accepted->epoch, accepted->beat, accepted->node, accepted->lease_ns, Now()}, actions);
      self_ = accepted->node;
      head_ = accepted->head;
      newest_ = std::max(newest_, self_);
      OpenFlow(head_link_, head_, true, true);
      if (first) {
        Joined();
      } else if (is_new) {
        world_.node_coverage.Did("a node met a new head");
        for (const auto& [other, flow] : flows_) {
          if (flow.complains()) SendToHead(NodeUnreachable{other, 0, "nothing is heard of it"});
        }
        daemon_->HeadForgot();
      }
      return Perform(std::move(actions));
    }
    if (auto* refused = std::get_if<NodeRefused>(&message)) {
      if (!self_) return Leave(refused->why);
      std::vector<LeaseAction> actions;
      lease_->Handle(HeadDeclaredUsDead{lease_->epoch(), refused->why, Now()}, actions);
      return Perform(std::move(actions));
    }
    if (auto* confirmed = std::get_if<BeatConfirmed>(&message)) {
      std::vector<LeaseAction> actions;
      lease_->Handle(LeaseConfirmed{confirmed->epoch, confirmed->beat, Now()}, actions);
      return Perform(std::move(actions));
    }
    if (auto* appeared = std::get_if<NodeAppeared>(&message)) {
      newest_ = std::max(newest_, appeared->node);
      nodes_[appeared->node] = {{}, appeared->name, appeared->address, appeared->resources, appeared->labels};
      std::vector<uint64_t> early;
      for (const auto& [number, peer] : peers_) {
        if (peer.accepted && peer.ready && peer.node == appeared->node && !peer.flow_with) early.push_back(number);
      }
      for (uint64_t number : early) {
        if (peers_.contains(number)) OpenIncoming(number);
      }
      return;
    }
    if (auto* vanished = std::get_if<NodeVanished>(&message)) return Vanish(vanished->node, vanished->why);
    if (auto* listed = std::get_if<NodesListed>(&message)) {
      std::vector<NodeNumber> gone;
      for (const auto& [node, other] : nodes_) {
        if (std::find(listed->nodes.begin(), listed->nodes.end(), node) == listed->nodes.end()) gone.push_back(node);
      }
      for (const auto& [node, flow] : flows_) {
        if (node != head_ && !nodes_.contains(node)) gone.push_back(node);  // it came and went
      }
      for (NodeNumber node : gone) Vanish(node, "the head no longer knows it");
      return;
    }
  }
  if (daemon_) daemon_->NodeMessageCame(from ? from : head_, message);
}

const JobDescribed* SimulatedNode::FindJob(ProcessId job) const {
  auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

void SimulatedNode::Vanish(NodeNumber node, const std::string& why) {
  newest_ = std::max(newest_, node);
  if (!nodes_.contains(node) && !flows_.contains(node)) return;
  gone_.insert(node);
  nodes_.erase(node);
  if (auto found = outgoing_.find(node); found != outgoing_.end()) {
    ClosePeer(found->second);
    outgoing_.erase(node);
  }
  std::vector<uint64_t> theirs;
  for (const auto& [number, peer] : peers_) {
    if (peer.accepted && peer.node == node) theirs.push_back(number);
  }
  for (uint64_t number : theirs) ClosePeer(number);
  flows_.erase(node);
  told_jobs_.erase(node);
  if (daemon_) daemon_->NodeIsGone(node, why);
}

void SimulatedNode::AtHead(NodeNumber from, NodeMessage& message) {
  std::vector<GlobalAction> actions;
  if (auto* beat = std::get_if<NodeBeat>(&message)) {
    auto member = membership_->members().find(from);
    if (member == membership_->members().end()) return;
    std::vector<MembershipAction> decided;
    membership_->Handle(BeatCame{member->second.link, beat->beat, beat->epoch, Now()}, decided);
    return Perform(std::move(decided));
  }
  if (auto* unreachable = std::get_if<NodeUnreachable>(&message)) {
    std::vector<MembershipAction> decided;
    membership_->Handle(UnreachableSaid{from, unreachable->node, unreachable->for_ns, unreachable->why, Now()},
                        decided);
    return Perform(std::move(decided));
  }
  if (auto* reachable = std::get_if<NodeReachable>(&message)) {
    std::vector<MembershipAction> decided;
    membership_->Handle(ReachableSaid{from, reachable->node, Now()}, decided);
    return Perform(std::move(decided));
  }
  if (auto* load = std::get_if<NodeLoad>(&message)) {
    scheduler_->Handle(NodeReported{from, load->placements_seen, load->available, load->free_gpus, load->leases, {}},
                       actions);
  } else if (auto* wish = std::get_if<WishSent>(&message)) {
    const std::pair key{from, wish->wish};
    const WishId id{from, wish->wish};
    if (wish->withdrawn != 0) {
      wishes_.erase(key);
      scheduler_->Handle(WishWithdrawn{id}, actions);
    } else if (wishes_.contains(key)) {
      scheduler_->Handle(WishChanged{id, wish->count, wish->placed_heard}, actions);
    } else {
      WorkWished wished{.wish = id,
                        .process = wish->process,
                        .job = wish->job.value,
                        .shape = wish->shape,
                        .count = wish->count,
                        .depth = wish->depth};
      wishes_[key] = *wish;
      wished.actor = static_cast<bool>(wish->actor);
      scheduler_->Handle(wished, actions);
    }
  } else if (auto* job = std::get_if<JobDescribed>(&message)) {
    jobs_[job->driver] = *job;
    for (const auto& [node, other] : std::map(nodes_)) {
      if (node == from || node == self_) continue;
      if (told_jobs_[node].insert(job->driver).second) Send(node, *job);
    }
    if (from != self_ && daemon_) daemon_->NodeMessageCame(from, message);
  } else if (auto* declined = std::get_if<WorkDeclined>(&message)) {
    scheduler_->Handle(
        PlacementRefused{from, declined->placement, WishId{declined->asker, declined->wish}, declined->count}, actions);
  } else if (std::holds_alternative<NodeFarewell>(message)) {
    auto member = membership_->members().find(from);
    if (member == membership_->members().end()) return;
    std::vector<MembershipAction> decided;
    membership_->Handle(FarewellCame{member->second.link, Now()}, decided);
    return Perform(std::move(decided));
  }
  Perform(std::move(actions));
}

// ---- decisions ----------------------------------------------------------------------------------------------------

void SimulatedNode::Joined() {
  world_.cluster->NumberGiven(self_, machine_.number);
  world_.Note("joined", machine_.number, self_.value);
  auto& daemon = world_.daemons[self_];
  daemon = std::make_unique<SimulatedDaemon>(world_, this);
  daemon_ = daemon.get();
  daemon_->Open();
}

void SimulatedNode::Perform(std::vector<LeaseAction> actions) {
  for (auto& action : actions) {
    if (auto* join = std::get_if<SendJoin>(&action)) {
      NodeJoins joins{join->was,
                      join->epoch,
                      join->beat,
                      kNodeProtocolVersion,
                      identity_,
                      NameOf(machine_.number),
                      Address(machine_.number, port_),
                      {},
                      {}};
      joins.resources = {{"CPU", machine_.cpus * kResourceUnit}};
      if (machine_.gpus > 0) joins.resources.emplace_back("gpu", machine_.gpus * kResourceUnit);
      SendToHead(joins);
    } else if (auto* beat = std::get_if<SendBeat>(&action)) {
      SendToHead(NodeBeat{beat->beat, beat->epoch});
    } else if (std::holds_alternative<LinkToHead>(action)) {
      if (head_link_ == 0) dial_again_ns_ = std::min(dial_again_ns_, Now() + kDialAgainNs);
    } else if (std::holds_alternative<FreezeWork>(action)) {
      world_.node_coverage.Did("a node froze its work");
      world_.Note("freezes", self_.value);
      if (daemon_) daemon_->FreezeWork();
    } else if (std::holds_alternative<ThawWork>(action)) {
      world_.node_coverage.Did("a node thawed its work");
      world_.Note("thaws", self_.value);
      if (daemon_) daemon_->ThawWork();
    } else if (auto* give_up = std::get_if<GiveUpWork>(&action)) {
      return Leave(give_up->why);
    }
  }
}

void SimulatedNode::Perform(std::vector<MembershipAction> actions) {
  for (auto& action : actions) {
    if (ended_) return;
    if (auto* accept = std::get_if<AcceptNode>(&action)) {
      const NodeDescription& description = membership_->members().at(accept->node).description;
      accepted_[accept->node] = *accept;
      if (accept->again) {
        if (nodes_.contains(accept->node)) Accepted(accept->node);
        continue;
      }
      WriteBatch batch;
      NodeRecord record;
      record.number = accept->node.value;
      record.identity = ToIdentity(description.identity);
      record.name = description.name;
      record.address = description.address;
      record.resources = description.resources;
      Put(batch, record);
      cluster_.next_node = std::max(cluster_.next_node, membership_->next_number().value);
      Put(batch, cluster_);
      if (world_.options.cluster_faults.tell_before_writing) {
        Accepted(accept->node);
        Commit(std::move(batch), nullptr);
      } else {
        Commit(std::move(batch), [this, node = accept->node] { Accepted(node); });
      }
    } else if (auto* refuse = std::get_if<RefuseNode>(&action)) {
      world_.Note("refuses", static_cast<uint64_t>(refuse->kind));
      SendDirectly(refuse->link, NodeRefused{refuse->kind == RefuseNode::Kind::kDeclaredDead, refuse->why});
      ClosePeer(refuse->link);
    } else if (auto* confirm = std::get_if<ConfirmLease>(&action)) {
      SendDirectly(confirm->link, BeatConfirmed{confirm->beat, confirm->epoch});
    } else if (auto* close = std::get_if<CloseMemberLink>(&action)) {
      if (auto found = peers_.find(close->link); found != peers_.end()) {
        if (found->second.stream) world_.cluster->network.Close(found->second.stream, found->second.side);
        Lost(close->link, false, false);
      }
    } else if (auto* suspect = std::get_if<SuspectNode>(&action)) {
      std::vector<GlobalAction> decided;
      if (here_.contains(suspect->node)) scheduler_->Handle(NodeSuspected{suspect->node, true}, decided);
      Perform(std::move(decided));
    } else if (auto* trust = std::get_if<TrustNode>(&action)) {
      world_.node_coverage.Did("a suspected node came back");
      std::vector<GlobalAction> decided;
      if (here_.contains(trust->node)) scheduler_->Handle(NodeSuspected{trust->node, false}, decided);
      Perform(std::move(decided));
    } else if (auto* expel = std::get_if<ExpelNode>(&action)) {
      world_.node_coverage.Did("a node had to leave");
      world_.cluster->Expelled(expel->node);
      SendDirectly(expel->link, NodeRefused{1, expel->why});
    } else if (auto* dead = std::get_if<DeclareDead>(&action)) {
      WriteBatch batch;
      DeleteNode(batch, dead->node.value);
      Commit(std::move(batch), [this, news = *dead] { Dead(news); });
    } else if (std::holds_alternative<StepDown>(action)) {
      return Leave("another head has taken over this cluster");
    }
  }
}

void SimulatedNode::Accepted(NodeNumber node) {
  auto member = membership_->members().find(node);
  if (member == membership_->members().end()) return;
  const NodeDescription description = member->second.description;
  const bool is_new = nodes_.emplace(node, description).second;
  if (node == self_) {
    std::vector<MembershipAction> none;
    membership_->Handle(JoiningBegan{Now()}, none);
    Joined();
  } else if (auto found = peers_.find(member->second.link); found != peers_.end()) {
    const uint64_t number = found->first;
    found->second.node = node;
    const AcceptNode& accept = accepted_.at(node);
    SendDirectly(number, NodeAccepted{node, self_, accept.epoch, accept.beat, accept.lease_ns});
    NodesListed listed;
    for (const auto& [other_node, other] : nodes_) {
      SendDirectly(number, NodeAppeared{other_node, other.name, other.address, other.resources, other.labels});
      listed.nodes.push_back(other_node);
    }
    SendDirectly(number, listed);
    OpenFlow(number, node, true, true);
  }
  if (is_new) {
    NodeAppeared news{node, description.name, description.address, description.resources, description.labels};
    for (auto& [number, peer] : peers_) {
      if (peer.joining && peer.node && peer.node != node) SendBytes(peer, EncodeNodeMessage(news));
    }
  }
  std::vector<GlobalAction> decided;
  if (here_.insert(node).second) {
    scheduler_->Handle(NodeJoined{node, description.resources, description.resources, {}, description.labels}, decided);
  }
  Perform(std::move(decided));
}

void SimulatedNode::Dead(const DeclareDead& news) {
  world_.node_coverage.Did("a node was declared dead");
  world_.Note("declared dead", news.node.value);
  world_.cluster->DeclaredDead(news.node);
  std::vector<GlobalAction> decided;
  accepted_.erase(news.node);
  if (here_.erase(news.node) > 0) scheduler_->Handle(NodeLeft{news.node}, decided);
  std::erase_if(wishes_, [&](const auto& wish) { return wish.first.first == news.node; });
  for (auto& [number, peer] : peers_) {
    if (peer.joining && peer.node && peer.node != news.node) {
      SendBytes(peer, EncodeNodeMessage(NodeVanished{news.node, news.why}));
    }
  }
  Vanish(news.node, news.why);
  Perform(std::move(decided));
}

void SimulatedNode::Perform(std::vector<GlobalAction> actions) {
  for (auto& action : actions) {
    if (auto* place = std::get_if<PlaceWork>(&action)) {
      auto wish = wishes_.find({place->wish.asker, place->wish.number});
      if (wish == wishes_.end()) continue;
      const WishSent wished = wish->second;
      if (told_jobs_[place->node].insert(wished.job).second) {
        if (const JobDescribed* described = FindJob(wished.job)) Send(place->node, *described);
      }
      Send(place->wish.asker, WishServed{place->wish.number, place->count});
      Send(place->node,
           WorkAssigned{place->wish.asker, place->wish.number, place->placement, place->process, wished.job,
                        wished.shape, place->count, place->depth, wished.actor, wished.to_hold, wished.class_name});
    } else if (auto* unplace = std::get_if<UnplaceWork>(&action)) {
      Send(unplace->wish.asker, WishServed{unplace->wish.number, -static_cast<int64_t>(unplace->count)});
    } else if (auto* refuse = std::get_if<RefuseWork>(&action)) {
      wishes_.erase({refuse->wish.asker, refuse->wish.number});
      Send(refuse->wish.asker, WishRefused{refuse->wish.number, 1, refuse->why});
    } else if (auto* warn = std::get_if<WarnInfeasible>(&action)) {
      Send(warn->wish.asker, WishRefused{warn->wish.number, 0, warn->why});
    }
  }
}

// ---- the control store --------------------------------------------------------------------------------------------

void SimulatedNode::Acquire() {
  store_->AcquireLeadership({.name = "head", .lease_ms = 1000, .grace_ms = 100},
                            [this](StoreResult<Leadership> outcome) { Acquired(std::move(outcome)); });
  PumpStore();
}

void SimulatedNode::Acquired(StoreResult<Leadership> outcome) {
  if (ended_) return;
  if (!outcome.ok()) return Later(kStoreAgainNs, [this] { Acquire(); });
  renew_at_ns_ = Now() + kRenewNs;
  std::vector<std::pair<NodeNumber, NodeDescription>> members;
  std::vector<uint32_t> former;
  NodeNumber next{1};
  for (const StoredRecord& record : outcome->snapshot) {
    if (record.table == Table::kCluster) cluster_ = Decode<ClusterRecord>(record).value();
    if (record.table != Table::kNodes) continue;
    const NodeRecord node = Decode<NodeRecord>(record).value();
    next.value = std::max(next.value, node.number + 1);
    if (node.name == "machine-0") {
      former.push_back(node.number);
    } else {
      members.emplace_back(NodeNumber{node.number}, NodeDescription{FromIdentity(node.identity), node.name,
                                                                    node.address, node.resources, node.labels});
    }
  }
  cluster_.next_node = std::max(cluster_.next_node, next.value);
  next.value = cluster_.next_node;
  WriteBatch batch;
  Put(batch, cluster_);
  for (uint32_t node : former) DeleteNode(batch, node);
  Commit(std::move(batch), [this, epoch = outcome->epoch, members = std::move(members), next]() mutable {
    Opened(epoch, std::move(members), next);
  });
}

void SimulatedNode::Opened(uint64_t epoch, std::vector<std::pair<NodeNumber, NodeDescription>> members,
                           NodeNumber next) {
  epoch_ = epoch;
  if (epoch > 1) world_.node_coverage.Did("the head was started again");
  Listen();
  membership_ = std::make_unique<Membership>(Membership::Config{.epoch = epoch,
                                                                .protocol = kNodeProtocolVersion,
                                                                .lease_ns = SimulatedCluster::kLeaseNs,
                                                                .grace_ns = kGraceNs,
                                                                .first_pause_ns = 1'000 * kMs,
                                                                .last_pause_ns = 4'000 * kMs});
  membership_->faults = world_.options.membership_faults;
  scheduler_ = std::make_unique<GlobalScheduler>();
  scheduler_->faults = world_.options.global_faults;
  for (const auto& [node, description] : members) nodes_[node] = description;
  std::vector<MembershipAction> actions;
  membership_->Handle(MembersRestored{std::move(members), next, 0, Now()}, actions);
  JoinAsked self{.link = next_peer_++, .protocol = kNodeProtocolVersion, .now_ns = Now(), .own = true};
  self.node = {identity_, "machine-0", Address(0, kHeadPort), {{"CPU", machine_.cpus * kResourceUnit}}, {}};
  if (machine_.gpus > 0) self.node.resources.emplace_back("gpu", machine_.gpus * kResourceUnit);
  self_ = head_ = membership_->next_number();
  own_link_ = self.link;
  membership_->Handle(self, actions);
  Perform(std::move(actions));
}

void SimulatedNode::Commit(WriteBatch batch, std::function<void()> then) {
  changes_.push_back({std::move(batch), std::move(then)});
  Submit();
}

void SimulatedNode::Submit() {
  if (ended_ || submitted_ || changes_.empty()) return;
  submitted_ = true;
  StoreStatus status =
      store_->Commit(changes_.front().batch, [this](StoreStatus outcome) { Committed(std::move(outcome)); });
  if (!status.ok()) return Committed(status);
  PumpStore();
}

void SimulatedNode::Committed(const StoreStatus& outcome) {
  submitted_ = false;
  if (ended_ || outcome.code() == StoreCode::kClosed) return;
  if (outcome.code() == StoreCode::kFenced) return Leave("another head has taken over this cluster");
  if (!outcome.ok()) {
    world_.node_coverage.Did("the control store took no change");
    return Later(kStoreAgainNs, [this] { Submit(); });
  }
  auto then = std::move(changes_.front().then);
  changes_.pop_front();
  if (then) then();
  Submit();
}

void SimulatedNode::PumpStore() {
  if (std::exchange(pumping_store_, true)) return;
  Later(world_.Delay() + 50'000, [this] {
    pumping_store_ = false;
    SimulatedStorage& storage = *world_.cluster->storage;
    storage.now_ns = world_.now();
    if (storage.away) world_.node_coverage.Did("the control store was away");
    if (!store_->Perform()) {
      if (storage.away) Later(5 * kMs, [this] { PumpStore(); });
      return;
    }
    Later(world_.Delay() + 50'000, [this] {
      if (store_->Deliver() && !ended_) PumpStore();
    });
  });
}

// ---- rest ---------------------------------------------------------------------------------------------------------

void SimulatedNode::CheckRest() const {
  const std::string who = "at rest, node " + std::to_string(self_.value);
  if (frozen()) world_.Fail(who + " stands still");
  for (const auto& [node, flow] : flows_) {
    if (flow.kept_messages() > 0) world_.Fail(who + " keeps messages to node " + std::to_string(node.value));
  }
  if (!is_head()) return;
  if (scheduler_->wish_count() != 0) world_.Fail("at rest, the head still knows wishes");
  if (!changes_.empty()) world_.Fail("at rest, changes wait for the control store");
  if (membership_->members().size() != world_.cluster->machines.size()) {
    world_.Fail("at rest, the head knows " + std::to_string(membership_->members().size()) + " nodes");
  }
}

std::string SimulatedNode::Describe() const {
  std::string text = "machine " + std::to_string(machine_.number) + ": node " + std::to_string(self_.value) +
                     (is_head() ? " (head)" : "") + (frozen() ? " frozen" : "") + ", knows";
  for (const auto& [node, other] : nodes_) text.append(" ").append(std::to_string(node.value));
  text += head_link_ != 0 || is_head() ? "" : ", no link to the head";
  for (const auto& [node, flow] : flows_) {
    text.append(", flow with ").append(std::to_string(node.value));
    text.append(" keeps ").append(std::to_string(flow.kept_messages()));
  }
  if (scheduler_) {
    text.append(", wishes ").append(std::to_string(scheduler_->wish_count()));
    for (const auto& [key, wish] : wishes_) {
      text.append(" ").append(std::to_string(key.first.value)).append("/").append(std::to_string(key.second));
    }
  }
  if (!changes_.empty()) text += ", changes " + std::to_string(changes_.size());
  return text + "\n";
}

}  // namespace weft::core
