#include "node/cluster.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/clock.h"
#include "node/cluster_peer.h"
#include "os/entropy.h"

namespace weft::core {
namespace {

// A link over which nothing is heard for so long has ended; well within a node's lease.
constexpr int64_t kIdleNs = 5'000'000'000;

// How long a node that starts may take to become a member.
constexpr int64_t kJoinNs = 15'000'000'000;

// However long the head wants a node to wait, it asks again after this.
constexpr int64_t kMaxJoinWaitNs = 600'000'000'000;

// Nodes that have gone and can be described to who asks for something of theirs.
constexpr size_t kMostGoneInWords = 1'000;

}  // namespace

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
    cluster->head_address_ = HostPortText(options.host, options.port);
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

// ---- messages -----------------------------------------------------------------------------------------------------

void Cluster::Deliver(NodeNumber from, NodeMessage& message) {
  if (std::holds_alternative<ChunksCut>(message)) return host_.LinkBroken(from ? from : head_);
  if (is_head()) {
    if (std::holds_alternative<NodeBeat>(message) || std::holds_alternative<NodeLoad>(message) ||
        std::holds_alternative<WishSent>(message) || std::holds_alternative<JobDescribed>(message) ||
        std::holds_alternative<WorkDeclined>(message) || std::holds_alternative<NodeFarewell>(message) ||
        std::holds_alternative<NodeUnreachable>(message) || std::holds_alternative<NodeReachable>(message)) {
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
        for (const auto& [node, complaint] : complaints_) TellOfComplaint(node, complaint);
        host_.HeadForgot();
      }
      return Perform(actions);
    }
    if (auto* later = std::get_if<JoinLater>(&message)) return WaitToJoin(*later);
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
  unconnected_.erase(node);
  complaints_.erase(node);
  told_jobs_.erase(node);
  host_.NodeIsGone(node, described);
}

// ---- the node's own place -----------------------------------------------------------------------------------------

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

// The head does not want us yet: most often we had to leave, and come back.
void Cluster::WaitToJoin(const JoinLater& message) {
  if (self_) return;
  const int64_t now = NowNs();
  const int64_t wait = std::clamp<int64_t>(message.wait_ns, kDialAgainNs, kMaxJoinWaitNs);
  if (!options_.returns && now + wait >= join_by_ns_) return host_.ClusterRefused(message.why);
  std::fprintf(stderr, "weft node: not a member yet: %s\n", message.why.c_str());
  const uint64_t number = std::exchange(head_link_, 0);
  if (auto found = peers_.find(number); found != peers_.end()) {
    found->second->ready = false;
    found->second->link->Close();
    ended_.push_back(number);
  }
  std::vector<LeaseAction> actions;
  lease_->Handle(HeadLinkLost{now}, actions);
  Perform(actions);
  dial_again_ns_ = now + wait;
  if (options_.returns) join_by_ns_ = dial_again_ns_ + kJoinNs;
}

// ---- looking ------------------------------------------------------------------------------------------------------

std::string Cluster::Describe(NodeNumber node) const {
  const std::string number = "node " + std::to_string(node.value);
  if (auto found = nodes_.find(node); found != nodes_.end()) return number + " (" + found->second.name + ")";
  if (auto found = gone_.find(node); found != gone_.end()) return found->second;
  return number + ", which is not in the cluster";
}

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
  TickFlows(now_ns);
  Bury();
}

}  // namespace weft::core
