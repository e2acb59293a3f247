// How an object is cut for transfer between nodes. Plain arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weft::core {

// Large enough that asking for, checking and announcing a chunk (some 20 µs on both sides together) costs little
// compared to moving it (0.1 ms in memory, 8 ms at 1 Gbit/s); small enough that several sources can share an object of
// a few megabytes, and that a chain of receivers lags only milliseconds behind its beginning.
inline constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

inline uint32_t ChunkCount(uint64_t size) { return static_cast<uint32_t>((size + kChunkBytes - 1) / kChunkBytes); }
inline uint64_t ChunkOffset(uint32_t chunk) { return uint64_t{chunk} * kChunkBytes; }
inline uint64_t ChunkSize(uint64_t size, uint32_t chunk) { return std::min(kChunkBytes, size - ChunkOffset(chunk)); }
// Larger objects are refused before anything is allocated: 4 TiB.
inline constexpr uint64_t kMaxTransferBytes = uint64_t{1} << 42;

}  // namespace weft::core
