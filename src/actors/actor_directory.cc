#include "actors/actor_directory.h"

#include <algorithm>

#include "actors/actor_names.h"
#include "base/check.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr size_t kMaxNameBytes = 1 << 10;
constexpr size_t kMaxMetadataBytes = 1 << 20;
// An actor that crashes at once must not take the machine: its restarts are paused longer and longer. One that has
// lived so long begins anew.
constexpr int64_t kPauseStepNs = 100 * kMs;
constexpr int64_t kLongestPauseNs = 5'000 * kMs;
constexpr int64_t kProvenNs = 10'000 * kMs;
// A constructor's exception is remembered for late watchers if it is not larger.
constexpr size_t kMaxRememberedError = 64 << 10;

}  // namespace

std::string ActorDirectory::Called(const Actor& actor, int32_t pid) {
  std::string text = CalledActor(actor.class_name, actor.name);
  if (pid != 0) text += " (pid " + std::to_string(pid) + ")";
  return text;
}

ActorState ActorDirectory::StateOf(ObjectId actor) const {
  auto found = actors_.find(actor);
  return found == actors_.end() ? ActorState::kDead : found->second.state;
}

std::string ActorDirectory::ClassOf(ProcessId worker) const {
  auto found = workers_.find(worker);
  return found == workers_.end() ? "" : actors_.at(found->second).class_name;
}

std::string ActorDirectory::ClassNameOf(ObjectId actor) const {
  auto found = actors_.find(actor);
  return found == actors_.end() ? "" : found->second.class_name;
}

std::optional<ActorDirectory::Life> ActorDirectory::LifeOf(ObjectId actor) const {
  auto found = actors_.find(actor);
  if (found == actors_.end()) return std::nullopt;
  return Life{found->second.incarnation, found->second.restarts_left, found->second.state};
}

std::vector<ObjectId> ActorDirectory::Awaited() const {
  std::vector<ObjectId> awaited;
  for (const auto& [id, actor] : actors_) {
    if (actor.awaited) awaited.push_back(id);
  }
  return awaited;
}

std::vector<ActorInfo> ActorDirectory::Describe() const {
  std::vector<ActorInfo> all;
  for (const auto& [id, dead] : dead_) {
    ActorInfo& info = all.emplace_back();
    info.actor = id;
    info.state = static_cast<uint8_t>(ActorState::kDead);
    info.class_name = dead.class_name;
    info.why = dead.why;
  }
  for (const auto& [id, actor] : actors_) {
    ActorInfo& info = all.emplace_back();
    info.actor = id;
    info.state = static_cast<uint8_t>(actor.state);
    info.incarnation = actor.incarnation;
    info.worker = actor.worker;
    info.detached = actor.detached ? 1 : 0;
    info.restarts_left = actor.restarts_left;
    info.class_name = actor.class_name;
    info.name = actor.name;
    info.name_space = actor.name_space;
    info.why = actor.why_ending;
  }
  return all;
}

// ---- creation ---------------------------------------------------------------------------------------------------

