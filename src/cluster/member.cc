#include "cluster/member.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace weft::core {
namespace {

// However long the head wants a node to wait, it asks again after this.
constexpr int64_t kMaxJoinWaitNs = 600'000'000'000;

// Nodes that have gone and can still be described.
constexpr size_t kMostGoneInWords = 1'000;

// What a node has to say in its log while the head is away.
constexpr size_t kMostTold = 20;

// A sender that waits because too much was sent to a node goes on when no more than this is left.
constexpr uint64_t kRoomBytes = 32 << 20;

// Of what members say over the flow to the head's node, and what its own node says: the rest is for that node.
bool IsForHead(const NodeMessage& message) {
  return std::holds_alternative<NodeBeat>(message) || std::holds_alternative<NodeLoad>(message) ||
         std::holds_alternative<LeaseRequest>(message) || std::holds_alternative<JobDescribed>(message) ||
         std::holds_alternative<WorkDeclined>(message) || std::holds_alternative<NodeGoodbye>(message) ||
         std::holds_alternative<NodeUnreachable>(message) || std::holds_alternative<NodeReachable>(message);
}

}  // namespace

Member::Member(Config config, Io& io, Host& host)
    : config_(std::move(config)), io_(io), host_(host), lease_(config_.lease) {
  lease_.faults = config_.faults.lease;
}

// ---- joining and leaving ------------------------------------------------------------------------------------------

Status Member::Start(int64_t now_ns, HeadSide* head) {
  now_ns_ = now_ns;
  head_side_ = head;
  if (head_side_ == nullptr) {
    join_by_ns_ = now_ns + config_.join_ns;
    return DialHead();
  }
  links_[kOwnLink].ready = true;
  head_link_ = kOwnLink;
  auto address = io_.Listen();
  if (!address) return address.error();
  own_address_ = *address;
  std::vector<LeaseAction> actions;
  lease_.Handle(HeadLinked{now_ns}, actions);
  Perform(actions);
  return {};
}

void Member::Leave(int64_t now_ns) {
  now_ns_ = now_ns;
  leaving_ = true;
  if (head_side_ == nullptr) SendToHead(NodeGoodbye{});
}

Status Member::DialHead() {
  const std::string& address = config_.heads[next_head_++ % config_.heads.size()];
  const uint64_t link = NewLink();
  Status status = io_.Dial(link, address, EncodeHello({.purpose = static_cast<uint8_t>(LinkPurpose::kJoin)}),
                           config_.heads.size() > 1 ? config_.one_of_several_ns : 0);
  if (!status) return status;
  links_[link] = {};
  head_link_ = link;
  return {};
}

std::string Member::HeadsInWords() const {
  std::string text;
  for (const std::string& head : config_.heads) text.append(text.empty() ? "" : ",").append(head);
  return text;
}

void Member::Perform(const std::vector<LeaseAction>& actions) {
  for (const auto& action : actions) {
    if (const auto* join = std::get_if<SendJoin>(&action)) {
      const NodeDescription& self = config_.self;
      SendToHead(NodeJoins{join->was, join->epoch, join->beat, kNodeProtocolVersion, self.identity, self.name,
                           own_address_, self.resources, self.labels});
    } else if (const auto* beat = std::get_if<SendBeat>(&action)) {
      SendToHead(NodeBeat{beat->beat, beat->epoch});
    } else if (std::holds_alternative<LinkToHead>(action)) {
      if (!leaving_ && head_link_ == 0) dial_at_ns_ = std::min(dial_at_ns_, now_ns_ + config_.dial_again_ns);
    } else if (const auto* freeze = std::get_if<FreezeWork>(&action)) {
      host_.FreezeWork(freeze->why);
    } else if (std::holds_alternative<ThawWork>(action)) {
      host_.ThawWork();
    } else if (const auto* give_up = std::get_if<GiveUpWork>(&action)) {
      return host_.ClusterLeft(give_up->why);
    }
  }
}

