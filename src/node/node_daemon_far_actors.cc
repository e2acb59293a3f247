// NodeDaemon: actors whose worker, home and callers are on different nodes.
//
// The home of an actor is the node of its creator, or the head if it is detached. Its ActorDirectory alone knows the
// state. What the home's local scheduler cannot place goes to the head as a wish; the node that the head chooses has
// the actor in its own local scheduler, like one of its own, and offers the worker to the home. From then on it does
// what the home says, and tells it what the worker says. A process that watches is told by its own daemon, which first
// sees to the channel. The worker ends with its home, unless the actor is detached.
#include <algorithm>
#include <cstdio>

#include "base/check.h"
#include "base/clock.h"
#include "node/node_daemon.h"
#include "wire/languages.h"

namespace weft::core {
namespace {

constexpr size_t kMostExited = 1000;  // whose last words a head may not have heard

ActorChanged Unreachable(const ActorChanged& change, const std::string& why) {
  ActorChanged unreachable{change.actor, static_cast<uint8_t>(ActorState::kDead), change.incarnation};
  unreachable.why = why;
  return unreachable;
}

}  // namespace

bool NodeDaemon::IsHome(ObjectId actor) const {
  if (!cluster_) return true;
  return actor.owner == kCluster ? cluster_->is_head() : !IsElsewhere(actor.owner);
}

NodeNumber NodeDaemon::HomeOf(ObjectId actor) const {
  return actor.owner == kCluster ? NodeNumber{} : NodeOf(actor.owner);
}

// ---- callers ------------------------------------------------------------------------------------------------------

// About an actor that another node knows. If that node is gone, so is the actor.
void NodeDaemon::AskElsewhere(Process& process, ObjectId actor, const Message& message) {
  const NodeNumber home = HomeOf(actor);
  if (!home || cluster_->Knows(home) || cluster_->MayAppear(home)) {
    if (std::holds_alternative<WatchActor>(message)) watched_[actor].insert(process.id);
    return cluster_->Send(home, FromProcess{process.id, process.job, Encode(message)});
  }
  ActorChanged dead{actor, static_cast<uint8_t>(ActorState::kDead)};
  dead.why = "the node of its creator, node " + std::to_string(home.value) + ", has left the cluster";
  Send(process, dead);
}

// The receiver's daemon opens the channel.
void NodeDaemon::TellElsewhere(const TellWatcher& action) {
  const ProcessId worker = action.change.worker;
  if (worker && !IsElsewhere(worker) && Find(worker) == nullptr) return;  // its actor's next change is on its way
  SendElsewhere(action.process, action.change);
}

void NodeDaemon::DeliverChange(Process& watcher, const ActorChanged& change) {
  if (cluster_) {
    channels_.Overtake(watcher.id, change);
    if (static_cast<ActorState>(change.state) == ActorState::kDead) watched_.erase(change.actor);
  }
  if (!change.worker) return Send(watcher, change);
  if (!IsElsewhere(change.worker)) {
    auto* worker = Find(change.worker);
    if (worker == nullptr) return;  // its actor's next change is on its way
    if (OpenChannel(watcher, *worker)) return Send(watcher, change);
    const char* why = "no descriptors or channel slots are left on this node for a channel to the actor";
    if (watcher.id == change.actor.owner || change.construct != 0) return Kill(*worker, why);
    return Send(watcher, Unreachable(change, why));
  }
  if (channels_.HasSubmitter({watcher.id, change.worker})) return Send(watcher, change);
  if (deaths_.contains(change.worker)) return;
  remote_peers_.insert(change.worker);
  if (channels_.Await({watcher.id, change.worker}, change)) cluster_->DialChannel(watcher.id, change.worker);
}

void NodeDaemon::TellUnreachable(Process& watcher, const ActorChanged& change, const std::string& why) {
  // Who was to construct it cannot: it must not wait for ever.
  if (change.construct != 0) return cluster_->Send(NodeOf(change.worker), EndActorWorker{change.worker, 0, why});
  Send(watcher, Unreachable(change, why));
}

// ---- the node of the worker ---------------------------------------------------------------------------------------

void NodeDaemon::PlaceFarActor(WorkAssigned& message) {
  auto decline = [&] {
    cluster_->SendToHead(WorkDeclined{message.asker, message.wish, message.placement, message.count});
  };
  if (IsHome(message.actor)) {
    if (!PlaceActorAtHome(message.actor)) return decline();
    // The local scheduler has it. If that cannot serve it after all, it is wished for anew.
    ForgetActorWish(message.actor);
    return;
  }
  Job* job = EnsureJob(message.job);
  if (job == nullptr || job->ending || job->leaving_until_ns != 0 || HasDied(message.process) ||
      !IsValidShape(message.shape) || !IsValidShape(message.to_hold) || scheduler_->HasWorkerOf(message.actor)) {
    return decline();
  }
  if (Find(message.process) == nullptr && remote_clients_.emplace(message.process, message.job).second) {
    scheduler_->Handle(ProcessJoined{message.process, false, {message.job}}, scheduler_actions_);
  }
  far_wanted_[message.actor] = {message.asker, message.process, message.class_name, message.wish, message.placement};
  RereadBlockedFlags();
  scheduler_->Handle(ActorWanted{message.actor, message.process, message.shape, message.to_hold, message.depth},
                     scheduler_actions_);
  if (scheduler_->IsUnmet(message.actor)) DeclineFarActor(message.actor);
}

void NodeDaemon::DeclineFarActor(ObjectId actor) {
  auto wanted = far_wanted_.find(actor);
  if (wanted == far_wanted_.end()) return;
  const WorkDeclined declined{wanted->second.home, wanted->second.wish, wanted->second.placement, 1};
  far_wanted_.erase(wanted);
  scheduler_->Handle(ActorUnwanted{actor}, scheduler_actions_);
  load_told_ = false;
  cluster_->SendToHead(declined);
}

// True if the actor's home is another node, which is told.
bool NodeDaemon::OfferActor(const GrantActor& action, Process& worker) {
  auto wanted = far_wanted_.find(action.actor);
  if (wanted == far_wanted_.end()) return false;
  worker.actor_class = wanted->second.class_name;
  far_workers_[action.worker] = {.actor = action.actor, .home = wanted->second.home, .gpus = action.gpus};
  cluster_->Send(wanted->second.home, ActorOffered{action.actor, action.worker, action.gpus});
  far_wanted_.erase(wanted);
  return true;
}

bool NodeDaemon::RefuseFarActor(const RefuseActor& action) {
  auto wanted = far_wanted_.find(action.actor);
  if (wanted == far_wanted_.end()) return false;
  const std::string why = "on " + cluster_->Describe(cluster_->self()) + " " + action.why;
  cluster_->Send(wanted->second.home, ActorNotPlaced{action.actor, why});
  far_wanted_.erase(wanted);
  return true;
}

// What the worker of an actor says, whose home is another node. False if it is ours.
bool NodeDaemon::TellHome(Process& worker, ObjectId actor, const Message& message) {
  auto found = far_workers_.find(worker.id);
  if (found == far_workers_.end()) return false;
  if (found->second.actor != actor) {
    Refuse(worker, "spoke for an actor that it does not run");
    return true;
  }
  if (const auto* constructed = std::get_if<ActorConstructed>(&message)) {
    (constructed->ok != 0 ? found->second.constructed : found->second.failed) = true;
    if (constructed->ok != 0) {
      RereadBlockedFlags();
      scheduler_->Handle(ActorSettled{actor}, scheduler_actions_);
    }
  } else if (std::holds_alternative<ActorExiting>(message)) {
    found->second.exiting = true;
    if (actor.owner == kCluster) exited_.emplace(actor, worker.id);
    if (exited_.size() > kMostExited) exited_.erase(exited_.begin());
  }
  cluster_->Send(found->second.home, FromProcess{worker.id, worker.job, Encode(message)});
  return true;
}

void NodeDaemon::HandleNode(NodeNumber from, EndActorWorker& message) {
  auto found = far_workers_.find(message.worker);
  if (found == far_workers_.end() || found->second.home != from) return;
  auto* worker = Find(message.worker);
  if (worker == nullptr) return;
  if (message.leave == 0) return Kill(*worker, message.why);
  RereadBlockedFlags();
  scheduler_->Handle(WorkerLetGo{message.worker}, scheduler_actions_);
  Send(*worker, Exit{});
}

// The home of these is gone.
void NodeDaemon::EndFarWorkersOf(NodeNumber home, const std::string& why) {
  for (const auto& [id, far] : far_workers_) {
    if (far.home != home || far.actor.owner == kCluster) continue;
    if (auto* worker = Find(id)) Kill(*worker, "the node of its actor's creator is gone (" + why + ")");
  }
  std::vector<ObjectId> unwanted;
  for (const auto& [actor, wanted] : far_wanted_) {
    if (wanted.home == home && actor.owner != kCluster) unwanted.push_back(actor);
  }
  for (ObjectId actor : unwanted) {
    far_wanted_.erase(actor);
    scheduler_->Handle(ActorUnwanted{actor}, scheduler_actions_);
  }
}

// ---- the home -----------------------------------------------------------------------------------------------------

void NodeDaemon::HandleNode(NodeNumber from, ActorOffered& message) {
  if (NodeOf(message.worker) != from || !IsHome(message.actor)) return;
  remote_peers_.insert(message.worker);
  scheduler_->Handle(ActorUnwanted{message.actor}, scheduler_actions_);
  placed_actors_.erase(message.actor);
  told_decisions_ = UINT64_MAX;
  directory_.Handle(ActorPlaced{message.actor, message.worker, message.gpus}, directory_actions_);
}

void NodeDaemon::HandleNode(NodeNumber, ActorNotPlaced& message) {
  if (!IsHome(message.actor)) return;
  directory_.Handle(ActorRefused{message.actor, message.why}, directory_actions_);
}

// After each turn of the loop: which actors of ours no worker of ours can take, and which no longer need one.
void NodeDaemon::TellHeadOfActors() {
  if (scheduler_->decisions() == told_decisions_) return;
  told_decisions_ = scheduler_->decisions();
  std::set<ObjectId> present;
  std::vector<WishSent> to_send;
  std::vector<ObjectId> declined;
  std::vector<LocalScheduler::UnmetActor> wanted = scheduler_->UnmetActors();
  for (const auto& [actor, placed] : placed_actors_) wanted.push_back(placed);
  for (const auto& unmet : wanted) {
    if (far_wanted_.contains(unmet.actor)) {
      declined.push_back(unmet.actor);
      continue;
    }
    const auto* process = Find(unmet.creator);
    const ProcessId job = process != nullptr ? process->job : unmet.creator;
    if (FindJob(job) == nullptr) continue;
    present.insert(unmet.actor);
    auto [wish, fresh] = actor_wishes_.try_emplace(unmet.actor, next_wish_);
    if (!fresh) continue;
    actors_of_wishes_[next_wish_] = unmet.actor;
    // Every node has room for workers of any language; which one it must be is said by what the actor will hold.
    ResourceAmounts shape = unmet.shape;
    std::erase_if(shape, [](const auto& amount) { return amount.first == kPythonWorker; });
    to_send.push_back({next_wish_++, unmet.creator, job, std::move(shape), 1, unmet.depth, 0, unmet.actor,
                       unmet.to_hold, directory_.ClassNameOf(unmet.actor)});
  }
  std::vector<ObjectId> served;
  for (const auto& [actor, wish] : actor_wishes_) {
    if (!present.contains(actor)) served.push_back(actor);
  }
  for (ObjectId actor : served) ForgetActorWish(actor);
  for (const WishSent& wish : to_send) {
    TellHeadOfJob(wish.job);
    cluster_->SendToHead(wish);
  }
  for (ObjectId actor : declined) DeclineFarActor(actor);
}

void NodeDaemon::ForgetActorWish(ObjectId actor) {
  auto found = actor_wishes_.find(actor);
  if (found == actor_wishes_.end()) return;
  const WishSent withdrawn{.wish = found->second, .process = actor.owner, .withdrawn = 1};
  actors_of_wishes_.erase(found->second);
  actor_wishes_.erase(found);
  told_decisions_ = 0;
  cluster_->SendToHead(withdrawn);
}

// What was on its way to a node that is gone is not coming, and the head may have counted it as arrived: a worker that
// was still being started there, or a grant that did not get through. What comes from other nodes for the former wishes
// may be too much; it is returned.
void NodeDaemon::WishAnew() {
  std::vector<ObjectId> wished;
  for (const auto& [actor, wish] : actor_wishes_) wished.push_back(actor);
  for (ObjectId actor : wished) ForgetActorWish(actor);
  sent_wishes_.WishAnew();
}

bool NodeDaemon::ActorWishRefused(const WishRefused& message) {
  auto found = actors_of_wishes_.find(message.wish);
  if (found == actors_of_wishes_.end()) return false;
  const ObjectId actor = found->second;
  if (message.for_ever != 0) {
    actor_wishes_.erase(actor);
    actors_of_wishes_.erase(found);
    directory_.Handle(ActorRefused{actor, message.why}, directory_actions_);
    return true;
  }
  ProcessId driver;
  if (auto kept = kept_.find(actor); kept != kept_.end()) {
    driver = kept->second.driver;
  } else if (auto* creator = Find(actor.owner)) {
    driver = creator->job;
  }
  if (driver) Answer(driver, WorkerOutput{ProcessId{}, 0, 1, "weft: " + message.why + "\n", ""});
  return true;
}

}  // namespace weft::core
