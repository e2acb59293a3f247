// One connection to a Redis server: commands out, replies back, several at a time.
//
// Built on hiredis's parser; waiting is done here, so that it ends when told to (a descriptor becomes readable), when
// the server is silent for too long, and so that several servers are waited for at once. One thread.
// Once broken, a connection stays so; the owner makes another.
#pragma once

#include <deque>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "control_store/redis_address.h"

struct redisContext;
struct redisReply;

namespace weft::core {

struct FreeRedisReply {
  void operator()(redisReply* reply) const;
};
using RedisReply = std::unique_ptr<redisReply, FreeRedisReply>;

class RedisConnection {
 public:
  // Resolves the host's name, which may take as long as the system's resolver does, and connects.
  static StoreResult<std::unique_ptr<RedisConnection>> Connect(const RedisAddress& address, int64_t timeout_ms,
                                                               int stop);
  ~RedisConnection();

  void Send(std::span<const std::string_view> words);
  void Send(std::initializer_list<std::string_view> words) { Send(std::span(words.begin(), words.size())); }

  // Until every command that was sent has its reply. The time is that without any progress.
  static StoreStatus Await(std::span<RedisConnection* const> connections, int64_t timeout_ms, int stop);
  RedisReply Next();  // the replies, in order; null: none

  // One command and its reply; an error reply becomes a status.
  StoreResult<RedisReply> Ask(std::initializer_list<std::string_view> words, int64_t timeout_ms, int stop);
  // What an error reply means for us; ok if it is none.
  StoreStatus Judge(const redisReply* reply) const;

  std::vector<std::string> scripts;  // the owner's: names under which the server knows its scripts

 private:
  explicit RedisConnection(std::string name) : name_(std::move(name)) {}
  StoreStatus Broken(const std::string& why);
  StoreStatus Progress(short events);

  std::string name_;
  redisContext* context_ = nullptr;
  bool broken_ = false;
  size_t awaited_ = 0;  // commands without a reply yet
  bool unsent_ = false;
  std::deque<RedisReply> replies_;
};

}  // namespace weft::core
