// NodeCore: actors whose worker, home and callers are on different nodes.
//
// The home of an actor is the node of its creator, or the head if it is detached. Its ActorDirectory alone knows the
// state. What the home's local scheduler cannot place goes to the head as a request; the node that the head chooses has
// the actor in its own local scheduler, like one of its own, and offers the worker to the home. From then on it does
// what the home says, and tells it what the worker says. A process that watches is told by its own daemon, which first
// sees to the channel. The worker ends with its home, unless the actor is detached.
#include <algorithm>
#include <cstdio>

#include "base/check.h"
#include "node/node_core.h"
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

bool NodeCore::IsHome(ObjectId actor) const {
  if (!links_) return true;
  return actor.owner == kCluster ? links_->is_head() : !IsElsewhere(actor.owner);
}

NodeNumber NodeCore::HomeOf(ObjectId actor) const {
  return actor.owner == kCluster ? NodeNumber{} : NodeOf(actor.owner);
}

// ---- callers ------------------------------------------------------------------------------------------------------

// About an actor that another node knows. If that node is gone, so is the actor.
void NodeCore::AskElsewhere(LocalProcess& process, ObjectId actor, const Message& message) {
  const NodeNumber home = HomeOf(actor);
  if (!home || links_->Knows(home) || links_->MayAppear(home)) {
    if (std::holds_alternative<WatchActor>(message)) remote_.watched[actor].insert(process.id);
    return links_->Send(home, FromProcess{process.id, process.job, Encode(message)});
  }
  ActorChanged dead{actor, static_cast<uint8_t>(ActorState::kDead)};
  dead.why = "the node of its creator, node " + std::to_string(home.value) + ", has left the cluster";
  Send(process, dead);
}

// The receiver's daemon opens the channel.
void NodeCore::TellElsewhere(const TellWatcher& action) {
  const ProcessId worker = action.change.worker;
  if (worker && !IsElsewhere(worker) && Find(worker) == nullptr) return;  // its actor's next change is on its way
  SendElsewhere(action.process, action.change);
}

void NodeCore::DeliverChange(const LocalProcess& watcher, const ActorChanged& change) {
  if (links_) {
    channels_.Overtake(watcher.id, change);
    if (static_cast<ActorState>(change.state) == ActorState::kDead) remote_.watched.erase(change.actor);
  }
  if (!change.worker) return Send(watcher, change);
  if (!IsElsewhere(change.worker)) {
    auto* worker = Find(change.worker);
    if (worker == nullptr) return;  // its actor's next change is on its way
    if (OpenChannel(watcher.id, worker->id)) return Send(watcher, change);
    const char* why = "no descriptors or channel slots are left on this node for a channel to the actor";
    if (watcher.id == change.actor.owner || change.construct != 0) return Kill(worker->id, why);
    return Send(watcher, Unreachable(change, why));
  }
  if (channels_.HasSubmitter({watcher.id, change.worker})) return Send(watcher, change);
  if (processes_.RemembersDeath(change.worker)) return;
  remote_peers_.insert(change.worker);
  if (channels_.Await({watcher.id, change.worker}, change)) links_->DialChannel(watcher.id, change.worker);
}

void NodeCore::TellUnreachable(const LocalProcess& watcher, const ActorChanged& change, const std::string& why) {
  // Who was to construct it cannot: it must not wait for ever.
  if (change.construct != 0) return links_->Send(NodeOf(change.worker), EndActorWorker{change.worker, 0, why});
  Send(watcher, Unreachable(change, why));
}

// ---- the node of the worker ---------------------------------------------------------------------------------------

// The head's word is that this node, its home, is the place. False if there is no room after all.
bool NodeCore::PlaceActorAtHome(ObjectId actor) {
  auto waiting = remote_.for_head.find(actor);
  if (waiting == remote_.for_head.end()) return true;
  const LocalScheduler::UnmetActor wanted = waiting->second;
  RereadBlockedFlags();
  scheduler_->Handle(ActorWanted{wanted.actor, wanted.creator, wanted.shape, wanted.to_hold, wanted.depth},
                     scheduler_actions_);
  if (!scheduler_->IsUnmet(actor)) {
    remote_.for_head.erase(waiting);
    return true;
  }
  scheduler_->Handle(ActorUnwanted{actor}, scheduler_actions_);
  router_->TellLoadAgain();
  return false;
}

