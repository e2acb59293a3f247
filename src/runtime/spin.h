// Decides whether a waiter spins for a moment before it sleeps. Waking a thread on an idle core costs tens of
// microseconds here, so spinning pays if the peer answers sooner than that. It does not if the peer is slower, or
// cannot run because we hold its core. So each waiter learns from its own results: it goes on spinning while spins
// succeed, and tries only now and then when they fail.
//
// One per waiting thread, no locking. The caller first decides whether a core is free for it.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "base/clock.h"

namespace weft::core {

class SpinGate {
 public:
  // About the cost of a wake-up across cores on the machines that were measured (35 to 95 µs): spinning longer than a
  // sleep would cost is always a loss.
  static constexpr int64_t kSpinNs = 50'000;
  // For an answer from another node. There both ends pay a wake-up if one of them sleeps (bare TCP between two network
  // namespaces: 130 µs for a round trip with sleeps, 17 µs without), and a short delay on the way must not make both
  // sleep from then on. With 50 µs a call took 47 to 67 µs, with this 25 to 45 µs.
  static constexpr int64_t kRemoteSpinNs = 150'000;

  // Spins until `ready()` holds or spinning no longer pays. True if it holds.
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
