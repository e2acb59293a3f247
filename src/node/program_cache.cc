#include "node/program_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "os/elf.h"
#include "os/token_file.h"

namespace weft::core {
namespace {

constexpr const char* kIncoming = "incoming-";
constexpr const char* kSets = "sets";
// What a daemon that was killed has left half-written is nobody's after this time.
constexpr int64_t kForgottenSeconds = 3600;
// Room that is left to others on the disk.
constexpr uint64_t kSpareBytes = 16 << 20;

Error SystemError(const std::string& what, int code) {
  return {code == ENOSPC || code == EDQUOT ? ErrorKind::kFull : ErrorKind::kUnavailable, what + ": " + strerror(code)};
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), &::closedir);
  if (!open) return names;
  while (const dirent* entry = ::readdir(open.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "build:12ab" becomes "build-12ab.".
std::string Prefix(const std::string& identity) {
  std::string name = identity + ".";
  std::replace(name.begin(), name.end(), ':', '-');
  return name;
}

void RemoveFolder(const std::string& folder) {
  for (const std::string& name : NamesIn(folder)) {
    const std::string path = folder + "/" + name;
    struct stat info{};
    if (::lstat(path.c_str(), &info) != 0) continue;
    if (S_ISDIR(info.st_mode)) {
      RemoveFolder(path);
    } else {
      ::unlink(path.c_str());
    }
  }
  ::rmdir(folder.c_str());
}

}  // namespace

FileStamp StampOf(const struct stat& info) {
  return {info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size),
          int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

std::optional<FileStamp> StampAt(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return StampOf(info);
}

std::optional<FileStamp> StampOf(int fd) {
  struct stat info{};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return StampOf(info);
}

FileSum::State FileSum::Step(size_t bytes) {
  std::vector<uint8_t> buffer(bytes);
  const ssize_t size = ::pread(file_.get(), buffer.data(), buffer.size(), static_cast<off_t>(at_));
  if (size < 0) return errno == EINTR ? State::kMore : State::kFailed;
  if (size == 0) {
    sum_ = Hexadecimal(hash_.Finish());
    return State::kDone;
  }
  hash_.Add({buffer.data(), static_cast<size_t>(size)});
  at_ += static_cast<uint64_t>(size);
  return State::kMore;
}

std::string QuickIdentity(int fd) {
  auto elf = ReadElf(fd);
  return elf.ok() ? BuildIdentity(elf->build_id) : "";
}

// ---- writing --------------------------------------------------------------------------------------------------------

ProgramCache::Incoming& ProgramCache::Incoming::operator=(Incoming&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(path_, other.path_);
  std::swap(hash_, other.hash_);
  std::swap(received_, other.received_);
  return *this;
}

ProgramCache::Incoming::~Incoming() {
  if (file_) ::unlink(path_.c_str());
}

Status ProgramCache::Incoming::Append(std::string_view bytes) {
  hash_.Add(bytes);
  while (!bytes.empty()) {
    const ssize_t size = ::write(file_.get(), bytes.data(), bytes.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return SystemError("cannot write " + path_, errno);
    bytes.remove_prefix(static_cast<size_t>(size));
    received_ += static_cast<uint64_t>(size);
  }
  return {};
}

void ProgramCache::Incoming::BeginAnew() {
  if (::ftruncate(file_.get(), 0) != 0 || ::lseek(file_.get(), 0, SEEK_SET) != 0) {
    // Nothing can be appended any more, which its owner is told then.
    ::unlink(path_.c_str());
    file_.Reset();
  }
  hash_ = {};
  received_ = 0;
}

Status ProgramCache::EnsureFolder() {
  const std::string parent = folder_.substr(0, folder_.rfind('/'));
  if (Status status = EnsurePrivateDirectory(parent); !status) return status;
  if (Status status = EnsurePrivateDirectory(folder_); !status) return status;
  return EnsurePrivateDirectory(folder_ + "/" + kSets);
}

Result<ProgramCache::Incoming> ProgramCache::Begin(uint64_t size, const std::set<std::string>& in_use) {
  if (size > limits_.file_bytes) return Error{ErrorKind::kFull, "it is too large"};
  if (Status status = EnsureFolder(); !status) return status.error();
  if (Status status = MakeRoom(size, in_use); !status) return status.error();
  struct statvfs disk{};
  if (::statvfs(folder_.c_str(), &disk) == 0 && uint64_t{disk.f_bavail} * disk.f_frsize < size + kSpareBytes) {
    return Error{ErrorKind::kFull, "the disk of " + folder_ + " has no room for it"};
  }
  for (;;) {
    std::string path = folder_ + "/" + kIncoming + std::to_string(::getpid()) + "-" + std::to_string(next_++);
    UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file) return Incoming(std::move(file), std::move(path));
    // A process of the same number, in another container that has the same home.
    if (errno != EEXIST) return SystemError("cannot make a file in " + folder_, errno);
  }
}

Result<ProgramCache::Entry> ProgramCache::Finish(Incoming incoming, const std::string& identity) {
  const std::string sum = Hexadecimal(incoming.hash_.Finish());
  const std::string found = identity.starts_with("sha256:") ? "sha256:" + sum : QuickIdentity(incoming.file_.get());
  if (found != identity) return Error{ErrorKind::kInvalid, "what came is another file (" + found + ")"};
  if (::fchmod(incoming.file_.get(), 0500) != 0) return SystemError("cannot make it executable", errno);
  Entry entry{folder_ + "/" + Prefix(identity) + sum, sum};
  // A file that is open for writing cannot be executed.
  incoming.file_.Reset();
  if (::rename(incoming.path_.c_str(), entry.path.c_str()) != 0) {
    const int code = errno;
    ::unlink(incoming.path_.c_str());
    return SystemError("cannot rename " + incoming.path_, code);
  }
  return entry;
}

// ---- what is there --------------------------------------------------------------------------------------------------

std::vector<ProgramCache::Entry> ProgramCache::Find(const std::string& identity) const {
  std::vector<Entry> found;
  const std::string prefix = Prefix(identity);
  for (const std::string& name : NamesIn(folder_)) {
    if (name.starts_with(prefix)) found.push_back({folder_ + "/" + name, name.substr(prefix.size())});
  }
  return found;
}

void ProgramCache::Drop(const Entry& entry) { ::unlink(entry.path.c_str()); }

void ProgramCache::Used(const std::string& path) {
  const timespec times[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
  ::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

Status ProgramCache::MakeRoom(uint64_t size, const std::set<std::string>& in_use) {
  struct Old {
    timespec used;
    uint64_t size;
    std::string path;
  };
  std::vector<Old> removable;
  uint64_t all = size;
  for (const std::string& name : NamesIn(folder_)) {
    const std::string path = folder_ + "/" + name;
    struct stat info{};
    if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (name.starts_with(kIncoming)) {
      // Others are writing these, unless they are dead.
      if (::time(nullptr) - info.st_mtim.tv_sec > kForgottenSeconds) {
        ::unlink(path.c_str());
      } else {
        all += static_cast<uint64_t>(info.st_size);
      }
      continue;
    }
    all += static_cast<uint64_t>(info.st_size);
    if (!in_use.contains(path)) removable.push_back({info.st_atim, static_cast<uint64_t>(info.st_size), path});
  }
  std::sort(removable.begin(), removable.end(), [](const Old& a, const Old& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  bool removed = false;
  for (const Old& old : removable) {
    if (all <= limits_.all_bytes) break;
    if (::unlink(old.path.c_str()) != 0) continue;
    all -= old.size;
    removed = true;
  }
  if (removed) RemoveDeadLinks();
  if (all <= limits_.all_bytes) return {};
  return Error{ErrorKind::kFull, "the copies of programs in " + folder_ + " that are in use leave no room for it"};
}

Result<std::string> ProgramCache::Link(const std::vector<std::pair<std::string, std::string>>& links) {
  if (Status status = EnsureFolder(); !status) return status.error();
  // The name follows from the links, so a folder of that name has exactly these.
  Sha256 hash;
  for (const auto& [name, target] : links) {
    hash.Add(std::string_view(name.c_str(), name.size() + 1));
    hash.Add(std::string_view(target.c_str(), target.size() + 1));
  }
  const std::string sets = folder_ + "/" + kSets + "/";
  const std::string folder = sets + Hexadecimal(hash.Finish()).substr(0, 32);
  const bool whole = std::all_of(links.begin(), links.end(),
                                 [&](const auto& link) { return StampAt(folder + "/" + link.first).has_value(); });
  if (whole) return folder;
  RemoveFolder(folder);
  const std::string making = sets + kIncoming + std::to_string(::getpid()) + "-" + std::to_string(next_++);
  RemoveFolder(making);
  auto fail = [&](const std::string& what) {
    const int code = errno;
    RemoveFolder(making);
    return SystemError(what, code);
  };
  for (const char* part : {"", "/bin", "/lib"}) {
    if (::mkdir((making + part).c_str(), 0700) != 0) return fail("cannot make the folder " + making + part);
  }
  for (const auto& [name, target] : links) {
    if (::symlink(target.c_str(), (making + "/" + name).c_str()) != 0) return fail("cannot make the link " + name);
  }
  if (::rename(making.c_str(), folder.c_str()) != 0 && errno != EEXIST && errno != ENOTEMPTY) {
    return fail("cannot make the folder " + folder);
  }
  RemoveFolder(making);  // if another daemon was faster
  return folder;
}

// Folders with links to what is no longer there help nobody.
void ProgramCache::RemoveDeadLinks() {
  const std::string sets = folder_ + "/" + kSets;
  for (const std::string& set : NamesIn(sets)) {
    bool dead = false;
    for (const char* part : {"/bin", "/lib"}) {
      const std::string folder = sets + "/" + set + part;
      for (const std::string& name : NamesIn(folder)) dead = dead || !StampAt(folder + "/" + name);
    }
    if (dead) RemoveFolder(sets + "/" + set);
  }
}

}  // namespace weft::core
