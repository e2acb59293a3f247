#include "os/memfd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace weft::core {
namespace {

TEST(MemfdTest, IsPrivateSealedAndNamed) {
  auto fd = CreateMemfd("test", 8192);
  ASSERT_TRUE(fd.ok()) << fd.error().message;
  struct stat status;
  ASSERT_EQ(fstat(fd->get(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(status.st_size, 8192);
  EXPECT_EQ(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_NE(ftruncate(fd->get(), 4096), 0) << "a peer must not be able to shrink it";
  EXPECT_NE(ftruncate(fd->get(), 16384), 0);
  char name[256] = {};
  ASSERT_GT(readlink(("/proc/self/fd/" + std::to_string(fd->get())).c_str(), name, sizeof name - 1), 0);
  EXPECT_NE(std::string(name).find("weft-test"), std::string::npos) << name;
}

TEST(MemfdTest, ChildDoesNotInheritMappings) {
  auto fd = CreateMemfd("test", 4096);
  auto mapping = Mapping::Map(fd->get(), 4096, Mapping::Access::kReadWrite);
  const pid_t child = fork();
  if (child == 0) {
    unsigned char resident;
    const bool mapped = mincore(mapping->data(), 4096, &resident) == 0;
    void* other = mmap(mapping->data(), 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    *mapping = Mapping();  // must leave alone what is there now
    *static_cast<volatile char*>(other) = 1;
    _exit(mapped ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(MemfdTest, DiscardedPagesAreFreed) {
  auto fd = CreateMemfd("test", 1 << 20);
  auto mapping = Mapping::Map(fd->get(), 1 << 20, Mapping::Access::kReadWrite);
  for (size_t i = 0; i < mapping->size(); i += 4096) mapping->data()[i] = 1;
  struct stat status;
  fstat(fd->get(), &status);
  const auto before = status.st_blocks;
  ASSERT_TRUE(DiscardPages(mapping->data() + 4096, (1 << 20) - 4096));
  fstat(fd->get(), &status);
  EXPECT_EQ(status.st_blocks, before / 256);
  EXPECT_EQ(mapping->data()[4096], 0);
  EXPECT_EQ(mapping->data()[0], 1);
}

TEST(MemfdTest, RefusesWhatCouldBeTruncated) {
  EXPECT_TRUE(CheckSealedMemfd(CreateMemfd("test", 4096)->get(), 4096).ok());
  EXPECT_FALSE(CheckSealedMemfd(CreateMemfd("test", 4096)->get(), 8192).ok());
  UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  EXPECT_FALSE(CheckSealedMemfd(unsealed.get(), 4096).ok());
  EXPECT_FALSE(CheckSealedMemfd(-1, 4096).ok());
}

}  // namespace
}  // namespace weft::core
