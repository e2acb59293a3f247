#include "os/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

namespace weft::core {
namespace {

constexpr uint64_t kSize = 8u << 20;

TEST(SharedMemoryTest, IsPrivateSealedAndNotExecutable) {
  auto fd = CreateSharedMemory("test", kSize);
  ASSERT_TRUE(fd.ok()) << fd.error().message;
  auto facts = InspectSharedMemory(fd->get());
  ASSERT_TRUE(facts.ok());
  EXPECT_EQ(facts->size, kSize);
  EXPECT_EQ(facts->held_bytes, 0u);
  EXPECT_TRUE(facts->sealed);
  EXPECT_TRUE(facts->writable);
  struct stat mode{};
  ASSERT_EQ(fstat(fd->get(), &mode), 0);
  EXPECT_EQ(mode.st_mode & 0777, 0600u);
  EXPECT_NE(ftruncate(fd->get(), kSize / 2), 0);
  EXPECT_NE(ftruncate(fd->get(), kSize * 2), 0);
  EXPECT_NE(fcntl(fd->get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_EQ(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(SharedMemoryTest, AReadOnlyDescriptorCannotBeMappedForWriting) {
  auto fd = CreateSharedMemory("test", kSize);
  auto reopened = ReopenReadOnly(fd->get());
  ASSERT_TRUE(reopened.ok());
  EXPECT_FALSE(InspectSharedMemory(reopened->get())->writable);
  EXPECT_FALSE(SharedMapping::Map(reopened->get(), kSize, Access::kReadWrite).ok());
  auto mapping = SharedMapping::Map(reopened->get(), kSize, Access::kReadOnly);
  ASSERT_TRUE(mapping.ok());
  EXPECT_NE(mprotect(mapping->data(), kSize, PROT_READ | PROT_WRITE), 0);
  EXPECT_FALSE(WriteShared(reopened->get(), 0, "x", 1).ok());
}

TEST(SharedMemoryTest, PagesComeByPopulatingAndGoByPunching) {
  auto fd = CreateSharedMemory("test", kSize);
  auto mapping = SharedMapping::Map(fd->get(), kSize, Access::kReadWrite);
  ASSERT_TRUE(mapping.ok());
  auto held = [&] { return InspectSharedMemory(fd->get())->held_bytes; };
  ASSERT_TRUE(PopulatePages(mapping->data() + 100, 5u << 20).ok());
  EXPECT_EQ(held(), (5u << 20) + kPageBytes);
  mapping->data()[3 * kPageBytes - 1] = 7;
  mapping->data()[3 * kPageBytes] = 8;
  ASSERT_TRUE(PopulatePages(mapping->data(), kSize).ok());
  EXPECT_EQ(mapping->data()[3 * kPageBytes], 8) << "populating changed what was there";
  // Only whole pages within the range go.
  ASSERT_TRUE(PunchPages(fd->get(), 3 * kPageBytes - 1, 2 * kPageBytes).ok());
  EXPECT_EQ(held(), kSize - kPageBytes);
  EXPECT_EQ(mapping->data()[3 * kPageBytes - 1], 7);
  EXPECT_EQ(mapping->data()[3 * kPageBytes], 0);
}

TEST(SharedMemoryTest, EightBytesAreReplacedInOneStep) {
  auto fd = CreateSharedMemory("test", kSize);
  const uint64_t at = 5 * kPageBytes + 64;
  EXPECT_TRUE(ReplaceShared(fd->get(), at, 0, 7));
  EXPECT_FALSE(ReplaceShared(fd->get(), at, 6, 8));
  uint64_t there = 0;
  ASSERT_TRUE(ReadShared(fd->get(), at, &there, sizeof there).ok());
  EXPECT_EQ(there, 7u);
  auto reopened = ReopenReadOnly(fd->get());
  EXPECT_FALSE(ReplaceShared(reopened->get(), at, 7, 8)) << "cannot be written through this descriptor";
}

TEST(SharedMemoryTest, PopulatedPagesAreFoundWithoutTouchingHoles) {
  auto fd = CreateSharedMemory("test", kSize);
  EXPECT_EQ(NextPopulated(fd->get(), 0, kSize), kSize);
  uint64_t at = 77 * kPageBytes + 5;
  ASSERT_TRUE(WriteShared(fd->get(), at, "abc", 3).ok());
  EXPECT_EQ(NextPopulated(fd->get(), 0, kSize), 77 * kPageBytes);
  EXPECT_EQ(NextPopulated(fd->get(), 0, 70 * kPageBytes), 70 * kPageBytes);
  EXPECT_EQ(NextPopulated(fd->get(), 78 * kPageBytes, kSize), kSize);
  char text[4] = {};
  ASSERT_TRUE(ReadShared(fd->get(), at, text, 3).ok());
  EXPECT_STREQ(text, "abc");
  ASSERT_TRUE(ReadShared(fd->get(), 0, text, 3).ok());
  EXPECT_EQ(InspectSharedMemory(fd->get())->held_bytes, kPageBytes);
  EXPECT_FALSE(ReadShared(fd->get(), kSize - 1, text, 3).ok());
}

TEST(SharedMemoryTest, OtherDescriptorsAreNotSharedMemory) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  EXPECT_FALSE(InspectSharedMemory(read_end.get()).ok());
  EXPECT_FALSE(InspectSharedMemory(-1).ok());
  UniqueFd null(open("/dev/null", O_RDWR));
  EXPECT_FALSE(InspectSharedMemory(null.get()).ok());
  UniqueFd unsealed(memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_TRUE(InspectSharedMemory(unsealed.get()).ok());
  EXPECT_FALSE(InspectSharedMemory(unsealed.get())->sealed);
}

// Runs a body in a forked child and returns how it ended.
template <class Body>
int InChild(Body body) {
  pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(SharedMemoryTest, AForkedChildDoesNotInheritMappings) {
  auto fd = CreateSharedMemory("test", kSize);
  auto mapping = SharedMapping::Map(fd->get(), kSize, Access::kReadWrite);
  std::memset(mapping->data(), 1, kPageBytes);
  int status = InChild([&] {
    signal(SIGSEGV, SIG_DFL);
    // Something else may have been mapped at this address since (sanitizers do), but it is not our page.
    if (*static_cast<volatile uint8_t*>(mapping->data()) == 1) _exit(1);
  });
  EXPECT_TRUE((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) || status == 0) << status;
}

TEST(SharedMemoryTest, AFileSizeLimitIsAnErrorAndNotASignal) {
  int status = InChild([] {
    rlimit limit{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    auto fd = CreateSharedMemory("test", kSize);
    _exit(!fd.ok() && fd.error().kind == ErrorKind::kUnavailable ? 0 : 1);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace weft::core
