// A Channel over a stream socket (unix or TCP): between processes of different nodes, and wherever there is no shared
// memory.
//
// The owner runs an event loop: Fill when the socket is readable, Flush when it is writable and wants_flush(), which
// may become true in any call. Neither blocks. Notify tries to flush at once. Threads: one at a time for the whole
// object. Unlike on a ring, receiving may have to answer a revoke request, so the two directions are not independent.
//
// On the wire a message is a header of 12 bytes (StreamHeader), then the payload. Every frame has the next sequence
// number; control messages name their frame. The peer is input: a header that no correct peer sends makes
// the channel broken(), before anything is allocated for it.
//
// Revoking. A frame that has not begun to leave is taken back at once. For others a request is sent; the peer answers
// "revoked" if it has not claimed the frame, otherwise "claimed". At most kMaxRevokesInFlight requests are unanswered
// at a time; the rest wait here, so that answers need a bounded buffer at the peer. When the connection has ended, a
// frame that had not left whole was certainly not claimed; for any other it is unknown, and it is reported kClaimed
// ("may have run").
//
// Back-pressure is by credit: at most kWindowBytes of frames are on the way or unpopped at the peer, each counted with
// its payload and kFrameCost; the peer gives credit as it pops. So both sides can always read their sockets to the end,
// and a request or answer is never stuck behind frames that the peer has no time for.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "os/fd.h"
#include "transport/channel.h"

namespace weft::core {

struct StreamHeader {
  enum Kind : uint8_t {
    kPlain = 0,
    kRevocable = 1,
    kVoid = 2,     // a revocable frame that was taken back before it left
    kRevoke = 3,   // a request to take it back
    kRevoked = 4,  // the answers
    kClaimed = 5,
    kCredit = 6,  // `sequence` is the cost of all frames popped since the beginning, modulo 2^32
  };
  uint32_t size;      // of the payload; 0 for the last four kinds
  uint32_t sequence;  // of the frame, or of the frame meant
  uint8_t kind;
  uint8_t type;
  uint16_t zero;
};
static_assert(sizeof(StreamHeader) == 12);

class StreamChannel final : public Channel {
 public:
  static constexpr uint32_t kMaxFrame = 256 * 1024 - 16;  // as on a ring, so that callers have one limit
  static constexpr uint32_t kWindowBytes = 1 << 20;       // likewise
  static constexpr uint32_t kFrameCost = 64;              // what a frame costs the receiver beside its payload
  static constexpr size_t kMaxRevokesInFlight = 4096;

  explicit StreamChannel(UniqueFd socket);

  int fd() const { return socket_.get(); }
  // Take in what has arrived, and send what waits. Return false once the connection has ended (received frames can
  // still be read), Fill also if the peer is broken().
  bool Fill();
  bool Flush();
  bool wants_flush() const { return !send_ended_ && unsent_start_ < unsent_.size(); }
  // The peer is gone: nothing more will arrive or can be sent.
  bool gone() const { return receive_ended_ || send_ended_; }
  // Nothing more is taken from the socket. Received frames can still be read.
  bool receive_ended() const { return receive_ended_; }
  // As if the connection had ended, and closes the socket. For a peer that is known to be dead.
  void End();

  // Frames that were committed here, and frames that were popped here, since the beginning, modulo 2^32.
  uint32_t committed_frames() const { return next_sequence_; }
  uint32_t received_frames() const { return received_; }
  uint32_t popped_frames() const { return received_ - static_cast<uint32_t>(incoming_.size()); }
  bool has_outcomes() const { return !outcomes_.empty(); }
  size_t unsent_bytes() const { return unsent_.size() - unsent_start_; }

  uint32_t MaxFrameBytes() const override { return kMaxFrame; }
  uint8_t* BeginSend(uint32_t size) override;
  Ticket CommitSend(uint8_t type, bool revocable, uint32_t size) override;
  void Notify(Audience) override { Flush(); }

  RevokeOutcome Revoke(Ticket ticket) override;
  bool NextRevokeOutcome(Ticket* ticket, RevokeOutcome* outcome) override;

  bool Peek(Frame* frame) override;
  bool Claim() override;
  void Pop() override;

  // The frame so many places behind the one that Peek shows; false: there is none, or it was revoked. For reading only;
  // valid until the next call.
  bool LookAhead(size_t places, Frame* frame) const;

  bool broken() const override { return broken_; }
  void Trim() override;

 private:
  struct Unsent {  // a revocable frame, as positions in the stream that we send
    uint32_t sequence;
    uint64_t begin;
    uint64_t end;
  };
  enum class Unread : uint8_t { kPlain, kQueued, kClaimed, kRevoked };
  struct Incoming {
    std::unique_ptr<uint8_t[]> payload;
    uint32_t size = 0;
    uint8_t type = 0;
    Unread state = Unread::kPlain;
  };

  std::deque<Unsent>::iterator FindUnsent(uint32_t sequence);
  void AppendHeader(const StreamHeader& header);
  void AppendControl(StreamHeader::Kind kind, uint32_t sequence) { AppendHeader({0, sequence, kind, 0, 0}); }
  void Parse(const uint8_t* bytes, size_t size);
  bool Handle(const StreamHeader& header);  // false if no correct peer sends it
  void FinishFrame();
  void DropPayload(Incoming* incoming);
  void Release(uint32_t cost);
  void Break();
  void EndReceiving();

  UniqueFd socket_;

  // Sending.
  std::vector<uint8_t> begun_;   // the payload between BeginSend and CommitSend
  std::vector<uint8_t> unsent_;  // messages from unsent_start_ on
  size_t unsent_start_ = 0;
  uint64_t sent_position_ = 0;  // position in the stream of unsent_[unsent_start_]
  std::deque<Unsent> unsent_frames_;
  uint32_t next_sequence_ = 0;
  uint32_t sent_cost_ = 0;  // of all frames, modulo 2^32
  uint32_t credited_ = 0;   // the part of it that the peer has given credit for
  bool send_ended_ = false;

  // Revoking what we sent.
  std::set<uint32_t> asked_;     // requests without an answer
  std::deque<uint32_t> to_ask_;  // requests that wait for their turn
  std::deque<std::pair<Ticket, RevokeOutcome>> outcomes_;

  // Receiving.
  uint8_t header_[sizeof(StreamHeader)];
  size_t header_bytes_ = 0;
  uint32_t missing_ = 0;
  StreamHeader current_{};
  Incoming in_the_making_;
  std::deque<Incoming> incoming_;  // the first has sequence received_ - incoming_.size()
  uint32_t received_ = 0;          // frames received whole
  uint32_t unread_cost_ = 0;
  uint32_t released_ = 0;   // cost of what was popped, modulo 2^32
  uint32_t announced_ = 0;  // the part of it that the peer was told of
  bool shown_ = false;      // Peek has given out the bytes of the first
  bool receive_ended_ = false;
  bool broken_ = false;
};

}  // namespace weft::core