void Member::Accepted(const NodeAccepted& accepted) {
  if (!lease_.Accepts(accepted.epoch)) return;  // of a head that has been replaced, and does not know it yet
  const bool first = !self_;
  const bool is_new = accepted.epoch != lease_.epoch();
  std::vector<LeaseAction> actions;
  lease_.Handle(HeadAccepted{accepted.epoch, accepted.beat, accepted.node, accepted.lease_ns, now_ns_}, actions);
  self_ = accepted.node;
  head_ = accepted.head;
  newest_ = std::max(newest_, self_);
  if (!head_is_away_.empty()) io_.Log(LogLevel::kInfo, "membership", "the head is found again");
  head_is_away_.clear();
  if (auto link = links_.find(head_link_); link != links_.end()) {
    leader_address_ = link->second.peer_address;
    if (head_side_ == nullptr) OpenFlow(head_link_, head_, true, true);
  }
  if (first) {
    host_.ClusterJoined(self_);
  } else if (is_new) {
    io_.Log(LogLevel::kInfo, "membership",
            "node " + std::to_string(head_.value) + " is the head now, in epoch " + std::to_string(accepted.epoch));
    for (const auto& [node, complaint] : complaints_) TellOfComplaint(node, complaint);
    host_.HeadForgot();
  }
  Perform(actions);
}

// The head does not want us yet: most often we had to leave, and come back.
void Member::WaitToJoin(const JoinLater& message) {
  if (self_) return;
  const int64_t wait = std::clamp<int64_t>(message.wait_ns, config_.dial_again_ns, kMaxJoinWaitNs);
  if (!config_.returns && now_ns_ + wait >= join_by_ns_) return host_.ClusterRefused(message.why);
  io_.Log(LogLevel::kWarning, "membership", "not a member yet: " + message.why);
  Drop(std::exchange(head_link_, 0));
  std::vector<LeaseAction> actions;
  lease_.Handle(HeadLinkLost{now_ns_}, actions);
  Perform(actions);
  dial_at_ns_ = now_ns_ + wait;
  if (config_.returns) join_by_ns_ = dial_at_ns_ + config_.join_ns;
}

// ---- links --------------------------------------------------------------------------------------------------------

void Member::LinkReady(uint64_t number, const std::string& peer_address, int64_t now_ns) {
  now_ns_ = now_ns;
  auto found = links_.find(number);
  if (found == links_.end()) return;
  LinkState& link = found->second;
  link.ready = true;
  link.peer_address = peer_address;
  // Between the head and its members the link for joining has the flow.
  if (link.purpose == Purpose::kOutgoing && link.node != head_) return OpenFlow(number, link.node, true, false);
  if (link.purpose != Purpose::kToHead) return;
  head_answers_ = true;
  // Only now the cluster is known that others must name when they come to us.
  auto address = io_.Listen();
  if (!address) return host_.ClusterRefused(address.error().message);
  own_address_ = *address;
  std::vector<LeaseAction> actions;
  lease_.Handle(HeadLinked{now_ns}, actions);
  Perform(actions);
}

bool Member::LinkAccepted(uint64_t number, const NodeHello& hello, int64_t now_ns) {
  now_ns_ = now_ns;
  LinkState link{.ready = true};
  if (static_cast<LinkPurpose>(hello.purpose) == LinkPurpose::kJoin) {
    // A node that comes back repeats what it told the former head, and this head's own node cannot hear it yet.
    if (head_side_ != nullptr && !self_) return false;
    link.purpose = head_side_ != nullptr ? Purpose::kJoining : Purpose::kAstray;
    links_[number] = link;
    return true;
  }
  // A node that rejoined under a new number may not know the old one, and nor may the other side of a new node at an
  // old address.
  if (!hello.node || gone_.contains(hello.node) || !self_ || hello.to != self_) return false;
  link.purpose = Purpose::kIncoming;
  link.node = hello.node;
  links_[number] = link;
  if (nodes_.contains(hello.node)) OpenIncoming(number);  // else when the head tells of it
  return true;
}

// A link of a node that is known. Older ones of the same node are over, even if we have not noticed yet: what was on
// its way over them comes again.
void Member::OpenIncoming(uint64_t number) {
  const NodeNumber node = links_.at(number).node;
  std::vector<uint64_t> older;
  for (const auto& [other, link] : links_) {
    if (link.purpose == Purpose::kIncoming && link.node == node && other < number) older.push_back(other);
  }
  for (uint64_t link : older) Break(link, "there is a newer one", false);
  if (head_side_ == nullptr) OpenFlow(number, node, false, true);
}

