// One direction of a channel: a ring of frames in shared memory with one producer and one consumer.
//
// Memory. A channel is one memfd: a page with the control words of both directions, then up to 1 MB of data for each.
// A producer begins in the first 4 kB of its data and enlarges this *window* only when load needs it, so that an idle
// channel holds three pages. Trim goes back to the first page.
//
// Positions. Frames lie one after another from an offset on; the unbroken run of them is a *lap*. When the producer
// continues elsewhere (at offset 0 again, or beyond the window to enlarge it), that is a *jump* and a new lap. A
// position is the number of the lap in the upper bits and the offset in the lower 24; positions only ever increase.
// `head` is where the next frame will be put, `tail` where the consumer reads; they are equal iff the ring is empty.
// For the last laps `jumps` says where each ended and where the next began. At most kMaxLaps laps are in flight, so an
// entry is never overwritten while the consumer needs it.
//
// Publishing. The producer writes payload, header and perhaps a jump, and then stores head (release; the consumer's
// partner is its acquire load). The consumer reads and then stores `popped` and tail (release; the producer's
// partner is its acquire load before it reuses memory). Each keeps a copy of the other's word and looks at the original
// only when the copy says full or empty. Nothing else is shared but the state word of each frame, on which the producer
// (Revoke) and the consumer (Claim) compete by compare-and-swap: one of them wins, once.
//
// Revoking without looking at foreign bytes. A ticket's offset may have been reused long ago, so the middle of some
// payload may lie there, and payloads may look like anything. The producer therefore first asks whether the frame is
// still in the ring: its sequence number is at least `popped`. The consumer stores popped before the tail that lets the
// memory be reused, and the producer has loaded that tail before it reused it, so a later load of popped is at least as
// new. A frame that passes still lies at its offset, untouched.
//
// What if a process dies here? The producer: whatever it was writing, head did not move, and the frame does not exist.
// The survivor can read all published frames. The consumer: tail stays where it was. The survivor revokes frames that
// were not claimed as usual, claimed frames are known as claimed, and frames between the stores of popped and tail were
// claimed or revoked before.
//
// The other side is input: the consumer checks every position and length before it uses it, the producer every tail. A
// value that no correct peer writes makes the side broken() for good. Payload bytes are the peer's, and may change
// while they are read; a reader that does not trust the peer copies a frame before checking it.
//
// Threads: one producer and one consumer. TSan understands all of this, as it uses no stand-alone fences.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/check.h"
#include "transport/channel.h"
#include "transport/steps.h"

namespace weft::core {

inline constexpr uint32_t kRingDataBytes = 1 << 20;
inline constexpr uint32_t kRingFirstWindowBytes = 4096;  // one page: the least that memory comes in
inline constexpr uint32_t kFrameHeaderBytes = 16;
// With its header, a quarter of the ring: an empty ring always has room for one, wherever its head stands.
inline constexpr uint32_t kMaxRingFrameBytes = kRingDataBytes / 4 - kFrameHeaderBytes;

// The control words of one direction. Producer and consumer are two lines apart, as processors fetch lines in pairs.
struct RingControl {
  static constexpr uint32_t kJumps = 4;
  alignas(128) std::atomic<uint64_t> head;  // these two are written by the producer
  std::atomic<uint64_t> jumps[kJumps];      // by lap % kJumps: end offset << 32 | start offset of the next lap
  alignas(128) std::atomic<uint64_t> tail;  // and these two by the consumer
  std::atomic<uint64_t> popped;             // frames consumed so far = sequence of the frame at tail
  std::atomic<uint64_t> wake_at;            // the consumer wants waking once so many frames were sent in all
  alignas(128) std::atomic<uint64_t> sent;  // by the producer, frames sent in all; only where wake-ups are lazy
};

// How a frame starts. The words are accessed atomically: the consumer must not see them change between check and use.
struct FrameHeader {
  enum State : uint64_t { kQueued = 0, kClaimed = 1, kRevoked = 2, kPlain = 3 };
  static constexpr uint64_t StateWord(uint32_t sequence, State state) { return uint64_t{sequence} << 2 | state; }
  static constexpr uint64_t ShapeWord(uint32_t size, uint8_t type) { return uint64_t{type} << 32 | size; }

  uint64_t state;  // sequence << 2 | State
  uint64_t shape;  // type << 32 | size; the upper bits are zero
};
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes);

// What a frame with `size` bytes of payload occupies. Frames start at multiples of 16, and so do payloads.
constexpr uint32_t FrameBytes(uint32_t size) { return (size + kFrameHeaderBytes + 15) & ~15u; }

struct RingPosition {
  static constexpr uint32_t kOffsetBits = 24;
  static constexpr uint64_t Make(uint64_t lap, uint32_t offset) { return lap << kOffsetBits | offset; }
  static constexpr uint64_t Lap(uint64_t position) { return position >> kOffsetBits; }
  static constexpr uint32_t Offset(uint64_t position) { return position & ((1u << kOffsetBits) - 1); }
};

