// Cluster: what only the head does. It decides who belongs to the cluster (Membership) and where work goes
// (GlobalScheduler), has that persisted (HeadLedger), and tells the nodes.
#include <utility>

#include "log/log.h"
#include "node/cluster.h"
#include "wire/placement.h"

namespace weft::core {
namespace {

// Nodes that have gone and are still told of.
constexpr size_t kMostGone = 100;

// So many nodes start workers for a program when it begins; on the others it is when they are first needed.
constexpr size_t kMostPrestarts = 16;

// Of the head's own node, which is a member as the others are. Nobody lets this lease run out: the head and its node
// are one process, which stands still or ends as a whole, and a head that no longer leads ends it (LedgerLost).
constexpr int64_t kOwnLeaseNs = int64_t{24} * 3600 * 1'000'000'000;

NodeAppeared News(NodeNumber node, const NodeDescription& description) {
  return {node, description.name, description.address, description.resources, description.labels};
}

uint64_t WishKey(NodeNumber asker, uint64_t wish) { return uint64_t{asker.value} << 40 | wish; }

}  // namespace

// ---- the head's beginning and end ---------------------------------------------------------------------------------

void Cluster::LedgerOpened(HeadLedger::Restored restored) {
  settings_.cluster_id = restored.cluster_id;
  epoch_ = restored.epoch;
  legacy_ = {epoch_, std::move(restored.actors), std::move(restored.jobs)};
  membership_ = std::make_unique<Membership>(
      Membership::Config{.epoch = epoch_, .protocol = kNodeProtocolVersion, .lease_ns = NodeLeaseNs(options_)});
  scheduler_ = std::make_unique<GlobalScheduler>();
  // Those of an earlier head are awaited; the others hear of them, since what they run may well go on.
  known_ = {restored.members.begin(), restored.members.end()};
  for (const auto& [node, description] : known_) Tell(Member::kOwnLink, News(node, description));
  std::vector<MembershipAction> actions;
  membership_->Handle(MembersRestored{std::move(restored.members), restored.next_node, restored.lease_ns, NowNs()},
                      actions);
  Perform(actions);
  if (Status status = member_.Start(NowNs()); !status) return host_.ClusterRefused(status.error().message);
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

void Cluster::JoinCame(uint64_t link, NodeJoins& joins) {
  JoinAsked asked{.link = link,
                  .was = joins.was,
                  .epoch = joins.epoch,
                  .beat = joins.beat,
                  .protocol = joins.protocol,
                  .node = {joins.identity, joins.name, joins.address, joins.resources, joins.labels},
                  .now_ns = NowNs(),
                  .own = link == Member::kOwnLink};
  if (asked.own) head_address_ = joins.address;
  std::vector<MembershipAction> actions;
  membership_->Handle(asked, actions);
  Perform(actions);
}

void Cluster::JoinLinkLost(uint64_t link, bool by_peer) {
  std::vector<MembershipAction> actions;
  membership_->Handle(MemberLinkClosed{link, by_peer, NowNs()}, actions);
  Perform(actions);
}

void Cluster::TickHead(int64_t now_ns) {
  std::vector<MembershipAction> actions;
  if (self()) membership_->Handle(BeatCame{Member::kOwnLink, 0, epoch_, now_ns}, actions);  // see kOwnLeaseNs
  membership_->Handle(MembershipTicked{now_ns}, actions);
  Perform(actions);
}

void Cluster::HeadHeard(NodeNumber from, NodeMessage& message) {
  std::vector<GlobalAction> actions;
  if (auto* beat = std::get_if<NodeBeat>(&message)) {
    auto member = membership_->members().find(from);
    if (member == membership_->members().end()) return;
    std::vector<MembershipAction> decided;
    membership_->Handle(BeatCame{member->second.link, beat->beat, beat->epoch, NowNs()}, decided);
    return Perform(decided);
  }
  if (auto* load = std::get_if<NodeLoad>(&message)) {
    if (Knows(from)) available_[from] = load->available;
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
    for (const auto& [node, other] : nodes()) {
      if (node == from || node == self() || ++told > kMostPrestarts) continue;
      if (told_jobs_[node].insert(job->driver).second) Send(node, *job);
    }
    if (from != self()) host_.NodeMessageCame(from, message);
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
      } else if (known_.contains(accept->node)) {
        Accepted(accept->node);
      }  // else its first acceptance is being persisted
    } else if (auto* refuse = std::get_if<RefuseNode>(&action)) {
      LogInfo("membership", "a node is not taken in: %s", refuse->why.c_str());
      if (refuse->kind == RefuseNode::Kind::kTryAgain) {
        Tell(refuse->link, JoinLater{refuse->wait_ns, refuse->why});
      } else {
        Tell(refuse->link, NodeRefused{refuse->kind == RefuseNode::Kind::kDeclaredDead, refuse->why});
      }
      CloseWhenSent(refuse->link);
    } else if (auto* confirm = std::get_if<ConfirmLease>(&action)) {
      Tell(confirm->link, BeatConfirmed{confirm->beat, confirm->epoch});
    } else if (auto* close = std::get_if<CloseMemberLink>(&action)) {
      CloseWhenSent(close->link);
    } else if (auto* suspect = std::get_if<SuspectNode>(&action)) {
      std::vector<GlobalAction> decided;
      LogInfo("membership", "%s is silent; nothing new is started there", Describe(suspect->node).c_str());
      if (here_.contains(suspect->node)) scheduler_->Handle(NodeSuspected{suspect->node, true}, decided);
      Perform(decided);
    } else if (auto* trust = std::get_if<TrustNode>(&action)) {
      std::vector<GlobalAction> decided;
      LogInfo("membership", "%s is heard again", Describe(trust->node).c_str());
      if (here_.contains(trust->node)) scheduler_->Handle(NodeSuspected{trust->node, false}, decided);
      Perform(decided);
    } else if (auto* expel = std::get_if<ExpelNode>(&action)) {
      LogWarning("membership", "node %u (%s) must leave the cluster: %s", expel->node.value, expel->name.c_str(),
                 expel->why.c_str());
      Tell(expel->link, NodeRefused{1, expel->why});  // it ends what it runs, and then closes the link
    } else if (auto* dead = std::get_if<DeclareDead>(&action)) {
      ledger_->NodeDied(dead->node, [this, news = *dead] { Dead(news); });
    } else if (std::holds_alternative<StepDown>(action)) {
      return host_.ClusterRefused("another head has taken over this cluster");
    }
  }
}

