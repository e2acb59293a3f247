#include "node/cluster.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "base/clock.h"
#include "os/entropy.h"
#include "os/tcp.h"
#include "wire/placement.h"

namespace weft::core {
namespace {

// A link over which nothing is heard for so long has ended; well within a node's lease.
constexpr int64_t kIdleNs = 5'000'000'000;
// Pauses between attempts to reach the head; the first comes soon, as most links that end do so by mishap.
constexpr int64_t kDialSoonNs = 10'000'000;
constexpr int64_t kDialAgainNs = 100'000'000;

// A head that hangs takes connections, as its kernel does that, and says nothing. If there are several, another may
// lead meanwhile, and gives up whoever has not come to it within a lease.
constexpr int64_t kOneOfSeveralNs = 2'000'000'000;

// How long a node that starts may take to become a member.
constexpr int64_t kJoinNs = 15'000'000'000;

// What a node has to say in its log while the head is away.
constexpr size_t kMostTold = 20;

// Nodes that have gone and are still told of.
constexpr size_t kMostGone = 100;
// Those that can be described to who asks for something of theirs.
constexpr size_t kMostGoneInWords = 1'000;

// Who waits because too much was sent to a node goes on when no more than this is left.
constexpr uint64_t kRoomBytes = 32 << 20;

// A link that has so much to send does not wait for the end of the turn.
constexpr size_t kMostGathered = 256 * 1024;

// So many nodes start workers for a program when it begins; on the others it is when they are first needed.
constexpr size_t kMostPrestarts = 16;

uint64_t WishKey(NodeNumber asker, uint64_t wish) { return uint64_t{asker.value} << 40 | wish; }

std::string HeaderBytes(const ChunkHead& head) { return {reinterpret_cast<const char*>(&head), sizeof head}; }

}  // namespace

// One link. Destroyed by Bury, outside of its callbacks.
class Cluster::Peer final : public Link::Handler {
 public:
  Peer(Cluster& cluster, uint64_t number, NodeNumber node) : cluster_(cluster), number(number), node(node) {}

  void LinkReady(Link&, std::string_view) override {
    ready = true;
    if (to_head) {
      cluster_.head_answers_ = true;
      // Only now the cluster is known that others must name when they come to us.
      cluster_.settings_.cluster_id = link->peer_cluster_id();
      if (Status status = cluster_.Listen(); !status) return cluster_.host_.ClusterRefused(status.error().message);
      std::vector<LeaseAction> actions;
      cluster_.lease_->Handle(HeadLinked{NowNs()}, actions);
      cluster_.Perform(actions);
    }
    // Between the head and its members the link for joining has the flow.
    if (!to_head && node != cluster_.head_) cluster_.OpenFlow(*this, node, true, false);
    for (auto& queued : std::exchange(waiting, {})) SendChunk(queued.bytes, queued.payload, std::move(queued.keeper));
  }
  void LinkMessage(Link&, std::string_view bytes) override { cluster_.Received(*this, bytes); }
  uint8_t* LinkChunkBegan(Link&, std::string_view header, size_t bytes) override {
    ChunkHead head;
    if (header.size() != sizeof head || !Other()) return nullptr;
    std::memcpy(&head, header.data(), sizeof head);
    chunk_bytes_ = bytes;
    chunk_request = head.request;
    return cluster_.host_.ChunkBegan(Other(), head, bytes);
  }
  void LinkChunkEnded(Link&, std::string_view header) override {
    ChunkHead head;
    chunk_request = 0;
    if (header.size() != sizeof head || !Other()) return;
    std::memcpy(&head, header.data(), sizeof head);
    cluster_.host_.ChunkEnded(Other(), head, chunk_bytes_);
  }
  void LinkDrained(Link&) override {
    if (flow_with && cluster_.flows_.contains(flow_with)) cluster_.FeedFlow(flow_with, FlowLinkDrained{number});
  }
  void LinkClosed(Link&, const Error& why) override { cluster_.Lost(*this, why); }
  // What belongs to this link: not numbered, and lost with it.
  void Send(std::string_view bytes) {
    // A queue of 64 MB that nobody reads: the peer is as good as gone, and its beats will say so.
    if (!ready) return;
    Gather();
    [[maybe_unused]] auto outcome = link->Send(bytes);
    SendIfMuch();
  }
  void SendChunk(std::string_view header, std::span<const uint8_t> payload, std::shared_ptr<const void> keeper) {
    sends_chunks = true;
    if (!ready) {
      waiting.push_back({std::string(header), payload, std::move(keeper)});
      return;
    }
    Gather();
    const bool sent = link->SendChunk(header, payload, std::move(keeper)) == Link::SendOutcome::kSent;
    SendIfMuch();
    if (!sent) cluster_.Send(Other(), ChunksCut{});
  }
  // What is sent from here on leaves with FlushLinks, or when it is much.
  void Gather() {
    if (std::exchange(gathers_, true)) return;
    link->Cork(true);
    cluster_.gathering_.push_back(number);
  }
  void SendIfMuch() {
    if (gathers_ && link->queued_bytes() >= kMostGathered) SendGathered();
  }
  void SendGathered() {
    gathers_ = false;
    link->Cork(false);
  }
  NodeNumber Other() const { return to_head ? cluster_.head_ : node; }

