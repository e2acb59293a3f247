#include "log/log.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "log/log_file.h"

namespace weft::core {
namespace {

constexpr size_t kMaxNameBytes = 100;

struct DaemonLog {
  LogSettings settings;
  std::optional<LogFile> file;
  std::string name, node = "-";
  uint64_t lost = 0;  // lines since the last that was written
  std::string why;    // of the first of them
  bool told = false;
};

DaemonLog& TheLog() {
  static DaemonLog log;
  return log;
}

// Whole, or not at all if it would wait.
Status WriteNow(int fd, std::string_view line) {
  pollfd ready{fd, POLLOUT, 0};
  if (::poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT) != 0 &&
      ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size())) {
    return {};
  }
  return Error{ErrorKind::kUnavailable, "nobody reads it"};
}

std::string Line(LogLevel level, const char* what, std::string_view text) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return LogLine(int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec, level, TheLog().node, ::getpid(), what, text);
}

void Tell(std::string_view text) {
  const std::string line = "weft node: " + EscapedForLog(text, kMaxLogLineBytes - 20) + "\n";
  [[maybe_unused]] Status ignored = WriteNow(STDERR_FILENO, line);
}

Status Keep(LogLevel level, const char* what, std::string_view text) {
  DaemonLog& log = TheLog();
  auto append = [&](const std::string& line) {
    return log.file ? log.file->Append(line) : WriteNow(log.settings.descriptor, line);
  };
  Status kept;
  if (log.lost > 0) {
    kept = append(Line(LogLevel::kWarning, "log", std::to_string(log.lost) + " lines are missing here: " + log.why));
    if (kept) log.lost = 0;
  }
  if (kept) kept = append(Line(level, what, text));
  if (!kept && log.lost++ == 0) {
    log.why = kept.error().message;
    if (!std::exchange(log.told, true) && !log.settings.takes_stderr) {
      Tell("its log is not written, and it goes on without: " + log.why);
    }
  }
  if (log.file && log.file->TakeReplaced()) {
    LogWarning("log", "%s was removed or moved and has been made again", log.file->path().c_str());
  }
  return kept;
}

bool Keeps(LogLevel level) {
  const DaemonLog& log = TheLog();
  return (log.file || log.settings.descriptor >= 0) && level >= log.settings.level;
}

bool Tells(LogLevel level) { return level >= LogLevel::kWarning && !TheLog().settings.takes_stderr; }

void Write(LogLevel level, const char* what, const char* format, va_list arguments) {
  if (!Keeps(level) && !Tells(level)) return;
  char text[kMaxLogLineBytes];
  std::vsnprintf(text, sizeof text, format, arguments);
  Log(level, what, text);
}

}  // namespace

void Log(LogLevel level, const char* what, const std::string& text) {
  if (Keeps(level)) [[maybe_unused]]
    Status ignored = Keep(level, what, text);
  if (Tells(level)) Tell(text);
}

Status OpenLog(const LogSettings& settings, const std::string& first_line) {
  DaemonLog& log = TheLog();
  log.settings = settings;
  log.name = EscapedForLog(settings.node, kMaxNameBytes, false);
  NumberLogNode(0);
  // A limit on the size of files, and a reader that has gone, are errors of a call, not the end of the daemon.
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  if (settings.descriptor < 0) {
    LogFile::DeleteOld(settings.directory);
    const std::string name = "node-" + std::to_string(::getpid()) + ".log";
    log.file.emplace(settings.directory, name, settings.max_bytes, settings.takes_stderr);
  }
  return Keep(LogLevel::kInfo, "node", first_line);
}

void NumberLogNode(uint32_t number) {
  DaemonLog& log = TheLog();
  log.node = number != 0 ? std::to_string(number) + ":" + log.name : log.name.empty() ? "-" : log.name;
}

bool LogPace::Due() {
  const int64_t now = CoarseNowNs();
  if (now < next_ns_) return false;
  next_ns_ = now + 1'000'000'000;
  return true;
}

#define WEFT_LOG_FUNCTION(Name, level)                   \
  void Name(const char* what, const char* format, ...) { \
    va_list arguments;                                   \
    va_start(arguments, format);                         \
    Write(level, what, format, arguments);               \
    va_end(arguments);                                   \
  }
WEFT_LOG_FUNCTION(LogDebug, LogLevel::kDebug)
WEFT_LOG_FUNCTION(LogInfo, LogLevel::kInfo)
WEFT_LOG_FUNCTION(LogWarning, LogLevel::kWarning)
WEFT_LOG_FUNCTION(LogError, LogLevel::kError)
#undef WEFT_LOG_FUNCTION

}  // namespace weft::core
