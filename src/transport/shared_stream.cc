#include "transport/shared_stream.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "transport/stream_poller.h"

namespace weft::core {
namespace {

// Waits for the socket, at most until then.
void PollUntil(int fd, short events, int64_t deadline_ns) {
  const int64_t left_ms = std::max<int64_t>(0, (deadline_ns - NowNs()) / 1'000'000) + 1;
  pollfd one{fd, events, 0};
  ::poll(&one, 1, static_cast<int>(left_ms));
}

}  // namespace

SharedStream::SharedStream(UniqueFd socket, StreamPoller& poller, uint32_t slot, Audience audience)
    : poller_(poller), slot_(slot), audience_(audience), channel_(std::move(socket)) {}

uint8_t* SharedStream::BeginSend(uint32_t size) {
  std::lock_guard lock(mutex_);
  return channel_.BeginSend(size);
}

Ticket SharedStream::CommitSend(uint8_t type, bool revocable, uint32_t size) {
  std::lock_guard lock(mutex_);
  const Ticket ticket = channel_.CommitSend(type, revocable, size);
  committed_.store(channel_.committed_frames(), std::memory_order_release);
  return ticket;
}

void SharedStream::Notify() {
  std::lock_guard lock(mutex_);
  FlushHeld();
}

void SharedStream::NotifySoon() { WakeIsAsked() ? Notify() : Gather(); }

void SharedStream::Gather() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(gathers_, true)) return;
  }
  poller_.Gather(shared_from_this());
}

bool SharedStream::WakeIsAsked() {
  std::lock_guard lock(mutex_);
  return channel_.unsent_bytes() >= kGatherBytes || NowNs() - flushed_at_ns_ >= kGatherNs;
}

void SharedStream::FlushHeld() {
  if (channel_.wants_flush()) {
    channel_.Flush();
    flushed_at_ns_ = NowNs();
  }
  WatchWritable(channel_.wants_flush());
  Published();
}

void SharedStream::Published() {
  popped_.store(channel_.popped_frames(), std::memory_order_relaxed);
  if (channel_.has_outcomes() != has_outcomes_.load(std::memory_order_relaxed)) {
    has_outcomes_.store(channel_.has_outcomes());
  }
  received_.store(channel_.received_frames());
  if (channel_.gone()) gone_.store(true, std::memory_order_relaxed);
  if (channel_.receive_ended()) receive_ended_.store(true, std::memory_order_release);
}

void SharedStream::WatchWritable(bool wanted) {
  if (wanted == watches_writable_ || watched_as_ == 0) return;
  watches_writable_ = wanted;
  poller_.Watch(channel_.fd(), watched_as_, wanted, true);
}

void SharedStream::Unwatch() {
  if (watched_as_ == 0) return;
  poller_.Unwatch(channel_.fd(), std::exchange(watched_as_, 0));
}

RevokeOutcome SharedStream::Revoke(Ticket ticket) {
  std::lock_guard lock(mutex_);
  const RevokeOutcome outcome = channel_.Revoke(ticket);
  if (outcome == RevokeOutcome::kPending) WatchWritable(channel_.wants_flush());
  return outcome;
}

bool SharedStream::NextRevokeOutcome(Ticket* ticket, RevokeOutcome* outcome) {
  if (!has_outcomes_.load()) return false;
  std::lock_guard lock(mutex_);
  const bool found = channel_.NextRevokeOutcome(ticket, outcome);
  if (!channel_.has_outcomes()) has_outcomes_.store(false);
  return found;
}

bool SharedStream::PeekReceived(Frame* frame) {
  std::lock_guard lock(mutex_);
  const bool found = channel_.Peek(frame);  // drops what was revoked
  popped_.store(channel_.popped_frames(), std::memory_order_relaxed);
  if (!found) WatchWritable(channel_.wants_flush());
  return found;
}

bool SharedStream::Claim() {
  std::lock_guard lock(mutex_);
  return channel_.Claim();
}

void SharedStream::Pop() {
  std::lock_guard lock(mutex_);
  const bool had = channel_.wants_flush();
  channel_.Pop();
  popped_.store(channel_.popped_frames(), std::memory_order_release);
  if (!had) WatchWritable(channel_.wants_flush());  // credit
}

bool SharedStream::broken() {
  std::lock_guard lock(mutex_);
  return channel_.broken();
}

void SharedStream::Trim() {
  std::lock_guard lock(mutex_);
  channel_.Trim();
}

bool SharedStream::Receive() {
  bool ring = false, later = false;
  {
    std::lock_guard lock(mutex_);
    if (watched_as_ == 0) return false;
    const uint32_t before = channel_.received_frames();
    channel_.Fill();
    if (channel_.wants_flush()) FlushHeld();
    WatchWritable(channel_.wants_flush());
    Published();
    if (channel_.receive_ended()) Unwatch();
    const uint32_t received = channel_.received_frames();
    const bool asked = audience_ == Audience::kExecutor || channel_.has_outcomes() || channel_.gone() ||
                       static_cast<int32_t>(received - wake_at_.load()) >= 0;
    ring = asked && (received != before || channel_.has_outcomes() || channel_.gone());
    if (ring) {
      owes_ring_ = false;
    } else if (received != before) {
      owes_ring_ = true;
    }
    later = owes_ring_;
  }
  if (ring) poller_.Ring(slot_, audience_);
  return later;
}

void SharedStream::RingLate() {
  bool ring;
  {
    std::lock_guard lock(mutex_);
    ring = std::exchange(owes_ring_, false);
  }
  if (ring) poller_.Ring(slot_, audience_);
}

bool SharedStream::AwaitEnd(int64_t deadline_ns) {
  for (;;) {
    int fd;
    {
      std::lock_guard lock(mutex_);
      channel_.Fill();
      const bool ended = channel_.receive_ended();
      if (ended || NowNs() >= deadline_ns) {
        Unwatch();
        channel_.End();
        Published();
        return ended;
      }
      Published();
      fd = channel_.fd();  // closed by this function only
    }
    PollUntil(fd, POLLIN, deadline_ns);
  }
}

void SharedStream::AwaitSent(int64_t deadline_ns) {
  for (;;) {
    int fd;
    bool flushed;
    {
      std::lock_guard lock(mutex_);
      FlushHeld();
      if (channel_.gone() || NowNs() >= deadline_ns) return;
      flushed = !channel_.wants_flush();
      fd = channel_.fd();
    }
    if (!flushed) {
      PollUntil(fd, POLLOUT, deadline_ns);
      continue;
    }
    int domain = 0, unsent = 0;
    socklen_t size = sizeof domain;
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain == AF_UNIX) return;
    if (::ioctl(fd, SIOCOUTQ, &unsent) != 0 || unsent == 0) return;
    const timespec pause{0, 200'000};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace weft::core
