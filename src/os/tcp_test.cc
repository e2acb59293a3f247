#include "os/tcp.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <string>

#include "os/socket.h"

namespace weft::core {
namespace {

// Until the descriptor can be read or written; false after ten seconds.
bool Await(int fd, short what) {
  pollfd wait{fd, what, 0};
  return ::poll(&wait, 1, 10'000) == 1;
}

void Converse(const std::string& host, const std::string& dialled) {
  auto listener = ListenTcp(host, 0);
  ASSERT_TRUE(listener.ok()) << listener.error().message;
  const uint16_t port = LocalTcpAddress(listener->get())->port();
  ASSERT_NE(port, 0);
  int error = 0;
  EXPECT_FALSE(AcceptTcp(listener->get(), &error).valid());
  EXPECT_EQ(error, EAGAIN);
  auto addresses = ResolveTcp(dialled, port);
  ASSERT_TRUE(addresses.ok()) << addresses.error().message;
  auto dialler = BeginConnectTcp(addresses->front());
  ASSERT_TRUE(dialler.ok()) << dialler.error().message;
  ASSERT_TRUE(Await(dialler->get(), POLLOUT));
  ASSERT_EQ(ConnectOutcome(dialler->get()), 0);
  ASSERT_TRUE(Await(listener->get(), POLLIN));
  const UniqueFd accepted = AcceptTcp(listener->get(), &error);
  ASSERT_TRUE(accepted.valid());
  EXPECT_EQ(PeerTcpAddress(accepted.get())->ToText(), LocalTcpAddress(dialler->get())->ToText());
  EXPECT_EQ(PeerTcpAddress(dialler->get())->port(), port);
  EXPECT_TRUE(PeerTcpAddress(dialler->get())->is_loopback());
  const std::string text = "over the wire";
  ASSERT_EQ(TrySend(dialler->get(), std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size())).bytes,
            text.size());
  ASSERT_TRUE(Await(accepted.get(), POLLIN));
  uint8_t buffer[64];
  const IoOutcome outcome = TryRecv(accepted.get(), buffer, sizeof buffer);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(buffer), outcome.bytes), text);
}

TEST(TcpTest, Ipv4) { Converse("127.0.0.1", "127.0.0.1"); }

TEST(TcpTest, Names) { Converse("localhost", "localhost"); }

TEST(TcpTest, EveryAddress) { Converse("", "127.0.0.1"); }

TEST(TcpTest, Ipv6) {
  if (!ListenTcp("::1", 0).ok()) GTEST_SKIP() << "this machine has no IPv6: " << ListenTcp("::1", 0).error().message;
  Converse("::1", "::1");
}

TEST(TcpTest, AddressesAsText) {
  EXPECT_EQ(ResolveTcp("127.0.0.1", 6380)->front().ToText(), "127.0.0.1:6380");
  EXPECT_EQ(ResolveTcp("::1", 6380)->front().ToText(), "[::1]:6380");
  EXPECT_EQ(HostPortText("::1", 6380), "[::1]:6380");
  EXPECT_EQ(HostPortText("head.example", 6380), "head.example:6380");
  EXPECT_EQ(LocalHostTowards(ResolveTcp("127.0.0.9", 6380)->front()).value(), "127.0.0.1");
  EXPECT_TRUE(ResolveTcp("::1", 1)->front().is_loopback());
  EXPECT_FALSE(ResolveTcp("10.1.2.3", 1)->front().is_loopback());
  EXPECT_EQ(ParseHostPort("10.0.0.1:6380").value(), std::pair(std::string("10.0.0.1"), uint16_t{6380}));
  EXPECT_EQ(ParseHostPort("[::1]:1").value(), std::pair(std::string("::1"), uint16_t{1}));
  EXPECT_EQ(ParseHostPort("head.example:65535").value(), std::pair(std::string("head.example"), uint16_t{65535}));
  const std::string bad[] = {"",
                             "host",
                             "host:",
                             ":1",
                             "host:0",
                             "host:65536",
                             "host:99999999999",
                             "host:-1",
                             "host:1x",
                             "::1:6380",
                             "[::1]",
                             "[]:1",
                             "[::1:6380",
                             "::1]:6380",
                             "host: 80",
                             "host:+1",
                             "a:b:c",
                             "http://x",
                             "http://x:1",
                             std::string("a\0b:1", 5)};
  for (const std::string& text : bad) {
    EXPECT_FALSE(ParseHostPort(text).ok()) << text;
  }
}

TEST(TcpTest, Failures) {
  auto first = ListenTcp("127.0.0.1", 0);
  ASSERT_TRUE(first.ok());
  const uint16_t port = LocalTcpAddress(first->get())->port();
  const auto second = ListenTcp("127.0.0.1", port);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("127.0.0.1:" + std::to_string(port)), std::string::npos);
  EXPECT_NE(second.error().message.find("in use"), std::string::npos) << second.error().message;
  first->Reset();

  auto nobody = BeginConnectTcp(ResolveTcp("127.0.0.1", port)->front());
  if (nobody.ok()) {
    ASSERT_TRUE(Await(nobody->get(), POLLOUT));
    EXPECT_EQ(ConnectOutcome(nobody->get()), ECONNREFUSED);
  }
  EXPECT_FALSE(ListenTcp("192.0.2.1", 0).ok()) << "an address of nobody";
  EXPECT_FALSE(ResolveTcp(std::string(300, 'a'), 1).ok());
  EXPECT_FALSE(ResolveTcp(std::string("a\0b", 3), 1).ok());
}

// A daemon that is started again gets its port, although a connection of the former one has not quite ended.
TEST(TcpTest, PortIsFreeAgainAtOnce) {
  auto listener = ListenTcp("127.0.0.1", 0);
  const uint16_t port = LocalTcpAddress(listener->get())->port();
  auto dialler = BeginConnectTcp(ResolveTcp("127.0.0.1", port)->front());
  ASSERT_TRUE(Await(listener->get(), POLLIN));
  int error = 0;
  UniqueFd accepted = AcceptTcp(listener->get(), &error);
  accepted.Reset();  // the listener's side closes first: its port goes into TIME_WAIT
  ASSERT_TRUE(Await(dialler->get(), POLLIN));
  dialler->Reset();
  listener->Reset();
  EXPECT_TRUE(ListenTcp("127.0.0.1", port).ok());
}

}  // namespace
}  // namespace weft::core
