#include "object_store/orphan_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace weft::core {

bool OrphanTable::HeldHere(const Owner& owner, uint64_t index) {
  auto held = owner.holders.find(index);
  return held != owner.holders.end() &&
         std::any_of(held->second.begin(), held->second.end(), [](ProcessId holder) { return !IsNode(holder); });
}

void OrphanTable::AskAll(ProcessId id, Owner& owner, bool nodes, std::vector<Action>& out) {
  for (ProcessId holder : living_) {
    if ((IsNode(holder) && !nodes) || !owner.asked.insert(holder).second) continue;
    owner.unanswered.insert(holder);
    out.push_back(Ask{holder, id});
  }
}

void OrphanTable::Handle(const Found& event, std::vector<Action>& out) {
  std::set<ProcessId> touched;
  for (const SealedObject& object : event.objects) {
    if (object.object.index == kForSession) continue;
    owners_[object.object.owner].orphans[object.object.index].insert(object.location);
    touched.insert(object.object.owner);
  }
  for (ProcessId id : touched) {
    auto owner = owners_.find(id);
    AskAll(id, owner->second, true, out);
    Consider(owner, out);
  }
}

void OrphanTable::Handle(const HolderJoined& event, std::vector<Action>& out) {
  if (!living_.insert(event.holder).second) return;
  for (auto& [id, owner] : owners_) {
    if (IsNode(event.holder) && owner.orphans.empty()) continue;
    owner.asked.insert(event.holder);
    owner.unanswered.insert(event.holder);
    out.push_back(Ask{event.holder, id});
  }
}

void OrphanTable::Handle(const HolderLeft& event, std::vector<Action>& out) {
  living_.erase(event.holder);
  for (auto next = owners_.begin(); next != owners_.end();) {
    auto owner = next++;
    owner->second.asked.erase(event.holder);
    owner->second.unanswered.erase(event.holder);
    owner->second.asking.erase(event.holder);
    auto& holders = owner->second.holders;
    for (auto held = holders.begin(); held != holders.end();) {
      held->second.erase(event.holder);
      held = held->second.empty() ? holders.erase(held) : std::next(held);
    }
    Consider(owner, out);
  }
}

void OrphanTable::Handle(const Answered& event, std::vector<Action>& out) {
  auto owner = owners_.find(event.owner);
  // Only the answer to a question counts. What is not asked is not believed, and what is over is not wanted.
  if (owner == owners_.end() || !owner->second.unanswered.contains(event.holder)) return;
  for (uint64_t index : event.indexes) owner->second.holders[index].insert(event.holder);
  if (event.more) return;
  owner->second.unanswered.erase(event.holder);
  Consider(owner, out);
}

void OrphanTable::Handle(const HoldBegan& event, std::vector<Action>&) {
  if (!living_.contains(event.holder)) return;
  owners_[event.object.owner].holders[event.object.index].insert(event.holder);
}

void OrphanTable::LetGo(Owner& owner, uint64_t index, ProcessId holder) {
  auto held = owner.holders.find(index);
  if (held == owner.holders.end()) return;
  held->second.erase(holder);
  if (held->second.empty()) owner.holders.erase(held);
}

void OrphanTable::Handle(const HoldsEnded& event, std::vector<Action>& out) {
  auto owner = owners_.find(event.owner);
  if (owner == owners_.end()) return;
  for (uint64_t index : event.indexes) LetGo(owner->second, index, event.holder);
  ConsiderIndexes(owner, event.indexes, out);
}

void OrphanTable::Handle(const NodeAsked& event, std::vector<Action>& out) {
  auto owner = owners_.try_emplace(event.owner).first;
  owner->second.asking[event.node] = {};
  AskAll(event.owner, owner->second, false, out);
  Consider(owner, out);
}

void OrphanTable::Handle(const SegmentForgotten& event, std::vector<Action>&) {
  for (auto next = owners_.begin(); next != owners_.end();) {
    auto owner = next++;
    auto& orphans = owner->second.orphans;
    for (auto orphan = orphans.begin(); orphan != orphans.end();) {
      std::erase_if(orphan->second, [&](const Location& location) { return location.segment == event.segment; });
      orphan = orphan->second.empty() ? orphans.erase(orphan) : std::next(orphan);
    }
    ForgetIfDone(owner);
  }
}

