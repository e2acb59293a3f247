// A file of lines that stays within bounds: before it exceeds `max_bytes` it becomes PATH.1, that PATH.2, and so on,
// and the oldest is deleted. Used by one thread.
//
// The file has mode 0600, in a directory that only its owner can enter; symlinks are not followed. If the file or its
// directory is removed or moved, it is made again with the next line. While it is open it is locked, which tells other
// daemons that it is in use.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "os/fd.h"

namespace weft::core {

class LogFile {
 public:
  static constexpr int kOlder = 3;   // files beside the one that is written
  static constexpr int kEnded = 16;  // daemons that have ended and whose files are kept

  // With `takes_stderr` what the process writes to standard error lands in the file too: what sanitizers, the C library
  // and a failed check say last.
  LogFile(std::string directory, const std::string& name, uint64_t max_bytes, bool takes_stderr)
      : directory_(std::move(directory)),
        path_(directory_ + "/" + name),
        max_bytes_(max_bytes),
        takes_stderr_(takes_stderr) {}

  const std::string& path() const { return path_; }
  // A whole line or nothing. What fails now is tried again with the next line.
  Status Append(std::string_view line);
  // It was removed or moved since the last call, and has been made again.
  bool TakeReplaced() { return std::exchange(replaced_, false); }

  // Deletes logs (NAME.log and NAME.log.N) of daemons that have ended, but for the latest ones.
  static void DeleteOld(const std::string& directory, int keep = kEnded);

 private:
  Status Open();
  Status Rotate();

  const std::string directory_;
  const std::string path_;
  const uint64_t max_bytes_;
  const bool takes_stderr_;
  UniqueFd fd_;
  bool replaced_ = false;
};

}  // namespace weft::core