void ActorDirectory::Handle(const ActorCreated& event, std::vector<DirectoryAction>& out) {
  const auto& message = event.message;
  ObjectId id = message.actor;
  if (id.owner != event.from) {
    out.emplace_back(RefuseSender{event.from, "created an actor that would be another process's"});
    return;
  }
  if (actors_.contains(id) || dead_.contains(id) || message.max_restarts < -1) {
    out.emplace_back(RefuseSender{event.from, "created an actor that cannot be"});
    return;
  }
  for (const auto* text : {&message.name, &message.name_space, &message.class_name}) {
    if (text->size() <= kMaxNameBytes) continue;
    return RefuseCreation(event, "its name, namespace or class name is longer than 1,024 bytes; use a shorter one",
                          out);
  }
  if (message.metadata.size() > kMaxMetadataBytes) {
    return RefuseCreation(event, "its description is larger than 1 MB: its class has too many or too large parts", out);
  }
  if (actors_.size() >= limits_.actors || metadata_bytes_ + message.metadata.size() > limits_.metadata_bytes) {
    return RefuseCreation(event,
                          "this session has " + std::to_string(actors_.size()) +
                              " actors already, and no room for more; end some of them",
                          out);
  }
  Name name{message.name_space, message.name};
  if (auto taken = message.name.empty() ? names_.end() : names_.find(name); taken != names_.end()) {
    const Actor& other = actors_.at(taken->second);
    if (message.get_if_exists == 0) {
      return RefuseCreation(event, NameIsTaken(message.name_space, message.name, Called(other)), out);
    }
    return TakeExisting(event, taken->second, other.metadata, out);
  }

  auto& actor = actors_[id];
  actor.detached = message.detached != 0;
  actor.restarts_left = message.max_restarts;
  actor.depth = message.depth;
  actor.to_place = message.to_place;
  actor.to_hold = message.to_hold;
  actor.name = message.name;
  actor.name_space = message.name_space;
  actor.class_name = message.class_name;
  actor.metadata = message.metadata;
  metadata_bytes_ += actor.metadata.size();
  if (!message.name.empty()) {
    names_[name] = id;
    actor.has_name = true;
  }
  actor.watchers.insert(event.from);
  watching_[event.from].insert(id);
  if (message.request != 0) {
    out.emplace_back(AnswerCreator{event.from, ActorAnswer{message.request, id, actor.metadata, ""}});
  }
  actor.deferred = message.deferred != 0;
  if (!actor.deferred) Want(*actors_.find(id), out);

  if (auto early = early_.find(id); early != early_.end()) {
    Early before = std::move(early->second);
    early_.erase(early);
    auto& entry = *actors_.find(id);
    for (ProcessId watcher : before.watchers) {
      entry.second.watchers.insert(watcher);
      watching_[watcher].insert(id);
      if (watcher != event.from) Tell(entry, watcher, out);
    }
    if (before.killed) Handle(ActorKilled{event.from, id, before.no_restart}, out);
  }
}

void ActorDirectory::Handle(const ActorArgumentsCame& event, std::vector<DirectoryAction>& out) {
  auto found = actors_.find(event.actor);
  if (event.actor.owner != event.from) {
    out.emplace_back(RefuseSender{event.from, "spoke for an actor that it did not create"});
    return;
  }
  if (found == actors_.end() || !found->second.deferred || found->second.ending != Ending::kNo) return;
  auto& actor = found->second;
  actor.deferred = false;
  Want(*found, out);
}

void ActorDirectory::TakeExisting(const ActorCreated& event, ObjectId existing, const std::string& metadata,
                                  std::vector<DirectoryAction>& out) {
  const auto& message = event.message;
  ActorAnswer answer{message.request, existing, metadata, ""};
  Remember(message.actor, 0, "it was never created: an actor with its name existed", "", message.class_name);
  if (message.request != 0) out.emplace_back(AnswerCreator{event.from, std::move(answer)});
}

void ActorDirectory::Handle(const ActorNameRefused& event, std::vector<DirectoryAction>& out) {
  const ObjectId id = event.created.message.actor;
  if (id.owner != event.created.from || actors_.contains(id) || dead_.contains(id)) {
    out.emplace_back(RefuseSender{event.created.from, "created an actor that cannot be"});
    return;
  }
  if (event.existing) return TakeExisting(event.created, event.existing, event.metadata, out);
  RefuseCreation(event.created, event.why, out);
}

