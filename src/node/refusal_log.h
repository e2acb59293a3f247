// How much is said of connections that were refused. Pure.
//
// Anybody who reaches the port can cause refusals by the thousand, so a log that names them all would fill the disk;
// but the one that matters, of a colleague with another token, must not go under in a flood of the others. Hence a few
// lines a minute for each kind, and the number of the rest with the next line of that kind.
//
// Used by Cluster, on the loop thread, which writes what is returned.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "transport/handshake.h"

namespace weft::core {

class RefusalLog {
 public:
  static constexpr uint32_t kLinesPerMinute = 10;

  // What to log now: nothing, or a few lines.
  std::vector<std::string> Refused(const std::string& address, RefusalKind kind, const std::string& why,
                                   int64_t now_ns) {
    constexpr int64_t kMinuteNs = 60'000'000'000;
    Kind& same = kinds_[kind];
    if (same.lines == 0 || now_ns - same.began_ns >= kMinuteNs) same.began_ns = now_ns, same.lines = 0;
    if (same.lines >= kLinesPerMinute) {
      ++same.silent;
      return {};
    }
    ++same.lines;
    std::vector<std::string> lines;
    if (same.silent > 0) {
      lines.push_back(std::to_string(same.silent) + " more connections were refused for such a reason");
      same.silent = 0;
    }
    lines.push_back("a connection from " + address + " was refused: " + why);
    return lines;
  }

 private:
  struct Kind {
    int64_t began_ns = 0;  // its minute
    uint32_t lines = 0;    // in it
    uint64_t silent = 0;   // since the last line
  };
  std::map<RefusalKind, Kind> kinds_;
};

}  // namespace weft::core