void NodeCore::PlaceRemoteActor(WorkAssigned& message) {
  auto decline = [&] {
    SendToHead(WorkDeclined{message.requester, message.request, message.placement, message.count});
  };
  if (IsHome(message.actor)) {
    if (!PlaceActorAtHome(message.actor)) return decline();
    // The local scheduler has it. If that cannot serve it after all, it is requested again.
    ForgetActorRequest(message.actor);
    return;
  }
  NodeJob* job = EnsureJob(message.job);
  if (job == nullptr || !job->starts_workers() || HasDied(message.process) || !IsValidShape(message.shape) ||
      !IsValidShape(message.to_hold) || scheduler_->HasWorkerOf(message.actor)) {
    return decline();
  }
  JoinAsClient(message.process, message.job);
  remote_.wanted[message.actor] = {message.requester, message.process, message.class_name, message.request,
                                   message.placement};
  RereadBlockedFlags();
  scheduler_->Handle(ActorWanted{message.actor, message.process, message.shape, message.to_hold, message.depth},
                     scheduler_actions_);
  if (scheduler_->IsUnmet(message.actor)) DeclineRemoteActor(message.actor);
}

void NodeCore::DeclineRemoteActor(ObjectId actor) {
  auto wanted = remote_.wanted.find(actor);
  if (wanted == remote_.wanted.end()) return;
  const WorkDeclined declined{wanted->second.home, wanted->second.request, wanted->second.placement, 1};
  remote_.wanted.erase(wanted);
  scheduler_->Handle(ActorUnwanted{actor}, scheduler_actions_);
  router_->TellLoadAgain();
  SendToHead(declined);
}

// True if the actor's home is another node, which is told.
bool NodeCore::OfferActor(const GrantActor& action, LocalProcess& worker) {
  auto wanted = remote_.wanted.find(action.actor);
  if (wanted == remote_.wanted.end()) return false;
  worker.actor_class = wanted->second.class_name;
  remote_.workers[action.worker] = {.actor = action.actor, .home = wanted->second.home, .gpus = action.gpus};
  links_->Send(wanted->second.home, ActorOffered{action.actor, action.worker, action.gpus});
  remote_.wanted.erase(wanted);
  return true;
}

bool NodeCore::RefuseRemoteActor(const RefuseActor& action) {
  auto wanted = remote_.wanted.find(action.actor);
  if (wanted == remote_.wanted.end()) return false;
  const std::string why = "on " + links_->Describe(links_->self()) + " " + action.why;
  links_->Send(wanted->second.home, ActorNotPlaced{action.actor, why});
  remote_.wanted.erase(wanted);
  return true;
}

// What the worker of an actor says, whose home is another node. False if it is ours.
bool NodeCore::TellHome(LocalProcess& worker, ObjectId actor, const Message& message) {
  auto found = remote_.workers.find(worker.id);
  if (found == remote_.workers.end()) return false;
  if (found->second.actor != actor) {
    io_.Refuse(worker.id, "spoke for an actor that it does not run");
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
    if (actor.owner == kCluster) remote_.exited.emplace(actor, worker.id);
    if (remote_.exited.size() > kMostExited) remote_.exited.erase(remote_.exited.begin());
  }
  links_->Send(found->second.home, FromProcess{worker.id, worker.job, Encode(message)});
  return true;
}

void NodeCore::HandleNode(NodeNumber from, EndActorWorker& message) {
  auto found = remote_.workers.find(message.worker);
  if (found == remote_.workers.end() || found->second.home != from) return;
  auto* worker = Find(message.worker);
  if (worker == nullptr) return;
  if (message.leave == 0) return Kill(message.worker, message.why);
  RereadBlockedFlags();
  scheduler_->Handle(WorkerLetGo{message.worker}, scheduler_actions_);
  Send(*worker, Exit{});
}

// The home of these is gone.
void NodeCore::TellWatchersOfLostHome(NodeNumber node, const std::string& why) {
  for (auto entry = remote_.watched.begin(); entry != remote_.watched.end();) {
    if (HomeOf(entry->first) != node) {
      ++entry;
      continue;
    }
    ActorChanged dead{entry->first, static_cast<uint8_t>(ActorState::kDead)};
    dead.incarnation = UINT32_MAX;  // whichever was known
    dead.why = "the node of its creator is gone (" + why + ")";
    const std::set<ProcessId> watchers = std::move(entry->second);
    entry = remote_.watched.erase(entry);
    for (ProcessId watcher : watchers) {
      const LocalProcess* process = Find(watcher);
      if (process != nullptr && process->ready()) DeliverChange(*process, dead);
    }
  }
}

void NodeCore::EndRemoteWorkersOf(NodeNumber home, const std::string& why) {
  for (const auto& [id, remote] : remote_.workers) {
    if (remote.home != home || remote.actor.owner == kCluster) continue;
    Kill(id, "the node of its actor's creator is gone (" + why + ")");
  }
  std::vector<ObjectId> unwanted;
  for (const auto& [actor, wanted] : remote_.wanted) {
    if (wanted.home == home && actor.owner != kCluster) unwanted.push_back(actor);
  }
  for (ObjectId actor : unwanted) {
    remote_.wanted.erase(actor);
    scheduler_->Handle(ActorUnwanted{actor}, scheduler_actions_);
  }
}

