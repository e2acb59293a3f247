#include "node/worker_pool.h"

#include <algorithm>

#include "base/check.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1000 * kMs;
// A worker is ready 15 ms after its start on an idle machine; a thousand times that is a worker that hangs.
constexpr int64_t kStartTimeoutNs = 30 * kSecond;
constexpr int64_t kIdleNs = 10 * kSecond;
// Failed starts within this time have one cause (a zygote that died takes all its starts along) and count once.
constexpr int64_t kSameFailureNs = 20 * kMs;
constexpr int64_t kFirstPauseNs = 50 * kMs;
constexpr int64_t kLongestPauseNs = 2 * kSecond;
// If no worker ever came up, the command is wrong and trying again is for accidents only.
constexpr uint32_t kMaxFirstFailures = 2;
constexpr uint32_t kMaxFailures = 6;
// After giving up, somebody who asks later may cause one new attempt: the disk may have room again.
constexpr int64_t kForgetNs = 5 * kSecond;
// A worker that dies so soon after it became ready, without having had work, has failed to start.
constexpr int64_t kProvenNs = kSecond;

}  // namespace

void WorkerPool::SetState(Worker& worker, State state, int64_t now_ns) {
  --counts_[static_cast<size_t>(worker.state)];
  ++counts_[static_cast<size_t>(state)];
  worker.state = state;
  worker.since_ns = now_ns;
}

void WorkerPool::SessionOpened(int64_t now_ns, std::vector<PoolAction>& out) {
  open_ = true;
  StartMissing(now_ns, out);
}

void WorkerPool::WorkersWanted(uint32_t count, int64_t now_ns, std::vector<PoolAction>& out) {
  wanted_ = count;
  if (count > 0 && gave_up_) {
    if (now_ns - last_failure_ns_ < kForgetNs) {
      out.emplace_back(GiveUpStarting{why_gave_up_, config_.kind});
      return;
    }
    gave_up_ = false;
    failures_ = kMaxFailures - 1;  // one attempt
    not_before_ns_ = 0;
  }
  StartMissing(now_ns, out);
}

bool WorkerPool::WorkerBecameReady(ProcessId worker, int64_t now_ns) {
  auto found = workers_.find(worker);
  WEFT_CHECK(found != workers_.end(), "a worker is ready after it was started");
  if (found->second.state != State::kStarting) return true;
  SetState(found->second, found->second.outdated ? State::kDying : State::kIdle, now_ns);
  ever_ready_ = true;
  gave_up_ = false;
  return !found->second.outdated;
}

void WorkerPool::WorkerWasLeased(ProcessId worker) {
  auto found = workers_.find(worker);
  WEFT_CHECK(found != workers_.end() && found->second.state == State::kIdle, "only idle workers are leased");
  SetState(found->second, State::kLeased, found->second.since_ns);
  found->second.was_leased = true;
  failures_ = 0;  // it works
}

void WorkerPool::WorkerWasTaken(ProcessId worker) {
  WorkerWasLeased(worker);
  auto& taken = workers_.at(worker);
  SetState(taken, State::kTaken, taken.since_ns);
}

bool WorkerPool::WorkerWasFreed(ProcessId worker, int64_t now_ns) {
  auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.state != State::kLeased) return true;
  SetState(found->second, found->second.outdated ? State::kDying : State::kIdle, now_ns);
  return !found->second.outdated;
}

void WorkerPool::Renew(int64_t now_ns, std::vector<PoolAction>& out) {
  for (auto& [id, worker] : workers_) {
    worker.outdated = true;
    if (worker.state != State::kIdle) continue;
    SetState(worker, State::kDying, now_ns);
    out.emplace_back(RetireWorker{id});
  }
  StartMissing(now_ns, out);
}

