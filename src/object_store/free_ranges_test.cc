#include "object_store/free_ranges.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/random.h"

namespace weft::core {
namespace {

constexpr uint64_t kMegabyte = 1u << 20;
constexpr uint64_t kPage = FreeRanges::kPage;

// What FreeRanges is told to do, done page by page and object by object.
class Model {
 public:
  explicit Model(uint64_t size) : ranges_(size), exists_(size / kPage) {}

  // False if there was no room.
  bool Take(uint64_t size, uint64_t spare, bool undo) {
    uint64_t held = ranges_.held_bytes();
    auto taken = ranges_.Take(size, spare);
    if (!taken) return false;
    Range range = taken->range;
    EXPECT_EQ(range, FreeRanges::Rounded(range.offset, size));
    EXPECT_EQ(range.offset % (size < FreeRanges::kSmallLimit ? FreeRanges::kAlignment : kPage), 0u);
    EXPECT_LE(range.end(), ranges_.size());
    auto next = objects_.lower_bound(range.offset);
    EXPECT_TRUE(next == objects_.end() || range.end() <= next->first) << "overlaps its right neighbour";
    EXPECT_TRUE(next == objects_.begin() || std::prev(next)->second.end() <= range.offset) << "overlaps its left one";
    if (undo) {
      ranges_.Undo(*taken);
      EXPECT_LE(ranges_.held_bytes(), held + FreeRanges::kBlock);  // at most a new block was rounded up
      return true;
    }
    uint64_t cold = 0;
    for (Range part : taken->cold) {
      cold += part.size;
      for (uint64_t page = part.offset / kPage; page < part.end() / kPage; ++page) exists_[page] = true;
    }
    EXPECT_EQ(cold, taken->cold_bytes);
    // Large ranges are exact. A small one may lie in a unit that was counted warm although a page of it was not.
    if (size >= FreeRanges::kSmallLimit) {
      for (uint64_t page = range.offset / kPage; page < range.end() / kPage; ++page) {
        if (!exists_[page]) ++uncounted_;
        exists_[page] = true;
      }
    }
    objects_[range.offset] = range;
    return true;
  }
  void Return(Random& random) {
    if (objects_.empty()) return;
    auto it = objects_.lower_bound(random.Below(ranges_.size()));
    if (it == objects_.end()) it = objects_.begin();
    Range range = it->second;
    objects_.erase(it);
    ranges_.Return(range);
  }
  void Punch(uint64_t bytes, bool really) {
    uint64_t free_before = ranges_.warm_free_bytes(), held_before = ranges_.held_bytes();
    auto victims = ranges_.TakeIdle(bytes);
    uint64_t sum = 0;
    for (Range victim : victims) {
      EXPECT_EQ(victim.offset % kPage, 0u);
      EXPECT_EQ(victim.size % kPage, 0u);
      sum += victim.size;
      auto next = objects_.lower_bound(victim.offset);
      EXPECT_TRUE(next == objects_.end() || victim.end() <= next->first) << "an object would be punched";
      EXPECT_TRUE(next == objects_.begin() || std::prev(next)->second.end() <= victim.offset);
      if (!really) continue;
      for (uint64_t page = victim.offset / kPage; page < victim.end() / kPage; ++page) exists_[page] = false;
    }
    EXPECT_GE(sum, std::min(bytes, free_before));
    EXPECT_EQ(ranges_.held_bytes(), held_before - sum);
    ranges_.CheckInvariants();
    if (really) {
      ranges_.Punched(victims);
    } else {
      ranges_.NotPunched(victims);
      EXPECT_EQ(ranges_.held_bytes(), held_before);
      EXPECT_EQ(ranges_.warm_free_bytes(), free_before);
    }
  }
  void Check() {
    ranges_.CheckInvariants();
    uint64_t pages = 0;
    for (bool exists : exists_) pages += exists;
    EXPECT_GE(ranges_.held_bytes() + uncounted_ * kPage, pages * kPage) << "pages exist that nobody counts";
    uint64_t used = 0;
    for (const auto& [offset, range] : objects_) used += range.size;
    EXPECT_EQ(used, ranges_.used_bytes());
  }
  bool empty() const { return objects_.empty(); }
  FreeRanges& ranges() { return ranges_; }
  // Pages that were taken as warm although they did not exist; a few, from units that were warm in part.
  uint64_t uncounted() const { return uncounted_; }

