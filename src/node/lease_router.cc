#include "node/lease_router.h"

#include <algorithm>
#include <set>

#include "scheduling/labels.h"
#include "wire/placement.h"

namespace weft::core {
namespace {

constexpr uint32_t kMostRequested = 1000;  // beyond this the exact number tells the head nothing

}  // namespace

// ---- places -------------------------------------------------------------------------------------------------------

bool LeaseRouter::MayServe(const ResourceAmounts& shape) const {
  const std::string_view name = PlacementOf(shape);
  if (name.empty()) return true;
  Placement placement;
  if (!DecodePlacement(name, &placement) || !Matches(placement.labels, place_.labels)) return false;
  if (!placement.node.empty()) return placement.node == place_.node_id;
  if (placement.near) return !place_.in_cluster || placement.near == place_.node;
  return !placement.spread || !place_.in_cluster;
}

std::string LeaseRouter::WhyMisplaced(const ResourceAmounts& shape) const {
  if (place_.in_cluster || MayServe(shape)) return "";
  Placement placement;
  if (!DecodePlacement(PlacementOf(shape), &placement)) return "its placement cannot be understood";
  if (!Matches(placement.labels, place_.labels)) {
    return "it asks for a node with the labels " + FormatSelector(placement.labels) +
           ", and the only node of this private session has none of its own";
  }
  if (placement.soft) return "";
  return "it asks for node " + placement.node + ", and this private session has only " + place_.node_id;
}

// ---- this node's processes ----------------------------------------------------------------------------------------

bool LeaseRouter::Ask(const Key& key, uint32_t count, uint32_t depth) {
  if (!place_.in_cluster || MayServe(key.shape)) return false;
  if (count == 0) {
    for_head_.erase(key);
  } else {
    for_head_[key] = {count, depth};
  }
  return true;
}

bool LeaseRouter::Granted(const Key& key) {
  auto asked = for_head_.find(key);
  if (asked == for_head_.end()) return MayServe(key.shape);
  if (--asked->second.count == 0) for_head_.erase(asked);
  return false;
}

// ---- the head's words ---------------------------------------------------------------------------------------------

LeaseRouter::Sent* LeaseRouter::Known(uint64_t request) {
  auto key = keys_.find(request);
  return key == keys_.end() ? nullptr : &sent_.at(key->second);
}

void LeaseRouter::Assigned(uint64_t request, int64_t count) {
  Sent* sent = Known(request);
  if (sent == nullptr) return;
  sent->heard += count;
  sent->on_the_way += count;
}

void LeaseRouter::AssignedHere(uint64_t request, uint32_t count) {
  if (Sent* sent = Known(request)) sent->on_the_way -= count;
}

std::optional<LeaseRouter::Key> LeaseRouter::Refused(uint64_t request, bool for_ever) {
  auto known = keys_.find(request);
  if (known == keys_.end()) return std::nullopt;
  Key key = known->second;
  if (for_ever) {
    sent_.erase(key);
    keys_.erase(known);
    for_head_.erase(key);
  }
  return key;
}

void LeaseRouter::PlacementSeen(uint64_t placement) {
  placements_seen_ = std::max(placements_seen_, placement);
  load_told_ = false;
}

// ---- other nodes --------------------------------------------------------------------------------------------------

void LeaseRouter::Arrived(const Key& key, uint32_t count) {
  auto found = sent_.find(key);
  if (found == sent_.end() || (faults.forget_early_leases && found->second.on_the_way <= 0)) return;
  found->second.on_the_way -= count;
}

void LeaseRouter::RefusedThere(const Key& key, uint32_t count) {
  Arrived(key, count);
  for_head_.erase(key);
}

void LeaseRouter::NodeIsGone() {
  if (faults.await_the_gone) return;
  std::erase_if(sent_, [&](const auto& entry) {
    const auto& [key, sent] = entry;
    if (sent.on_the_way <= 0) return false;
    withdrawn_.push_back({.request = sent.number, .process = key.process, .withdrawn = 1});
    keys_.erase(sent.number);
    return true;
  });
}

void LeaseRouter::HeadForgot() {
  withdrawn_.clear();
  sent_.clear();
  keys_.clear();
  placements_seen_ = 0;
  load_told_ = false;
}

// ---- to the head --------------------------------------------------------------------------------------------------

std::vector<LeaseRequest> LeaseRouter::ToTell(const std::vector<LocalScheduler::UnmetRequest>& unmet, bool alone,
                                              const LivesHere& lives_here, const JobOf& job_of) {
  std::set<Key> needed;
  std::vector<LeaseRequest> to_send = std::exchange(withdrawn_, {});
  for (const auto& request : unmet) {
    // Alone there is nobody to serve it. What the head itself has placed here it knows already.
    if (!lives_here(request.process) || !MayServe(request.shape)) continue;
    if (alone && PlacementOf(request.shape).empty()) continue;
    Key key{request.process, request.shape};
    Tell(key, request.count, request.depth, job_of, to_send);
    needed.insert(std::move(key));
  }
  std::erase_if(for_head_, [&](const auto& entry) { return !lives_here(entry.first.process); });
  for (const auto& [key, asked] : for_head_) {
    Tell(key, asked.count, asked.depth, job_of, to_send);
    needed.insert(key);
  }
  std::erase_if(sent_, [&](const auto& entry) {
    const auto& [key, sent] = entry;
    if (needed.contains(key)) return false;
    if (sent.sent) to_send.push_back({.request = sent.number, .process = key.process, .withdrawn = 1});
    keys_.erase(sent.number);
    return true;
  });
  return to_send;
}

void LeaseRouter::Tell(const Key& key, uint32_t needed, uint32_t depth, const JobOf& job_of,
                       std::vector<LeaseRequest>& to_send) {
  auto [entry, fresh] = sent_.try_emplace(key);
  Sent& sent = entry->second;
  if (fresh) {
    sent.number = NextNumber();
    keys_[sent.number] = key;
  }
  const int64_t rest = std::max<int64_t>(0, std::min(needed, kMostRequested) - sent.on_the_way);
  if (!fresh && rest == sent.count && sent.heard == sent.told_heard) return;
  sent.count = static_cast<uint32_t>(rest);
  sent.told_heard = sent.heard;
  if (fresh && rest == 0) return;
  sent.sent = true;
  to_send.push_back({sent.number, key.process, job_of(key.process), key.shape, sent.count, depth, sent.heard});
}

std::optional<NodeLoad> LeaseRouter::LoadToTell(const LocalScheduler& scheduler) {
  NodeLoad load{.placements_seen = placements_seen_};
  const FreeResources& left = scheduler.left();
  for (const auto& [name, amount] : left.amounts().amounts()) {
    if (amount > 0 && name != kPythonWorker) load.available.emplace_back(name, amount);
  }
  load.free_gpus = left.gpus();
  load.leases = static_cast<uint32_t>(scheduler.lease_count());
  if (load_told_ && load.available == told_load_.available && load.free_gpus == told_load_.free_gpus &&
      load.leases == told_load_.leases) {
    return std::nullopt;
  }
  load_told_ = true;
  told_load_ = load;
  return load;
}

}  // namespace weft::core