class RingProducer {
 public:
  RingProducer(RingControl* control, uint8_t* data) : control_(control), data_(data) {}

  // Room for a payload of `size` bytes, aligned to 16, or nullptr while there is none. Nothing is visible until Commit;
  // another Begin instead forgets it.
  uint8_t* Begin(uint32_t size) {
    WEFT_CHECK(size <= kMaxRingFrameBytes, "frame larger than the channel's limit");
    begun_bytes_ = FrameBytes(size);
    begin_ = offset_;
    if (offset_ + begun_bytes_ > room_end_ && !MakeRoom(begun_bytes_)) [[unlikely]] {
      begun_bytes_ = 0;
      return nullptr;
    }
    return data_ + begin_ + kFrameHeaderBytes;
  }

  template <class Steps = Uninterrupted>
  Ticket Commit(uint8_t type, bool revocable, uint32_t size) {
    const uint32_t bytes = FrameBytes(size);
    WEFT_CHECK(bytes <= begun_bytes_, "commit of more than was begun with");
    begun_bytes_ = 0;
    const uint32_t sequence = static_cast<uint32_t>(next_sequence_++);
    auto* header = reinterpret_cast<FrameHeader*>(data_ + begin_);
    Steps::At(0);
    std::atomic_ref(header->state)
        .store(FrameHeader::StateWord(sequence, revocable ? FrameHeader::kQueued : FrameHeader::kPlain),
               std::memory_order_relaxed);
    Steps::At(1);
    std::atomic_ref(header->shape).store(FrameHeader::ShapeWord(size, type), std::memory_order_relaxed);
    Steps::At(2);
    const Ticket ticket{begin_, sequence};
    if (begin_ != offset_) Jump(begin_, begin_room_end_);
    Steps::At(3);
    offset_ = begin_ + bytes;
    control_->head.store(RingPosition::Make(lap_, offset_), std::memory_order_release);
    Steps::At(4);
    return ticket;
  }

  template <class Steps = Uninterrupted>
  RevokeOutcome Revoke(Ticket ticket) {
    const uint64_t popped = control_->popped.load(std::memory_order_acquire);
    const uint32_t age = static_cast<uint32_t>(next_sequence_) - ticket.sequence;
    // Older than everything in the ring: it was popped, and only claimed frames are popped.
    if (age == 0 || age > next_sequence_ - popped || ticket.offset % 16 != 0 || ticket.offset >= kRingDataBytes) {
      return RevokeOutcome::kClaimed;
    }
    auto* header = reinterpret_cast<FrameHeader*>(data_ + ticket.offset);
    uint64_t expected = FrameHeader::StateWord(ticket.sequence, FrameHeader::kQueued);
    Steps::At(5);
    const bool revoked =
        std::atomic_ref(header->state)
            .compare_exchange_strong(expected, FrameHeader::StateWord(ticket.sequence, FrameHeader::kRevoked));
    Steps::At(6);
    return revoked ? RevokeOutcome::kRevoked : RevokeOutcome::kClaimed;
  }

  // Lazy waking, as in virtio's event index. The producer publishes how much it has sent and then looks at which frame
  // the consumer wants waking; the consumer says so, goes to sleep in its doorbell, and then looks at what was sent.
  // All four are sequentially consistent, so at least one of the two sees the other, and no wanted wake-up is lost.
  bool WakeIsAsked() {
    control_->sent.store(next_sequence_);
    return next_sequence_ >= control_->wake_at.load();
  }

  // If the consumer has read everything, goes back to the first page and gives the others to the system.
  void Trim();

  // Any thread.
  bool broken() const { return broken_.load(std::memory_order_relaxed); }
  uint32_t window_bytes() const { return limit_; }

 private:
  // In flight at once, the current one included.
  static constexpr uint64_t kMaxLaps = RingControl::kJumps;

  struct Lap {
    uint32_t start = 0;
    uint32_t end = 0;  // of a finished lap
  };
  // What the consumer still has to read, as offsets.
  struct InFlight {
    uint32_t bytes = 0;
    uint32_t lowest = kRingDataBytes;   // first offset of the lowest run
    uint32_t highest = 0;               // end of the highest run
    uint32_t barrier = kRingDataBytes;  // first offset of the lowest run above the head
    uint64_t laps = 0;                  // finished laps that the consumer has not left
  };

  bool MakeRoom(uint32_t bytes);
  bool LoadInFlight(InFlight* in_flight);
  void Jump(uint32_t start, uint32_t room_end) {
    laps_[lap_ % kMaxLaps].end = offset_;
    control_->jumps[lap_ % RingControl::kJumps].store(uint64_t{offset_} << 32 | start, std::memory_order_relaxed);
    ++lap_;
    laps_[lap_ % kMaxLaps].start = start;
    room_end_ = room_end;
  }

