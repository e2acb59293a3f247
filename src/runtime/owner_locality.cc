// Owner: work of one process on several nodes.
//
// Tasks go where their arguments are: one whose stored arguments lie mostly on another node waits for leases of its
// shape near that node (Placement::near in wire/placement.h). The head gives it room there if there is any, and
// elsewhere if not: a free worker is worth more than a copy saved. Workers on that node that were leased without naming
// it will do, too.
#include <algorithm>
#include <array>

#include "runtime/owner.h"
#include "wire/placement.h"

namespace weft::core {
namespace {

// Bytes that running elsewhere must save; below that, asking the head takes longer than copying.
constexpr uint64_t kWorthGoing = uint64_t{1} << 20;
// An idle lease gives way to a request of another shape that is not granted in this time.
constexpr int64_t kGiveWayNs = 2'000'000;
constexpr size_t kMostNodes = 8;         // with arguments of one task that are considered
constexpr size_t kMostNearShapes = 128;  // of one process; half of what its node keeps apart

}  // namespace

uint32_t Owner::ShapeFor(const Task* task) {
  const uint32_t plain = task->what->shape;
  const NodeNumber here = NodeOf(self_);
  if (!here) return plain;
  uint64_t bytes_here = 0;
  std::array<std::pair<NodeNumber, uint64_t>, kMostNodes> elsewhere;
  size_t nodes = 0;
  for (uint32_t i = 0; i < task->num_dependencies; ++i) {
    const Object* object = task->dependencies[i];
    if (object->value.kind() != ValueKind::kStored) continue;
    const Location& location = object->value.location();
    const Place place = object->place.load(std::memory_order_relaxed);
    if (place == Place::kLost) continue;
    if (place != Place::kAway && place != Place::kComing) {
      bytes_here += location.size;
      continue;
    }
    const NodeNumber node = NodeOf(location.segment);
    size_t at = 0;
    while (at < nodes && elsewhere[at].first != node) ++at;
    if (at == kMostNodes) continue;
    if (at == nodes) elsewhere[nodes++] = {node, 0};
    elsewhere[at].second += location.size;
  }
  std::pair<NodeNumber, uint64_t> most;
  for (size_t i = 0; i < nodes; ++i) {
    if (elsewhere[i].second > most.second) most = elsewhere[i];
  }
  if (most.second < bytes_here + kWorthGoing) return plain;
  Shape& shape = shapes_[plain];
  if (auto known = shape.near.find(most.first); known != shape.near.end()) return known->second;
  if (near_shapes_ >= kMostNearShapes || !PlacementOf(shape.amounts).empty()) return plain;
  ResourceAmounts amounts = shape.amounts;
  AddPlacement(amounts, Placement{.near = most.first});
  ++near_shapes_;
  const uint32_t near = InternShape(amounts);
  shapes_[near].node = most.first;
  shapes_[near].plain = plain;
  return shape.near[most.first] = near;
}

// On one node, leases that are in the way of other work are recalled. In a cluster only this process sees all its
// own leases and requests: it gives way to itself.
int64_t Owner::IdleEnd(const LeasedWorker& worker) const {
  int64_t end = worker.idle_since_ns + lease_idle_ns;
  if (!NodeOf(self_)) return end;
  for (uint32_t number = 0; number < shapes_.size(); ++number) {
    const Shape& shape = shapes_[number];
    if (number == worker.shape || shape.requested == 0 || !shape.ready.first()) continue;
    end = std::min(end, std::max(worker.idle_since_ns, shape.requested_since_ns) + kGiveWayNs);
  }
  return end;
}

}  // namespace weft::core
