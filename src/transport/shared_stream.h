// A StreamChannel that several threads of one process use: threads that submit or take replies, the executor, and the
// thread that reads the sockets (StreamPoller). Runtime and Executor call it like a RingChannel (PeerChannel).
//
// Locking. One mutex per stream, held during each call and for nothing else; inside it only the socket is touched,
// which never blocks. It is taken inside the runtime's lock or with no lock, and nothing is locked while it is held.
// Under the runtime's lock a caller reads and writes memory only: bytes leave in Notify, after unlocking, or on the
// poller's thread. The room that BeginSend gives is the one sender's until CommitSend; the bytes that Peek shows are
// the one receiver's until Pop.
//
// Sending. After CommitSend the caller owes a Notify. Other calls that produce bytes to send (credit, a revoke request
// or its answer) ask the poller to send them, by a system call that does not write. NotifySoon gathers: within
// kGatherNs of the last write the bytes stay here until a thread is about to sleep, or until the poller has lingered.
//
// Waking. Arriving bytes alone wake no thread: the poller takes them in (Receive) and rings this process's own
// doorbell, so that all threads sleep as they do with rings. Tasks ring at once. Replies ring once the reply is there
// that AskWakeAfter asked for, and otherwise when the poller has lingered, since the sender may have run out of work
// before. AskWakeAfter, then sleeping, then WakeIsDue on one side, and counting what was received, then looking at what
// was asked, on the other, are sequentially consistent as on a ring: one of the two sees the other.
//
// A crash loses gathered frames (at most kLingerNs of the poller old) and frames in the network. So a task that had
// ended may count as one that may have run; on a ring it would not.
//
// The end of the connection is not the death of the peer. Nothing more can be sent, so pushes are refused and pending
// revokes are answered. Whether frames that had left were run is unknown until the daemon says that the peer died.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "os/fd.h"
#include "transport/channel.h"
#include "transport/stream_channel.h"

namespace weft::core {

class StreamPoller;

class SharedStream : public std::enable_shared_from_this<SharedStream> {
 public:
  static constexpr int64_t kGatherNs = 50'000;  // less than a round trip, so that awaited frames leave at once
  static constexpr size_t kGatherBytes = 16 * 1024;

  // `slot` and `audience`: what to ring in this process's own doorbell when something arrives. The poller must outlive
  // the use of the stream.
  SharedStream(UniqueFd socket, StreamPoller& poller, uint32_t slot, Audience audience);
  SharedStream(const SharedStream&) = delete;
  SharedStream& operator=(const SharedStream&) = delete;

  uint32_t MaxFrameBytes() const { return StreamChannel::kMaxFrame; }
  uint8_t* BeginSend(uint32_t size);
  Ticket CommitSend(uint8_t type, bool revocable, uint32_t size);
  void Notify();
  void NotifySoon();
  void Gather();  // the poller sends them, unless a thread does so before

  RevokeOutcome Revoke(Ticket ticket);
  bool NextRevokeOutcome(Ticket* ticket, RevokeOutcome* outcome);

  bool Peek(Frame* frame) {
    if (received_.load(std::memory_order_acquire) == popped_.load(std::memory_order_relaxed)) return false;
    return PeekReceived(frame);
  }
  bool Claim();
  void Pop();
  // Shows the frames behind the one that Peek shows, at most so many. `look` must not call back here.
  template <class Look>
  void LookAhead(size_t places, Look&& look) {
    std::lock_guard lock(mutex_);
    Frame frame;
    for (size_t place = 1; place <= places; ++place) {
      if (channel_.LookAhead(place, &frame)) look(frame);
    }
  }

  // Whether the sender should Notify now. If not, it notifies when it has nothing more to do, or calls Gather.
  bool WakeIsAsked();
  void AskWakeAfter(uint64_t frames) {
    const uint32_t at = popped_.load(std::memory_order_relaxed) + static_cast<uint32_t>(frames < kFar ? frames : kFar);
    wake_at_.store(at);
  }
  bool WakeIsDue() const {
    const uint32_t received = received_.load();
    return has_outcomes_.load() || (static_cast<int32_t>(received - wake_at_.load(std::memory_order_relaxed)) >= 0 &&
                                    received != popped_.load(std::memory_order_relaxed));
  }

  bool broken();
  void Trim();
  // Nothing more can be sent. Any thread.
  bool gone() const { return gone_.load(std::memory_order_relaxed); }
  // Everything that can ever arrive was received. Any thread.
  bool receive_ended() const { return receive_ended_.load(std::memory_order_acquire); }
  // Frames since the beginning, modulo 2^32. Any thread.
  uint32_t committed_frames() const { return committed_.load(std::memory_order_acquire); }
  uint32_t popped_frames() const { return popped_.load(std::memory_order_acquire); }

  // Blocks, without the runtime's lock. For a dead peer: takes in what it had sent, until the connection ends or the
  // deadline has passed (false), and closes the socket. Pending revokes are answered afterwards.
  bool AwaitEnd(int64_t deadline_ns);
  // Blocks too, for a process that is about to end: until everything committed is at the peer's machine. (A TCP socket
  // that is closed earlier with unread data forgets what it has not sent.)
  void AwaitSent(int64_t deadline_ns);

 private:
  friend class StreamPoller;
  static constexpr uint64_t kFar = 1u << 30;

  // For the poller, on its thread: takes in what has arrived, sends what waits, and rings. Returns true if it is to
  // call RingLate after a while.
  bool Receive();
  void RingLate();

  bool PeekReceived(Frame* frame);
  // The mutex is held.
  void Published();
  void FlushHeld();
  void WatchWritable(bool wanted);
  void Unwatch();

  StreamPoller& poller_;
  const uint32_t slot_;
  const Audience audience_;

  std::mutex mutex_;
  StreamChannel channel_;
  uint64_t watched_as_ = 0;  // the poller's number for it; 0: not watched
  bool watches_writable_ = false;
  int64_t flushed_at_ns_ = 0;
  bool owes_ring_ = false;
  bool gathers_ = false;  // is in the poller's list

  // Copies of values of channel_, to be read without the mutex.
  std::atomic<uint32_t> received_{0};
  std::atomic<uint32_t> popped_{0};
  std::atomic<uint32_t> committed_{0};
  std::atomic<uint32_t> wake_at_{0};
  std::atomic<bool> has_outcomes_{false};
  std::atomic<bool> gone_{false};
  std::atomic<bool> receive_ended_{false};
};

}  // namespace weft::core
