#include "transfer/copy_table.h"

#include <utility>

#include "base/check.h"

namespace weft::core {

bool CopyTable::IsComplete(const Location& object) const {
  auto found = copies_.find(object);
  return found != copies_.end() && found->second.stage == Stage::kComplete;
}

// ---- uses of copies ------------------------------------------------------------------------------------------------

void CopyTable::Handle(const CopyWanted& event, std::vector<CopyAction>& out) {
  const Use use{event.process, event.request};
  if (!uses_.emplace(use, event.object).second) {
    out.emplace_back(
        TellUnfetchable{event.process, event.request, "WeftError\nthe same request was made twice", event.object});
    return;
  }
  auto [entry, added] = copies_.try_emplace(event.object);
  Copy& copy = entry->second;
  if (copy.stage != Stage::kComplete) {
    copy.waiting.insert(use);
    if (added) out.emplace_back(MakeRoom{event.object});
    return;
  }
  if (copy.unused_since != 0) unused_.erase(std::exchange(copy.unused_since, 0));
  copy.users.insert(use);
  out.emplace_back(TellFetched{event.process, event.request, copy.place});
}

void CopyTable::EndUse(const Use& use, std::vector<CopyAction>& out) {
  auto found = uses_.find(use);
  if (found == uses_.end()) return;
  auto copy = copies_.find(found->second);
  uses_.erase(found);
  copy->second.waiting.erase(use);
  copy->second.users.erase(use);
  Consider(copy, out);
}

void CopyTable::Handle(const CopyUnwanted& event, std::vector<CopyAction>& out) {
  EndUse({event.process, event.request}, out);
}

void CopyTable::Handle(const CopyUserDied& event, std::vector<CopyAction>& out) {
  if (faults.forget_the_dead) return;
  for (auto next = uses_.lower_bound({event.process, 0}); next != uses_.end() && next->first.first == event.process;) {
    const Use use = (next++)->first;
    EndUse(use, out);
  }
}

// It may no longer be wanted.
void CopyTable::Consider(Copies::iterator entry, std::vector<CopyAction>& out) {
  Copy& copy = entry->second;
  if (!copy.waiting.empty() || !copy.users.empty()) return;
  switch (copy.stage) {
    case Stage::kMakingRoom:  // RoomMade or RoomRefused will find no waiter
    case Stage::kLeaving:
      return;
    case Stage::kPulling:
      return Leave(entry, out);
    case Stage::kComplete:
      if (copy.forsaken) return Leave(entry, out);
      if (copy.unused_since != 0) return;
      copy.unused_since = next_unused_++;
      unused_.emplace(copy.unused_since, entry->first);
      return;
  }
}

void CopyTable::FailWaiting(Copy& copy, const std::string& error, std::vector<CopyAction>& out) {
  for (const Use& use : std::exchange(copy.waiting, {})) {
    const Location object = uses_.at(use);
    uses_.erase(use);
    out.emplace_back(TellUnfetchable{use.first, use.second, error, object});
  }
}

// ---- a copy's life ------------------------------------------------------------------------------------------------

void CopyTable::Handle(const RoomMade& event, std::vector<CopyAction>& out) {
  auto found = copies_.find(event.object);
  WEFT_CHECK(found != copies_.end() && found->second.stage == Stage::kMakingRoom, "room is made for what wants it");
  Copy& copy = found->second;
  copy.place = event.place;
  if (copy.waiting.empty()) {
    out.emplace_back(FreePlace{event.object, event.place});
    copies_.erase(found);
    return;
  }
  copy.stage = Stage::kPulling;
  out.emplace_back(BeginPull{event.object, event.place});
}

void CopyTable::Handle(const RoomRefused& event, std::vector<CopyAction>& out) {
  auto found = copies_.find(event.object);
  WEFT_CHECK(found != copies_.end() && found->second.stage == Stage::kMakingRoom, "room is refused to what wants it");
  FailWaiting(found->second, event.error, out);
  copies_.erase(found);
}

void CopyTable::Handle(const CopyCompleted& event, std::vector<CopyAction>& out) {
  auto found = copies_.find(event.object);
  if (found == copies_.end() || found->second.stage != Stage::kPulling) return;
  Copy& copy = found->second;
  copy.stage = Stage::kComplete;
  copy.users = std::exchange(copy.waiting, {});
  for (const Use& use : copy.users) out.emplace_back(TellFetched{use.first, use.second, copy.place});
  Consider(found, out);
}

void CopyTable::Handle(const CopyFailed& event, std::vector<CopyAction>& out) {
  auto found = copies_.find(event.object);
  if (found == copies_.end() || found->second.stage != Stage::kPulling) return;
  FailWaiting(found->second, event.error, out);
  Leave(found, out);
}

void CopyTable::Handle(const OriginFreed& event, std::vector<CopyAction>& out) {
  auto found = copies_.find(event.object);
  if (found == copies_.end()) return;
  Copy& copy = found->second;
  copy.forsaken = true;
  // A borrower keeps an object from being freed, so no process seriously waits for it.
  FailWaiting(copy, "ObjectLostError\nthe object was freed while it was being fetched", out);
  if (copy.users.empty() && (copy.stage == Stage::kPulling || copy.stage == Stage::kComplete)) Leave(found, out);
}

void CopyTable::Handle(const HomeLost& event, std::vector<CopyAction>& out) {
  std::vector<Location> unused;
  for (auto& [object, copy] : copies_) {
    if (NodeOf(object.segment) != event.node) continue;
    copy.forsaken = true;
    if (copy.unused_since != 0) unused.push_back(object);
  }
  for (const Location& object : unused) Leave(copies_.find(object), out);
}

void CopyTable::Leave(Copies::iterator entry, std::vector<CopyAction>& out) {
  Copy& copy = entry->second;
  if (copy.unused_since != 0) unused_.erase(std::exchange(copy.unused_since, 0));
  copy.stage = Stage::kLeaving;
  out.emplace_back(WithdrawCopy{entry->first});
  LeaveIfUnsent(entry, out);
}

void CopyTable::LeaveIfUnsent(Copies::iterator entry, std::vector<CopyAction>& out) {
  Copy& copy = entry->second;
  if (copy.stage != Stage::kLeaving || (copy.sending > 0 && !faults.free_what_is_sent)) return;
  const Location object = entry->first;
  out.emplace_back(FreePlace{object, copy.place});
  if (copy.waiting.empty()) {
    copies_.erase(entry);
    return;
  }
  Copy again;
  again.waiting = std::move(copy.waiting);
  copy = std::move(again);
  out.emplace_back(MakeRoom{object});
}

void CopyTable::Handle(const SendingBegan& event, std::vector<CopyAction>&) {
  auto found = copies_.find(event.object);
  WEFT_CHECK(found != copies_.end(), "what is sent is here");
  ++found->second.sending;
}

void CopyTable::Handle(const SendingEnded& event, std::vector<CopyAction>& out) {
  auto found = copies_.find(event.object);
  WEFT_CHECK(found != copies_.end() && found->second.sending > 0, "what was sent is here");
  --found->second.sending;
  LeaveIfUnsent(found, out);
}

void CopyTable::Handle(const RoomNeeded& event, std::vector<CopyAction>& out) {
  uint64_t freed = 0;
  while (freed < event.bytes && !unused_.empty()) {
    auto oldest = faults.drop_the_youngest ? std::prev(unused_.end()) : unused_.begin();
    auto found = copies_.find(oldest->second);
    if (found->second.sending == 0) freed += found->first.size;
    Leave(found, out);
  }
}

void CopyTable::CheckInvariants() const {
  size_t uses = 0, unused = 0;
  for (const auto& [object, copy] : copies_) {
    uses += copy.waiting.size() + copy.users.size();
    for (const auto* set : {&copy.waiting, &copy.users}) {
      for (const Use& use : *set) {
        auto found = uses_.find(use);
        WEFT_CHECK(found != uses_.end() && found->second == object, "a use is listed both ways");
      }
    }
    WEFT_CHECK(copy.users.empty() || copy.stage == Stage::kComplete, "only what is complete is used");
    WEFT_CHECK(copy.waiting.empty() || copy.stage != Stage::kComplete, "no process waits for a complete copy");
    WEFT_CHECK(copy.stage != Stage::kPulling || !copy.waiting.empty(), "every pull has a waiter");
    WEFT_CHECK(copy.sending == 0 || copy.stage != Stage::kMakingRoom, "what has no place is not sent");
    WEFT_CHECK(copy.stage != Stage::kLeaving || copy.sending > 0, "what leaves waits for what is being sent only");
    const bool is_unused = copy.stage == Stage::kComplete && copy.users.empty();
    WEFT_CHECK(is_unused == (copy.unused_since != 0), "unused copies are listed");
    WEFT_CHECK(!is_unused || !copy.forsaken, "a forsaken copy goes with its last user");
    if (copy.unused_since != 0) {
      ++unused;
      auto listed = unused_.find(copy.unused_since);
      WEFT_CHECK(listed != unused_.end() && listed->second == object, "unused copies are listed");
    }
  }
  WEFT_CHECK(uses == uses_.size(), "a use is listed both ways");
  WEFT_CHECK(unused == unused_.size(), "unused copies are listed");
}

}  // namespace weft::core
