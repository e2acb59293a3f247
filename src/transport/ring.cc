#include "transport/ring.h"

#include <algorithm>

#include "os/memfd.h"

namespace weft::core {

// Adds up the runs of frames between tail and head. False, and broken, if tail is not a place we ever wrote to.
bool RingProducer::LoadInFlight(InFlight* in_flight) {
  if (broken()) return false;
  const uint64_t tail = control_->tail.load(std::memory_order_acquire);
  const uint64_t tail_lap = RingPosition::Lap(tail);
  const uint32_t tail_offset = RingPosition::Offset(tail);
  if (tail_lap > lap_ || lap_ - tail_lap >= kMaxLaps || tail_offset % 16 != 0) {
    broken_.store(true, std::memory_order_relaxed);
    return false;
  }
  in_flight->laps = lap_ - tail_lap;
  for (uint64_t lap = tail_lap; lap <= lap_; ++lap) {
    uint32_t start = laps_[lap % kMaxLaps].start;
    const uint32_t end = lap == lap_ ? offset_ : laps_[lap % kMaxLaps].end;
    if (lap == tail_lap) {
      if (tail_offset < start || tail_offset > end) {
        broken_.store(true, std::memory_order_relaxed);
        return false;
      }
      start = tail_offset;
    }
    if (start == end) continue;
    in_flight->bytes += end - start;
    in_flight->lowest = std::min(in_flight->lowest, start);
    in_flight->highest = std::max(in_flight->highest, end);
    if (start >= offset_) in_flight->barrier = std::min(in_flight->barrier, start);
  }
  return true;
}

// Decides where a frame goes that does not fit where the last one ended. Prefers memory that was used already while
// the consumer keeps up, and more memory when it does not.
bool RingProducer::MakeRoom(uint32_t bytes) {
  InFlight in_flight;
  if (!LoadInFlight(&in_flight)) return false;
  const bool nothing_above = in_flight.barrier == kRingDataBytes;
  room_end_ = nothing_above ? std::max(limit_, offset_) : in_flight.barrier;
  if (offset_ + bytes <= room_end_) return true;

  const auto grown = [](uint32_t limit, uint32_t end) {
    while (limit < end && limit < kRingDataBytes) limit *= 2;
    return limit;
  };
  const bool may_jump = in_flight.laps + 1 < kMaxLaps;

  // The consumer keeps up: start again at the front. If it keeps up so well that a fraction of the window would do,
  // use half of it from now on; the pages stay, for the next burst.
  if (may_jump && in_flight.bytes * 4 <= limit_) {
    uint32_t limit = limit_;
    if (in_flight.bytes * 16 <= limit_ && limit_ > kRingFirstWindowBytes) limit /= 2;
    if (in_flight.bytes == 0) limit = grown(limit, bytes);
    const uint32_t room_end = std::min(limit, in_flight.lowest);
    if (bytes <= room_end && offset_ != 0) {
      limit_ = limit;
      touched_ = std::max(touched_, limit_);
      begin_ = 0;
      begin_room_end_ = room_end;
      return true;
    }
  }
  // It does not: enlarge the window, where we are or, if frames lie in the way, beyond them.
  const uint32_t start = nothing_above ? offset_ : std::max(limit_, in_flight.highest);
  const uint32_t limit = grown(limit_, start + bytes);
  if ((nothing_above || may_jump) && start + bytes <= limit) {
    limit_ = limit;
    touched_ = std::max(touched_, limit_);
    if (start == offset_) {
      room_end_ = limit;
    } else {
      begin_ = start;
      begin_room_end_ = limit;
    }
    return true;
  }
  // The window has its full size. Use what is free at the front.
  if (may_jump && bytes <= in_flight.lowest && offset_ != 0) {
    begin_ = 0;
    begin_room_end_ = std::min(in_flight.lowest, kRingDataBytes);
    return true;
  }
  return false;
}

void RingProducer::Trim() {
  if (touched_ <= kRingFirstWindowBytes) return;
  InFlight in_flight;
  if (!LoadInFlight(&in_flight) || in_flight.bytes != 0 || in_flight.laps + 1 >= kMaxLaps) return;
  if (offset_ != 0) {
    Jump(0, kRingFirstWindowBytes);
    offset_ = 0;
    // The consumer, which has nothing to read, follows without touching the pages that we discard now.
    control_->head.store(RingPosition::Make(lap_, 0), std::memory_order_release);
  }
  begun_bytes_ = 0;
  limit_ = room_end_ = kRingFirstWindowBytes;
  DiscardPages(data_ + kRingFirstWindowBytes, touched_ - kRingFirstWindowBytes);
  touched_ = kRingFirstWindowBytes;
}

bool RingConsumer::NextSegment() {
  if (broken()) return false;
  for (;;) {
    const uint64_t head = control_->head.load(std::memory_order_acquire);
    const uint64_t head_lap = RingPosition::Lap(head);
    const uint32_t head_offset = RingPosition::Offset(head);
    if (head == RingPosition::Make(lap_, offset_)) return false;
    if (head < head_ || head_lap < lap_ || head_lap - lap_ >= RingControl::kJumps || head_offset % 16 != 0 ||
        head_offset > kRingDataBytes) {
      return Break();
    }
    head_ = head;
    if (head_lap == lap_) {
      if (head_offset < offset_) return Break();
      segment_end_ = head_offset;
      return true;
    }
    const uint64_t jump = control_->jumps[lap_ % RingControl::kJumps].load(std::memory_order_relaxed);
    const uint32_t end = static_cast<uint32_t>(jump >> 32);
    const uint32_t next = static_cast<uint32_t>(jump);
    if (end % 16 != 0 || end > kRingDataBytes || end < offset_ || next % 16 != 0 || next > kRingDataBytes) {
      return Break();
    }
    if (offset_ < end) {
      segment_end_ = end;
      return true;
    }
    ++lap_;
    offset_ = segment_end_ = next;
  }
}

}  // namespace weft::core
