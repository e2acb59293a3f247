#include "transport/ring_channel.h"

#include <string>
#include <utility>

namespace weft::core {
namespace {

ChannelPage* PageOf(const Mapping& memory) { return reinterpret_cast<ChannelPage*>(memory.data()); }

}  // namespace

Result<UniqueFd> CreateChannelMemory() {
  auto fd = CreateMemfd("channel", kChannelBytes);
  if (!fd) return fd;
  auto page = Mapping::Map(fd->get(), ChannelPage::kBytes, Mapping::Access::kReadWrite);
  if (!page) return page.error();
  // All else starts as zero: two empty rings.
  PageOf(*page)->magic = ChannelPage::kMagic;
  return fd;
}

Result<std::shared_ptr<Mapping>> RingChannel::MapMemory(int channel_fd) {
  if (Status status = CheckSealedMemfd(channel_fd, kChannelBytes); !status) return status.error();
  auto mapping = Mapping::Map(channel_fd, kChannelBytes, Mapping::Access::kReadWrite);
  if (!mapping) return mapping.error();
  PreferSmallPages(mapping->data(), mapping->size());
  if (PageOf(*mapping)->magic != ChannelPage::kMagic) {
    return Error{ErrorKind::kInvalid, "the shared memory that was received is not a channel"};
  }
  return std::make_shared<Mapping>(std::move(*mapping));
}

Result<std::unique_ptr<RingChannel>> RingChannel::Open(int channel_fd, bool first_side,
                                                       std::shared_ptr<PeerDoorbell> peer, uint32_t peer_slot) {
  if (peer_slot >= kDoorbellSlots) {
    return Error{ErrorKind::kInvalid, "doorbell slot " + std::to_string(peer_slot) + " does not exist"};
  }
  auto memory = MapMemory(channel_fd);
  if (!memory) return memory.error();
  const RingControl& outgoing = PageOf(**memory)->rings[first_side ? 0 : 1];
  if (outgoing.head.load(std::memory_order_relaxed) != 0) {
    return Error{ErrorKind::kInvalid, "this side of the channel was used before"};
  }
  return std::make_unique<RingChannel>(std::move(*memory), first_side, std::move(peer), peer_slot);
}

RingChannel::RingChannel(std::shared_ptr<Mapping> memory, bool first_side, std::shared_ptr<PeerDoorbell> peer,
                         uint32_t peer_slot)
    : memory_(std::move(memory)),
      peer_(std::move(peer)),
      peer_slot_(peer_slot),
      producer_(&PageOf(*memory_)->rings[first_side ? 0 : 1],
                memory_->data() + ChannelPage::kBytes + (first_side ? 0 : kRingDataBytes)),
      consumer_(&PageOf(*memory_)->rings[first_side ? 1 : 0],
                memory_->data() + ChannelPage::kBytes + (first_side ? kRingDataBytes : 0)) {
  peer_->Adopt(peer_slot_);
}

}  // namespace weft::core
