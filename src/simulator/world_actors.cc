// World: the truth about actors, and what must hold for them.
#include <algorithm>

#include "simulator/simulated_daemon.h"
#include "simulator/simulated_process.h"
#include "simulator/world.h"

namespace weft::core {
namespace {

std::string Text(ObjectId id) { return "actor " + std::to_string(id.owner.value) + "/" + std::to_string(id.index); }

}  // namespace

void World::ActorSubmitted(ObjectId actor, const ActorSpec& spec, ProcessId creator, uint64_t constructor) {
  KnownActor& known = actors[actor];
  known.spec = spec;
  known.creator = creator;
  known.constructor = constructor;
  objects[actor] = {.resolved = true};
  coverage.Did(Deed::kActorCreated);
}

void World::ConstructorStarted(const SimulatedTask& frame, SimulatedProcess& worker) {
  KnownActor& actor = actors.at(frame.actor);
  const std::string name = Text(frame.actor);
  if (frame.incarnation > 1) coverage.Did(Deed::kActorRestarted);
  if (++tasks.at(frame.instance).starts_in[frame.incarnation] > 1) {
    Fail(name + " was constructed twice in one incarnation");
  }
  int32_t limit = actor.spec.max_restarts;
  if (limit >= 0 && frame.incarnation > static_cast<uint32_t>(limit) + 1) {
    Fail(name + " was restarted more than " + std::to_string(limit) + " times");
  }
  if (!Trusted(worker.id)) return;
  for (auto& [id, process] : processes) {
    if (process.get() != &worker && process->alive && !process->buried && process->actor() == frame.actor) {
      Fail(name + " lives in two processes, " + std::to_string(id.value) + " and " + std::to_string(worker.id.value));
    }
  }
  if (actor.worker != worker.id) Fail(name + " is constructed where it was not placed");
}

void World::CallStarted(const SimulatedTask& frame, SimulatedProcess& worker) {
  KnownActor& actor = actors.at(frame.actor);
  Submitted& task = tasks.at(frame.instance);
  const uint32_t incarnation = worker.incarnation();
  const std::string name = "call " + std::to_string(frame.instance) + " of " + Text(frame.actor);
  if (worker.actor() != frame.actor) Fail(name + " runs in another actor's worker");
  ++task.starts_in[incarnation];
  uint64_t& last = actor.last_calls[{incarnation, task.submitter}];
  if (frame.instance < last) {
    Fail(name + " runs after call " + std::to_string(last) + ", which process " + std::to_string(task.submitter.value) +
         " made later");
  }
  last = frame.instance;
  auto killed = actor.killed_by.find(task.submitter);
  if (killed != actor.killed_by.end() && frame.instance >= killed->second) {
    Fail(name + " runs although its caller had killed the actor before");
  }
}

void World::KillAsked(ObjectId actor, bool no_restart, ProcessId by) {
  Helped();
  coverage.Did(no_restart ? Deed::kActorKilled : Deed::kActorKilledToRestart);
  if (no_restart) actors.at(actor).killed_by.try_emplace(by, next_instance);
}

void World::CancelAsked(ObjectId object) {
  auto known = objects.find(object);
  if (known != objects.end() && known->second.instance != 0) CancelAsked(known->second.instance);
}

void World::CancelAsked(uint64_t instance) {
  Helped();
  tasks.at(instance).cancel_asked = true;
}

void World::ActorWanted(ObjectId id) {
  const KnownActor& actor = actors.at(id);
  if (actor.killed || actor.dead) Fail(Text(id) + " is started again although it was killed for good or is dead");
}

void World::ActorPlaced(ObjectId id, ProcessId worker) {
  KnownActor& actor = actors.at(id);
  SimulatedDaemon* of_worker = actor.worker ? DaemonOf(actor.worker) : nullptr;
  if (of_worker && of_worker->Knows(actor.worker)) Fail(Text(id) + " was given two workers");
  actor.worker = worker;
  ++actor.incarnation;
  // Does it know itself, from before it was the actor?
  SimulatedProcess *process = Find(worker), *creator = Find(id.owner);
  Object* handle = creator ? creator->owner.Find(id) : nullptr;
  bool counted = handle && handle->borrowers && handle->borrowers->contains(worker);
  if (counted || (process && process->owner.Find(id))) loose.insert(id);
}

void World::ActorToldOf(const ActorChanged& change) {
  KnownActor& actor = actors.at(change.actor);
  bool dead = static_cast<ActorState>(change.state) == ActorState::kDead;
  if (dead && !std::exchange(actor.dead, true)) {
    Helped();
    auto ends_with = [&](const char* text, Deed deed) {
      if (change.why.find(text) != std::string::npos) coverage.Did(deed);
    };
    ends_with("no handle to it was left", Deed::kActorEndedWithLastHandle);
    ends_with("ended itself", Deed::kActorEndedItself);
    ends_with("because its creator, process", Deed::kActorEndedWithCreator);
    ends_with("cannot be placed", Deed::kActorRefused);
    ends_with("raised an exception", Deed::kConstructorRaised);
  }
  if (!dead && actor.dead) Fail(Text(change.actor) + " is told to live after its death");
}

void World::NameAnswered(const CreateActor& asked, const ActorAnswer& answer) {
  if (answer.error.empty() && answer.actor == asked.actor) {
    for (const auto& [id, other] : actors) {
      if (id != asked.actor && other.dead && !other.abandoned && other.spec.name == asked.name) {
        coverage.Did(Deed::kNameUsedAgain);
        break;
      }
    }
    return;
  }
  coverage.Did(answer.error.empty() ? Deed::kNameFound : Deed::kNameTaken);
  actors.at(asked.actor).abandoned = true;
  bool taken = false;
  for (const auto& [id, other] : actors) {
    taken = taken || (id != asked.actor && !other.abandoned && !other.dead && other.spec.name == asked.name);
  }
  if (!taken) Fail("the name of " + Text(asked.actor) + " is taken, but by no living actor");
  if (answer.error.empty()) NameFound(asked.name, answer);
}

void World::NameFound(const std::string& name, const ActorAnswer& answer) {
  if (!answer.error.empty()) return coverage.Did(Deed::kNameNotFound);
  coverage.Did(Deed::kNameFound);
  const KnownActor& found = actors.at(answer.actor);
  if (found.dead || found.killed || found.spec.name != name) {
    Fail("the name " + name + " leads to " + Text(answer.actor) + ", which is dead or called otherwise");
  }
}

std::string World::WhyCallMayNotFailSo(const Submitted& task, const SimulatedValue& value) {
  const std::string text = value.bytes.substr(0, value.bytes.find('\0'));  // without the exception that caused it
  const KnownActor& actor = actors.at(task.actor);
  bool died = text.starts_with("ActorDiedError"), unavailable = text.starts_with("ActorUnavailableError");
  if (!died && !unavailable) return "there is no reason for it";
  if (task.replied && task.reply.kind == ReplyKind::kExited) return text == task.reply.error ? "" : "not its own error";
  int32_t limit = task.spec.max_retries;
  bool says_not = text.find("The call did not run") != std::string::npos;
  bool says_perhaps = text.find("so it may have had effects") != std::string::npos;
  if (says_not == says_perhaps) return "it does not say whether it ran";
  if (says_not && task.starts > 0) return "it says that the call did not run, but it did";
  if (says_perhaps && task.lost == 0) return "it says that the call may have run, but it was never begun";
  // Its creator knows before the daemon does that it cannot be constructed.
  bool impossible = text.find("an argument of its constructor ended in an error") != std::string::npos;
  if (died && !actor.dead && !actor.abandoned && !impossible) return "its actor is not dead";
  if (unavailable) {
    if (task.lost == 0) return "its actor's worker did not die while it ran";
    if (limit < 0 || task.lost <= static_cast<uint32_t>(limit)) return "it should have been tried again";
  }
  return "";
}

std::vector<ObjectId> World::CheckActorsAtRest() {
  // References in a circle keep each other: values that contain handles, and arguments that constructors may need
  // again.
  std::set<ObjectId> contained;
  for (auto& [id, known] : objects) {
    for (auto& [holder, process] : processes) {
      if (!process->alive || !process->owner.Find(id)) continue;
      contained.insert(known.outcome.contained.begin(), known.outcome.contained.end());
      break;
    }
  }
  std::vector<ObjectId> living;
  for (auto& [id, actor] : actors) {
    SimulatedDaemon* home = DaemonOf(id.owner);
    if (!home || home->directory().StateOf(id) == ActorState::kDead) continue;
    living.push_back(id);
    const auto& constructor = tasks.at(actor.constructor);
    contained.insert(constructor.dependencies.begin(), constructor.dependencies.end());
    contained.insert(constructor.contained.begin(), constructor.contained.end());
  }
  for (ObjectId id : living) {
    if (actors.at(id).spec.detached) {
      if (!Alive(id.owner)) coverage.Did(Deed::kActorOutlivedItsCreator);
      continue;
    }
    auto orphan = orphaned.lower_bound({id, ProcessId{}});
    if (contained.contains(id) || (orphan != orphaned.end() && orphan->first == id)) continue;
    // Its worker may have been told to leave, and stay for what it owns.
    SimulatedProcess* worker = Find(actors.at(id).worker);
    if (worker && worker->exit_asked) continue;
    Fail("at rest, " + Text(id) + " still lives, but nobody has a handle to it");
  }
  return living;
}

void World::CheckNames() {
  for (auto& [node, daemon] : daemons) {
    if (daemon->ended()) continue;
    if (size_t living = daemon->directory().living(); living != 0) {
      Fail("at rest, " + std::to_string(living) + " actors still live");
    }
    if (!daemon->directory().NamedActors().empty()) Fail("at rest, names are still taken");
  }
}

}  // namespace weft::core
