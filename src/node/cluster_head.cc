// Cluster: what only the head does. It decides who belongs to the cluster (Membership) and where work goes
// (GlobalScheduler), has that written down (HeadLedger), and tells the nodes.
#include <cstdio>
#include <utility>

#include "base/clock.h"
#include "node/cluster.h"
#include "node/cluster_peer.h"
#include "wire/placement.h"

namespace weft::core {
namespace {

// Nodes that have gone and are still told of.
constexpr size_t kMostGone = 100;

// So many nodes start workers for a program when it begins; on the others it is when they are first needed.
constexpr size_t kMostPrestarts = 16;

uint64_t WishKey(NodeNumber asker, uint64_t wish) { return uint64_t{asker.value} << 40 | wish; }

}  // namespace

// ---- the head's beginning and end ---------------------------------------------------------------------------------

void Cluster::LedgerOpened(HeadLedger::Restored restored) {
  settings_.cluster_id = restored.cluster_id;
  epoch_ = restored.epoch;
  legacy_ = {epoch_, std::move(restored.actors), std::move(restored.jobs)};
  if (Status status = Listen(); !status) return host_.ClusterRefused(status.error().message);
  head_address_ = own_address_;
  membership_ = std::make_unique<Membership>(
      Membership::Config{.epoch = epoch_, .protocol = kNodeProtocolVersion, .lease_ns = NodeLeaseNs(options_)});
  scheduler_ = std::make_unique<GlobalScheduler>();
  std::vector<MembershipAction> actions;
  // Those of an earlier head are awaited; the others hear of them, since what they run may well go on.
  for (const auto& [node, description] : restored.members) {
    nodes_[node] = {description.name, description.address, description.resources, description.labels};
  }
  membership_->Handle(MembersRestored{std::move(restored.members), restored.next_node, restored.lease_ns, NowNs()},
                      actions);
  // The head is a member itself, over a link that never closes.
  JoinAsked self{.link = next_peer_++, .protocol = kNodeProtocolVersion, .now_ns = NowNs(), .own = true};
  self.node = {identity_, options_.name, own_address_, options_.resources, options_.labels};
  self_ = membership_->next_number();
  own_link_ = self.link;
  membership_->Handle(self, actions);
  Perform(actions);
}

void Cluster::LedgerHeld() { host_.ClusterAwaited(); }

void Cluster::LedgerLost(const std::string& why) { host_.ClusterRefused(why); }

// ---- what nodes say -----------------------------------------------------------------------------------------------

const JobDescribed* Cluster::FindJob(ProcessId job) const {
  auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

void Cluster::ForgetJob(ProcessId job) {
  jobs_.erase(job);
  for (auto& [node, told] : told_jobs_) told.erase(job);
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
  return "it asks for node " + placement.node +
         " only, and no such node belongs to this cluster (`weft list nodes` shows those that do)";
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
  } else if (auto* unreachable = std::get_if<NodeUnreachable>(&message)) {
    std::vector<MembershipAction> decided;
    membership_->Handle(UnreachableSaid{from, unreachable->node, unreachable->for_ns, unreachable->why, NowNs()},
                        decided);
    return Perform(decided);
  } else if (auto* reachable = std::get_if<NodeReachable>(&message)) {
    std::vector<MembershipAction> decided;
    membership_->Handle(ReachableSaid{from, reachable->node, NowNs()}, decided);
    return Perform(decided);
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
      if (refuse->kind == RefuseNode::Kind::kTryAgain) {
        found->second->Send(EncodeNodeMessage(JoinLater{refuse->wait_ns, refuse->why}));
      } else {
        const bool dead = refuse->kind == RefuseNode::Kind::kDeclaredDead;
        found->second->Send(EncodeNodeMessage(NodeRefused{dead, refuse->why}));
      }
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
    } else if (auto* expel = std::get_if<ExpelNode>(&action)) {
      std::fprintf(stderr, "weft node: node %u (%s) must leave the cluster: %s\n", expel->node.value,
                   expel->name.c_str(), expel->why.c_str());
      // It ends what it runs, and then closes the link.
      if (auto found = peers_.find(expel->link); found != peers_.end()) {
        found->second->Send(EncodeNodeMessage(NodeRefused{1, expel->why}));
      }
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
    std::vector<MembershipAction> none;
    membership_->Handle(JoiningBegan{NowNs()}, none);
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

}  // namespace weft::core
