#include "object_store/segment_reader.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "object_store/segment_writer.h"

namespace weft::core {
namespace {

constexpr uint64_t kMegabyte = 1u << 20;
constexpr uint64_t kSize = 64 * kMegabyte;
const ProcessId kWriter{7};
const SegmentId kSegment{7};

struct ReaderTest : testing::Test {
  ReaderTest() {
    fd = *writer.Create(kWriter, kSize);
    writer.AddBudget(8 * kMegabyte);
  }
  Location MakeSealed(uint64_t size, int fill = 1) {
    uint64_t missing = 0;
    auto made = writer.Allocate({kWriter, 1}, size, Populate::kNow, &missing);
    EXPECT_TRUE(made.ok());
    std::memset(made->data, fill, size);
    EXPECT_TRUE(writer.Seal(made->location));
    return made->location;
  }
  UniqueFd ReadOnlyFd() { return std::move(*ReopenReadOnly(fd)); }

  SegmentWriter writer;
  SegmentReader reader;
  int fd = -1;
};

TEST_F(ReaderTest, SeesSealedObjectsUntilTheyAreFreed) {
  Location location = MakeSealed(300'000, 9);
  EXPECT_EQ(reader.Resolve(location).error().kind, ErrorKind::kInvalid);
  ASSERT_TRUE(reader.Open(kSegment, ReadOnlyFd()).ok());
  ASSERT_TRUE(reader.Open(kSegment, ReadOnlyFd()).ok());
  auto bytes = reader.Resolve(location);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ((*bytes)[299'999], 9);
  reader.ReleaseView(kSegment);
  writer.Free(location);
  EXPECT_EQ(reader.Resolve(location).error().kind, ErrorKind::kGone);
  Location reused = MakeSealed(300'000, 3);
  EXPECT_EQ(reused.offset, location.offset);
  EXPECT_EQ(reader.Resolve(location).error().kind, ErrorKind::kGone);
  EXPECT_TRUE(reader.Resolve(reused).ok());
}

TEST_F(ReaderTest, ImpossibleLocationsAreErrors) {
  ASSERT_TRUE(reader.Open(kSegment, ReadOnlyFd()).ok());
  Location good = MakeSealed(1000);
  for (uint64_t value : {uint64_t{0}, uint64_t{1}, good.offset + 64, kSize - 64, kSize, uint64_t{1} << 31,
                         uint64_t{1} << 62, uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 63}) {
    Location bad = good;
    bad.offset = value;
    EXPECT_FALSE(reader.Resolve(bad).ok()) << value;
    bad = good;
    bad.size = value;
    EXPECT_FALSE(reader.Resolve(bad).ok()) << value;
    bad = good;
    bad.generation = value;
    EXPECT_FALSE(reader.Resolve(bad).ok()) << value;
    bad = good;
    bad.segment.value = value;
    EXPECT_FALSE(reader.Resolve(bad).ok()) << value;
  }
  EXPECT_EQ(reader.view_count(kSegment), 0u);
}

TEST_F(ReaderTest, ASegmentWithViewsIsUnmappedWithTheLast) {
  Location location = MakeSealed(100'000, 4);
  ASSERT_TRUE(reader.Open(kSegment, ReadOnlyFd()).ok());
  const uint8_t* bytes = *reader.Resolve(location);
  ASSERT_TRUE(reader.Resolve(location).ok());
  reader.Drop(kSegment);
  EXPECT_FALSE(reader.IsOpen(kSegment));
  EXPECT_FALSE(reader.Resolve(location).ok());
  EXPECT_EQ(bytes[5], 4);
  reader.ReleaseView(kSegment);
  EXPECT_EQ(reader.mapped_count(), 1u);
  EXPECT_EQ(bytes[5], 4);
  reader.ReleaseView(kSegment);
  EXPECT_EQ(reader.mapped_count(), 0u);
  reader.Drop(kSegment);
  // It may come back.
  ASSERT_TRUE(reader.Open(kSegment, ReadOnlyFd()).ok());
  EXPECT_TRUE(reader.Resolve(location).ok());
}

TEST_F(ReaderTest, WhatIsNoSegmentIsRefused) {
  EXPECT_FALSE(reader.Open(SegmentId{8}, ReadOnlyFd()).ok()) << "another writer's";
  EXPECT_FALSE(reader.Open(kSegment, UniqueFd()).ok());
  EXPECT_FALSE(reader.Open(kSegment, std::move(*CreateSharedMemory("x", kSize))).ok()) << "no header";
  EXPECT_FALSE(reader.Open(kSegment, std::move(*CreateSharedMemory("x", 4096))).ok());
  EXPECT_FALSE(reader.Open(kSegment, std::move(*CreateSharedMemory("x", 0))).ok());
  // A right header in a file that could still shrink under our feet.
  UniqueFd unsealed(memfd_create("x", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), kSize), 0);
  SegmentHeader header = SegmentLayout::ForSize(kSize)->HeaderFor(kWriter);
  ASSERT_TRUE(WriteShared(unsealed.get(), 0, &header, sizeof header).ok());
  EXPECT_FALSE(reader.Open(kSegment, std::move(unsealed)).ok());
  // Every wrong header field.
  for (size_t at = 0; at < sizeof header; at += 4) {
    auto file = CreateSharedMemory("x", kSize);
    ASSERT_TRUE(WriteShared(file->get(), 0, &header, sizeof header).ok());
    uint32_t broken = 0x7fff'ffff;
    ASSERT_TRUE(WriteShared(file->get(), at, &broken, sizeof broken).ok());
    EXPECT_FALSE(reader.Open(kSegment, std::move(*file)).ok()) << at;
  }
  EXPECT_EQ(reader.mapped_count(), 0u);
}

TEST_F(ReaderTest, AStrayWriteKillsOnlyTheProcessThatTried) {
  Location location = MakeSealed(100'000, 4);
  for (bool own_mapping : {false, true}) {
    pid_t child = fork();
    if (child == 0) {
      signal(SIGSEGV, SIG_DFL);
      // Mappings are not inherited, so the child makes its own.
      SegmentReader mine;
      if (!mine.Open(kSegment, ReadOnlyFd()).ok()) _exit(1);
      auto bytes = mine.Resolve(location);
      if (!bytes.ok() || (*bytes)[7] != 4) _exit(2);
      auto* target = const_cast<uint8_t*>(own_mapping ? writer.ReadOnly(location) : *bytes);
      *static_cast<volatile uint8_t*>(target + 7) = 9;
      _exit(3);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  }
  EXPECT_EQ(writer.ReadOnly(location)[7], 4);
}

TEST_F(ReaderTest, TheWritersReadOnlyMappingCannotBeWrittenEither) {
  Location location = MakeSealed(4096, 4);
  auto* bytes = const_cast<uint8_t*>(writer.ReadOnly(location));
  auto* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(bytes) & ~uintptr_t{4095});
  EXPECT_NE(mprotect(page, 4096, PROT_READ | PROT_WRITE), 0);
}

}  // namespace
}  // namespace weft::core
