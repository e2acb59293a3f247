// Tells whether a chunk arrived as it was sent. Against accidents (memory, cards, our own mistakes), not against
// people: who can change packets can change this too (TLS is for that).
//
// Called on the loop threads of node daemons, once per chunk on each side, so it must not cost much beside moving the
// bytes: eight independent sums, each multiplied by an odd number per word, go as fast as memory is read.
#pragma once

#include <cstdint>
#include <span>

namespace weft::core {

// Of any change within one word, and of any exchange of words, the sum differs.
uint64_t Checksum(std::span<const uint8_t> bytes);

}  // namespace weft::core
