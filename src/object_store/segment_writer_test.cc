#include "object_store/segment_writer.h"

#include <gtest/gtest.h>

#include <cstring>

#include "object_store/segment_reader.h"

namespace weft::core {
namespace {

constexpr uint64_t kMegabyte = 1u << 20;
const ProcessId kWriter{7};

struct WriterTest : testing::Test {
  WriterTest() { EXPECT_TRUE(writer.Create(kWriter, 256 * kMegabyte).ok()); }
  Allocation Make(uint64_t size, int fill = 1) {
    uint64_t missing = 0;
    auto made = writer.Allocate({kWriter, ++objects}, size, Populate::kNow, &missing);
    EXPECT_TRUE(made.ok()) << made.error().message;
    std::memset(made->data, fill, size);
    return *made;
  }
  Location MakeSealed(uint64_t size, int fill = 1) {
    Location location = Make(size, fill).location;
    EXPECT_TRUE(writer.Seal(location));
    return location;
  }
  uint64_t HeldByKernel() { return InspectSharedMemory(*writer.Create(kWriter, 0))->held_bytes; }

  SegmentWriter writer;
  uint64_t objects = 0;
};

TEST_F(WriterTest, AnObjectAppearsOnlyWhenSealedAndGoesWhenFreed) {
  writer.AddBudget(8 * kMegabyte);
  Allocation made = Make(100'000, 5);
  EXPECT_EQ(writer.ReadOnly(made.location), nullptr);
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
  writer.CheckInvariants();
}

TEST_F(WriterTest, MissingBudgetIsNamedAndThenEnough) {
  uint64_t missing = 0;
  auto made = writer.Allocate({kWriter, 1}, 3 * kMegabyte, Populate::kNow, &missing);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().kind, ErrorKind::kFull);
  EXPECT_GE(missing, 3 * kMegabyte);
  writer.AddBudget(missing);
  made = writer.Allocate({kWriter, 1}, 3 * kMegabyte, Populate::kNow, &missing);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(writer.counters().held_bytes, writer.counters().budget_bytes);
  EXPECT_LE(HeldByKernel(), writer.counters().held_bytes);
}

TEST_F(WriterTest, AReusedRangeHasAnotherGeneration) {
  writer.AddBudget(8 * kMegabyte);
  Location first = MakeSealed(200'000);
  writer.Free(first);
  Location second = MakeSealed(200'000, 2);
  EXPECT_EQ(first.offset, second.offset);
  EXPECT_NE(first.generation, second.generation);
  EXPECT_EQ(writer.ReadOnly(first), nullptr);
  EXPECT_FALSE(writer.Free(first));
  EXPECT_NE(writer.ReadOnly(second), nullptr);
}

TEST_F(WriterTest, AReaderSeesWhatWasSealed) {
  writer.AddBudget(8 * kMegabyte);
  Location location = MakeSealed(300'000, 9);
  SegmentReader reader;
  EXPECT_EQ(reader.Resolve(location).error().kind, ErrorKind::kInvalid);
  ASSERT_TRUE(reader.Open(writer.segment(), std::move(*ReopenReadOnly(*writer.Create(kWriter, 0)))).ok());
  auto bytes = reader.Resolve(location);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ((*bytes)[299'999], 9);
  reader.ReleaseView(location.segment);
  writer.Free(location);
  EXPECT_EQ(reader.Resolve(location).error().kind, ErrorKind::kGone);
}

}  // namespace
}  // namespace weft::core