 private:
  FreeRanges ranges_;
  std::vector<bool> exists_;
  std::map<uint64_t, Range> objects_;
  uint64_t uncounted_ = 0;
};

TEST(FreeRangesTest, RandomSequencesAgreeWithAModel) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Model model(32 * kMegabyte);
    uint64_t largest = uint64_t{1} << (6 + random.Below(18));  // some seeds have small objects only
    for (int step = 0; step < 1500; ++step) {
      uint64_t what = random.Below(100);
      if (what < 50) {
        uint64_t size = random.Below(random.Chance(50) ? largest : std::min<uint64_t>(largest, 5000));
        model.Take(size, random.Chance(50) ? 64 * kMegabyte : 0, random.Chance(10));
      } else if (what < 94) {
        model.Return(random);
      } else {
        model.Punch(random.Below(4 * kMegabyte), random.Chance(80));
      }
      if (step % 50 == 0) model.Check();
    }
    while (!model.empty()) model.Return(random);
    model.Check();
    EXPECT_EQ(model.ranges().held_bytes(), model.ranges().warm_free_bytes());
    model.Punch(UINT64_MAX / 2, true);
    model.Check();
    EXPECT_EQ(model.ranges().held_bytes(), 0u);
    // At the end everything is one stretch again.
    EXPECT_TRUE(model.Take(32 * kMegabyte, 0, true));
    EXPECT_LE(model.uncounted(), 200u);
  }
}

TEST(FreeRangesTest, AFreedRangeIsTakenAgainWhileItIsWarm) {
  FreeRanges ranges(256 * kMegabyte);
  auto first = ranges.Take(50 * kMegabyte, 0);
  EXPECT_EQ(first->cold_bytes, 50 * kMegabyte);
  auto second = ranges.Take(50 * kMegabyte, 0);
  ranges.Return(first->range);
  auto third = ranges.Take(50 * kMegabyte - 5000, 0);
  EXPECT_EQ(third->range.offset, first->range.offset);
  EXPECT_EQ(third->cold_bytes, 0u);
  EXPECT_EQ(ranges.held_bytes(), 100 * kMegabyte);
}

TEST(FreeRangesTest, EightArraysInRotationNeedNoFreshPages) {
  FreeRanges ranges(1024 * kMegabyte);
  std::vector<Range> kept;
  for (int i = 0; i < 100; ++i) {
    auto taken = ranges.Take(20 * kMegabyte + 64, UINT64_MAX);
    ASSERT_TRUE(taken);
    if (i >= 9) {
      EXPECT_EQ(taken->cold_bytes, 0u) << i;
    }
    kept.push_back(taken->range);
    if (kept.size() > 8) {
      ranges.Return(kept.front());
      kept.erase(kept.begin());
    }
  }
}

TEST(FreeRangesTest, AGrowingObjectExtendsAWarmRange) {
  FreeRanges ranges(256 * kMegabyte);
  Range first = ranges.Take(40 * kMegabyte, 0)->range;
  ranges.Return(first);
  auto larger = ranges.Take(41 * kMegabyte, 0);
  EXPECT_EQ(larger->range.offset, first.offset);
  EXPECT_EQ(larger->cold_bytes, kMegabyte);
  EXPECT_EQ(larger->cold, (std::vector<Range>{{first.end(), kMegabyte}}));
}

TEST(FreeRangesTest, UndoLeavesWhatWasWarmWarm) {
  FreeRanges ranges(256 * kMegabyte);
  ranges.Return(ranges.Take(40 * kMegabyte, 0)->range);
  auto larger = ranges.Take(41 * kMegabyte, 0);
  ranges.Undo(*larger);
  ranges.CheckInvariants();
  EXPECT_EQ(ranges.held_bytes(), 40 * kMegabyte);
  EXPECT_EQ(ranges.warm_free_bytes(), 40 * kMegabyte);
}

