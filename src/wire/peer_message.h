// Messages between processes through the daemon (the payload of RouteTo and Routed): about borrowers, the values of
// borrowed objects, and why something waits. Several may share one payload. A payload that does not decode exactly is
// dropped whole.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wire/ids.h"

namespace weft::core {

// An observer that asks processes takes part in routing under a number with this bit, which no process has.
inline constexpr uint64_t kObserverBit = uint64_t{1} << 63;

enum class PeerMessageKind : uint8_t {
  kAddBorrower = 1,     // the receiver owns `id`: register `process` as its borrower `count` times
  kRemoveBorrower = 2,  // ... and remove `count` of its registrations
  kAskValue = 3,        // the sender borrows `id` of the receiver and wants its value
  kValue = 4,           // the answer; the sender owns `id`
  kCancelObject = 5,    // cancel the task that makes `id` of the receiver; `count`: 1 force, 2 recursive
  kCancelTask = 6,      // the receiver runs task `id.index` of the sender: cancel it; `count` likewise
  kAskWhy = 7,          // why is `id` of the receiver pending; index 0: what waits there? `count` numbers the question
  kWhy = 8,             // the answer; `bytes` is an ObjectFact or a ProcessFact (wait_facts.h)
  kHandOver = 9,        // to the driver: how to start the sender's detached actor `id`, in `bytes`
  kAfter = 10,          // what follows comes after the sender's first `count` replies on its stream to the receiver
  kAskAgain = 11,       // like kAskValue, since what lay at `location` is lost with its node
  kNotYet = 12,         // the answer to kAskValue while `id` of the sender is pending; kValue follows
};

struct PeerMessage {
  PeerMessageKind kind = PeerMessageKind::kAddBorrower;
  ObjectId id;
  ProcessId process;
  uint64_t count = 0;
  uint8_t value_kind = 0;  // ValueKind
  std::string bytes;
  Location location;
  std::vector<ObjectId> contained;  // the receiver is registered as their borrower already
};

void EncodePeerMessage(const PeerMessage& message, std::string& out);
bool DecodePeerMessages(std::string_view payload, std::vector<PeerMessage>& out);

}  // namespace weft::core
