// Decides which chunk of which object a node asks from which other node. Pure: events in, actions out.
//
// Called by the node daemon on its loop thread, and by tests. The caller performs the actions in order. It has no
// notion of time.
//
// An object is pulled from several sources at once. A source is complete, or partial: it is pulling the object itself
// and announces what it has. Chunks that a partial source has are requested from it, and complete sources are asked for
// chunks that no partial source has. So a source that many nodes pull from sends each chunk about once, and they get
// the rest from each other. Each receiver begins at another place of the object (HolderDirectory says where), and when
// it meets parts that others have, it goes on in the middle of what is left.
//
// Bytes asked for and not answered are bounded per link and in all. The other side answers every request exactly once,
// with the chunk or a refusal; until then it counts, even if the chunk is no longer wanted. Pulls over one link take
// turns.
//
// A chunk counts only if its checksum is right. A source that sends a wrong chunk, refuses or is lost is not asked
// again for that object, and other sources are asked for what it owes. At the end, when everything is requested, idle
// sources are asked for chunks that a busy one still owes. If no source has a missing chunk, the directory is asked for
// more sources; if it knows no complete one either, the object is lost.
//
// Does not move bytes, compute checksums (the caller), serve others (ChunkServer), or know about time.
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
struct PullWanted {  // the object is not being pulled already
  ObjectId object;
  uint64_t size = 0;  // at most kMaxTransferBytes
};
struct SourcesGiven {  // by the directory, asked or not
  ObjectId object;
  std::vector<NodeNumber> complete;
  std::vector<NodeNumber> partial;
  uint32_t start = 0;   // where to begin, in 1/65536 of the object
  bool answer = false;  // to AskForSources: there are no others
};
struct SourceAnnounced {  // a source has these chunks (more); a complete one need not say so
  ObjectId object;
  NodeNumber node;
  std::vector<std::pair<uint32_t, uint32_t>> ranges;  // first and count
  bool complete = false;
};
struct ChunkArrived {
  uint64_t request = 0;
  bool intact = true;  // its checksum is right
};
struct ChunkRefused {  // the source does not have it (any more), or it was cancelled
  uint64_t request = 0;
};
struct SourceGone {  // it has freed the object
  ObjectId object;
  NodeNumber node;
};
struct SourceLinkLost {
  NodeNumber node;
};
struct PullCancelled {
  ObjectId object;
};

// ---- actions ----------------------------------------------------------------------------------------------------
struct AskChunk {
  uint64_t request = 0;  // answered once, by ChunkArrived or ChunkRefused, or by the loss of the link
  NodeNumber node;
  ObjectId object;
  uint32_t chunk = 0;
};
struct CancelChunk {  // the request is answered all the same
  uint64_t request = 0;
  NodeNumber node;
};
struct AskForSources {  // answered by SourcesGiven; if the directory is gone, by an empty one
  ObjectId object;
};
struct KeepChunk {  // it is right and new: other nodes may get it from here
  ObjectId object;
  uint32_t chunk = 0;
};
struct FinishPull {
  ObjectId object;
};
struct FailPull {  // no copy can be reached; the chunks that came are of no use
  ObjectId object;
  std::string why;
};
using PullAction = std::variant<AskChunk, CancelChunk, AskForSources, KeepChunk, FinishPull, FailPull>;

class PullPlan {
 public:
  struct Config {
    uint64_t link_credit = 8 * kChunkBytes;    // 10 Gbit/s over 6 ms
    uint64_t total_credit = 64 * kChunkBytes;  // bounds what arrives at once, however many links there are
  };
  // Planted bugs, to show that the tests find them. All off outside tests.
  struct Faults {
    bool forget_chunks_of_the_lost = false;
    bool keep_what_is_corrupt = false;
    bool forget_credit_of_the_cancelled = false;
    bool first_pull_first = false;  // pulls take no turns
  };

