// The part of the node daemon that carries messages and decisions about actors: between processes, the ActorDirectory
// and the LocalScheduler.
#include "base/check.h"
#include "node/node_core.h"

namespace weft::core {

// ---- messages ---------------------------------------------------------------------------------------------------

void NodeCore::Handle(LocalProcess& process, CreateActor& message) {
  if (!IsValidShape(message.to_place) || !IsValidShape(message.to_hold)) {
    return io_.Refuse(process.id, "asked for an actor with resources that cannot be");
  }
  if (links_ && message.detached != 0) return AskHead(process, message);
  if (links_ && !message.name.empty()) return AskForName(process, message);
  directory_.Handle(ActorCreated{process.id, std::move(message)}, directory_actions_);
}

void NodeCore::Handle(LocalProcess& process, HandOverActor& message) {
  if (!links_) return io_.Refuse(process.id, "handed over an actor, which only processes of a cluster do");
  AskHead(process, message);
}

void NodeCore::Handle(LocalProcess& process, PlaceActor& message) {
  if (WaitsForName(process, message.actor, message)) return;
  directory_.Handle(ActorArgumentsCame{process.id, message.actor}, directory_actions_);
}

void NodeCore::Handle(LocalProcess& process, KeepActor& message) {
  if (!process.is_driver) return io_.Refuse(process.id, "kept an actor, which only a driver does");
  directory_.Handle(ActorKept{process.id, message.actor}, directory_actions_);
}

void NodeCore::Handle(LocalProcess& process, LookupActor& message) {
  if (links_) return AskHead(process, message);
  directory_.Handle(ActorLookedUp{process.id, std::move(message)}, directory_actions_);
}

void NodeCore::Handle(LocalProcess& process, ListActors& message) {
  if (links_) return AskHead(process, message);
  directory_.Handle(ActorsListed{process.id, std::move(message)}, directory_actions_);
}

void NodeCore::Handle(LocalProcess& process, WatchActor& message) {
  if (WaitsForName(process, message.actor, message)) return;
  if (!IsHome(message.actor)) return AskElsewhere(process, message.actor, message);
  bool owner_lives = Find(message.actor.owner) != nullptr;
  directory_.Handle(ActorWatched{process.id, message.actor, owner_lives}, directory_actions_);
}

void NodeCore::Handle(LocalProcess& process, ReleaseActor& message) {
  if (WaitsForName(process, message.actor, message)) return;
  directory_.Handle(ActorReleased{process.id, message.actor}, directory_actions_);
}

void NodeCore::Handle(LocalProcess& process, KillActor& message) {
  if (WaitsForName(process, message.actor, message)) return;
  if (!IsHome(message.actor)) return AskElsewhere(process, message.actor, message);
  bool owner_lives = Find(message.actor.owner) != nullptr;
  directory_.Handle(ActorKilled{process.id, message.actor, message.no_restart != 0, owner_lives, std::move(message.why),
                                std::move(message.error)},
                    directory_actions_);
}

void NodeCore::Handle(LocalProcess& process, ActorConstructed& message) {
  if (TellHome(process, message.actor, message)) return;
  directory_.Handle(
      ActorConstructedReported{process.id, message.actor, message.ok != 0, std::move(message.error), now_ns_},
      directory_actions_);
}

void NodeCore::Handle(LocalProcess& process, ActorExiting& message) {
  if (TellHome(process, message.actor, message)) return;
  directory_.Handle(ActorExitingReported{process.id, message.actor}, directory_actions_);
}

// ---- decisions of the scheduler ---------------------------------------------------------------------------------

void NodeCore::Perform(const GrantActor& action) {
  auto* worker = Find(action.worker);
  WEFT_CHECK(worker != nullptr, "the scheduler knows the living only");
  PoolOf(*worker).WorkerWasTaken(action.worker);
  io_.SetDemand(action.worker, scheduler_->demand());
  if (OfferActor(action, *worker)) return;
  directory_.Handle(ActorPlaced{action.actor, action.worker, action.gpus}, directory_actions_);
  worker->actor_class = directory_.ClassOf(action.worker);
}

void NodeCore::Perform(const RefuseActor& action) {
  if (RefuseRemoteActor(action)) return;
  directory_.Handle(ActorRefused{action.actor, action.why}, directory_actions_);
}

// ---- decisions of the directory ---------------------------------------------------------------------------------

void NodeCore::Perform(const WantActor& action) {
  if (const std::string why = router_->WhyMisplaced(action.to_place); !why.empty()) {
    directory_.Handle(ActorRefused{action.actor, "the actor cannot be made: " + why}, directory_actions_);
    return;
  }
  ProcessId creator = action.by;
  if (auto kept = detached_.kept.find(action.actor); kept != detached_.kept.end()) creator = kept->second.job;
  if (AskHeadForPlace(action, creator)) return;
  RereadBlockedFlags();
  scheduler_->Handle(ActorWanted{action.actor, creator, action.to_place, action.to_hold, action.depth},
                     scheduler_actions_);
}

void NodeCore::Perform(const UnwantActor& action) {
  if (remote_.for_head.erase(action.actor) > 0) remote_.told_decisions = UINT64_MAX;
  scheduler_->Handle(ActorUnwanted{action.actor}, scheduler_actions_);
}

void NodeCore::Perform(const SettleActor& action) {
  RereadBlockedFlags();
  scheduler_->Handle(ActorSettled{action.actor}, scheduler_actions_);
}

void NodeCore::Perform(const TellWatcher& action) {
  if (action.process == kCluster) return TellKeeper(action.change);
  if (IsElsewhere(action.process)) return TellElsewhere(action);
  auto* watcher = Find(action.process);
  if (watcher == nullptr || !watcher->ready()) return;  // its burial tells the directory
  DeliverChange(*watcher, action.change);
}

void NodeCore::Perform(const AnswerCreator& action) { Answer(action.process, action.answer); }

void NodeCore::Perform(const AnswerList& action) { Answer(action.process, action.answer); }

void NodeCore::Perform(const KillActorWorker& action) {
  if (IsElsewhere(action.worker)) {
    return links_->Send(NodeOf(action.worker), EndActorWorker{action.worker, 0, action.why});
  }
  Kill(action.worker, action.why);
}

void NodeCore::Perform(const LetWorkerLeave& action) {
  if (IsElsewhere(action.worker)) {
    return links_->Send(NodeOf(action.worker), EndActorWorker{action.worker, 1, ""});
  }
  RereadBlockedFlags();
  scheduler_->Handle(WorkerLetGo{action.worker}, scheduler_actions_);
  if (auto* process = Find(action.worker)) Send(*process, Exit{});
}

void NodeCore::Perform(const RefuseSender& action) {
  if (IsElsewhere(action.process)) {
    return links_->Send(NodeOf(action.process), EndActorWorker{action.process, 0, "it " + action.why});
  }
  if (Find(action.process) != nullptr) io_.Refuse(action.process, action.why);
}

// Watchers hear that an actor's worker ended before they hear that the process did; what else follows from it waits
// until the scheduler knows too.
void NodeCore::TellOfActorsThatEndWith(ProcessId process, int32_t pid, const std::string& how) {
  std::vector<DirectoryAction> actions;
  directory_.Handle(ProcessEnded{process, pid, how, now_ns_}, actions);
  for (auto& action : actions) {
    if (auto* tell = std::get_if<TellWatcher>(&action)) {
      Perform(*tell);
      io_.Decided(action);
    } else {
      directory_actions_.push_back(std::move(action));
    }
  }
  EndActorsNotHandedOver(process);
}

}  // namespace weft::core
