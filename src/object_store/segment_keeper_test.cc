#include "object_store/segment_keeper.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/random.h"
#include "object_store/segment_reader.h"
#include "object_store/segment_writer.h"

namespace weft::core {
namespace {

constexpr uint64_t kMegabyte = 1u << 20;
constexpr uint64_t kSize = 64 * kMegabyte;
const ProcessId kWriter{7};
const SegmentId kSegment{7};

struct KeeperTest : testing::Test {
  KeeperTest() {
    fd = *writer->Create(kWriter, kSize);
    writer->AddBudget(32 * kMegabyte);
  }
  Location Make(uint64_t size, bool seal = true, int fill = 1) {
    uint64_t missing = 0;
    auto made = writer->Allocate({kWriter, ++objects}, size, Populate::kNow, &missing);
    EXPECT_TRUE(made.ok());
    std::memset(made->data, fill, size);
    if (seal) {
      EXPECT_TRUE(writer->Seal(made->location));
    }
    return made->location;
  }
  UniqueFd Duplicate() { return UniqueFd(dup(fd)); }
  Status Adopt() { return keeper.Adopt(kSegment, Duplicate(), kSize); }

  std::unique_ptr<SegmentWriter> writer = std::make_unique<SegmentWriter>();
  SegmentKeeper keeper;
  int fd = -1;
  uint64_t objects = 0;
};

TEST_F(KeeperTest, ObjectsOutliveTheirWriter) {
  ASSERT_TRUE(Adopt().ok());
  Location large = Make(200'000, true, 6), small = Make(100, true, 7);
  Make(3 * kMegabyte, /*seal=*/false);
  writer->Free(Make(2 * kMegabyte));
  writer.reset();
  auto estate = keeper.WriterDied(kSegment);
  ASSERT_EQ(estate.objects.size(), 2u);
  auto is = [&](const Location& location, uint64_t index) {
    return std::any_of(estate.objects.begin(), estate.objects.end(), [&](const SealedObject& object) {
      return object.location == location && object.object == ObjectId{kWriter, index};
    });
  };
  EXPECT_TRUE(is(large, 1) && is(small, 2));
  EXPECT_LE(estate.surviving_bytes, 250'000u) << "what was not sealed should be gone";
  EXPECT_EQ(estate.surviving_bytes, keeper.HeldBytes(kSegment));

  SegmentReader reader;
  ASSERT_TRUE(reader.Open(kSegment, std::move(*keeper.OpenReadOnly(kSegment))).ok());
  EXPECT_EQ((*reader.Resolve(large))[199'999], 6);
  EXPECT_EQ((*reader.Resolve(small))[99], 7);

  uint64_t freed = keeper.FreeDead(large);
  EXPECT_GE(freed, 196'608u);
  EXPECT_EQ(keeper.FreeDead(large), 0u);
  EXPECT_EQ(reader.Resolve(large).error().kind, ErrorKind::kGone);
  EXPECT_EQ((*reader.Resolve(small))[99], 7);
  freed += keeper.FreeDead(small);
  EXPECT_EQ(freed, estate.surviving_bytes);
  EXPECT_EQ(keeper.segment_count(), 0u);
  EXPECT_EQ(keeper.OpenReadOnly(kSegment).error().kind, ErrorKind::kGone);
}

TEST_F(KeeperTest, AWriterThatLeftNothingLeavesNoSegment) {
  ASSERT_TRUE(Adopt().ok());
  Make(100'000, false);
  EXPECT_TRUE(keeper.WriterDied(kSegment).objects.empty());
  EXPECT_EQ(keeper.segment_count(), 0u);
  EXPECT_TRUE(keeper.WriterDied(kSegment).objects.empty());
}

TEST_F(KeeperTest, KnowsWhoseObjectsADeadWriterHasLeft) {
  ASSERT_TRUE(Adopt().ok());
  const ProcessId other{(uint64_t{3} << 32) + 5};
  auto make = [&](ObjectId id, uint64_t index) {
    uint64_t missing = 0;
    Location location = writer->Allocate(id, 5000, Populate::kNow, &missing)->location;
    EXPECT_TRUE(writer->Seal(location, index));
    return location;
  };
  const Location own = make({kWriter, kForSession}, 4), first = make({other, 1}, 0), second = make({other, 2}, 0);
  EXPECT_TRUE(keeper.ObjectsOf(other).empty()) << "while the writer lives, it knows best";
  writer.reset();
  EXPECT_EQ(keeper.WriterDied(kSegment).objects.size(), 3u);
  EXPECT_EQ(keeper.ObjectsOf(kWriter), (std::vector<SealedObject>{{{kWriter, 4}, own}})) << "as it was sealed";
  std::vector<SealedObject> others = keeper.ObjectsOf(other);
  std::sort(others.begin(), others.end());
  EXPECT_EQ(others, (std::vector<SealedObject>{{{other, 1}, first}, {{other, 2}, second}}));
  EXPECT_EQ(keeper.ObjectsOf(NodeNumber{3}).size(), 2u);
  EXPECT_TRUE(keeper.ObjectsOf(NodeNumber{2}).empty());
  keeper.FreeDead(first);
  EXPECT_EQ(keeper.ObjectsOf(other), (std::vector<SealedObject>{{{other, 2}, second}}));
  keeper.Forget(kSegment);
  EXPECT_TRUE(keeper.ObjectsOf(other).empty());
  EXPECT_TRUE(keeper.ObjectsOf(kWriter).empty());
}

TEST_F(KeeperTest, HiddenObjectsAreGoneForReadersAndStillToBeFreed) {
  ASSERT_TRUE(Adopt().ok());
  Location hidden = Make(100'000), other = Make(100'000), outdated = Make(100'000);
  writer->Free(outdated);
  SegmentReader reader;
  ASSERT_TRUE(reader.Open(kSegment, std::move(*keeper.OpenReadOnly(kSegment))).ok());
  EXPECT_FALSE(keeper.Hide(outdated));
  EXPECT_FALSE(keeper.Hide({kSegment, hidden.offset, hidden.size + 1, hidden.generation}));
  EXPECT_TRUE(reader.Resolve(hidden).ok());
  EXPECT_TRUE(keeper.Hide(hidden));
  EXPECT_FALSE(keeper.Hide(hidden));
  EXPECT_EQ(reader.Resolve(hidden).error().kind, ErrorKind::kGone);
  EXPECT_EQ(writer->ReadOnly(hidden), nullptr);
  EXPECT_TRUE(reader.Resolve(other).ok());
  EXPECT_TRUE(writer->Free(hidden)) << "the writer knows by itself what it has";
  EXPECT_FALSE(writer->Free(hidden));

  writer.reset();
  EXPECT_EQ(keeper.WriterDied(kSegment).objects.size(), 1u);
  EXPECT_TRUE(keeper.Hide(other));
  EXPECT_EQ(reader.Resolve(other).error().kind, ErrorKind::kGone);
  EXPECT_GE(keeper.FreeDead(other), 98'304u);
  EXPECT_EQ(keeper.segment_count(), 0u);
}

TEST_F(KeeperTest, WhatWasHiddenGoesWithItsWriter) {
  ASSERT_TRUE(Adopt().ok());
  Location hidden = Make(2 * kMegabyte), kept = Make(kMegabyte);
  EXPECT_TRUE(keeper.Hide(hidden));
  ASSERT_GE(keeper.HeldBytes(kSegment), 3 * kMegabyte);
  writer.reset();  // before it has handled ObjectsFreed
  auto estate = keeper.WriterDied(kSegment);
  ASSERT_EQ(estate.objects.size(), 1u);
  EXPECT_EQ(estate.objects[0].location, kept);
  EXPECT_LT(keeper.HeldBytes(kSegment), 2 * kMegabyte);
  EXPECT_EQ(estate.surviving_bytes, keeper.HeldBytes(kSegment));
  EXPECT_EQ(keeper.FreeDead(hidden), 0u);  // the message that was on its way
  EXPECT_GE(keeper.FreeDead(kept), kMegabyte);
  EXPECT_EQ(keeper.segment_count(), 0u);
}

TEST_F(KeeperTest, NothingIsFreedWhileTheWriterLives) {
  ASSERT_TRUE(Adopt().ok());
  Location location = Make(100'000);
  EXPECT_EQ(keeper.FreeDead(location), 0u);
  EXPECT_NE(writer->ReadOnly(location), nullptr);
  EXPECT_GE(keeper.HeldBytes(kSegment), 100'000u);
}

TEST_F(KeeperTest, SmallObjectsShareAPageUntilTheLastOfItGoes) {
  ASSERT_TRUE(Adopt().ok());
  std::vector<Location> all;
  for (int i = 0; i < 5000; ++i) all.push_back(Make(100, true, i % 251));
  auto estate = keeper.WriterDied(kSegment);
  ASSERT_EQ(estate.objects.size(), all.size());
  SegmentReader reader;
  ASSERT_TRUE(reader.Open(kSegment, std::move(*keeper.OpenReadOnly(kSegment))).ok());
  Random random(4);
  std::vector<size_t> order(all.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.Below(i + 1)]);
  uint64_t freed = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i % 500 == 0) {
      for (size_t j = i; j < order.size(); ++j) {
        auto bytes = reader.Resolve(all[order[j]]);
        ASSERT_TRUE(bytes.ok());
        ASSERT_EQ((*bytes)[99], order[j] % 251);
      }
    }
    freed += keeper.FreeDead(all[order[i]]);
    if (i + 1 == order.size() / 2 * 2 - 10) {
      EXPECT_LE(keeper.HeldBytes(kSegment), 400'000u);
    }
  }
  EXPECT_EQ(freed, estate.surviving_bytes);
  EXPECT_EQ(keeper.segment_count(), 0u);
}

TEST_F(KeeperTest, WhatIsNoSegmentIsRefused) {
  EXPECT_FALSE(keeper.Adopt(kSegment, UniqueFd(), kSize).ok());
  EXPECT_FALSE(keeper.Adopt(kSegment, Duplicate(), kSize * 2).ok());
  EXPECT_FALSE(keeper.Adopt(kSegment, Duplicate(), 0).ok());
  EXPECT_FALSE(keeper.Adopt(SegmentId{8}, Duplicate(), kSize).ok()) << "another writer's";
  EXPECT_FALSE(keeper.Adopt(kSegment, std::move(*ReopenReadOnly(fd)), kSize).ok()) << "cannot be punched";
  EXPECT_FALSE(keeper.Adopt(kSegment, std::move(*CreateSharedMemory("x", kSize)), kSize).ok()) << "no header";
  UniqueFd unsealed(memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), kSize), 0);
  EXPECT_FALSE(keeper.Adopt(kSegment, std::move(unsealed), kSize).ok());
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  UniqueFd other_end(ends[1]);
  EXPECT_FALSE(keeper.Adopt(kSegment, UniqueFd(ends[0]), kSize).ok());
  EXPECT_TRUE(Adopt().ok());
  EXPECT_FALSE(Adopt().ok()) << "twice";
  EXPECT_EQ(keeper.segment_count(), 1u);
}

// A writer may have filled its index with anything before it died.
TEST_F(KeeperTest, AHostileIndexIsReadWithoutHarm) {
  ASSERT_TRUE(Adopt().ok());
  SegmentLayout layout = *SegmentLayout::ForSize(kSize);
  Location good = Make(100'000, true, 5);
  Random random(11);
  uint64_t interesting[] = {0,
                            1,
                            layout.data_offset,
                            layout.data_offset + 64,
                            kSize - 64,
                            kSize,
                            uint64_t{1} << 62,
                            UINT64_MAX,
                            UINT64_MAX - 63,
                            good.offset,
                            good.offset + 64};
  auto pick = [&] { return random.Chance(70) ? interesting[random.Below(std::size(interesting))] : random.Next(); };
  for (uint64_t slot = 100; slot < 3000; ++slot) {
    uint64_t state = random.Chance(80) ? MakeGeneration(1 + random.Below(5), slot) : random.Next();
    IndexEntryBytes entry{state, pick(), pick(), pick(), pick()};
    ASSERT_TRUE(WriteShared(fd, layout.EntryOffset(slot), &entry, sizeof entry).ok());
  }
  auto estate = keeper.WriterDied(kSegment);
  uint64_t end = 0;
  for (const SealedObject& object : estate.objects) {
    EXPECT_TRUE(layout.Contains(object.location));
    EXPECT_GE(object.location.offset, end) << "overlapping objects would free each other's pages";
    end = object.location.offset + object.location.size;
  }
  for (int i = 0; i < 1000; ++i) {
    keeper.FreeDead({kSegment, pick(), pick(), random.Chance(50) ? MakeGeneration(1, random.Below(5000)) : pick()});
  }
  for (const SealedObject& object : estate.objects) keeper.FreeDead(object.location);
  EXPECT_EQ(keeper.segment_count(), 0u);
}

}  // namespace
}  // namespace weft::core