void ActorDirectory::RefuseCreation(const ActorCreated& event, const std::string& why,
                                    std::vector<DirectoryAction>& out) {
  const auto& message = event.message;
  std::string whole = "an actor of class " + message.class_name.substr(0, kMaxNameBytes) + " cannot be created: " + why;
  if (message.request != 0) {
    out.emplace_back(AnswerCreator{event.from, ActorAnswer{message.request, message.actor, "", whole}});
  }
  std::set<ProcessId> watchers{event.from};
  if (auto early = early_.find(message.actor); early != early_.end()) {
    watchers.insert(early->second.watchers.begin(), early->second.watchers.end());
    StopWatching(message.actor, early->second.watchers);
    early_.erase(early);
  }
  for (ProcessId watcher : watchers) {
    ActorChanged change{message.actor, static_cast<uint8_t>(ActorState::kDead)};
    change.why = whole;
    out.emplace_back(TellWatcher{watcher, std::move(change), false});
  }
  Remember(message.actor, 0, std::move(whole), "", message.class_name);
}

void ActorDirectory::Handle(const ActorPlaced& event, std::vector<DirectoryAction>& out) {
  auto found = actors_.find(event.actor);
  // It died while the worker was being given out, which has run nothing for it. It may own what others need.
  if (found == actors_.end() || found->second.worker || found->second.awaited || found->second.ending != Ending::kNo) {
    out.emplace_back(LetWorkerLeave{event.worker});
    return;
  }
  auto& actor = found->second;
  actor.state = ActorState::kStarting;
  actor.worker = event.worker;
  actor.gpus = event.gpus;
  ++actor.incarnation;
  workers_[event.worker] = event.actor;
  TellAll(*found, "", out);
}

void ActorDirectory::Handle(const ActorRefused& event, std::vector<DirectoryAction>& out) {
  auto found = actors_.find(event.actor);
  if (found == actors_.end() || found->second.worker) return;
  Die(event.actor, Called(found->second) + " cannot be placed: " + event.why, "", out, true);
}

ActorDirectory::Entry* ActorDirectory::OfWorker(ProcessId from, ObjectId id, std::vector<DirectoryAction>& out) {
  auto found = actors_.find(id);
  if (found != actors_.end() && found->second.worker == from) return &*found;
  if (found == actors_.end() && let_go_.contains(from)) return nullptr;
  out.emplace_back(RefuseSender{from, "spoke for an actor that it does not run"});
  return nullptr;
}

void ActorDirectory::Handle(const ActorConstructedReported& event, std::vector<DirectoryAction>& out) {
  auto* entry = OfWorker(event.from, event.actor, out);
  if (entry == nullptr || entry->second.state != ActorState::kStarting) return;
  auto& actor = entry->second;
  if (event.ok) {
    actor.state = ActorState::kAlive;
    actor.alive_since_ns = event.now_ns;
    out.emplace_back(SettleActor{event.actor});
    TellAll(*entry, "", out);
    return;
  }
  // Running it again would fail again. The worker may own what its exception refers to.
  out.emplace_back(LetWorkerLeave{actor.worker});
  Die(event.actor, "the constructor of " + Called(actor) + " raised an exception", event.error, out);
}

void ActorDirectory::Want(const Entry& entry, std::vector<DirectoryAction>& out) const {
  const auto& [id, actor] = entry;
  out.emplace_back(WantActor{id, ConstructorOf(id, actor), actor.to_place, actor.to_hold, actor.depth});
}

void ActorDirectory::Handle(const ActorKept& event, std::vector<DirectoryAction>&) {
  auto found = actors_.find(event.actor);
  if (found != actors_.end() && found->second.detached) found->second.keeper = event.from;
}

// ---- a head that goes on ----------------------------------------------------------------------------------------

