// Monotonic time in nanoseconds. Only the edges read it; pure machines get the time in their events.
#pragma once

#include <time.h>

#include <cstdint>

namespace weft::core {

inline int64_t NowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
}

// A few milliseconds coarse, but a few nanoseconds cheap: for rate limits on hot paths.
inline int64_t CoarseNowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
}

}  // namespace weft::core