  PullPlan() = default;
  explicit PullPlan(Config config) : config_(config) {}

  void Handle(const PullWanted& event, std::vector<PullAction>& out);
  void Handle(const SourcesGiven& event, std::vector<PullAction>& out);
  void Handle(const SourceAnnounced& event, std::vector<PullAction>& out);
  void Handle(const ChunkArrived& event, std::vector<PullAction>& out);
  void Handle(const ChunkRefused& event, std::vector<PullAction>& out);
  void Handle(const SourceGone& event, std::vector<PullAction>& out);
  void Handle(const SourceLinkLost& event, std::vector<PullAction>& out);
  void Handle(const PullCancelled& event, std::vector<PullAction>& out);

  struct Request {
    NodeNumber node;
    ObjectId object;
    uint32_t chunk = 0;
    uint32_t size = 0;
    bool live = true;  // false: the bytes are no longer wanted
  };
  // Null if it was answered already.
  const Request* Find(uint64_t request) const;
  bool IsPulling(ObjectId object) const { return pulls_.contains(object); }
  size_t pull_count() const { return pulls_.size(); }
  uint64_t bytes_in_flight() const { return in_flight_; }
  uint64_t bytes_in_flight(NodeNumber node) const;

  void CheckInvariants() const;

  Faults faults;

 private:
  enum class Chunk : uint8_t { kMissing, kAsked, kHad };
  struct Source {
    bool complete = false;
    bool heard = false;            // of a partial one: it has said what it has
    std::vector<bool> has;         // of a partial one
    std::deque<uint32_t> to_look;  // of a partial one: what may be asked from it
    uint32_t asked = 0;            // requests that are live
  };
  struct Pull {
    uint64_t size = 0;
    std::vector<Chunk> chunks;
    std::vector<uint16_t> holders;   // partial sources that have it
    std::vector<uint16_t> asked_of;  // requests that are live
    std::set<uint32_t> fresh, held;  // what is missing, and held by no partial source or by some
    uint32_t had = 0;
    uint32_t cursor = 0;  // where to go on with what complete sources are asked for
    std::map<NodeNumber, Source> sources;
    std::set<NodeNumber> dropped;  // not to be used again
    bool begun = false;
    bool asked_for_sources = false;
    bool no_more_sources = false;
    bool was_corrupt = false;

    bool all_asked() const { return fresh.empty() && held.empty(); }
    void SetMissing(uint32_t chunk);
    void SetAsked(uint32_t chunk);
  };
  struct Link {
    uint64_t in_flight = 0;
    std::set<uint64_t> requests;
    std::set<ObjectId> ready;  // pulls that may have something to ask here
    ObjectId last;             // whose turn it was
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  void AddSource(ObjectId object, Pull& pull, NodeNumber node, bool complete);
  void AddHolding(Pull& pull, Source& source, uint32_t chunk);
  void DropSource(ObjectId object, NodeNumber node, bool for_good, std::vector<PullAction>& out);
  void Kill(Request& request);
  bool HasRoom(const Link& link, uint64_t size) const;
  uint32_t NextChunk(Pull& pull, Source& source);
  uint32_t ChunkToDouble(ObjectId object, const Pull& pull, NodeNumber node, const Source& source) const;
  bool AskOne(NodeNumber node, Link& link, std::vector<PullAction>& out);
  void Fill(std::vector<PullAction>& out);
  void Wake(ObjectId object, const Pull& pull);
  void EndIfStuck(ObjectId object, std::vector<PullAction>& out);
  void Remove(ObjectId object, std::vector<PullAction>& out);

  Config config_;
  std::map<ObjectId, Pull> pulls_;
  std::map<NodeNumber, Link> links_;
  std::map<uint64_t, Request> requests_;
  uint64_t next_request_ = 1;
  NodeNumber last_link_;
  uint64_t in_flight_ = 0;
};

}  // namespace weft::core
