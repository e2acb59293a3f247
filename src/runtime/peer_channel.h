// The channel of a runtime to one peer: a ring in shared memory, or a stream to a process on another node.
//
// Rings are the common case and the hot path: each call is one predictable branch and then inline. Runtime and Executor
// use it like a ring (transport/channel.h says on which threads); shared_stream.h says what differs on a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "transport/ring_channel.h"
#include "transport/shared_stream.h"

namespace weft::core {

class PeerChannel {
 public:
  PeerChannel() = default;
  explicit PeerChannel(std::unique_ptr<RingChannel> ring) : ring_(std::move(ring)) {}
  explicit PeerChannel(std::shared_ptr<SharedStream> stream) : stream_(std::move(stream)) {}

  SharedStream* stream() const { return stream_.get(); }  // nullptr: it is a ring
  std::shared_ptr<SharedStream> shared_stream() const { return stream_; }

  uint32_t MaxFrameBytes() const { return ring_ ? ring_->MaxFrameBytes() : stream_->MaxFrameBytes(); }
  uint8_t* BeginSend(uint32_t size) {
    if (ring_) [[likely]]
      return ring_->BeginSend(size);
    return stream_->BeginSend(size);
  }
  Ticket CommitSend(uint8_t type, bool revocable, uint32_t size) {
    if (ring_) [[likely]]
      return ring_->CommitSend(type, revocable, size);
    return stream_->CommitSend(type, revocable, size);
  }
  void Notify(Audience audience) {
    if (ring_) [[likely]]
      return ring_->Notify(audience);
    stream_->Notify();
  }
  // After tasks. More may follow at once; a thread that is about to sleep calls StreamPoller::FlushLingering.
  void NotifySoon() {
    if (ring_) [[likely]]
      return ring_->Notify(Audience::kExecutor);
    stream_->NotifySoon();
  }

  bool WakeIsAsked() {
    if (ring_) [[likely]]
      return ring_->WakeIsAsked();
    return stream_->WakeIsAsked();
  }
  void AskWakeAfter(uint64_t frames) {
    if (ring_) [[likely]]
      return ring_->AskWakeAfter(frames);
    stream_->AskWakeAfter(frames);
  }
  bool WakeIsDue() const {
    if (ring_) [[likely]]
      return ring_->WakeIsDue();
    return stream_->WakeIsDue();
  }

  RevokeOutcome Revoke(Ticket ticket) {
    if (ring_) [[likely]]
      return ring_->Revoke(ticket);
    return stream_->Revoke(ticket);
  }
  bool NextRevokeOutcome(Ticket* ticket, RevokeOutcome* outcome) {
    if (ring_) [[likely]]
      return false;
    return stream_->NextRevokeOutcome(ticket, outcome);
  }

  bool Peek(Frame* frame) {
    if (ring_) [[likely]]
      return ring_->Peek(frame);
    return stream_->Peek(frame);
  }
  bool Claim() {
    if (ring_) [[likely]]
      return ring_->Claim();
    return stream_->Claim();
  }
  void Pop() {
    if (ring_) [[likely]]
      return ring_->Pop();
    stream_->Pop();
  }

  // Nothing more can be sent, although the daemon has not said that the peer is dead.
  bool gone() const { return stream_ && stream_->gone(); }

 private:
  std::unique_ptr<RingChannel> ring_;
  std::shared_ptr<SharedStream> stream_;
};

}  // namespace weft::core
