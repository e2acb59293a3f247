// What node daemons tell each other over links (transport/link.h). The first byte says which; docs/formats.md.
//
// A peer is authenticated, but its bytes are input all the same: what does not decode exactly ends the link.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "wire/ids.h"
#include "wire/labels.h"
#include "wire/messages.h"

namespace weft::core {

inline constexpr uint32_t kNodeProtocolVersion = 1;

constexpr NodeNumber NodeOf(ProcessId process) { return {static_cast<uint32_t>(process.value >> 32)}; }
constexpr NodeNumber NodeOf(SegmentId segment) { return {static_cast<uint32_t>(segment.value >> 32)}; }

// ---- the hello of a link: what the connection is for, said by who dials; the listener's is empty
enum class LinkPurpose : uint8_t {
  kJoin = 1,     // a node to the head, for as long as it is a member; both ways
  kNode = 2,     // a node to another, one way
  kChannel = 3,  // becomes the channel of two processes
};
struct NodeHello {
  uint8_t purpose = 0;  // LinkPurpose
  NodeNumber node;      // the dialler's; of kJoin: 0
  // kChannel: who submits and who runs
  ProcessId submitter;
  ProcessId worker;
};
std::string EncodeHello(const NodeHello& hello);
bool DecodeHello(std::string_view bytes, NodeHello* hello);

// ---- membership
struct NodeJoins {  // to the head, first of all
  NodeNumber was;   // the number that it had, or 0
  uint64_t epoch = 0;
  uint64_t beat = 0;
  uint32_t protocol = kNodeProtocolVersion;
  NodeIdentity identity;
  std::string name;
  std::string address;  // where others reach it
  ResourceAmounts resources;
  NodeLabels labels;
};
struct NodeAccepted {
  NodeNumber node;
  NodeNumber head;  // the head's own
  uint64_t epoch = 0;
  uint64_t beat = 0;
  int64_t lease_ns = 0;
};
struct NodeRefused {
  uint8_t dead = 0;  // 1: it was declared dead, and may join again as a new one
  std::string why;
};
struct NodeBeat {
  uint64_t beat = 0;
  uint64_t epoch = 0;
};
struct BeatConfirmed {
  uint64_t beat = 0;
  uint64_t epoch = 0;
};
struct NodeAppeared {  // from the head, to all
  NodeNumber node;
  std::string name;
  std::string address;
  ResourceAmounts resources;
};
struct NodeVanished {  // its processes are dead
  NodeNumber node;
  std::string why;
};
struct NodesListed {  // from the head, to one that was accepted: whoever is not among these is gone
  std::vector<NodeNumber> nodes;
};
struct NodeFarewell {};

// ---- scheduling
struct NodeLoad {  // to the head, when it has changed (NodeReported)
  uint64_t placements_seen = 0;
  ResourceAmounts available;
  std::vector<int64_t> free_gpus;
  uint32_t leases = 0;
};
struct WishSent {  // to the head: what this node cannot serve itself (WorkWished); count 0 withdraws it
  uint64_t wish = 0;
  ProcessId process;
  ProcessId job;
  ResourceAmounts shape;
  uint32_t count = 0;
  uint32_t depth = 0;
  int64_t placed_heard = 0;
};
struct WorkAssigned {  // from the head to the node that is to grant (PlaceWork)
  NodeNumber asker;
  uint64_t wish = 0;
  uint64_t placement = 0;
  ProcessId process;
  ProcessId job;
  ResourceAmounts shape;
  uint32_t count = 0;
  uint32_t depth = 0;
};
struct WishServed {  // from the head to the asker: so many leases are on their way (negative: no longer)
  uint64_t wish = 0;
  int64_t count = 0;
};
struct WishRefused {  // from the head to the asker
  uint64_t wish = 0;
  uint8_t for_ever = 0;  // 0: it goes on waiting, as a node that can serve it may join
  std::string why;
};
struct JobDescribed {  // how to start workers for this driver's processes
  ProcessId driver;
  std::string session;  // an encoded OpenSession
};

// ---- between processes
struct ForProcess {  // a message of a daemon to a process of the receiver
  ProcessId process;
  std::string message;
};
struct FromProcess {  // a message of a process of the sender
  ProcessId process;
  ProcessId job;
  std::string message;
};
struct RoutedAcross {
  ProcessId from;
  ProcessId to;
  std::string payload;
};
struct ProcessVanished {  // of the sender's
  ProcessId process;
  int32_t pid = 0;
  std::string how;
};
struct ChannelWanted {  // dial for a channel of these two, of which the first is the receiver's
  ProcessId submitter;
  ProcessId worker;
};

// ---- objects
struct PullObject {  // please send this in chunks; each has a ChunkHead as header
  uint64_t request = 0;
  Location location;
};
struct PullFailed {
  uint64_t request = 0;
  std::string why;
};
struct ChunkHead {
  uint64_t request = 0;
  uint64_t offset = 0;
  uint64_t total = 0;
};
struct CopiesDropped {  // the objects are freed; so are copies of them
  std::vector<Location> locations;
};

using NodeMessage = std::variant<std::monostate, NodeJoins, NodeAccepted, NodeRefused, NodeBeat, BeatConfirmed,
                                 NodeAppeared, NodeVanished, NodeFarewell, NodeLoad, WishSent, WorkAssigned, WishServed,
                                 WishRefused, JobDescribed, ForProcess, FromProcess, RoutedAcross, ProcessVanished,
                                 ChannelWanted, PullObject, PullFailed, CopiesDropped, NodesListed>;

std::string EncodeNodeMessage(const NodeMessage& message);
NodeMessage DecodeNodeMessage(std::string_view bytes);

}  // namespace weft::core
