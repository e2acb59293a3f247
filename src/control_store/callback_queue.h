// Lets other threads make calls on the thread of an event loop: a queue and an eventfd.
//
// Post may be called from any thread; the rest on the loop's. Posted calls run in order, from the loop's Wait.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "base/result.h"
#include "os/event_loop.h"
#include "os/fd.h"

namespace weft::core {

class CallbackQueue {
 public:
  static Result<std::unique_ptr<CallbackQueue>> Create(EventLoop& loop);
  ~CallbackQueue();

  void Post(std::function<void()> call);
  // Runs the posted calls. One of them may destroy the queue.
  void Drain();

 private:
  explicit CallbackQueue(EventLoop& loop) : loop_(loop) {}

  EventLoop& loop_;
  UniqueFd wake_;
  EventLoop::WatchId watch_ = 0;
  struct Shared {  // outlives the queue while Drain runs
    std::mutex mutex;
    std::deque<std::function<void()>> calls;  // guarded by mutex
    bool open = true;                         // guarded by mutex; written on the loop's thread
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace weft::core
