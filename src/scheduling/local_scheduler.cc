#include "scheduling/local_scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "wire/placement.h"

namespace weft::core {
namespace {

// After so many grants to others, what a request needs is kept free for it. Small, because each costs a whole task's
// time; not zero, because keeping resources free wastes them.
constexpr uint32_t kMaxPassedOver = 8;
// A submitter without any lease takes turns with one that holds a single one. Long against a lease's round trip
// (0.1 ms), short for a person.
constexpr int64_t kTurnNs = 20'000'000;
// A recalled lease that has not come back by then sits behind a long task: another one is recalled as well.
constexpr int64_t kStaleRecallNs = 50'000'000;
// A task that goes on and soon waits again, as in a loop over its children, need not cost them their leases.
constexpr int64_t kOverCommitGraceNs = 5'000'000;

}  // namespace

LocalScheduler::LocalScheduler(Config config)
    : total_(std::move(config.resources)),
      max_workers_(config.max_workers),
      in_cluster_(config.in_cluster),
      free_(total_),
      left_(total_),
      next_lease_(config.first_lease) {
  WEFT_CHECK(IsValidShape(total_), "the daemon checks the session's resources");
  // Shapes without CPUs, or with a small part of one, could otherwise ask for any number of processes.
  auto cpus = static_cast<uint64_t>(AmountOf(total_, kCpu) / kResourceUnit);
  max_memory_lenders_ = std::max<size_t>(1, cpus);
  max_unblocked_workers_ = static_cast<uint32_t>(std::min<uint64_t>(std::max<uint64_t>(16, 4 * cpus), max_workers_));
}

void LocalScheduler::Handle(const ProcessJoined& event, std::vector<SchedulerAction>& out) {
  WEFT_CHECK(processes_.emplace(event.process, event.kind.job).second, "a process joins once");
  if (event.runs_tasks) {
    workers_[event.process].kind = event.kind;
    idle_.insert(event.process);
  }
  // Say the number again: the pool must know whether this worker was one of them.
  wanted_workers_[event.kind] = UINT32_MAX;
  Decide(out);
}

std::string LocalScheduler::WhyNever(const ResourceAmounts& shape, const std::string& who) const {
  for (const auto& [name, amount] : shape) {
    if (IsPlacement(name)) continue;
    std::string why = "the " + who + " asks for " + FormatAmount(amount) + " " + name;
    if (name == kGpu && amount > kResourceUnit && amount % kResourceUnit != 0) {
      return why + ", but only less than one GPU can be a fraction; ask for a whole number";
    }
    int64_t there = AmountOf(total_, name);
    if (amount <= there) continue;
    why += ", but this session has ";
    why += there == 0 ? "none" : "only " + FormatAmount(there) + " in all";
    why += " (it has " + FormatShape(total_) + "); ask for less, or start it with more (";
    return why + (name == kCpu ? "num_cpus" : name == kGpu ? "num_gpus" : "resources") + " of init)";
  }
  return "";
}

void LocalScheduler::Handle(const LeasesRequested& event, std::vector<SchedulerAction>& out) {
  if (!processes_.contains(event.process)) return;
  if (std::string why = WhyNever(event.shape, "task"); !why.empty() && !in_cluster_) {
    out.emplace_back(RefuseLeases{event.process, event.shape, std::move(why), event.count});
    return;
  }
  ClaimKey key{event.process, event.shape};
  auto& claim = claims_[key];
  if (claim.request == 0) claim.waiting_since_ns = now_ns_;
  claim.request = event.count;
  claim.depth = event.depth;
  if (claim.request == 0) claim.passed_over = 0;
  DropIfEmpty(key);
  Decide(out);
}

void LocalScheduler::Handle(const LeasesPlaced& event, std::vector<SchedulerAction>& out) {
  if (!processes_.contains(event.process) || event.count == 0) return;
  auto& claim = claims_[ClaimKey{event.process, event.shape}];
  if (claim.request == 0) claim.waiting_since_ns = now_ns_;
  claim.request += event.count;
  claim.depth = event.depth;
  Decide(out);
}

void LocalScheduler::Handle(const LeaseHadElsewhere& event, std::vector<SchedulerAction>& out) {
  ClaimKey key{event.process, event.shape};
  auto found = claims_.find(key);
  if (found == claims_.end() || found->second.request == 0) return;
  --found->second.request;
  found->second.waiting_since_ns = now_ns_;
  if (found->second.request == 0) found->second.passed_over = 0;
  DropIfEmpty(key);
  Decide(out);
}

void LocalScheduler::Handle(const LeaseReturned& event, std::vector<SchedulerAction>& out) {
  auto found = leases_.find(event.lease);
  // A process may return what it no longer holds: the worker died meanwhile. That is not its fault.
  if (found == leases_.end() || found->second.actor || found->second.claim.process != event.process) {
    return;
  }
  EndLease(event.lease);
  Decide(out);
}

void LocalScheduler::Handle(const WorkerBlocked& event, std::vector<SchedulerAction>& out) {
  auto worker = workers_.find(event.worker);
  if (worker == workers_.end() || worker->second.lease.value == 0) return;
  auto& lease = leases_.at(worker->second.lease);
  if (lease.lending) return;
  if (event.for_memory && AmountOf(lease.holds, kCpu) > 0) {
    auto lends_for_memory = [](const auto& item) {
      return item.second.lending && item.second.for_memory && AmountOf(item.second.holds, kCpu) > 0;
    };
    const auto lenders = std::count_if(leases_.begin(), leases_.end(), lends_for_memory);
    if (static_cast<size_t>(lenders) >= max_memory_lenders_ * (event.nothing_runs ? 2 : 1)) return;
  }
  lease.for_memory = event.for_memory;
  SetLending(lease, true);
  Decide(out);
}

void LocalScheduler::Handle(const WorkerUnblocked& event, std::vector<SchedulerAction>& out) {
  auto worker = workers_.find(event.worker);
  if (worker == workers_.end() || worker->second.lease.value == 0) return;
  auto& lease = leases_.at(worker->second.lease);
  if (!lease.lending) return;
  SetLending(lease, false);
  Decide(out);
}

void LocalScheduler::Handle(const BlockedFlagsRead&, std::vector<SchedulerAction>& out) {
  if (!demand_ || flags_known_) return;
  flags_known_ = true;
  Decide(out);
}

void LocalScheduler::Handle(const WorkerRetired& event, std::vector<SchedulerAction>& out) {
  auto worker = workers_.find(event.worker);
  if (worker == workers_.end()) return;
  worker->second.retired = true;
  idle_.erase(event.worker);
  Decide(out);
}

void LocalScheduler::Handle(const ProcessLost& event, std::vector<SchedulerAction>& out) {
  if (processes_.erase(event.process) == 0) return;
  if (auto worker = workers_.find(event.process); worker != workers_.end()) {
    if (worker->second.lease.value != 0) {
      FreeResources before = free_;
      EndLease(worker->second.lease);
      if (faults.keep_resources_of_dead_workers) free_ = before;
    }
    workers_.erase(worker);
    idle_.erase(event.process);
  }
  // What it held as a submitter is not free before the workers are gone: they may be in the middle of a task.
  for (auto& [id, lease] : leases_) {
    if (lease.claim.process != event.process) continue;
    lease.claim.process = ProcessId{};
    lease.recalled = false;
    if (lease.actor) continue;  // whether it lives on is for others to say
    if (!faults.spare_workers_of_the_dead) out.emplace_back(KillWorker{lease.worker});
  }
  std::erase_if(claims_, [&](const ClaimEntry& entry) { return entry.first.process == event.process; });
  std::erase_if(wanted_actors_, [&](const auto& entry) { return entry.second.process == event.process; });
  for (auto& [id, worker] : workers_) worker.earlier_holders.erase(event.process);
  Decide(out);
}

void LocalScheduler::Handle(const StartingGivenUp& event, std::vector<SchedulerAction>& out) {
  for (auto entry = claims_.begin(); entry != claims_.end();) {
    auto& [key, claim] = *entry;
    if (KindFor(key) != event.kind) {
      ++entry;
      continue;
    }
    // Who holds a lease already goes on with it, only not with more; but it must know that its request is forgotten.
    if (claim.request > 0 && !key.of_actors)
      out.emplace_back(RefuseLeases{key.process, key.shape, event.why, claim.request});
    for (ObjectId actor : claim.actors) {
      wanted_actors_.erase(actor);
      out.emplace_back(RefuseActor{actor, event.why});
    }
    claim.actors.clear();
    claim.request = 0;
    claim.passed_over = 0;
    entry = claim.held == 0 ? claims_.erase(entry) : std::next(entry);
  }
  Decide(out);
}

void LocalScheduler::Handle(const TimePassed& event, std::vector<SchedulerAction>& out) {
  now_ns_ = std::max(now_ns_, event.now_ns);
  if (now_ns_ >= next_wakeup_ns_) Decide(out);
}

void LocalScheduler::Handle(const ActorWanted& event, std::vector<SchedulerAction>& out) {
  if (actors_.contains(event.actor) || wanted_actors_.contains(event.actor)) return;
  if (!processes_.contains(event.creator)) return;
  // What it will hold is there from the beginning, so that settling never has to wait.
  ClaimKey key{event.creator, LargerOf(event.to_place, event.to_hold), true, event.to_hold};
  std::string why = WhyNever(key.shape, "actor");
  if (why.empty()) why = WhyNever(key.to_hold, "actor");
  if (!why.empty() && !in_cluster_) {
    out.emplace_back(RefuseActor{event.actor, std::move(why)});
    return;
  }
  auto& claim = claims_[key];
  if (claim.request == 0) claim.waiting_since_ns = now_ns_;
  ++claim.request;
  claim.depth = event.depth;
  claim.actors.push_back(event.actor);
  wanted_actors_.emplace(event.actor, std::move(key));
  Decide(out);
}

void LocalScheduler::Handle(const ActorSettled& event, std::vector<SchedulerAction>& out) {
  auto found = actors_.find(event.actor);
  if (found == actors_.end() || unsettled_.erase(found->second) == 0) return;
  auto& lease = leases_.at(found->second);
  Settle(lease, lease.claim.to_hold);
  Decide(out);
}

void LocalScheduler::Handle(const WorkerLetGo& event, std::vector<SchedulerAction>& out) {
  if (!HasActor(event.worker) || faults.keep_cpus_of_who_stays) return;
  LeaseId id = workers_.at(event.worker).lease;
  unsettled_.erase(id);
  auto& lease = leases_.at(id);
  // What is not a CPU may still be in use: a GPU's memory is its process's until that ends.
  ResourceAmounts kept = lease.claim.to_hold;
  std::erase_if(kept, [](const auto& amount) { return amount.first == kCpu; });
  Settle(lease, std::move(kept));
  Decide(out);
}

void LocalScheduler::Settle(Lease& lease, ResourceAmounts to_hold) {
  LeaveClaim(lease);
  bool lending = lease.lending;
  if (lending) SetLending(lease, false);
  AssignedGpus kept = FirstOf(lease.gpus, AmountOf(to_hold, kGpu));
  free_.Give(lease.holds, lease.gpus);
  lease.claim.to_hold = to_hold;
  lease.holds = std::move(to_hold);
  lease.gpus = std::move(kept);
  free_.TakeAgain(lease.holds, lease.gpus);
  if (lending) SetLending(lease, true);
}

void LocalScheduler::Handle(const ActorUnwanted& event, std::vector<SchedulerAction>& out) {
  auto found = wanted_actors_.find(event.actor);
  if (found == wanted_actors_.end()) return;
  ClaimKey key = std::move(found->second);
  wanted_actors_.erase(found);
  auto& claim = claims_.at(key);
  std::erase(claim.actors, event.actor);
  --claim.request;
  if (claim.request == 0) claim.passed_over = 0;
  DropIfEmpty(key);
  Decide(out);
}

void LocalScheduler::Handle(const ActorsHeld& event, std::vector<SchedulerAction>& out) {
  if (event.on) {
    held_jobs_.insert(event.job);
  } else {
    held_jobs_.erase(event.job);
  }
  Decide(out);
}

std::vector<LocalScheduler::UnmetActor> LocalScheduler::UnmetActors() const {
  std::vector<UnmetActor> unmet;
  for (const auto& [key, rest] : unmet_actors_) {
    const Claim& claim = claims_.at(key);
    for (size_t i = claim.actors.size() - std::min<size_t>(claim.actors.size(), rest); i < claim.actors.size(); ++i) {
      unmet.push_back({claim.actors[i], key.process, key.shape, key.to_hold, claim.depth});
    }
  }
  return unmet;
}

bool LocalScheduler::IsUnmet(ObjectId actor) const {
  auto wanted = wanted_actors_.find(actor);
  if (wanted == wanted_actors_.end()) return false;
  auto unmet = unmet_actors_.find(wanted->second);
  if (unmet == unmet_actors_.end()) return false;
  const auto& actors = claims_.at(wanted->second).actors;
  auto place = static_cast<size_t>(std::find(actors.begin(), actors.end(), actor) - actors.begin());
  return place + unmet->second >= actors.size();
}

bool LocalScheduler::IsIdle(ProcessId worker) const {
  auto found = workers_.find(worker);
  return found != workers_.end() && found->second.lease.value == 0;
}

bool LocalScheduler::IsLeased(ProcessId worker) const {
  auto found = workers_.find(worker);
  return found != workers_.end() && found->second.lease.value != 0;
}

bool LocalScheduler::HasActor(ProcessId worker) const {
  return IsLeased(worker) && leases_.at(workers_.at(worker).lease).actor;
}

ProcessId LocalScheduler::HolderOf(ProcessId worker) const {
  return IsLeased(worker) ? leases_.at(workers_.at(worker).lease).claim.process : ProcessId{};
}

ProcessId LocalScheduler::WorkerOf(LeaseId lease, ProcessId holder) const {
  auto found = leases_.find(lease);
  return found != leases_.end() && !found->second.actor && found->second.claim.process == holder ? found->second.worker
                                                                                                 : ProcessId{};
}

size_t LocalScheduler::ShapesOf(ProcessId process) const {
  size_t count = 0;
  for (auto entry = claims_.lower_bound(ClaimKey{process, {}}); entry != claims_.end(); ++entry) {
    if (entry->first.process != process) break;
    ++count;
  }
  return count;
}

bool LocalScheduler::GoesBefore(const ClaimEntry& a, const ClaimEntry& b) {
  if (a.second.depth != b.second.depth) return a.second.depth > b.second.depth;
  bool a_starves = a.second.passed_over >= kMaxPassedOver, b_starves = b.second.passed_over >= kMaxPassedOver;
  if (a_starves != b_starves) return a_starves;
  if (a.second.held != b.second.held) return a.second.held < b.second.held;
  if (a.second.last_served != b.second.last_served) return a.second.last_served < b.second.last_served;
  return a.first < b.first;
}

bool LocalScheduler::Obtainable(const ResourceAmounts& shape) const {
  // By amounts alone: which GPUs will be whole then, nobody knows.
  ResourceLedger most(total_);
  for (const auto& [id, lease] : leases_) {
    if (!lease.lending && !lease.actor) continue;
    const ResourceAmounts& keeps = lease.actor ? lease.claim.to_hold : lease.holds;
    most.Subtract(keeps);
    if (lease.lending) most.Adjust(kCpu, AmountOf(keeps, kCpu));
  }
  return most.Fits(shape);
}

WorkerKind LocalScheduler::KindFor(const ClaimKey& claim) const {
  return {processes_.at(claim.process), WantsPythonWorker(claim.shape)};
}

size_t LocalScheduler::IdleOf(const WorkerKind& kind) const {
  return static_cast<size_t>(
      std::count_if(idle_.begin(), idle_.end(), [&](ProcessId id) { return workers_.at(id).kind == kind; }));
}

ProcessId LocalScheduler::IdleWorkerFor(const ClaimKey& claim) const {
  const WorkerKind kind = KindFor(claim);
  ProcessId best;
  for (ProcessId id : idle_) {
    const Worker& worker = workers_.at(id);
    if (id == claim.process || worker.kind != kind) continue;  // a process has no channel to itself
    if (worker.earlier_holders.contains(claim.process)) return id;
    if (!best) best = id;  // the lowest number, so that the workers beyond the CPUs stay idle and can go
  }
  return best;
}

void LocalScheduler::SetLending(Lease& lease, bool lending) {
  lease.lending = lending;
  int64_t cpus = AmountOf(lease.holds, kCpu);
  free_.Adjust(kCpu, lending ? cpus : -cpus);
  if (lending) {
    lending_.insert(lease.worker);
  } else {
    lending_.erase(lease.worker);
  }
}

void LocalScheduler::Grant(ClaimEntry& entry, ProcessId worker, std::vector<SchedulerAction>& out) {
  auto& [key, claim] = entry;
  WEFT_CHECK(free_.Fits(key.shape), "a grant takes only what is free");
  LeaseId id{next_lease_++};
  AssignedGpus gpus = free_.Take(key.shape);
  Lease& lease = leases_[id];
  lease.worker = worker;
  lease.claim = key;
  lease.holds = key.shape;
  lease.gpus = gpus;
  auto& granted = workers_.at(worker);
  granted.lease = id;
  granted.earlier_holders.insert(key.process);
  idle_.erase(worker);
  --claim.request;
  ++claim.held;
  claim.passed_over = 0;
  claim.last_served = id.value;
  claim.waiting_since_ns = now_ns_;
  if (!key.of_actors) {
    out.emplace_back(GrantLease{key.process, worker, id, key.shape, std::move(gpus)});
    return;
  }
  lease.actor = claim.actors.front();
  claim.actors.pop_front();
  wanted_actors_.erase(lease.actor);
  actors_[lease.actor] = id;
  unsettled_.insert(id);
  out.emplace_back(GrantActor{lease.actor, worker, std::move(gpus)});
}

void LocalScheduler::AddWorkersForLater(const FreeResources& left, const std::vector<ClaimEntry*>& waiting,
                                        const std::map<const ClaimKey*, uint32_t>& on_paper,
                                        WorkerCounts& wanted) const {
  ResourceLedger later = left.amounts();
  for (LeaseId id : unsettled_) {
    const auto& lease = leases_.at(id);
    later.Add(lease.holds);
    if (lease.lending) later.Adjust(kCpu, -AmountOf(lease.holds, kCpu));
    later.Subtract(lease.claim.to_hold);
  }
  size_t in_all = 0;
  for (const auto& [kind, count] : wanted) in_all += count;
  std::map<WorkerKind, size_t> more;
  size_t sum = 0;
  for (const auto* entry : waiting) {
    const auto& [key, claim] = *entry;
    if (!key.of_actors || WantsPythonWorker(key.shape)) continue;
    auto already = on_paper.find(&key);
    uint32_t rest = claim.request - (already == on_paper.end() ? 0 : already->second);
    const WorkerKind kind = KindFor(key);
    const size_t idle = IdleOf(kind);
    for (; rest > 0 && later.Fits(key.shape) && idle + in_all + sum < max_unblocked_workers_; --rest) {
      later.Subtract(key.to_hold);
      ++more[kind];
      ++sum;
    }
  }
  size_t room = max_workers_ - std::min<size_t>(max_workers_, workers_.size() + in_all);
  for (const auto& [kind, count] : more) {
    const size_t added = std::min(count - std::min(count, IdleOf(kind)), room);
    wanted[kind] += static_cast<uint32_t>(added);
    room -= added;
  }
}

void LocalScheduler::Decide(std::vector<SchedulerAction>& out) {
  // First real grants while workers are idle, then, on paper, those that only lack a worker: they say how many to
  // start.
  FreeResources left = free_;
  std::map<const ClaimKey*, uint32_t> on_paper;
  uint32_t wanted = 0;
  WorkerCounts wanted_of;  // of those, by kind
  // Without the idle ones: those of other jobs do not count.
  size_t unblocked = leases_.size() - actors_.size();
  for (ProcessId id : lending_) unblocked -= leases_.at(workers_.at(id).lease).actor ? 0 : 1;
  bool lacks_room = false;
  std::vector<ClaimEntry*> waiting;
  for (auto& entry : claims_) {
    const auto& [key, claim] = entry;
    if (claim.request == 0 || (key.of_actors && held_jobs_.contains(KindFor(key).job))) continue;
    waiting.push_back(&entry);
  }
  for (bool progress = true; progress && !waiting.empty();) {
    progress = false;
    std::sort(waiting.begin(), waiting.end(), [](auto* a, auto* b) { return GoesBefore(*a, *b); });
    std::vector<ClaimEntry*> passed_over;
    // Without what is kept free for requests that were passed over too often; deeper ones need not respect it.
    FreeResources usable = left;
    for (auto* entry : waiting) {
      auto& [key, claim] = *entry;
      if (claim.request == on_paper[&entry->first]) continue;
      if (!usable.Fits(key.shape)) {
        passed_over.push_back(entry);
        if (claim.passed_over >= kMaxPassedOver && Obtainable(key.shape)) usable.Take(key.shape);
        continue;
      }
      ProcessId worker = IdleWorkerFor(key);
      if (!worker) {
        // An actor's worker is not one of those that the CPUs bound, but not all are started at once.
        const size_t idle = IdleOf(KindFor(key));
        bool room = (key.of_actors ? idle : unblocked + idle) + wanted < max_unblocked_workers_ &&
                    workers_.size() + wanted < max_workers_;
        if (!room) {
          lacks_room = true;
          continue;
        }
        ++on_paper[&entry->first];
        ++wanted;
        ++wanted_of[KindFor(key)];
        left.Take(key.shape);
        progress = true;
        break;
      }
      Grant(*entry, worker, out);
      left = free_;
      for (const auto& [other, count] : on_paper) {
        for (uint32_t i = 0; i < count; ++i) left.Take(other->shape);
      }
      for (auto* other : passed_over) ++other->second.passed_over;
      if (claim.request == 0) std::erase(waiting, entry);
      progress = true;
      break;
    }
  }
  AddWorkersForLater(left, waiting, on_paper, wanted_of);
  wanted = 0;
  for (const auto& [kind, count] : wanted_of) wanted += count;

  // What is left over lacks resources, not workers.
  std::vector<std::pair<ClaimEntry*, uint32_t>> unmet;
  // A worker that blocks makes room for another, if it is workers that take the room and not starts.
  bool demand = lacks_room && wanted == 0;
  unmet_.clear();
  unmet_actors_.clear();
  ++decisions_;
  for (auto* entry : waiting) {
    uint32_t rest = entry->second.request - on_paper[&entry->first];
    if (rest == 0 || left.Fits(entry->first.shape)) continue;
    const bool never = in_cluster_ && !WhyNever(entry->first.shape, "").empty();
    if (in_cluster_ && entry->first.of_actors) {
      unmet_actors_[entry->first] = rest;
    } else if (in_cluster_) {
      unmet_.push_back({entry->first.process, entry->first.shape, rest, entry->second.depth});
    }
    if (never) continue;  // nobody here could give it
    unmet.emplace_back(entry, rest);
    demand = true;
  }
  left_ = left;
  for (const auto& [kind, count] : wanted_of) wanted_workers_.try_emplace(kind, 0);
  for (auto entry = wanted_workers_.begin(); entry != wanted_workers_.end();) {
    auto& [kind, said] = *entry;
    auto found = wanted_of.find(kind);
    const uint32_t number = found == wanted_of.end() ? 0 : found->second;
    if (number != said) out.emplace_back(WantWorkers{said = number, kind});
    entry = number == 0 ? wanted_workers_.erase(entry) : std::next(entry);
  }
  next_wakeup_ns_ = INT64_MAX;
  const bool over_committed = IsOverCommitted();
  demand = demand || over_committed;  // a task that took a CPU back may be waiting again
  if (demand != demand_) {
    demand_ = demand;
    flags_known_ = false;
    out.emplace_back(SetDemand{demand});
  } else if (demand && flags_known_) {
    Recall(std::move(left), std::move(unmet), out);
    if (over_committed) RecallOverCommitted(out);
  }
}

// True if it has lasted; else next_wakeup_ns_ is when to ask again.
bool LocalScheduler::IsOverCommitted() {
  if (free_.amounts().Of(kCpu) >= 0) {
    over_committed_since_ns_ = -1;
    return false;
  }
  if (over_committed_since_ns_ < 0) over_committed_since_ns_ = now_ns_;
  const int64_t due = over_committed_since_ns_ + kOverCommitGraceNs;
  if (now_ns_ < due) next_wakeup_ns_ = std::min(next_wakeup_ns_, due);
  return now_ns_ >= due;
}

void LocalScheduler::RecallOverCommitted(std::vector<SchedulerAction>& out) {
  int64_t debt = -free_.amounts().Of(kCpu);
  for (const auto& [id, lease] : leases_) {
    const int64_t stale_at = lease.recalled_at_ns + kStaleRecallNs;
    if (!lease.recalled || lease.lending || now_ns_ >= stale_at) continue;
    debt -= AmountOf(lease.holds, kCpu);
    next_wakeup_ns_ = std::min(next_wakeup_ns_, stale_at);
  }
  // The newest first: it most likely has what was lent, and the least to lose.
  for (auto item = leases_.rbegin(); item != leases_.rend() && debt > 0; ++item) {
    auto& lease = item->second;
    const int64_t cpus = AmountOf(lease.holds, kCpu);
    if (cpus == 0 || lease.recalled || lease.lending || lease.actor || !lease.claim.process) continue;
    debt -= cpus;
    RecallOne(item->first, lease, out);
  }
}

void LocalScheduler::RecallOne(LeaseId id, Lease& lease, std::vector<SchedulerAction>& out) {
  lease.recalled = true;
  lease.recalled_at_ns = now_ns_;
  ++claims_.at(lease.claim).recalled;
  next_wakeup_ns_ = std::min(next_wakeup_ns_, now_ns_ + kStaleRecallNs);
  out.emplace_back(RecallLease{lease.claim.process, id});
}

void LocalScheduler::Recall(FreeResources expected, std::vector<std::pair<ClaimEntry*, uint32_t>> unmet,
                            std::vector<SchedulerAction>& out) {
  // Leases asked back lately are on their way: whoever comes first may count on them.
  for (const auto& [id, lease] : leases_) {
    if (!lease.recalled || lease.lending) continue;
    int64_t stale_at = lease.recalled_at_ns + kStaleRecallNs;
    if (now_ns_ < stale_at) {
      expected.Give(lease.holds, lease.gpus);
      next_wakeup_ns_ = std::min(next_wakeup_ns_, stale_at);
    }
  }
  std::map<const ClaimKey*, uint32_t> promised;
  auto holds = [&](const ClaimEntry& entry) {
    auto found = promised.find(&entry.first);
    return entry.second.held + (found == promised.end() ? 0 : found->second);
  };
  while (!unmet.empty()) {
    auto best = std::min_element(unmet.begin(), unmet.end(), [&](const auto& a, const auto& b) {
      if (a.first->second.depth != b.first->second.depth) return a.first->second.depth > b.first->second.depth;
      if (holds(*a.first) != holds(*b.first)) return holds(*a.first) < holds(*b.first);
      return GoesBefore(*a.first, *b.first);
    });
    ClaimEntry& entry = *best->first;
    const ResourceAmounts& shape = entry.first.shape;
    uint32_t mine = holds(entry);
    int64_t turn_at = entry.second.waiting_since_ns + kTurnNs;
    bool my_turn = mine == 0 && now_ns_ >= turn_at;
    if (mine == 0 && !my_turn) next_wakeup_ns_ = std::min(next_wakeup_ns_, turn_at);
    while (!expected.Fits(shape)) {
      // The richest lease holder that has something of what is lacking and would still hold as much as we then do.
      std::map<LeaseId, Lease>::value_type* victim = nullptr;
      uint32_t victim_keeps = 0;
      for (auto& item : leases_) {
        auto& lease = item.second;
        if (lease.recalled || lease.lending || lease.actor || !lease.claim.process) continue;
        if (lease.claim == entry.first) continue;
        bool useful = std::any_of(shape.begin(), shape.end(), [&](const auto& need) {
          return expected.Lacks(need.first, need.second) && AmountOf(lease.holds, need.first) > 0;
        });
        if (!useful) continue;
        const auto& holder = claims_.at(lease.claim);
        uint32_t keeps = holder.held - holder.recalled;
        bool richer = keeps > mine + 1;
        bool deeper = mine == 0 && entry.second.depth > holder.depth;
        if (!richer && !deeper && !my_turn) continue;
        // A deeper request would get it back before we do, and it would be recalled again, for ever.
        if (holder.request > 0 && holder.depth > entry.second.depth) continue;
        if (victim == nullptr || keeps >= victim_keeps) {  // the newest lease of the richest
          victim = &item;
          victim_keeps = keeps;
        }
      }
      if (victim == nullptr) break;
      auto& lease = victim->second;
      expected.Give(lease.holds, lease.gpus);
      RecallOne(victim->first, lease, out);
    }
    // Either the rest is on its way, or nobody can be asked for it: then others need not wait for it.
    if (expected.Fits(shape) && best->second > 1 && promised[&entry.first] < max_unblocked_workers_) {
      expected.Take(shape);
      ++promised[&entry.first];
      --best->second;
    } else {
      if (expected.Fits(shape)) expected.Take(shape);
      unmet.erase(best);
    }
  }
}

void LocalScheduler::EndLease(LeaseId id) {
  auto found = leases_.find(id);
  auto& lease = found->second;
  if (lease.lending) SetLending(lease, false);
  free_.Give(lease.holds, lease.gpus);
  auto& worker = workers_.at(lease.worker);
  worker.lease = LeaseId{};
  if (!worker.retired) idle_.insert(lease.worker);
  if (lease.actor) {
    actors_.erase(lease.actor);
    unsettled_.erase(id);
  }
  LeaveClaim(lease);
  leases_.erase(found);
}

// The lease no longer counts as its holder's.
void LocalScheduler::LeaveClaim(Lease& lease) {
  if (!lease.claim.process) return;
  auto& claim = claims_.at(lease.claim);
  --claim.held;
  if (lease.recalled) --claim.recalled;
  claim.waiting_since_ns = now_ns_;  // who just had a turn waits a whole one for the next
  DropIfEmpty(lease.claim);
  lease.claim.process = ProcessId{};
}

void LocalScheduler::DropIfEmpty(const ClaimKey& key) {
  auto found = claims_.find(key);
  if (found != claims_.end() && found->second.request == 0 && found->second.held == 0) claims_.erase(found);
}

void LocalScheduler::CheckInvariants() const {
  ResourceLedger expected(total_);
  std::vector<int64_t> gpus = FreeResources(total_).gpus();
  std::map<ClaimKey, std::pair<uint32_t, uint32_t>> held;
  std::set<ProcessId> lending;
  size_t actors = 0;
  for (const auto& [id, lease] : leases_) {
    expected.Subtract(lease.holds);
    if (lease.lending) expected.Adjust(kCpu, AmountOf(lease.holds, kCpu));
    if (lease.lending) lending.insert(lease.worker);
    int64_t of_gpus = 0;
    for (const auto& [number, amount] : lease.gpus) {
      WEFT_CHECK(number < gpus.size() && amount > 0, "only GPUs that exist are assigned");
      gpus[number] -= amount;
      of_gpus += amount;
    }
    WEFT_CHECK(of_gpus == AmountOf(lease.holds, kGpu), "a lease has the GPUs that it asked for");
    auto worker = workers_.find(lease.worker);
    WEFT_CHECK(worker != workers_.end(), "a lease is on a living worker");
    WEFT_CHECK(worker->second.lease == id, "a worker is leased to one process at a time");
    WEFT_CHECK(lease.claim.process != lease.worker, "nobody leases itself");
    if (lease.actor) {
      ++actors;
      auto found = actors_.find(lease.actor);
      WEFT_CHECK(found != actors_.end() && found->second == id, "an actor has one lease");
      WEFT_CHECK(!lease.recalled, "an actor's worker is its own");
      bool unsettled = unsettled_.contains(id);
      WEFT_CHECK(unsettled || lease.holds == lease.claim.to_hold, "a settled actor holds what it said");
      WEFT_CHECK(unsettled || !lease.claim.process, "a settled actor is no turn of its creator");
    }
    if (lease.claim.process) {
      ++held[lease.claim].first;
      held[lease.claim].second += lease.recalled;
    }
  }
  WEFT_CHECK(actors == actors_.size() && unsettled_.size() <= actors, "actors are counted");
  WEFT_CHECK(lending == lending_, "lenders are known");
  WEFT_CHECK(expected == free_.amounts(), "in use + free == total");
  WEFT_CHECK(gpus == free_.gpus(), "each GPU is in use or free");
  for (const auto& [name, amount] : free_.amounts().amounts()) {
    WEFT_CHECK(name == kCpu || amount >= 0, "only CPUs may be over-committed");
    WEFT_CHECK(amount <= AmountOf(total_, name), "nothing is free that does not exist");
  }
  for (int64_t free : gpus) WEFT_CHECK(free >= 0, "no GPU is over-committed");
  for (const auto& [id, worker] : workers_) {
    WEFT_CHECK(processes_.contains(id), "a worker is a process");
    WEFT_CHECK(worker.lease.value == 0 || leases_.contains(worker.lease), "a leased worker has a lease");
    WEFT_CHECK(idle_.contains(id) == (worker.lease.value == 0 && !worker.retired), "the idle are known");
  }
  size_t wanted = 0;
  for (const auto& [key, claim] : claims_) {
    WEFT_CHECK(processes_.contains(key.process), "only the living have requests");
    WEFT_CHECK(claim.request > 0 || claim.held > 0, "an empty claim is forgotten");
    auto found = held.find(key);
    WEFT_CHECK(claim.held == (found == held.end() ? 0 : found->second.first), "held leases are counted");
    WEFT_CHECK(claim.recalled == (found == held.end() ? 0 : found->second.second), "recalled leases are counted");
    WEFT_CHECK(claim.actors.size() == (key.of_actors ? claim.request : 0), "each wanted actor is one request");
    for (ObjectId actor : claim.actors) {
      auto request = wanted_actors_.find(actor);
      WEFT_CHECK(request != wanted_actors_.end() && request->second == key, "a wanted actor is in one claim");
      WEFT_CHECK(!actors_.contains(actor), "an actor with a worker wants none");
      ++wanted;
    }
    if (found != held.end()) held.erase(found);
  }
  WEFT_CHECK(wanted == wanted_actors_.size(), "wanted actors are counted");
  WEFT_CHECK(held.empty(), "every held lease has a claim");
}

}  // namespace weft::core