void Member::LinkMessage(uint64_t number, std::string_view bytes, int64_t now_ns) {
  now_ns_ = now_ns;
  auto found = links_.find(number);
  if (found == links_.end()) return;
  LinkState& link = found->second;
  NodeMessage message = DecodeNodeMessage(bytes);
  if (std::holds_alternative<std::monostate>(message)) return Break(number, "it sent what cannot be understood", true);
  if (link.purpose == Purpose::kAstray) {
    // A node that was a member looks for its head elsewhere; to be refused would cost it what it runs.
    if (auto* joins = std::get_if<NodeJoins>(&message); joins != nullptr && !joins->was) {
      SendOver(number, NodeRefused{0, "at " + own_address_ + " is the node " + config_.self.name +
                                          ", not the head; say --address=" + HeadsInWords()});
    }
    return io_.CloseWhenSent(number);
  }
  if (link.purpose == Purpose::kJoining) {
    if (auto* joins = std::get_if<NodeJoins>(&message)) return head_side_->JoinCame(number, *joins);
    link.node = head_side_->MemberAt(number);
    if (!link.node) return;  // no member any more
  }
  const bool of_head = link.purpose == Purpose::kToHead;
  const NodeNumber from = link.node;
  if (!of_head && !nodes_.contains(from)) return;
  const auto* taken = std::get_if<FlowTaken>(&message);
  if (taken == nullptr && !IsInFlow(message)) return Deliver(from, message);
  auto flow = flows_.find(link.flow_with);
  if (flow == flows_.end()) return;  // it is gone, or its messages come over another link
  if (taken == nullptr) {
    if (FeedFlow(flow->first, MessageArrived{number, bytes.size(), now_ns})) Deliver(from, message);
    return;
  }
  FeedFlow(flow->first, TakenHeard{number, taken->through});
  if (!flow->second.awaited || flow->second.machine.kept_bytes() > kRoomBytes) return;
  flow->second.awaited = false;
  host_.NodeHasRoom(flow->first);
}

void Member::LinkDrained(uint64_t number, int64_t now_ns) {
  now_ns_ = now_ns;
  auto link = links_.find(number);
  if (link == links_.end() || !flows_.contains(link->second.flow_with)) return;
  FeedFlow(link->second.flow_with, FlowLinkDrained{number});
}

void Member::LinkLost(uint64_t number, const LinkEnd& end, int64_t now_ns) {
  now_ns_ = now_ns;
  auto found = links_.find(number);
  if (found == links_.end()) return;
  const LinkState link = std::move(found->second);
  links_.erase(found);
  const NodeNumber other = link.purpose == Purpose::kToHead ? head_ : link.node;
  const bool dialled = link.purpose == Purpose::kOutgoing;
  if (auto out = outgoing_.find(other); out != outgoing_.end() && out->second == number) outgoing_.erase(out);
  if (auto flow = flows_.find(other); dialled && flow != flows_.end()) flow->second.why = end.why;
  if (link.flow_with && flows_.contains(link.flow_with)) {
    FeedFlow(link.flow_with, FlowLinkClosed{number, now_ns});
  } else if (dialled && !link.ready && flows_.contains(other)) {
    FeedFlow(other, ConnectingFailed{now_ns});
  }
  if (link.ready && other)
    io_.Log(LogLevel::kInfo, "link", "a link with " + Describe(other) + " has ended: " + end.why);
  if (self_ && Knows(other)) {
    if (!dialled) host_.LinkBroken(other);
    if (link.sends_chunks) SendNow(other, ChunksCut{});
  }
  if (number == head_link_) {
    head_link_ = 0;
    LostHead(link.ready, end);
  } else if (link.purpose == Purpose::kJoining) {
    head_side_->JoinLinkLost(number, end.kind == ErrorKind::kGone);
  }
}

