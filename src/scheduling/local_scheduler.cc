#include "scheduling/local_scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace weft::core {
namespace {

// After so many grants to others, what a wish needs is kept free for it. Small, because each costs a whole task's
// time; not zero, because keeping resources free wastes them.
constexpr uint32_t kMaxPassedOver = 8;
// A submitter without any lease takes turns with one that holds a single one. Long against a lease's round trip
// (0.1 ms), short for a person.
constexpr int64_t kTurnNs = 20'000'000;
// A recalled lease that has not come back by then sits behind a long task: another one is recalled as well.
constexpr int64_t kStaleRecallNs = 50'000'000;

}  // namespace

LocalScheduler::LocalScheduler(Config config)
    : total_(std::move(config.resources)), max_workers_(config.max_workers), free_(total_) {
  WEFT_CHECK(IsValidShape(total_), "the daemon checks the session's resources");
  // Shapes without CPUs, or with a small part of one, could otherwise ask for any number of processes.
  auto cpus = static_cast<uint64_t>(AmountOf(total_, kCpu) / kResourceUnit);
  max_unblocked_workers_ = static_cast<uint32_t>(std::min<uint64_t>(std::max<uint64_t>(16, 4 * cpus), max_workers_));
}

void LocalScheduler::Handle(const ProcessJoined& event, std::vector<SchedulerAction>& out) {
  WEFT_CHECK(processes_.insert(event.process).second, "a process joins once");
  if (event.runs_tasks) workers_[event.process];
  wanted_workers_ = UINT32_MAX;  // say the number again: the pool must know whether this worker was one of them
  Decide(out);
}

void LocalScheduler::Handle(const LeasesRequested& event, std::vector<SchedulerAction>& out) {
  if (!processes_.contains(event.process)) return;
  for (const auto& [name, amount] : event.shape) {
    int64_t there = AmountOf(total_, name);
    if (amount <= there) continue;
    std::string why = "the task asks for " + FormatAmount(amount) + " " + name + ", but this session has ";
    why += there == 0 ? "none" : "only " + FormatAmount(there) + " in all";
    why += " (it has " + FormatShape(total_) + "); ask for less, or start it with more: weft.init(";
    why += name == kCpu ? "num_cpus=...)" : "resources={...})";
    out.emplace_back(RefuseLeases{event.process, event.shape, std::move(why)});
    return;
  }
  ClaimKey key{event.process, event.shape};
  auto& claim = claims_[key];
  if (claim.wish == 0) claim.waiting_since_ns = now_ns_;
  claim.wish = event.count;
  claim.depth = event.depth;
  if (claim.wish == 0) claim.passed_over = 0;
  DropIfEmpty(key);
  Decide(out);
}

void LocalScheduler::Handle(const LeaseReturned& event, std::vector<SchedulerAction>& out) {
  auto found = leases_.find(event.lease);
  // A process may return what it no longer holds: the worker died meanwhile. That is not its fault.
  if (found == leases_.end() || found->second.claim.first != event.process) return;
  EndLease(event.lease);
  Decide(out);
}

void LocalScheduler::Handle(const WorkerBlocked& event, std::vector<SchedulerAction>& out) {
  auto worker = workers_.find(event.worker);
  if (worker == workers_.end() || worker->second.lease.value == 0) return;
  auto& lease = leases_.at(worker->second.lease);
  if (lease.lending) return;
  lease.lending = true;
  free_.Adjust(kCpu, AmountOf(lease.claim.second, kCpu));
  Decide(out);
}

void LocalScheduler::Handle(const WorkerUnblocked& event, std::vector<SchedulerAction>& out) {
  auto worker = workers_.find(event.worker);
  if (worker == workers_.end() || worker->second.lease.value == 0) return;
  auto& lease = leases_.at(worker->second.lease);
  if (!lease.lending) return;
  lease.lending = false;
  free_.Adjust(kCpu, -AmountOf(lease.claim.second, kCpu));
  Decide(out);
}

void LocalScheduler::Handle(const BlockedFlagsRead&, std::vector<SchedulerAction>& out) {
  if (!demand_ || flags_known_) return;
  flags_known_ = true;
  Decide(out);
}