void ActorDirectory::Handle(const ActorRestored& event, std::vector<DirectoryAction>&) {
  const CreateActor& message = event.message;
  const ObjectId id = message.actor;
  if (actors_.contains(id) || dead_.contains(id)) return;
  const Name name{message.name_space, message.name};
  Actor& actor = actors_[id];
  actor.state = event.incarnation > 0 ? ActorState::kRestarting : ActorState::kPending;
  actor.awaited = actor.detached = true;
  actor.incarnation = event.incarnation;
  actor.restarts = event.incarnation > 0 ? event.incarnation - 1 : 0;
  actor.restarts_left = event.restarts_left;
  actor.depth = message.depth;
  actor.to_place = message.to_place;
  actor.to_hold = message.to_hold;
  actor.name = message.name;
  actor.name_space = message.name_space;
  actor.class_name = message.class_name;
  actor.metadata = message.metadata;
  metadata_bytes_ += actor.metadata.size();
  if (!message.name.empty() && names_.try_emplace(name, id).second) actor.has_name = true;
  actor.watchers.insert(id.owner);
  watching_[id.owner].insert(id);
}

void ActorDirectory::Handle(const ActorFound& event, std::vector<DirectoryAction>& out) {
  auto found = actors_.find(event.actor);
  if (found == actors_.end() || !found->second.awaited || found->second.incarnation != event.incarnation) {
    out.emplace_back(KillActorWorker{event.worker, "its actor has ended, or lives elsewhere"});
    return;
  }
  Actor& actor = found->second;
  actor.awaited = false;
  actor.state = event.constructed ? ActorState::kAlive : ActorState::kStarting;
  actor.alive_since_ns = event.now_ns;
  actor.worker = event.worker;
  actor.gpus = event.gpus;
  workers_[event.worker] = event.actor;
  for (ProcessId watcher : actor.watchers) {
    if (watcher != ConstructorOf(event.actor, actor)) Tell(*found, watcher, out);  // that one has done it
  }
}

void ActorDirectory::Handle(const ActorMissed& event, std::vector<DirectoryAction>& out) {
  auto found = actors_.find(event.actor);
  if (found == actors_.end() || !found->second.awaited) return;
  found->second.awaited = false;
  if (found->second.state == ActorState::kPending) return Want(*found, out);
  WorkerEnded(event.actor, ProcessEnded{ProcessId{}, 0, event.how, event.now_ns}, out);
}

// ---- questions --------------------------------------------------------------------------------------------------

void ActorDirectory::Handle(const ActorLookedUp& event, std::vector<DirectoryAction>& out) {
  const auto& message = event.message;
  ActorAnswer answer;
  answer.request = message.request;
  if (auto found = names_.find({message.name_space, message.name}); found != names_.end()) {
    answer.actor = found->second;
    answer.metadata = actors_.at(found->second).metadata;
  } else {
    answer.error = NameIsUnknown(message.name_space, message.name);
  }
  out.emplace_back(AnswerCreator{event.from, std::move(answer)});
}

void ActorDirectory::Handle(const ActorsListed& event, std::vector<DirectoryAction>& out) {
  ActorList list;
  list.request = event.message.request;
  bool all = event.message.all != 0;
  size_t bytes = 0;
  for (auto entry = all ? names_.begin() : names_.lower_bound({event.message.name_space, ""}); entry != names_.end();
       ++entry) {
    const Name& name = entry->first;
    if (!all && name.first != event.message.name_space) break;
    bytes += name.first.size() + name.second.size() + 8;
    if (bytes > kMaxNamesBytes) break;
    list.actors.push_back(name);
  }
  out.emplace_back(AnswerList{event.from, std::move(list)});
}

bool ActorDirectory::MayStillCome(ObjectId id, bool owner_lives) const {
  // The creator's message and another's question come through different sockets, so the question may be first. What
  // was dead and is forgotten does not come again.
  if (!owner_lives || (early_.size() >= limits_.early && !early_.contains(id))) return false;
  auto forgotten = forgotten_.find(id.owner);
  return forgotten == forgotten_.end() || id.index > forgotten->second;
}

