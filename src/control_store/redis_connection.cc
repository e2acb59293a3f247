#include "control_store/redis_connection.h"

#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/clock.h"

namespace weft::core {

void FreeRedisReply::operator()(redisReply* reply) const { freeReplyObject(reply); }

RedisConnection::~RedisConnection() {
  if (context_ != nullptr) redisFree(context_);
}

StoreStatus RedisConnection::Broken(const std::string& why) {
  broken_ = true;
  return {StoreCode::kAway, name_ + ": " + why};
}

StoreResult<std::unique_ptr<RedisConnection>> RedisConnection::Connect(const RedisAddress& address, int64_t timeout_ms,
                                                                       int stop) {
  std::unique_ptr<RedisConnection> connection(new RedisConnection(address.Describe()));
  redisContext* context = address.host.empty() ? redisConnectUnixNonBlock(address.unix_path.c_str())
                                               : redisConnectNonBlock(address.host.c_str(), address.port);
  connection->context_ = context;
  if (context == nullptr) return connection->Broken("no memory");
  if (context->err != 0) return connection->Broken(context->errstr);
  ::fcntl(context->fd, F_SETFD, FD_CLOEXEC);
  if (!address.host.empty()) redisEnableKeepAlive(context);
  pollfd ready[2] = {{context->fd, POLLOUT, 0}, {stop, POLLIN, 0}};
  const int64_t deadline_ns = NowNs() + timeout_ms * 1'000'000;
  for (;;) {
    const int64_t left_ms = (deadline_ns - NowNs() + 999'999) / 1'000'000;
    if (left_ms <= 0) return connection->Broken("does not answer");
    int count = ::poll(ready, 2, static_cast<int>(left_ms));
    if (count < 0 && errno != EINTR) return connection->Broken(strerror(errno));
    if (count > 0 && ready[1].revents != 0) return connection->Broken("the control store is being closed");
    if (count > 0 && ready[0].revents != 0) break;
  }
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(context->fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return connection->Broken(strerror(error));
  return connection;
}

void RedisConnection::Send(std::span<const std::string_view> words) {
  std::vector<const char*> data;
  std::vector<size_t> sizes;
  for (std::string_view word : words) {
    data.push_back(word.data());
    sizes.push_back(word.size());
  }
  if (redisAppendCommandArgv(context_, static_cast<int>(words.size()), data.data(), sizes.data()) != REDIS_OK) {
    broken_ = true;
  }
  ++awaited_;
  unsent_ = true;
}

StoreStatus RedisConnection::Progress(short events) {
  if ((events & POLLOUT) != 0 && unsent_) {
    int done = 0;
    if (redisBufferWrite(context_, &done) != REDIS_OK) return Broken(context_->errstr);
    unsent_ = done == 0;
  }
  if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
    if (redisBufferRead(context_) != REDIS_OK) return Broken(context_->errstr);
    while (awaited_ > 0) {
      void* reply = nullptr;
      if (redisReaderGetReply(context_->reader, &reply) != REDIS_OK) {
        return Broken("answers with something that is not Redis's protocol");
      }
      if (reply == nullptr) break;
      replies_.emplace_back(static_cast<redisReply*>(reply));
      --awaited_;
    }
  }
  return {};
}

StoreStatus RedisConnection::Await(std::span<RedisConnection* const> connections, int64_t timeout_ms, int stop) {
  int64_t deadline_ns = NowNs() + timeout_ms * 1'000'000;
  for (;;) {
    std::vector<pollfd> ready{{stop, POLLIN, 0}};
    std::vector<RedisConnection*> waiting;
    for (RedisConnection* connection : connections) {
      if (connection->broken_) return connection->Broken("the connection is lost");
      if (connection->awaited_ == 0) continue;
      ready.push_back({connection->context_->fd, static_cast<short>(POLLIN | (connection->unsent_ ? POLLOUT : 0)), 0});
      waiting.push_back(connection);
    }
    if (waiting.empty()) return {};
    const int64_t left_ms = (deadline_ns - NowNs() + 999'999) / 1'000'000;
    if (left_ms <= 0) return waiting[0]->Broken("does not answer");
    int count = ::poll(ready.data(), ready.size(), static_cast<int>(left_ms));
    if (count < 0 && errno != EINTR) return waiting[0]->Broken(strerror(errno));
    if (count <= 0) continue;
    if (ready[0].revents != 0) return waiting[0]->Broken("the control store is being closed");
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (ready[i + 1].revents == 0) continue;
      if (StoreStatus status = waiting[i]->Progress(ready[i + 1].revents); !status.ok()) return status;
    }
    deadline_ns = NowNs() + timeout_ms * 1'000'000;
  }
}

RedisReply RedisConnection::Next() {
  if (replies_.empty()) return nullptr;
  RedisReply reply = std::move(replies_.front());
  replies_.pop_front();
  return reply;
}

StoreResult<RedisReply> RedisConnection::Ask(std::initializer_list<std::string_view> words, int64_t timeout_ms,
                                             int stop) {
  Send(words);
  RedisConnection* self = this;
  if (StoreStatus status = Await({&self, 1}, timeout_ms, stop); !status.ok()) return status;
  RedisReply reply = Next();
  if (StoreStatus status = Judge(reply.get()); !status.ok()) return status;
  return reply;
}

StoreStatus RedisConnection::Judge(const redisReply* reply) const {
  if (reply == nullptr) return {StoreCode::kAway, name_ + ": no reply"};
  if (reply->type != REDIS_REPLY_ERROR) return {};
  const std::string text(reply->str, reply->len);
  // Redis 6 wraps what a command in a script met into another message: the words are looked for everywhere.
  auto says = [&](std::string_view words) { return text.find(words) != text.npos; };
  const std::string what = name_ + " says: " + text;
  if (says("OOM command not allowed")) {
    return {StoreCode::kNoSpace, what + "; raise its maxmemory or delete something"};
  }
  if (says("READONLY You can't write")) {
    return {StoreCode::kReadOnly, what + "; it is a replica, give the address of the primary"};
  }
  if (says("MISCONF") || says("NOREPLICAS")) return {StoreCode::kReadOnly, what};
  for (const char* word : {"NOAUTH", "WRONGPASS", "NOPERM", "AUTH", "DENIED", "NOPROTO"}) {
    if (text.starts_with(word) || text.starts_with(std::string("ERR ") + word)) {
      return {StoreCode::kRefused, what + "; check user and password"};
    }
  }
  if (says("NOPERM") || says("ACL failure") || says("can't run this command or subcommand")) {
    return {StoreCode::kRefused, what + "; docs/control_store.md lists what the user must be allowed"};
  }
  for (const char* word : {"LOADING", "BUSY", "MASTERDOWN", "TRYAGAIN", "NOSCRIPT", "CLUSTERDOWN", "ERR max number"}) {
    if (text.starts_with(word)) return {StoreCode::kAway, what};
  }
  if (text.starts_with("MOVED") || text.starts_with("ASK")) {
    return {StoreCode::kRefused, what + "; a Redis Cluster is not supported, give single servers"};
  }
  if (says("WRONGTYPE")) return {StoreCode::kCorrupt, what + "; somebody else has written to weft's keys"};
  return {StoreCode::kRefused, what};
}

}  // namespace weft::core
