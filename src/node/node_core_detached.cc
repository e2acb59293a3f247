// NodeCore: the names of actors in a cluster, and detached actors.
//
// The head keeps all names (ActorNames): a home asks it before it creates an actor that has one, and tells it when the
// name is free.
//
// A detached actor belongs to no process: the cluster owns it (kCluster), its home is the head, and what its
// constructor needs is kept there as a recipe. The daemon of its worker pushes the constructor, as a creator would. Its
// workers belong to a cluster job, which the head opens with the session of the creator's driver and ends with the last
// detached actor in it.
#include <algorithm>

#include "base/check.h"
#include "node/node_core.h"

namespace weft::core {

// ---- names --------------------------------------------------------------------------------------------------------

void NodeCore::AskForName(LocalProcess& process, CreateActor& message) {
  NameAsked asked{message.actor, message.get_if_exists, message.name_space,
                  message.name,  message.class_name,    message.metadata};
  const ObjectId actor = message.actor;
  if (actor.owner != process.id || !naming_.try_emplace(actor, Naming{std::move(message), {}}).second) {
    return io_.Refuse(process.id, "created an actor that cannot be");
  }
  SendToHead(asked);
}

bool NodeCore::WaitsForName(const LocalProcess& process, ObjectId actor, const Message& message) {
  auto found = naming_.find(actor);
  if (found == naming_.end() || actor.owner != process.id) return false;
  found->second.later.push_back(message);
  return true;
}

void NodeCore::HandleNode(NodeNumber from, NameAsked& message) {
  if (!links_->is_head()) return;
  NameAnswered answer{.actor = message.actor, .existing = {}, .metadata = "", .error = ""};
  const ActorNames::Holder* holder =
      names_.Take({message.name_space, message.name}, {message.actor, from, message.class_name, message.metadata});
  if (holder != nullptr && holder->actor == message.actor) {
    // It was asked before, and the answer is lost.
  } else if (holder != nullptr && message.get_if_exists != 0) {
    answer.existing = holder->actor;
    answer.metadata = holder->metadata;
  } else if (holder != nullptr) {
    answer.error = NameIsTaken(message.name_space, message.name, CalledActor(holder->class_name, message.name));
  }
  links_->Send(from, answer);
}

void NodeCore::HandleNode(NodeNumber, NameAnswered& message) {
  auto found = naming_.extract(message.actor);
  if (found.empty()) return;
  Naming& naming = found.mapped();
  const bool given = message.error.empty() && !message.existing;
  const NameReleased release{message.actor, naming.message.name_space, naming.message.name};
  auto* process = Find(message.actor.owner);
  if (process == nullptr || !process->ready()) {
    if (given) SendToHead(release);
    return;
  }
  ActorCreated created{process->id, std::move(naming.message)};
  if (given) {
    directory_.Handle(created, directory_actions_);
    if (directory_.StateOf(message.actor) == ActorState::kDead) SendToHead(release);
  } else {
    directory_.Handle(ActorNameRefused{std::move(created), message.existing, message.metadata, message.error},
                      directory_actions_);
  }
  SettleNow();
  for (Message& later : naming.later) {
    if (Find(message.actor.owner) == nullptr || ended_) return;
    MessageCame(message.actor.owner, later, now_ns_);
    SettleNow();
  }
}

void NodeCore::HandleNode(NodeNumber, NameReleased& message) {
  names_.Release({message.name_space, message.name}, message.actor);
}

void NodeCore::Perform(const FreeName& action) {
  if (links_) SendToHead(NameReleased{action.actor, action.name_space, action.name});
}

// To a head that may know nothing of the names of actors that have us for their home.
void NodeCore::AskForNamesAgain() {
  for (const auto& [actor, naming] : naming_) {
    const CreateActor& message = naming.message;
    SendToHead(NameAsked{actor, message.get_if_exists, message.name_space, message.name, message.class_name,
                         message.metadata});
  }
  for (const auto& named : directory_.NamedActors()) {
    if (named.actor.owner == kCluster) continue;
    // Nobody waits for the answer: if another has the name by now, both are called so.
    SendToHead(NameAsked{named.actor, 0, named.name_space, named.name, named.class_name, named.metadata});
  }
}

// On the head, about names in the whole cluster.
void NodeCore::LookUp(ProcessId process, const LookupActor& message) {
  ActorAnswer answer;
  answer.request = message.request;
  if (const auto* holder = names_.Find({message.name_space, message.name})) {
    answer.actor = holder->actor;
    answer.metadata = holder->metadata;
  } else {
    answer.error = NameIsUnknown(message.name_space, message.name);
  }
  Answer(process, answer);
}

void NodeCore::ListNames(ProcessId process, const ListActors& message) {
  ActorList list;
  list.request = message.request;
  list.actors = names_.List(message.all != 0, message.name_space);
  Answer(process, list);
}

// ---- detached actors ----------------------------------------------------------------------------------------------

// On the head, like all that follows.
void NodeCore::CreateDetached(ProcessId creator, ProcessId driver, CreateActor& message) {
  ActorAnswer answer;
  answer.request = message.request;
  const JobDescribed* described = links_->FindJob(driver);
  if (!IsValidShape(message.to_place) || !IsValidShape(message.to_hold) || described == nullptr) {
    answer.error = "a detached actor of class " + message.class_name + " cannot be created: its session is not known";
    return Answer(creator, answer);
  }
  const ObjectId actor{kCluster, detached_.next_actor};
  if (!message.name.empty()) {
    const auto* holder =
        names_.Take({message.name_space, message.name}, {actor, links_->self(), message.class_name, message.metadata});
    if (holder != nullptr) {
      if (message.get_if_exists != 0) {
        answer.actor = holder->actor;
        answer.metadata = holder->metadata;
      } else {
        answer.error = "an actor of class " + message.class_name + " cannot be created: " +
                       NameIsTaken(message.name_space, message.name, CalledActor(holder->class_name, message.name));
      }
      return Answer(creator, answer);
    }
  }
  ++detached_.next_actor;
  remote_peers_.insert(creator);
  Kept& kept = detached_.kept[actor];
  kept = {creator, driver, ClusterJobOf(driver, *described), message.request, "", {}, false};
  kept.record.detached = 1;
  kept.record.depth = message.depth;
  kept.record.to_place = message.to_place;
  kept.record.to_hold = message.to_hold;
  kept.record.name = message.name;
  kept.record.name_space = message.name_space;
  kept.record.class_name = message.class_name;
  kept.record.metadata = message.metadata;
  message.actor = actor;
  message.request = 0;
  message.deferred = 1;
  const NameReleased release{actor, message.name_space, message.name};
  directory_.Handle(ActorCreated{kCluster, std::move(message)}, directory_actions_);
  if (directory_.StateOf(actor) == ActorState::kDead) {
    names_.Release({release.name_space, release.name}, actor);
    return;  // TellKeeper says why
  }
  detached_.kept.at(actor).request = 0;
  answer.actor = actor;
  Answer(creator, answer);
}

ProcessId NodeCore::ClusterJobOf(ProcessId driver, const JobDescribed& described) {
  if (NodeOf(driver) == kClusterNode) return driver;  // it was made by a detached actor
  auto [entry, fresh] = detached_.cluster_jobs.try_emplace(driver, ProcessId{kCluster.value + detached_.next_job});
  const ProcessId job = entry->second;
  if (fresh) {
    ++detached_.next_job;
    JobDescribed lasting{job, described.session, driver};
    told_jobs_.insert(job);
    links_->KnowJob(std::move(lasting));
  }
  if (EnsureJob(job) != nullptr) JoinAsClient(job, job);
  return job;
}

void NodeCore::ActorHandedOver(ProcessId from, HandOverActor& message) {
  auto found = detached_.kept.find(message.actor);
  if (found == detached_.kept.end() || found->second.creator != from || !found->second.recipe.empty()) return;
  if (!message.why.empty() || message.recipe.empty()) {
    directory_.Handle(ActorKilled{from, message.actor, true, false, message.why, message.error}, directory_actions_);
    return;
  }
  found->second.recipe = std::move(message.recipe);
  // From here on it lasts: a head that comes after this one goes on with it.
  Persist(message.actor, [this, actor = message.actor] {
    directory_.Handle(ActorArgumentsCame{kCluster, actor}, directory_actions_);
    SettleNow();
  });
}

// Its creator is gone. What it has not entrusted can never be constructed.
void NodeCore::EndActorsNotHandedOver(ProcessId creator) {
  for (const auto& [actor, kept] : detached_.kept) {
    if (kept.creator != creator || !kept.recipe.empty()) continue;
    directory_.Handle(ActorKilled{creator, actor, true, false,
                                  "ended because its creator did, before all its arguments were there", ""},
                      directory_actions_);
  }
}

// The cluster watches its own actors, and constructs them.
void NodeCore::TellKeeper(const ActorChanged& change) {
  auto found = detached_.kept.find(change.actor);
  if (found == detached_.kept.end()) return;
  Kept& kept = found->second;
  if (static_cast<ActorState>(change.state) == ActorState::kDead) {
    if (kept.request != 0) Answer(kept.creator, ActorAnswer{kept.request, change.actor, "", change.why});
    const ProcessId job = kept.job;
    const bool written = kept.persisted;
    detached_.kept.erase(found);
    if (std::none_of(detached_.kept.begin(), detached_.kept.end(),
                     [job](const auto& entry) { return entry.second.job == job; })) {
      EndJobOfNobody(job, change.actor, written);
    } else {
      Delete(change.actor, written, job, false);
    }
    return;
  }
  if (change.construct == 0) return;
  // A life is written down before it begins: whoever comes after this head knows how many there were.
  Persist(change.actor, [this, change] {
    auto still = detached_.kept.find(change.actor);
    const auto life = directory_.LifeOf(change.actor);
    if (still == detached_.kept.end() || !life || life->incarnation != change.incarnation ||
        life->state != ActorState::kStarting) {
      return;
    }
    ConstructActor construct{change.worker, change.actor, change.incarnation, change.gpus, still->second.recipe};
    if (IsElsewhere(change.worker)) return links_->Send(NodeOf(change.worker), construct);
    Construct(construct);
    SettleNow();
  });
}

// Its last actor is dead.
void NodeCore::EndJobOfNobody(ProcessId job, ObjectId last, bool was_persisted) {
  Delete(last, was_persisted, job, true);
  std::erase_if(detached_.cluster_jobs, [job](const auto& entry) { return entry.second == job; });
  links_->ForgetJob(job);
  links_->SendToAll(JobEnded{job});
  EndClusterJob(job);
}

void NodeCore::HandleNode(NodeNumber, JobEnded& message) {
  if (NodeOf(message.job) == kClusterNode) EndClusterJob(message.job);
}

void NodeCore::EndClusterJob(ProcessId id) {
  told_jobs_.erase(id);
  if (remote_clients_.erase(id) > 0) scheduler_->Handle(ProcessLost{id}, scheduler_actions_);
  std::erase_if(remote_.wanted, [id](const auto& wanted) { return wanted.second.creator == id; });
  if (NodeJob* job = FindJob(id); job != nullptr && !job->ending) EndJob(*job);
}

void NodeCore::HandleNode(NodeNumber from, ConstructActor& message) {
  auto found = remote_.workers.find(message.worker);
  if (found == remote_.workers.end() || found->second.home != from || found->second.actor != message.actor) return;
  found->second.incarnation = message.incarnation;
  Construct(message);
}

// Nobody reads what comes back over the channel; the worker reports to us.
void NodeCore::Construct(const ConstructActor& message) {
  const LocalProcess* worker = Find(message.worker);
  if (worker == nullptr || !worker->ready()) return;
  const auto slot = channels_.TakeSlot(worker->id);
  if (!slot) return Kill(worker->id, "no descriptors or channel slots are left on this node");
  if (const std::string why = io_.Construct(*slot, message); !why.empty()) Kill(worker->id, why);
}

}  // namespace weft::core
