#include "os/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>

#include "os/memfd.h"

namespace weft::core {
namespace {

TEST(SocketTest, DescriptorsTravelWithBytes) {
  auto pair = std::move(*StreamSocketPair());
  auto memory = CreateMemfd("test", 4096);
  ASSERT_EQ(pwrite(memory->get(), "hello", 5, 0), 5);
  const std::array<int, 2> fds = {memory->get(), pair.first.get()};
  ASSERT_TRUE(SendWithFds(pair.first.get(), "message", fds).ok());

  uint8_t buffer[100];
  std::vector<UniqueFd> received;
  auto size = RecvWithFds(pair.second.get(), buffer, sizeof buffer, &received);
  ASSERT_TRUE(size.ok());
  EXPECT_EQ(std::string(reinterpret_cast<char*>(buffer), *size), "message");
  ASSERT_EQ(received.size(), 2u);
  EXPECT_EQ(fcntl(received[0].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  char text[6] = {};
  EXPECT_EQ(pread(received[0].get(), text, 5, 0), 5);
  EXPECT_STREQ(text, "hello");
}

TEST(SocketTest, NothingYetAndPeerClosedAreToldApart) {
  auto pair = std::move(*StreamSocketPair(Blocking::kNo));
  uint8_t buffer[10];
  std::vector<UniqueFd> fds;
  EXPECT_EQ(TryRecv(pair.first.get(), buffer, sizeof buffer).kind, IoOutcome::kWouldBlock);
  EXPECT_EQ(TryRecvWithFds(pair.first.get(), buffer, sizeof buffer, &fds).kind, IoOutcome::kWouldBlock);
  pair.second.Reset();
  EXPECT_EQ(TryRecv(pair.first.get(), buffer, sizeof buffer).kind, IoOutcome::kClosed);
  EXPECT_EQ(TryRecvWithFds(pair.first.get(), buffer, sizeof buffer, &fds).kind, IoOutcome::kClosed);
  const uint8_t byte[1] = {1};
  EXPECT_EQ(TrySend(pair.first.get(), byte).kind, IoOutcome::kClosed) << "and no SIGPIPE";
  EXPECT_EQ(SendWithFds(pair.first.get(), "x", {}).error().kind, ErrorKind::kGone);
}

TEST(SocketTest, FullSocketWouldBlock) {
  auto pair = std::move(*StreamSocketPair(Blocking::kNo));
  const std::vector<uint8_t> bytes(1 << 16);
  IoOutcome outcome;
  size_t sent = 0;
  do {
    outcome = TrySend(pair.first.get(), bytes);
    sent += outcome.bytes;
  } while (outcome.kind == IoOutcome::kDone && sent < (64u << 20));
  EXPECT_EQ(outcome.kind, IoOutcome::kWouldBlock);
}

TEST(SocketTest, AsManyDescriptorsAsAllowed) {
  auto pair = std::move(*StreamSocketPair());
  std::vector<int> fds(kMaxFdsPerMessage, pair.first.get());
  ASSERT_TRUE(SendWithFds(pair.first.get(), "a", fds).ok());
  uint8_t buffer[10];
  std::vector<UniqueFd> received;
  EXPECT_EQ(TryRecvWithFds(pair.second.get(), buffer, sizeof buffer, &received).kind, IoOutcome::kDone);
  EXPECT_EQ(received.size(), kMaxFdsPerMessage);
}

}  // namespace
}  // namespace weft::core
