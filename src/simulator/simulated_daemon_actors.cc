// SimulatedDaemon: carries messages and decisions about actors, as node_daemon_actors.cc does.
#include <utility>

#include "base/check.h"
#include "simulator/simulated_daemon.h"
#include "simulator/simulated_process.h"

namespace weft::core {

bool SimulatedDaemon::HandleOfActors(ProcessId from, Message& message) {
  if (auto* m = std::get_if<CreateActor>(&message)) {
    if (m->request != 0) creations_[{from, m->request}] = *m;
    directory.Handle(ActorCreated{from, std::move(*m)}, directory_actions_);
  } else if (auto* m = std::get_if<PlaceActor>(&message)) {
    world_.coverage.Did(Deed::kConstructorWaitedForArguments);
    directory.Handle(ActorArgumentsCame{from, m->actor}, directory_actions_);
  } else if (auto* m = std::get_if<LookupActor>(&message)) {
    lookups_[{from, m->request}] = m->name;
    directory.Handle(ActorLookedUp{from, std::move(*m)}, directory_actions_);
  } else if (auto* m = std::get_if<WatchActor>(&message)) {
    directory.Handle(ActorWatched{from, m->actor, Knows(m->actor.owner)}, directory_actions_);
  } else if (auto* m = std::get_if<ReleaseActor>(&message)) {
    directory.Handle(ActorReleased{from, m->actor}, directory_actions_);
  } else if (auto* m = std::get_if<KillActor>(&message)) {
    world_.Helped();
    if (m->no_restart && directory.StateOf(m->actor) != ActorState::kDead) world_.actors.at(m->actor).killed = true;
    directory.Handle(ActorKilled{from, m->actor, m->no_restart != 0, Knows(m->actor.owner)}, directory_actions_);
  } else if (auto* m = std::get_if<ActorConstructed>(&message)) {
    directory.Handle(ActorConstructedReported{from, m->actor, m->ok != 0, std::move(m->error), world_.now()},
                     directory_actions_);
  } else if (auto* m = std::get_if<ActorExiting>(&message)) {
    directory.Handle(ActorExitingReported{from, m->actor}, directory_actions_);
  } else {
    return false;
  }
  return true;
}

void SimulatedDaemon::Perform(const GrantActor& action) {
  WEFT_CHECK(Knows(action.worker), "the scheduler knows the living only");
  world_.Note("grant actor", action.actor.owner.value, action.actor.index, action.worker.value);
  pool.WorkerWasTaken(action.worker);
  if (auto* process = world_.Find(action.worker)) process->demand = scheduler.demand();
  size_t before = directory_actions_.size();
  directory.Handle(ActorPlaced{action.actor, action.worker, action.gpus}, directory_actions_);
  bool let_go =
      directory_actions_.size() > before && std::holds_alternative<LetWorkerLeave>(directory_actions_[before]);
  if (!let_go) world_.ActorPlaced(action.actor, action.worker);
}

void SimulatedDaemon::Perform(const RefuseActor& action) {
  world_.Helped();
  directory.Handle(ActorRefused{action.actor, action.why}, directory_actions_);
}

void SimulatedDaemon::Perform(const WantActor& action) {
  world_.ActorWanted(action.actor);
  RereadBlockedFlags();
  scheduler.Handle(TimePassed{world_.now()}, scheduler_actions_);
  scheduler.Handle(ActorWanted{action.actor, action.by, action.to_place, action.to_hold, action.depth},
                   scheduler_actions_);
}

void SimulatedDaemon::Perform(const UnwantActor& action) {
  scheduler.Handle(ActorUnwanted{action.actor}, scheduler_actions_);
}

void SimulatedDaemon::Perform(const SettleActor& action) {
  RereadBlockedFlags();
  scheduler.Handle(ActorSettled{action.actor}, scheduler_actions_);
}

void SimulatedDaemon::Perform(const TellWatcher& action) {
  world_.ActorToldOf(action.change);
  auto watcher = processes_.find(action.process);
  if (watcher == processes_.end() || watcher->second.stage != Stage::kReady) return;
  if (action.open_channel) {
    if (!Knows(action.change.worker)) return;
    OpenChannel(action.process, action.change.worker);
  }
  Tell(action.process, action.change);
}

void SimulatedDaemon::Perform(const AnswerCreator& action) {
  std::pair key{action.process, action.answer.request};
  if (auto asked = creations_.find(key); asked != creations_.end()) {
    world_.NameAnswered(asked->second, action.answer);
    creations_.erase(asked);
  } else if (auto looked_up = lookups_.find(key); looked_up != lookups_.end()) {
    world_.NameFound(looked_up->second, action.answer);
    lookups_.erase(looked_up);
  } else {
    world_.Fail("the directory answers what was not asked");
  }
  Tell(action.process, action.answer);
}

void SimulatedDaemon::Perform(const AnswerList&) { world_.Fail("the directory answers what was not asked"); }

void SimulatedDaemon::Perform(const KillActorWorker& action) {
  if (Knows(action.worker)) Kill(action.worker);
}

void SimulatedDaemon::Perform(const LetWorkerLeave& action) {
  RereadBlockedFlags();
  scheduler.Handle(WorkerLetGo{action.worker}, scheduler_actions_);
  Tell(action.worker, Exit{});
}

void SimulatedDaemon::Perform(const RefuseSender& action) {
  world_.Fail("the directory refused process " + std::to_string(action.process.value) + ": it " + action.why);
}

// Watchers hear that an actor's worker ended before they hear that the process did; what else follows from it waits
// until the scheduler knows too.
void SimulatedDaemon::TellOfActorsThatEndWith(ProcessId id) {
  std::vector<DirectoryAction> actions;
  directory.Handle(ProcessEnded{id, 0, "was killed", world_.now()}, actions);
  for (auto& action : actions) {
    if (auto* tell = std::get_if<TellWatcher>(&action)) {
      Perform(*tell);
    } else {
      directory_actions_.push_back(std::move(action));
    }
  }
}

}  // namespace weft::core
