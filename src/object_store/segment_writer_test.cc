#include "object_store/segment_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "base/random.h"
#include "object_store/segment_reader.h"

namespace weft::core {
namespace {

constexpr uint64_t kMegabyte = 1u << 20;
constexpr int64_t kSecond = 1'000'000'000;
const ProcessId kWriter{7};

struct WriterTest : testing::Test {
  WriterTest() { EXPECT_TRUE(writer.Create(kWriter, 256 * kMegabyte).ok()); }
  ~WriterTest() override { writer.CheckInvariants(); }
  Allocation Make(uint64_t size, int fill = 1) {
    uint64_t missing = 0;
    auto made = writer.Allocate({kWriter, ++objects}, size, Populate::kNow, &missing);
    EXPECT_TRUE(made.ok()) << made.error().message;
    if (!made.ok()) return {};
    std::memset(made->data, fill, size);
    return *made;
  }
  Location MakeSealed(uint64_t size, int fill = 1) {
    Location location = Make(size, fill).location;
    EXPECT_TRUE(writer.Seal(location));
    return location;
  }
  uint64_t MissingFor(uint64_t size) {
    uint64_t missing = 0;
    auto made = writer.Allocate({kWriter, ++objects}, size, Populate::kNow, &missing);
    EXPECT_FALSE(made.ok());
    if (!made.ok()) {
      EXPECT_EQ(made.error().kind, ErrorKind::kFull);
    }
    return missing;
  }
  uint64_t HeldByKernel() { return InspectSharedMemory(*writer.Create(kWriter, 0))->held_bytes; }

