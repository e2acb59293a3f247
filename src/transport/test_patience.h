// For tests: sleeping at a doorbell with a deadline that is reached only if a wake-up was lost.
//
// The outcome alone does not tell: a sleeper that was marked awake but never woken finds out at its deadline, and then
// counts as woken. So the time is checked as well.
#pragma once

#include <gtest/gtest.h>

#include "base/clock.h"
#include "transport/doorbell.h"

namespace weft::core {

inline constexpr int64_t kPatienceNs = 20'000'000'000;

// False, and a failed test, if it was not woken.
template <class Condition>
[[nodiscard]] bool WaitAsWaiter(Doorbell* bell, WaiterState kind, Condition&& something_to_do) {
  const int64_t deadline_ns = NowNs() + kPatienceNs;
  const SleepOutcome outcome = bell->SleepAsWaiter(kind, deadline_ns, something_to_do);
  if (outcome != SleepOutcome::kTimedOut && NowNs() < deadline_ns) return true;
  ADD_FAILURE() << "the waiter's wake-up was lost";
  return false;
}
[[nodiscard]] inline bool WaitAsWaiter(Doorbell* bell, WaiterState kind) {
  return WaitAsWaiter(bell, kind, [] { return false; });
}

[[nodiscard]] inline bool WaitAsBackground(Doorbell* bell) {
  const int64_t deadline_ns = NowNs() + kPatienceNs;
  const SleepOutcome outcome = bell->SleepAsBackground(deadline_ns);
  if (outcome != SleepOutcome::kTimedOut && NowNs() < deadline_ns) return true;
  ADD_FAILURE() << "the background thread's wake-up was lost";
  return false;
}

}  // namespace weft::core
