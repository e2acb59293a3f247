#include "transport/stream_poller.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/clock.h"
#include "transport/shared_stream.h"

namespace weft::core {

Result<std::unique_ptr<StreamPoller>> StreamPoller::Start(std::shared_ptr<Mapping> doorbell) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  if (!epoll || !wake || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return Error{ErrorKind::kUnavailable, std::string("no descriptors for streams: ") + std::strerror(errno)};
  }
  std::unique_ptr<StreamPoller> poller(new StreamPoller(std::move(epoll), std::move(wake), std::move(doorbell)));
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  poller->thread_ = std::thread([self = poller.get()] {
    pthread_setname_np(pthread_self(), "weft-streams");
    self->Loop();
  });
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return poller;
}

StreamPoller::StreamPoller(UniqueFd epoll, UniqueFd wake, std::shared_ptr<Mapping> doorbell)
    : epoll_(std::move(epoll)), wake_(std::move(wake)), bell_(std::move(doorbell)) {}

StreamPoller::~StreamPoller() { Stop(); }

void StreamPoller::Stop() {
  ends_.store(true);
  Wake();
  if (thread_.joinable()) thread_.join();
}

void StreamPoller::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);  // full: it is awake already
}

Status StreamPoller::Add(SharedStream* stream) {
  std::lock_guard lock(stream->mutex_);
  stream->watched_ = true;
  if (!Watch(stream->channel_.fd(), stream, false, false)) {
    stream->watched_ = false;
    return Error{ErrorKind::kUnavailable, std::string("cannot watch a stream: ") + std::strerror(errno)};
  }
  return {};
}

bool StreamPoller::Watch(int fd, SharedStream* stream, bool writable, bool again) {
  epoll_event event{};
  event.events = EPOLLIN | (writable ? static_cast<uint32_t>(EPOLLOUT) : 0u);
  event.data.ptr = stream;
  return ::epoll_ctl(epoll_.get(), again ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) == 0;
}

void StreamPoller::Unwatch(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void StreamPoller::Gather(SharedStream* stream) {
  {
    std::lock_guard lock(mutex_);
    gathered_.push_back(stream);
    gathers_.store(true, std::memory_order_relaxed);
  }
  if (!lingers_.exchange(true)) Wake();
}

void StreamPoller::SendGathered() {
  std::vector<SharedStream*> streams;
  {
    std::lock_guard lock(mutex_);
    streams.swap(gathered_);
    gathers_.store(false, std::memory_order_relaxed);
  }
  for (SharedStream* stream : streams) {
    std::lock_guard lock(stream->mutex_);
    stream->gathers_ = false;
    stream->FlushHeld();
  }
}

void StreamPoller::Loop() {
  constexpr int kEvents = 64;
  epoll_event events[kEvents];
  std::vector<SharedStream*> late;  // that want RingLate
  int64_t round_at_ns = 0;          // 0: none is wanted
  while (!ends_.load()) {
    if (round_at_ns != 0) {
      // epoll_wait counts in milliseconds, which is too coarse.
      const int64_t left = round_at_ns - NowNs();
      if (left > 0) {
        pollfd one{epoll_.get(), POLLIN, 0};
        timespec timeout{0, left};
        ::ppoll(&one, 1, &timeout, nullptr);
      }
      if (NowNs() >= round_at_ns) {
        round_at_ns = 0;
        lingers_.store(false);  // before the round: who gathers from now on gets another one
        SendGathered();
        for (SharedStream* stream : late) stream->RingLate();
        late.clear();
      }
    }
    const int count = ::epoll_wait(epoll_.get(), events, kEvents, round_at_ns != 0 ? 0 : -1);
    bool asked = false;
    for (int i = 0; i < count; ++i) {
      if (auto* stream = static_cast<SharedStream*>(events[i].data.ptr)) {
        if (stream->Receive()) late.push_back(stream);
        continue;
      }
      uint64_t value;
      [[maybe_unused]] const ssize_t taken = ::read(wake_.get(), &value, sizeof value);
      asked = true;
    }
    if (round_at_ns == 0 && (!late.empty() || (asked && lingers_.load()))) {
      lingers_.store(true);
      round_at_ns = NowNs() + kLingerNs;
    }
  }
}

}  // namespace weft::core