void Member::LostHead(bool was_ready, const LinkEnd& end) {
  const bool others = config_.heads.size() > 1 && end.kind != ErrorKind::kInvalid;
  // It is busy with strangers, of which we were the oldest; or is just beginning, or its control store is away.
  const bool may_change = end.kind == ErrorKind::kFull || (was_ready && end.kind == ErrorKind::kGone);
  if (!self_ && !others && !may_change) return host_.ClusterRefused(end.why);
  // Attempts may go on for minutes; what they meet with is news only once.
  if (self_ && !leaving_ && head_is_away_.size() < kMostTold && head_is_away_.insert(end.why).second) {
    io_.Log(LogLevel::kWarning, "membership", "the head is away, and is looked for: " + end.why);
  }
  if (!leaving_) dial_at_ns_ = now_ns_ + (was_ready ? config_.dial_soon_ns : config_.dial_again_ns);
  std::vector<LeaseAction> actions;
  lease_.Handle(HeadLinkLost{now_ns_}, actions);
  if (end.nobody_listens && end.peer_address == leader_address_) lease_.Handle(HeadEnded{now_ns_}, actions);
  Perform(actions);
}

// By our own decision; nothing follows from it here.
void Member::Drop(uint64_t number) {
  if (links_.erase(number) > 0) io_.Close(number, "");
}

void Member::Break(uint64_t number, const std::string& why, bool breach) {
  if (!links_.contains(number)) return;
  io_.Close(number, breach ? why : "");
  LinkLost(number, {.kind = ErrorKind::kInvalid, .why = "the link was ended by us: " + why}, now_ns_);
}

// The link for what we send to that node, and for chunks; 0: there is none.
uint64_t Member::LinkTo(NodeNumber node) {
  if (auto found = outgoing_.find(node); found != outgoing_.end()) return found->second;
  auto known = nodes_.find(node);
  if (known == nodes_.end() || head_side_ != nullptr) return 0;  // the head waits for its members' links
  const uint64_t link = NewLink();
  const NodeHello hello{.purpose = static_cast<uint8_t>(LinkPurpose::kNode), .node = self_, .to = node};
  if (!io_.Dial(link, known->second.address, EncodeHello(hello), config_.reach_ns)) return 0;
  links_[link] = {.purpose = Purpose::kOutgoing, .node = node};
  return outgoing_[node] = link;
}

uint64_t Member::LinkForChunks(NodeNumber node, int64_t now_ns) {
  now_ns_ = now_ns;
  const uint64_t link = LinkTo(node);
  if (link != 0) links_.at(link).sends_chunks = true;
  return link;
}

NodeNumber Member::NodeBehind(uint64_t number) const {
  auto link = links_.find(number);
  if (link == links_.end()) return {};
  return link->second.purpose == Purpose::kToHead ? head_ : link->second.node;
}

// ---- messages -----------------------------------------------------------------------------------------------------

void Member::Send(NodeNumber to, const NodeMessage& message, int64_t now_ns) {
  now_ns_ = now_ns;
  SendNow(to, message);
}

void Member::SendNow(NodeNumber to, const NodeMessage& message) {
  if (to && to == self_) {
    NodeMessage copy = message;
    return host_.NodeMessageCame(self_, copy);
  }
  if (!to && head_side_ != nullptr) {
    NodeMessage copy = message;
    if (auto* joins = std::get_if<NodeJoins>(&copy)) return head_side_->JoinCame(kOwnLink, *joins);
    return IsForHead(copy) ? head_side_->HeadHeard(self_, copy) : host_.NodeMessageCame(self_, copy);
  }
  if (!IsInFlow(message)) return SendOver(head_link_, message);
  const NodeNumber node = to ? to : head_;
  if (!node || (node != head_ && !nodes_.contains(node) && !MayAppear(node))) return;  // gone
  std::string bytes = EncodeNodeMessage(message);
  if (bytes.size() > config_.max_message_bytes) {
    return io_.Log(LogLevel::kWarning, "membership",
                   "a message of " + std::to_string(bytes.size()) + " bytes to " + Describe(node) +
                       " is too large and was dropped");
  }
  FlowWith(node);
  FeedFlow(node, MessageWritten{std::move(bytes), now_ns_});
}

void Member::SendOver(uint64_t link, const NodeMessage& message) {
  auto found = links_.find(link);
  if (found != links_.end() && found->second.ready) io_.Send(link, EncodeNodeMessage(message));
}

