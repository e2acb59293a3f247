#include "transport/stream_channel.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"
#include "os/socket.h"

namespace weft::core {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
// What a correct peer can make us keep unsent: frames, our requests, our answers, and a little credit. Beyond that, it
// sends requests without reading the answers.
constexpr size_t kMaxUnsentBytes =
    StreamChannel::kWindowBytes + (2 * StreamChannel::kMaxRevokesInFlight + 64) * sizeof(StreamHeader);

}  // namespace

StreamChannel::StreamChannel(UniqueFd socket) : socket_(std::move(socket)) {}

uint8_t* StreamChannel::BeginSend(uint32_t size) {
  WEFT_CHECK(size <= kMaxFrame, "frame larger than the channel's limit");
  if (gone() || broken_ || sent_cost_ - credited_ + kFrameCost + size > kWindowBytes) return nullptr;
  begun_.resize(std::max<size_t>(size, 1));  // a frame without payload gets a place, too
  return begun_.data();
}

Ticket StreamChannel::CommitSend(uint8_t type, bool revocable, uint32_t size) {
  WEFT_CHECK(size <= begun_.size(), "commit of more than was begun with");
  const Ticket ticket{0, next_sequence_++};
  const uint64_t begin = sent_position_ + unsent_bytes();
  AppendHeader({size, ticket.sequence, revocable ? StreamHeader::kRevocable : StreamHeader::kPlain, type, 0});
  unsent_.insert(unsent_.end(), begun_.begin(), begun_.begin() + size);
  if (revocable) unsent_frames_.push_back({ticket.sequence, begin, sent_position_ + unsent_bytes()});
  sent_cost_ += kFrameCost + size;
  begun_.clear();
  return ticket;
}

void StreamChannel::AppendHeader(const StreamHeader& header) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&header);
  unsent_.insert(unsent_.end(), bytes, bytes + sizeof header);
}

bool StreamChannel::Flush() {
  while (wants_flush()) {
    const IoOutcome outcome =
        TrySend(socket_.get(), std::span(unsent_).subspan(unsent_start_, unsent_.size() - unsent_start_));
    if (outcome.kind == IoOutcome::kWouldBlock) break;
    if (outcome.kind == IoOutcome::kClosed) {
      send_ended_ = true;
      break;
    }
    unsent_start_ += outcome.bytes;
    sent_position_ += outcome.bytes;
  }
  while (!unsent_frames_.empty() && unsent_frames_.front().end <= sent_position_) unsent_frames_.pop_front();
  // Moving the rest down only when it is the smaller half keeps the cost per byte constant.
  if (unsent_start_ == unsent_.size()) {
    unsent_.clear();
    unsent_start_ = 0;
  } else if (unsent_start_ > unsent_.size() / 2) {
    unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<ptrdiff_t>(unsent_start_));
    unsent_start_ = 0;
  }
  return !send_ended_;
}

// The revocable frame, if the socket has not yet taken the whole of it.
std::deque<StreamChannel::Unsent>::iterator StreamChannel::FindUnsent(uint32_t sequence) {
  // Sequences wrap; those of unsent frames are close together.
  const auto before = [](const Unsent& frame, uint32_t wanted) {
    return static_cast<int32_t>(frame.sequence - wanted) < 0;
  };
  const auto found = std::lower_bound(unsent_frames_.begin(), unsent_frames_.end(), sequence, before);
  return found != unsent_frames_.end() && found->sequence == sequence ? found : unsent_frames_.end();
}

RevokeOutcome StreamChannel::Revoke(Ticket ticket) {
  if (asked_.contains(ticket.sequence)) return RevokeOutcome::kPending;
  const auto unsent = FindUnsent(ticket.sequence);
  if (unsent != unsent_frames_.end()) {
    if (gone() || broken_) {
      unsent_frames_.erase(unsent);
      return RevokeOutcome::kRevoked;  // the peer has not got the whole of it
    }
    if (unsent->begin >= sent_position_) {
      const size_t at = unsent_start_ + static_cast<size_t>(unsent->begin - sent_position_);
      unsent_[at + offsetof(StreamHeader, kind)] = StreamHeader::kVoid;
      unsent_frames_.erase(unsent);
      return RevokeOutcome::kRevoked;
    }
  }
  if (gone() || broken_) return RevokeOutcome::kClaimed;
  if (asked_.size() < kMaxRevokesInFlight) {
    asked_.insert(ticket.sequence);
    AppendControl(StreamHeader::kRevoke, ticket.sequence);
  } else {
    to_ask_.push_back(ticket.sequence);
  }
  return RevokeOutcome::kPending;
}