void LocalScheduler::Handle(const WorkerRetired& event, std::vector<SchedulerAction>& out) {
  auto worker = workers_.find(event.worker);
  if (worker == workers_.end() || worker->second.lease.value != 0) return;
  worker->second.retired = true;
  Decide(out);
}

void LocalScheduler::Handle(const ProcessLost& event, std::vector<SchedulerAction>& out) {
  if (processes_.erase(event.process) == 0) return;
  if (auto worker = workers_.find(event.process); worker != workers_.end()) {
    if (worker->second.lease.value != 0) {
      ResourceLedger before = free_;
      EndLease(worker->second.lease);
      if (faults.keep_resources_of_dead_workers) free_ = before;
    }
    workers_.erase(worker);
  }
  // What it held as a submitter is not free before the workers are gone: they may be in the middle of a task.
  for (auto& [id, lease] : leases_) {
    if (lease.claim.first != event.process) continue;
    lease.claim.first = ProcessId{};
    lease.recalled = false;
    if (!faults.spare_workers_of_the_dead) out.emplace_back(KillWorker{lease.worker});
  }
  std::erase_if(claims_, [&](const ClaimEntry& entry) { return entry.first.first == event.process; });
  for (auto& [id, worker] : workers_) worker.earlier_holders.erase(event.process);
  Decide(out);
}

void LocalScheduler::Handle(const StartingGivenUp& event, std::vector<SchedulerAction>& out) {
  for (auto entry = claims_.begin(); entry != claims_.end();) {
    auto& [key, claim] = *entry;
    // Who holds a lease already goes on with it, only not with more; but it must know that its wish is forgotten.
    if (claim.wish > 0) out.emplace_back(RefuseLeases{key.first, key.second, event.why});
    claim.wish = 0;
    claim.passed_over = 0;
    entry = claim.held == 0 ? claims_.erase(entry) : std::next(entry);
  }
  Decide(out);
}

void LocalScheduler::Handle(const TimePassed& event, std::vector<SchedulerAction>& out) {
  now_ns_ = std::max(now_ns_, event.now_ns);
  if (now_ns_ >= next_wakeup_ns_) Decide(out);
}

bool LocalScheduler::IsIdle(ProcessId worker) const {
  auto found = workers_.find(worker);
  return found != workers_.end() && found->second.lease.value == 0;
}

bool LocalScheduler::IsLeased(ProcessId worker) const {
  auto found = workers_.find(worker);
  return found != workers_.end() && found->second.lease.value != 0;
}

bool LocalScheduler::IsLending(ProcessId worker) const {
  return IsLeased(worker) && leases_.at(workers_.at(worker).lease).lending;
}

ProcessId LocalScheduler::WorkerOf(LeaseId lease, ProcessId holder) const {
  auto found = leases_.find(lease);
  return found != leases_.end() && found->second.claim.first == holder ? found->second.worker : ProcessId{};
}