void ActorDirectory::Handle(const ActorWatched& event, std::vector<DirectoryAction>& out) {
  if (auto found = actors_.find(event.actor); found != actors_.end()) {
    found->second.watchers.insert(event.from);
    watching_[event.from].insert(event.actor);
    if (!found->second.awaited) Tell(*found, event.from, out);
    return;
  }
  auto dead = dead_.find(event.actor);
  if (dead == dead_.end() && MayStillCome(event.actor, event.owner_lives)) {
    early_[event.actor].watchers.insert(event.from);
    watching_[event.from].insert(event.actor);
    return;
  }
  ActorChanged change{event.actor, static_cast<uint8_t>(ActorState::kDead)};
  change.why =
      dead == dead_.end() ? "no such actor: it died long ago, or its creator did, or it never was" : dead->second.why;
  if (dead != dead_.end()) {
    change.error = dead->second.error;
    change.refused = dead->second.refused ? 1 : 0;
    change.incarnation = dead->second.incarnation;
  }
  out.emplace_back(TellWatcher{event.from, std::move(change), false});
}

void ActorDirectory::Tell(const Entry& entry, ProcessId watcher, std::vector<DirectoryAction>& out) const {
  const auto& [id, actor] = entry;
  ActorChanged change{id, static_cast<uint8_t>(actor.state), actor.incarnation, actor.worker};
  if (watcher == ConstructorOf(id, actor)) {
    change.gpus = actor.gpus;
    change.construct = actor.state == ActorState::kStarting ? 1 : 0;
  }
  out.emplace_back(TellWatcher{watcher, std::move(change), static_cast<bool>(actor.worker)});
}

void ActorDirectory::TellAll(const Entry& entry, const std::string& why, std::vector<DirectoryAction>& out) const {
  for (ProcessId watcher : entry.second.watchers) {
    Tell(entry, watcher, out);
    std::get<TellWatcher>(out.back()).change.why = why;
  }
}

// ---- ends -------------------------------------------------------------------------------------------------------

void ActorDirectory::GiveNameUp(Entry& entry, std::vector<DirectoryAction>& out) {
  auto& actor = entry.second;
  if (!actor.has_name) return;
  actor.has_name = false;
  out.emplace_back(FreeName{entry.first, actor.name_space, actor.name});
  if (!faults.keep_names_of_the_dead) names_.erase({actor.name_space, actor.name});
}

void ActorDirectory::StopWatching(ObjectId id, const std::set<ProcessId>& watchers) {
  for (ProcessId watcher : watchers) {
    auto found = watching_.find(watcher);
    if (found == watching_.end()) continue;
    found->second.erase(id);
    if (found->second.empty()) watching_.erase(found);
  }
}

void ActorDirectory::Remember(ObjectId id, uint32_t incarnation, std::string why, std::string error,
                              std::string class_name, bool refused) {
  if (error.size() > kMaxRememberedError) error.clear();
  DeadActor dead{incarnation, std::move(why), std::move(error), std::move(class_name), refused};
  dead_bytes_ += dead.bytes();
  dead_[id] = std::move(dead);
  dead_in_order_.push_back(id);
  while (dead_.size() > limits_.remembered_dead || dead_bytes_ > limits_.remembered_bytes) {
    ObjectId oldest = dead_in_order_.front();
    dead_in_order_.pop_front();
    auto found = dead_.find(oldest);
    dead_bytes_ -= found->second.bytes();
    dead_.erase(found);
    auto& highest = forgotten_[oldest.owner];
    highest = std::max(highest, oldest.index);
  }
}

void ActorDirectory::Die(ObjectId id, const std::string& why, const std::string& error,
                         std::vector<DirectoryAction>& out, bool refused) {
  auto found = actors_.find(id);
  auto& actor = found->second;
  GiveNameUp(*found, out);
  if (actor.due_ns != 0) due_.erase({actor.due_ns, id});
  if (!actor.worker && actor.due_ns == 0 && !actor.deferred && !actor.awaited) out.emplace_back(UnwantActor{id});
  if (actor.worker) {
    workers_.erase(actor.worker);
    let_go_.insert(actor.worker);
  }
  for (ProcessId watcher : actor.watchers) {
    ActorChanged change{id, static_cast<uint8_t>(ActorState::kDead), actor.incarnation};
    change.why = why;
    change.error = error;
    change.refused = refused ? 1 : 0;
    out.emplace_back(TellWatcher{watcher, std::move(change), false});
  }
  StopWatching(id, actor.watchers);
  metadata_bytes_ -= actor.metadata.size();
  std::string class_name = std::move(actor.class_name);
  uint32_t incarnation = actor.incarnation;
  actors_.erase(found);
  Remember(id, incarnation, why, error, std::move(class_name), refused);
}

