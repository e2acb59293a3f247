#include "os/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

// Newer than the C library of the oldest system we build on.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace weft::core {
namespace {

Error SystemError(const std::string& what) {
  const int code = errno;
  return Error{ErrorKind::kUnavailable, what + ": " + strerror(code)};
}

}  // namespace

Result<UniqueFd> CreateMemfd(std::string_view name, size_t size_bytes) {
  const std::string full_name = "weft-" + std::string(name);
  UniqueFd fd(::memfd_create(full_name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (!fd && errno == EINVAL) {
    // Linux before 6.3 does not know the flag.
    fd = UniqueFd(::memfd_create(full_name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  }
  if (!fd) return SystemError("cannot create shared memory " + full_name);
  if (::fchmod(fd.get(), 0600) != 0) return SystemError("cannot restrict shared memory " + full_name);
  if (::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) {
    return SystemError("cannot size shared memory " + full_name + " to " + std::to_string(size_bytes) + " bytes");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return SystemError("cannot seal shared memory " + full_name);
  }
  return fd;
}

Status CheckSealedMemfd(int fd, size_t size_bytes) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Error{ErrorKind::kInvalid, "descriptor " + std::to_string(fd) + " is not sealed shared memory"};
  }
  struct stat status;
  if (::fstat(fd, &status) != 0) return SystemError("cannot inspect shared memory");
  if (status.st_size < 0 || static_cast<size_t>(status.st_size) < size_bytes) {
    return Error{ErrorKind::kInvalid, "shared memory has " + std::to_string(status.st_size) + " bytes, expected " +
                                          std::to_string(size_bytes)};
  }
  return Status();
}

bool DiscardPages(void* start, size_t size_bytes) { return ::madvise(start, size_bytes, MADV_REMOVE) == 0; }

// A kernel without huge pages refuses, and then there is nothing to ask for.
void PreferSmallPages(void* start, size_t size_bytes) { ::madvise(start, size_bytes, MADV_NOHUGEPAGE); }

Result<Mapping> Mapping::Map(int fd, size_t size_bytes, Access access, off_t offset) {
  const int protection = access == Access::kReadOnly ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = ::mmap(nullptr, size_bytes, protection, MAP_SHARED, fd, offset);
  if (data == MAP_FAILED) return SystemError("cannot map " + std::to_string(size_bytes) + " bytes of shared memory");
  Mapping mapping;
  mapping.data_ = static_cast<uint8_t*>(data);
  mapping.size_ = size_bytes;
  mapping.owner_ = ::getpid();
  if (::madvise(data, size_bytes, MADV_DONTFORK) != 0) return SystemError("cannot keep shared memory from children");
  return mapping;
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), owner_(other.owner_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    Unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    owner_ = other.owner_;
  }
  return *this;
}

void Mapping::Unmap() {
  // In a forked child the range is not ours: something else may be mapped there by now.
  if (data_ != nullptr && owner_ == ::getpid()) ::munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

}  // namespace weft::core
