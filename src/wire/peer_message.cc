#include "wire/peer_message.h"

#include "base/bytes.h"

namespace weft::core {

void EncodePeerMessage(const PeerMessage& message, std::string& out) {
  ByteWriter w;
  w.Fixed(message.kind);
  w.Fixed(message.id);
  if (message.kind == PeerMessageKind::kAddBorrower || message.kind == PeerMessageKind::kRemoveBorrower) {
    w.Fixed(message.process);
    w.Fixed(message.count);
  } else if (message.kind == PeerMessageKind::kCancelObject || message.kind == PeerMessageKind::kCancelTask ||
             message.kind == PeerMessageKind::kAfter) {
    w.Fixed(message.count);
  } else if (message.kind == PeerMessageKind::kAskAgain) {
    w.Fixed(message.location);
  } else if (message.kind == PeerMessageKind::kValue) {
    w.Fixed(message.value_kind);
    w.Fixed(message.location);
    w.Bytes(message.bytes);
    w.Fixed(static_cast<uint32_t>(message.contained.size()));
    for (ObjectId id : message.contained) w.Fixed(id);
  } else if (message.kind == PeerMessageKind::kAskWhy || message.kind == PeerMessageKind::kWhy ||
             message.kind == PeerMessageKind::kHandOver) {
    w.Fixed(message.count);
    w.Bytes(message.bytes);
  }
  out += w.view();
}

bool DecodePeerMessages(std::string_view payload, std::vector<PeerMessage>& out) {
  ByteReader r(payload);
  while (r.ok() && !r.AtEnd()) {
    PeerMessage message;
    message.kind = static_cast<PeerMessageKind>(r.Fixed<uint8_t>());
    message.id = r.Fixed<ObjectId>();
    switch (message.kind) {
      case PeerMessageKind::kAddBorrower:
      case PeerMessageKind::kRemoveBorrower:
        message.process = r.Fixed<ProcessId>();
        message.count = r.Fixed<uint64_t>();
        if (message.count > (1ull << 40)) return false;
        break;
      case PeerMessageKind::kAskValue:
      case PeerMessageKind::kNotYet:
        break;
      case PeerMessageKind::kAskAgain:
        message.location = r.Fixed<Location>();
        break;
      case PeerMessageKind::kCancelObject:
      case PeerMessageKind::kCancelTask:
      case PeerMessageKind::kAfter:
        message.count = r.Fixed<uint64_t>();
        break;
      case PeerMessageKind::kValue: {
        message.value_kind = r.Fixed<uint8_t>();
        message.location = r.Fixed<Location>();
        message.bytes = r.Bytes();
        auto count = r.Fixed<uint32_t>();
        if (count > r.remaining() / sizeof(ObjectId)) return false;
        message.contained.reserve(count);
        for (uint32_t i = 0; i < count; ++i) message.contained.push_back(r.Fixed<ObjectId>());
        break;
      }
      case PeerMessageKind::kAskWhy:
      case PeerMessageKind::kWhy:
      case PeerMessageKind::kHandOver:
        message.count = r.Fixed<uint64_t>();
        message.bytes = r.Bytes();
        break;
      default:
        return false;
    }
    out.push_back(std::move(message));
  }
  return r.ok();
}

}  // namespace weft::core
