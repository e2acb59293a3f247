// The daemon's side of the segments: keeps a descriptor of each, so that sealed objects outlive their writer.
//
// Used by the node daemon, on its loop thread. Keeps nothing mapped: it reads an index through the descriptor, so that
// holes stay holes and a hostile writer cannot disturb it. While a writer lives, the keeper hands out its segment and
// hides single objects; after its death only the keeper frees in it.
//
// After a death everything in the file that is not a sealed object is given back at once; each freed object gives its
// pages back as soon as no neighbour needs them; with the last object the segment goes.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/result.h"
#include "object_store/segment_layout.h"
#include "os/shared_memory.h"
#include "wire/ids.h"

namespace weft::core {

class SegmentKeeper {
 public:
  // A writer announced its segment with a read-write descriptor. Refuses anything but a segment of that writer: wrong
  // kind, size, seals or header, or a second one.
  Status Adopt(SegmentId segment, UniqueFd fd, uint64_t claimed_size);

  // A descriptor for a reader. kGone if there is no such segment.
  Result<UniqueFd> OpenReadOnly(SegmentId segment) const;
  uint64_t SizeOf(SegmentId segment) const;  // 0 if there is no such segment

  // What a dead writer left. An object with a broken entry does not count; overlapping entries neither, except the
  // first.
  struct Estate {
    std::vector<SealedObject> objects;
    uint64_t surviving_bytes = 0;  // pages that are still held; for MemoryBudget::Died
  };
  Estate WriterDied(SegmentId segment);

  // The objects of these owners that dead writers have left: of one process, or of all processes of a node.
  std::vector<SealedObject> ObjectsOf(ProcessId owner) const;
  std::vector<SealedObject> ObjectsOf(NodeNumber owners) const;

  // Makes an object invisible to readers from now on, whether its writer lives or not; its bytes stay until it is
  // freed. False if the location is outdated or unknown.
  bool Hide(const Location& location);

  // Frees one object of a dead writer, hidden or not. Returns how many bytes went back to the system (for
  // MemoryBudget::DeadFreed), which may be 0 while neighbours share its pages. Unknown or outdated locations change
  // nothing.
  uint64_t FreeDead(const Location& location);

  // No process reads a dead writer's segment any more: all of it goes. Returns the bytes, as FreeDead does.
  uint64_t Forget(SegmentId segment);

  bool IsDead(SegmentId segment) const;
  size_t DeadObjectCount(SegmentId segment) const;
  uint64_t HeldBytes(SegmentId segment) const;
  size_t segment_count() const { return segments_.size(); }

 private:
  struct Segment {
    SegmentLayout layout;
    UniqueFd fd;
    bool writer_died = false;
    // Of a dead writer: every sealed object by its offset, with its end, page or cache line rounding included.
    struct Sealed {
      uint64_t end = 0;
      ObjectId object;
      uint64_t size = 0;
      uint64_t generation = 0;
    };
    std::map<uint64_t, Sealed> sealed;
    uint64_t held_bytes = 0;  // after death, as last reported
  };

  std::vector<SealedObject> ReadIndex(SegmentId id, const Segment& segment) const;
  static uint64_t MeasureHeld(const Segment& segment);
  // Of a dead writer: with its objects.
  void Erase(std::map<SegmentId, Segment>::iterator segment);
  void Disown(ProcessId owner, SegmentId segment, uint64_t offset);
  SealedObject Describe(SegmentId id, uint64_t offset) const;

  std::map<SegmentId, Segment> segments_;
  std::map<ProcessId, std::set<std::pair<SegmentId, uint64_t>>> owned_;  // in segments of dead writers, by offset
};

}  // namespace weft::core
