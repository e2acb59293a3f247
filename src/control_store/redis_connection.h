// One connection to a Redis server: commands out, replies back, several at a time.
//
// Waiting ends when the caller says so (a descriptor becomes readable) and when the server is silent for too long; one
// wait can cover several servers. One thread. A broken connection stays broken; the owner makes another.
#pragma once

#include <sys/socket.h>

#include <deque>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "control_store/redis_address.h"
#include "control_store/redis_reply.h"
#include "os/fd.h"

namespace weft::core {

class RedisConnection {
 public:
  // Resolves the host's name, which may take as long as the system's resolver does, and connects.
  static StoreResult<std::unique_ptr<RedisConnection>> Connect(const RedisAddress& address, int64_t timeout_ms,
                                                               int stop);

  void Send(std::span<const std::string_view> words);
  void Send(std::initializer_list<std::string_view> words) { Send(std::span(words.begin(), words.size())); }

  // Waits until every sent command has its reply. The time limit is for no progress at all.
  static StoreStatus Await(std::span<RedisConnection* const> connections, int64_t timeout_ms, int stop);
  RedisReply Next();  // the replies, in order; nil if there is none

  // One command and its reply; an error reply becomes a status.
  StoreResult<RedisReply> Ask(std::initializer_list<std::string_view> words, int64_t timeout_ms, int stop);
  // The status for an error reply; ok if it is none.
  StoreStatus Judge(const RedisReply& reply) const;

  std::vector<std::string> scripts;  // the owner's: the server's names of its scripts

 private:
  explicit RedisConnection(std::string name) : name_(std::move(name)) {}
  StoreStatus Broken(const std::string& why);
  StoreStatus ConnectTo(const ::sockaddr* address, unsigned size, int64_t deadline_ns, int stop);
  StoreStatus Progress(short events);

  std::string name_;
  UniqueFd socket_;
  bool broken_ = false;
  size_t awaited_ = 0;  // commands without a reply yet
  std::string out_;
  size_t sent_ = 0;  // of out_
  RedisReplyReader reader_;
  std::deque<RedisReply> replies_;
};

}  // namespace weft::core