void ActorDirectory::BeginEnding(Entry& entry, Ending ending, const std::string& why,
                                 std::vector<DirectoryAction>& out) {
  auto& actor = entry.second;
  if (!actor.worker) return Die(entry.first, Called(actor) + " " + why, "", out);
  GiveNameUp(entry, out);
  // Of several reasons the first is told, but a kill also ends one that was only let go.
  if (actor.ending == Ending::kNo) actor.why_ending = why;
  actor.ending = ending;
}

void ActorDirectory::Handle(const ActorReleased& event, std::vector<DirectoryAction>& out) {
  if (event.actor.owner != event.from) {
    out.emplace_back(RefuseSender{event.from, "released an actor that it did not create"});
    return;
  }
  auto found = actors_.find(event.actor);
  if (found == actors_.end() || found->second.detached || found->second.ending != Ending::kNo) return;
  ProcessId worker = found->second.worker;
  BeginEnding(*found, Ending::kReleased, "ended because no handle to it was left", out);
  if (worker) out.emplace_back(LetWorkerLeave{worker});
}

void ActorDirectory::Handle(const ActorKilled& event, std::vector<DirectoryAction>& out) {
  auto found = actors_.find(event.actor);
  if (found == actors_.end()) {
    if (dead_.contains(event.actor) || !MayStillCome(event.actor, event.owner_lives)) return;
    auto& early = early_[event.actor];
    early.killed = true;
    early.no_restart = early.no_restart || event.no_restart;
    return;
  }
  auto& actor = found->second;
  ProcessId worker = actor.worker;
  const std::string why = event.why.empty() ? "was killed on request" : event.why;
  if (!event.no_restart) {
    // Without a worker the restart that it allows is what is awaited already.
    if (!worker && (actor.restarts_left != 0 || actor.state == ActorState::kRestarting)) return;
    if (worker) {
      if (actor.ending == Ending::kNo) actor.kill_asked = true;
      out.emplace_back(KillActorWorker{worker, "it was killed on request"});
      return;
    }
  }
  if (!worker) return Die(event.actor, Called(actor) + " " + why, event.error, out);
  if (actor.ending == Ending::kNo) actor.error_ending = event.error;
  BeginEnding(*found, Ending::kKilled, why, out);
  out.emplace_back(KillActorWorker{worker, "it was killed on request"});
}

void ActorDirectory::Handle(const ActorExitingReported& event, std::vector<DirectoryAction>& out) {
  auto* entry = OfWorker(event.from, event.actor, out);
  if (entry == nullptr) return;
  BeginEnding(*entry, Ending::kExiting, "ended itself (exit_actor)", out);
}

