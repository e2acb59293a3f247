#include "object_store/copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/random.h"
#include "os/shared_memory.h"

namespace weft::core {
namespace {

constexpr uint64_t kMegabyte = 1u << 20;

std::vector<uint8_t> Noise(uint64_t size) {
  std::vector<uint8_t> bytes(size);
  Random random(size);
  for (uint64_t i = 0; i + 8 <= size; i += 8) {
    uint64_t word = random.Next();
    std::memcpy(&bytes[i], &word, 8);
  }
  return bytes;
}

const uint64_t kSizes[] = {0, 1, 63, 4096, 100'001, 3 * kMegabyte + 17, 9 * kMegabyte, 33 * kMegabyte + 1};

TEST(CopyTest, WarmCopiesAreExactForEverySizeAlignmentAndThreadCount) {
  for (uint64_t size : kSizes) {
    auto source = Noise(size + 100);
    for (uint64_t shift : {0, 1, 64}) {
      for (int threads : {1, 2, 5, 100}) {
        SCOPED_TRACE(testing::Message() << size << " bytes, shifted by " << shift << ", " << threads << " threads");
        std::vector<uint8_t> destination(size + 200, 0xee);
        CopyWarm(destination.data() + shift, source.data() + 3 * shift / 64, size, threads);
        EXPECT_EQ(std::memcmp(destination.data() + shift, source.data() + 3 * shift / 64, size), 0);
        for (uint64_t i = 0; i < shift; ++i) ASSERT_EQ(destination[i], 0xee);
        for (uint64_t i = shift + size; i < destination.size(); ++i) ASSERT_EQ(destination[i], 0xee);
      }
    }
  }
}

TEST(CopyTest, ColdCopiesMakeExactlyTheirPages) {
  for (uint64_t size : kSizes) {
    auto source = Noise(size + 1);
    for (uint64_t shift : {0, 64}) {
      for (int threads : {1, 3}) {
        SCOPED_TRACE(testing::Message() << size << " bytes, shifted by " << shift << ", " << threads << " threads");
        auto fd = CreateSharedMemory("test", 64 * kMegabyte);
        auto mapping = SharedMapping::Map(fd->get(), 64 * kMegabyte, Access::kReadWrite);
        uint64_t at = 2 * kMegabyte + shift;
        ASSERT_TRUE(CopyCold({fd->get(), at, mapping->data() + at}, source.data(), size, threads).ok());
        EXPECT_EQ(std::memcmp(mapping->data() + at, source.data(), size), 0);
        uint64_t pages = size == 0 ? 0 : (shift + size + kPageBytes - 1) / kPageBytes;
        EXPECT_EQ(InspectSharedMemory(fd->get())->held_bytes, pages * kPageBytes);
      }
    }
  }
}

TEST(CopyTest, AFailureIsReported) {
  auto fd = CreateSharedMemory("test", 16 * kMegabyte);
  auto read_only = ReopenReadOnly(fd->get());
  auto mapping = SharedMapping::Map(fd->get(), 16 * kMegabyte, Access::kReadWrite);
  auto source = Noise(16 * kMegabyte);
  for (int threads : {1, 3}) {
    EXPECT_FALSE(CopyCold({read_only->get(), 0, mapping->data()}, source.data(), source.size(), threads).ok());
  }
}

TEST(CopyTest, SmallCopiesUseOneThread) {
  EXPECT_EQ(CopyThreads(0), 1);
  EXPECT_EQ(CopyThreads(kParallelCopyBytes - 1), 1);
  EXPECT_GE(CopyThreads(UINT64_MAX), 1);
}

}  // namespace
}  // namespace weft::core
