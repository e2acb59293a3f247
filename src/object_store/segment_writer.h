// The segment that this process writes: allocates, publishes, recycles and gives memory back.
//
// One per process, made with its first large value. Used by the runtime, from any thread; a mutex of its own guards the
// tables and is never held while pages are populated, punched or copied. Nothing here asks the daemon: the caller
// reserves budget by message, reports what Trim gives back, and announces the segment.
//
// The life of a range: Allocate (only the caller writes it) -> Seal (every process may read it, none writes it) -> Free
// (recycled, its pages stay warm) -> Trim (its pages go back to the system). Abort ends an allocation that was never
// sealed.
//
// Held pages (in use or warm, index included) never exceed the budget. If an allocation does not fit, our own warm free
// pages are punched first; the caller reserves only what is still missing.
//
// What if this process dies here: the daemon finds an object in the index if its entry was published, and not
// otherwise; everything else in the file counts as free. See segment_layout.h and segment_crash_test.cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "object_store/free_ranges.h"
#include "object_store/segment_layout.h"
#include "os/shared_memory.h"
#include "wire/ids.h"

namespace weft::core {

struct Allocation {
  uint8_t* data = nullptr;  // writable until Seal
  Location location;
  // The part of the range, from data on, with pages that do not exist yet. Only with Populate::kWhileCopying.
  uint64_t cold_begin = 0, cold_end = 0;
};

enum class Populate {
  kNow,           // the caller writes as it likes
  kWhileCopying,  // the caller writes with Fill, which makes pages as it copies; twice as fast where they are cold
};

struct SegmentCounters {
  uint64_t virtual_bytes = 0;
  uint64_t budget_bytes = 0;
  uint64_t held_bytes = 0;       // pages that exist, index included; at most the budget
  uint64_t used_bytes = 0;       // in objects
  uint64_t warm_free_bytes = 0;  // existing pages without an object
  uint64_t objects = 0;          // sealed or being written
  uint64_t allocations = 0;      // ever
  uint64_t cold_bytes = 0;       // ever taken as cold pages
  uint64_t punched_bytes = 0;    // ever given back
};

class SegmentWriter {
 public:
  // The idle trim looks back over this time: memory that was never needed in it is given back.
  static constexpr int64_t kIdleBucketNs = 1'000'000'000;
  static constexpr int kIdleBuckets = 10;

  SegmentWriter() = default;
  SegmentWriter(const SegmentWriter&) = delete;
  SegmentWriter& operator=(const SegmentWriter&) = delete;

  // Makes the segment; the descriptor stays ours and is to be sent to the daemon (read-write). A second call, or a
  // loser of a race, gets the same descriptor: the caller announces it once, before any location leaves the process.
  Result<int> Create(ProcessId writer, uint64_t virtual_size);
  bool created() const { return created_.load(std::memory_order_acquire); }  // pairs with the store in Create
  SegmentId segment() const { return segment_; }                             // after Create
  uint64_t size() const { return layout_.size; }

  // Room for one object. kFull with *missing_budget > 0: reserve that much (or more), AddBudget, and try again. kFull
  // with 0: the address space is fragmented, freeing objects helps. kUnavailable: the system has no pages.
  Result<Allocation> Allocate(ObjectId object, uint64_t size, Populate populate, uint64_t* missing_budget);
  // Copies bytes into an allocation, `at` bytes from its start, with several threads if cores are free. No lock is
  // held. Fails only if the system has no pages; the caller then aborts the allocation.
  Status Fill(const Allocation& allocation, uint64_t at, const void* bytes, uint64_t size) const;
  // Publishes an allocation. False if the location is not an allocation that is being written. `index`, if not 0, says
  // which of its owner's objects it is, for when that was not known before.
  bool Seal(const Location& location, uint64_t index = 0);
  // Takes back an allocation that was not sealed. False if there is no such allocation.
  bool Abort(const Location& location);
  // Recycles a sealed object. False if the location is outdated, so that freeing twice is harmless.
  bool Free(const Location& location);

  // The sealed object's bytes in our read-only mapping, or nullptr if the location is outdated. Valid until Free.
  const uint8_t* ReadOnly(const Location& location) const;

  // The sealed objects here that belong to other owners for which the condition holds; costs almost nothing if there
  // are none. Used for dead owners: an object that is being written now is not included, so its writer checks after
  // sealing it whether the owner lives.
  std::vector<SealedObject> ObjectsOf(const std::function<bool(ProcessId)>& owners) const;

  void AddBudget(uint64_t bytes);
  // Another process needs memory: gives up to so many bytes of budget back, first unused budget, then by punching warm
  // free pages. Returns by how much the budget shrank; the caller tells the daemon.
  uint64_t Trim(uint64_t bytes);
  // Called now and then (best every second while HasIdleMemory): punches memory that was free for ten seconds, and
  // gives back budget above `keep_budget`. Returns the same as Trim.
  uint64_t TrimIdle(int64_t now_ns, uint64_t keep_budget);
  bool HasIdleMemory(uint64_t keep_budget) const;

  SegmentCounters counters() const;
  void CheckInvariants() const;

  // Called at every step of Allocate, Seal, Abort and Free, for tests that kill the process there.
  void SetCrashPoint(void (*crash_point)(const char* step)) { crash_point_ = crash_point; }

 private:
  enum class SlotState : uint8_t { kFree, kWriting, kSealed };
  struct Slot {
    uint64_t offset = 0;  // in the data
    uint64_t size = 0;    // of the object
    uint64_t generation = 0;
    SlotState state = SlotState::kFree;
  };

  void At(const char* step) const {
    if (crash_point_ != nullptr) crash_point_(step);
  }
  IndexEntry* Entry(uint64_t slot) const {
    return reinterpret_cast<IndexEntry*>(mapping_.data() + layout_.EntryOffset(slot));
  }
  ProcessId self() const { return {segment_.value}; }  // a segment has its writer's number
  ProcessId OwnerOf(uint64_t slot) const { return {Entry(slot)->owner.load(std::memory_order_relaxed)}; }
  Slot* Find(const Location& location, SlotState state);
  uint64_t HeldBytes() const;
  uint64_t SpareBytes() const;
  void FreeSlot(uint64_t slot);
  uint64_t PunchIdleIndex();
  bool Punch(const std::vector<Range>& ranges);
  uint64_t PunchIdle(uint64_t bytes, std::unique_lock<std::mutex>& lock);
  void NoteIdle();

  // Constant after Create.
  std::atomic<bool> created_{false};
  SegmentId segment_;
  SegmentLayout layout_;
  UniqueFd fd_;
  SharedMapping mapping_;
  SharedMapping read_only_;
  void (*crash_point_)(const char*) = nullptr;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::optional<FreeRanges> ranges_;
  std::vector<Slot> slots_;  // every entry that was ever used and not punched since
  std::vector<uint32_t> free_slots_;
  std::map<ProcessId, uint64_t> of_others_;  // how many sealed objects belong to each other process
  uint64_t next_counter_ = 1;
  uint64_t index_pages_ = 0;  // pages of the index that exist
  uint64_t budget_bytes_ = 0;
  uint64_t allocations_ = 0, cold_bytes_ = 0, punched_bytes_ = 0;
  // The least that was warm and free in each of the last seconds, and in the present one.
  uint64_t idle_low_[kIdleBuckets] = {};
  uint64_t present_low_ = 0;
  int64_t bucket_end_ns_ = 0;
};

}  // namespace weft::core
