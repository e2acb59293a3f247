// Detects whether a chunk arrived as it was sent. Guards against accidents (memory, network cards, our own mistakes),
// not against attackers, who can change the checksum too (TLS is for that).
//
// Called on the loop threads of node daemons, once per chunk on each side, so it must be cheap compared to moving the
// bytes: eight independent sums, each multiplied by an odd number per word, run at the speed of reading memory.
#pragma once

#include <cstdint>
#include <span>

namespace weft::core {

// Any change within one word, and any exchange of words, changes the sum.
uint64_t Checksum(std::span<const uint8_t> bytes);

}  // namespace weft::core