size_t LocalScheduler::ShapesOf(ProcessId process) const {
  size_t count = 0;
  for (auto entry = claims_.lower_bound(ClaimKey{process, {}}); entry != claims_.end(); ++entry) {
    if (entry->first.first != process) break;
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
  ResourceLedger most(total_);
  for (const auto& [id, lease] : leases_) {
    if (!lease.lending) continue;
    most.Subtract(lease.claim.second);
    most.Adjust(kCpu, AmountOf(lease.claim.second, kCpu));
  }
  return most.Fits(shape);
}

ProcessId LocalScheduler::IdleWorkerFor(ProcessId process) const {
  ProcessId best;
  for (const auto& [id, worker] : workers_) {
    // A process has no channel to itself.
    if (worker.lease.value != 0 || worker.retired || id == process) continue;
    if (worker.earlier_holders.contains(process)) return id;
    if (!best) best = id;  // the lowest number, so that the workers beyond the CPUs stay idle and can go
  }
  return best;
}

void LocalScheduler::Decide(std::vector<SchedulerAction>& out) {
  // First real grants while workers are idle, then, on paper, those that only lack a worker: they say how many to
  // start.
  ResourceLedger left = free_;
  std::map<const ClaimKey*, uint32_t> on_paper;
  uint32_t wanted = 0;
  uint32_t unblocked = 0;
  for (const auto& [id, worker] : workers_) {
    if (worker.retired) continue;
    bool lending = worker.lease.value != 0 && leases_.at(worker.lease).lending;
    if (!lending) ++unblocked;
  }
  std::vector<ClaimEntry*> waiting;
  for (auto& entry : claims_) {
    if (entry.second.wish > 0) waiting.push_back(&entry);
  }
  for (bool progress = true; progress && !waiting.empty();) {
    progress = false;
    std::sort(waiting.begin(), waiting.end(), [](auto* a, auto* b) { return GoesBefore(*a, *b); });
    std::vector<ClaimEntry*> passed_over;
    // What is kept free for wishes that were passed over too often; deeper ones need not respect it.
    ResourceLedger kept;
    for (auto* entry : waiting) {
      auto& [key, claim] = *entry;
      if (claim.wish == on_paper[&entry->first]) continue;
      ResourceLedger usable = left;
      for (const auto& [name, amount] : kept.amounts()) usable.Adjust(name, -amount);
      if (!usable.Fits(key.second)) {
        passed_over.push_back(entry);
        if (claim.passed_over >= kMaxPassedOver && Obtainable(key.second)) kept.Add(key.second);
        continue;
      }
      ProcessId worker = IdleWorkerFor(key.first);
      if (!worker) {
        bool room = unblocked + wanted < max_unblocked_workers_ && workers_.size() + wanted < max_workers_;
        if (!room) continue;
        ++on_paper[&entry->first];
        ++wanted;
        left.Subtract(key.second);
        progress = true;
        break;
      }
      WEFT_CHECK(free_.Fits(key.second), "a grant takes only what is free");
      LeaseId id{next_lease_++};
      free_.Subtract(key.second);
      left.Subtract(key.second);
      leases_[id] = Lease{worker, key};
      auto& granted = workers_.at(worker);
      granted.lease = id;
      granted.earlier_holders.insert(key.first);
      --claim.wish;
      ++claim.held;
      claim.passed_over = 0;
      claim.last_served = id.value;
      claim.waiting_since_ns = now_ns_;
      for (auto* other : passed_over) ++other->second.passed_over;
      out.emplace_back(GrantLease{key.first, worker, id, key.second});
      if (claim.wish == 0) std::erase(waiting, entry);
      progress = true;
      break;
    }
  }

  // What is left over lacks resources, not workers.
  std::vector<std::pair<ClaimEntry*, uint32_t>> unmet;
  bool demand = false;
  for (auto* entry : waiting) {
    uint32_t rest = entry->second.wish - on_paper[&entry->first];
    if (rest == 0 || left.Fits(entry->first.second)) continue;
    unmet.emplace_back(entry, rest);
    demand = true;
  }
  if (wanted != wanted_workers_) {
    wanted_workers_ = wanted;
    out.emplace_back(WantWorkers{wanted});
  }
  next_wakeup_ns_ = INT64_MAX;
  if (demand != demand_) {
    demand_ = demand;
    flags_known_ = false;
    out.emplace_back(SetDemand{demand});
  } else if (demand && flags_known_) {
    Recall(std::move(left), std::move(unmet), out);
  }
}

void LocalScheduler::Recall(ResourceLedger expected, std::vector<std::pair<ClaimEntry*, uint32_t>> unmet,
                            std::vector<SchedulerAction>& out) {
  // Leases asked back lately are on their way: whoever comes first may count on them.
  for (const auto& [id, lease] : leases_) {
    if (!lease.recalled || lease.lending) continue;
    int64_t stale_at = lease.recalled_at_ns + kStaleRecallNs;
    if (now_ns_ < stale_at) {
      expected.Add(lease.claim.second);
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
    const ResourceAmounts& shape = entry.first.second;
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
        if (lease.recalled || lease.lending || !lease.claim.first) continue;
        if (lease.claim == entry.first) continue;
        bool useful = std::any_of(shape.begin(), shape.end(), [&](const auto& need) {
          return expected.Of(need.first) < need.second && AmountOf(lease.claim.second, need.first) > 0;
        });
        if (!useful) continue;
        const auto& holder = claims_.at(lease.claim);
        uint32_t keeps = holder.held - holder.recalled;
        bool richer = keeps > mine + 1;
        bool deeper = mine == 0 && entry.second.depth > holder.depth;
        if (!richer && !deeper && !my_turn) continue;
        // A deeper wish would get it back before we do, and it would be recalled again, for ever.
        if (holder.wish > 0 && holder.depth > entry.second.depth) continue;
        if (victim == nullptr || keeps >= victim_keeps) {  // the newest lease of the richest
          victim = &item;
          victim_keeps = keeps;
        }
      }
      if (victim == nullptr) break;
      auto& lease = victim->second;
      lease.recalled = true;
      lease.recalled_at_ns = now_ns_;
      ++claims_.at(lease.claim).recalled;
      expected.Add(lease.claim.second);
      next_wakeup_ns_ = std::min(next_wakeup_ns_, now_ns_ + kStaleRecallNs);
      out.emplace_back(RecallLease{lease.claim.first, victim->first});
    }
    // Either the rest is on its way, or nobody can be asked for it: then others need not wait for it.
    if (expected.Fits(shape) && best->second > 1 && promised[&entry.first] < max_unblocked_workers_) {
      expected.Subtract(shape);
      ++promised[&entry.first];
      --best->second;
    } else {
      if (expected.Fits(shape)) expected.Subtract(shape);
      unmet.erase(best);
    }
  }
}