void Member::SendToAll(const NodeMessage& message, int64_t now_ns) {
  now_ns_ = now_ns;
  std::vector<NodeNumber> others;
  for (const auto& [node, description] : nodes_) {
    if (node != self_) others.push_back(node);
  }
  for (NodeNumber node : others) SendNow(node, message);
}

void Member::SayFromHead(uint64_t link, const NodeMessage& message, int64_t now_ns) {
  now_ns_ = now_ns;
  if (link != kOwnLink) return SendOver(link, message);
  NodeMessage copy = message;
  HeardFromHead(copy);
}

void Member::Adopt(uint64_t number, NodeNumber node, int64_t now_ns) {
  now_ns_ = now_ns;
  auto found = links_.find(number);
  if (number == kOwnLink || found == links_.end()) return;
  found->second.node = node;
  outgoing_[node] = number;
  OpenFlow(number, node, true, true);
}

void Member::Deliver(NodeNumber from, NodeMessage& message) {
  if (std::holds_alternative<ChunksCut>(message)) return host_.LinkBroken(from ? from : head_);
  if (head_side_ != nullptr && IsForHead(message)) return head_side_->HeadHeard(from, message);
  if (!from && HeardFromHead(message)) return;
  host_.NodeMessageCame(from ? from : head_, message);
}

bool Member::HeardFromHead(NodeMessage& message) {
  std::vector<LeaseAction> actions;
  if (auto* accepted = std::get_if<NodeAccepted>(&message)) {
    Accepted(*accepted);
  } else if (auto* later = std::get_if<JoinLater>(&message)) {
    WaitToJoin(*later);
  } else if (auto* refused = std::get_if<NodeRefused>(&message)) {
    if (!self_) return host_.ClusterRefused(refused->why), true;
    lease_.Handle(HeadDeclaredUsDead{lease_.epoch(), refused->why, now_ns_}, actions);
  } else if (auto* confirmed = std::get_if<BeatConfirmed>(&message)) {
    lease_.Handle(LeaseConfirmed{confirmed->epoch, confirmed->beat, now_ns_}, actions);
  } else if (auto* appeared = std::get_if<NodeAppeared>(&message)) {
    Appeared(*appeared);
  } else if (auto* vanished = std::get_if<NodeVanished>(&message)) {
    Vanish(vanished->node, vanished->why);
  } else if (auto* listed = std::get_if<NodesListed>(&message)) {
    Listed(*listed);
  } else {
    return false;
  }
  Perform(actions);
  return true;
}

// ---- the other nodes ----------------------------------------------------------------------------------------------

void Member::Appeared(const NodeAppeared& appeared) {
  const bool is_new = !nodes_.contains(appeared.node);
  nodes_[appeared.node] = {{}, appeared.name, appeared.address, appeared.resources, appeared.labels};
  newest_ = std::max(newest_, appeared.node);
  if (is_new)
    io_.Log(LogLevel::kInfo, "membership", Describe(appeared.node) + " at " + appeared.address + " is in the cluster");
  std::vector<uint64_t> early;
  for (const auto& [number, link] : links_) {
    if (link.purpose == Purpose::kIncoming && link.node == appeared.node && !link.flow_with) early.push_back(number);
  }
  for (uint64_t number : early) {
    if (links_.contains(number)) OpenIncoming(number);
  }
}

void Member::Listed(const NodesListed& listed) {
  std::vector<NodeNumber> gone;
  for (const auto& [node, description] : nodes_) {
    if (std::find(listed.nodes.begin(), listed.nodes.end(), node) == listed.nodes.end()) gone.push_back(node);
  }
  for (const auto& [node, flow] : flows_) {
    if (node != head_ && !nodes_.contains(node)) gone.push_back(node);  // it came and went
  }
  for (NodeNumber node : gone) Vanish(node, "the head no longer knows it");
}

