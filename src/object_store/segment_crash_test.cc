// Kills a writing process at every step of allocating, sealing and freeing, and looks at what the daemon then finds.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>

#include "object_store/segment_keeper.h"
#include "object_store/segment_reader.h"
#include "object_store/segment_writer.h"

namespace weft::core {
namespace {

constexpr uint64_t kMegabyte = 1u << 20;
constexpr uint64_t kSize = 64 * kMegabyte;
const ProcessId kWriter{7};
const SegmentId kSegment{7};
constexpr int kObjects = 12;

// How far the child got with each object; shared with the parent.
struct Progress {
  std::atomic<int> seal_begun[kObjects + 1], sealed[kObjects + 1], free_begun[kObjects + 1], freed[kObjects + 1];
};

int steps_until_crash = 0;
void CrashPoint(const char*) {
  if (--steps_until_crash == 0) kill(getpid(), SIGKILL);
}

uint64_t SizeOfObject(uint64_t index) { return index % 3 == 0 ? 1'500'000 + index : 1000 * index; }

void SendDescriptor(int socket, int fd) {
  char byte = 'x';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (sendmsg(socket, &message, 0) != 1) _exit(10);
}

UniqueFd ReceiveDescriptor(int socket) {
  char byte;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || CMSG_FIRSTHDR(&message) == nullptr) return UniqueFd();
  int fd;
  std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return UniqueFd(fd);
}

// Objects come and go so that entries and ranges are used again, and pages are punched for a later object.
[[noreturn]] void RunChild(int socket, Progress& progress) {
  SegmentWriter writer;
  auto fd = writer.Create(kWriter, kSize);
  if (!fd.ok()) _exit(11);
  SendDescriptor(socket, *fd);
  writer.SetCrashPoint(CrashPoint);
  writer.AddBudget(5 * kMegabyte);
  std::map<uint64_t, Location> made;
  auto make = [&](uint64_t index) {
    uint64_t missing = 0;
    auto allocation = writer.Allocate({kWriter, index}, SizeOfObject(index), Populate::kWhileCopying, &missing);
    if (!allocation.ok()) _exit(12);
    std::string bytes(SizeOfObject(index), static_cast<char>('a' + index));
    if (!writer.Fill(*allocation, 0, bytes.data(), bytes.size()).ok()) _exit(13);
    made[index] = allocation->location;
  };
  auto seal = [&](uint64_t index) {
    progress.seal_begun[index] = 1;
    if (!writer.Seal(made[index])) _exit(14);
    progress.sealed[index] = 1;
  };
  auto drop = [&](uint64_t index) {
    progress.free_begun[index] = 1;
    if (!writer.Free(made[index])) _exit(15);
    progress.freed[index] = 1;
  };
  make(1), seal(1), make(2), seal(2), make(3), seal(3);
  drop(1), make(4), seal(4);  // the entry and the range of 1 again
  make(5);
  if (!writer.Abort(made[5])) _exit(16);
  make(6), seal(6), drop(3);
  make(9), drop(2), seal(9);
  drop(6), drop(9);
  make(7), seal(7);
  make(12), seal(12);  // has to punch what 3, 6 and 9 left
  _exit(0);
}

TEST(SegmentCrashTest, ADeadWriterLeavesOnlyWholeEntries) {
  auto* progress = static_cast<Progress*>(
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(progress, MAP_FAILED);
  int crashes = 0;
  for (int step = 1;; ++step) {
    SCOPED_TRACE(step);
    std::memset(static_cast<void*>(progress), 0, sizeof *progress);
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    UniqueFd ours(ends[0]), theirs(ends[1]);
    steps_until_crash = step;
    pid_t child = fork();
    if (child == 0) RunChild(theirs.get(), *progress);
    UniqueFd fd = ReceiveDescriptor(ours.get());
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    bool finished = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    ASSERT_TRUE(finished || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) << status;
    ASSERT_TRUE(fd);

    SegmentKeeper keeper;
    ASSERT_TRUE(keeper.Adopt(kSegment, std::move(fd), kSize).ok());
    auto estate = keeper.WriterDied(kSegment);
    std::map<uint64_t, Location> found;
    for (const SealedObject& object : estate.objects) {
      EXPECT_EQ(object.object.owner, kWriter);
      EXPECT_EQ(object.location.size, SizeOfObject(object.object.index));
      EXPECT_TRUE(found.emplace(object.object.index, object.location).second) << "an object is there twice";
    }
    for (int index = 1; index <= kObjects; ++index) {
      bool there = found.count(static_cast<uint64_t>(index)) != 0;
      if (progress->sealed[index] && !progress->free_begun[index]) {
        EXPECT_TRUE(there) << "object " << index << " was lost";
      }
      if (!progress->seal_begun[index] || progress->freed[index]) {
        EXPECT_FALSE(there) << "object " << index;
      }
    }
    if (!found.empty()) {
      SegmentReader reader;
      ASSERT_TRUE(reader.Open(kSegment, std::move(*keeper.OpenReadOnly(kSegment))).ok());
      for (const auto& [index, location] : found) {
        auto bytes = reader.Resolve(location);
        ASSERT_TRUE(bytes.ok());
        std::string expected(location.size, static_cast<char>('a' + index));
        EXPECT_EQ(std::memcmp(*bytes, expected.data(), expected.size()), 0) << "object " << index;
      }
    }
    uint64_t freed = 0;
    for (const auto& [index, location] : found) freed += keeper.FreeDead(location);
    EXPECT_EQ(freed, estate.surviving_bytes);
    EXPECT_EQ(keeper.segment_count(), 0u);
    if (finished || testing::Test::HasFailure()) break;
    ++crashes;
  }
  EXPECT_GE(crashes, 60) << "the crash points were not reached";
  munmap(progress, sizeof *progress);
}

}  // namespace
}  // namespace weft::core
