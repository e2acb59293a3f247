// One line of a node daemon's log. Pure.
//
//   2026-11-19T22:28:01.123Z warning 2:alpha 4711 link: node 3 (beta) cannot be reached from here
//
// Time (UTC, so that the logs of several machines compare), level, node (number and name as far as they are known),
// pid, what it is about, text. Names, addresses and reasons come from strangers: whatever could end the line, move a
// terminal's cursor or reorder what is read is escaped. A backslash is doubled, so an escape is never ambiguous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/log_level.h"

namespace weft::core {

std::optional<LogLevel> ParseLogLevel(std::string_view name);

// With its newline. A pipe takes this much at once or nothing (PIPE_BUF), so lines of several writers do not mix.
constexpr size_t kMaxLogLineBytes = 4096;

// Printable text as it is, everything else escaped; cut to this many bytes, and "..." tells of it. Without blanks it is
// a column.
std::string EscapedForLog(std::string_view text, size_t most_bytes, bool blanks = true);

// `node` is a column already.
std::string LogLine(int64_t unix_ns, LogLevel level, std::string_view node, int pid, std::string_view what,
                    std::string_view text);

}  // namespace weft::core
