// The log of the node daemon that this process is. For its one loop thread.
//
//   LogWarning("link", "%s cannot be reached from here: %s", name.c_str(), why.c_str());
//
// Lines of at least the level that was asked for go into the daemon's file (log_file.h), or to a descriptor that was
// handed over. Warnings and errors also go to standard error, unless that is the file. Before OpenLog, and in tests,
// standard error is all there is.
//
// Never waits: what a pipe or a terminal does not take now is left out. What could not be written is counted, told on
// standard error once, and told in the log when it can be written again. Never on a hot path, and not per task: a line
// costs some 15 us, and one below the level some 10 ns.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "log/log_line.h"

namespace weft::core {

struct LogSettings {
  LogLevel level = LogLevel::kInfo;
  std::string directory;         // of the file, node-PID.log
  uint64_t max_bytes = 1 << 20;  // of the file, and of each of the older ones beside it
  bool takes_stderr = false;     // see LogFile
  int descriptor = -1;           // instead of a file
  std::string node;              // its name
};

// Begins to keep a log, with a line that is written whatever the level. If that fails the daemon goes on without a log,
// and each later line tries again.
Status OpenLog(const LogSettings& settings, const std::string& first_line);
// This node has its number. 0: none any more.
void NumberLogNode(uint32_t number);

// For what others can cause as often as they like: one line a second.
class LogPace {
 public:
  bool Due();

 private:
  int64_t next_ns_ = 0;
};

void Log(LogLevel level, const char* what, const std::string& text);
[[gnu::format(printf, 2, 3)]] void LogDebug(const char* what, const char* format, ...);
[[gnu::format(printf, 2, 3)]] void LogInfo(const char* what, const char* format, ...);
[[gnu::format(printf, 2, 3)]] void LogWarning(const char* what, const char* format, ...);
[[gnu::format(printf, 2, 3)]] void LogError(const char* what, const char* format, ...);

}  // namespace weft::core
