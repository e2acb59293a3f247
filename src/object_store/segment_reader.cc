#include "object_store/segment_reader.h"

#include <cstring>
#include <string>

namespace weft::core {

Status SegmentReader::Open(SegmentId segment, UniqueFd fd) {
  {
    std::lock_guard lock(mutex_);
    auto it = segments_.find(segment);
    if (it != segments_.end()) {
      it->second.dropped = false;
      return {};
    }
  }
  auto facts = InspectSharedMemory(fd.get());
  if (!facts) return facts.error();
  auto layout = SegmentLayout::ForSize(facts->size);
  if (!layout || !facts->sealed) return Error{ErrorKind::kInvalid, "a descriptor that came as a segment is none"};
  SegmentHeader header;
  auto read = ReadShared(fd.get(), 0, &header, sizeof header);
  if (!read) return read;
  if (!layout->Accepts(header, segment)) {
    return Error{ErrorKind::kInvalid,
                 "the segment of process " + std::to_string(segment.value) + " has a wrong header"};
  }
  auto mapping = SharedMapping::Map(fd.get(), facts->size, Access::kReadOnly);
  if (!mapping) return mapping.error();
  std::lock_guard lock(mutex_);
  segments_.try_emplace(segment, Mapped{*layout, std::move(*mapping)});
  return {};
}

bool SegmentReader::IsOpen(SegmentId segment) const {
  std::lock_guard lock(mutex_);
  auto it = segments_.find(segment);
  return it != segments_.end() && !it->second.dropped;
}

Result<const uint8_t*> SegmentReader::Resolve(const Location& location) {
  std::lock_guard lock(mutex_);
  auto it = segments_.find(location.segment);
  if (it == segments_.end() || it->second.dropped) {
    return Error{ErrorKind::kInvalid, "the segment is not mapped in this process"};
  }
  Mapped& mapped = it->second;
  if (!mapped.layout.Contains(location)) {
    return Error{ErrorKind::kInvalid, "a location lies outside of its segment"};
  }
  const uint8_t* base = mapped.mapping.data();
  auto* entry = reinterpret_cast<const IndexEntry*>(base + mapped.layout.EntryOffset(SlotOf(location.generation)));
  // The load pairs with the release store in SegmentWriter::Seal: a reader that sees this generation sees the fields
  // and the bytes that were written before it. The object is pinned, so if the entry is the right one now, it stays so.
  if (entry->state.load(std::memory_order_acquire) != location.generation ||
      entry->offset.load(std::memory_order_relaxed) != location.offset ||
      entry->size.load(std::memory_order_relaxed) != location.size) {
    return Error{ErrorKind::kGone, "the object is no longer at its location"};
  }
  ++mapped.views;
  return base + location.offset;
}

void SegmentReader::ReleaseView(SegmentId segment) {
  std::lock_guard lock(mutex_);
  auto it = segments_.find(segment);
  WEFT_CHECK(it != segments_.end() && it->second.views > 0, "a view was released twice");
  if (--it->second.views == 0 && it->second.dropped) segments_.erase(it);
}

void SegmentReader::Drop(SegmentId segment) {
  std::lock_guard lock(mutex_);
  auto it = segments_.find(segment);
  if (it == segments_.end()) return;
  if (it->second.views == 0) {
    segments_.erase(it);
  } else {
    it->second.dropped = true;
  }
}

size_t SegmentReader::mapped_count() const {
  std::lock_guard lock(mutex_);
  return segments_.size();
}

uint64_t SegmentReader::view_count(SegmentId segment) const {
  std::lock_guard lock(mutex_);
  auto it = segments_.find(segment);
  return it == segments_.end() ? 0 : it->second.views;
}

}  // namespace weft::core
