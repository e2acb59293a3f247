#include "control_store/redis_connection.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>

#include "base/clock.h"
#include "os/socket.h"

namespace weft::core {

StoreStatus RedisConnection::Broken(const std::string& why) {
  broken_ = true;
  return {StoreCode::kAway, name_ + ": " + why};
}

StoreResult<std::unique_ptr<RedisConnection>> RedisConnection::Connect(const RedisAddress& address, int64_t timeout_ms,
                                                                       int stop) {
  std::unique_ptr<RedisConnection> connection(new RedisConnection(address.Describe()));
  const int64_t deadline_ns = NowNs() + timeout_ms * 1'000'000;
  if (address.host.empty()) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    if (address.unix_path.size() >= sizeof name.sun_path) return connection->Broken("too long for a unix socket");
    memcpy(name.sun_path, address.unix_path.data(), address.unix_path.size());
    StoreStatus status =
        connection->ConnectTo(reinterpret_cast<const sockaddr*>(&name), sizeof name, deadline_ns, stop);
    if (!status.ok()) return status;
    return connection;
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (int error = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
      error != 0) {
    return connection->Broken(::gai_strerror(error));
  }
  StoreStatus status(StoreCode::kAway, connection->name_ + ": has no address");
  for (const addrinfo* one = found; one != nullptr && !status.ok(); one = one->ai_next) {
    connection->broken_ = false;
    status = connection->ConnectTo(one->ai_addr, one->ai_addrlen, deadline_ns, stop);
  }
  ::freeaddrinfo(found);
  if (!status.ok()) return status;
  return connection;
}

StoreStatus RedisConnection::ConnectTo(const sockaddr* address, unsigned size, int64_t deadline_ns, int stop) {
  socket_.Reset(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_) return Broken(strerror(errno));
  if (address->sa_family != AF_UNIX) {
    int on = 1, idle_s = 15;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  }
  if (::connect(socket_.get(), address, size) == 0) return {};
  if (errno != EINPROGRESS) return Broken(strerror(errno));
  pollfd ready[2] = {{socket_.get(), POLLOUT, 0}, {stop, POLLIN, 0}};
  for (;;) {
    const int64_t left_ms = (deadline_ns - NowNs() + 999'999) / 1'000'000;
    if (left_ms <= 0) return Broken("does not answer");
    int count = ::poll(ready, 2, static_cast<int>(left_ms));
    if (count < 0 && errno != EINTR) return Broken(strerror(errno));
    if (count > 0 && ready[1].revents != 0) return Broken("the control store is being closed");
    if (count > 0 && ready[0].revents != 0) break;
  }
  int error = 0;
  socklen_t error_size = sizeof error;
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &error_size);
  if (error == ECONNREFUSED)
    return Broken("nothing listens there (Connection refused): is Redis started, at this port?");
  if (error != 0) return Broken(strerror(error));
  return {};
}

void RedisConnection::Send(std::span<const std::string_view> words) {
  AppendRedisCommand(out_, words);
  ++awaited_;
}

StoreStatus RedisConnection::Progress(short events) {
  if ((events & POLLOUT) != 0) {
    IoOutcome sent =
        TrySend(socket_.get(), {reinterpret_cast<const uint8_t*>(out_.data()) + sent_, out_.size() - sent_});
    if (sent.kind == IoOutcome::kClosed) return Broken(sent.error != 0 ? strerror(sent.error) : "has closed");
    if (sent.kind == IoOutcome::kDone) sent_ += sent.bytes;
    if (sent_ == out_.size()) {
      out_.clear();
      sent_ = 0;
    }
  }
  if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
    uint8_t bytes[64 << 10];
    IoOutcome received = TryRecv(socket_.get(), bytes, sizeof bytes);
    if (received.kind == IoOutcome::kClosed) {
      return Broken(received.error != 0 ? strerror(received.error) : "has closed the connection");
    }
    if (received.kind == IoOutcome::kDone) reader_.Feed({reinterpret_cast<const char*>(bytes), received.bytes});
    while (awaited_ > 0) {
      RedisReply reply;
      const RedisReplyReader::Outcome outcome = reader_.Next(reply);
      if (outcome == RedisReplyReader::kBroken) {
        return Broken("answers with something that is not Redis's protocol");
      }
      if (outcome == RedisReplyReader::kMore) break;
      replies_.push_back(std::move(reply));
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
      const bool unsent = connection->sent_ < connection->out_.size();
      ready.push_back({connection->socket_.get(), static_cast<short>(POLLIN | (unsent ? POLLOUT : 0)), 0});
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
  if (replies_.empty()) return {};
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
  if (StoreStatus status = Judge(reply); !status.ok()) return status;
  return reply;
}

StoreStatus RedisConnection::Judge(const RedisReply& reply) const {
  if (reply.type != RedisReply::kError) return {};
  const std::string& text = reply.text;
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
  if (text.starts_with("NOAUTH")) {
    return {StoreCode::kRefused, what + " It asks for a password: --redis-password-file=FILE, and a user in the URL, " +
                                     "redis://USER@HOST, unless it is the default one"};
  }
  for (const char* word : {"WRONGPASS", "AUTH", "DENIED", "NOPROTO"}) {
    if (text.starts_with(word) || text.starts_with(std::string("ERR ") + word)) {
      return {StoreCode::kRefused, what + "; check user and password"};
    }
  }
  if (says("NOPERM") || says("ACL failure") || says("can't run this command or subcommand") ||
      says("can't access at least one of the keys")) {
    // "... to run the 'info' command": the right has the command's name.
    const size_t open = text.find('\''), close = open == text.npos ? text.npos : text.find('\'', open + 1);
    const std::string right = close != text.npos ? " (+" + text.substr(open + 1, close - open - 1) + ")"
                              : says("keys")     ? " (~weft:*)"
                                                 : "";
    return {StoreCode::kRefused,
            what + "; the user needs this right" + right + "; docs/control_store.md lists all that are needed"};
  }
  for (const char* word : {"LOADING", "BUSY", "MASTERDOWN", "TRYAGAIN", "NOSCRIPT", "CLUSTERDOWN", "ERR max number"}) {
    if (text.starts_with(word)) return {StoreCode::kAway, what};
  }
  if (text.starts_with("MOVED") || text.starts_with("ASK")) {
    return {StoreCode::kRefused, what + "; a Redis Cluster is not supported, give single servers"};
  }
  if (says("WRONGTYPE")) return {StoreCode::kCorrupt, what + "; another program has written to weft's keys"};
  return {StoreCode::kRefused, what};
}

}  // namespace weft::core