// ---- the home -----------------------------------------------------------------------------------------------------

void NodeCore::HandleNode(NodeNumber from, ActorOffered& message) {
  if (NodeOf(message.worker) != from || !IsHome(message.actor)) return;
  remote_peers_.insert(message.worker);
  scheduler_->Handle(ActorUnwanted{message.actor}, scheduler_actions_);
  remote_.for_head.erase(message.actor);
  remote_.told_decisions = UINT64_MAX;
  directory_.Handle(ActorPlaced{message.actor, message.worker, message.gpus}, directory_actions_);
}

void NodeCore::HandleNode(NodeNumber, ActorNotPlaced& message) {
  if (!IsHome(message.actor)) return;
  directory_.Handle(ActorRefused{message.actor, message.why}, directory_actions_);
}

bool NodeCore::AskHeadForPlace(const WantActor& action, ProcessId creator) {
  if (!links_ || router_->MayServe(action.to_place)) return false;
  remote_.for_head[action.actor] = {action.actor, creator, action.to_place, action.to_hold, action.depth};
  remote_.told_decisions = UINT64_MAX;
  return true;
}

// After each turn of the loop: which actors of ours no worker of ours can take, and which no longer need one.
void NodeCore::TellHeadOfActors() {
  if (scheduler_->decisions() == remote_.told_decisions) return;
  remote_.told_decisions = scheduler_->decisions();
  std::set<ObjectId> present;
  std::vector<LeaseRequest> to_send;
  std::vector<ObjectId> declined;
  std::vector<LocalScheduler::UnmetActor> wanted = scheduler_->UnmetActors();
  for (const auto& [actor, placed] : remote_.for_head) wanted.push_back(placed);
  for (const auto& unmet : wanted) {
    if (remote_.wanted.contains(unmet.actor)) {
      declined.push_back(unmet.actor);
      continue;
    }
    const auto* process = Find(unmet.creator);
    const ProcessId job = process != nullptr ? process->job : unmet.creator;
    if (FindJob(job) == nullptr) continue;
    present.insert(unmet.actor);
    if (remote_.requests.contains(unmet.actor)) continue;
    const uint64_t request = router_->NextNumber();
    remote_.requests[unmet.actor] = request;
    remote_.of_requests[request] = unmet.actor;
    // Every node has room for workers of any language; which one it must be is said by what the actor will hold.
    ResourceAmounts shape = unmet.shape;
    std::erase_if(shape, [](const auto& amount) { return amount.first == kPythonWorker; });
    to_send.push_back({request, unmet.creator, job, std::move(shape), 1, unmet.depth, 0, unmet.actor, unmet.to_hold,
                       directory_.ClassNameOf(unmet.actor)});
  }
  std::vector<ObjectId> served;
  for (const auto& [actor, request] : remote_.requests) {
    if (!present.contains(actor)) served.push_back(actor);
  }
  for (ObjectId actor : served) ForgetActorRequest(actor);
  for (const LeaseRequest& request : to_send) {
    TellHeadOfJob(request.job);
    SendToHead(request);
  }
  for (ObjectId actor : declined) DeclineRemoteActor(actor);
}

void NodeCore::ForgetActorRequest(ObjectId actor) {
  auto found = remote_.requests.find(actor);
  if (found == remote_.requests.end()) return;
  const LeaseRequest withdrawn{.request = found->second, .process = actor.owner, .withdrawn = 1};
  remote_.of_requests.erase(found->second);
  remote_.requests.erase(found);
  remote_.told_decisions = 0;
  SendToHead(withdrawn);
}

// What was on its way to a node that is gone is not coming, and the head may have counted it as arrived: a worker that
// was still being started there, or a grant that did not get through. What comes from other nodes for the former
// requests may be too much; it is returned.
void NodeCore::RequestActorsAgain() {
  std::vector<ObjectId> requested;
  for (const auto& [actor, request] : remote_.requests) requested.push_back(actor);
  for (ObjectId actor : requested) ForgetActorRequest(actor);
}

bool NodeCore::ActorRequestRefused(const RequestRefused& message) {
  auto found = remote_.of_requests.find(message.request);
  if (found == remote_.of_requests.end()) return false;
  const ObjectId actor = found->second;
  if (message.for_ever != 0) {
    remote_.requests.erase(actor);
    remote_.of_requests.erase(found);
    directory_.Handle(ActorRefused{actor, message.why}, directory_actions_);
    return true;
  }
  ProcessId driver;
  if (auto kept = detached_.kept.find(actor); kept != detached_.kept.end()) {
    driver = kept->second.driver;
  } else if (auto* creator = Find(actor.owner)) {
    driver = creator->job;
  }
  if (driver) Answer(driver, WorkerOutput{ProcessId{}, 0, 1, "weft: " + message.why + "\n", ""});
  return true;
}

}  // namespace weft::core