  struct Waiting {  // a chunk with its header
    std::string bytes;
    std::span<const uint8_t> payload;
    std::shared_ptr<const void> keeper;
  };

  Cluster& cluster_;
  const uint64_t number;
  NodeNumber node;  // 0: not known yet
  std::unique_ptr<Link> link;
  bool ready = false;
  bool to_head = false;
  bool joining = false;   // on the head: of a node that is or wants to be a member
  bool accepted = false;  // another node's for what it sends
  bool astray = false;    // of one that wants to join, and we are not the head
  NodeNumber flow_with;   // whose messages go over it; 0: none
  bool sends_chunks = false;
  std::deque<Waiting> waiting;  // until it is ready
  uint64_t chunk_request = 0;   // of the chunk that is being received; 0: none

 private:
  size_t chunk_bytes_ = 0;
  bool gathers_ = false;
};

// A connection that becomes a channel.
class Cluster::Dialled final : public Link::Handler {
 public:
  Dialled(Cluster& cluster, uint64_t number, ProcessId submitter, ProcessId worker, bool dialled)
      : cluster_(cluster), number_(number), submitter_(submitter), worker_(worker), dialled_(dialled) {}
  void LinkReady(Link& ready, std::string_view) override { Release(ready); }
  void LinkMessage(Link&, std::string_view) override {}
  void LinkClosed(Link&, const Error& why) override {
    cluster_.ended_.push_back(number_);
    if (!released_) cluster_.host_.ChannelConnected(submitter_, worker_, dialled_, why);
  }
  void Release(Link& ready) {
    auto socket = ready.ReleaseSocket();
    released_ = true;
    if (!cluster_.settings_.tls) cluster_.ended_.push_back(number_);  // nothing is relayed
    cluster_.host_.ChannelConnected(submitter_, worker_, dialled_, std::move(socket));
  }

  std::unique_ptr<Link> link;

