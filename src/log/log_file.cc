#include "log/log_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <map>
#include <string>
#include <vector>

#include "os/token_file.h"

namespace weft::core {
namespace {

Error Failed(const std::string& what, const std::string& path) {
  return {ErrorKind::kUnavailable, what + " '" + path + "': " + strerror(errno)};
}

UniqueFd OpenFile(const std::string& path, int flags) {
  // Without waiting: it may turn out to be a pipe.
  return UniqueFd(::open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600));
}

}  // namespace

Status LogFile::Append(std::string_view line) {
  struct stat named{}, opened{};
  const bool was_open = fd_.valid();
  if (!was_open || ::fstat(fd_.get(), &opened) != 0 || ::lstat(path_.c_str(), &named) != 0 ||
      named.st_ino != opened.st_ino || named.st_dev != opened.st_dev) {
    if (Status status = Open(); !status) return status;
    replaced_ |= was_open;
    ::fstat(fd_.get(), &opened);
  }
  if (opened.st_size > 0 && static_cast<uint64_t>(opened.st_size) + line.size() > max_bytes_) {
    if (Status status = Rotate(); !status) return status;
    opened.st_size = 0;
  }
  const ssize_t written = ::write(fd_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return {};
  if (written >= 0) errno = ENOSPC;
  Status failed = Failed("cannot write", path_);
  // No half lines. If this fails too, the next line goes on behind one.
  if (written > 0) [[maybe_unused]]
    int ignored = ::ftruncate(fd_.get(), opened.st_size);
  return failed;
}

Status LogFile::Open() {
  if (Status status = EnsurePrivateDirectory(directory_); !status) return status;
  UniqueFd file = OpenFile(path_, O_WRONLY | O_CREAT | O_APPEND);
  if (!file) return Failed("cannot open", path_);
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) return Failed("cannot look at", path_);
  if (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
    return Error{ErrorKind::kInvalid, "'" + path_ + "' is not a file that only we can read: remove it"};
  }
  ::flock(file.get(), LOCK_EX | LOCK_NB);
  if (takes_stderr_) ::dup2(file.get(), STDERR_FILENO);
  fd_ = std::move(file);
  return {};
}

Status LogFile::Rotate() {
  for (int i = kOlder; i > 0; --i) {
    const std::string from = i == 1 ? path_ : path_ + "." + std::to_string(i - 1);
    if (::rename(from.c_str(), (path_ + "." + std::to_string(i)).c_str()) != 0 && errno != ENOENT) {
      return Failed("cannot rename", from);
    }
  }
  return Open();
}

void LogFile::DeleteOld(const std::string& directory, int keep) {
  std::map<std::string, std::vector<std::string>> logs;  // the files of each
  DIR* opened = ::opendir(directory.c_str());
  if (opened == nullptr) return;
  while (const dirent* entry = ::readdir(opened)) {
    const std::string name = entry->d_name;
    const size_t end = name.find(".log");
    if (name.starts_with("node-") && end != std::string::npos) logs[name.substr(0, end + 4)].push_back(name);
  }
  ::closedir(opened);
  std::multimap<time_t, std::string> ended;
  for (const auto& [log, files] : logs) {
    UniqueFd file = OpenFile(directory + "/" + log, O_RDONLY);
    if (file && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) continue;  // its daemon runs
    struct stat info{};
    if (file) ::fstat(file.get(), &info);
    ended.emplace(info.st_mtime, log);
  }
  while (ended.size() > static_cast<size_t>(keep)) {
    for (const std::string& file : logs[ended.begin()->second]) ::unlink((directory + "/" + file).c_str());
    ended.erase(ended.begin());
  }
}

}  // namespace weft::core