void LocalScheduler::EndLease(LeaseId id) {
  auto found = leases_.find(id);
  auto& lease = found->second;
  free_.Add(lease.claim.second);
  if (lease.lending) free_.Adjust(kCpu, -AmountOf(lease.claim.second, kCpu));
  workers_.at(lease.worker).lease = LeaseId{};
  ClaimKey key = lease.claim;
  bool recalled = lease.recalled;
  leases_.erase(found);
  if (!key.first) return;
  auto& claim = claims_.at(key);
  --claim.held;
  if (recalled) --claim.recalled;
  claim.waiting_since_ns = now_ns_;  // who just had a turn waits a whole one for the next
  DropIfEmpty(key);
}

void LocalScheduler::DropIfEmpty(const ClaimKey& key) {
  auto found = claims_.find(key);
  if (found != claims_.end() && found->second.wish == 0 && found->second.held == 0) claims_.erase(found);
}

void LocalScheduler::CheckInvariants() const {
  ResourceLedger expected(total_);
  std::map<ClaimKey, std::pair<uint32_t, uint32_t>> held;
  for (const auto& [id, lease] : leases_) {
    expected.Subtract(lease.claim.second);
    if (lease.lending) expected.Adjust(kCpu, AmountOf(lease.claim.second, kCpu));
    auto worker = workers_.find(lease.worker);
    WEFT_CHECK(worker != workers_.end(), "a lease is on a living worker");
    WEFT_CHECK(worker->second.lease == id, "a worker is leased to one process at a time");
    WEFT_CHECK(lease.claim.first != lease.worker, "nobody leases itself");
    if (lease.claim.first) {
      ++held[lease.claim].first;
      held[lease.claim].second += lease.recalled;
    }
  }
  WEFT_CHECK(expected == free_, "in use + free == total");
  for (const auto& [name, amount] : free_.amounts()) {
    WEFT_CHECK(name == kCpu || amount >= 0, "only CPUs may be over-committed");
    WEFT_CHECK(amount <= AmountOf(total_, name), "nothing is free that does not exist");
  }
  for (const auto& [id, worker] : workers_) {
    WEFT_CHECK(processes_.contains(id), "a worker is a process");
    WEFT_CHECK(worker.lease.value == 0 || leases_.contains(worker.lease), "a leased worker has a lease");
  }
  for (const auto& [key, claim] : claims_) {
    WEFT_CHECK(processes_.contains(key.first), "only the living have wishes");
    WEFT_CHECK(claim.wish > 0 || claim.held > 0, "an empty claim is forgotten");
    auto found = held.find(key);
    WEFT_CHECK(claim.held == (found == held.end() ? 0 : found->second.first), "held leases are counted");
    WEFT_CHECK(claim.recalled == (found == held.end() ? 0 : found->second.second), "recalled leases are counted");
    if (found != held.end()) held.erase(found);
  }
  WEFT_CHECK(held.empty(), "every held lease has a claim");
}

}  // namespace weft::core