void OrphanTable::TakeUnheld(Owner& owner, uint64_t index, std::vector<Location>& freed) {
  auto orphan = owner.orphans.find(index);
  if (orphan == owner.orphans.end() || owner.holders.contains(index)) return;
  freed.insert(freed.end(), orphan->second.begin(), orphan->second.end());
  owner.orphans.erase(orphan);
}

void OrphanTable::Consider(std::map<ProcessId, Owner>::iterator at, std::vector<Action>& out) {
  Owner& owner = at->second;
  const bool all_here =
      std::all_of(owner.unanswered.begin(), owner.unanswered.end(), [](ProcessId holder) { return IsNode(holder); });
  for (auto& [node, asking] : owner.asking) {
    if (asking.told || !all_here) continue;
    asking.told = true;
    for (const auto& [index, holders] : owner.holders) {
      if (HeldHere(owner, index)) asking.indexes.insert(asking.indexes.end(), index);
    }
    out.push_back(AnswerNode{node, at->first, {asking.indexes.begin(), asking.indexes.end()}});
  }
  std::vector<uint64_t> indexes;
  for (const auto& [index, locations] : owner.orphans) indexes.push_back(index);
  for (const auto& [node, asking] : owner.asking) {
    indexes.insert(indexes.end(), asking.indexes.begin(), asking.indexes.end());
  }
  ConsiderIndexes(at, indexes, out);
}

void OrphanTable::ConsiderIndexes(std::map<ProcessId, Owner>::iterator at, const std::vector<uint64_t>& indexes,
                                  std::vector<Action>& out) {
  Owner& owner = at->second;
  if (owner.unanswered.empty()) {
    std::vector<Location> freed;
    for (uint64_t index : indexes) TakeUnheld(owner, index, freed);
    if (!freed.empty()) out.push_back(Free{std::move(freed)});
  }
  for (auto& [node, asking] : owner.asking) {
    std::vector<uint64_t> ended;
    for (uint64_t index : indexes) {
      if (asking.indexes.contains(index) && !HeldHere(owner, index)) {
        asking.indexes.erase(index);
        ended.push_back(index);
      }
    }
    if (!ended.empty()) out.push_back(TellNodeEnded{node, at->first, std::move(ended)});
  }
  std::erase_if(owner.asking, [](const auto& asking) { return asking.second.told && asking.second.indexes.empty(); });
  ForgetIfDone(at);
}

void OrphanTable::ForgetIfDone(std::map<ProcessId, Owner>::iterator owner) {
  const Owner& known = owner->second;
  if (known.orphans.empty() && known.holders.empty() && known.asking.empty()) owners_.erase(owner);
}

size_t OrphanTable::orphan_count() const {
  size_t count = 0;
  for (const auto& [id, owner] : owners_) count += owner.orphans.size();
  return count;
}

void OrphanTable::CheckInvariants() const {
  for (const auto& [id, owner] : owners_) {
    for (ProcessId holder : owner.asked) WEFT_CHECK(living_.contains(holder), "the dead are asked nothing");
    for (ProcessId holder : owner.unanswered)
      WEFT_CHECK(owner.asked.contains(holder), "a process that owes an answer was asked");
    for (const auto& [index, holders] : owner.holders) {
      WEFT_CHECK(!holders.empty(), "a process that holds nothing is no holder");
      for (ProcessId holder : holders) WEFT_CHECK(living_.contains(holder), "the dead hold nothing");
    }
    for (const auto& [index, locations] : owner.orphans) {
      WEFT_CHECK(!locations.empty(), "an orphan lies somewhere");
      WEFT_CHECK(!owner.unanswered.empty() || owner.holders.contains(index), "what no process holds is freed");
    }
    WEFT_CHECK(!owner.orphans.empty() || !owner.holders.empty() || !owner.asking.empty(),
               "an owner without anything left is forgotten");
  }
}

}  // namespace weft::core
