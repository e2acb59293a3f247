// Redis's protocol (RESP2): reads a server's replies as the bytes come, and writes commands.
//
// Bytes from a server are input: lengths are checked before anything is allocated, and memory grows with the bytes that
// have come, not with those that are announced.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::core {

struct RedisReply {
  enum Type : uint8_t { kNil, kText, kError, kInteger, kArray };
  Type type = kNil;
  std::string text;  // kText, kError
  int64_t integer = 0;
  std::vector<RedisReply> items;  // kArray

  // A missing item, or one of another type, is an empty text, or nil.
  std::string_view Text() const { return type == kText ? std::string_view(text) : std::string_view(); }
  const RedisReply& At(size_t index) const;
};

void AppendRedisCommand(std::string& out, std::span<const std::string_view> words);

class RedisReplyReader {
 public:
  enum Outcome : uint8_t { kReply, kMore, kBroken };

  void Feed(std::string_view bytes) { buffer_.append(bytes); }
  // Once broken, it stays broken.
  Outcome Next(RedisReply& reply);

 private:
  struct Open {
    RedisReply array;
    size_t missing;
  };
  Outcome Step(RedisReply& reply);  // one value that is not an unfinished array
  bool Number(std::string_view line, int64_t& number) const;

  std::string buffer_;
  size_t at_ = 0;      // read up to here
  int64_t bulk_ = -1;  // bytes of the text that comes next; -1: a line comes next
  std::vector<Open> stack_;
  bool broken_ = false;
};

}  // namespace weft::core
