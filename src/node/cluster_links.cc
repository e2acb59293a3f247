// Cluster: links, the flows of messages over them, and nodes that cannot be reached.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/clock.h"
#include "node/cluster.h"
#include "node/cluster_peer.h"
#include "os/tcp.h"

namespace weft::core {
namespace {

// The first attempt to reach the head again comes soon, as most links that end do so by mishap.
constexpr int64_t kDialSoonNs = 10'000'000;

// For a link or a channel to another node, all included. Shorter than by default, as there may be no way to it: then a
// new attempt is better than one that has begun to wait for long between its packets.
constexpr int64_t kReachNs = 3'000'000'000;
// The head and a node that cannot connect for channels for so long complain, as flows do of other pairs. If the last
// failure is older than this, it is another story.
constexpr int64_t kComplainNs = 8'000'000'000;
constexpr int64_t kSameStoryNs = 20'000'000'000;

// A head that hangs takes connections, as its kernel does that, and says nothing. If there are several, another may
// lead meanwhile, and gives up whoever has not come to it within a lease.
constexpr int64_t kOneOfSeveralNs = 2'000'000'000;

// What a node has to say in its log while the head is away.
constexpr size_t kMostTold = 20;

// Who waits because too much was sent to a node goes on when no more than this is left.
constexpr uint64_t kRoomBytes = 32 << 20;

std::string HeaderBytes(const ChunkHead& head) { return {reinterpret_cast<const char*>(&head), sizeof head}; }

}  // namespace

// ---- links --------------------------------------------------------------------------------------------------------

Status Cluster::Listen() {
  if (listener_) return {};
  auto listener = LinkListener::Listen(loop_, options_.host, options_.port, settings_, "", *this);
  if (!listener) return listener.error();
  listener_ = std::move(*listener);
  own_address_ = HostPortText(options_.host, listener_->port());
  return {};
}

Status Cluster::DialHead() {
  // Of several heads one leads; the others do not listen.
  const std::vector<std::string> heads = SplitAddresses(head_address_);
  auto where = ParseHostPort(heads[next_head_++ % heads.size()]);
  if (!where) return where.error();
  auto peer = std::make_unique<Peer>(*this, next_peer_++, NodeNumber{});
  peer->to_head = true;
  LinkSettings settings = settings_;
  if (heads.size() > 1) settings.handshake_timeout_ns = kOneOfSeveralNs;
  auto link = Link::Dial(loop_, where->first, where->second, settings,
                         EncodeHello({.purpose = static_cast<uint8_t>(LinkPurpose::kJoin)}), *peer);
  if (!link) return link.error();
  peer->link = std::move(*link);
  head_link_ = peer->number;
  peers_[peer->number] = std::move(peer);
  return {};
}

void Cluster::LinkAccepted(std::unique_ptr<Link> link, std::string_view bytes) {
  NodeHello hello;
  if (!DecodeHello(bytes, &hello)) return;
  switch (static_cast<LinkPurpose>(hello.purpose)) {
    case LinkPurpose::kChannel: {
      const uint64_t number = next_peer_++;
      auto channel = std::make_unique<Dialled>(*this, number, hello.submitter, hello.worker, false);
      link->set_handler(*channel);
      channel->link = std::move(link);
      Dialled& accepted = *(dialled_[number] = std::move(channel));
      return accepted.Release(*accepted.link);
    }
    case LinkPurpose::kJoin:
    case LinkPurpose::kNode: {
      const bool joining = static_cast<LinkPurpose>(hello.purpose) == LinkPurpose::kJoin;
      // Before it is a member itself, a head has nobody who would listen to what a node tells anew.
      if (joining && is_head() && !Knows(self_)) return;
      auto peer = std::make_unique<Peer>(*this, next_peer_++, joining ? NodeNumber{} : hello.node);
      // Who was a member under another number, of which it has not heard perhaps, has a flow with nobody under that
      // one.
      if (!joining && (!hello.node || gone_.contains(hello.node) || !self_ || hello.to != self_)) return;
      peer->ready = true;
      peer->joining = joining && is_head();
      peer->accepted = !peer->joining;
      peer->astray = joining && !is_head();
      link->set_handler(*peer);
      peer->link = std::move(link);
      Peer& accepted = *(peers_[peer->number] = std::move(peer));
      if (!joining && nodes_.contains(accepted.node)) OpenIncoming(accepted);  // else when the head tells of it
      return;
    }
  }
}

void Cluster::LinkRefused(const std::string& address, RefusalKind kind, const Error& why) {
  std::fputs(refusals_.Refused(address, kind, why.message, NowNs()).c_str(), stderr);
}

void Cluster::Received(Peer& peer, std::string_view bytes) {
  NodeMessage message = DecodeNodeMessage(bytes);
  if (std::holds_alternative<std::monostate>(message)) {
    peer.link->Close();
    return Lost(peer, {ErrorKind::kInvalid, "it sent what cannot be understood"});
  }
  if (peer.to_head && peer.number != head_link_) return;
  if (peer.astray) {
    // Who was a member looks for its head elsewhere; to be refused would cost it what it runs.
    if (auto* joins = std::get_if<NodeJoins>(&message); joins != nullptr && !joins->was) {
      peer.Send(EncodeNodeMessage(NodeRefused{0, "at " + own_address_ + " is the node " + options_.name +
                                                     ", not the head; say --address=" + head_address_}));
    }
    return peer.link->CloseWhenSent();
  }
  if (peer.joining) {
    if (auto* joins = std::get_if<NodeJoins>(&message)) {
      JoinAsked asked{.link = peer.number,
                      .was = joins->was,
                      .epoch = joins->epoch,
                      .beat = joins->beat,
                      .protocol = joins->protocol,
                      .node = {joins->identity, joins->name, joins->address, joins->resources, joins->labels},
                      .now_ns = NowNs()};
      std::vector<MembershipAction> actions;
      membership_->Handle(asked, actions);
      return Perform(actions);
    }
    peer.node = membership_->NodeOf(peer.number);
    if (!peer.node) return;  // no member any more
  }
  if (!peer.to_head && !nodes_.contains(peer.node)) return;
  const auto* taken = std::get_if<FlowTaken>(&message);
  if (taken != nullptr || IsInFlow(message)) {
    auto flow = flows_.find(peer.flow_with);
    if (flow == flows_.end()) return;  // it is gone, or its messages come over another link
    if (taken == nullptr) {
      if (!FeedFlow(flow->first, MessageArrived{peer.number, bytes.size(), NowNs()})) return;
    } else {
      FeedFlow(flow->first, TakenHeard{peer.number, taken->through});
      if (!flow->second.awaited || flow->second.machine.kept_bytes() > kRoomBytes) return;
      flow->second.awaited = false;
      return host_.NodeHasRoom(flow->first);
    }
  }
  Deliver(peer.to_head ? NodeNumber{} : peer.node, message);
}

void Cluster::Lost(Peer& peer, const Error& why) {
  ended_.push_back(peer.number);
  const bool was_ready = std::exchange(peer.ready, false);
  peer.waiting.clear();
  const int64_t now = NowNs();
  const NodeNumber other = peer.Other();
  const bool dialled = !peer.to_head && !peer.joining && !peer.accepted;
  if (auto flow = flows_.find(other); dialled && flow != flows_.end()) flow->second.why = why.message;
  if (peer.flow_with && flows_.contains(peer.flow_with)) {
    FeedFlow(peer.flow_with, FlowLinkClosed{peer.number, now});
  } else if (dialled && !was_ready && flows_.contains(other)) {
    FeedFlow(other, ConnectingFailed{now});
  }
  if (auto found = outgoing_.find(peer.node); dialled && found != outgoing_.end() && found->second == peer.number) {
    outgoing_.erase(found);
  }
  if (self_ && Knows(other)) {
    if (!dialled) host_.LinkBroken(other);
    if (peer.sends_chunks) Send(other, ChunksCut{});
  }
  if (peer.to_head) {
    if (head_link_ != peer.number) return;
    head_link_ = 0;
    const bool others = SplitAddresses(head_address_).size() > 1 && why.kind != ErrorKind::kInvalid;
    // It is busy with strangers, who made us the oldest; or is just beginning, or cannot write us down.
    const bool may_change = why.kind == ErrorKind::kFull || (was_ready && why.kind == ErrorKind::kGone);
    if (!self_ && !others && !may_change) return host_.ClusterRefused(why.message);
    // Attempts may go on for minutes; what they meet with is news only once.
    if (self_ && !leaving_ && head_is_away_.size() < kMostTold && head_is_away_.insert(why.message).second) {
      std::fprintf(stderr, "weft node: the head is away, and is looked for: %s\n", why.message.c_str());
    }
    if (!leaving_) dial_again_ns_ = now + (was_ready ? kDialSoonNs : kDialAgainNs);
    std::vector<LeaseAction> actions;
    lease_->Handle(HeadLinkLost{now}, actions);
    if (peer.link && peer.link->nobody_listens() && peer.link->peer_address() == leader_address_) {
      lease_->Handle(HeadEnded{now}, actions);
    }
    return Perform(actions);
  }
  if (peer.joining) {
    std::vector<MembershipAction> actions;
    membership_->Handle(MemberLinkClosed{peer.number, why.kind == ErrorKind::kGone, now}, actions);
    return Perform(actions);
  }
}

void Cluster::Bury() {
  for (uint64_t number : std::exchange(ended_, {})) {
    peers_.erase(number);
    dialled_.erase(number);
  }
}

Cluster::Peer* Cluster::PeerFor(NodeNumber node) {
  if (is_head()) {
    auto member = membership_->members().find(node);
    if (member == membership_->members().end()) return nullptr;
    auto found = peers_.find(member->second.link);
    return found == peers_.end() ? nullptr : found->second.get();
  }
  if (auto found = outgoing_.find(node); found != outgoing_.end()) return peers_.at(found->second).get();
  auto known = nodes_.find(node);
  if (known == nodes_.end()) return nullptr;
  auto where = ParseHostPort(known->second.address);
  if (!where) return nullptr;
  auto peer = std::make_unique<Peer>(*this, next_peer_++, node);
  LinkSettings settings = settings_;
  settings.handshake_timeout_ns = kReachNs;
  auto link =
      Link::Dial(loop_, where->first, where->second, settings,
                 EncodeHello({.purpose = static_cast<uint8_t>(LinkPurpose::kNode), .node = self_, .to = node}), *peer);
  if (!link) return nullptr;
  peer->link = std::move(*link);
  outgoing_[node] = peer->number;
  return (peers_[peer->number] = std::move(peer)).get();
}

void Cluster::Send(NodeNumber to, const NodeMessage& message) {
  if (to ? to == self_ : is_head()) {
    NodeMessage copy = message;
    // The head is a node as well: what is for the node is not for the head, even if it is of the same kind.
    return to ? host_.NodeMessageCame(self_, copy) : Deliver(self_, copy);
  }
  if (!IsInFlow(message)) return SendDirectly(head_link_, message);
  const NodeNumber node = to ? to : head_;
  if (!node || (node != head_ && !nodes_.contains(node) && !MayAppear(node))) return;  // gone
  std::string bytes = EncodeNodeMessage(message);
  if (bytes.size() > settings_.max_message_bytes) {
    std::fprintf(stderr, "weft node: a message of %zu bytes to %s is too large and was dropped\n", bytes.size(),
                 Describe(node).c_str());
    return;
  }
  FlowWith(node);
  FeedFlow(node, MessageWritten{std::move(bytes), NowNs()});
}

void Cluster::SendDirectly(uint64_t link, const NodeMessage& message) {
  auto found = peers_.find(link);
  if (found != peers_.end()) found->second->Send(EncodeNodeMessage(message));
}

void Cluster::SendToAll(const NodeMessage& message) {
  std::vector<NodeNumber> others;
  for (const auto& [node, other] : nodes_) {
    if (node != self_) others.push_back(node);
  }
  for (NodeNumber node : others) Send(node, message);
}

void Cluster::SendChunk(NodeNumber to, const ChunkHead& head, std::span<const uint8_t> payload,
                        std::shared_ptr<const void> keeper) {
  Peer* peer = PeerFor(to);
  if (peer == nullptr) return Send(to, ChunksCut{});
  peer->SendChunk(HeaderBytes(head), payload, std::move(keeper));
}

void Cluster::DiscardChunk(NodeNumber from, uint64_t request) {
  for (auto& [number, peer] : peers_) {
    if (peer->Other() == from && peer->chunk_request == request) peer->link->DiscardChunk();
  }
}

void Cluster::DialChannel(ProcessId submitter, ProcessId worker) {
  auto known = nodes_.find(NodeOf(worker));
  Result<std::pair<std::string, uint16_t>> where =
      known == nodes_.end() ? Error{ErrorKind::kGone, "its node is not known"} : ParseHostPort(known->second.address);
  // If the connection does not carry anything one day, a link between the two daemons tells.
  if (known != nodes_.end()) {
    FlowWith(known->first);
    FeedFlow(known->first, FlowNeeded{NowNs()});
  }
  const uint64_t number = next_peer_++;
  auto channel = std::make_unique<Dialled>(*this, number, submitter, worker, true);
  LinkSettings settings = settings_;
  settings.handshake_timeout_ns = kReachNs;
  Result<std::unique_ptr<Link>> link =
      where ? Link::Dial(loop_, where->first, where->second, settings,
                         EncodeHello({.purpose = static_cast<uint8_t>(LinkPurpose::kChannel),
                                      .node = self_,
                                      .submitter = submitter,
                                      .worker = worker}),
                         *channel)
            : where.error();
  if (!link) return host_.ChannelConnected(submitter, worker, true, link.error());
  channel->link = std::move(*link);
  dialled_[number] = std::move(channel);
}

// ---- flows --------------------------------------------------------------------------------------------------------

Cluster::Flow& Cluster::FlowWith(NodeNumber node) {
  auto found = flows_.find(node);
  if (found != flows_.end()) return found->second;
  MessageFlow::Config config;
  config.connects = !is_head() && node != head_;  // else the link for joining is all there is
  return flows_.emplace(node, Flow{MessageFlow(config)}).first->second;
}

void Cluster::OpenFlow(Peer& peer, NodeNumber node, bool sends, bool takes) {
  if (peer.flow_with == node) return;
  peer.flow_with = node;
  FlowWith(node);
  FeedFlow(node, FlowLinkOpened{peer.number, sends, takes, NowNs()});
}

// A link of a node that is known. Older ones of the same node are over, even if we have not noticed yet: what was on
// its way over them comes again.
void Cluster::OpenIncoming(Peer& peer) {
  std::vector<uint64_t> older;
  for (const auto& [number, other] : peers_) {
    if (other->accepted && other->ready && other->node == peer.node && number < peer.number) older.push_back(number);
  }
  for (uint64_t number : older) BreakLink(number, "there is a newer one");
  if (!is_head()) OpenFlow(peer, peer.node, false, true);
}

template <class Event>
bool Cluster::FeedFlow(NodeNumber node, Event event) {
  std::vector<FlowAction> actions;
  flows_.at(node).machine.Handle(std::move(event), actions);
  bool take = false;
  for (const FlowAction& action : actions) {
    if (const auto* pass = std::get_if<PassMessages>(&action)) {
      PassMessagesTo(node, pass->link);
    } else if (std::holds_alternative<TakeMessage>(action)) {
      take = true;
    } else if (const auto* say = std::get_if<SayTaken>(&action)) {
      SendDirectly(say->link, FlowTaken{say->through});
    } else if (std::holds_alternative<ConnectFlow>(action)) {
      if (PeerFor(node) == nullptr) FeedFlow(node, ConnectingFailed{NowNs()});
    } else if (const auto* end = std::get_if<BreakFlowLink>(&action)) {
      BreakLink(end->link, end->why);
    } else if (const auto* complain = std::get_if<ComplainOfOther>(&action)) {
      ComplainOf(node, complain->since_ns, flows_.at(node).why);
    } else if (std::holds_alternative<TakeBackComplaint>(action)) {
      TakeBackComplaintOf(node);
    }
  }
  return take;
}

void Cluster::PassMessagesTo(NodeNumber node, uint64_t number) {
  auto found = peers_.find(number);
  if (found == peers_.end()) return;
  Peer& peer = *found->second;
  MessageFlow& flow = flows_.at(node).machine;
  std::vector<FlowAction> none;
  peer.Gather();
  while (const std::string* next = flow.Next()) {
    if (peer.link->Send(*next) == Link::SendOutcome::kSent) {
      flow.Handle(MessagePassed{}, none);
    } else {
      flow.Handle(FlowLinkFull{}, none);  // or it is about to end, which will be told
    }
  }
  peer.SendIfMuch();
}

void Cluster::FlushLinks() {
  for (uint64_t number : std::exchange(gathering_, {})) {
    auto found = peers_.find(number);
    if (found != peers_.end()) found->second->SendGathered();
  }
}

void Cluster::BreakLink(uint64_t number, const std::string& why) {
  auto found = peers_.find(number);
  if (found == peers_.end()) return;
  found->second->link->Close();
  Lost(*found->second, {ErrorKind::kInvalid, "the link was ended by us: " + why});
}

bool Cluster::Crowded(NodeNumber node) {
  auto found = flows_.find(node);
  if (found == flows_.end() || !found->second.machine.crowded()) return false;
  return found->second.awaited = true;
}

uint64_t Cluster::KeptBytes(NodeNumber node) const {
  auto found = flows_.find(node);
  return found == flows_.end() ? 0 : found->second.machine.kept_bytes();
}

// ---- nodes that cannot be reached ---------------------------------------------------------------------------------

void Cluster::ComplainOf(NodeNumber node, int64_t since_ns, const std::string& why) {
  if (!nodes_.contains(node) || leaving_) return;
  auto [entry, added] = complaints_.try_emplace(node, Complaint{since_ns, why});
  if (!added) return;
  std::fprintf(stderr, "weft node: %s cannot be reached from here, and the head is told: %s\n", Describe(node).c_str(),
               why.c_str());
  TellOfComplaint(node, entry->second);
}

void Cluster::TellOfComplaint(NodeNumber node, const Complaint& complaint) {
  SendToHead(NodeUnreachable{node, NowNs() - complaint.since_ns, complaint.why});
}

void Cluster::TakeBackComplaintOf(NodeNumber node) {
  if (complaints_.erase(node) == 0) return;
  std::fprintf(stderr, "weft node: %s can be reached again\n", Describe(node).c_str());
  SendToHead(NodeReachable{node});
}

// Other pairs have a flow that tells.
void Cluster::ChannelFailed(NodeNumber node, int64_t begun_ns, const std::string& why) {
  if (!is_head() && node != head_) return;
  const int64_t now = NowNs();
  auto [entry, first] = unconnected_.try_emplace(node, Unconnected{begun_ns, now});
  if (now - entry->second.last_ns > kSameStoryNs) entry->second.since_ns = begun_ns;
  entry->second.last_ns = now;
  if (now - entry->second.since_ns >= kComplainNs) ComplainOf(node, entry->second.since_ns, why);
}

void Cluster::ChannelMade(NodeNumber node) {
  if (unconnected_.erase(node) > 0) TakeBackComplaintOf(node);
}

void Cluster::TickFlows(int64_t now_ns) {
  std::vector<NodeNumber> due;
  for (const auto& [node, flow] : flows_) {
    if (flow.machine.next_wakeup_ns() <= now_ns) due.push_back(node);
  }
  for (NodeNumber node : due) FeedFlow(node, FlowTicked{now_ns});
}

void Cluster::Peer::LinkDrained(Link&) {
  if (flow_with && cluster_.flows_.contains(flow_with)) cluster_.FeedFlow(flow_with, FlowLinkDrained{number});
}

}  // namespace weft::core
