// The segments of other processes, mapped read-only.
//
// One per process. Used by the runtime, from any thread. The caller asks the daemon for a descriptor when Resolve says
// that a segment is not mapped, and pins an object (borrows its reference) before it resolves the location.
//
// A view is the right to use an address that Resolve returned; a segment with views is not unmapped. A write through
// such an address kills only this process, with SIGSEGV.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/result.h"
#include "object_store/segment_layout.h"
#include "os/shared_memory.h"
#include "wire/ids.h"

namespace weft::core {

class SegmentReader {
 public:
  // Maps a segment; always closes the descriptor (a thousand segments must not use up `ulimit -n`). Refuses anything
  // but a sealed segment of this writer. Opening a mapped segment again changes nothing.
  Status Open(SegmentId segment, UniqueFd fd);
  bool IsOpen(SegmentId segment) const;

  // The bytes of a sealed object, and one view of its segment. The caller has pinned the object before.
  // kInvalid: the segment is not mapped, or no such range can be. kGone: another object is there now, or none.
  Result<const uint8_t*> Resolve(const Location& location);
  void ReleaseView(SegmentId segment);

  // The segment is gone or no longer needed: unmaps it now, or with its last view. It cannot be resolved meanwhile; a
  // dropped segment may be opened again.
  void Drop(SegmentId segment);

  size_t mapped_count() const;
  uint64_t view_count(SegmentId segment) const;

 private:
  struct Mapped {
    SegmentLayout layout;
    SharedMapping mapping;
    uint64_t views = 0;
    bool dropped = false;
  };

  mutable std::mutex mutex_;
  // Guarded by mutex_. An entry's mapping does not move.
  std::unordered_map<SegmentId, Mapped> segments_;
};

}  // namespace weft::core
