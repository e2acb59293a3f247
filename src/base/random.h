// A small seeded generator (splitmix64). The simulator's only source of randomness; the same seed gives the same run.
#pragma once

#include <cstdint>

namespace weft::core {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t bound) { return bound == 0 ? 0 : Next() % bound; }  // bias is irrelevant here
  bool Chance(uint64_t percent) { return Below(100) < percent; }

 private:
  uint64_t state_;
};

}  // namespace weft::core