  SegmentWriter writer;
  uint64_t objects = 0;
};

TEST_F(WriterTest, AnObjectAppearsOnlyWhenSealedAndGoesWhenFreed) {
  writer.AddBudget(8 * kMegabyte);
  Allocation made = Make(100'000, 5);
  EXPECT_EQ(writer.ReadOnly(made.location), nullptr);
  EXPECT_FALSE(writer.Free(made.location));
  EXPECT_TRUE(writer.Seal(made.location));
  const uint8_t* bytes = writer.ReadOnly(made.location);
  ASSERT_NE(bytes, nullptr);
  EXPECT_NE(bytes, made.data);
  EXPECT_EQ(bytes[99'999], 5);
  EXPECT_FALSE(writer.Seal(made.location));
  EXPECT_FALSE(writer.Abort(made.location));
  EXPECT_TRUE(writer.Free(made.location));
  EXPECT_EQ(writer.ReadOnly(made.location), nullptr);
  EXPECT_FALSE(writer.Free(made.location));
}

TEST_F(WriterTest, AnAbortedAllocationIsRecycled) {
  writer.AddBudget(8 * kMegabyte);
  Allocation first = Make(100'000);
  EXPECT_TRUE(writer.Abort(first.location));
  EXPECT_FALSE(writer.Abort(first.location));
  EXPECT_FALSE(writer.Seal(first.location));
  EXPECT_EQ(Make(100'000).location.offset, first.location.offset);
}

TEST_F(WriterTest, ForeignAndImpossibleLocationsAreRefused) {
  writer.AddBudget(8 * kMegabyte);
  Location good = MakeSealed(1000);
  auto with = [&](auto change) {
    Location bad = good;
    change(bad);
    EXPECT_FALSE(writer.Free(bad));
    EXPECT_FALSE(writer.Seal(bad));
    EXPECT_FALSE(writer.Abort(bad));
    EXPECT_EQ(writer.ReadOnly(bad), nullptr);
  };
  with([](Location& it) { it.segment.value = 8; });
  with([](Location& it) { it.offset += 64; });
  with([](Location& it) { it.offset = UINT64_MAX; });
  with([](Location& it) { it.size += 1; });
  with([](Location& it) { it.size = UINT64_MAX; });
  with([](Location& it) { it.generation += kMaxSlots; });
  with([](Location& it) { it.generation = 0; });
  with([](Location& it) { it.generation = UINT64_MAX; });
  EXPECT_TRUE(writer.Free(good));
}

TEST_F(WriterTest, ObjectsAreAlignedAndMayBeEmpty) {
  writer.AddBudget(8 * kMegabyte);
  for (uint64_t size : {0u, 1u, 63u, 65u, 4097u, 65535u, 65536u, 100'001u}) {
    Allocation made = Make(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(made.data) % 64, 0u);
    EXPECT_TRUE(writer.Seal(made.location));
    EXPECT_NE(writer.ReadOnly(made.location), nullptr);
  }
}

TEST_F(WriterTest, MissingBudgetIsNamedAndThenEnough) {
  uint64_t missing = MissingFor(3 * kMegabyte);
  EXPECT_GE(missing, 3 * kMegabyte);
  writer.AddBudget(missing - 1);
  EXPECT_EQ(MissingFor(3 * kMegabyte), 1u);
  writer.AddBudget(1);
  Make(3 * kMegabyte);
  EXPECT_EQ(writer.counters().held_bytes, writer.counters().budget_bytes);
  EXPECT_EQ(HeldByKernel(), writer.counters().held_bytes);
}

TEST_F(WriterTest, WhatCanNeverFitAsksForItsWholeSize) {
  EXPECT_EQ(MissingFor(uint64_t{1} << 40), uint64_t{1} << 40);
  EXPECT_EQ(MissingFor(UINT64_MAX), UINT64_MAX);
}

TEST_F(WriterTest, OurOwnWarmPagesAreGivenUpBeforeMoreIsAskedFor) {
  writer.AddBudget(21 * kMegabyte);
  Location a = MakeSealed(5 * kMegabyte);
  MakeSealed(70'000);  // keeps the two apart
  Location b = MakeSealed(5 * kMegabyte);
  MakeSealed(70'000);
  writer.Free(a);
  writer.Free(b);
  EXPECT_EQ(writer.counters().warm_free_bytes, 10 * kMegabyte);
  MakeSealed(19 * kMegabyte);
  EXPECT_LE(writer.counters().held_bytes, 21 * kMegabyte);
  EXPECT_LE(HeldByKernel(), 21 * kMegabyte);
  EXPECT_GE(writer.counters().punched_bytes, 8 * kMegabyte);
}

TEST_F(WriterTest, AReusedRangeHasAnotherGeneration) {
  writer.AddBudget(8 * kMegabyte);
  Location first = MakeSealed(200'000);
  writer.Free(first);
  Location second = MakeSealed(200'000, 2);
  EXPECT_EQ(first.offset, second.offset);
  EXPECT_EQ(SlotOf(first.generation), SlotOf(second.generation));
  EXPECT_NE(first.generation, second.generation);
  EXPECT_EQ(writer.ReadOnly(first), nullptr);
  EXPECT_FALSE(writer.Free(first));
  EXPECT_NE(writer.ReadOnly(second), nullptr);
}

TEST_F(WriterTest, TrimGivesUnusedBudgetFirstThenPunchesAndReallyFreesMemory) {
  writer.AddBudget(40 * kMegabyte);
  Location a = MakeSealed(20 * kMegabyte);
  MakeSealed(10 * kMegabyte);
  writer.Free(a);
  uint64_t before = HeldByKernel();
  EXPECT_GE(before, 30 * kMegabyte);
  EXPECT_EQ(writer.Trim(2 * kMegabyte), 2 * kMegabyte);
  EXPECT_EQ(HeldByKernel(), before) << "unused budget should have been enough";
  EXPECT_EQ(writer.Trim(15 * kMegabyte), 15 * kMegabyte);
  EXPECT_LT(HeldByKernel(), before - 5 * kMegabyte);
  uint64_t rest = writer.Trim(1000 * kMegabyte);
  EXPECT_GE(rest, 12 * kMegabyte);
  EXPECT_EQ(HeldByKernel(), writer.counters().held_bytes);
  EXPECT_EQ(writer.counters().budget_bytes, writer.counters().held_bytes);
  EXPECT_EQ(writer.Trim(1), 0u);
}

TEST_F(WriterTest, IdleMemoryGoesAfterTenSecondsAndNotBefore) {
  writer.AddBudget(60 * kMegabyte);
  Location a = MakeSealed(50 * kMegabyte);
  Location kept = MakeSealed(100'000, 9);
  EXPECT_EQ(writer.TrimIdle(100 * kSecond, kMegabyte), 0u);
  writer.TrimIdle(101 * kSecond, 60 * kMegabyte);
  writer.Free(a);
  int64_t now = 101 * kSecond;
  uint64_t released = 0;
  int seconds = 0;
  while (released < 50 * kMegabyte && seconds < 30) {
    now += kSecond;
    ++seconds;
    if (seconds < 10) {
      EXPECT_EQ(writer.TrimIdle(now, 60 * kMegabyte), 0u);
      EXPECT_EQ(writer.counters().warm_free_bytes, 50 * kMegabyte) << seconds;
    } else {
      released += writer.TrimIdle(now, kMegabyte);
    }
  }
  EXPECT_LE(seconds, 12);
  EXPECT_LE(HeldByKernel(), kMegabyte);
  EXPECT_EQ(writer.counters().budget_bytes, kMegabyte);
  EXPECT_FALSE(writer.HasIdleMemory(kMegabyte));
  EXPECT_EQ(writer.ReadOnly(kept)[99'999], 9);
}

TEST_F(WriterTest, MemoryThatIsUsedAgainAndAgainIsNotTrimmed) {
  writer.AddBudget(60 * kMegabyte);
  for (int second = 1; second < 40; ++second) {
    Location a = MakeSealed(50 * kMegabyte);
    writer.Free(a);
    writer.TrimIdle(second * kSecond, 60 * kMegabyte);
  }
  EXPECT_EQ(writer.counters().punched_bytes, 0u);
  EXPECT_EQ(writer.counters().cold_bytes, 50 * kMegabyte);
}

TEST_F(WriterTest, TheIndexOfManyObjectsGoesBackToo) {
  writer.AddBudget(60 * kMegabyte);
  std::vector<Location> all;
  for (int i = 0; i < 100'000; ++i) all.push_back(MakeSealed(64, i % 100));
  EXPECT_GE(HeldByKernel(), 12 * kMegabyte);
  for (size_t i = 1; i < all.size(); ++i) writer.Free(all[i]);
  writer.Trim(UINT64_MAX);
  EXPECT_LE(HeldByKernel(), 100'000u);
  EXPECT_EQ(HeldByKernel(), writer.counters().held_bytes);
  // The generations of punched entries are not used again.
  writer.AddBudget(2 * kMegabyte);
  for (size_t i = 1; i < 1000; ++i) {
    Location location = MakeSealed(64);
    EXPECT_EQ(writer.ReadOnly(all[i]), nullptr);
    EXPECT_FALSE(writer.Free(all[i]));
    EXPECT_NE(location.generation, all[i].generation);
  }
  EXPECT_EQ(writer.ReadOnly(all[0])[0], 0);
}

TEST_F(WriterTest, FillCopiesToColdWarmAndMixedPages) {
  writer.AddBudget(64 * kMegabyte);
  std::vector<uint8_t> source(21 * kMegabyte);
  Random random(3);
  for (auto& byte : source) byte = static_cast<uint8_t>(random.Next());
  uint64_t missing = 0;
  // Cold, then the same range warm, then a larger one that extends it.
  for (uint64_t size : {20 * kMegabyte, 20 * kMegabyte, 21 * kMegabyte}) {
    auto made = writer.Allocate({kWriter, 1}, size, Populate::kWhileCopying, &missing);
    ASSERT_TRUE(made.ok());
    ASSERT_TRUE(writer.Fill(*made, 0, source.data(), 100).ok());
    ASSERT_TRUE(writer.Fill(*made, 100, source.data() + 100, size - 100).ok());
    ASSERT_TRUE(writer.Seal(made->location));
    EXPECT_EQ(std::memcmp(writer.ReadOnly(made->location), source.data(), size), 0);
    EXPECT_EQ(HeldByKernel(), writer.counters().held_bytes);
    EXPECT_TRUE(writer.Free(made->location));
  }
  EXPECT_EQ(writer.counters().cold_bytes, 21 * kMegabyte);
}

TEST_F(WriterTest, FindsWhatItHasWrittenForOthers) {
  writer.AddBudget(8 * kMegabyte);
  const ProcessId ann{8}, bob{9};
  auto make = [&](ObjectId id, bool seal) {
    uint64_t missing = 0;
    Location location = writer.Allocate(id, 1000, Populate::kNow, &missing)->location;
    if (seal) {
      EXPECT_TRUE(writer.Seal(location));
    }
    return location;
  };
  auto of = [](ProcessId owner) { return [owner](ProcessId other) { return other == owner; }; };
  MakeSealed(1000);
  const Location first = make({ann, 1}, true), second = make({ann, 2}, true), bobs = make({bob, 1}, true);
  make({ann, 3}, false);
  writer.Free(second);
  EXPECT_EQ(writer.ObjectsOf(of(ann)), (std::vector<SealedObject>{{{ann, 1}, first}}));
  const Location late = make({ann, 4}, true);
  EXPECT_EQ(writer.ObjectsOf(of(ann)).size(), 2u);
  writer.Free(late);
  EXPECT_EQ(writer.ObjectsOf(of(bob)), (std::vector<SealedObject>{{{bob, 1}, bobs}}));
}

TEST(SegmentWriterTest, NothingCanBeDoneBeforeCreate) {
  SegmentWriter writer;
  uint64_t missing = 0;
  EXPECT_EQ(writer.Allocate({kWriter, 1}, 10, Populate::kNow, &missing).error().kind, ErrorKind::kInvalid);
  EXPECT_FALSE(writer.Free({{7}, 0, 0, 1}));
  EXPECT_EQ(writer.ReadOnly({{7}, 0, 0, 1}), nullptr);
  writer.AddBudget(100);
  EXPECT_EQ(writer.Trim(1000), 100u);
  EXPECT_FALSE(writer.Create(kWriter, 12345).ok());
  EXPECT_FALSE(writer.Create(ProcessId{}, 64 * kMegabyte).ok());
  EXPECT_FALSE(writer.created());
}

TEST(SegmentWriterTest, AFullIndexIsAnErrorThatFreeingMends) {
  SegmentWriter writer;
  ASSERT_TRUE(writer.Create(kWriter, kMinSegmentBytes).ok());
  writer.AddBudget(kMinSegmentBytes);
  uint64_t missing = 0;
  std::vector<Location> all;
  while (true) {
    auto made = writer.Allocate({kWriter, 1}, 1, Populate::kNow, &missing);
    if (!made.ok()) {
      EXPECT_EQ(made.error().kind, ErrorKind::kFull);
      EXPECT_EQ(missing, 0u);
      break;
    }
    all.push_back(made->location);
  }
  EXPECT_EQ(all.size(), SegmentLayout::ForSize(kMinSegmentBytes)->index_capacity);
  EXPECT_TRUE(writer.Abort(all[5]));
  EXPECT_TRUE(writer.Allocate({kWriter, 1}, 1, Populate::kNow, &missing).ok());
  writer.CheckInvariants();
}

// Threads put, read and free while others trim; nobody ever sees bytes of another object.
TEST(SegmentWriterTest, ManyThreads) {
  SegmentWriter writer;
  ASSERT_TRUE(writer.Create(kWriter, 256 * kMegabyte).ok());
  writer.AddBudget(4 * kMegabyte);
  SegmentReader reader;
  ASSERT_TRUE(reader.Open(writer.segment(), std::move(*ReopenReadOnly(*writer.Create(kWriter, 0)))).ok());
  std::atomic<int> wrong{0};
  auto work = [&](uint64_t seed) {
    Random random(seed);
    std::vector<Location> mine;
    for (int i = 0; i < 600; ++i) {
      if (mine.size() > 10 || (random.Chance(40) && !mine.empty())) {
        uint64_t at = random.Below(mine.size());
        auto resolved = reader.Resolve(mine[at]);
        if (!resolved.ok() || resolved.value() == nullptr) {
          ++wrong;
        } else {
          uint8_t expected = static_cast<uint8_t>(mine[at].generation >> kSlotBits);
          uint64_t size = mine[at].size;
          for (uint64_t j = 0; j < size; j += 997) wrong += resolved.value()[j] != expected;
          reader.ReleaseView(mine[at].segment);
        }
        wrong += !writer.Free(mine[at]);
        wrong += reader.Resolve(mine[at]).ok();
        mine[at] = mine.back();
        mine.pop_back();
        continue;
      }
      uint64_t size = random.Below(random.Chance(80) ? 5000 : 300'000), missing = 0;
      auto made = writer.Allocate({kWriter, seed}, size, Populate::kWhileCopying, &missing);
      if (!made.ok()) {
        writer.AddBudget(missing);
        continue;
      }
      std::vector<uint8_t> bytes(size, static_cast<uint8_t>(made->location.generation >> kSlotBits));
      wrong += !writer.Fill(*made, 0, bytes.data(), size).ok();
      wrong += !writer.Seal(made->location);
      mine.push_back(made->location);
    }
    for (const Location& location : mine) wrong += !writer.Free(location);
  };
  std::atomic<bool> done{false};
  std::thread trimmer([&] {
    int64_t now = 1;
    while (!done) {
      writer.Trim(200'000);
      writer.TrimIdle(now += kSecond, 0);
      writer.counters();
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 4; ++seed) threads.emplace_back(work, seed);
  for (auto& thread : threads) thread.join();
  done = true;
  trimmer.join();
  EXPECT_EQ(wrong, 0);
  writer.CheckInvariants();
  EXPECT_EQ(writer.counters().objects, 0u);
  writer.Trim(UINT64_MAX);
  EXPECT_LE(InspectSharedMemory(*writer.Create(kWriter, 0))->held_bytes, writer.counters().held_bytes);
}

}  // namespace
}  // namespace weft::core
