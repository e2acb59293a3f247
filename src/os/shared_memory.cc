#include "os/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace weft::core {
namespace {

Error SystemError(const std::string& what) { return {ErrorKind::kUnavailable, what + ": " + std::strerror(errno)}; }

// For kernels older than 5.14. Adding zero atomically dirties the page without disturbing a concurrent writer of it.
void TouchPages(uint8_t* begin, uint8_t* end) {
  for (uint8_t* page = begin; page < end; page += kPageBytes) __atomic_fetch_add(page, 0, __ATOMIC_RELAXED);
}

// 4 MB take about a millisecond, the longest that a populating call keeps the address space locked.
constexpr uint64_t kPopulateChunkBytes = 4u << 20;

}  // namespace

Result<SharedMapping> SharedMapping::Map(int fd, uint64_t size, Access access) {
  int protection = access == Access::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  void* address = mmap(nullptr, size, protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (address == MAP_FAILED) {
    return SystemError("cannot map " + std::to_string(size) + " bytes of shared memory (is `ulimit -v` set?)");
  }
  SharedMapping mapping;
  mapping.data_ = static_cast<uint8_t*>(address);
  mapping.size_ = size;
  if (madvise(address, size, MADV_DONTFORK) != 0) return SystemError("cannot keep shared memory out of forks");
  return mapping;
}

void SharedMapping::Reset() {
  if (data_ != nullptr) munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

Result<UniqueFd> CreateSharedMemory(const char* name, uint64_t size) {
  if (sysconf(_SC_PAGESIZE) != static_cast<long>(kPageBytes)) {
    return Error{ErrorKind::kUnavailable, "the object store needs memory pages of 4096 bytes"};
  }
  // Growing a file past this limit would not fail but kill the process with SIGXFSZ.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < size) {
    return Error{ErrorKind::kUnavailable, "the file size limit (`ulimit -f`) is below the " + std::to_string(size) +
                                              " bytes of address space that the object store needs"};
  }
  int raw = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (raw < 0 && errno == EINVAL) raw = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (raw < 0) return SystemError("cannot create shared memory");
  UniqueFd fd(raw);
  if (fchmod(raw, 0600) != 0) return SystemError("cannot protect shared memory");
  if (ftruncate(raw, static_cast<off_t>(size)) != 0) return SystemError("cannot size shared memory");
  if (fcntl(raw, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return SystemError("cannot seal shared memory");
  }
  return fd;
}

Result<UniqueFd> ReopenReadOnly(int fd) {
  std::string path = "/proc/self/fd/" + std::to_string(fd);
  UniqueFd reopened(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reopened) return SystemError("cannot reopen shared memory read-only (is /proc mounted?)");
  return reopened;
}

Result<SharedMemoryFacts> InspectSharedMemory(int fd) {
  struct stat facts{};
  if (fstat(fd, &facts) != 0) return SystemError("cannot inspect a segment's descriptor");
  int seals = fcntl(fd, F_GET_SEALS);
  int flags = fcntl(fd, F_GETFL);
  // Only memory files know seals, so a device, a pipe or a file on a slow disk ends here.
  if (!S_ISREG(facts.st_mode) || seals < 0 || flags < 0) {
    return Error{ErrorKind::kInvalid, "the descriptor sent as a segment is not shared memory"};
  }
  constexpr int kNeeded = F_SEAL_GROW | F_SEAL_SHRINK;
  return SharedMemoryFacts{.size = static_cast<uint64_t>(facts.st_size),
                           .held_bytes = static_cast<uint64_t>(facts.st_blocks) * 512,
                           .sealed = (seals & kNeeded) == kNeeded,
                           .writable = (flags & O_ACCMODE) == O_RDWR};
}

Status PopulatePages(void* address, uint64_t size) {
  auto* begin = reinterpret_cast<uint8_t*>(reinterpret_cast<uintptr_t>(address) & ~(kPageBytes - 1));
  auto* end = static_cast<uint8_t*>(address) + size;
  while (begin < end) {
    uint64_t chunk = std::min<uint64_t>(kPopulateChunkBytes, static_cast<uint64_t>(end - begin));
    if (madvise(begin, chunk, MADV_POPULATE_WRITE) != 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      if (errno != EINVAL) return SystemError("the system has no memory for the object store");
      TouchPages(begin, begin + chunk);
    }
    begin += chunk;
  }
  return {};
}

void MapExistingPages(void* address, uint64_t size) {
  auto begin = reinterpret_cast<uintptr_t>(address) & ~(kPageBytes - 1);
  auto end = reinterpret_cast<uintptr_t>(address) + size;
  // A read fault maps sixteen neighbours at once and, in a shared mapping of memory, maps them writable; a write fault
  // maps one. This is twice as fast as MADV_POPULATE_WRITE.
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ);
}

Status PunchPages(int fd, uint64_t offset, uint64_t size) {
  uint64_t begin = (offset + kPageBytes - 1) & ~(kPageBytes - 1);
  uint64_t end = (offset + size) & ~(kPageBytes - 1);
  if (begin >= end) return {};
  while (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                   static_cast<off_t>(end - begin)) != 0) {
    if (errno != EINTR) return SystemError("cannot give shared memory back");
  }
  return {};
}

uint64_t NextPopulated(int fd, uint64_t offset, uint64_t end) {
  off_t found = lseek(fd, static_cast<off_t>(offset), SEEK_DATA);
  if (found < 0) return errno == ENXIO ? end : std::min(offset, end);
  return std::min(static_cast<uint64_t>(found), end);
}

Status ReadShared(int fd, uint64_t offset, void* out, uint64_t size) {
  auto* to = static_cast<uint8_t*>(out);
  while (size > 0) {
    ssize_t got = pread(fd, to, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError("cannot read shared memory");
    if (got == 0) return Error{ErrorKind::kInvalid, "shared memory ends before what was asked for"};
    to += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<uint64_t>(got);
  }
  return {};
}

Status WriteShared(int fd, uint64_t offset, const void* bytes, uint64_t size) {
  auto* from = static_cast<const uint8_t*>(bytes);
  while (size > 0) {
    ssize_t put = pwrite(fd, from, size, static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return SystemError("cannot write shared memory");
    from += put;
    offset += static_cast<uint64_t>(put);
    size -= static_cast<uint64_t>(put);
  }
  return {};
}

bool ReplaceShared(int fd, uint64_t offset, uint64_t expected, uint64_t desired) {
  const uint64_t page = offset & ~(kPageBytes - 1);
  void* mapped = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(page));
  if (mapped == MAP_FAILED) return false;
  auto* word = reinterpret_cast<uint64_t*>(static_cast<uint8_t*>(mapped) + (offset - page));
  const bool replaced = std::atomic_ref<uint64_t>(*word).compare_exchange_strong(expected, desired);
  munmap(mapped, kPageBytes);
  return replaced;
}

}  // namespace weft::core
