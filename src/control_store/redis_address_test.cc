#include "control_store/redis_address.h"

#include <gtest/gtest.h>

namespace weft::core {
namespace {

TEST(RedisAddress, IsParsed) {
  auto full = ParseRedisAddress("redis://weft:p%40ss%3Aword@example.org:7000/3");
  ASSERT_TRUE(full.ok()) << full.status().message();
  EXPECT_EQ("weft", full->user);
  EXPECT_EQ("p@ss:word", full->password);
  EXPECT_EQ("example.org", full->host);
  EXPECT_EQ(7000, full->port);
  EXPECT_EQ(3u, full->database);
  EXPECT_EQ("redis://weft@example.org:7000/3", full->Describe());

  auto plain = ParseRedisAddress("redis://localhost");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(6379, plain->port);
  EXPECT_EQ("", plain->user + plain->password);
  auto password = ParseRedisAddress("redis://:secret@10.0.0.1/");
  ASSERT_TRUE(password.ok());
  EXPECT_EQ("", password->user);
  EXPECT_EQ("secret", password->password);
  EXPECT_EQ("redis://10.0.0.1:6379", password->Describe());
  auto v6 = ParseRedisAddress("redis://[::1]:1234");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ("::1", v6->host);
  EXPECT_EQ(1234, v6->port);
  EXPECT_EQ("redis://[::1]:1234", v6->Describe());
  auto local = ParseRedisAddress("unix://u:p@/run/redis.sock?db=2");
  ASSERT_TRUE(local.ok());
  EXPECT_EQ("/run/redis.sock", local->unix_path);
  EXPECT_EQ("u", local->user);
  EXPECT_EQ("p", local->password);
  EXPECT_EQ(2u, local->database);
  EXPECT_EQ("unix://u@/run/redis.sock?db=2", local->Describe());
}

TEST(RedisAddress, WrongOnesAreRefusedWithoutRepeatingThem) {
  for (std::string url :
       {"", "localhost:6379", "http://localhost", "redis://", "redis://:6379", "redis://host:0", "redis://host:65536",
        "redis://host:port", "redis://host:1x", "redis://host/x", "redis://host/-1", "redis://[::1", "redis://[::1]x",
        "redis://us%er:secret@host", "redis://u:secret%4@host", "unix://relative", "unix://", "unix:///s?x=1",
        "rediss://u:secret@host"}) {
    auto result = ParseRedisAddress(url);
    EXPECT_EQ(StoreCode::kInvalid, result.code()) << url;
    EXPECT_EQ(result.status().message().find("secret"), std::string::npos) << url;
  }
  EXPECT_EQ(StoreCode::kInvalid, ParseRedisAddress("unix:///" + std::string(107, 'x')).code());
}

TEST(RedisAddress, KnowsWhatIsLocal) {
  for (const char* url :
       {"redis://localhost", "redis://127.0.0.1", "redis://127.1.2.3", "redis://[::1]", "unix:///s"}) {
    EXPECT_TRUE(ParseRedisAddress(url)->IsLocal()) << url;
  }
  for (const char* url : {"redis://10.0.0.1", "redis://example.org", "redis://[fe80::1]", "redis://0.0.0.0",
                          "redis://localhost.example.org", "redis://127.0.0.1.example.org"}) {
    EXPECT_FALSE(ParseRedisAddress(url)->IsLocal()) << url;
  }
}

}  // namespace
}  // namespace weft::core
