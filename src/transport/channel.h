// A two-way stream of frames between two processes. Two implementations, one contract (channel_contract_test.cc):
// RingChannel, a pair of rings in shared memory, and StreamChannel, a stream socket.
//
// Sending. BeginSend gives room for one frame, or nullptr while the peer is behind (back-pressure: try again after
// it has read). CommitSend publishes the frame; Notify wakes the peer if it sleeps. Frames arrive once and in order.
// A frame has at most MaxFrameBytes(); larger values go to the object store.
//
// Receiving. Peek shows the next frame; its bytes stay valid until Pop. A revocable frame must be claimed between the
// two. Claim() returns false if the sender has taken the frame back; then it counts as never sent.
//
// Revoking. Revoke(ticket) ends in exactly one of kRevoked and kClaimed for each ticket. On a ring the answer is
// there at once. On a socket it is kPending first, and NextRevokeOutcome gives the answer later.
//
// Threads: one sender and one receiver at a time on each side; the caller serialises (on a socket, both together).
// Nothing here blocks. A peer may die at any instruction. What it had committed can still be read, an uncommitted frame
// never shows, and Revoke reports kRevoked for a frame that the dead peer had not claimed. (On a socket that is known
// only for frames that had not left; others are reported kClaimed, which after a death means "may have run".) Ask once
// for each ticket.
#pragma once

#include <cstdint>
#include <string_view>

namespace weft::core {

struct Frame {
  uint8_t type = 0;
  bool revocable = false;
  std::string_view bytes;
};

// Names a sent revocable frame until its task has ended.
struct Ticket {
  uint32_t offset = 0;
  uint32_t sequence = 0;
};

enum class RevokeOutcome : uint8_t { kRevoked, kClaimed, kPending };

// Which thread of the peer is meant. A task concerns only a worker that waits for work; a reply concerns the waiting
// thread, or the peer's background thread if none waits.
enum class Audience : uint8_t { kExecutor, kAnyone };

class Channel {
 public:
  virtual ~Channel() = default;

  virtual uint32_t MaxFrameBytes() const = 0;
  virtual uint8_t* BeginSend(uint32_t size) = 0;
  // Ends the send begun last. `size` may be less than what was begun with.
  virtual Ticket CommitSend(uint8_t type, bool revocable, uint32_t size) = 0;
  virtual void Notify(Audience audience) = 0;

  virtual RevokeOutcome Revoke(Ticket ticket) = 0;
  virtual bool NextRevokeOutcome(Ticket* ticket, RevokeOutcome* outcome) = 0;

  virtual bool Peek(Frame* frame) = 0;
  virtual bool Claim() = 0;
  virtual void Pop() = 0;

  // The peer wrote something that no correct peer writes. Nothing more is received; treat the peer as dead.
  virtual bool broken() const = 0;
  // Gives memory that a burst needed back to the system, if nothing is in flight from this side.
  virtual void Trim() = 0;
};

}  // namespace weft::core
