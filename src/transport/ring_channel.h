// A Channel over shared memory, between two processes of one node: a ring in each direction, and the peer's doorbell.
//
// The node daemon makes the memory (CreateChannelMemory) and gives a descriptor of it and of the other's doorbell page
// to both, and tells one to be the first side. Both descriptors may be closed once the channel is open, so a thousand
// channels need none.
//
// The class is final and its paths are inline: the runtime keeps RingChannel pointers and pays for no virtual call.
// Threads: one sender (BeginSend to Revoke, Trim) and one receiver (Peek to Pop) at a time; the two may run at once.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "os/fd.h"
#include "os/memfd.h"
#include "transport/channel.h"
#include "transport/doorbell.h"
#include "transport/ring.h"

namespace weft::core {

// The first page of a channel's memory.
struct ChannelPage {
  static constexpr uint64_t kMagic = 0x31306e6863667477;  // "wtfchn01"
  static constexpr size_t kBytes = 4096;
  uint64_t magic;
  RingControl rings[2];  // rings[0] is written by the first side
};
static_assert(sizeof(ChannelPage) <= ChannelPage::kBytes);

inline constexpr size_t kChannelBytes = ChannelPage::kBytes + 2 * size_t{kRingDataBytes};

// The memory of one channel. Called by the node daemon.
Result<UniqueFd> CreateChannelMemory();

class RingChannel final : public Channel {
 public:
  // One side of a new channel. `peer_slot` is the number that the peer's doorbell knows this channel by.
  // A channel is opened once by each side; there is no way to take over a side that was used.
  static Result<std::unique_ptr<RingChannel>> Open(int channel_fd, bool first_side, std::shared_ptr<PeerDoorbell> peer,
                                                   uint32_t peer_slot);
  // On memory that is mapped already, so that both sides can live in one process (tests).
  RingChannel(std::shared_ptr<Mapping> memory, bool first_side, std::shared_ptr<PeerDoorbell> peer, uint32_t peer_slot);
  static Result<std::shared_ptr<Mapping>> MapMemory(int channel_fd);

  uint32_t MaxFrameBytes() const override { return kMaxRingFrameBytes; }
  uint8_t* BeginSend(uint32_t size) override { return producer_.Begin(size); }
  Ticket CommitSend(uint8_t type, bool revocable, uint32_t size) override {
    return producer_.Commit(type, revocable, size);
  }
  void Notify(Audience audience) override { peer_->Ring(peer_slot_, audience); }

  // Lazy waking: after CommitSend, whether the receiver wants to be notified now; and the receiver's side of it.
  bool WakeIsAsked() { return producer_.WakeIsAsked(); }
  void AskWakeAfter(uint64_t frames) { consumer_.AskWakeAfter(frames); }
  bool WakeIsDue() const { return consumer_.WakeIsDue(); }

  RevokeOutcome Revoke(Ticket ticket) override { return producer_.Revoke(ticket); }
  bool NextRevokeOutcome(Ticket*, RevokeOutcome*) override { return false; }

  bool Peek(Frame* frame) override { return consumer_.Peek(frame); }
  bool Claim() override { return consumer_.Claim(); }
  void Pop() override { consumer_.Pop(); }

  // Each side of a ring finds out for itself; the receiver may ask while the sender runs in another thread.
  bool broken() const override { return producer_.broken() || consumer_.broken(); }
  void Trim() override { producer_.Trim(); }

  // How much of the ring's memory sending holds at the moment; for tests and figures.
  uint32_t send_window_bytes() const { return producer_.window_bytes(); }

 private:
  // Constant after construction.
  std::shared_ptr<Mapping> memory_;
  std::shared_ptr<PeerDoorbell> peer_;
  uint32_t peer_slot_;
  // The sender's and the receiver's, on lines of their own: they may be two threads.
  alignas(64) RingProducer producer_;
  alignas(64) RingConsumer consumer_;
};

}  // namespace weft::core
