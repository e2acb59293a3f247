// NodeDaemon: leases and actors that are wanted at a certain place (wire/placement.h).
//
// Local first holds here too, where the placement allows it: what this node may serve goes to its own scheduler, and
// to the head if it is not served. What must be spread, or belongs elsewhere, goes to the head at once
// (placed_wishes_, placed_actors_), which may send it back.
#include <algorithm>

#include "base/clock.h"
#include "node/node_daemon.h"
#include "scheduling/labels.h"
#include "wire/placement.h"

namespace weft::core {

// Whether leases of this shape may be had here without asking the head.
bool NodeDaemon::MayServe(const ResourceAmounts& shape) const {
  const std::string_view name = PlacementOf(shape);
  if (name.empty()) return true;
  Placement placement;
  if (!DecodePlacement(name, &placement) || !Matches(placement.labels, options_.labels)) return false;
  if (!placement.node.empty()) return placement.node == OwnNodeId();
  if (placement.near) return !cluster_ || placement.near == cluster_->self();
  return !placement.spread || !cluster_;
}

std::string NodeDaemon::OwnNodeId() const { return NodeIdText(session_, cluster_ ? cluster_->self() : NodeNumber{1}); }

// By another node that there is, or by one that joins if none can serve it as things are.
bool NodeDaemon::MayBeServedElsewhere(const ResourceAmounts& shape) const {
  const bool here = ResourceLedger(resources_).Fits(shape) && MayServe(shape);
  return !here || std::any_of(cluster_->nodes().begin(), cluster_->nodes().end(), [&](const auto& other) {
    return other.first != cluster_->self() && ResourceLedger(other.second.resources).Fits(shape);
  });
}

// Of a private session: why the placement can never be had; empty if it can.
std::string NodeDaemon::WhyMisplaced(const ResourceAmounts& shape) const {
  if (cluster_ || MayServe(shape)) return "";
  Placement placement;
  if (!DecodePlacement(PlacementOf(shape), &placement)) return "its placement cannot be understood";
  if (!Matches(placement.labels, options_.labels)) {
    return "it asks for a node with the labels " + FormatSelector(placement.labels) +
           ", and the only node of this private session has none of its own";
  }
  if (placement.soft) return "";
  return "it asks for node " + placement.node + ", and this private session has only " + OwnNodeId();
}

// True if only the head may place it: it is wished for there, and the local scheduler hears nothing of it.
bool NodeDaemon::WishForActorsPlace(const WantActor& action, ProcessId creator) {
  if (!cluster_ || MayServe(action.to_place)) return false;
  placed_actors_[action.actor] = {action.actor, creator, action.to_place, action.to_hold, action.depth};
  told_decisions_ = UINT64_MAX;
  return true;
}

// The head's word is that this node, its home, is the place. False if there is no room after all.
bool NodeDaemon::PlaceActorAtHome(ObjectId actor) {
  auto placed = placed_actors_.find(actor);
  if (placed == placed_actors_.end()) return true;
  const LocalScheduler::UnmetActor wanted = placed->second;
  RereadBlockedFlags();
  scheduler_->Handle(ActorWanted{wanted.actor, wanted.creator, wanted.shape, wanted.to_hold, wanted.depth},
                     scheduler_actions_);
  if (!scheduler_->IsUnmet(actor)) {
    placed_actors_.erase(placed);
    return true;
  }
  scheduler_->Handle(ActorUnwanted{actor}, scheduler_actions_);
  load_told_ = false;
  return false;
}

// True if that was all there is to do; else the local scheduler serves it.
bool NodeDaemon::WishForPlace(Process& process, const RequestLeases& message) {
  if (PlacementOf(message.shape).empty()) return false;
  if (const std::string why = WhyMisplaced(message.shape); !why.empty()) {
    if (message.count > 0) Send(process, LeaseRefused{message.shape, "the task cannot run: " + why});
    return true;
  }
  if (!cluster_ || MayServe(message.shape)) return false;
  if (message.count == 0) {
    placed_wishes_.erase({process.id, message.shape});
  } else {
    placed_wishes_[{process.id, message.shape}] = {message.count, message.depth};
  }
  return true;
}

// A wish was granted, by this node or another, for the head's word.
void NodeDaemon::WishWasPlaced(ProcessId process, const ResourceAmounts& shape) {
  auto placed = placed_wishes_.find({process, shape});
  if (placed == placed_wishes_.end()) {
    if (!MayServe(shape)) return;
    return scheduler_->Handle(LeaseHadElsewhere{process, shape}, scheduler_actions_);
  }
  if (--placed->second.count == 0) placed_wishes_.erase(placed);
}

// What the head should know: what is lacking here, and what is wanted elsewhere.
std::vector<LocalScheduler::UnmetWish> NodeDaemon::WishesForHead() {
  std::vector<LocalScheduler::UnmetWish> wishes;
  for (const auto& unmet : scheduler_->Unmet()) {
    // Alone there is nobody to serve it. What the head itself has placed here it knows already.
    if (Find(unmet.process) == nullptr || !MayServe(unmet.shape)) continue;
    if (cluster_->nodes().size() < 2 && PlacementOf(unmet.shape).empty()) continue;
    wishes.push_back(unmet);
  }
  std::erase_if(placed_wishes_, [&](const auto& entry) { return Find(entry.first.first) == nullptr; });
  for (const auto& [key, wish] : placed_wishes_) wishes.push_back({key.first, key.second, wish.count, wish.depth});
  return wishes;
}

}  // namespace weft::core