// What its own node does with the news may bring new messages, which others shall not hear before the news.
void Cluster::TellAllBut(NodeNumber but, const NodeMessage& news) {
  for (NodeNumber node : here_) {
    auto member = membership_->members().find(node);
    if (node == but || member == membership_->members().end() || member->second.own) continue;
    if (member->second.link != 0) Tell(member->second.link, news);
  }
  Tell(Member::kOwnLink, news);
}

// All that it must know of the others.
void Cluster::Welcome(uint64_t link, NodeNumber node) {
  const AcceptNode& accept = accepted_.at(node);
  const bool own = link == Member::kOwnLink;
  const NodeNumber head = own ? node : self();
  Tell(link, NodeAccepted{node, head, accept.epoch, accept.beat, own ? kOwnLeaseNs : accept.lease_ns});
  NodesListed listed;
  for (const auto& [other, description] : known_) {
    Tell(link, News(other, description));
    listed.nodes.push_back(other);
  }
  Tell(link, listed);
  member_.Adopt(link, node, NowNs());
}

void Cluster::Accepted(NodeNumber node) {
  auto member = membership_->members().find(node);
  if (member == membership_->members().end()) return;  // dead meanwhile
  const NodeDescription description = member->second.description;
  const uint64_t link = member->second.link;
  if (known_.emplace(node, description).second) TellAllBut(node, News(node, description));
  if (member->second.own) {
    std::vector<MembershipAction> none;
    membership_->Handle(JoiningBegan{NowNs()}, none);
  }
  if (link != 0) Welcome(link, node);
  // One that was here before goes on where its link was lost.
  std::vector<GlobalAction> decided;
  if (here_.insert(node).second) {
    scheduler_->Handle(NodeJoined{node, description.resources, description.resources, {}, description.labels}, decided);
  }
  Perform(decided);
}

void Cluster::Dead(const DeclareDead& news) {
  if (auto known = known_.find(news.node); known != known_.end()) {
    NodeListed last = ListedAs(news.node, known->second);
    last.alive = 0;
    last.why = news.why;
    departed_.push_back(std::move(last));
    if (departed_.size() > kMostGone) departed_.pop_front();
  }
  available_.erase(news.node);
  LogWarning("membership", "node %u (%s) is no longer in the cluster: %s", news.node.value, news.name.c_str(),
             news.why.c_str());
  std::vector<GlobalAction> decided;
  accepted_.erase(news.node);
  if (here_.erase(news.node) > 0) scheduler_->Handle(NodeLeft{news.node}, decided);
  std::erase_if(wishes_, [&](const auto& wish) { return wish.first >> 40 == news.node.value; });
  known_.erase(news.node);
  told_jobs_.erase(news.node);
  TellAllBut(news.node, NodeVanished{news.node, news.why});
  Perform(decided);
}

void Cluster::Perform(std::vector<GlobalAction>& actions) {
  for (auto& action : std::exchange(actions, {})) {
    if (auto* place = std::get_if<PlaceWork>(&action)) {
      auto wish = wishes_.find(WishKey(place->wish.asker, place->wish.number));
      if (wish == wishes_.end()) continue;
      LogDebug("lease", "%u leases for node %u are placed on node %u", place->count, place->wish.asker.value,
               place->node.value);
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
