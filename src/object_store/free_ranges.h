// Decides which bytes of a segment's data an object gets, and which free pages are given back to the system. Pure.
//
// Called by SegmentWriter, under its mutex. Does not touch memory, count against a budget, or read the clock.
//
// A page is *warm* if it exists (it was written and not punched since), otherwise *cold*. Warm pages cost nothing to
// write again; cold ones cost a fault and count against the budget. So requests go to warm pages if possible.
//
// Large objects (64 kB and more) get whole pages. `free_` holds every free stretch, `warm_` the warm parts of them. A
// request takes the smallest warm range that fits, or else extends one of the largest warm ranges into cold space, or
// else takes the smallest free stretch that fits.
//
// Small objects live in an arena of their own, so that they neither split large warm ranges nor share pages with large
// objects. It grows by blocks of 1 MB from the far end of the data; a block becomes warm by units of 16 kB, and units
// that are entirely free can be given back one by one: a forgotten small object keeps 16 kB, not a block.
// A block that is entirely free goes back to the large side, except one that is kept against flutter.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "object_store/range_set.h"

namespace weft::core {

class FreeRanges {
 public:
  static constexpr uint64_t kPage = 4096;
  static constexpr uint64_t kAlignment = 64;         // of every object
  static constexpr uint64_t kSmallLimit = 64 << 10;  // from here on an object gets whole pages
  static constexpr uint64_t kBlock = 1 << 20;
  static constexpr uint64_t kUnit = 16 << 10;  // 64 of them to a block, so a block's warm units are one word

  // A range that was taken, and which parts of it have to be populated.
  struct Taken {
    Range range;
    std::vector<Range> cold;  // for a small object whole units, which may reach beyond its range
    uint64_t cold_bytes = 0;
  };

  // `size` is a multiple of kBlock.
  explicit FreeRanges(uint64_t size);

  // Room for an object of this size, or nullopt if no free stretch is long enough. Cold pages in it count as warm from
  // now on. `spare_bytes` may become warm without giving up other warm pages: with enough of it, a middle-sized object
  // does not break into a much larger warm range.
  std::optional<Taken> Take(uint64_t object_size, uint64_t spare_bytes);
  // Reverts the last Take; nothing of it was populated.
  void Undo(const Taken& taken);
  // The object in it is gone. Its pages stay warm.
  void Return(Range range);

  // Free warm pages to be punched, the longest idle first, at least so many bytes if warm_free_bytes() allows. They
  // cannot be used until Punched or NotPunched is called with them, and no longer count as held.
  std::vector<Range> TakeIdle(uint64_t bytes);
  void Punched(const std::vector<Range>& ranges);
  void NotPunched(const std::vector<Range>& ranges);

  // What an object of this size takes up.
  static Range Rounded(uint64_t offset, uint64_t object_size);

  uint64_t held_bytes() const { return held_bytes_; }  // warm pages, free or not
  uint64_t warm_free_bytes() const { return warm_.bytes() + idle_units_ * kUnit; }
  uint64_t used_bytes() const { return used_bytes_; }  // taken and not returned
  uint64_t size() const { return size_; }
  size_t range_count() const { return free_.count() + small_.count(); }
  void CheckInvariants() const;

 private:
  struct Block {
    uint64_t used_bytes = 0;  // by objects, and by units that are being punched
    uint64_t warm_units = 0;  // one bit each
  };

  std::optional<Taken> TakeLarge(uint64_t size, uint64_t spare_bytes);
  std::optional<Taken> TakeSmall(uint64_t size);
  Taken TakeAt(Range range);
  bool AddBlock();
  void RetireBlock(uint64_t number);
  void ReturnSmall(Range range);
  void ReturnLarge(Range range, bool warm);
  Block& BlockAt(uint64_t offset) { return blocks_.at(offset / kBlock); }
  uint64_t IdleUnits(const Block& block, Range free_range) const;
  static uint64_t UnitsInside(Range range);
  static uint64_t UnitsTouched(Range range);

  const uint64_t size_;
  RangeSet free_;                     // the large side: every free stretch
  RangeSet warm_{0, /*aged=*/true};   // the warm parts of free_
  RangeSet small_{kBlock};            // the free bytes of the blocks
  std::map<uint64_t, Block> blocks_;  // by offset / kBlock
  uint64_t empty_blocks_ = 0;
  uint64_t idle_units_ = 0;  // warm units of blocks that are entirely free
  uint64_t held_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  uint64_t punching_bytes_ = 0;
  uint64_t stamp_ = 0;  // a clock that ticks with every Return
};

}  // namespace weft::core
