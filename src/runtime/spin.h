// Whether a waiter should look for a moment before it sleeps. Waking a thread on an idle core costs tens of
// microseconds here, so a peer that answers sooner than that is better waited for awake; one that does not, or that
// cannot run because we hold its core, must not be. Each waiter therefore learns from its own luck: it goes on spinning
// while spins succeed, and tries only now and then when they do not.
//
// One per waiting thread, no locking. The caller decides beforehand whether a core is free for it.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "base/clock.h"

namespace weft::core {

class SpinGate {
 public:
  // About what a wake-up across cores costs on the machines that were measured (35 to 95 µs): spinning longer than the
  // sleep would have cost is a loss in any case.
  static constexpr int64_t kSpinNs = 50'000;
  // For an answer from another node: there both ends pay a wake-up if one of them sleeps (bare TCP between two network
  // namespaces: 130 µs for there and back with sleeps, 17 µs without), and a moment's delay on the way must not be what
  // makes them both sleep from then on. With 50 µs a call took 47 to 67 µs, with this 25 to 45 µs.
  static constexpr int64_t kRemoteSpinNs = 150'000;

  // Looks until `ready()` holds or it is no longer worth it. True if it holds.
  template <class Ready>
  bool Spin(int64_t limit_ns, Ready&& ready) {
    if (credit_ <= 0 && ++skipped_ < kTryAgainAfter) return false;
    skipped_ = 0;
    const int64_t end = NowNs() + limit_ns;
    do {
      for (int i = 0; i < 64; ++i) {
        if (ready()) {
          if (credit_ < kMaxCredit) ++credit_;
          return true;
        }
        Pause();
      }
    } while (NowNs() < end);
    credit_ = credit_ > 0 ? credit_ - kFailureCosts : 0;
    return false;
  }

 private:
  static constexpr int kMaxCredit = 16;
  static constexpr int kFailureCosts = 4;
  static constexpr int kTryAgainAfter = 64;

  static void Pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  int credit_ = kMaxCredit;
  int skipped_ = 0;
};

}  // namespace weft::core
