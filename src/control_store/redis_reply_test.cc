#include "control_store/redis_reply.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace weft::core {
namespace {

const std::string kSample =
    "+OK\r\n-ERR "
    "no\r\n:-17\r\n$-1\r\n*-1\r\n$0\r\n\r\n*0\r\n$4\r\na\r\nb\r\n*3\r\n$1\r\n0\r\n*2\r\n$1\r\nk\r\n$1\r\nv\r\n:5\r\n+"
    "end\r\n";

std::string Print(const RedisReply& reply) {
  switch (reply.type) {
    case RedisReply::kNil:
      return "nil";
    case RedisReply::kText:
      return "'" + reply.text + "'";
    case RedisReply::kError:
      return "!" + reply.text;
    case RedisReply::kInteger:
      return std::to_string(reply.integer);
    case RedisReply::kArray:
      break;
  }
  std::string text = "[";
  for (const RedisReply& item : reply.items) text += Print(item) + ";";
  return text + "]";
}

TEST(RedisReply, IsTheSameHoweverTheBytesAreSplit) {
  const std::string expected = "'OK' !ERR no -17 nil nil '' [] 'a\r\nb' ['0';['k';'v';];5;] 'end' ";
  for (size_t step = 1; step <= kSample.size(); ++step) {
    RedisReplyReader reader;
    std::string text;
    for (size_t at = 0; at < kSample.size(); at += step) {
      reader.Feed(std::string_view(kSample).substr(at, step));
      RedisReply reply;
      while (reader.Next(reply) == RedisReplyReader::kReply) text += Print(reply) + " ";
      EXPECT_EQ(RedisReplyReader::kMore, reader.Next(reply));
    }
    EXPECT_EQ(expected, text) << step;
  }
}

TEST(RedisReply, NonsenseBreaksAndStaysBroken) {
  for (std::string bytes :
       {"HTTP/1.1 400\r\n", "\r\n", ":x\r\n", ":\r\n", ":1 \r\n", "$-2\r\n", "$9223372036854775807\r\n",
        "$99999999999999999999\r\n", "*2147483647\r\n", "*-2\r\n", "$1\r\nabc", "\x16\x03\x01\r\n",
        "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n"}) {
    RedisReplyReader reader;
    RedisReply reply;
    reader.Feed(bytes);
    EXPECT_EQ(RedisReplyReader::kBroken, reader.Next(reply)) << bytes;
    reader.Feed("+OK\r\n");
    EXPECT_EQ(RedisReplyReader::kBroken, reader.Next(reply)) << bytes;
  }
  RedisReplyReader endless;
  RedisReply reply;
  endless.Feed(std::string(100'000, '+'));
  EXPECT_EQ(RedisReplyReader::kBroken, endless.Next(reply));
}

TEST(RedisReply, AnyBytesAreSurvived) {
  Random random(3);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = kSample;
    for (uint64_t i = 0; i <= random.Below(4); ++i)
      bytes[random.Below(bytes.size())] = "*$:+-0123456789\r\nx"[random.Below(18)];
    RedisReplyReader reader;
    RedisReply reply;
    for (size_t at = 0; at < bytes.size();) {
      const size_t step = 1 + random.Below(20);
      reader.Feed(std::string_view(bytes).substr(at, step));
      at += step;
      while (reader.Next(reply) == RedisReplyReader::kReply) {
      }
    }
  }
}

TEST(RedisReply, CommandsAreWords) {
  std::string out;
  AppendRedisCommand(out, std::vector<std::string_view>{"SET", std::string_view("\0", 1), ""});
  EXPECT_EQ(std::string("*3\r\n$3\r\nSET\r\n$1\r\n\0\r\n$0\r\n\r\n", 26), out);
}

}  // namespace
}  // namespace weft::core
