// Sleeping on a word of shared memory, and waking the threads that sleep there. Works between processes that map the
// same page.
//
// Each call is a system call; the doorbell decides whether one is needed. Both may return early without reason, so
// callers check their condition again.
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <limits>

namespace weft::core {

inline constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

enum class FutexOutcome {
  kWoken,        // woken, or the word no longer held the expected value
  kTimedOut,     // the deadline passed
  kInterrupted,  // a signal was handled: a thread of the user may have to answer Ctrl-C
};

// Sleeps while *word == expected, at most until `deadline_ns` on the clock of NowNs(). Any thread.
inline FutexOutcome FutexWait(std::atomic<uint32_t>* word, uint32_t expected, int64_t deadline_ns) {
  timespec deadline;
  timespec* timeout = nullptr;
  if (deadline_ns != kNoDeadline) {
    if (deadline_ns < 0) deadline_ns = 0;
    deadline.tv_sec = deadline_ns / 1'000'000'000;
    deadline.tv_nsec = deadline_ns % 1'000'000'000;
    timeout = &deadline;
  }
  // The bitset variant takes an absolute monotonic deadline, so a wait that is begun again does not get longer.
  if (::syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, timeout, nullptr, FUTEX_BITSET_MATCH_ANY) == 0) {
    return FutexOutcome::kWoken;
  }
  if (errno == ETIMEDOUT) return FutexOutcome::kTimedOut;
  if (errno == EINTR) return FutexOutcome::kInterrupted;
  return FutexOutcome::kWoken;
}

// Wakes at most `count` threads that sleep on `word`. Any thread.
inline void FutexWake(std::atomic<uint32_t>* word, int count = 1) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, count, nullptr, nullptr, 0);
}

}  // namespace weft::core