TEST(FreeRangesTest, MiddlingAndSmallObjectsDoNotBreakIntoALargeWarmRange) {
  FreeRanges ranges(256 * kMegabyte);
  Range large = ranges.Take(100 * kMegabyte, 0)->range;
  ranges.Return(large);
  auto middling = ranges.Take(200'000, 64 * kMegabyte);
  EXPECT_GE(middling->range.offset, large.end());
  auto small = ranges.Take(100, 64 * kMegabyte);
  EXPECT_GE(small->range.offset, large.end());
  EXPECT_EQ(ranges.Take(100 * kMegabyte, 0)->cold_bytes, 0u);
}

TEST(FreeRangesTest, WithoutSpareBudgetAMiddlingObjectUsesTheWarmRange) {
  FreeRanges ranges(256 * kMegabyte);
  ranges.Return(ranges.Take(100 * kMegabyte, 0)->range);
  EXPECT_EQ(ranges.Take(200'000, 0)->cold_bytes, 0u);
}

TEST(FreeRangesTest, AForgottenSmallObjectKeepsOneUnit) {
  FreeRanges ranges(64 * kMegabyte);
  std::vector<Range> all;
  for (int i = 0; i < 10'000; ++i) all.push_back(ranges.Take(1000, 0)->range);
  EXPECT_GE(ranges.held_bytes(), 9 * kMegabyte);
  for (size_t i = 0; i < all.size(); ++i) {
    if (i != 4321) ranges.Return(all[i]);
  }
  ranges.Punched(ranges.TakeIdle(ranges.warm_free_bytes()));
  ranges.CheckInvariants();
  EXPECT_LE(ranges.held_bytes(), 2 * FreeRanges::kUnit);
  ranges.Return(all[4321]);
  ranges.Punched(ranges.TakeIdle(ranges.warm_free_bytes()));
  EXPECT_EQ(ranges.held_bytes(), 0u);
}

TEST(FreeRangesTest, WhatLaysIdleLongestIsPunchedFirst) {
  FreeRanges ranges(256 * kMegabyte);
  Range a = ranges.Take(10 * kMegabyte, 0)->range;
  Range gap = ranges.Take(kMegabyte, 0)->range;
  Range b = ranges.Take(10 * kMegabyte, 0)->range;
  Range gap2 = ranges.Take(kMegabyte, 0)->range;
  ranges.Return(b);
  ranges.Return(a);
  auto victims = ranges.TakeIdle(4 * kMegabyte);
  ASSERT_EQ(victims.size(), 1u);
  EXPECT_EQ(victims[0], (Range{b.end() - 4 * kMegabyte, 4 * kMegabyte}));
  ranges.Punched(victims);
  ranges.Return(gap);
  ranges.Return(gap2);
  ranges.CheckInvariants();
}

TEST(FreeRangesTest, NothingFitsIntoAFullSegment) {
  FreeRanges ranges(4 * kMegabyte);
  EXPECT_FALSE(ranges.Take(4 * kMegabyte + 1, 0));
  EXPECT_FALSE(ranges.Take(UINT64_MAX, 0));
  auto all = ranges.Take(4 * kMegabyte, 0);
  ASSERT_TRUE(all);
  EXPECT_FALSE(ranges.Take(0, 0));
  EXPECT_FALSE(ranges.Take(100'000, 0));
  ranges.Return(all->range);
  EXPECT_TRUE(ranges.Take(0, 0));
}

TEST(FreeRangesTest, AMillionObjectsComeAndGoInEveryOrder) {
  // Quadratic work would take minutes and run into the test's time limit.
  FreeRanges ranges(1024 * kMegabyte);
  std::vector<Range> all;
  all.reserve(1'000'000);
  Random random(5);
  for (int i = 0; i < 1'000'000; ++i) all.push_back(ranges.Take(64 + random.Below(192), 0)->range);
  for (size_t i = all.size() - 1; i > 0; --i) std::swap(all[i], all[random.Below(i + 1)]);
  for (size_t i = 0; i < all.size(); i += 2) ranges.Return(all[i]);
  for (size_t i = 0; i < all.size(); i += 2) all[i] = ranges.Take(64 + random.Below(192), 0)->range;
  for (Range range : all) ranges.Return(range);
  ranges.CheckInvariants();
  EXPECT_EQ(ranges.used_bytes(), 0u);
  EXPECT_LE(ranges.range_count(), 3u);
}

}  // namespace
}  // namespace weft::core
