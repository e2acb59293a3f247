// The system calls under the object store: sealed memfd files, their mappings, populating and punching their pages.
//
// Called by src/object_store. No state of its own, any thread. Nothing here counts memory: the caller has reserved what
// it populates (memory_budget.h).
#pragma once

#include <cstdint>
#include <utility>

#include "base/result.h"
#include "os/fd.h"

namespace weft::core {

inline constexpr uint64_t kPageBytes = 4096;  // our unit; Create refuses a system with larger pages

enum class Access { kReadOnly, kReadWrite };

// A shared mapping that is unmapped with its holder. Not inherited by fork: a forked child must not touch the store.
class SharedMapping {
 public:
  SharedMapping() = default;
  SharedMapping(SharedMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  SharedMapping& operator=(SharedMapping&& other) noexcept {
    Reset();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  ~SharedMapping() { Reset(); }
  static Result<SharedMapping> Map(int fd, uint64_t size, Access access);
  uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }
  void Reset();

 private:
  uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
};

// A sparse memfd of this size: mode 0600, not executable, sealed against growing, shrinking and further seals.
Result<UniqueFd> CreateSharedMemory(const char* name, uint64_t size);

// A second descriptor of the same file through which it can only be read.
Result<UniqueFd> ReopenReadOnly(int fd);

struct SharedMemoryFacts {
  uint64_t size = 0;
  uint64_t held_bytes = 0;  // pages that exist
  bool sealed = false;      // can neither grow nor shrink, so that a mapping of it never raises SIGBUS
  bool writable = false;    // through this descriptor
};
// What this descriptor really is: it may have come from a peer. An error if it is no memory file.
Result<SharedMemoryFacts> InspectSharedMemory(int fd);

// Makes the pages of [address, address + size) exist and writable, without changing what is in them. An error if the
// system has none left. Populates in chunks, so that a signal or another thread's mmap is not held up for long.
Status PopulatePages(void* address, uint64_t size);

// Enters pages that already exist into the page table of a writable mapping, so that writing to them does not fault.
// Only for speed: does nothing where the system does not support it. Must not be used on holes, which it
// would fill uncounted.
void MapExistingPages(void* address, uint64_t size);

// Gives the whole pages of [offset, offset + size) back to the system; they read as zeros afterwards.
Status PunchPages(int fd, uint64_t offset, uint64_t size);

// The first byte at or after `offset` and before `end` in a page that exists, or `end` if there is none.
uint64_t NextPopulated(int fd, uint64_t offset, uint64_t end);

// Reads or writes exactly so many bytes without mapping them (reading a hole through a mapping would create its page).
Status ReadShared(int fd, uint64_t offset, void* out, uint64_t size);
Status WriteShared(int fd, uint64_t offset, const void* bytes, uint64_t size);
// Replaces the eight bytes there by `desired` if they are `expected`, in one step for every process that has them
// mapped. False if they are not. The file must be sealed against shrinking.
bool ReplaceShared(int fd, uint64_t offset, uint64_t expected, uint64_t desired);

}  // namespace weft::core
