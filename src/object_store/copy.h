// Copies large values into a segment, with several threads when cores are free.
//
// Used by SegmentWriter::Fill, on the calling thread, without any lock held. Helper threads live only as long as the
// copy, block all signals, and take piece after piece: if the system gives them no CPU, the caller simply does it all.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace weft::core {

// Below this, starting a thread costs more than it saves.
inline constexpr uint64_t kParallelCopyBytes = 4u << 20;

// Copies like memcpy, to pages that exist.
void CopyWarm(void* destination, const void* source, uint64_t size, int threads);

// Copies to pages of a shared file that do not exist yet, given by descriptor and offset, and by the address where they
// are mapped for writing. Writing through the descriptor saves the kernel zeroing each page and faulting it in:
// measured 1.8 times as fast as storing to the mapping. The pages are mapped afterwards, so that the next copy to them
// is a warm one. Fails if the system has no memory left; the destination is then undefined.
struct ColdDestination {
  int fd;
  uint64_t offset;
  uint8_t* mapped;
};
Status CopyCold(ColdDestination destination, const void* source, uint64_t size, int threads);

// How many threads a copy of this size is worth now, including the calling one. Below kParallelCopyBytes it is 1 and
// costs nothing; otherwise this checks the machine's load, which takes about ten microseconds.
int CopyThreads(uint64_t size);

}  // namespace weft::core
