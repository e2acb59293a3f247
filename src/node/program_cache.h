// Copies of executables and libraries that were sent to this node, in a folder of the user's own (~/.weft/programs).
//
// A copy is named by the identity of the file (os/elf.h) and the SHA-256 of its bytes, so nothing beside it has to be
// believed: whoever wants to run it computes the sum first (FileSum). It is written under another name and becomes
// visible whole. The folder is bounded; what was used least lately goes first, and whoever misses it asks for it again.
// Several daemons of a machine share it, without locks: all that they do is making, renaming and removing files.
//
// Called by ProgramFiles on the loop thread; each call is short. Knows no jobs and no nodes.
#pragma once

#include <sys/stat.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "os/fd.h"
#include "os/sha256.h"

namespace weft::core {

// Which content a file had when it was looked at. Reading it, and noting that it was used, change nothing here.
struct FileStamp {
  uint64_t device = 0, inode = 0, size = 0;
  int64_t modified_ns = 0;
  auto operator<=>(const FileStamp&) const = default;
};
FileStamp StampOf(const struct stat& info);
// Of what lies at a path, or of an open file; nothing if it is no file.
std::optional<FileStamp> StampAt(const std::string& path);
std::optional<FileStamp> StampOf(int fd);

// The SHA-256 of a file, some bytes at a time.
class FileSum {
 public:
  explicit FileSum(UniqueFd file) : file_(std::move(file)) {}
  enum class State : uint8_t { kMore, kDone, kFailed };
  State Step(size_t bytes);
  const std::string& hexadecimal() const { return sum_; }  // when it is done
  int fd() const { return file_.get(); }

 private:
  UniqueFd file_;
  Sha256 hash_;
  uint64_t at_ = 0;
  std::string sum_;
};

// The identity that an open file has, if that can be told from its tables; empty: only its sum tells.
std::string QuickIdentity(int fd);

class ProgramCache {
 public:
  struct Limits {
    uint64_t file_bytes = uint64_t{1} << 30;
    uint64_t all_bytes = uint64_t{4} << 30;
  };
  struct Entry {
    std::string path;
    std::string sum;  // that its bytes should have
  };
  // A copy that is being written; removed if it does not become one.
  class Incoming {
   public:
    Incoming(Incoming&& other) noexcept = default;
    Incoming& operator=(Incoming&& other) noexcept;
    ~Incoming();
    Status Append(std::string_view bytes);
    // What has come is forgotten. The rest will come from elsewhere, and two files of one build may differ in what the
    // build id does not cover.
    void BeginAnew();
    uint64_t received() const { return received_; }

   private:
    friend class ProgramCache;
    Incoming(UniqueFd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
    UniqueFd file_;
    std::string path_;
    Sha256 hash_;
    uint64_t received_ = 0;
  };

  // The folder is made when it is first needed; its parent must be there, or have a parent that is.
  ProgramCache(std::string folder, Limits limits) : folder_(std::move(folder)), limits_(limits) {}
  const Limits& limits() const { return limits_; }
  const std::string& folder() const { return folder_; }

  std::vector<Entry> Find(const std::string& identity) const;
  // Its bytes are not those that it was made of.
  void Drop(const Entry& entry);
  // It goes after those that were used before.
  void Used(const std::string& path);
  // Makes room first, but takes nothing of what is in use.
  Result<Incoming> Begin(uint64_t size, const std::set<std::string>& in_use);
  // Checks that it is what it should be. From then on it can be found, and nobody writes to it.
  Result<Entry> Finish(Incoming incoming, const std::string& identity);
  // A folder with these links: name inside ("lib/libx.so.1"), and where it leads.
  Result<std::string> Link(const std::vector<std::pair<std::string, std::string>>& links);

 private:
  Status EnsureFolder();
  Status MakeRoom(uint64_t size, const std::set<std::string>& in_use);
  void RemoveDeadLinks();

  const std::string folder_;
  const Limits limits_;
  uint64_t next_ = 1;
};

}  // namespace weft::core
