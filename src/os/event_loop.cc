#include "os/event_loop.h"

#include <errno.h>
#include <string.h>

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"

namespace weft::core {

Result<EventLoop> EventLoop::Create() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return Error{ErrorKind::kUnavailable, std::string("cannot create an event loop: ") + strerror(errno)};
  return EventLoop(std::move(epoll));
}

Result<EventLoop::WatchId> EventLoop::Add(int fd, uint32_t epoll_events, Callback callback) {
  WatchId id = next_++;
  epoll_event event{};
  event.events = epoll_events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return Error{ErrorKind::kUnavailable, std::string("cannot watch a descriptor: ") + strerror(errno)};
  }
  watches_[id] = Watch{fd, epoll_events, std::make_shared<Callback>(std::move(callback))};
  return id;
}

void EventLoop::Modify(WatchId watch, uint32_t epoll_events) {
  auto found = watches_.find(watch);
  WEFT_CHECK(found != watches_.end(), "a watch is changed while it exists");
  if (found->second.events == epoll_events) return;
  found->second.events = epoll_events;
  epoll_event event{};
  event.events = epoll_events;
  event.data.u64 = watch;
  WEFT_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, found->second.fd, &event) == 0, "a watched descriptor is open");
}

void EventLoop::Remove(WatchId watch) {
  auto found = watches_.find(watch);
  if (found == watches_.end()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.fd, nullptr);
  watches_.erase(found);
}

void EventLoop::Wait(int64_t deadline_ns) {
  int timeout_ms = -1;
  if (deadline_ns != INT64_MAX) {
    int64_t left_ns = deadline_ns - NowNs();
    // Rounded up, or the last fraction of a millisecond would be spent turning.
    timeout_ms = left_ns <= 0 ? 0 : static_cast<int>(std::min<int64_t>((left_ns + 999'999) / 1'000'000, 1 << 30));
  }
  epoll_event events[64];
  int count = ::epoll_wait(epoll_.get(), events, 64, timeout_ms);
  for (int i = 0; i < count; ++i) {
    auto found = watches_.find(events[i].data.u64);
    if (found == watches_.end()) continue;
    auto callback = found->second.callback;
    (*callback)(events[i].events);
  }
}

}  // namespace weft::core