void WorkerPool::WorkerEnded(ProcessId worker, const std::string& how, int64_t now_ns, std::vector<PoolAction>& out) {
  auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  Worker ended = found->second;
  --counts_[static_cast<size_t>(ended.state)];
  workers_.erase(found);
  bool idle_from_birth = ended.state == State::kIdle && !ended.was_leased && now_ns - ended.since_ns < kProvenNs;
  if (ended.state == State::kStarting || idle_from_birth) {
    StartFailed(how, now_ns, out);
  }
  StartMissing(now_ns, out);
}

void WorkerPool::StartFailed(const std::string& how, int64_t now_ns, std::vector<PoolAction>& out) {
  if (failures_ > 0 && now_ns - last_failure_ns_ < kSameFailureNs) return;
  last_failure_ns_ = now_ns;
  ++failures_;
  if (failures_ >= (ever_ready_ ? kMaxFailures : kMaxFirstFailures)) {
    gave_up_ = true;
    why_gave_up_ = "no worker can be started: " + how;
    if (wanted_ > 0) out.emplace_back(GiveUpStarting{why_gave_up_, config_.kind});
    return;
  }
  not_before_ns_ = now_ns + std::min(kLongestPauseNs, kFirstPauseNs << (failures_ - 1));
}

void WorkerPool::TimePassed(int64_t now_ns, std::vector<PoolAction>& out) {
  for (auto& [id, worker] : workers_) {
    if (worker.state == State::kStarting && now_ns - worker.since_ns >= kStartTimeoutNs) {
      worker.since_ns = now_ns;  // again after another time-out, should the kill not have helped
      out.emplace_back(AbandonStart{id});
    }
  }
  while (NextRetirement() <= now_ns) {
    // The newest goes: the old ones have their channels and warm memory.
    for (auto entry = workers_.rbegin(); entry != workers_.rend(); ++entry) {
      if (entry->second.state != State::kIdle || now_ns - entry->second.since_ns < kIdleNs) continue;
      SetState(entry->second, State::kDying, now_ns);
      out.emplace_back(RetireWorker{entry->first});
      break;
    }
  }
  StartMissing(now_ns, out);
}

int64_t WorkerPool::NextRetirement() const {
  if (ready() <= config_.keep) return INT64_MAX;
  int64_t next = INT64_MAX;
  for (const auto& [id, worker] : workers_) {
    if (worker.state == State::kIdle) next = std::min(next, worker.since_ns + kIdleNs);
  }
  return next;
}

uint32_t WorkerPool::MissingWorkers() const {
  uint32_t target = wanted_;
  if (open_ && config_.prestart > ready()) target = std::max(target, config_.prestart - ready());
  return target > starting() ? target - starting() : 0;
}

void WorkerPool::StartMissing(int64_t now_ns, std::vector<PoolAction>& out) {
  if (gave_up_ || now_ns < not_before_ns_) return;
  uint32_t missing = MissingWorkers();
  // After a failure one start has to show that it works before others follow.
  if (failures_ > 0) missing = starting() > 0 ? 0 : std::min(missing, 1u);
  for (uint32_t i = 0; i < missing; ++i) {
    ProcessId id{(*next_number_)++};
    workers_[id].since_ns = now_ns;
    ++counts_[static_cast<size_t>(State::kStarting)];
    out.emplace_back(StartWorker{id, config_.kind});
  }
}

int64_t WorkerPool::next_wakeup_ns() const {
  int64_t next = NextRetirement();
  if (!gave_up_ && MissingWorkers() > 0 && (failures_ == 0 || starting() == 0)) next = std::min(next, not_before_ns_);
  for (const auto& [id, worker] : workers_) {
    if (worker.state == State::kStarting) next = std::min(next, worker.since_ns + kStartTimeoutNs);
  }
  return next;
}

void WorkerPool::CheckInvariants() const {
  uint32_t counts[5] = {};
  for (const auto& [id, worker] : workers_) {
    ++counts[static_cast<size_t>(worker.state)];
    WEFT_CHECK(id.value < *next_number_, "numbers are given once");
  }
  for (size_t i = 0; i < 5; ++i) WEFT_CHECK(counts[i] == counts_[i], "workers are counted by state");
}

}  // namespace weft::core
