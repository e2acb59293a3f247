// Lease requests that this node does not serve itself: what the head was told of them and what it has answered. Also
// where a lease may be had at all, and what the head should know of this node's load. Pure: events in, messages out.
//
// Owned by NodeCore. A request is one process's need of leases of one shape. Local first holds for placements too: what
// this node may serve goes to its own scheduler, and to the head if that lacks resources; what must be spread, or
// belongs elsewhere, goes to the head at once (Ask), which may send it back.
//
// The head hears the number of leases of a request again whenever it has changed, less what is on the way. What is on
// the way is what the head has said to have assigned, less what has arrived. The two come over different links, so a
// lease may arrive before the head's word of it: then less than nothing is on the way, until the word comes.
//
// Does not send, and does not know what the local scheduler does.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduling/local_scheduler.h"
#include "wire/ids.h"
#include "wire/labels.h"
#include "wire/node_messages.h"

namespace weft::core {

class LeaseRouter {
 public:
  struct Key {
    ProcessId process;
    ResourceAmounts shape;
    auto operator<=>(const Key&) const = default;
  };
  using JobOf = std::function<ProcessId(ProcessId)>;
  using LivesHere = std::function<bool(ProcessId)>;

  // This node, as placements see it.
  struct Place {
    std::string node_id;  // as users name it
    NodeNumber node;
    NodeLabels labels;
    bool in_cluster = false;
  };

  // Planted bugs, to show that the tests find them. All off outside tests.
  struct Faults {
    bool forget_early_leases = false;  // those that arrive before the head's word of them
    bool await_the_gone = false;       // what was on its way from a node that is gone
  };

  explicit LeaseRouter(Place place) : place_(std::move(place)) {}

  // ---- places

  // Whether leases of this shape may be had here without asking the head.
  bool MayServe(const ResourceAmounts& shape) const;
  // Of a private session: why the placement can never be had; empty if it can.
  std::string WhyMisplaced(const ResourceAmounts& shape) const;

  // ---- this node's processes

  // Replaces what was asked before. True: only the head may serve it, and the local scheduler hears nothing of it.
  bool Ask(const Key& key, uint32_t count, uint32_t depth);
  // A lease was granted, by this node or another. True: the local scheduler has the request, too, and must hear of it.
  bool Granted(const Key& key);

  // ---- the head's words

  // So many more leases are on their way; negative: so many fewer.
  void Assigned(uint64_t request, int64_t count);
  // The head has assigned them to this node, which may serve them: nothing is on the way.
  void AssignedHere(uint64_t request, uint32_t count);
  // The head has refused it, for ever or as things are. Gives which it was, if it is known.
  std::optional<Key> Refused(uint64_t request, bool for_ever);
  // The head has placed something here: it has to hear how much is left (LoadToTell).
  void PlacementSeen(uint64_t placement);

  // ---- other nodes

  // Some of what is on the way has arrived.
  void Arrived(const Key& key, uint32_t count = 1);
  // The node that was to serve it cannot.
  void RefusedThere(const Key& key, uint32_t count);
  // A node is gone: what was on its way from there is not coming, and the head may have counted it as arrived. What
  // somebody may wait for so is requested again, under another number.
  void NodeIsGone();
  // There is a new head, which knows of nothing.
  void HeadForgot();

  // ---- to the head

  // All that is needed now: what the head should hear of it. What is no longer needed is withdrawn. `unmet` is what the
  // local scheduler lacks resources for; `alone`: there is no other node.
  std::vector<LeaseRequest> ToTell(const std::vector<LocalScheduler::UnmetRequest>& unmet, bool alone,
                                   const LivesHere& lives_here, const JobOf& job_of);
  // The load, if the head has not been told it.
  std::optional<NodeLoad> LoadToTell(const LocalScheduler& scheduler);
  void TellLoadAgain() { load_told_ = false; }
  // Of requests for leases, and of others (RemoteActors).
  uint64_t NextNumber() { return next_request_++; }
  size_t size() const { return sent_.size(); }

  Faults faults;

 private:
  struct Sent {
    uint64_t number = 0;
    uint32_t count = 0;      // as it was told last
    int64_t heard = 0;       // leases that the head has assigned, in all
    int64_t told_heard = 0;  // as the head was told last
    int64_t on_the_way = 0;
    bool sent = false;
  };
  struct Asked {
    uint32_t count = 0;
    uint32_t depth = 0;
  };
  Sent* Known(uint64_t request);
  void Tell(const Key& key, uint32_t needed, uint32_t depth, const JobOf& job_of, std::vector<LeaseRequest>& to_send);

  const Place place_;
  uint64_t next_request_ = 1;
  std::map<Key, Sent> sent_;
  std::map<uint64_t, Key> keys_;
  std::vector<LeaseRequest> withdrawn_;  // to be told
  std::map<Key, Asked> for_head_;        // that only the head may serve
  uint64_t placements_seen_ = 0;
  NodeLoad told_load_;
  bool load_told_ = false;
};

}  // namespace weft::core
