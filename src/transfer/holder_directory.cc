#include "transfer/holder_directory.h"

#include <algorithm>

#include "base/check.h"

namespace weft::core {
namespace {

// 0, 1/2, 1/4, 3/4, 1/8, ...: each in the middle of the largest gap between those before, in 1/65536.
uint32_t StartOf(uint32_t pull) {
  uint32_t start = 0;
  for (uint32_t bit = 0; bit < 16; ++bit) start |= (pull >> bit & 1) << (15 - bit);
  return start;
}

}  // namespace

void HolderDirectory::Handle(const CopyHeld& event, std::vector<HolderAction>&) {
  objects_[event.object].holders[event.node].complete = true;
  by_node_[event.node].insert(event.object);
}

// Those that were given least often, so that the load is shared.
std::vector<NodeNumber> HolderDirectory::Least(Object& object, bool complete, NodeNumber but, uint32_t count) {
  std::vector<std::pair<uint32_t, NodeNumber>> all;
  for (const auto& [node, holder] : object.holders) {
    if (holder.complete == complete && node != but) all.emplace_back(holder.given, node);
  }
  std::sort(all.begin(), all.end());
  if (all.size() > count) all.resize(count);
  std::vector<NodeNumber> least;
  for (const auto& [given, node] : all) {
    ++object.holders.at(node).given;
    least.push_back(node);
  }
  return least;
}

void HolderDirectory::Handle(const SourcesAsked& event, std::vector<HolderAction>& out) {
  auto found = objects_.find(event.object);
  if (found == objects_.end()) {
    out.emplace_back(GiveSources{event.object, event.node, {}, {}, 0, true});
    return;
  }
  Object& object = found->second;
  auto [entry, added] = object.holders.try_emplace(event.node);
  if (added) {
    by_node_[event.node].insert(event.object);
    entry->second.start = StartOf(object.pulls++);
  }
  entry->second.complete = false;  // it would not ask
  GiveSources give{event.object, event.node, {}, {}, entry->second.start, true};
  give.complete = Least(object, true, event.node, config_.complete);
  give.partial = Least(object, false, event.node, config_.partial);
  for (NodeNumber node : give.partial) {
    ++entry->second.given;
    out.emplace_back(GiveSources{event.object, node, {}, {event.node}, 0, false});
  }
  out.emplace_back(std::move(give));
}

void HolderDirectory::Leave(ObjectId object, NodeNumber node) {
  auto found = objects_.find(object);
  if (found == objects_.end() || found->second.holders.erase(node) == 0) return;
  if (found->second.holders.empty()) objects_.erase(found);
}

void HolderDirectory::Handle(const CopyGone& event, std::vector<HolderAction>&) {
  Leave(event.object, event.node);
  auto objects = by_node_.find(event.node);
  if (objects == by_node_.end()) return;
  objects->second.erase(event.object);
  if (objects->second.empty()) by_node_.erase(objects);
}

void HolderDirectory::Handle(const HolderLost& event, std::vector<HolderAction>&) {
  auto objects = by_node_.find(event.node);
  if (objects == by_node_.end()) return;
  for (ObjectId object : objects->second) Leave(object, event.node);
  by_node_.erase(objects);
}

void HolderDirectory::Handle(const ObjectForgotten& event, std::vector<HolderAction>&) {
  auto found = objects_.find(event.object);
  if (found == objects_.end()) return;
  for (const auto& [node, holder] : found->second.holders) {
    auto objects = by_node_.find(node);
    objects->second.erase(event.object);
    if (objects->second.empty()) by_node_.erase(objects);
  }
  objects_.erase(found);
}

std::vector<NodeNumber> HolderDirectory::HoldersOf(ObjectId object) const {
  std::vector<NodeNumber> nodes;
  auto found = objects_.find(object);
  if (found == objects_.end()) return nodes;
  for (const auto& [node, holder] : found->second.holders) {
    if (holder.complete) nodes.push_back(node);
  }
  return nodes;
}

void HolderDirectory::CheckInvariants() const {
  size_t holders = 0, listed = 0;
  for (const auto& [object, entry] : objects_) {
    WEFT_CHECK(!entry.holders.empty(), "an object without holders is forgotten");
    for (const auto& [node, holder] : entry.holders) WEFT_CHECK(by_node_.at(node).contains(object), "found both ways");
    holders += entry.holders.size();
  }
  for (const auto& [node, objects] : by_node_) {
    WEFT_CHECK(!objects.empty(), "a node that holds nothing is forgotten");
    listed += objects.size();
  }
  WEFT_CHECK(holders == listed, "found both ways");
}

}  // namespace weft::core
