// The smallest ring in shared memory that can carry calls: the bare limit that tasks are compared with.
//
// One process calls Push, one other process calls Pop; both spin. Not weft's own ring: no frames, no sleeping, no
// revocation, no crash safety. It says what the machine allows, nothing more.
#pragma once

#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <new>

namespace weft::bench {

struct Ring {
  static constexpr uint64_t kSlots = 4096;  // More than a round of 1000, so that the caller never waits for space.

  // The pusher's line; `taken_seen` is private to it and saves looking at the popper's line while there is space.
  alignas(64) std::atomic<uint64_t> written{0};  // Stored by the pusher (release), read by the popper (acquire).
  uint64_t taken_seen = 0;
  // The popper's line, likewise.
  alignas(64) std::atomic<uint64_t> taken{0};  // Stored by the popper (release), read by the pusher (acquire).
  uint64_t written_seen = 0;
  alignas(64) int64_t slots[kSlots];

  bool TryPush(int64_t value) {
    uint64_t at = written.load(std::memory_order_relaxed);
    if (at - taken_seen == kSlots) {
      taken_seen = taken.load(std::memory_order_acquire);
      if (at - taken_seen == kSlots) return false;
    }
    slots[at % kSlots] = value;
    written.store(at + 1, std::memory_order_release);
    return true;
  }
  bool TryPop(int64_t& value) {
    uint64_t at = taken.load(std::memory_order_relaxed);
    if (written_seen == at) {
      written_seen = written.load(std::memory_order_acquire);
      if (written_seen == at) return false;
    }
    value = slots[at % kSlots];
    taken.store(at + 1, std::memory_order_release);
    return true;
  }
};

// Calls go one way, results the other. `closed` ends the serving process.
struct RingPair {
  Ring calls;
  Ring results;
  std::atomic<uint32_t> closed{0};
};

inline RingPair* CreateRingPair() {
  void* memory =
      mmap(nullptr, sizeof(RingPair), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) RingPair;
}

// Yields now and then, so that a machine with one free core still makes progress.
class Spinner {
 public:
  void Wait() {
    if (++turns_ % 4096 == 0) {
      sched_yield();
    } else {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }

 private:
  uint32_t turns_ = 0;
};

// One round: `count` calls submitted, then all results taken. False if a result is not its argument + 1.
inline bool Round(RingPair& pair, int64_t count) {
  Spinner spinner;
  int64_t received = 0;
  bool right = true;
  auto take = [&] {
    int64_t value;
    while (pair.results.TryPop(value)) right &= value == ++received;
  };
  for (int64_t i = 0; i < count; ++i) {
    while (!pair.calls.TryPush(i)) {
      take();
      spinner.Wait();
    }
  }
  while (received < count) {
    take();
    spinner.Wait();
  }
  return right;
}

// Serves calls with `function` until the pair is closed.
template <typename Function>
void Serve(RingPair& pair, Function function) {
  Spinner spinner;
  int64_t value;
  while (true) {
    if (!pair.calls.TryPop(value)) {
      if (pair.closed.load(std::memory_order_acquire)) return;
      spinner.Wait();
      continue;
    }
    value = function(value);
    while (!pair.results.TryPush(value)) spinner.Wait();
  }
}

}  // namespace weft::bench