  RingControl* const control_;
  uint8_t* const data_;
  uint64_t lap_ = 0;
  uint32_t offset_ = 0;                        // lap_ and offset_ are the head
  uint32_t room_end_ = kRingFirstWindowBytes;  // frames of this lap may go up to here without another look at tail
  uint32_t begin_ = 0;                         // where the frame begun goes; not offset_ iff that needs a jump
  uint32_t begin_room_end_ = 0;                // room_end_ after that jump
  uint32_t begun_bytes_ = 0;
  uint32_t limit_ = kRingFirstWindowBytes;    // the window: no run is begun or continued beyond it
  uint32_t touched_ = kRingFirstWindowBytes;  // pages beyond this have not been used since the last Trim
  uint64_t next_sequence_ = 0;
  Lap laps_[kMaxLaps];
  std::atomic<bool> broken_ = false;  // written by our thread only
};

class RingConsumer {
 public:
  RingConsumer(RingControl* control, const uint8_t* data) : control_(control), data_(const_cast<uint8_t*>(data)) {}

  // Shows the next frame that was not revoked, and drops revoked ones on the way.
  template <class Steps = Uninterrupted>
  bool Peek(Frame* frame) {
    for (;;) {
      if (offset_ == segment_end_ && !NextSegment()) return false;
      auto* header = reinterpret_cast<FrameHeader*>(data_ + offset_);
      const uint64_t state = std::atomic_ref(header->state).load(std::memory_order_relaxed);
      const uint64_t shape = std::atomic_ref(header->shape).load(std::memory_order_relaxed);
      const uint32_t size = static_cast<uint32_t>(shape);
      // In this order: FrameBytes of an absurd size would wrap.
      if (size > kMaxRingFrameBytes || FrameBytes(size) > segment_end_ - offset_ || shape >> 40 != 0 ||
          state >> 2 != static_cast<uint32_t>(popped_)) [[unlikely]] {
        return Break();
      }
      current_bytes_ = FrameBytes(size);
      current_state_ = state;
      if ((state & 3) == FrameHeader::kRevoked) [[unlikely]] {
        Pop<Steps>();
        continue;
      }
      frame->type = static_cast<uint8_t>(shape >> 32);
      frame->revocable = (state & 3) != FrameHeader::kPlain;
      frame->bytes = {reinterpret_cast<const char*>(header) + kFrameHeaderBytes, size};
      return true;
    }
  }

  // Claims the frame that Peek has shown; a frame that is not revocable counts as claimed. False if it was revoked; the
  // next Peek or Pop skips it.
  template <class Steps = Uninterrupted>
  bool Claim() {
    if (current_bytes_ == 0) return false;
    auto* header = reinterpret_cast<FrameHeader*>(data_ + offset_);
    const uint32_t sequence = static_cast<uint32_t>(popped_);
    uint64_t expected = FrameHeader::StateWord(sequence, FrameHeader::kQueued);
    if ((current_state_ & 3) == FrameHeader::kPlain) return true;
    Steps::At(10);
    const bool claimed =
        std::atomic_ref(header->state)
            .compare_exchange_strong(expected, FrameHeader::StateWord(sequence, FrameHeader::kClaimed));
    Steps::At(11);
    return claimed || expected == FrameHeader::StateWord(sequence, FrameHeader::kClaimed);
  }

  template <class Steps = Uninterrupted>
  void Pop() {
    if (current_bytes_ == 0) return;
    offset_ += current_bytes_;
    current_bytes_ = 0;
    Steps::At(12);
    control_->popped.store(++popped_, std::memory_order_relaxed);
    Steps::At(13);
    control_->tail.store(RingPosition::Make(lap_, offset_), std::memory_order_release);
    Steps::At(14);
  }

  // Any thread.
  void AskWakeAfter(uint64_t frames) {
    const uint64_t at = popped_ + frames;
    if (at == asked_) return;
    asked_ = at;
    control_->wake_at.store(at);
  }
  // May be asked while another thread reads the ring.
  bool WakeIsDue() const {
    const uint64_t sent = control_->sent.load();
    return sent >= control_->wake_at.load(std::memory_order_relaxed) &&
           sent > control_->popped.load(std::memory_order_relaxed);
  }

  bool broken() const { return broken_.load(std::memory_order_relaxed); }

 private:
  // Looks for more frames behind segment_end_: in this lap, or after a jump.
  bool NextSegment();
  bool Break() {
    broken_.store(true, std::memory_order_relaxed);
    current_bytes_ = 0;
    segment_end_ = offset_;
    return false;
  }

  RingControl* const control_;
  uint8_t* const data_;
  uint64_t lap_ = 0;
  uint32_t offset_ = 0;       // lap_ and offset_ are the tail
  uint32_t segment_end_ = 0;  // frames of this lap are known to go up to here
  uint64_t head_ = 0;         // as seen last
  uint64_t popped_ = 0;
  uint64_t asked_ = 0;
  uint32_t current_bytes_ = 0;  // of the frame that Peek has shown, 0 if none
  uint64_t current_state_ = 0;
  std::atomic<bool> broken_ = false;  // written by our thread only
};

}  // namespace weft::core
