#include "control_store/redis_reply.h"

#include <charconv>
#include <utility>

namespace weft::core {
namespace {

// Far beyond what weft stores or asks for; Redis's own limits are larger.
constexpr int64_t kMostTextBytes = int64_t{128} << 20;
constexpr int64_t kMostItems = 1 << 20;
constexpr size_t kMostLineBytes = 64 << 10;
constexpr size_t kMostDepth = 8;

}  // namespace

const RedisReply& RedisReply::At(size_t index) const {
  static const RedisReply nothing;
  return type == kArray && index < items.size() ? items[index] : nothing;
}

void AppendRedisCommand(std::string& out, std::span<const std::string_view> words) {
  out += '*';
  out += std::to_string(words.size());
  out += "\r\n";
  for (std::string_view word : words) {
    out += '$';
    out += std::to_string(word.size());
    out += "\r\n";
    out += word;
    out += "\r\n";
  }
}

bool RedisReplyReader::Number(std::string_view line, int64_t& number) const {
  auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
  return error == std::errc() && end == line.data() + line.size();
}

RedisReplyReader::Outcome RedisReplyReader::Next(RedisReply& reply) {
  for (;;) {
    RedisReply value;
    Outcome outcome = broken_ ? kBroken : Step(value);
    broken_ = outcome == kBroken;
    if (at_ > buffer_.size() / 2) {  // what is read goes, at a cost in proportion to what was read
      buffer_.erase(0, at_);
      at_ = 0;
    }
    if (outcome != kReply) return outcome;
    if (value.type == RedisReply::kArray && value.integer > 0) {
      const auto missing = static_cast<size_t>(std::exchange(value.integer, 0));
      stack_.push_back({std::move(value), missing});
      broken_ = stack_.size() > kMostDepth;
      continue;
    }
    while (!stack_.empty()) {
      stack_.back().array.items.push_back(std::move(value));
      if (--stack_.back().missing > 0) break;
      value = std::move(stack_.back().array);
      stack_.pop_back();
      if (stack_.empty()) {
        reply = std::move(value);
        return kReply;
      }
    }
    if (stack_.empty()) {
      reply = std::move(value);
      return kReply;
    }
  }
}

// An array comes back without its items; `integer` says how many there will be.
RedisReplyReader::Outcome RedisReplyReader::Step(RedisReply& reply) {
  if (bulk_ < 0) {
    const std::string_view rest = std::string_view(buffer_).substr(at_);
    const size_t end = rest.find("\r\n");
    if (end == rest.npos) return rest.size() > kMostLineBytes ? kBroken : kMore;
    if (end == 0 || end > kMostLineBytes) return kBroken;
    const std::string_view line = rest.substr(1, end - 1);
    const char kind = rest[0];
    int64_t number = 0;
    if (kind != '+' && kind != '-' && !Number(line, number)) return kBroken;
    at_ += end + 2;
    switch (kind) {
      case '+':
      case '-':
        reply.type = kind == '+' ? RedisReply::kText : RedisReply::kError;
        reply.text = line;
        return kReply;
      case ':':
        reply.type = RedisReply::kInteger;
        reply.integer = number;
        return kReply;
      case '*':
        if (number < -1 || number > kMostItems) return kBroken;
        reply.type = number == -1 ? RedisReply::kNil : RedisReply::kArray;
        reply.integer = number;
        return kReply;
      case '$':
        if (number < -1 || number > kMostTextBytes) return kBroken;
        if (number == -1) return kReply;  // nil
        bulk_ = number;
        break;
      default:
        return kBroken;
    }
  }
  const auto size = static_cast<size_t>(bulk_);
  if (buffer_.size() - at_ < size + 2) return kMore;
  if (buffer_.compare(at_ + size, 2, "\r\n") != 0) return kBroken;
  reply.type = RedisReply::kText;
  reply.text = buffer_.substr(at_, size);
  at_ += size + 2;
  bulk_ = -1;
  return kReply;
}

}  // namespace weft::core