bool StreamChannel::NextRevokeOutcome(Ticket* ticket, RevokeOutcome* outcome) {
  if (outcomes_.empty()) return false;
  *ticket = outcomes_.front().first;
  *outcome = outcomes_.front().second;
  outcomes_.pop_front();
  return true;
}

bool StreamChannel::Fill() {
  while (!receive_ended_) {
    // Large payloads are read straight into their place.
    if (missing_ > kReadBytes) {
      const IoOutcome outcome =
          TryRecv(socket_.get(), in_the_making_.payload.get() + (in_the_making_.size - missing_), missing_);
      if (outcome.kind == IoOutcome::kWouldBlock) break;
      if (outcome.kind == IoOutcome::kClosed) {
        EndReceiving();
        break;
      }
      missing_ -= static_cast<uint32_t>(outcome.bytes);
      if (missing_ == 0) FinishFrame();
      continue;
    }
    uint8_t buffer[kReadBytes];
    const IoOutcome outcome = TryRecv(socket_.get(), buffer, sizeof buffer);
    if (outcome.kind == IoOutcome::kWouldBlock) break;
    if (outcome.kind == IoOutcome::kClosed) {
      EndReceiving();
      break;
    }
    Parse(buffer, outcome.bytes);
  }
  return !receive_ended_;
}

void StreamChannel::Parse(const uint8_t* bytes, size_t size) {
  while (size > 0 && !broken_) {
    if (missing_ > 0) {
      const size_t part = std::min<size_t>(missing_, size);
      memcpy(in_the_making_.payload.get() + (in_the_making_.size - missing_), bytes, part);
      missing_ -= static_cast<uint32_t>(part);
      bytes += part;
      size -= part;
      if (missing_ == 0) FinishFrame();
      continue;
    }
    const size_t part = std::min(sizeof header_ - header_bytes_, size);
    memcpy(header_ + header_bytes_, bytes, part);
    header_bytes_ += part;
    bytes += part;
    size -= part;
    if (header_bytes_ < sizeof header_) return;
    header_bytes_ = 0;
    memcpy(&current_, header_, sizeof current_);
    if (!Handle(current_)) Break();
  }
}

bool StreamChannel::Handle(const StreamHeader& header) {
  if (header.zero != 0) return false;
  switch (header.kind) {
    case StreamHeader::kPlain:
    case StreamHeader::kRevocable:
    case StreamHeader::kVoid: {
      if (header.size > kMaxFrame || header.sequence != received_) return false;
      if (unread_cost_ + kFrameCost + header.size > kWindowBytes) return false;  // more than it has credit for
      in_the_making_ = Incoming{};
      in_the_making_.size = header.size;
      in_the_making_.type = header.type;
      in_the_making_.state = header.kind == StreamHeader::kPlain       ? Unread::kPlain
                             : header.kind == StreamHeader::kRevocable ? Unread::kQueued
                                                                       : Unread::kRevoked;
      missing_ = header.size;
      if (missing_ == 0) {
        FinishFrame();
      } else {
        in_the_making_.payload = std::make_unique_for_overwrite<uint8_t[]>(header.size);
      }
      return true;
    }
    case StreamHeader::kRevoke: {
      if (header.size != 0 || unsent_bytes() > kMaxUnsentBytes) return false;
      const uint32_t age = received_ - header.sequence;  // 1 for the frame received last
      if (age == 0 || static_cast<int32_t>(age) < 0) return false;
      bool revoked = false;
      if (age <= incoming_.size()) {
        Incoming& frame = incoming_[incoming_.size() - age];
        if (frame.state == Unread::kPlain) return false;
        if (frame.state == Unread::kQueued) {
          frame.state = Unread::kRevoked;
          revoked = true;
          if (age != incoming_.size() || !shown_) DropPayload(&frame);
        }
      }
      if (!send_ended_) AppendControl(revoked ? StreamHeader::kRevoked : StreamHeader::kClaimed, header.sequence);
      return true;
    }
    case StreamHeader::kRevoked:
    case StreamHeader::kClaimed: {
      if (header.size != 0 || asked_.erase(header.sequence) == 0) return false;
      outcomes_.emplace_back(Ticket{0, header.sequence},
                             header.kind == StreamHeader::kRevoked ? RevokeOutcome::kRevoked : RevokeOutcome::kClaimed);
      if (!to_ask_.empty() && !send_ended_) {
        asked_.insert(to_ask_.front());
        AppendControl(StreamHeader::kRevoke, to_ask_.front());
        to_ask_.pop_front();
      }
      return true;
    }
    case StreamHeader::kCredit:
      if (header.size != 0 || header.sequence - credited_ > sent_cost_ - credited_) return false;
      credited_ = header.sequence;
      return true;
  }
  return false;
}

