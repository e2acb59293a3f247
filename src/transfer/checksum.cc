#include "transfer/checksum.h"

#include <bit>
#include <cstddef>
#include <cstring>

namespace weft::core {
namespace {

constexpr size_t kLanes = 8;
// Odd, so that each step can be undone: two inputs that differ in one word never have the same sum.
constexpr uint64_t kFactor = 0x9e3779b97f4a7c15ull;

}  // namespace

uint64_t Checksum(std::span<const uint8_t> bytes) {
  uint64_t lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = (i + 1) * kFactor;
  const uint8_t* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= sizeof lanes; at += sizeof lanes, left -= sizeof lanes) {
    uint64_t words[kLanes];
    std::memcpy(words, at, sizeof words);
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = (lanes[i] ^ words[i]) * kFactor;
  }
  for (size_t i = 0; left > 0; ++i) {
    const size_t part = left < sizeof(uint64_t) ? left : sizeof(uint64_t);
    uint64_t word = 0;
    std::memcpy(&word, at, part);
    lanes[i] = (lanes[i] ^ word) * kFactor;
    at += part;
    left -= part;
  }
  uint64_t sum = bytes.size();
  for (uint64_t lane : lanes) sum = (std::rotl(sum, 29) ^ lane) * kFactor;
  return sum ^ sum >> 32;
}

}  // namespace weft::core
