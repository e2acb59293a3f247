// Links over real loopback TCP, both ends on one loop.
#include "transport/link.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "os/socket.h"
#include "os/tcp.h"
#include "transport/link_listener.h"
#include "transport/test_links.h"

namespace weft::core {
namespace {

TEST(LinkTest, MessagesBothWays) {
  LinkPair pair;
  ASSERT_TRUE(pair.Connect()) << pair.dialler.why;
  EXPECT_EQ(pair.dialler.hello, "listener's hello");
  EXPECT_EQ(pair.accepted.hello, "dialler's hello");
  EXPECT_EQ(pair.dialler.link->peer_address(), "127.0.0.1:" + std::to_string(pair.listener->port()));
  EXPECT_EQ(pair.accepted.link->peer_address(), pair.dialler.link->local_address());
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(pair.dialler.link->Send("question " + std::to_string(i)), Link::SendOutcome::kSent);
    ASSERT_EQ(pair.accepted.link->Send("answer " + std::to_string(i)), Link::SendOutcome::kSent);
  }
  ASSERT_TRUE(pair.Run([&] { return pair.dialler.messages.size() == 100 && pair.accepted.messages.size() == 100; }));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(pair.dialler.messages[i], "answer " + std::to_string(i));
    EXPECT_EQ(pair.accepted.messages[i], "question " + std::to_string(i));
  }
}

}  // namespace
}  // namespace weft::core