void Member::Vanish(NodeNumber node, const std::string& why) {
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
  if (head_side_ == nullptr)
    io_.Log(LogLevel::kInfo, "membership", "no longer in the cluster: " + described);  // else the head says so
  std::vector<uint64_t> theirs;
  for (const auto& [number, link] : links_) {
    // The head closes the links for joining: it may have a last word to send.
    if (link.node == node && link.purpose != Purpose::kJoining) theirs.push_back(number);
  }
  for (uint64_t link : theirs) Drop(link);
  outgoing_.erase(node);
  flows_.erase(node);
  unconnected_.erase(node);
  complaints_.erase(node);
  host_.NodeIsGone(node, described);
}

std::string Member::Describe(NodeNumber node) const {
  const std::string number = "node " + std::to_string(node.value);
  if (auto found = nodes_.find(node); found != nodes_.end()) return number + " (" + found->second.name + ")";
  if (auto found = gone_.find(node); found != gone_.end()) return found->second;
  return number + ", which is not in the cluster";
}

// ---- flows --------------------------------------------------------------------------------------------------------

Member::Flow& Member::FlowWith(NodeNumber node) {
  auto found = flows_.find(node);
  if (found != flows_.end()) return found->second;
  MessageFlow::Config config = config_.flow;
  config.connects = head_side_ == nullptr && node != head_;  // else the link for joining is all there is
  Flow& flow = flows_.emplace(node, Flow{MessageFlow(config)}).first->second;
  flow.machine.faults = config_.faults.flow;
  return flow;
}

void Member::OpenFlow(uint64_t number, NodeNumber node, bool sends, bool takes) {
  LinkState& link = links_.at(number);
  if (link.flow_with == node) return;
  link.flow_with = node;
  FlowWith(node);
  FeedFlow(node, FlowLinkOpened{number, sends, takes, now_ns_});
}

template <class Event>
bool Member::FeedFlow(NodeNumber node, Event event) {
  std::vector<FlowAction> actions;
  flows_.at(node).machine.Handle(std::move(event), actions);
  bool take = false;
  for (const FlowAction& action : actions) {
    if (const auto* pass = std::get_if<PassMessages>(&action)) {
      PassMessagesTo(node, pass->link);
    } else if (std::holds_alternative<TakeMessage>(action)) {
      take = true;
    } else if (const auto* say = std::get_if<SayTaken>(&action)) {
      SendOver(say->link, FlowTaken{say->through});
    } else if (std::holds_alternative<ConnectFlow>(action)) {
      if (LinkTo(node) == 0) FeedFlow(node, ConnectingFailed{now_ns_});
    } else if (const auto* end = std::get_if<BreakFlowLink>(&action)) {
      Break(end->link, end->why, true);
    } else if (const auto* complain = std::get_if<ComplainOfOther>(&action)) {
      ComplainOf(node, complain->since_ns, flows_.at(node).why);
    } else if (std::holds_alternative<TakeBackComplaint>(action)) {
      TakeBackComplaintOf(node);
    }
  }
  return take;
}

void Member::PassMessagesTo(NodeNumber node, uint64_t link) {
  if (!links_.contains(link)) return;
  MessageFlow& flow = flows_.at(node).machine;
  std::vector<FlowAction> none;
  while (const std::string* next = flow.Next()) {
    if (io_.Pass(link, *next)) {
      flow.Handle(MessagePassed{}, none);
    } else {
      flow.Handle(FlowLinkFull{}, none);  // or it is about to end, which will be told
    }
  }
}

bool Member::Crowded(NodeNumber node) {
  auto found = flows_.find(node);
  if (found == flows_.end() || !found->second.machine.crowded()) return false;
  return found->second.awaited = true;
}

uint64_t Member::KeptBytes(NodeNumber node) const {
  auto found = flows_.find(node);
  return found == flows_.end() ? 0 : found->second.machine.kept_bytes();
}

size_t Member::kept_messages() const {
  size_t sum = 0;
  for (const auto& [node, flow] : flows_) sum += flow.machine.kept_messages();
  return sum;
}

// ---- nodes that cannot be reached ---------------------------------------------------------------------------------

void Member::ComplainOf(NodeNumber node, int64_t since_ns, const std::string& why) {
  if (!nodes_.contains(node) || leaving_) return;
  auto [entry, added] = complaints_.try_emplace(node, Complaint{since_ns, why});
  if (!added) return;
  io_.Log(LogLevel::kWarning, "membership",
          Describe(node) + " cannot be reached from here, and the head is told: " + why);
  TellOfComplaint(node, entry->second);
}

