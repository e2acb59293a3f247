#include "os/abstract_socket.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"

namespace weft::core {
namespace {

// Leaves no room for one more.
std::vector<UniqueFd> FillBacklog(const std::string& name) {
  std::vector<UniqueFd> connections;
  for (;;) {
    auto connection = ConnectAbstract(name);
    if (!connection) return connections;
    connections.push_back(std::move(*connection));
  }
}

TEST(AbstractSocketTest, BothSidesKnowWhoTheOtherIs) {
  const std::string name = "weft-test-" + std::to_string(::getpid());
  auto listener = ListenAbstract(name);
  ASSERT_TRUE(listener.ok()) << listener.error().message;
  EXPECT_FALSE(AcceptAbstract(listener->get())) << "nobody is there yet";
  auto client = ConnectAbstract(name);
  ASSERT_TRUE(client.ok()) << client.error().message;
  pollfd wait{listener->get(), POLLIN, 0};
  ASSERT_EQ(::poll(&wait, 1, 10'000), 1);
  UniqueFd server = AcceptAbstract(listener->get());
  ASSERT_TRUE(server.valid());
  for (int fd : {client->get(), server.get()}) {
    EXPECT_EQ(*PeerUid(fd), ::geteuid());
    EXPECT_EQ(*PeerPid(fd), ::getpid());
  }
}

TEST(AbstractSocketTest, TheNameIsFreeAgainWithoutItsListener) {
  const std::string name = "weft-test2-" + std::to_string(::getpid());
  {
    auto listener = ListenAbstract(name);
    ASSERT_TRUE(listener.ok());
    EXPECT_FALSE(ListenAbstract(name).ok()) << "it is taken";
  }
  auto client = ConnectAbstract(name);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.error().kind, ErrorKind::kGone);
  EXPECT_TRUE(ListenAbstract(name).ok());
}

TEST(AbstractSocketTest, NobodyWaitsForAListenerThatDoesNotAccept) {
  const std::string name = "weft-test3-" + std::to_string(::getpid());
  auto listener = ListenAbstract(name);
  ASSERT_TRUE(listener.ok());
  auto waiting = FillBacklog(name);
  auto client = ConnectAbstract(name);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.error().kind, ErrorKind::kTimeout);
  // It is known as ours all the same.
  const int64_t begin = NowNs();
  client = ConnectToDaemon(name, ::geteuid(), ::getpid(), begin + 50'000'000);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.error().kind, ErrorKind::kTimeout);
  EXPECT_GE(NowNs() - begin, 50'000'000);
  // But not as another process's; and under that name nobody listens.
  EXPECT_EQ(ConnectToDaemon(name, ::geteuid(), 1, INT64_MAX).error().kind, ErrorKind::kGone);
  EXPECT_EQ(ConnectToDaemon(name + "x", ::geteuid(), ::getpid(), INT64_MAX).error().kind, ErrorKind::kGone);
  while (UniqueFd accepted = AcceptAbstract(listener->get())) {
  }
  EXPECT_TRUE(ConnectToDaemon(name, ::geteuid(), ::getpid(), 0).ok());
}

TEST(AbstractSocketTest, ADaemonWhoseNameIsTakenIsFoundAllTheSame) {
  const std::string name = ObserverSocketName(::geteuid(), ::getpid());
  auto taken = ListenAbstract(name);
  ASSERT_TRUE(taken.ok());
  auto listener = ListenAsDaemon(name);
  ASSERT_TRUE(listener.ok()) << listener.error().message;
  taken->Reset();
  EXPECT_TRUE(ConnectToDaemon(name, ::geteuid(), ::getpid(), 0).ok());
  const auto found = FindObserverSockets(::geteuid());
  EXPECT_EQ(std::count(found.begin(), found.end(), ::getpid()), 1);
}

// Runs as somebody else until it is killed, listening under these names; with a backlog of 0, filled by the caller.
class Stranger {
 public:
  explicit Stranger(const std::vector<std::string>& names) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      std::vector<UniqueFd> listeners;
      bool ok = ::setgid(65534) == 0 && ::setuid(65534) == 0;
      for (const std::string& name : names) {
        auto listener = ListenAbstract(name);
        ok = ok && listener.ok();
        if (ok) listeners.push_back(std::move(*listener));
      }
      if (ok && ::write(ready[1], "r", 1) == 1) ::pause();
      ::_exit(1);
    }
    ::close(ready[1]);
    char said = 0;
    EXPECT_EQ(::read(ready[0], &said, 1), 1);
    ::close(ready[0]);
  }
  ~Stranger() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

TEST(AbstractSocketTest, WhatStrangersListenOnIsNotThere) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  const auto count = [](const auto& found, pid_t daemon) {
    return std::count_if(found.begin(), found.end(), [&](const auto& one) {
      if constexpr (requires { one.daemon; }) {
        return one.daemon == daemon;
      } else {
        return one == daemon;
      }
    });
  };
  const pid_t self = ::getpid();
  // It says that it is us, and one of its listeners cannot be asked for its name.
  const std::string crowded = NodeSocketName(0, self, "10.1.1.1:1", 1);
  Stranger stranger({ObserverSocketName(0, self), NodeSocketName(0, self, "10.1.1.2:1", 1), crowded});
  auto ours = ListenAbstract(NodeSocketName(0, self, "10.1.1.3:1", 1));
  ASSERT_TRUE(ours.ok());
  auto waiting = FillBacklog(crowded);
  EXPECT_EQ(count(FindObserverSockets(0), self), 0);
  EXPECT_EQ(count(FindObserverSockets(0), stranger.pid()), 0);
  const auto nodes = FindNodeSockets(0);
  ASSERT_EQ(count(nodes, self), 1);
  const auto node = std::find_if(nodes.begin(), nodes.end(), [&](const auto& one) { return one.daemon == self; });
  EXPECT_EQ(node->cluster, "10.1.1.3:1");
  EXPECT_EQ(node->listener, self);
  EXPECT_EQ(ConnectToDaemon(crowded, 0, self, INT64_MAX).error().kind, ErrorKind::kGone);
}

TEST(AbstractSocketTest, HeadsOfOneClusterNameIt) {
  EXPECT_TRUE(NamesSameCluster("10.0.0.1:1", "10.0.0.1:1"));
  EXPECT_TRUE(NamesSameCluster("10.0.0.1:1", "10.0.0.2:1,10.0.0.1:1"));
  EXPECT_TRUE(NamesSameCluster("10.0.0.2:1,10.0.0.1:1", "10.0.0.1:1"));
  EXPECT_FALSE(NamesSameCluster("10.0.0.1:1", "10.0.0.1:11,110.0.0.1:1"));
}

TEST(AbstractSocketTest, NamesAreOfUserAndProcess) { EXPECT_EQ(ObserverSocketName(7, 42), "weft-session-7-42"); }

}  // namespace
}  // namespace weft::core