void StreamChannel::FinishFrame() {
  ++received_;
  unread_cost_ += kFrameCost + in_the_making_.size;
  incoming_.push_back(std::move(in_the_making_));
  if (incoming_.back().state == Unread::kRevoked) DropPayload(&incoming_.back());
}

void StreamChannel::DropPayload(Incoming* incoming) {
  Release(incoming->size);
  incoming->size = 0;
  incoming->payload.reset();
}

// Tells the peer only now and then: a quarter of the window may stay unannounced, and three are enough for any frame.
void StreamChannel::Release(uint32_t cost) {
  unread_cost_ -= cost;
  released_ += cost;
  if (released_ - announced_ < kWindowBytes / 4 || send_ended_) return;
  announced_ = released_;
  AppendControl(StreamHeader::kCredit, released_);
}

bool StreamChannel::Peek(Frame* frame) {
  while (!incoming_.empty() && incoming_.front().state == Unread::kRevoked) Pop();
  if (incoming_.empty() || broken_) return false;
  const Incoming& first = incoming_.front();
  shown_ = true;
  frame->type = first.type;
  frame->revocable = first.state != Unread::kPlain;
  frame->bytes = {reinterpret_cast<const char*>(first.payload.get()), first.size};
  return true;
}

bool StreamChannel::LookAhead(size_t places, Frame* frame) const {
  if (places >= incoming_.size() || broken_ || incoming_[places].state == Unread::kRevoked) return false;
  const Incoming& found = incoming_[places];
  frame->type = found.type;
  frame->revocable = found.state != Unread::kPlain;
  frame->bytes = {reinterpret_cast<const char*>(found.payload.get()), found.size};
  return true;
}

bool StreamChannel::Claim() {
  if (incoming_.empty() || !shown_) return false;
  Incoming& first = incoming_.front();
  if (first.state == Unread::kQueued) first.state = Unread::kClaimed;
  return first.state != Unread::kRevoked;
}

void StreamChannel::Pop() {
  if (incoming_.empty()) return;
  Release(kFrameCost + incoming_.front().size);
  incoming_.pop_front();
  shown_ = false;
}

void StreamChannel::Break() {
  broken_ = true;
  EndReceiving();
}

void StreamChannel::EndReceiving() {
  receive_ended_ = true;
  // No answer will come. A frame that had left whole may have run.
  to_ask_.insert(to_ask_.begin(), asked_.begin(), asked_.end());
  asked_.clear();
  for (uint32_t sequence : to_ask_) {
    const bool left = FindUnsent(sequence) == unsent_frames_.end();
    outcomes_.emplace_back(Ticket{0, sequence}, left ? RevokeOutcome::kClaimed : RevokeOutcome::kRevoked);
  }
  to_ask_.clear();
}

void StreamChannel::End() {
  if (!receive_ended_) EndReceiving();
  send_ended_ = true;
  socket_.Reset();
}

void StreamChannel::Trim() {
  if (unsent_.empty()) unsent_.shrink_to_fit();
  if (begun_.empty()) begun_.shrink_to_fit();
}

}  // namespace weft::core
