// The bytes of a value, the same in every language, inside frames and in the store. docs/formats.md.
//
// A value starts with a kind byte. Native values follow it as tagged items; arrays and pickles have a header whose
// offsets are relative to the value's start, with data aligned to 64 bytes (the store aligns values to 64 as well).
#pragma once

#include <cstdint>

namespace weft::core {

enum class ValueFormat : uint8_t {
  kNative = 1,  // tagged items, readable everywhere
  kPickle = 2,  // Python only
  kArray = 3,   // a dense array
};

enum class Tag : uint8_t {
  kNone = 0,
  kFalse = 1,
  kTrue = 2,
  kInt8 = 3,
  kInt64 = 4,
  kBigInt = 5,  // uint32 size, two's complement little-endian
  kFloat = 6,
  kString = 7,  // uint32 size, UTF-8
  kBytes = 8,
  kTuple = 9,  // uint32 count, items
  kList = 10,
  kDict = 11,        // uint32 count, keys and values in turn
  kSame = 12,        // uint32: the same object as the n-th string, bytes or container of this value
  kDependency = 13,  // arguments only; uint32: the n-th dependency of the task
  kPickled = 14,     // arguments only; uint32 size, pickle bytes
  kReference = 15,   // uint64 owner, uint64 index: a reference inside the value, which travels beside it as well
  kAgain = 16,       // as kReference, then uint32: the same handle as the n-th kReference of this value
  kSet = 17,         // uint32 count, items
  kFrozenSet = 18,
  kHandle = 19,  // uint64 owner, uint64 index, uint32 size, what callers know of the actor (docs/formats.md)
};

inline constexpr uint32_t kDataAlignment = 64;
inline constexpr uint64_t AlignUp(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

struct PickleHead {
  uint8_t format = static_cast<uint8_t>(ValueFormat::kPickle);
  uint8_t reserved[3] = {};
  uint32_t num_buffers = 0;
  uint64_t pickle_size = 0;
  // then num_buffers × {uint64 offset, uint64 size}, the pickle, and the buffers, each aligned
};

struct ArrayHead {
  static constexpr uint8_t kColumns = 1;  // it lies column by column (Fortran's order)
  static constexpr uint8_t kLayout = 2;   // its elements are structs, described after the shape
  uint8_t format = static_cast<uint8_t>(ValueFormat::kArray);
  uint8_t dimensions = 0;
  uint8_t flags = 0;
  char type[13] = {};  // as NumPy writes it: "<f8", "|V12" for structs
  // then dimensions × uint64 shape, of structs uint32 size and text of the layout, and the data, aligned
  static uint64_t DataOffset(uint32_t dimensions, uint64_t layout_size = 0) {
    uint64_t layout = layout_size == 0 ? 0 : sizeof(uint32_t) + layout_size;
    return AlignUp(sizeof(ArrayHead) + 8 * dimensions + layout, kDataAlignment);
  }
};
static_assert(sizeof(ArrayHead) == 16);

}  // namespace weft::core
