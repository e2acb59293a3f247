// A Redis server of our own: started, watched, and started again when it dies.
//
// It lives in a folder of mode 0700, listens on a unix socket there (or on a port, if wanted), and requires a random
// password, which lies in a file of mode 0600 and is never on a command line. It writes every commit to its disk before
// it answers. It does not end with its head unless told to: a head that is started again in the same folder finds it
// running, or starts it from its files.
//
// Used on the loop's thread, which must live as long as the process. Does not wait until the server accepts
// connections: a client tries again, as after any restart.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "base/result.h"
#include "control_store/redis_address.h"
#include "os/event_loop.h"

namespace weft::core {

struct RedisServerOptions {
  std::string folder;  // made if it is missing; its parent must exist
  std::string bind;    // an address to listen on by TCP; empty: only the unix socket
  uint16_t port = 0;   // 0: a free one. Kept when the server is started again in the same folder
  bool dies_with_us = false;
  std::string program = "redis-server";
};

class RedisServer {
 public:
  static Result<std::unique_ptr<RedisServer>> Start(EventLoop& loop, RedisServerOptions options);
  ~RedisServer();  // leaves the server running, unless it dies with us

  const RedisAddress& address() const { return address_; }
  pid_t pid() const { return pid_; }
  uint32_t restarts() const { return restarts_; }

  // A server that keeps dying is started after growing pauses; then the loop calls Tick.
  int64_t next_wakeup_ns() const { return restart_at_ns_; }  // INT64_MAX: none
  void Tick(int64_t now_ns);

  // Lets it write its files and end; kills it at the deadline.
  void Stop(int64_t deadline_ns);

 private:
  RedisServer(EventLoop& loop, RedisServerOptions options) : loop_(loop), options_(std::move(options)) {}
  Status Prepare();
  bool Adopt();  // takes over a server that runs here already
  Status Launch();
  Status Watch();
  void Ended();
  void Unwatch();
  std::string Path(const char* file) const { return options_.folder + "/" + file; }

  EventLoop& loop_;
  const RedisServerOptions options_;
  RedisAddress address_;
  uint16_t port_ = 0;
  pid_t pid_ = -1;
  bool is_child_ = false;
  UniqueFd pidfd_;
  EventLoop::WatchId watch_ = 0;
  int64_t launched_ns_ = 0;
  int64_t pause_ns_ = 0;
  int64_t restart_at_ns_ = INT64_MAX;
  uint32_t restarts_ = 0;
};

}  // namespace weft::core