void Member::TellOfComplaint(NodeNumber node, const Complaint& complaint) {
  SendToHead(NodeUnreachable{node, now_ns_ - complaint.since_ns, complaint.why});
}

void Member::TakeBackComplaintOf(NodeNumber node) {
  if (complaints_.erase(node) == 0) return;
  io_.Log(LogLevel::kWarning, "membership", Describe(node) + " can be reached again");
  SendToHead(NodeReachable{node});
}

Result<std::string> Member::ChannelNeeded(NodeNumber node, int64_t now_ns) {
  now_ns_ = now_ns;
  auto known = nodes_.find(node);
  if (known == nodes_.end()) return Error{ErrorKind::kGone, "its node is not known"};
  // If the connection does not carry anything one day, a link between the two daemons tells.
  FlowWith(node);
  FeedFlow(node, FlowNeeded{now_ns});
  return known->second.address;
}

// Other pairs have a flow that tells.
void Member::ChannelFailed(NodeNumber node, int64_t begun_ns, const std::string& why, int64_t now_ns) {
  now_ns_ = now_ns;
  if ((head_side_ == nullptr && node != head_) || !nodes_.contains(node)) return;
  Unconnected& story = unconnected_.try_emplace(node, Unconnected{begun_ns, now_ns}).first->second;
  if (now_ns - story.last_ns > config_.same_story_ns) story.since_ns = begun_ns;
  story.last_ns = now_ns;
  if (now_ns - story.since_ns >= config_.complain_ns) ComplainOf(node, story.since_ns, why);
}

void Member::ChannelMade(NodeNumber node, int64_t now_ns) {
  now_ns_ = now_ns;
  if (unconnected_.erase(node) > 0) TakeBackComplaintOf(node);
}

// ---- time ---------------------------------------------------------------------------------------------------------

int64_t Member::next_wakeup_ns() const {
  int64_t next = std::min(dial_at_ns_, lease_.next_wakeup_ns());
  if (!self_) next = std::min(next, join_by_ns_);
  for (const auto& [node, flow] : flows_) next = std::min(next, flow.machine.next_wakeup_ns());
  return next;
}

void Member::Tick(int64_t now_ns) {
  now_ns_ = now_ns;
  if (!self_ && join_by_ns_ <= now_ns) {
    return host_.ClusterRefused(
        "the head at " + HeadsInWords() +
        (head_answers_ ? " has not taken this node in: its control store may be full or away; its log says more"
                       : " does not answer"));
  }
  // First of all: whether we may still believe in our lease.
  if (lease_.next_wakeup_ns() <= now_ns) {
    std::vector<LeaseAction> actions;
    lease_.Handle(LeaseTicked{now_ns}, actions);
    Perform(actions);
  }
  if (dial_at_ns_ <= now_ns) {
    dial_at_ns_ = INT64_MAX;
    if (head_link_ == 0 && !leaving_ && !DialHead()) dial_at_ns_ = now_ns + config_.dial_again_ns;
  }
}

void Member::TickFlows(int64_t now_ns) {
  now_ns_ = now_ns;
  std::vector<NodeNumber> due;
  for (const auto& [node, flow] : flows_) {
    if (flow.machine.next_wakeup_ns() <= now_ns) due.push_back(node);
  }
  for (NodeNumber node : due) {
    if (flows_.contains(node)) FeedFlow(node, FlowTicked{now_ns});
  }
}

void Member::CheckInvariants() const {
  lease_.CheckInvariants();
  for (const auto& [node, flow] : flows_) flow.machine.CheckInvariants();
  for (const auto& [node, link] : outgoing_) {
    WEFT_CHECK(links_.contains(link) && links_.at(link).node == node,
               "a link for what is sent to a node is that node's");
  }
  for (const auto& [number, link] : links_) {
    WEFT_CHECK(link.purpose != Purpose::kToHead || number == head_link_, "there is one link to the head");
    WEFT_CHECK(!link.flow_with || flows_.contains(link.flow_with) || link.purpose == Purpose::kJoining,
               "the flow of a link exists as long as its node is known");
  }
}

}  // namespace weft::core