void ActorDirectory::WorkerEnded(ObjectId id, const ProcessEnded& event, std::vector<DirectoryAction>& out) {
  auto& entry = *actors_.find(id);
  auto& actor = entry.second;
  std::string called = Called(actor, event.pid);
  if (faults.restart_the_killed && actor.ending == Ending::kKilled) actor.ending = Ending::kNo;
  if (actor.ending != Ending::kNo) {
    const std::string error = actor.error_ending;
    return Die(id, called + " " + actor.why_ending, error, out);
  }

  std::string why = called + (event.how.starts_with("killed") ? " was " : " ") + event.how;
  if (std::exchange(actor.kill_asked, false)) why = called + " was killed on request";
  const bool constructible = static_cast<bool>(ConstructorOf(id, actor));
  if (!constructible || actor.restarts_left == 0) {
    if (actor.restarts > 0 || (!constructible && actor.restarts_left != 0)) {
      why += constructible ? "; it was restarted " + std::to_string(actor.restarts) +
                                 (actor.restarts == 1 ? " time" : " times") + ", as often as max_restarts allows"
                           : "; it cannot be restarted because its creator has ended";
    }
    return Die(id, why, "", out);
  }
  bool was_quick = actor.state != ActorState::kAlive || event.now_ns - actor.alive_since_ns < kProvenNs;
  actor.quick_deaths = was_quick ? actor.quick_deaths + 1 : 0;
  int64_t pause = actor.quick_deaths == 0
                      ? 0
                      : std::min(kLongestPauseNs, kPauseStepNs * static_cast<int64_t>(actor.quick_deaths - 1));
  if (actor.restarts_left > 0) --actor.restarts_left;
  ++actor.restarts;
  actor.state = ActorState::kRestarting;
  workers_.erase(actor.worker);
  actor.worker = ProcessId{};
  actor.gpus.clear();
  TellAll(entry, why, out);
  if (pause == 0) {
    Want(*actors_.find(id), out);
  } else {
    actor.due_ns = event.now_ns + pause;
    due_.emplace(actor.due_ns, id);
  }
}

void ActorDirectory::Handle(const ProcessEnded& event, std::vector<DirectoryAction>& out) {
  // The dead are told nothing.
  if (auto watched = watching_.find(event.process); watched != watching_.end()) {
    for (ObjectId id : watched->second) {
      if (auto found = actors_.find(id); found != actors_.end()) found->second.watchers.erase(event.process);
      if (auto early = early_.find(id); early != early_.end()) {
        early->second.watchers.erase(event.process);
        if (early->second.watchers.empty() && !early->second.killed) early_.erase(early);
      }
    }
    watching_.erase(watched);
  }
  if (auto worker = workers_.find(event.process); worker != workers_.end()) {
    ObjectId id = worker->second;
    WorkerEnded(id, event, out);
  }
  let_go_.erase(event.process);
  std::vector<ObjectId> unkept;
  for (auto& [id, actor] : actors_) {
    if (actor.keeper != event.process) continue;
    actor.keeper = {};
    if (!actor.creator_lives && !actor.worker) unkept.push_back(id);
  }
  for (ObjectId id : unkept) Die(id, "nobody is left who could start it again", "", out);

  std::string why = "was ended because its creator, process " + ToString(event.process);
  if (event.pid != 0) why += " (pid " + std::to_string(event.pid) + ")";
  why += event.how.starts_with("killed") ? ", was " : ", ";
  why += event.how;
  std::vector<ObjectId> created;
  for (auto entry = actors_.lower_bound(ObjectId{event.process, 0});
       entry != actors_.end() && entry->first.owner == event.process; ++entry) {
    created.push_back(entry->first);
  }
  for (ObjectId id : created) {
    auto& entry = *actors_.find(id);
    auto& actor = entry.second;
    actor.creator_lives = false;
    // A detached one lives on, unless its constructor may still have to come from its creator and nobody else has it.
    if (actor.detached && actor.state == ActorState::kAlive) continue;
    ProcessId worker = actor.worker;
    if (actor.keeper && actor.ending == Ending::kNo) {
      if (worker) {
        out.emplace_back(KillActorWorker{worker, "its creator ended while it started"});  // and another one is started
      } else if (actor.due_ns == 0) {
        actor.deferred = false;  // the keeper waits for the arguments itself
        Want(entry, out);        // the request of the dead was forgotten with it
      }
      continue;
    }
    bool already = actor.ending != Ending::kNo;
    BeginEnding(entry, Ending::kCreatorEnded, why, out);
    if (worker && !already) out.emplace_back(KillActorWorker{worker, "its creator has ended"});
  }
  for (auto early = early_.lower_bound(ObjectId{event.process, 0});
       early != early_.end() && early->first.owner == event.process;) {
    for (ProcessId watcher : early->second.watchers) {
      ActorChanged change{early->first, static_cast<uint8_t>(ActorState::kDead)};
      change.why = "no such actor: its creator ended before it was created";
      out.emplace_back(TellWatcher{watcher, std::move(change), false});
    }
    StopWatching(early->first, early->second.watchers);
    early = early_.erase(early);
  }
  forgotten_.erase(event.process);
}

