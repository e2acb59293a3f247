// The control store of a head, opened as its options say: in memory, SQLite, or Redis servers, some of which may be
// started here; and the lock that keeps a second head with the same state from this machine.
//
// Owned by the Cluster of a head, on its loop thread. What is written to it is the business of Head.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "control_store/control_store.h"
#include "control_store/redis_server.h"
#include "node/lasting_node.h"
#include "os/event_loop.h"
#include "os/fd.h"

namespace weft::core {

class HeadStore {
 public:
  static Result<std::unique_ptr<HeadStore>> Open(EventLoop& loop, const LastingNodeOptions& options);
  ~HeadStore();

  ControlStore& store() { return *store_; }
  // Waits for a moment at most until what was committed is written, and the resignation with it.
  void End(bool resigned);

  int64_t NextDeadline() const;
  void Tick(int64_t now_ns);

 private:
  HeadStore() = default;
  Status OpenStore(EventLoop& loop, const LastingNodeOptions& options);

  UniqueFd lock_;  // on this machine, no other head of this address; none of one that keeps nothing
  std::vector<std::unique_ptr<RedisServer>> servers_;
  std::unique_ptr<ControlStore> store_;
};

}  // namespace weft::core
