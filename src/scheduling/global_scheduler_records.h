// What GlobalScheduler keeps of nodes, of requests, and of classes of requests that are alike. For its own files alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "scheduling/global_scheduler.h"

namespace weft::core {

inline constexpr uint64_t kNever = UINT64_MAX;  // a rank: not on this node
// Trees that nobody uses are kept for the next request of their kind. At 24 bytes per node each: 1.5 kB per node.
inline constexpr size_t kMaxIdle = 64;

struct GlobalScheduler::ClassKey {
  ResourceAmounts shape;
  LabelSelector labels;
  bool spread = false;
  NodeNumber only;  // 0: any node
  auto operator<=>(const ClassKey&) const = default;
};

struct GlobalScheduler::Request {
  RequestId id;
  ProcessId process;
  uint64_t job = 0;
  uint32_t depth = 0;
  bool actor = false;
  bool warned = false;  // of not being feasible; false again when it was
  PlacementStrategy strategy;
  std::vector<std::pair<NodeNumber, uint64_t>> argument_bytes;  // the most first
  Class* of = nullptr;
  uint64_t arrival = 0;
  uint32_t waiting = 0;                                  // leases; in the queue of its class if not 0
  int64_t placed = 0;                                    // leases, less those taken back
  std::vector<std::pair<uint32_t, uint64_t>> in_flight;  // slot and placement
};

struct GlobalScheduler::Class {
  ClassKey key;
  uint64_t number = 0;
  uint32_t uses = 0;  // requests and debits
  uint64_t idle_since = 0;
  std::vector<std::pair<uint32_t, int64_t>> needs;  // resource and amount, by resource
  int64_t gpus = 0;
  std::map<uint32_t, std::map<uint64_t, std::map<uint64_t, Request*>>, std::greater<>> queue;  // depth, job, arrival
  uint32_t waiting = 0;                                                                        // requests
  uint32_t passed_over = 0;
  uint32_t nearest = kNoSlot;  // of the nodes where it was passed over, the one that lacked least
  int64_t least_lack = 0;
  uint32_t kept = kNoSlot;  // a node that is kept free for it
  // By slot. `only` classes have none of these.
  std::vector<uint8_t> possible;
  std::vector<uint8_t> is_dirty;
  std::vector<uint64_t> last_placed;  // of SPREAD
  std::vector<uint32_t> dirty;
  // The least rank below; the leaves begin in the middle. A power of two of them.
  std::vector<uint64_t> tree;
  uint32_t possible_count = 0;
  std::string why_infeasible;  // empty: not worked out

  bool has_tree() const { return !key.only; }
  uint32_t leaves() const { return static_cast<uint32_t>(tree.size() / 2); }
  uint64_t best() const { return tree.empty() ? kNever : tree[1]; }
  uint64_t leaf(uint32_t slot) const { return slot < leaves() ? tree[leaves() + slot] : kNever; }
  void SetLeaf(uint32_t slot, uint64_t rank) {
    uint32_t at = leaves() + slot;
    if (tree[at] == rank) return;
    tree[at] = rank;
    for (at /= 2; at > 0; at /= 2) {
      uint64_t least = std::min(tree[2 * at], tree[2 * at + 1]);
      if (tree[at] == least) return;
      tree[at] = least;
    }
  }
};

struct GlobalScheduler::Node {
  struct Amount {
    uint32_t resource = 0;
    int64_t total = 0;
    int64_t reported = 0;  // available
    int64_t queued = 0;    // wanted by the node's own queue
    int64_t free = 0;      // reported, less the debits
  };
  struct Debit {
    uint64_t placement = 0;
    RequestId request;
    Class* of = nullptr;
    uint32_t count = 0;
  };
  NodeNumber number;
  std::vector<Amount> amounts;     // by resource
  std::vector<uint32_t> uncommon;  // of them: what users have named
  std::vector<int64_t> reported_gpus, gpus;
  NodeLabels labels;
  uint32_t leases = 0;
  std::vector<Debit> debits;  // by placement
  uint64_t placements = 0;    // the last number given out
  uint64_t seen = 0;
  uint64_t refused = 0;    // nothing is placed until a report has seen this placement
  uint32_t in_flight = 0;  // leases
  uint32_t placing = 0;    // where in placing_ its last entry may be
  Class* kept_for = nullptr;
  std::vector<Class*> only_here;
  bool suspected = false;
  bool touched = false;
  std::map<uint64_t, std::unique_ptr<Request>> requests;  // that it asks, by number

  const Amount* Find(uint32_t resource) const {
    for (const auto& amount : amounts) {  // a handful
      if (amount.resource == resource) return &amount;
    }
    return nullptr;
  }
  Amount* Find(uint32_t resource) { return const_cast<Amount*>(std::as_const(*this).Find(resource)); }
  int64_t TotalOf(uint32_t resource) const {
    const Amount* amount = Find(resource);
    return amount == nullptr ? 0 : amount->total;
  }
};

}  // namespace weft::core
