// Decides which chunk a node sends next, and to which node, and tells nodes that pull which chunks it has. Pure: events
// in, actions out.
//
// Called by the node daemon on its loop thread, and by tests.
//
// Each link has its own queue, in which objects take turns; links take turns for the bytes that may be under way in
// all. Little is handed to the kernel at once, so that a late request does not wait behind megabytes and a cancelled
// chunk is not sent. Every request is answered exactly once, by SendChunk or RefuseChunk, unless its link is lost.
//
// An object may be served while it is still being pulled: a node that asks for its holdings (HoldingsAsked) is told at
// once and with each new chunk.
//
// Does not read the bytes or compute checksums. Requests are input: a request for something that is not there is
// refused.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "transfer/chunks.h"
#include "wire/ids.h"

namespace weft::core {

// ---- events -----------------------------------------------------------------------------------------------------
struct ObjectOffered {  // other nodes can ask for it from now on
  ObjectId object;
  uint64_t size = 0;
  bool complete = false;  // false: this node has nothing of it yet
};
struct ChunkGained {
  ObjectId object;
  uint32_t chunk = 0;
};
struct ObjectWithdrawn {  // freed, or its pull has failed
  ObjectId object;
};
struct HoldingsAsked {
  NodeNumber node;
  ObjectId object;
};
struct ChunkAsked {
  NodeNumber node;
  uint64_t request = 0;  // the requester's number
  ObjectId object;
  uint32_t chunk = 0;
};
struct ChunkCancelled {
  NodeNumber node;
  uint64_t request = 0;
};
struct ChunkSent {  // the link has taken all of it
  NodeNumber node;
  uint64_t request = 0;
};
struct RequesterLinkLost {
  NodeNumber node;
};

// ---- actions ----------------------------------------------------------------------------------------------------
struct SendChunk {  // answered by ChunkSent; the bytes stay where they are until then
  NodeNumber node;
  uint64_t request = 0;
  ObjectId object;
  uint32_t chunk = 0;
};
struct RefuseChunk {
  NodeNumber node;
  uint64_t request = 0;
};
struct TellHoldings {  // becomes SourceAnnounced there
  NodeNumber node;
  ObjectId object;
  std::vector<std::pair<uint32_t, uint32_t>> ranges;  // first and count
  bool complete = false;
};
struct TellGone {  // becomes SourceGone there
  NodeNumber node;
  ObjectId object;
};
using ServeAction = std::variant<SendChunk, RefuseChunk, TellHoldings, TellGone>;

class ChunkServer {
 public:
  struct Config {
    uint64_t link_window = 2 * kChunkBytes;   // one is being sent while the next is made ready
    uint64_t total_window = 8 * kChunkBytes;  // keeps a link of 10 Gbit/s busy for 6 ms
    uint32_t max_queued = 1024;               // per link: more than any PullPlan asks for
  };
  // Planted bugs, to show that the tests find them. All off outside tests.
  struct Faults {
    bool forget_the_refused = false;       // requests that cannot be served are not answered
    bool first_come_first_served = false;  // links take no turns
  };

  ChunkServer() = default;
  explicit ChunkServer(Config config) : config_(config) {}

  void Handle(const ObjectOffered& event, std::vector<ServeAction>& out);
  void Handle(const ChunkGained& event, std::vector<ServeAction>& out);
  void Handle(const ObjectWithdrawn& event, std::vector<ServeAction>& out);
  void Handle(const HoldingsAsked& event, std::vector<ServeAction>& out);
  void Handle(const ChunkAsked& event, std::vector<ServeAction>& out);
  void Handle(const ChunkCancelled& event, std::vector<ServeAction>& out);
  void Handle(const ChunkSent& event, std::vector<ServeAction>& out);
  void Handle(const RequesterLinkLost& event, std::vector<ServeAction>& out);

  uint64_t bytes_under_way() const { return under_way_; }
  size_t queued() const;

  void CheckInvariants() const;

  Faults faults;

 private:
  struct Offer {
    uint64_t size = 0;
    bool complete = false;
    std::vector<bool> has;
    uint32_t count = 0;
    std::set<NodeNumber> told;  // nodes that are told of new chunks
  };
  struct Ask {
    uint64_t request = 0;
    uint32_t chunk = 0;
  };
  struct Link {
    std::map<ObjectId, std::deque<Ask>> queue;
    std::map<uint64_t, ObjectId> queued;   // by request
    std::map<uint64_t, uint64_t> sending;  // request and bytes
    uint64_t under_way = 0;
    ObjectId last;
  };

  void Refuse(NodeNumber node, uint64_t request, std::vector<ServeAction>& out) const;
  bool SendOne(NodeNumber node, Link& link, std::vector<ServeAction>& out);
  void Send(std::vector<ServeAction>& out);

  Config config_;
  std::map<ObjectId, Offer> offers_;
  std::map<NodeNumber, Link> links_;
  NodeNumber last_link_;
  uint64_t under_way_ = 0;
};

}  // namespace weft::core
