#include "os/abstract_socket.h"

#include <gtest/gtest.h>
#include <poll.h>

namespace weft::core {
namespace {

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

TEST(AbstractSocketTest, HeadsOfOneClusterNameIt) {
  EXPECT_TRUE(NamesSameCluster("10.0.0.1:1", "10.0.0.1:1"));
  EXPECT_TRUE(NamesSameCluster("10.0.0.1:1", "10.0.0.2:1,10.0.0.1:1"));
  EXPECT_TRUE(NamesSameCluster("10.0.0.2:1,10.0.0.1:1", "10.0.0.1:1"));
  EXPECT_FALSE(NamesSameCluster("10.0.0.1:1", "10.0.0.1:11,110.0.0.1:1"));
}

TEST(AbstractSocketTest, NamesAreOfUserAndProcess) { EXPECT_EQ(ObserverSocketName(7, 42), "weft-session-7-42"); }

}  // namespace
}  // namespace weft::core
