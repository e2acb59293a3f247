// NodeDaemon: the names of actors in a cluster, and detached actors.
//
// The head keeps all names (ActorNames): a home asks it before it creates an actor that has one, and tells it when the
// name is free.
//
// A detached actor belongs to no process: the cluster owns it (kCluster), its home is the head, and what its
// constructor needs is kept there as a recipe. The daemon of its worker pushes the constructor, as a creator would. Its
// workers belong to a lasting job, which the head opens with the session of the creator's driver and ends with the last
// detached actor in it.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "node/node_daemon.h"
#include "transport/ring_channel.h"
#include "wire/actor_recipe.h"
#include "wire/task_frame.h"

namespace weft::core {

void NodeDaemon::Answer(ProcessId process, const Message& message) {
  if (IsElsewhere(process)) return SendElsewhere(process, message);
  if (auto* found = Find(process)) Send(*found, message);
}

// ---- names --------------------------------------------------------------------------------------------------------

void NodeDaemon::AskForName(Process& process, CreateActor& message) {
  NameAsked asked{message.actor, message.get_if_exists, message.name_space,
                  message.name,  message.class_name,    message.metadata};
  const ObjectId actor = message.actor;
  if (actor.owner != process.id || !naming_.try_emplace(actor, Naming{std::move(message), {}}).second) {
    return Refuse(process, "created an actor that cannot be");
  }
  cluster_->SendToHead(asked);
}

bool NodeDaemon::WaitsForName(const Process& process, ObjectId actor, const Message& message) {
  auto found = naming_.find(actor);
  if (found == naming_.end() || actor.owner != process.id) return false;
  found->second.later.push_back(message);
  return true;
}

void NodeDaemon::HandleNode(NodeNumber from, NameAsked& message) {
  if (!cluster_->is_head()) return;
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
  cluster_->Send(from, answer);
}

void NodeDaemon::HandleNode(NodeNumber, NameAnswered& message) {
  auto found = naming_.extract(message.actor);
  if (found.empty()) return;
  Naming& naming = found.mapped();
  const bool given = message.error.empty() && !message.existing;
  const NameReleased release{message.actor, naming.message.name_space, naming.message.name};
  auto* process = Find(message.actor.owner);
  if (process == nullptr || process->stage != Process::Stage::kReady) {
    if (given) cluster_->SendToHead(release);
    return;
  }
  ActorCreated created{process->id, std::move(naming.message)};
  if (given) {
    directory_.Handle(created, directory_actions_);
    if (directory_.StateOf(message.actor) == ActorState::kDead) cluster_->SendToHead(release);
  } else {
    directory_.Handle(ActorNameRefused{std::move(created), message.existing, message.metadata, message.error},
                      directory_actions_);
  }
  Settle();
  for (Message& later : naming.later) {
    process = Find(message.actor.owner);
    if (process == nullptr || ended_) return;
    HandleMessage(*process, {std::move(later), {}});
    Settle();
  }
}

void NodeDaemon::HandleNode(NodeNumber, NameReleased& message) {
  names_.Release({message.name_space, message.name}, message.actor);
}

void NodeDaemon::Perform(const FreeName& action) {
  if (cluster_) cluster_->SendToHead(NameReleased{action.actor, action.name_space, action.name});
}

// To a head that may know nothing of the names of actors that have us for their home.
void NodeDaemon::NameAnew() {
  for (const auto& [actor, naming] : naming_) {
    const CreateActor& message = naming.message;
    cluster_->SendToHead(NameAsked{actor, message.get_if_exists, message.name_space, message.name, message.class_name,
                                   message.metadata});
  }
  for (const auto& named : directory_.NamedActors()) {
    if (named.actor.owner == kCluster) continue;
    // Nobody waits for the answer: if another has the name by now, both are called so.
    cluster_->SendToHead(NameAsked{named.actor, 0, named.name_space, named.name, named.class_name, named.metadata});
  }
}

// On the head, about names in the whole cluster.
void NodeDaemon::LookUp(ProcessId process, const LookupActor& message) {
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

void NodeDaemon::ListNames(ProcessId process, const ListActors& message) {
  ActorList list;
  list.request = message.request;
  list.actors = names_.List(message.all != 0, message.name_space);
  Answer(process, list);
}

// ---- detached actors ----------------------------------------------------------------------------------------------

// On the creator's node.
void NodeDaemon::AskHead(Process& process, const Message& message) {
  TellHeadOfJob(process.job);
  FromProcess asked{process.id, process.job, Encode(message)};
  RememberQuestion(process, message, asked.message);
  cluster_->SendToHead(asked);
}

// On the head, like all that follows.
void NodeDaemon::CreateDetached(ProcessId creator, ProcessId driver, CreateActor& message) {
  ActorAnswer answer;
  answer.request = message.request;
  const JobDescribed* described = cluster_->FindJob(driver);
  if (!IsValidShape(message.to_place) || !IsValidShape(message.to_hold) || described == nullptr) {
    answer.error = "a detached actor of class " + message.class_name + " cannot be created: its session is not known";
    return Answer(creator, answer);
  }
  const ObjectId actor{kCluster, next_detached_};
  if (!message.name.empty()) {
    const auto* holder = names_.Take({message.name_space, message.name},
                                     {actor, cluster_->self(), message.class_name, message.metadata});
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
  ++next_detached_;
  remote_peers_.insert(creator);
  Kept& kept = kept_[actor];
  kept = {creator, driver, LastingJobOf(driver, *described), message.request, "", {}, false};
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
  kept_.at(actor).request = 0;
  answer.actor = actor;
  Answer(creator, answer);
}

ProcessId NodeDaemon::LastingJobOf(ProcessId driver, const JobDescribed& described) {
  if (NodeOf(driver) == kClusterNode) return driver;  // it was made by a detached actor
  auto [entry, fresh] = lasting_jobs_.try_emplace(driver, ProcessId{kCluster.value + next_lasting_job_});
  const ProcessId job = entry->second;
  if (fresh) {
    ++next_lasting_job_;
    JobDescribed lasting{job, described.session, driver};
    told_jobs_.insert(job);
    cluster_->KnowJob(std::move(lasting));
  }
  if (EnsureJob(job) != nullptr && remote_clients_.emplace(job, job).second) {
    scheduler_->Handle(ProcessJoined{job, false, {job}}, scheduler_actions_);
  }
  return job;
}

void NodeDaemon::ActorHandedOver(ProcessId from, HandOverActor& message) {
  auto found = kept_.find(message.actor);
  if (found == kept_.end() || found->second.creator != from || !found->second.recipe.empty()) return;
  if (!message.why.empty() || message.recipe.empty()) {
    directory_.Handle(ActorKilled{from, message.actor, true, false, message.why, message.error}, directory_actions_);
    return;
  }
  found->second.recipe = std::move(message.recipe);
  // From here on it lasts: a head that comes after this one goes on with it.
  WriteDown(message.actor, [this, actor = message.actor] {
    directory_.Handle(ActorArgumentsCame{kCluster, actor}, directory_actions_);
    Settle();
  });
}

// Its creator is gone. An actor that it has not handed over can never be constructed.
void NodeDaemon::EndActorsNotHandedOver(ProcessId creator) {
  for (const auto& [actor, kept] : kept_) {
    if (kept.creator != creator || !kept.recipe.empty()) continue;
    directory_.Handle(ActorKilled{creator, actor, true, false,
                                  "ended because its creator did, before all its arguments were there", ""},
                      directory_actions_);
  }
}

// The cluster watches its own actors, and constructs them.
void NodeDaemon::TellKeeper(const ActorChanged& change) {
  auto found = kept_.find(change.actor);
  if (found == kept_.end()) return;
  Kept& kept = found->second;
  if (static_cast<ActorState>(change.state) == ActorState::kDead) {
    if (kept.request != 0) Answer(kept.creator, ActorAnswer{kept.request, change.actor, "", change.why});
    const ProcessId job = kept.job;
    const bool written = kept.written;
    kept_.erase(found);
    if (std::none_of(kept_.begin(), kept_.end(), [job](const auto& entry) { return entry.second.job == job; })) {
      EndJobOfNobody(job, change.actor, written);
    } else {
      StrikeOut(change.actor, written, job, false);
    }
    return;
  }
  if (change.construct == 0) return;
  // A life is written down before it begins: whoever comes after this head knows how many there were.
  WriteDown(change.actor, [this, change] {
    auto still = kept_.find(change.actor);
    const auto life = directory_.LifeOf(change.actor);
    if (still == kept_.end() || !life || life->incarnation != change.incarnation ||
        life->state != ActorState::kStarting) {
      return;
    }
    ConstructActor construct{change.worker, change.actor, change.incarnation, change.gpus, still->second.recipe};
    if (IsElsewhere(change.worker)) return cluster_->Send(NodeOf(change.worker), construct);
    Construct(construct);
    Settle();
  });
}

// Its last actor is dead.
void NodeDaemon::EndJobOfNobody(ProcessId job, ObjectId last, bool was_written) {
  StrikeOut(last, was_written, job, true);
  std::erase_if(lasting_jobs_, [job](const auto& entry) { return entry.second == job; });
  cluster_->ForgetJob(job);
  cluster_->SendToAll(JobEnded{job});
  EndLastingJob(job);
}

void NodeDaemon::HandleNode(NodeNumber, JobEnded& message) {
  if (NodeOf(message.job) == kClusterNode) EndLastingJob(message.job);
}

void NodeDaemon::EndLastingJob(ProcessId id) {
  told_jobs_.erase(id);
  if (remote_clients_.erase(id) > 0) scheduler_->Handle(ProcessLost{id}, scheduler_actions_);
  std::erase_if(far_wanted_, [id](const auto& wanted) { return wanted.second.creator == id; });
  if (Job* job = FindJob(id); job != nullptr && !job->ending) EndProcessesOf(*job);
}

void NodeDaemon::HandleNode(NodeNumber from, ConstructActor& message) {
  auto found = far_workers_.find(message.worker);
  if (found == far_workers_.end() || found->second.home != from || found->second.actor != message.actor) return;
  found->second.incarnation = message.incarnation;
  Construct(message);
}

// As a creator would: a channel with the constructor in it. Nobody reads what comes back; the worker reports to us.
void NodeDaemon::Construct(const ConstructActor& message) {
  auto* worker = Find(message.worker);
  if (worker == nullptr || worker->stage != Process::Stage::kReady) return;
  ActorRecipe recipe;
  if (!DecodeRecipe(message.recipe, &recipe)) return Kill(*worker, "what its actor is made of cannot be read");
  auto memory = CreateChannelMemory();
  auto page = CreateDoorbellPage();
  auto slot = channels_.TakeSlot(worker->id);
  if (!memory || !page || !slot) return Kill(*worker, "no descriptors or channel slots are left on this node");
  auto channel = RingChannel::Open(memory->get(), true, worker->doorbell, *slot);
  if (!channel) return Kill(*worker, channel.error().message);
  const RecipeFrames frames = FramesOf(recipe, message.actor, message.incarnation, message.gpus);
  auto put = [&](FrameType type, const std::string& bytes) {
    uint8_t* room = bytes.size() > (*channel)->MaxFrameBytes()
                        ? nullptr
                        : (*channel)->BeginSend(static_cast<uint32_t>(bytes.size()));
    if (room == nullptr) return false;
    std::memcpy(room, bytes.data(), bytes.size());
    (*channel)->CommitSend(static_cast<uint8_t>(type), type == FrameType::kTask, static_cast<uint32_t>(bytes.size()));
    return true;
  };
  if (!put(FrameType::kDefine, frames.define) || !put(FrameType::kLease, frames.lease) ||
      !put(FrameType::kTask, frames.task)) {
    return Kill(*worker, "what its actor is made of is too large");
  }
  Send(*worker, ChannelOpened{kCluster, *slot, 0, 0}, {ShareFd(std::move(*memory)), ShareFd(std::move(*page))});
  (*channel)->Notify(Audience::kExecutor);
}

}  // namespace weft::core
