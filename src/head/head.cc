#include "head/head.h"

#include <algorithm>

#include "wire/placement.h"

namespace weft::core {
namespace {

// Nodes that have gone and are still told of.
constexpr size_t kMostGone = 100;

// So many nodes start workers for a program when it begins; on the others it is when they are first needed.
constexpr size_t kMostPrestarts = 16;

// Of the head's own node, which is a member as the others are. Nobody lets this lease run out: the head and its node
// are one process, which stands still or ends as a whole, and a head that no longer leads ends it (HeadEnded).
constexpr int64_t kOwnLeaseNs = int64_t{24} * 3600 * 1'000'000'000;

NodeAppeared News(NodeNumber node, const NodeDescription& description) {
  return {node, description.name, description.address, description.resources, description.labels};
}

std::string Named(NodeNumber node, const std::string& name) {
  return "node " + std::to_string(node.value) + " (" + name + ")";
}

}  // namespace

Head::Head(Config config, Member& member, ControlStore& store, Host& host)
    : config_(std::move(config)), member_(member), host_(host), ledger_(config_.ledger, store, host, *this) {}

void Head::LedgerOpened(HeadLedger::Restored restored) {
  cluster_id_ = restored.cluster_id;
  epoch_ = restored.epoch;
  legacy_ = {epoch_, std::move(restored.actors), std::move(restored.jobs)};
  Membership::Config membership = config_.membership;
  membership.epoch = epoch_;
  membership.protocol = kNodeProtocolVersion;
  membership_ = std::make_unique<Membership>(membership);
  membership_->faults = config_.faults.membership;
  scheduler_ = std::make_unique<GlobalScheduler>();
  scheduler_->faults = config_.faults.scheduler;
  host_.HeadLeads(cluster_id_);
  // Those of an earlier head are awaited; the others hear of them, since what they run may well go on.
  known_ = {restored.members.begin(), restored.members.end()};
  for (const auto& [node, description] : known_) Tell(Member::kOwnLink, News(node, description));
  Decide(MembersRestored{std::move(restored.members), restored.next_node, restored.lease_ns, host_.Now()});
  if (Status status = member_.Start(host_.Now(), this); !status) host_.HeadEnded(status.error().message);
}

// ---- what nodes say -----------------------------------------------------------------------------------------------

template <class Event>
void Head::Decide(const Event& event) {
  if constexpr (requires(std::vector<MembershipAction>& out) { membership_->Handle(event, out); }) {
    std::vector<MembershipAction> actions;
    membership_->Handle(event, actions);
    Perform(actions);
  } else {
    std::vector<GlobalAction> actions;
    scheduler_->Handle(event, actions);
    Perform(actions);
  }
}

void Head::JoinCame(uint64_t link, NodeJoins& joins) {
  Decide(JoinAsked{.link = link,
                   .was = joins.was,
                   .epoch = joins.epoch,
                   .beat = joins.beat,
                   .protocol = joins.protocol,
                   .node = {joins.identity, joins.name, joins.address, joins.resources, joins.labels},
                   .now_ns = host_.Now(),
                   .own = link == Member::kOwnLink});
}

void Head::JoinLinkLost(uint64_t link, bool by_peer) { Decide(MemberLinkClosed{link, by_peer, host_.Now()}); }

void Head::HeadHeard(NodeNumber from, NodeMessage& message) {
  const int64_t now = host_.Now();
  auto member = membership_->members().find(from);
  const uint64_t link = member == membership_->members().end() ? 0 : member->second.link;
  if (auto* beat = std::get_if<NodeBeat>(&message)) {
    if (link != 0) Decide(BeatCame{link, beat->beat, beat->epoch, now});
  } else if (std::holds_alternative<NodeGoodbye>(message)) {
    if (link != 0) Decide(GoodbyeCame{link, now});
  } else if (auto* unreachable = std::get_if<NodeUnreachable>(&message)) {
    Decide(UnreachableSaid{from, unreachable->node, unreachable->for_ns, unreachable->why, now});
  } else if (auto* reachable = std::get_if<NodeReachable>(&message)) {
    Decide(ReachableSaid{from, reachable->node, now});
  } else if (auto* load = std::get_if<NodeLoad>(&message)) {
    if (known_.contains(from)) available_[from] = load->available;
    Decide(NodeReported{from, load->placements_seen, load->available, load->free_gpus, load->leases, {}});
  } else if (auto* request = std::get_if<LeaseRequest>(&message)) {
    RequestCame(from, *request);
  } else if (auto* declined = std::get_if<WorkDeclined>(&message)) {
    Decide(PlacementRefused{from, declined->placement, RequestId{declined->requester, declined->request},
                            declined->count});
  } else if (auto* job = std::get_if<JobDescribed>(&message)) {
    JobCame(from, *job);
  }
}

void Head::JobCame(NodeNumber from, const JobDescribed& job) {
  KnowJob(job);
  // Its first tasks elsewhere should not have to wait until workers have started there.
  size_t told = 0;
  for (const auto& [node, description] : known_) {
    if (node == from || (node != member_.self() && ++told > kMostPrestarts)) continue;
    if (told_jobs_[node].insert(job.driver).second) Send(node, job);
  }
}

void Head::RequestCame(NodeNumber from, const LeaseRequest& request) {
  const RequestId id{from, request.request};
  if (request.withdrawn != 0) {
    requests_.erase({from, request.request});
    return Decide(RequestWithdrawn{id});
  }
  if (requests_.contains({from, request.request}))
    return Decide(RequestChanged{id, request.count, request.assigned_heard});
  WorkRequested requested{.request = id,
                          .process = request.process,
                          .job = request.job.value,
                          .shape = WithoutPlacement(request.shape),
                          .count = request.count,
                          .depth = request.depth};
  requested.actor = static_cast<bool>(request.actor);
  if (const std::string why = Place(request.shape, requested); !why.empty()) {
    return Send(from, RequestRefused{request.request, 1, requested.actor ? why : "the task cannot run: " + why});
  }
  requests_[{from, request.request}] = request;
  Decide(requested);
}

// From what the shape says of its place. Returns why that cannot be.
std::string Head::Place(const ResourceAmounts& shape, WorkRequested& requested) const {
  const std::string_view name = PlacementOf(shape);
  Placement placement;
  if (name.empty()) return "";
  if (!DecodePlacement(name, &placement)) return "its placement cannot be understood";
  requested.labels = placement.labels;
  if (placement.spread) requested.strategy.kind = PlacementStrategy::Kind::kSpread;
  if (placement.near) requested.argument_bytes = {{placement.near, kArgumentStep}};
  if (placement.node.empty()) return "";
  requested.strategy = {PlacementStrategy::Kind::kAffinity, NumberOfNodeId(SessionOf(cluster_id_), placement.node),
                        placement.soft};
  if (requested.strategy.node || placement.soft) return "";
  return "it asks for node " + placement.node +
         " only, and no such node belongs to this cluster (`weft list nodes` shows those that do)";
}

const JobDescribed* Head::FindJob(ProcessId job) const {
  auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

void Head::ForgetJob(ProcessId job) {
  jobs_.erase(job);
  for (auto& [node, told] : told_jobs_) told.erase(job);
}

// ---- decisions ----------------------------------------------------------------------------------------------------

void Head::Perform(std::vector<MembershipAction>& actions) {
  for (auto& action : std::exchange(actions, {})) {
    if (auto* accept = std::get_if<AcceptNode>(&action)) {
      const auto& description = membership_->members().at(accept->node).description;
      accepted_[accept->node] = *accept;
      if (!accept->again) {
        const bool early = config_.faults.tell_before_writing;
        if (early) Accepted(accept->node);
        ledger_.NodeAccepted(accept->node, description, membership_->next_number(), [=, this, node = accept->node] {
          if (!early) Accepted(node);
        });
      } else if (known_.contains(accept->node)) {
        Accepted(accept->node);
      }  // else its first acceptance is being persisted
    } else if (auto* refuse = std::get_if<RefuseNode>(&action)) {
      host_.Log(LogLevel::kInfo, "membership", "a node is not taken in: " + refuse->why);
      if (refuse->kind == RefuseNode::Kind::kTryAgain) {
        Tell(refuse->link, JoinLater{refuse->wait_ns, refuse->why});
      } else {
        Tell(refuse->link, NodeRefused{refuse->kind == RefuseNode::Kind::kDeclaredDead, refuse->why});
      }
      member_.CloseWhenSent(refuse->link);
    } else if (auto* confirm = std::get_if<ConfirmLease>(&action)) {
      Tell(confirm->link, BeatConfirmed{confirm->beat, confirm->epoch});
    } else if (auto* close = std::get_if<CloseMemberLink>(&action)) {
      member_.CloseWhenSent(close->link);
    } else if (auto* suspect = std::get_if<SuspectNode>(&action)) {
      Suspect(suspect->node, true);
    } else if (auto* trust = std::get_if<TrustNode>(&action)) {
      Suspect(trust->node, false);
    } else if (auto* expel = std::get_if<ExpelNode>(&action)) {
      host_.Log(LogLevel::kWarning, "membership",
                Named(expel->node, expel->name) + " must leave the cluster: " + expel->why);
      Tell(expel->link, NodeRefused{1, expel->why});  // it ends what it runs, and then closes the link
    } else if (auto* dead = std::get_if<DeclareDead>(&action)) {
      ledger_.NodeDied(dead->node, [this, news = *dead] { Dead(news); });
    } else if (std::holds_alternative<StepDown>(action)) {
      return host_.HeadEnded("another head has taken over this cluster");
    }
  }
}

void Head::Suspect(NodeNumber node, bool suspected) {
  host_.Log(LogLevel::kInfo, "membership",
            member_.Describe(node) + (suspected ? " is silent; nothing new is started there" : " is heard again"));
  if (here_.contains(node)) Decide(NodeSuspected{node, suspected});
}

// What its own node does with the news may bring new messages, which others shall not hear before the news.
void Head::TellAllBut(NodeNumber but, const NodeMessage& news) {
  for (NodeNumber node : here_) {
    auto member = membership_->members().find(node);
    if (node == but || member == membership_->members().end() || member->second.own) continue;
    if (member->second.link != 0) Tell(member->second.link, news);
  }
  Tell(Member::kOwnLink, news);
}

// All that it must know of the others.
void Head::Welcome(uint64_t link, NodeNumber node) {
  const AcceptNode& accept = accepted_.at(node);
  const bool own = link == Member::kOwnLink;
  const NodeNumber head = own ? node : member_.self();
  Tell(link, NodeAccepted{node, head, accept.epoch, accept.beat, own ? kOwnLeaseNs : accept.lease_ns});
  NodesListed listed;
  for (const auto& [other, description] : known_) {
    Tell(link, News(other, description));
    listed.nodes.push_back(other);
  }
  Tell(link, listed);
  member_.Adopt(link, node, host_.Now());
}

void Head::Accepted(NodeNumber node) {
  auto member = membership_->members().find(node);
  if (member == membership_->members().end()) return;  // dead meanwhile
  const NodeDescription description = member->second.description;
  const uint64_t link = member->second.link;
  if (known_.emplace(node, description).second) TellAllBut(node, News(node, description));
  if (member->second.own) {
    std::vector<MembershipAction> none;
    membership_->Handle(JoiningBegan{host_.Now()}, none);
  }
  if (link != 0) Welcome(link, node);
  // One that was here before goes on where its link was lost.
  std::vector<GlobalAction> decided;
  if (here_.insert(node).second) {
    scheduler_->Handle(NodeJoined{node, description.resources, description.resources, {}, description.labels}, decided);
  }
  Perform(decided);
}

void Head::Dead(const DeclareDead& news) {
  if (auto known = known_.find(news.node); known != known_.end()) {
    departed_.push_back({news.node, known->second, available_[news.node], news.why});
    if (departed_.size() > kMostGone) departed_.pop_front();
  }
  available_.erase(news.node);
  host_.Log(LogLevel::kWarning, "membership",
            Named(news.node, news.name) + " is no longer in the cluster: " + news.why);
  std::vector<GlobalAction> decided;
  accepted_.erase(news.node);
  if (here_.erase(news.node) > 0) scheduler_->Handle(NodeLeft{news.node}, decided);
  std::erase_if(requests_, [&](const auto& request) { return request.first.first == news.node; });
  known_.erase(news.node);
  told_jobs_.erase(news.node);
  TellAllBut(news.node, NodeVanished{news.node, news.why});
  Perform(decided);
}

void Head::Perform(std::vector<GlobalAction>& actions) {
  for (auto& action : std::exchange(actions, {})) {
    if (auto* place = std::get_if<PlaceWork>(&action)) {
      auto request = requests_.find({place->request.requester, place->request.number});
      if (request == requests_.end()) continue;
      const LeaseRequest requested = request->second;  // a copy: what is said below may change the requests
      const ProcessId job = requested.job;
      if (told_jobs_[place->node].insert(job).second) {
        if (const JobDescribed* described = FindJob(job)) Send(place->node, *described);
      }
      Send(place->request.requester, RequestAssigned{place->request.number, place->count});
      Send(place->node, WorkAssigned{place->request.requester, place->request.number, place->placement, place->process,
                                     job, requested.shape, place->count, place->depth, requested.actor,
                                     requested.to_hold, requested.class_name});
    } else if (auto* unplace = std::get_if<UnplaceWork>(&action)) {
      Send(unplace->request.requester, RequestAssigned{unplace->request.number, -static_cast<int64_t>(unplace->count)});
    } else if (auto* refuse = std::get_if<RefuseWork>(&action)) {
      requests_.erase({refuse->request.requester, refuse->request.number});
      Send(refuse->request.requester, RequestRefused{refuse->request.number, 1, refuse->why});
    } else if (auto* warn = std::get_if<WarnInfeasible>(&action)) {
      Send(warn->request.requester, RequestRefused{warn->request.number, 0, warn->why});
    }
  }
}

// ---- time ---------------------------------------------------------------------------------------------------------

int64_t Head::next_wakeup_ns() const {
  return std::min(membership_ ? membership_->next_wakeup_ns() : INT64_MAX, ledger_.next_wakeup_ns());
}

void Head::Tick(int64_t now_ns) {
  if (membership_) {
    if (member_.self()) Decide(BeatCame{Member::kOwnLink, 0, epoch_, now_ns});  // see kOwnLeaseNs
    Decide(MembershipTicked{now_ns});
  }
  if (ledger_.next_wakeup_ns() <= now_ns) ledger_.Tick(now_ns);
}

void Head::CheckInvariants() const {
  if (!membership_) return;
  membership_->CheckInvariants();
  scheduler_->CheckInvariants();
}

}  // namespace weft::core
