#include "control_store/redis_server.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "control_store/redis_store.h"
#include "control_store/store_test_support.h"

namespace weft::core {
namespace {

class RedisServerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisIsInstalled()) GTEST_SKIP() << "redis-server is not installed";
  }
  RedisServerOptions Options() const {
    RedisServerOptions options;
    options.folder = folder_.path + "/redis";
    return options;
  }
  template <class Condition>
  bool Until(RedisServer& server, Condition&& condition) {
    return Eventually([&] {
      loop_.Wait(NowNs() + 1'000'000);
      server.Tick(NowNs());
      return condition();
    });
  }
  static bool Answers(const RedisAddress& address) {
    RedisStoreOptions options;
    options.servers = {address};
    options.cluster = "test";
    return std::move(*MakeRedisStore(options))->Acquire({.name = "head"}).ok();
  }
  static void StopNow(RedisServer& server) { server.Stop(NowNs() + 5'000'000'000); }

  TemporaryFolder folder_;
  EventLoop loop_ = std::move(*EventLoop::Create());
};

TEST_F(RedisServerTest, ServesOnAUnixSocketAndTellsNobodyThePassword) {
  auto server = RedisServer::Start(loop_, Options());
  ASSERT_TRUE(server.ok()) << server.error().message;
  RedisServer& redis = **server;
  ASSERT_TRUE(Until(redis, [&] { return Answers(redis.address()); }));
  EXPECT_EQ(64u, redis.address().password.size());
  RedisAddress open = redis.address();
  open.password.clear();
  EXPECT_FALSE(Answers(open));
  const std::string process = "/proc/" + std::to_string(redis.pid());
  for (const char* file : {"/cmdline", "/environ"}) {
    EXPECT_EQ(ReadFile(process + file).find(redis.address().password), std::string::npos) << file;
  }
  struct stat info{};
  ASSERT_EQ(0, ::stat((folder_.path + "/redis").c_str(), &info));
  EXPECT_EQ(0700u, info.st_mode & 0777);
  for (const char* file : {"/redis.conf", "/password", "/redis.log"}) {
    ASSERT_EQ(0, ::stat((folder_.path + "/redis" + file).c_str(), &info)) << file;
    EXPECT_EQ(0600u, info.st_mode & 0777) << file;
  }
  StopNow(redis);
  EXPECT_FALSE(Answers(redis.address()));
}

TEST_F(RedisServerTest, IsStartedAgainWithItsTables) {
  RedisServerOptions options = Options();
  options.bind = "127.0.0.1";
  options.dies_with_us = true;
  auto server = RedisServer::Start(loop_, options);
  ASSERT_TRUE(server.ok()) << server.error().message;
  RedisServer& redis = **server;
  ASSERT_TRUE(Until(redis, [&] { return Answers(redis.address()); }));
  const RedisAddress address = redis.address();
  for (uint32_t i = 1; i <= 3; ++i) {
    ::kill(redis.pid(), SIGKILL);
    ASSERT_TRUE(Until(redis, [&] { return redis.restarts() == i; }));
    ASSERT_TRUE(Until(redis, [&] { return Answers(redis.address()); }));
    EXPECT_EQ(address.port, redis.address().port);
  }
}

TEST_F(RedisServerTest, ANewHeadFindsItRunningOrStartsItFromItsFiles) {
  auto first = RedisServer::Start(loop_, Options());
  ASSERT_TRUE(first.ok()) << first.error().message;
  ASSERT_TRUE(Until(**first, [&] { return Answers((*first)->address()); }));
  const pid_t pid = (*first)->pid();
  const RedisAddress address = (*first)->address();
  first->reset();  // it goes on
  ASSERT_TRUE(Answers(address));

  auto second = RedisServer::Start(loop_, Options());
  ASSERT_TRUE(second.ok()) << second.error().message;
  EXPECT_EQ(pid, (*second)->pid());
  EXPECT_EQ(address.password, (*second)->address().password);
  // It is watched, though it need not be a child of whoever watches it; here it is, and has to be reaped.
  ::kill(pid, SIGKILL);
  ASSERT_EQ(pid, ::waitpid(pid, nullptr, 0));
  ASSERT_TRUE(Until(**second, [&] { return (*second)->restarts() == 1; }));
  ASSERT_TRUE(Until(**second, [&] { return Answers(address); }));
  StopNow(**second);

  auto third = RedisServer::Start(loop_, Options());
  ASSERT_TRUE(third.ok()) << third.error().message;
  ASSERT_TRUE(Until(**third, [&] { return Answers(address); })) << "the password is kept";
  StopNow(**third);
}

TEST_F(RedisServerTest, OneThatCannotStartIsTriedAtGrowingIntervals) {
  RedisServerOptions options = Options();
  options.program = "/bin/false";
  auto server = RedisServer::Start(loop_, options);
  ASSERT_TRUE(server.ok()) << server.error().message;
  RedisServer& redis = **server;
  const int64_t began_ns = NowNs();
  ASSERT_TRUE(Until(redis, [&] { return redis.restarts() == 3; }));
  EXPECT_GE(NowNs() - began_ns, 700'000'000) << "0.1, 0.2 and 0.4 s";
  options.program = "/no/such/redis-server";
  options.folder += "2";
  auto missing = RedisServer::Start(loop_, options);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("install"), std::string::npos) << missing.error().message;
}

TEST_F(RedisServerTest, AForeignOrOpenFolderIsRefused) {
  RedisServerOptions options = Options();
  ASSERT_EQ(0, ::mkdir(options.folder.c_str(), 0755));
  EXPECT_FALSE(RedisServer::Start(loop_, options).ok());
  options.folder = folder_.path + "/link";
  std::filesystem::create_symlink(folder_.path, options.folder);
  EXPECT_FALSE(RedisServer::Start(loop_, options).ok());
  for (std::string folder :
       {std::string("relative"), std::string(), folder_.path + "/a\"b", "/tmp/" + std::string(100, 'x')}) {
    options.folder = folder;
    EXPECT_FALSE(RedisServer::Start(loop_, options).ok()) << folder;
  }
}

}  // namespace
}  // namespace weft::core
