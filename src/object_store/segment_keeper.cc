#include "object_store/segment_keeper.h"

#include <algorithm>
#include <string>
#include <utility>

#include "object_store/free_ranges.h"

namespace weft::core {
namespace {

constexpr uint64_t kEntriesPerPage = kPageBytes / sizeof(IndexEntryBytes);

uint64_t EndOf(const SegmentLayout& layout, const Location& location) {
  return std::min(FreeRanges::Rounded(location.offset, location.size).end(), layout.size);
}

}  // namespace

Status SegmentKeeper::Adopt(SegmentId segment, UniqueFd fd, uint64_t claimed_size) {
  std::string whose = "the segment of process " + std::to_string(segment.value);
  if (segments_.count(segment) != 0) return Error{ErrorKind::kInvalid, whose + " was announced twice"};
  auto facts = InspectSharedMemory(fd.get());
  if (!facts) return facts.error();
  auto layout = SegmentLayout::ForSize(facts->size);
  if (!layout || facts->size != claimed_size) return Error{ErrorKind::kInvalid, whose + " has a wrong size"};
  if (!facts->sealed) return Error{ErrorKind::kInvalid, whose + " is not sealed against shrinking"};
  if (!facts->writable) return Error{ErrorKind::kInvalid, whose + " came with a read-only descriptor"};
  SegmentHeader header;
  auto read = ReadShared(fd.get(), 0, &header, sizeof header);
  if (!read) return read;
  if (!layout->Accepts(header, segment)) return Error{ErrorKind::kInvalid, whose + " has a wrong header"};
  Segment& kept = segments_[segment];
  kept.layout = *layout;
  kept.fd = std::move(fd);
  return {};
}

Result<UniqueFd> SegmentKeeper::OpenReadOnly(SegmentId segment) const {
  auto it = segments_.find(segment);
  if (it == segments_.end()) {
    return Error{ErrorKind::kGone, "there is no segment of process " + std::to_string(segment.value)};
  }
  return ReopenReadOnly(it->second.fd.get());
}

uint64_t SegmentKeeper::SizeOf(SegmentId segment) const {
  auto it = segments_.find(segment);
  return it == segments_.end() ? 0 : it->second.layout.size;
}

uint64_t SegmentKeeper::Forget(SegmentId segment) {
  auto found = segments_.find(segment);
  if (found == segments_.end() || !found->second.writer_died) return 0;
  const uint64_t held = found->second.held_bytes;
  Erase(found);
  return held;
}

bool SegmentKeeper::IsDead(SegmentId segment) const {
  auto it = segments_.find(segment);
  return it != segments_.end() && it->second.writer_died;
}

size_t SegmentKeeper::DeadObjectCount(SegmentId segment) const {
  auto it = segments_.find(segment);
  return it == segments_.end() ? 0 : it->second.sealed.size();
}

uint64_t SegmentKeeper::MeasureHeld(const Segment& segment) {
  auto facts = InspectSharedMemory(segment.fd.get());
  return facts ? facts->held_bytes : 0;
}

uint64_t SegmentKeeper::HeldBytes(SegmentId segment) const {
  auto it = segments_.find(segment);
  return it == segments_.end() ? 0 : MeasureHeld(it->second);
}

// Page by page, existing pages only. A page without a sealed entry is given back on the way.
std::vector<SealedObject> SegmentKeeper::ReadIndex(SegmentId id, const Segment& segment) const {
  std::vector<SealedObject> found;
  const SegmentLayout& layout = segment.layout;
  uint64_t end = layout.EntryOffset(layout.index_capacity);
  IndexEntryBytes entries[kEntriesPerPage];
  for (uint64_t at = layout.index_offset; (at = NextPopulated(segment.fd.get(), at, end)) < end; at += kPageBytes) {
    at = at / kPageBytes * kPageBytes;
    if (!ReadShared(segment.fd.get(), at, entries, sizeof entries)) break;
    bool any = false;
    for (uint64_t i = 0; i < kEntriesPerPage; ++i) {
      const IndexEntryBytes& entry = entries[i];
      uint64_t slot = (at - layout.index_offset) / sizeof(IndexEntryBytes) + i;
      if (entry.state == 0 || SlotOf(entry.state) != slot) continue;
      Location location{id, entry.offset, entry.size, entry.state};
      if (!layout.Contains(location) || entry.owner == 0) continue;
      found.push_back({{ProcessId{entry.owner}, entry.index}, location});
      any = true;
    }
    if (!any) (void)PunchPages(segment.fd.get(), at, kPageBytes);
  }
  return found;
}

void SegmentKeeper::Erase(std::map<SegmentId, Segment>::iterator segment) {
  for (const auto& [offset, sealed] : segment->second.sealed) Disown(sealed.object.owner, segment->first, offset);
  segments_.erase(segment);
}

void SegmentKeeper::Disown(ProcessId owner, SegmentId segment, uint64_t offset) {
  auto owned = owned_.find(owner);
  if (owned == owned_.end()) return;
  owned->second.erase({segment, offset});
  if (owned->second.empty()) owned_.erase(owned);
}

SealedObject SegmentKeeper::Describe(SegmentId id, uint64_t offset) const {
  const Segment::Sealed& sealed = segments_.at(id).sealed.at(offset);
  return {sealed.object, {id, offset, sealed.size, sealed.generation}};
}

std::vector<SealedObject> SegmentKeeper::ObjectsOf(ProcessId owner) const {
  std::vector<SealedObject> objects;
  if (auto owned = owned_.find(owner); owned != owned_.end()) {
    for (const auto& [segment, offset] : owned->second) objects.push_back(Describe(segment, offset));
  }
  return objects;
}

std::vector<SealedObject> SegmentKeeper::ObjectsOf(NodeNumber owners) const {
  std::vector<SealedObject> objects;
  for (auto owned = owned_.lower_bound(DaemonOf(owners)); owned != owned_.end() && NodeOf(owned->first) == owners;
       ++owned) {
    for (const auto& [segment, offset] : owned->second) objects.push_back(Describe(segment, offset));
  }
  return objects;
}

SegmentKeeper::Estate SegmentKeeper::WriterDied(SegmentId id) {
  Estate estate;
  auto it = segments_.find(id);
  if (it == segments_.end() || it->second.writer_died) return estate;
  Segment& segment = it->second;
  segment.writer_died = true;
  std::vector<SealedObject> found = ReadIndex(id, segment);
  std::sort(found.begin(), found.end(), [](const SealedObject& a, const SealedObject& b) {
    return std::pair(a.location.offset, a.location.generation) < std::pair(b.location.offset, b.location.generation);
  });
  uint64_t at = segment.layout.data_offset;
  for (SealedObject& object : found) {
    if (object.location.offset < at) continue;
    (void)PunchPages(segment.fd.get(), at, object.location.offset - at);
    at = EndOf(segment.layout, object.location);
    const Location& location = object.location;
    segment.sealed.emplace_hint(segment.sealed.end(), location.offset,
                                Segment::Sealed{at, object.object, location.size, location.generation});
    owned_[object.object.owner].emplace(id, location.offset);
    estate.objects.push_back(object);
  }
  if (estate.objects.empty()) {
    segments_.erase(it);
    return estate;
  }
  (void)PunchPages(segment.fd.get(), at, segment.layout.size - at);
  segment.held_bytes = MeasureHeld(segment);
  estate.surviving_bytes = segment.held_bytes;
  return estate;
}

bool SegmentKeeper::Hide(const Location& location) {
  auto it = segments_.find(location.segment);
  if (it == segments_.end() || !it->second.layout.Contains(location)) return false;
  const uint64_t entry_at = it->second.layout.EntryOffset(SlotOf(location.generation));
  IndexEntryBytes entry;
  if (!ReadShared(it->second.fd.get(), entry_at, &entry, sizeof entry).ok()) return false;
  if (entry.state != location.generation || entry.offset != location.offset || entry.size != location.size) {
    return false;
  }
  // A living writer may free the object at this moment, and use the entry again.
  return ReplaceShared(it->second.fd.get(), entry_at, location.generation, 0);
}

uint64_t SegmentKeeper::FreeDead(const Location& location) {
  auto it = segments_.find(location.segment);
  if (it == segments_.end() || !it->second.writer_died || !it->second.layout.Contains(location)) return 0;
  Segment& segment = it->second;
  auto sealed = segment.sealed.find(location.offset);
  if (sealed == segment.sealed.end() || sealed->second.generation != location.generation ||
      sealed->second.size != location.size) {
    return 0;
  }
  Hide(location);
  Disown(sealed->second.object.owner, location.segment, location.offset);
  auto next = segment.sealed.erase(sealed);
  if (segment.sealed.empty()) {
    uint64_t freed = segment.held_bytes;
    segments_.erase(it);
    return freed;
  }
  // Pages that the object shared with already freed neighbours go too.
  uint64_t begin = next == segment.sealed.begin() ? segment.layout.data_offset : std::prev(next)->second.end;
  uint64_t end = next == segment.sealed.end() ? segment.layout.size : next->first;
  begin = std::max(begin, location.offset / kPageBytes * kPageBytes);
  end = std::min(end, (EndOf(segment.layout, location) + kPageBytes - 1) / kPageBytes * kPageBytes);
  (void)PunchPages(segment.fd.get(), begin, end - begin);
  uint64_t held = MeasureHeld(segment);
  uint64_t freed = segment.held_bytes > held ? segment.held_bytes - held : 0;
  segment.held_bytes = held;
  return freed;
}

}  // namespace weft::core
