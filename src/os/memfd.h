// Anonymous shared memory (memfd) and its mappings. Nothing here has a name that another user could open, and the
// kernel frees everything when the last process that holds it is gone, however it ended.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "os/fd.h"

namespace weft::core {

// A memfd called "weft-<name>", mode 0600, of `size_bytes`, sealed against growing and shrinking: a peer cannot
// truncate it and thereby send a SIGBUS to processes that map it. Holes can still be punched.
Result<UniqueFd> CreateMemfd(std::string_view name, size_t size_bytes);

// Refuses a descriptor that is not a memfd sealed against shrinking with at least `size_bytes`: mapping it would let
// its maker crash us.
Status CheckSealedMemfd(int fd, size_t size_bytes);

// Gives whole pages of a shared mapping back to the system, for every process that maps them; they read as zeros
// afterwards. Returns false if the system refused, which costs memory and nothing else.
bool DiscardPages(void* start, size_t size_bytes);

// Asks for pages of the smallest size where the system would otherwise use huge ones: for memory that is used only in
// part.
void PreferSmallPages(void* start, size_t size_bytes);

// A range of a file in memory, unmapped when the owner goes. A child made by fork never has it (MADV_DONTFORK), as two
// processes on one end of a ring would destroy it; a Mapping that is destroyed in such a child therefore does nothing.
class Mapping {
 public:
  enum class Access { kReadOnly, kReadWrite };

  // Shared mapping of [offset, offset + size_bytes). The descriptor may be closed afterwards.
  static Result<Mapping> Map(int fd, size_t size_bytes, Access access, off_t offset = 0);

  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping() { Unmap(); }

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void Unmap();

  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  pid_t owner_ = 0;
};

}  // namespace weft::core
