#include "control_store/callback_queue.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

namespace weft::core {

Result<std::unique_ptr<CallbackQueue>> CallbackQueue::Create(EventLoop& loop) {
  std::unique_ptr<CallbackQueue> queue(new CallbackQueue(loop));
  queue->wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!queue->wake_) return Error{ErrorKind::kUnavailable, std::string("cannot make an eventfd: ") + strerror(errno)};
  auto watch = loop.Add(queue->wake_.get(), EPOLLIN, [raw = queue.get()](uint32_t) { raw->Drain(); });
  if (!watch) return watch.error();
  queue->watch_ = *watch;
  return queue;
}

CallbackQueue::~CallbackQueue() {
  if (watch_ != 0) loop_.Remove(watch_);
  std::lock_guard lock(shared_->mutex);
  shared_->open = false;
}

void CallbackQueue::Post(std::function<void()> call) {
  bool first;
  {
    std::lock_guard lock(shared_->mutex);
    first = shared_->calls.empty();
    shared_->calls.push_back(std::move(call));
  }
  uint64_t one = 1;
  if (first) [[maybe_unused]]
    auto ignored = ::write(wake_.get(), &one, sizeof one);
}

void CallbackQueue::Drain() {
  uint64_t count;
  [[maybe_unused]] auto ignored = ::read(wake_.get(), &count, sizeof count);
  std::deque<std::function<void()>> calls;
  auto shared = shared_;
  {
    std::lock_guard lock(shared->mutex);
    calls.swap(shared->calls);
  }
  for (auto& call : calls) {
    call();
    std::lock_guard lock(shared->mutex);
    if (!shared->open) return;
  }
}

}  // namespace weft::core
