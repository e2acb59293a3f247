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
#include "os/futex.h"
#include "transport/shared_stream.h"

namespace weft::core {
namespace {

constexpr int kEvents = 64;

// Waits until the descriptor is readable, or until then. Negative, with errno, if it was interrupted. (epoll_wait
// counts in milliseconds, which is too coarse here.)
int WaitReadable(int fd, int64_t deadline_ns) {
  const int64_t left = deadline_ns - NowNs();
  pollfd one{fd, POLLIN, 0};
  timespec timeout{left > 0 ? left / 1'000'000'000 : 0, left > 0 ? left % 1'000'000'000 : 0};
  return ::ppoll(&one, 1, &timeout, nullptr);
}

}  // namespace

Result<std::unique_ptr<StreamPoller>> StreamPoller::Start(std::shared_ptr<Mapping> doorbell) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
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
    : epoll_(std::move(epoll)), wake_(std::move(wake)), bell_(doorbell), own_(std::move(doorbell)) {}

StreamPoller::~StreamPoller() { Stop(); }

void StreamPoller::Stop() {
  ends_.store(true);
  Wake();
  FutexWake(&own_.waiter_word(), INT32_MAX);
  if (thread_.joinable()) thread_.join();
}

void StreamPoller::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);  // full: it is awake already
}

Status StreamPoller::Add(const std::shared_ptr<SharedStream>& stream) {
  std::lock_guard lock(stream->mutex_);
  {
    std::lock_guard own(mutex_);
    stream->watched_as_ = ++last_number_;
    watched_.emplace(stream->watched_as_, stream);
  }
  if (!Watch(stream->channel_.fd(), stream->watched_as_, false, false)) {
    std::lock_guard own(mutex_);
    watched_.erase(std::exchange(stream->watched_as_, 0));
    return Error{ErrorKind::kUnavailable, std::string("cannot watch a stream: ") + std::strerror(errno)};
  }
  return {};
}

bool StreamPoller::Watch(int fd, uint64_t number, bool writable, bool again) {
  epoll_event event{};
  event.events = EPOLLIN | (writable ? static_cast<uint32_t>(EPOLLOUT) : 0u);
  event.data.u64 = number;
  return ::epoll_ctl(epoll_.get(), again ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) == 0;
}

void StreamPoller::Unwatch(int fd, uint64_t number) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  std::lock_guard lock(mutex_);
  watched_.erase(number);
}

void StreamPoller::Gather(std::shared_ptr<SharedStream> stream) {
  {
    std::lock_guard lock(mutex_);
    gathered_.push_back(std::move(stream));
    gathers_.store(true, std::memory_order_relaxed);
  }
  if (!lingers_.exchange(true)) Wake();
}

void StreamPoller::SendGathered() {
  std::vector<std::shared_ptr<SharedStream>> streams;
  {
    std::lock_guard lock(mutex_);
    streams.swap(gathered_);
    gathers_.store(false, std::memory_order_relaxed);
  }
  for (const auto& stream : streams) {
    std::lock_guard lock(stream->mutex_);
    stream->gathers_ = false;
    stream->FlushHeld();
  }
}

bool StreamPoller::Handle(const epoll_event* events, int count) {
  bool asked = false;
  for (int i = 0; i < count; ++i) {
    if (const uint64_t number = events[i].data.u64; number != 0) {
      std::shared_ptr<SharedStream> stream;
      {
        std::lock_guard lock(mutex_);
        if (auto found = watched_.find(number); found != watched_.end()) stream = found->second;
      }
      if (stream && stream->Receive()) {
        std::lock_guard lock(mutex_);
        late_.push_back(std::move(stream));
        asked = true;
      }
      continue;
    }
    uint64_t value;
    [[maybe_unused]] const ssize_t taken = ::read(wake_.get(), &value, sizeof value);
    asked = asked || lingers_.load();
  }
  return asked;
}

void StreamPoller::Round() {
  lingers_.store(false);  // first: gathering from now on gets another round
  SendGathered();
  std::vector<std::shared_ptr<SharedStream>> late;
  {
    std::lock_guard lock(mutex_);
    late.swap(late_);
  }
  for (const auto& stream : late) stream->RingLate();
}

