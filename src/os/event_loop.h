// Waits for descriptors with epoll and calls their watchers. One thread; no timers (Wait takes a deadline).
//
// A watch may be changed or removed from inside any callback: events that were fetched for a removed watch are dropped.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "base/result.h"
#include "os/fd.h"

namespace weft::core {

class EventLoop {
 public:
  using WatchId = uint64_t;  // 0 is no watch
  using Callback = std::function<void(uint32_t epoll_events)>;

  static Result<EventLoop> Create();

  // The descriptor must stay open until Remove. An error or hang-up is always reported.
  Result<WatchId> Add(int fd, uint32_t epoll_events, Callback callback);
  void Modify(WatchId watch, uint32_t epoll_events);
  void Remove(WatchId watch);

  // Calls the watchers of ready descriptors; waits at most until the deadline on the clock of NowNs() (INT64_MAX:
  // none).
  void Wait(int64_t deadline_ns);

 private:
  explicit EventLoop(UniqueFd epoll) : epoll_(std::move(epoll)) {}
  struct Watch {
    int fd;
    uint32_t events;
    std::shared_ptr<Callback> callback;  // shared, as it may remove itself while it runs
  };

  UniqueFd epoll_;
  std::unordered_map<WatchId, Watch> watches_;
  WatchId next_ = 1;
};

}  // namespace weft::core
