// The bytes of a segment. One process writes it, all others map it read-only, and the node daemon reads the index
// through its descriptor after the writer has died.
//
//   0             header page
//   index_offset  index: `index_capacity` entries of 64 bytes, a page exists only where an entry was used
//   data_offset   data, to the end of the file; offsets in a Location count from the start of the file
//
// The whole layout follows from the file's size, which is sealed. So a reader does not trust the header: it computes
// the layout and refuses a segment whose header disagrees.
//
// An entry appears by one release store of its generation into `state` and disappears by one store of 0. Its other
// fields are written while state is 0. What if the writer dies here: before the store the entry is empty and its range
// counts as unused; after it the entry is whole. There is no state in between.
//
// A generation names one allocation: the low 24 bits are the number of its entry, the rest is a counter that the writer
// never turns back. (At a million objects a second it takes 12 days to repeat a number, and then only an equally old
// location in the very same entry could be mistaken.) It is never 0.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "os/shared_memory.h"
#include "wire/ids.h"

namespace weft::core {

inline constexpr uint64_t kSegmentMagic = 0x31676573'74666577;  // "weftseg1" in memory
inline constexpr uint32_t kSegmentVersion = 1;
inline constexpr uint64_t kObjectAlignment = 64;
inline constexpr uint64_t kSegmentGranule = 1u << 20;  // data starts at, and files are, a multiple of this
inline constexpr uint64_t kMinSegmentBytes = 4 * kSegmentGranule;
inline constexpr uint64_t kMaxSegmentBytes = uint64_t{1} << 46;  // half of an x86-64 process's address space
inline constexpr int kSlotBits = 24;
inline constexpr uint64_t kMaxSlots = uint64_t{1} << kSlotBits;

struct SegmentHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t entry_bytes;
  uint64_t writer;
  uint64_t size;
  uint64_t index_offset;
  uint64_t index_capacity;
  uint64_t data_offset;
};
static_assert(sizeof(SegmentHeader) == 56);

struct IndexEntry {
  // The generation of a sealed object, else 0. The store of the writer (release) pairs with the load of a reader.
  std::atomic<uint64_t> state;
  // Atomic because a reader with an outdated location may look while the writer refills the entry.
  std::atomic<uint64_t> owner;
  std::atomic<uint64_t> index;
  std::atomic<uint64_t> offset;
  std::atomic<uint64_t> size;
  uint64_t unused[3];
};
static_assert(sizeof(IndexEntry) == 64 && std::atomic<uint64_t>::is_always_lock_free);

// The same entry, copied out of the file.
struct IndexEntryBytes {
  uint64_t state;
  uint64_t owner;
  uint64_t index;
  uint64_t offset;
  uint64_t size;
  uint64_t unused[3];
};
static_assert(sizeof(IndexEntryBytes) == sizeof(IndexEntry));

constexpr uint64_t SlotOf(uint64_t generation) { return generation & (kMaxSlots - 1); }
constexpr uint64_t MakeGeneration(uint64_t counter, uint64_t slot) { return counter << kSlotBits | slot; }

struct SegmentLayout {
  uint64_t size = 0;
  uint64_t index_offset = 0;
  uint64_t index_capacity = 0;
  uint64_t data_offset = 0;

  uint64_t data_bytes() const { return size - data_offset; }
  uint64_t EntryOffset(uint64_t slot) const { return index_offset + slot * sizeof(IndexEntry); }

  // nullopt if no segment has this size.
  static std::optional<SegmentLayout> ForSize(uint64_t size) {
    if (size < kMinSegmentBytes || size > kMaxSegmentBytes || size % kSegmentGranule != 0) return std::nullopt;
    SegmentLayout layout;
    layout.size = size;
    layout.index_offset = kPageBytes;
    // One entry per 256 bytes lets a segment be filled with small objects; the index is sparse, so it costs nothing.
    layout.index_capacity = size / 256 < kMaxSlots ? size / 256 : kMaxSlots;
    uint64_t index_end = layout.index_offset + layout.index_capacity * sizeof(IndexEntry);
    layout.data_offset = (index_end + kSegmentGranule - 1) / kSegmentGranule * kSegmentGranule;
    return layout;
  }

  SegmentHeader HeaderFor(ProcessId writer) const {
    return {kSegmentMagic, kSegmentVersion, sizeof(IndexEntry), writer.value,
            size,          index_offset,    index_capacity,     data_offset};
  }

  bool Accepts(const SegmentHeader& header, SegmentId id) const {
    return header.magic == kSegmentMagic && header.version == kSegmentVersion &&
           header.entry_bytes == sizeof(IndexEntry) && header.writer == id.value && header.size == size &&
           header.index_offset == index_offset && header.index_capacity == index_capacity &&
           header.data_offset == data_offset;
  }

  // Whether these numbers, which may come from anywhere, lie within the data. Written so that nothing can overflow.
  bool Contains(uint64_t offset, uint64_t bytes) const {
    return offset >= data_offset && offset % kObjectAlignment == 0 && offset <= size && bytes <= size - offset;
  }
  bool Contains(const Location& location) const {
    return Contains(location.offset, location.size) && location.generation != 0 &&
           SlotOf(location.generation) < index_capacity;
  }
};

// Address space for a process in a store of this capacity. Four times as much, so that fragmentation by used ranges
// hardly ever blocks a large object; pages exist only where something was written.
constexpr uint64_t SegmentSizeFor(uint64_t capacity_bytes) {
  uint64_t wanted = capacity_bytes > kMaxSegmentBytes / 8 ? kMaxSegmentBytes / 2 : capacity_bytes * 4;
  uint64_t rounded = (wanted + kSegmentGranule - 1) / kSegmentGranule * kSegmentGranule;
  return rounded < 64 * kSegmentGranule ? 64 * kSegmentGranule : rounded;
}

}  // namespace weft::core