 private:
  Cluster& cluster_;
  const uint64_t number_;
  const ProcessId submitter_, worker_;
  const bool dialled_;
  bool released_ = false;
};

Cluster::Cluster(EventLoop& loop, const LastingNodeOptions& options, Host& host)
    : loop_(loop), options_(options), host_(host) {
  settings_.token = options.token;
  settings_.idle_timeout_ns = kIdleNs;
  FillWithEntropy({reinterpret_cast<uint8_t*>(&identity_), sizeof identity_});
}

Cluster::~Cluster() = default;

Result<std::unique_ptr<Cluster>> Cluster::Create(EventLoop& loop, const LastingNodeOptions& options, Host& host) {
  std::unique_ptr<Cluster> cluster(new Cluster(loop, options, host));
  if (options.tls.enabled()) {
    auto tls = TlsContext::Load(options.tls);
    if (!tls) return tls.error();
    cluster->settings_.tls = std::move(*tls);
  }
  if (options.head) {
    cluster->head_address_ = options.host + ":" + std::to_string(options.port);
    auto ledger = HeadLedger::Create(loop, options, *cluster);
    if (!ledger) return ledger.error();
    cluster->ledger_ = std::move(*ledger);
  } else {
    cluster->head_address_ = options.head_address;
    cluster->lease_ = std::make_unique<NodeLease>();
    cluster->join_by_ns_ = NowNs() + kJoinNs;
    if (Status status = cluster->DialHead(); !status) return status.error();
  }
  return cluster;
}

// ---- the head's beginning and end ---------------------------------------------------------------------------------

void Cluster::LedgerOpened(HeadLedger::Restored restored) {
  settings_.cluster_id = restored.cluster_id;
  epoch_ = restored.epoch;
  legacy_ = {epoch_, std::move(restored.actors), std::move(restored.jobs)};
  if (Status status = Listen(); !status) return host_.ClusterRefused(status.error().message);
  head_address_ = own_address_;
  membership_ = std::make_unique<Membership>(Membership::Config{.epoch = epoch_, .protocol = kNodeProtocolVersion});
  scheduler_ = std::make_unique<GlobalScheduler>();
  std::vector<MembershipAction> actions;
  // Those of an earlier head are awaited; the others hear of them, since what they run may well go on.
  for (const auto& [node, description] : restored.members) {
    nodes_[node] = {description.name, description.address, description.resources, description.labels};
  }
  membership_->Handle(MembersRestored{std::move(restored.members), restored.next_node, NowNs()}, actions);
  // The head is a member itself, over a link that never closes.
  JoinAsked self{.link = next_peer_++, .protocol = kNodeProtocolVersion, .now_ns = NowNs()};
  self.node = {identity_, options_.name, own_address_, options_.resources, options_.labels};
  self_ = membership_->next_number();
  own_link_ = self.link;
  membership_->Handle(self, actions);
  Perform(actions);
}

void Cluster::LedgerHeld() { host_.ClusterAwaited(); }

void Cluster::LedgerLost(const std::string& why) { host_.ClusterRefused(why); }

// ---- links --------------------------------------------------------------------------------------------------------

Status Cluster::Listen() {
  if (listener_) return {};
  auto listener = LinkListener::Listen(loop_, options_.host, options_.port, settings_, "", *this);
  if (!listener) return listener.error();
  listener_ = std::move(*listener);
  own_address_ = options_.host + ":" + std::to_string(listener_->port());
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
      if (!joining && (!hello.node || gone_.contains(hello.node))) return;
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
  auto link = Link::Dial(loop_, where->first, where->second, settings_,
                         EncodeHello({.purpose = static_cast<uint8_t>(LinkPurpose::kNode), .node = self_}), *peer);
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

std::string Cluster::Describe(NodeNumber node) const {
  const std::string number = "node " + std::to_string(node.value);
  if (auto found = nodes_.find(node); found != nodes_.end()) return number + " (" + found->second.name + ")";
  if (auto found = gone_.find(node); found != gone_.end()) return found->second;
  return number + ", which is not in the cluster";
}

void Cluster::DialChannel(ProcessId submitter, ProcessId worker) {
  auto known = nodes_.find(NodeOf(worker));
  Result<std::pair<std::string, uint16_t>> where =
      known == nodes_.end() ? Error{ErrorKind::kGone, "its node is not known"} : ParseHostPort(known->second.address);
  const uint64_t number = next_peer_++;
  auto channel = std::make_unique<Dialled>(*this, number, submitter, worker, true);
  Result<std::unique_ptr<Link>> link =
      where ? Link::Dial(loop_, where->first, where->second, settings_,
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

// ---- messages -----------------------------------------------------------------------------------------------------

void Cluster::Deliver(NodeNumber from, NodeMessage& message) {
  if (std::holds_alternative<ChunksCut>(message)) return host_.LinkBroken(from ? from : head_);
  if (is_head()) {
    if (std::holds_alternative<NodeBeat>(message) || std::holds_alternative<NodeLoad>(message) ||
        std::holds_alternative<WishSent>(message) || std::holds_alternative<JobDescribed>(message) ||
        std::holds_alternative<WorkDeclined>(message) || std::holds_alternative<NodeFarewell>(message)) {
      return AtHead(from, message);
    }
  } else if (!from) {
    if (auto* accepted = std::get_if<NodeAccepted>(&message)) {
      if (!lease_->Accepts(accepted->epoch)) return;  // of a head that has been replaced, and does not know it yet
      std::vector<LeaseAction> actions;
      const bool first = !self_;
      const bool is_new = accepted->epoch != lease_->epoch();
      lease_->Handle(HeadAccepted{accepted->epoch, accepted->beat, accepted->node, accepted->lease_ns, NowNs()},
                     actions);
      self_ = accepted->node;
      head_ = accepted->head;
      newest_ = std::max(newest_, self_);
      head_is_away_.clear();
      if (auto found = peers_.find(head_link_); found != peers_.end()) {
        leader_address_ = found->second->link->peer_address();
        OpenFlow(*found->second, head_, true, true);
      }
      if (first) {
        host_.ClusterJoined(self_);
      } else if (is_new) {
        host_.HeadForgot();
      }
      return Perform(actions);
    }
    if (auto* refused = std::get_if<NodeRefused>(&message)) {
      if (!self_) return host_.ClusterRefused(refused->why);
      std::vector<LeaseAction> actions;
      lease_->Handle(HeadDeclaredUsDead{lease_->epoch(), refused->why, NowNs()}, actions);
      return Perform(actions);
    }
    if (auto* confirmed = std::get_if<BeatConfirmed>(&message)) {
      std::vector<LeaseAction> actions;
      lease_->Handle(LeaseConfirmed{confirmed->epoch, confirmed->beat, NowNs()}, actions);
      return Perform(actions);
    }
    if (auto* appeared = std::get_if<NodeAppeared>(&message)) {
      nodes_[appeared->node] = {appeared->name, appeared->address, appeared->resources, appeared->labels};
      newest_ = std::max(newest_, appeared->node);
      std::vector<Peer*> early;
      for (const auto& [number, peer] : peers_) {
        if (peer->accepted && peer->ready && peer->node == appeared->node && !peer->flow_with) {
          early.push_back(peer.get());
        }
      }
      for (Peer* peer : early) {
        if (peer->ready) OpenIncoming(*peer);
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
  host_.NodeMessageCame(from ? from : head_, message);
}

const JobDescribed* Cluster::FindJob(ProcessId job) const {
  auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

void Cluster::ForgetJob(ProcessId job) {
  jobs_.erase(job);
  for (auto& [node, told] : told_jobs_) told.erase(job);
}

void Cluster::Vanish(NodeNumber node, const std::string& why) {
  newest_ = std::max(newest_, node);
  auto known = nodes_.find(node);
  if (known == nodes_.end() && !flows_.contains(node)) return;
  gone_[node] = Describe(node) + ", which is no longer in the cluster (" + why + ")";
  if (gone_.size() > kMostGoneInWords) gone_.erase(gone_.begin());
  std::string described = "node " + std::to_string(node.value);
  if (known != nodes_.end()) {
    described += ", " + known->second.name;
    nodes_.erase(known);
  }
  described += ": " + why;
  if (auto found = outgoing_.find(node); found != outgoing_.end()) {
    peers_.at(found->second)->link->Close();
    ended_.push_back(found->second);
    outgoing_.erase(found);
  }
  for (const auto& [number, peer] : peers_) {
    if (!peer->accepted || peer->node != node) continue;
    peer->ready = false;
    peer->link->Close();
    ended_.push_back(number);
  }
  flows_.erase(node);
  told_jobs_.erase(node);
  host_.NodeIsGone(node, described);
}

// From what the shape says of its place. Returns why that cannot be.
std::string Cluster::Place(const ResourceAmounts& shape, WorkWished& wished) const {
  const std::string_view name = PlacementOf(shape);
  Placement placement;
  if (name.empty()) return "";
  if (!DecodePlacement(name, &placement)) return "its placement cannot be understood";
  wished.labels = placement.labels;
  if (placement.spread) wished.strategy.kind = PlacementStrategy::Kind::kSpread;
  if (placement.near) wished.argument_bytes = {{placement.near, kArgumentStep}};
  if (placement.node.empty()) return "";
  wished.strategy = {PlacementStrategy::Kind::kAffinity, NumberOfNodeId(session(), placement.node), placement.soft};
  if (wished.strategy.node || placement.soft) return "";
  return "it asks for node " + placement.node + " only, and no such node belongs to this cluster (weft.nodes())";
}

void Cluster::AtHead(NodeNumber from, NodeMessage& message) {
  std::vector<GlobalAction> actions;
  if (auto* beat = std::get_if<NodeBeat>(&message)) {
    auto member = membership_->members().find(from);
    if (member == membership_->members().end()) return;
    std::vector<MembershipAction> decided;
    membership_->Handle(BeatCame{member->second.link, beat->beat, beat->epoch, NowNs()}, decided);
    return Perform(decided);
  }
  if (auto* load = std::get_if<NodeLoad>(&message)) {
    if (nodes_.contains(from)) available_[from] = load->available;
    scheduler_->Handle(NodeReported{from, load->placements_seen, load->available, load->free_gpus, load->leases, {}},
                       actions);
  } else if (auto* wish = std::get_if<WishSent>(&message)) {
    const uint64_t key = WishKey(from, wish->wish);
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
                        .shape = WithoutPlacement(wish->shape),
                        .count = wish->count,
                        .depth = wish->depth};
      if (const std::string why = Place(wish->shape, wished); !why.empty()) {
        return Send(from, WishRefused{wish->wish, 1, wish->actor ? why : "the task cannot run: " + why});
      }
      wishes_[key] = *wish;
      wished.actor = static_cast<bool>(wish->actor);
      scheduler_->Handle(wished, actions);
    }
  } else if (auto* job = std::get_if<JobDescribed>(&message)) {
    KnowJob(*job);
    // Its first tasks elsewhere should not have to wait until workers have started there.
    size_t told = 0;
    for (const auto& [node, other] : nodes_) {
      if (node == from || node == self_ || ++told > kMostPrestarts) continue;
      if (told_jobs_[node].insert(job->driver).second) Send(node, *job);
    }
    if (from != self_) host_.NodeMessageCame(from, message);
  } else if (auto* declined = std::get_if<WorkDeclined>(&message)) {
    scheduler_->Handle(
        PlacementRefused{from, declined->placement, WishId{declined->asker, declined->wish}, declined->count}, actions);
  } else if (std::holds_alternative<NodeFarewell>(message)) {
    auto member = membership_->members().find(from);
    if (member == membership_->members().end()) return;
    std::vector<MembershipAction> decided;
    membership_->Handle(FarewellCame{member->second.link, NowNs()}, decided);
    return Perform(decided);
  }
  Perform(actions);
}

// ---- decisions ----------------------------------------------------------------------------------------------------

void Cluster::Perform(std::vector<LeaseAction>& actions) {
  for (auto& action : std::exchange(actions, {})) {
    if (auto* join = std::get_if<SendJoin>(&action)) {
      SendToHead(NodeJoins{join->was, join->epoch, join->beat, kNodeProtocolVersion, identity_, options_.name,
                           own_address_, options_.resources, options_.labels});
    } else if (auto* beat = std::get_if<SendBeat>(&action)) {
      SendToHead(NodeBeat{beat->beat, beat->epoch});
    } else if (std::holds_alternative<LinkToHead>(action)) {
      if (!leaving_ && head_link_ == 0) dial_again_ns_ = std::min(dial_again_ns_, NowNs() + kDialAgainNs);
    } else if (auto* freeze = std::get_if<FreezeWork>(&action)) {
      host_.FreezeWork(freeze->why);
    } else if (std::holds_alternative<ThawWork>(action)) {
      host_.ThawWork();
    } else if (auto* give_up = std::get_if<GiveUpWork>(&action)) {
      return host_.ClusterLeft(give_up->why);
    }
  }
}

void Cluster::Perform(std::vector<MembershipAction>& actions) {
  for (auto& action : std::exchange(actions, {})) {
    if (auto* accept = std::get_if<AcceptNode>(&action)) {
      const auto& description = membership_->members().at(accept->node).description;
      accepted_[accept->node] = *accept;
      if (!accept->again) {
        ledger_->NodeAccepted(accept->node, description, membership_->next_number(),
                              [this, node = accept->node] { Accepted(node); });
      } else if (nodes_.contains(accept->node)) {
        Accepted(accept->node);
      }  // else its first acceptance is being written
    } else if (auto* refuse = std::get_if<RefuseNode>(&action)) {
      auto found = peers_.find(refuse->link);
      if (found == peers_.end()) continue;
      found->second->Send(EncodeNodeMessage(NodeRefused{refuse->kind == RefuseNode::Kind::kDeclaredDead, refuse->why}));
      found->second->link->CloseWhenSent();
    } else if (auto* confirm = std::get_if<ConfirmLease>(&action)) {
      auto found = peers_.find(confirm->link);
      if (found != peers_.end()) found->second->Send(EncodeNodeMessage(BeatConfirmed{confirm->beat, confirm->epoch}));
    } else if (auto* close = std::get_if<CloseMemberLink>(&action)) {
      auto found = peers_.find(close->link);
      if (found != peers_.end()) found->second->link->CloseWhenSent();
    } else if (auto* suspect = std::get_if<SuspectNode>(&action)) {
      std::vector<GlobalAction> decided;
      if (here_.contains(suspect->node)) scheduler_->Handle(NodeSuspected{suspect->node, true}, decided);
      Perform(decided);
    } else if (auto* trust = std::get_if<TrustNode>(&action)) {
      std::vector<GlobalAction> decided;
      if (here_.contains(trust->node)) scheduler_->Handle(NodeSuspected{trust->node, false}, decided);
      Perform(decided);
    } else if (auto* dead = std::get_if<DeclareDead>(&action)) {
      ledger_->NodeDied(dead->node, [this, news = *dead] { Dead(news); });
    } else if (std::holds_alternative<StepDown>(action)) {
      return host_.ClusterRefused("another head has taken over this cluster");
    }
  }
}

// All that it must know of the others.
void Cluster::Welcome(Peer& peer, NodeNumber node) {
  peer.node = node;
  const AcceptNode& accept = accepted_.at(node);
  peer.Send(EncodeNodeMessage(NodeAccepted{node, self_, accept.epoch, accept.beat, accept.lease_ns}));
  NodesListed listed;
  for (const auto& [other_node, other] : nodes_) {
    peer.Send(EncodeNodeMessage(NodeAppeared{other_node, other.name, other.address, other.resources, other.labels}));
    listed.nodes.push_back(other_node);
  }
  peer.Send(EncodeNodeMessage(listed));
  OpenFlow(peer, node, true, true);
}

void Cluster::Accepted(NodeNumber node) {
  auto member = membership_->members().find(node);
  if (member == membership_->members().end()) return;  // dead meanwhile
  const NodeDescription& description = member->second.description;
  std::vector<GlobalAction> decided;
  const bool is_new =
      nodes_.emplace(node, OtherNode{description.name, description.address, description.resources, description.labels})
          .second;
  if (node == self_) {
    host_.ClusterJoined(self_);
  } else if (auto found = peers_.find(member->second.link); found != peers_.end()) {
    Welcome(*found->second, node);
  }
  if (is_new) {
    NodeAppeared news{node, description.name, description.address, description.resources, description.labels};
    for (auto& [number, peer] : peers_) {
      if (peer->joining && peer->node && peer->node != node) peer->Send(EncodeNodeMessage(news));
    }
  }
  // One that was here before goes on where its link was lost.
  if (here_.insert(node).second) {
    scheduler_->Handle(NodeJoined{node, description.resources, description.resources, {}, description.labels}, decided);
  }
  Perform(decided);
}

void Cluster::Dead(const DeclareDead& news) {
  if (auto known = nodes_.find(news.node); known != nodes_.end()) {
    NodeListed last = ListedAs(news.node, known->second);
    last.alive = 0;
    last.why = news.why;
    departed_.push_back(std::move(last));
    if (departed_.size() > kMostGone) departed_.pop_front();
  }
  available_.erase(news.node);
  std::fprintf(stderr, "weft node: node %u (%s) is no longer in the cluster: %s\n", news.node.value, news.name.c_str(),
               news.why.c_str());
  std::vector<GlobalAction> decided;
  accepted_.erase(news.node);
  if (here_.erase(news.node) > 0) scheduler_->Handle(NodeLeft{news.node}, decided);
  std::erase_if(wishes_, [&](const auto& wish) { return wish.first >> 40 == news.node.value; });
  for (auto& [number, peer] : peers_) {
    if (peer->joining && peer->node && peer->node != news.node) {
      peer->Send(EncodeNodeMessage(NodeVanished{news.node, news.why}));
    }
  }
  Vanish(news.node, news.why);
  Perform(decided);
}

void Cluster::Perform(std::vector<GlobalAction>& actions) {
  for (auto& action : std::exchange(actions, {})) {
    if (auto* place = std::get_if<PlaceWork>(&action)) {
      auto wish = wishes_.find(WishKey(place->wish.asker, place->wish.number));
      if (wish == wishes_.end()) continue;
      const WishSent wished = wish->second;  // a copy: what is said below may change the wishes
      const ProcessId job = wished.job;
      if (told_jobs_[place->node].insert(job).second) {
        if (const JobDescribed* described = FindJob(job)) Send(place->node, *described);
      }
      Send(place->wish.asker, WishServed{place->wish.number, place->count});
      Send(place->node,
           WorkAssigned{place->wish.asker, place->wish.number, place->placement, place->process, job, wished.shape,
                        place->count, place->depth, wished.actor, wished.to_hold, wished.class_name});
    } else if (auto* unplace = std::get_if<UnplaceWork>(&action)) {
      Send(unplace->wish.asker, WishServed{unplace->wish.number, -static_cast<int64_t>(unplace->count)});
    } else if (auto* refuse = std::get_if<RefuseWork>(&action)) {
      wishes_.erase(WishKey(refuse->wish.asker, refuse->wish.number));
      Send(refuse->wish.asker, WishRefused{refuse->wish.number, 1, refuse->why});
    } else if (auto* warn = std::get_if<WarnInfeasible>(&action)) {
      Send(warn->wish.asker, WishRefused{warn->wish.number, 0, warn->why});
    }
  }
}

// ---- looking ------------------------------------------------------------------------------------------------------

uint64_t Cluster::session() const { return std::strtoull(settings_.cluster_id.substr(0, 16).c_str(), nullptr, 16); }

NodeListed Cluster::ListedAs(NodeNumber node, const OtherNode& known) const {
  NodeListed listed{.node = node, .session = session()};
  listed.head = node == (is_head() ? self_ : head_) ? 1 : 0;
  listed.own = node == self_ ? 1 : 0;
  listed.name = known.name;
  listed.address = known.address;
  listed.total = known.resources;
  listed.labels = known.labels;
  if (auto free = available_.find(node); free != available_.end()) listed.available = free->second;
  return listed;
}

std::vector<NodeListed> Cluster::List() const {
  std::vector<NodeListed> all(departed_.begin(), departed_.end());
  for (const auto& [node, known] : nodes_) all.push_back(ListedAs(node, known));
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.node < b.node; });
  return all;
}

void Cluster::Leave() {
  leaving_ = true;
  if (ledger_) return ledger_->Resign();
  SendToHead(NodeFarewell{});
}

int64_t Cluster::NextDeadline() const {
  int64_t next = std::min(listener_ ? listener_->NextDeadline() : INT64_MAX, dial_again_ns_);
  for (const auto& [number, peer] : peers_) next = std::min(next, peer->link->NextDeadline());
  for (const auto& [number, channel] : dialled_) next = std::min(next, channel->link->NextDeadline());
  if (lease_ && !self_) next = std::min(next, join_by_ns_);
  if (membership_) next = std::min(next, membership_->next_wakeup_ns());
  if (ledger_) next = std::min(next, ledger_->NextDeadline());
  if (lease_) next = std::min(next, lease_->next_wakeup_ns());
  for (const auto& [node, flow] : flows_) next = std::min(next, flow.machine.next_wakeup_ns());
  return next;
}

void Cluster::Tick(int64_t now_ns) {
  if (lease_ && !self_ && join_by_ns_ <= now_ns) {
    return host_.ClusterRefused(
        "the head at " + head_address_ +
        (head_answers_ ? " has not taken this node in: its control store may be full or away; its log says more"
                       : " does not answer"));
  }
  // First of all: whether we may still believe in our lease.
  if (lease_ && lease_->next_wakeup_ns() <= now_ns) {
    std::vector<LeaseAction> actions;
    lease_->Handle(LeaseTicked{now_ns}, actions);
    Perform(actions);
  }
  if (dial_again_ns_ <= now_ns) {
    dial_again_ns_ = INT64_MAX;
    if (head_link_ == 0 && !leaving_) {
      if (Status status = DialHead(); !status) dial_again_ns_ = now_ns + kDialAgainNs;
    }
  }
  if (membership_) {
    std::vector<MembershipAction> actions;
    // Our own membership needs no network.
    if (auto self = membership_->members().find(self_); self != membership_->members().end()) {
      membership_->Handle(BeatCame{own_link_, ++own_beat_, epoch_, now_ns}, actions);
    }
    membership_->Handle(MembershipTicked{now_ns}, actions);
    Perform(actions);
  }
  if (ledger_ && ledger_->NextDeadline() <= now_ns) ledger_->Tick(now_ns);
  if (listener_) listener_->Tick(now_ns);
  std::vector<Link*> links;
  for (const auto& [number, peer] : peers_) links.push_back(peer->link.get());
  for (const auto& [number, channel] : dialled_) links.push_back(channel->link.get());
  for (Link* link : links) link->Tick(now_ns);
  std::vector<NodeNumber> due;
  for (const auto& [node, flow] : flows_) {
    if (flow.machine.next_wakeup_ns() <= now_ns) due.push_back(node);
  }
  for (NodeNumber node : due) FeedFlow(node, FlowTicked{now_ns});
  Bury();
}

}  // namespace weft::core