void StreamPoller::Loop() {
  epoll_event events[kEvents];
  int64_t round_at_ns = 0;  // 0: none is wanted
  while (!ends_.load()) {
    if (round_at_ns != 0) {
      WaitReadable(epoll_.get(), round_at_ns);
      if (NowNs() >= round_at_ns) {
        round_at_ns = 0;
        Round();
      }
    }
    const int count = ::epoll_wait(epoll_.get(), events, kEvents, round_at_ns != 0 ? 0 : -1);
    if (Handle(events, count) && round_at_ns == 0) {
      lingers_.store(true);
      round_at_ns = NowNs() + kLingerNs;
    }
    if (woke_waiter_.load(std::memory_order_relaxed) && !ends_.load()) {
      if (round_at_ns != 0) Round();
      round_at_ns = 0;
      Park();
    }
  }
}

void StreamPoller::Park() {
  woke_waiter_.store(false, std::memory_order_relaxed);
  parked_.store(true);
  uint32_t seen = entered_.load();
  int64_t tick_at_ns = NowNs() + kTickNs;
  bool deep = false;
  while (!ends_.load()) {
    const uint32_t word = own_.waiter_word().load();
    bool inside;
    {
      std::lock_guard lock(role_mutex_);
      inside = inside_;
      // Otherwise nothing would wake us. And while the word says awake it may say so again when we sleep: the waiter
      // has slept and been woken once more meanwhile, and we would sleep through it.
      deep = deep && inside && word != static_cast<uint32_t>(WaiterState::kAwake);
      deep_ = deep;
    }
    // The waiter that waits for the sockets was woken, and only we can tell it.
    if (inside && word == static_cast<uint32_t>(WaiterState::kAwake)) Wake();
    const FutexOutcome outcome = FutexWait(&own_.waiter_word(), word, deep ? kNoDeadline : tick_at_ns);
    const bool was_deep = std::exchange(deep, false);
    if (outcome != FutexOutcome::kTimedOut && !was_deep) {
      // A waiter that found us not yet parked may sleep on the same word, and the wake-up may have been meant for it.
      if (!inside) FutexWake(&own_.waiter_word());
      if (NowNs() < tick_at_ns) continue;
    }
    Round();
    tick_at_ns = NowNs() + kTickNs;
    std::lock_guard lock(role_mutex_);
    deep_ = false;
    const uint32_t now = entered_.load();
    if (now == seen && !inside_ && !was_deep) {
      parked_.store(false);
      return;
    }
    deep = now == seen && inside_;
    seen = now;
  }
  parked_.store(false);
}

bool StreamPoller::Enter() {
  if (!parked_.load(std::memory_order_relaxed)) return false;
  std::lock_guard lock(role_mutex_);
  if (!parked_.load(std::memory_order_relaxed)) return false;
  inside_ = true;
  entered_.fetch_add(1);
  return true;
}

void StreamPoller::Leave() {
  bool deep;
  {
    std::lock_guard lock(role_mutex_);
    inside_ = false;
    deep = deep_;
  }
  // It counts the ticks again, to read if no waiter comes back.
  if (deep) FutexWake(&own_.waiter_word());
}

SleepOutcome StreamPoller::WaitInside(Doorbell& waiter, int64_t deadline_ns) {
  epoll_event events[kEvents];
  int count = 0;
  if (deadline_ns == kNoDeadline) {
    count = ::epoll_wait(epoll_.get(), events, kEvents, -1);
  } else {
    count = WaitReadable(epoll_.get(), deadline_ns) < 0 ? -1 : ::epoll_wait(epoll_.get(), events, kEvents, 0);
  }
  const bool interrupted = count < 0 && errno == EINTR;
  waiter.EndSleep();  // before the bells of our own ring
  Leave();
  if (Handle(events, count)) Round();
  if (interrupted) return SleepOutcome::kInterrupted;
  return count > 0 ? SleepOutcome::kWoken : SleepOutcome::kTimedOut;
}

bool StreamPoller::ReadWhileSpinning() {
  if (!parked_.load(std::memory_order_relaxed)) return false;
  entered_.fetch_add(1, std::memory_order_relaxed);
  epoll_event events[kEvents];
  const int count = ::epoll_wait(epoll_.get(), events, kEvents, 0);
  if (count <= 0) return false;
  if (Handle(events, count)) Round();
  return true;
}

}  // namespace weft::core
