// Copies large values into a segment, with several threads when cores are free.
//
// Used by the runtime, on the calling thread, without any lock held. Helper threads live only as long as the copy, block
// all signals, and take piece after piece: if the system gives them no CPU, the caller simply does all of it.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace weft::core {

enum class Pages {
  kWarm,  // the destination's pages exist
  kCold,  // they are populated piece by piece, just before each piece is copied, so that they are still in the cache
};

// Below this, starting a thread costs more than it saves.
inline constexpr uint64_t kParallelCopyBytes = 4u << 20;

// Copies like memcpy. Fails only for cold pages, if the system has no memory left; the destination is then undefined.
Status CopyLarge(void* destination, const void* source, uint64_t size, int threads, Pages pages);

// How many threads a copy of this size is worth now, the calling one included. Below kParallelCopyBytes it is 1 and costs
// nothing; else it looks at the machine's load, which takes some ten microseconds.
int CopyThreads(uint64_t size);

}  // namespace weft::core
