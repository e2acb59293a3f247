#include "object_store/segment_writer.h"

#include <algorithm>
#include <string>

#include "object_store/copy.h"

namespace weft::core {
namespace {

constexpr uint64_t kEntriesPerPage = kPageBytes / sizeof(IndexEntry);
// The index is looked through for free pages only if this many entries are free: 1 MB of it.
constexpr uint64_t kIdleEntriesWorthPunching = (1u << 20) / sizeof(IndexEntry);

}  // namespace

Result<int> SegmentWriter::Create(ProcessId writer, uint64_t virtual_size) {
  std::lock_guard lock(mutex_);
  if (created()) return fd_.get();
  auto layout = SegmentLayout::ForSize(virtual_size);
  if (!layout || !writer) return Error{ErrorKind::kInvalid, "no segment can have this size"};
  auto fd = CreateSharedMemory("weft-segment", virtual_size);
  if (!fd) return fd.error();
  auto mapping = SharedMapping::Map(fd->get(), virtual_size, Access::kReadWrite);
  if (!mapping) return mapping.error();
  auto reopened = ReopenReadOnly(fd->get());
  if (!reopened) return reopened.error();
  auto read_only = SharedMapping::Map(reopened->get(), virtual_size, Access::kReadOnly);
  if (!read_only) return read_only.error();
  SegmentHeader header = layout->HeaderFor(writer);
  auto written = WriteShared(fd->get(), 0, &header, sizeof header);
  if (!written) return written.error();
  layout_ = *layout;
  segment_ = SegmentId{writer.value};
  fd_ = std::move(*fd);
  mapping_ = std::move(*mapping);
  read_only_ = std::move(*read_only);
  ranges_.emplace(layout_.data_bytes());
  created_.store(true, std::memory_order_release);
  return fd_.get();
}

uint64_t SegmentWriter::HeldBytes() const { return (1 + index_pages_) * kPageBytes + ranges_->held_bytes(); }
uint64_t SegmentWriter::SpareBytes() const {
  uint64_t held = HeldBytes();
  return budget_bytes_ > held ? budget_bytes_ - held : 0;
}

Result<Allocation> SegmentWriter::Allocate(ObjectId object, uint64_t size, Populate populate,
                                           uint64_t* missing_budget) {
  *missing_budget = 0;
  if (!created()) return Error{ErrorKind::kInvalid, "the segment was not created"};
  if (size > layout_.data_bytes()) {
    // The daemon will refuse this reservation with a message that names the capacity.
    *missing_budget = size;
    return Error{ErrorKind::kFull,
                 "an object of " + std::to_string(size) + " bytes does not fit into the object store"};
  }
  std::unique_lock lock(mutex_);
  if (free_slots_.empty() && slots_.size() == layout_.index_capacity) {
    return Error{ErrorKind::kFull, "this process already has " + std::to_string(slots_.size()) +
                                       " objects in the object store, the most it can have; drop references"};
  }
  auto taken = ranges_->Take(size, SpareBytes());
  if (!taken) {
    return Error{ErrorKind::kFull, "no free stretch of " + std::to_string(size) +
                                       " bytes is left in this process's part of the object store; drop references"};
  }
  uint64_t index_pages = free_slots_.empty() ? slots_.size() / kEntriesPerPage + 1 : 0;
  uint64_t new_index_pages = index_pages > index_pages_ ? index_pages - index_pages_ : 0;
  uint64_t wanted = HeldBytes() + new_index_pages * kPageBytes;
  std::vector<Range> victims;
  if (wanted > budget_bytes_) {
    uint64_t over = wanted - budget_bytes_;
    uint64_t idle = ranges_->warm_free_bytes();
    if (idle < over) {
      ranges_->Undo(*taken);
      *missing_budget = over - idle;
      return Error{ErrorKind::kFull, std::to_string(*missing_budget) + " bytes more have to be reserved"};
    }
    victims = ranges_->TakeIdle(over);
  }
  index_pages_ += new_index_pages;
  uint64_t slot;
  if (free_slots_.empty()) {
    slot = slots_.size();
    slots_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  uint64_t generation = MakeGeneration(next_counter_++, slot);
  slots_[slot] = {taken->range.offset, size, generation, SlotState::kWriting};
  ++allocations_;
  cold_bytes_ += taken->cold_bytes;
  NoteIdle();
  lock.unlock();
  At("range taken");

  Location location{segment_, layout_.data_offset + taken->range.offset, size, generation};
  if (!victims.empty()) {
    bool punched = Punch(victims);
    lock.lock();
    if (punched) {
      ranges_->Punched(victims);
      for (Range victim : victims) punched_bytes_ += victim.size;
    } else {
      ranges_->NotPunched(victims);
    }
    lock.unlock();
    At("victims punched");
  }
  bool later = populate == Populate::kWhileCopying && size >= FreeRanges::kSmallLimit;
  if (!later) {
    for (Range cold : taken->cold) {
      auto populated = PopulatePages(mapping_.data() + layout_.data_offset + cold.offset, cold.size);
      if (populated) continue;
      WEFT_CHECK(Abort(location), "an allocation vanished");
      return populated.error();
    }
    At("populated");
  }
  // The slot is ours alone until Seal or Abort, so its fields need no lock; state is 0, so no reader uses them.
  IndexEntry* entry = Entry(slot);
  entry->owner.store(object.owner.value, std::memory_order_relaxed);
  entry->index.store(object.index, std::memory_order_relaxed);
  At("half the entry written");
  entry->offset.store(location.offset, std::memory_order_relaxed);
  entry->size.store(size, std::memory_order_relaxed);
  At("entry written");
  Allocation allocation{.data = mapping_.data() + location.offset, .location = location};
  if (later && !taken->cold.empty()) {
    allocation.cold_begin = taken->cold.front().offset - taken->range.offset;
    allocation.cold_end = taken->cold.back().end() - taken->range.offset;
  }
  return allocation;
}

Status SegmentWriter::Fill(const Allocation& allocation, uint64_t at, const void* bytes, uint64_t size) const {
  WEFT_CHECK(at <= allocation.location.size && size <= allocation.location.size - at, "a copy beyond its allocation");
  const auto* from = static_cast<const uint8_t*>(bytes);
  int threads = CopyThreads(size);
  uint64_t end = at + size;
  uint64_t cold_begin = std::clamp(allocation.cold_begin, at, end);
  uint64_t cold_end = std::clamp(allocation.cold_end, cold_begin, end);
  CopyWarm(allocation.data + at, from, cold_begin - at, threads);
  CopyWarm(allocation.data + cold_end, from + (cold_end - at), end - cold_end, threads);
  return CopyCold({fd_.get(), allocation.location.offset + cold_begin, allocation.data + cold_begin},
                  from + (cold_begin - at), cold_end - cold_begin, threads);
}

SegmentWriter::Slot* SegmentWriter::Find(const Location& location, SlotState state) {
  uint64_t number = SlotOf(location.generation);
  if (!created() || location.segment != segment_ || number >= slots_.size()) return nullptr;
  Slot& slot = slots_[number];
  bool same = slot.state == state && slot.generation == location.generation && slot.size == location.size &&
              slot.offset + layout_.data_offset == location.offset;
  return same ? &slot : nullptr;
}

bool SegmentWriter::Seal(const Location& location, uint64_t index) {
  std::lock_guard lock(mutex_);
  Slot* slot = Find(location, SlotState::kWriting);
  if (slot == nullptr) return false;
  if (index != 0) Entry(SlotOf(location.generation))->index.store(index, std::memory_order_relaxed);
  At("before publishing");
  Entry(SlotOf(location.generation))->state.store(location.generation, std::memory_order_release);
  At("published");
  slot->state = SlotState::kSealed;
  if (ProcessId owner = OwnerOf(SlotOf(location.generation)); owner != self()) ++of_others_[owner];
  return true;
}

void SegmentWriter::FreeSlot(uint64_t number) {
  Slot& slot = slots_[number];
  ranges_->Return(FreeRanges::Rounded(slot.offset, slot.size));
  slot = Slot{};
  free_slots_.push_back(static_cast<uint32_t>(number));
}

bool SegmentWriter::Abort(const Location& location) {
  std::lock_guard lock(mutex_);
  if (Find(location, SlotState::kWriting) == nullptr) return false;
  FreeSlot(SlotOf(location.generation));
  At("aborted");
  return true;
}

bool SegmentWriter::Free(const Location& location) {
  std::lock_guard lock(mutex_);
  if (Find(location, SlotState::kSealed) == nullptr) return false;
  uint64_t number = SlotOf(location.generation);
  if (ProcessId owner = OwnerOf(number); owner != self() && --of_others_[owner] == 0) of_others_.erase(owner);
  At("before unpublishing");
  Entry(number)->state.store(0, std::memory_order_release);
  At("unpublished");
  FreeSlot(number);
  At("recycled");
  return true;
}

std::vector<SealedObject> SegmentWriter::ObjectsOf(const std::function<bool(ProcessId)>& owners) const {
  std::vector<SealedObject> found;
  std::lock_guard lock(mutex_);
  if (std::none_of(of_others_.begin(), of_others_.end(), [&](const auto& other) { return owners(other.first); })) {
    return found;
  }
  for (uint64_t number = 0; number < slots_.size(); ++number) {
    const Slot& slot = slots_[number];
    if (slot.state != SlotState::kSealed || OwnerOf(number) == self() || !owners(OwnerOf(number))) continue;
    found.push_back({{OwnerOf(number), Entry(number)->index.load(std::memory_order_relaxed)},
                     {segment_, layout_.data_offset + slot.offset, slot.size, slot.generation}});
  }
  return found;
}

const uint8_t* SegmentWriter::ReadOnly(const Location& location) const {
  if (!created() || location.segment != segment_ || !layout_.Contains(location)) return nullptr;
  // Pairs with the release store in Seal. No lock: this is on the path of every get.
  const IndexEntry* entry = Entry(SlotOf(location.generation));
  if (entry->state.load(std::memory_order_acquire) != location.generation ||
      entry->offset.load(std::memory_order_relaxed) != location.offset ||
      entry->size.load(std::memory_order_relaxed) != location.size) {
    return nullptr;
  }
  return read_only_.data() + location.offset;
}

void SegmentWriter::AddBudget(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  budget_bytes_ += bytes;
}

bool SegmentWriter::Punch(const std::vector<Range>& ranges) {
  for (Range range : ranges) {
    if (!PunchPages(fd_.get(), layout_.data_offset + range.offset, range.size)) return false;
  }
  return true;
}

// Punches up to so many bytes of warm free pages. Called with the lock, which is given up meanwhile.
uint64_t SegmentWriter::PunchIdle(uint64_t bytes, std::unique_lock<std::mutex>& lock) {
  std::vector<Range> victims = ranges_->TakeIdle(std::min(bytes, ranges_->warm_free_bytes()));
  uint64_t sum = 0;
  for (Range victim : victims) sum += victim.size;
  if (sum == 0) return 0;
  // While they are being punched they still exist, so nothing else may use their part of the budget.
  budget_bytes_ -= sum;
  lock.unlock();
  bool punched = Punch(victims);
  lock.lock();
  budget_bytes_ += sum;
  if (!punched) {
    ranges_->NotPunched(victims);
    return 0;
  }
  ranges_->Punched(victims);
  punched_bytes_ += sum;
  NoteIdle();
  return sum;
}

// Gives back the pages at the end of the index whose entries are all free. A short system call under the lock: no
// thread may take an entry meanwhile. Generations go on counting, so an outdated location finds 0 there, never its
// number.
uint64_t SegmentWriter::PunchIdleIndex() {
  if (free_slots_.size() < kIdleEntriesWorthPunching || free_slots_.size() < slots_.size() / 2) return 0;
  uint64_t used = slots_.size();
  while (used > 0 && slots_[used - 1].state == SlotState::kFree) --used;
  uint64_t pages = (used + kEntriesPerPage - 1) / kEntriesPerPage;
  if (pages >= index_pages_) return 0;
  uint64_t bytes = (index_pages_ - pages) * kPageBytes;
  if (!PunchPages(fd_.get(), layout_.index_offset + pages * kPageBytes, bytes)) return 0;
  slots_.resize(std::min<uint64_t>(slots_.size(), pages * kEntriesPerPage));
  slots_.shrink_to_fit();
  std::erase_if(free_slots_, [&](uint32_t slot) { return slot >= slots_.size(); });
  free_slots_.shrink_to_fit();
  index_pages_ = pages;
  punched_bytes_ += bytes;
  return bytes;
}

uint64_t SegmentWriter::Trim(uint64_t bytes) {
  std::unique_lock lock(mutex_);
  if (created()) {
    uint64_t spare = SpareBytes();
    if (spare < bytes) spare += PunchIdleIndex();
    if (spare < bytes) PunchIdle(bytes - spare, lock);
  }
  uint64_t released = std::min(bytes, created() ? SpareBytes() : budget_bytes_);
  budget_bytes_ -= released;
  return released;
}

// Remembers the least that was warm and free in the present second.
void SegmentWriter::NoteIdle() { present_low_ = std::min(present_low_, ranges_->warm_free_bytes()); }

uint64_t SegmentWriter::TrimIdle(int64_t now_ns, uint64_t keep_budget) {
  std::unique_lock lock(mutex_);
  if (!created() || now_ns < bucket_end_ns_) return 0;
  if (bucket_end_ns_ == 0) {
    // The first call: nothing is known about the time before it.
    present_low_ = ranges_->warm_free_bytes();
    bucket_end_ns_ = now_ns + kIdleBucketNs;
    return 0;
  }
  // What was low over the whole time since the last call was low in each second of it.
  int64_t passed = std::min<int64_t>((now_ns - bucket_end_ns_) / kIdleBucketNs + 1, kIdleBuckets);
  for (int64_t i = 0; i < passed; ++i) {
    std::move(idle_low_ + 1, idle_low_ + kIdleBuckets, idle_low_);
    idle_low_[kIdleBuckets - 1] = present_low_;
  }
  bucket_end_ns_ = now_ns + kIdleBucketNs;
  uint64_t idle = *std::min_element(idle_low_, idle_low_ + kIdleBuckets);
  if (idle > 0) {
    uint64_t punched = PunchIdle(idle, lock);
    for (uint64_t& low : idle_low_) low -= std::min(low, punched);
  }
  if (ranges_->warm_free_bytes() == 0) PunchIdleIndex();
  present_low_ = ranges_->warm_free_bytes();
  uint64_t keep = std::max(HeldBytes(), keep_budget);
  uint64_t released = budget_bytes_ > keep ? budget_bytes_ - keep : 0;
  budget_bytes_ -= released;
  return released;
}

bool SegmentWriter::HasIdleMemory(uint64_t keep_budget) const {
  std::lock_guard lock(mutex_);
  return created() && (ranges_->warm_free_bytes() > 0 || budget_bytes_ > std::max(HeldBytes(), keep_budget));
}

SegmentCounters SegmentWriter::counters() const {
  std::lock_guard lock(mutex_);
  SegmentCounters counters{.budget_bytes = budget_bytes_};
  if (!created()) return counters;
  counters.virtual_bytes = layout_.size;
  counters.held_bytes = HeldBytes();
  counters.used_bytes = ranges_->used_bytes();
  counters.warm_free_bytes = ranges_->warm_free_bytes();
  counters.objects = slots_.size() - free_slots_.size();
  counters.allocations = allocations_;
  counters.cold_bytes = cold_bytes_;
  counters.punched_bytes = punched_bytes_;
  return counters;
}

void SegmentWriter::CheckInvariants() const {
  std::lock_guard lock(mutex_);
  if (!created()) return;
  ranges_->CheckInvariants();
  uint64_t used = 0, busy = 0;
  for (const Slot& slot : slots_) {
    if (slot.state == SlotState::kFree) continue;
    ++busy;
    used += FreeRanges::Rounded(slot.offset, slot.size).size;
  }
  WEFT_CHECK(used == ranges_->used_bytes(), "objects and ranges disagree");
  WEFT_CHECK(busy + free_slots_.size() == slots_.size(), "index entries were lost");
  WEFT_CHECK(slots_.size() <= index_pages_ * kEntriesPerPage, "entries lie in pages that were not counted");
}

}  // namespace weft::core
