// Executor: concurrent calls of an actor, and cancelling running tasks.
#include <unistd.h>

#include <algorithm>
#include <tuple>

#include "runtime/executor.h"

namespace weft::core {
namespace {

constexpr size_t kMaxEarlyCancels = 256;
constexpr int64_t kEarlyCancelNs = 60'000'000'000;  // a task's arguments may take long to arrive, or to be read
// The exit code of a worker whose task was cancelled by force.
constexpr int kForcedExit = 75;

}  // namespace

// ---- concurrent calls ---------------------------------------------------------------------------------------------

void Executor::StartConcurrent(std::unique_ptr<Execution> owned) {
  Execution* execution = owned.get();
  // Once it is listed, another thread may run it and end it.
  const auto [submitter, task, number] =
      std::tuple(execution->call.submitter, execution->call.task, execution->call.execution);
  runner_.Keep(*execution);
  {
    std::lock_guard running(running_mutex_);
    running_.emplace(number, std::move(owned));
    if (auto group = groups_.find(execution->call.what->group); group != groups_.end()) {
      if (group->second.running >= group->second.limit) {
        group->second.waiting.push_back(execution);
        execution = nullptr;
      } else {
        ++group->second.running;
      }
    } else {
      ++running_ungrouped_;
    }
  }
  if (num_early_cancels_.load() > 0) TakeEarlyCancel(submitter, task, number);
  if (execution) runner_.Start(*execution);
}

void Executor::Complete(Execution* execution, bool in_language) {
  Reply(*execution, in_language);
  Execution* next = nullptr;
  std::unique_ptr<Execution> ended;
  bool was_full = false;
  {
    std::lock_guard running(running_mutex_);
    if (auto group = groups_.find(execution->call.what->group); group != groups_.end()) {
      if (group->second.waiting.empty()) {
        --group->second.running;
      } else {
        next = group->second.waiting.front();
        group->second.waiting.pop_front();
      }
    } else {
      was_full = running_ungrouped_-- == mode_.limit;
    }
    auto it = running_.find(execution->call.execution);
    ended = std::move(it->second);
    running_.erase(it);
  }
  ended.reset();
  if (next) runner_.Start(*next);
  // The main thread may have left calls in their channels, or may wait to exit or to forget a submitter.
  const bool main_may_act = exit_.load(std::memory_order_acquire) || submitter_ended_.load();
  if (!mode_.loop && ((was_full && !in_language) || main_may_act)) Wake();
}

// ---- cancelling ---------------------------------------------------------------------------------------------------

uint64_t Executor::RunningNow(ProcessId submitter, uint64_t task) const {
  const uint64_t execution = current_execution_.load(std::memory_order_acquire);
  if (current_task_.load() != task || current_submitter_.load(std::memory_order_acquire) != submitter.value) return 0;
  // If the next run has not begun meanwhile, the values belong together.
  return current_execution_.load() == execution ? execution : 0;
}

void Executor::CancelRunning(ProcessId submitter, uint64_t task, bool force, bool recursive) {
  auto look = [&] {
    if (const uint64_t number = RunningNow(submitter, task)) return number;
    std::lock_guard running(running_mutex_);
    for (const auto& [number, execution] : running_) {
      if (execution->call.task == task && execution->call.submitter == submitter) return number;
    }
    return uint64_t{0};
  };
  uint64_t found = look();
  if (found == 0) {
    early_cancels_.push_back({submitter, task, force, CoarseNowNs()});
    if (early_cancels_.size() > kMaxEarlyCancels) early_cancels_.pop_front();
    num_early_cancels_.store(static_cast<uint32_t>(early_cancels_.size()));
    // It may have begun between the check and the note.
    found = look();
    if (found == 0) return;
    early_cancels_.pop_back();
    num_early_cancels_.store(static_cast<uint32_t>(early_cancels_.size()));
  }
  if (force && !is_actor_) ::_exit(kForcedExit);
  if (recursive) runtime_.owner().CancelChildren(found, force, CoarseNowNs(), runtime_.actions());
  runner_.Interrupt(found);
  runtime_.waiters().WakeAll();  // it may wait for objects
}

void Executor::TakeEarlyCancel(ProcessId submitter, uint64_t task, uint64_t execution) {
  std::lock_guard lock(runtime_.mutex());
  auto found = std::find_if(early_cancels_.begin(), early_cancels_.end(), [&](const EarlyCancel& cancel) {
    return cancel.task == task && cancel.submitter == submitter;
  });
  if (found != early_cancels_.end()) {
    if (found->force && !is_actor_) ::_exit(kForcedExit);
    early_cancels_.erase(found);
    runner_.Interrupt(execution);
  }
  // Most old ones came after their tasks had ended.
  const int64_t old_ns = CoarseNowNs() - kEarlyCancelNs;
  while (!early_cancels_.empty() && early_cancels_.front().at_ns < old_ns) early_cancels_.pop_front();
  num_early_cancels_.store(static_cast<uint32_t>(early_cancels_.size()));
}

}  // namespace weft::core
