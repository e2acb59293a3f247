#include "object_store/free_ranges.h"

#include <algorithm>
#include <bit>

namespace weft::core {
namespace {

constexpr uint64_t RoundUp(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// A warm range of this size is worth keeping whole while there is budget for fresh pages.
constexpr uint64_t kLargeWarmRange = 16u << 20;
constexpr uint64_t kMiddlingObject = 1u << 20;
// How many of the largest warm ranges are tried for extension, and of the last stretches for a block.
constexpr int kExtensionTries = 8;
constexpr int kBlockTries = 64;

uint64_t Bits(uint64_t first, uint64_t count) {
  if (count == 0) return 0;
  return (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << first;
}

}  // namespace

FreeRanges::FreeRanges(uint64_t size) : size_(size) {
  WEFT_CHECK(size > 0 && size % kBlock == 0, "a segment's data must be a multiple of a block");
  free_.Insert({0, size});
}

Range FreeRanges::Rounded(uint64_t offset, uint64_t object_size) {
  if (object_size < kSmallLimit) return {offset, RoundUp(std::max<uint64_t>(object_size, 1), kAlignment)};
  return {offset, RoundUp(object_size, kPage)};
}

std::optional<FreeRanges::Taken> FreeRanges::Take(uint64_t object_size, uint64_t spare_bytes) {
  if (object_size > size_) return std::nullopt;
  uint64_t size = Rounded(0, object_size).size;
  auto taken = object_size < kSmallLimit ? TakeSmall(size) : TakeLarge(size, spare_bytes);
  if (taken) {
    held_bytes_ += taken->cold_bytes;
    used_bytes_ += size;
  }
  return taken;
}

// ---- large objects ----------------------------------------------------------------------------------------------

std::optional<FreeRanges::Taken> FreeRanges::TakeLarge(uint64_t size, uint64_t spare_bytes) {
  auto warm = warm_.BestFit(size);
  if (warm && size < kMiddlingObject && warm->size >= kLargeWarmRange && spare_bytes >= size) {
    // Look for a stretch without warm pages: the smallest that fits is cold or warm as a whole in the usual case.
    auto stretch = free_.BestFit(size);
    if (stretch) {
      bool cold = true;
      warm_.ForOverlaps({stretch->offset, size}, [&](Range) { cold = false; });
      if (cold) return TakeAt({stretch->offset, size});
      uint64_t end = stretch->end();
      cold = true;
      warm_.ForOverlaps({end - size, size}, [&](Range) { cold = false; });
      if (cold) return TakeAt({end - size, size});
    }
  }
  if (warm) return TakeAt({warm->offset, size});
  std::optional<Range> extended;
  int tries = 0;
  warm_.ForLargest([&](Range largest) {
    if (largest.size < size / 4 || tries++ == kExtensionTries) return false;
    Range stretch = *free_.Containing(largest.offset);
    if (stretch.size < size) return true;
    extended = Range{std::min(largest.offset, stretch.end() - size), size};
    return false;
  });
  if (extended) return TakeAt(*extended);
  auto stretch = free_.BestFit(size);
  if (!stretch && empty_blocks_ > 0) {
    // The empty block that is kept for small objects may be what parts two stretches.
    auto empty = std::find_if(blocks_.begin(), blocks_.end(), [](const auto& it) { return it.second.used_bytes == 0; });
    RetireBlock(empty->first);
    stretch = free_.BestFit(size);
  }
  if (!stretch) return std::nullopt;
  return TakeAt({stretch->offset, size});
}

FreeRanges::Taken FreeRanges::TakeAt(Range range) {
  Taken taken{.range = range};
  std::vector<Range> warm;
  warm_.ForOverlaps(range, [&](Range part) { warm.push_back(part); });
  uint64_t at = range.offset;
  for (Range part : warm) {
    if (at < part.offset) taken.cold.push_back({at, part.offset - at});
    at = part.end();
    warm_.Remove(part);
  }
  if (at < range.end()) taken.cold.push_back({at, range.end() - at});
  for (Range part : taken.cold) taken.cold_bytes += part.size;
  free_.Remove(range);
  return taken;
}

void FreeRanges::ReturnLarge(Range range, bool warm) {
  free_.Insert(range);
  if (warm) warm_.Insert(range, ++stamp_);
}

// ---- small objects ----------------------------------------------------------------------------------------------

// The units that lie entirely in a range of one block, and those that it touches, as bits.
uint64_t FreeRanges::UnitsInside(Range range) {
  uint64_t base = range.offset / kBlock * kBlock;
  uint64_t first = RoundUp(range.offset - base, kUnit) / kUnit;
  uint64_t end = (range.end() - base) / kUnit;
  return first < end ? Bits(first, end - first) : 0;
}
uint64_t FreeRanges::UnitsTouched(Range range) {
  if (range.size == 0) return 0;
  uint64_t base = range.offset / kBlock * kBlock;
  uint64_t first = (range.offset - base) / kUnit;
  uint64_t end = RoundUp(range.end() - base, kUnit) / kUnit;
  return Bits(first, end - first);
}
uint64_t FreeRanges::IdleUnits(const Block& block, Range free_range) const {
  return static_cast<uint64_t>(std::popcount(UnitsInside(free_range) & block.warm_units));
}

std::optional<FreeRanges::Taken> FreeRanges::TakeSmall(uint64_t size) {
  auto fit = small_.BestFit(size);
  if (!fit) {
    if (!AddBlock()) return std::nullopt;
    fit = small_.BestFit(size);
  }
  Block& block = BlockAt(fit->offset);
  Taken taken{.range = {fit->offset, size}};
  Range rest{taken.range.end(), fit->size - size};
  idle_units_ -= IdleUnits(block, *fit) - IdleUnits(block, rest);
  small_.Remove(taken.range);
  if (block.used_bytes == 0) --empty_blocks_;
  block.used_bytes += size;

  uint64_t cold = UnitsTouched(taken.range) & ~block.warm_units;
  block.warm_units |= cold;
  uint64_t base = fit->offset / kBlock * kBlock;
  for (; cold != 0;) {
    uint64_t first = static_cast<uint64_t>(std::countr_zero(cold));
    uint64_t count = static_cast<uint64_t>(std::countr_one(cold >> first));
    taken.cold.push_back({base + first * kUnit, count * kUnit});
    taken.cold_bytes += count * kUnit;
    cold &= ~Bits(first, count);
  }
  return taken;
}

// Takes a block from the large side: cold if possible, from the far end, so that large ranges stay whole.
bool FreeRanges::AddBlock() {
  std::optional<Range> found;
  int tries = 0;
  free_.ForLast([&](Range stretch) {
    uint64_t begin = stretch.end() / kBlock * kBlock;
    if (begin >= kBlock && begin - kBlock >= stretch.offset) found = Range{begin - kBlock, kBlock};
    return !found && ++tries < kBlockTries;
  });
  if (!found) {
    // Any stretch of this size contains an aligned block.
    auto stretch = free_.BestFit(2 * kBlock - kPage);
    if (stretch) found = Range{RoundUp(stretch->offset, kBlock), kBlock};
  }
  if (!found) return false;
  Taken taken = TakeAt(*found);
  Block block;
  block.warm_units = ~uint64_t{0};
  // A unit that is warm in part counts as warm: too much is held then by a few pages, never too little.
  for (Range cold : taken.cold) block.warm_units &= ~UnitsInside(cold);
  uint64_t warm_bytes = static_cast<uint64_t>(std::popcount(block.warm_units)) * kUnit;
  held_bytes_ += warm_bytes - (kBlock - taken.cold_bytes);
  idle_units_ += warm_bytes / kUnit;
  blocks_.emplace(found->offset / kBlock, block);
  ++empty_blocks_;
  small_.Insert(*found);
  return true;
}

void FreeRanges::ReturnSmall(Range range) {
  Block& block = BlockAt(range.offset);
  Range joined = small_.Insert(range);
  Range left{joined.offset, range.offset - joined.offset};
  Range right{range.end(), joined.end() - range.end()};
  idle_units_ += IdleUnits(block, joined) - IdleUnits(block, left) - IdleUnits(block, right);
  WEFT_CHECK(block.used_bytes >= range.size, "more was returned to a block than taken");
  block.used_bytes -= range.size;
  if (block.used_bytes == 0 && ++empty_blocks_ > 1) RetireBlock(range.offset / kBlock);
}

void FreeRanges::RetireBlock(uint64_t number) {
  Block block = blocks_.at(number);
  Range whole{number * kBlock, kBlock};
  idle_units_ -= static_cast<uint64_t>(std::popcount(block.warm_units));
  small_.Remove(whole);
  blocks_.erase(number);
  --empty_blocks_;
  free_.Insert(whole);
  for (uint64_t warm = block.warm_units; warm != 0;) {
    uint64_t first = static_cast<uint64_t>(std::countr_zero(warm));
    uint64_t count = static_cast<uint64_t>(std::countr_one(warm >> first));
    warm_.Insert({whole.offset + first * kUnit, count * kUnit}, ++stamp_);
    warm &= ~Bits(first, count);
  }
}

// ---- both -------------------------------------------------------------------------------------------------------

void FreeRanges::Return(Range range) {
  WEFT_CHECK(used_bytes_ >= range.size, "more was returned than taken");
  used_bytes_ -= range.size;
  if (blocks_.count(range.offset / kBlock) != 0) {
    ReturnSmall(range);
  } else {
    ReturnLarge(range, /*warm=*/true);
  }
}

void FreeRanges::Undo(const Taken& taken) {
  held_bytes_ -= taken.cold_bytes;
  used_bytes_ -= taken.range.size;
  if (blocks_.count(taken.range.offset / kBlock) != 0) {
    Block& block = BlockAt(taken.range.offset);
    for (Range cold : taken.cold) block.warm_units &= ~UnitsInside(cold);
    ReturnSmall(taken.range);
    return;
  }
  uint64_t at = taken.range.offset;
  free_.Insert(taken.range);
  for (Range cold : taken.cold) {
    if (at < cold.offset) warm_.Insert({at, cold.offset - at}, ++stamp_);
    at = cold.end();
  }
  if (at < taken.range.end()) warm_.Insert({at, taken.range.end() - at}, ++stamp_);
}

std::vector<Range> FreeRanges::TakeIdle(uint64_t bytes) {
  std::vector<Range> out;
  uint64_t taken = 0;
  while (taken < bytes) {
    auto oldest = warm_.Oldest();
    if (!oldest) break;
    // The end of a range goes first: what remains is where the next large object would begin.
    uint64_t size = std::min(oldest->size, RoundUp(bytes - taken, kPage));
    Range part{oldest->end() - size, size};
    warm_.Remove(part);
    free_.Remove(part);
    out.push_back(part);
    taken += size;
  }
  for (auto& [number, block] : blocks_) {
    if (taken >= bytes || idle_units_ == 0) break;
    uint64_t base = number * kBlock;
    std::vector<Range> idle;
    small_.ForOverlaps({base, kBlock}, [&](Range stretch) {
      for (uint64_t units = UnitsInside(stretch) & block.warm_units; units != 0 && taken < bytes;) {
        uint64_t first = static_cast<uint64_t>(std::countr_zero(units));
        uint64_t count = std::min<uint64_t>(static_cast<uint64_t>(std::countr_one(units >> first)),
                                            RoundUp(bytes - taken, kUnit) / kUnit);
        idle.push_back({base + first * kUnit, count * kUnit});
        taken += count * kUnit;
        units &= ~Bits(first, count);
      }
    });
    for (Range part : idle) {
      small_.Remove(part);
      block.warm_units &= ~UnitsInside(part);
      idle_units_ -= part.size / kUnit;
      if (block.used_bytes == 0) --empty_blocks_;
      block.used_bytes += part.size;
      out.push_back(part);
    }
  }
  held_bytes_ -= taken;
  punching_bytes_ += taken;
  return out;
}

void FreeRanges::Punched(const std::vector<Range>& ranges) {
  for (Range range : ranges) {
    punching_bytes_ -= range.size;
    if (blocks_.count(range.offset / kBlock) != 0) {
      ReturnSmall(range);
    } else {
      ReturnLarge(range, /*warm=*/false);
    }
  }
}

void FreeRanges::NotPunched(const std::vector<Range>& ranges) {
  for (Range range : ranges) {
    punching_bytes_ -= range.size;
    held_bytes_ += range.size;
    auto block = blocks_.find(range.offset / kBlock);
    if (block != blocks_.end()) {
      // ReturnSmall counts every warm unit of the range as newly idle.
      block->second.warm_units |= UnitsInside(range);
      ReturnSmall(range);
    } else {
      ReturnLarge(range, /*warm=*/true);
    }
  }
}

void FreeRanges::CheckInvariants() const {
  free_.CheckInvariants();
  warm_.CheckInvariants();
  small_.CheckInvariants();
  uint64_t small_free = 0, idle = 0, empty = 0;
  for (const auto& [number, block] : blocks_) {
    Range whole{number * kBlock, kBlock};
    uint64_t free_here = 0;
    small_.ForOverlaps(whole, [&](Range stretch) {
      free_here += stretch.size;
      idle += IdleUnits(block, stretch);
    });
    WEFT_CHECK(free_here + block.used_bytes == kBlock, "a block's bytes are not accounted for");
    small_free += free_here;
    empty += block.used_bytes == 0;
  }
  WEFT_CHECK(small_free == small_.bytes() && idle == idle_units_ && empty == empty_blocks_, "block totals differ");
  WEFT_CHECK(empty <= 1, "an empty block was not retired");
  WEFT_CHECK(free_.bytes() + small_.bytes() + used_bytes_ + punching_bytes_ == size_, "bytes were lost");
  free_.ForLargest([&](Range stretch) {
    WEFT_CHECK(blocks_.count(stretch.offset / kBlock) == 0, "a free stretch lies in a block");
    return true;
  });
  warm_.ForLargest([&](Range part) {
    auto stretch = free_.Containing(part.offset);
    WEFT_CHECK(stretch && part.end() <= stretch->end(), "a warm range is not free");
    return true;
  });
  WEFT_CHECK(held_bytes_ >= warm_free_bytes() && held_bytes_ <= size_, "held bytes are out of bounds");
}

}  // namespace weft::core