void ActorDirectory::Handle(const DirectoryTicked& event, std::vector<DirectoryAction>& out) {
  while (!due_.empty() && due_.begin()->first <= event.now_ns) {
    ObjectId id = due_.begin()->second;
    due_.erase(due_.begin());
    auto& actor = actors_.at(id);
    actor.due_ns = 0;
    Want(*actors_.find(id), out);
  }
}

void ActorDirectory::CheckInvariants() const {
  size_t bytes = 0, names = 0, workers = 0, due = 0;
  std::map<ProcessId, std::set<ObjectId>> watching;
  for (const auto& [id, actor] : actors_) {
    bytes += actor.metadata.size();
    WEFT_CHECK(!dead_.contains(id) && !early_.contains(id), "an actor is in one place");
    bool has_worker = actor.state == ActorState::kStarting || actor.state == ActorState::kAlive;
    WEFT_CHECK(has_worker == static_cast<bool>(actor.worker), "an actor has a worker in these states only");
    WEFT_CHECK(!actor.deferred || actor.state == ActorState::kPending, "what is deferred waits");
    WEFT_CHECK(!actor.awaited || (!has_worker && actor.due_ns == 0), "of who is awaited nothing is known");
    WEFT_CHECK(actor.ending == Ending::kNo || has_worker, "without a worker an actor ends at once");
    if (has_worker) {
      auto found = workers_.find(actor.worker);
      WEFT_CHECK(found != workers_.end() && found->second == id, "a worker has one actor");
      ++workers;
    }
    if (actor.has_name) {
      auto found = names_.find({actor.name_space, actor.name});
      WEFT_CHECK(found != names_.end() && found->second == id, "a name has one actor");
      WEFT_CHECK(actor.ending == Ending::kNo, "an intended end frees the name");
      ++names;
    }
    if (actor.due_ns != 0) {
      WEFT_CHECK(actor.state == ActorState::kRestarting && due_.contains({actor.due_ns, id}), "a restart is due once");
      ++due;
    }
    WEFT_CHECK(actor.creator_lives || actor.detached || actor.ending != Ending::kNo, "an actor ends with its creator");
    WEFT_CHECK(ConstructorOf(id, actor) || has_worker, "somebody can start an actor that has no worker");
    for (ProcessId watcher : actor.watchers) watching[watcher].insert(id);
  }
  for (const auto& [id, early] : early_) {
    WEFT_CHECK(!early.watchers.empty() || early.killed, "nothing is kept for nobody");
    for (ProcessId watcher : early.watchers) watching[watcher].insert(id);
  }
  WEFT_CHECK(bytes == metadata_bytes_ && names == names_.size() && workers == workers_.size() && due == due_.size(),
             "names, workers and restarts are counted");
  WEFT_CHECK(watching == watching_, "watchers are known from both sides");
  WEFT_CHECK(dead_.size() == dead_in_order_.size() && dead_.size() <= limits_.remembered_dead, "the dead are bounded");
}

std::vector<ActorDirectory::Named> ActorDirectory::NamedActors() const {
  std::vector<Named> named;
  for (const auto& [id, actor] : actors_) {
    if (actor.has_name) named.push_back({id, actor.name_space, actor.name, actor.class_name, actor.metadata});
  }
  return named;
}

}  // namespace weft::core
