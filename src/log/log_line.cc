#include "log/log_line.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace weft::core {
namespace {

constexpr std::array<const char*, 4> kNames = {"debug", "info", "warning", "error"};

// Bytes of the UTF-8 sequence that `text` begins with, and what it encodes; 0: it is none.
size_t DecodeUtf8(std::string_view text, uint32_t* code) {
  const auto first = static_cast<uint8_t>(text[0]);
  const size_t size = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (size == 0 || size > text.size()) return 0;
  *code = size == 1 ? first : first & (0x7fu >> size);
  for (size_t i = 1; i < size; ++i) {
    const auto next = static_cast<uint8_t>(text[i]);
    if ((next & 0xc0) != 0x80) return 0;
    *code = *code << 6 | (next & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  return *code < kLeast[size] || *code > 0x10ffff || (*code >> 11) == 0x1b ? 0 : size;  // 0x1b: surrogates
}

bool IsPrintable(uint32_t code) {
  if (code < ' ' || (code >= 0x7f && code < 0xa0)) return false;
  // Marks of direction, line separators, byte order marks: they show nothing, and change what the rest shows.
  return !(code == 0x61c || (code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0x2060 && code <= 0x206f) || code == 0xfeff);
}

std::string EscapedByte(char byte) {
  if (byte == '\\') return "\\\\";
  if (byte == '\n') return "\\n";
  char text[8];
  std::snprintf(text, sizeof text, "\\x%02x", static_cast<unsigned>(static_cast<uint8_t>(byte)));
  return text;
}

}  // namespace

std::optional<LogLevel> ParseLogLevel(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<LogLevel>(found - kNames.begin());
}

std::string EscapedForLog(std::string_view text, size_t most_bytes, bool blanks) {
  std::string result;
  size_t cut = 0;  // the most of it that leaves room for the dots
  while (!text.empty()) {
    uint32_t code = 0;
    const size_t decoded = DecodeUtf8(text, &code), size = std::max<size_t>(decoded, 1);
    const bool plain = decoded > 0 && IsPrintable(code) && code != '\\' && (blanks || code != ' ');
    std::string piece;
    for (const char c : text.substr(0, size)) piece += plain ? std::string(1, c) : EscapedByte(c);
    result += piece;
    if (result.size() > most_bytes) return result.substr(0, cut) + "...";
    if (result.size() + 3 <= most_bytes) cut = result.size();
    text.remove_prefix(size);
  }
  return result;
}

std::string LogLine(int64_t unix_ns, LogLevel level, std::string_view node, int pid, std::string_view what,
                    std::string_view text) {
  const time_t seconds = unix_ns / 1'000'000'000;
  tm date{};
  ::gmtime_r(&seconds, &date);
  char time[32], begin[64];
  ::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S", &date);
  std::snprintf(begin, sizeof begin, "%s.%03dZ %s ", time, static_cast<int>(unix_ns / 1'000'000 % 1000),
                kNames[static_cast<size_t>(level)]);
  std::string line = begin + std::string(node) + " " + std::to_string(pid) + " " + std::string(what) + ": ";
  return line + EscapedForLog(text, kMaxLogLineBytes - 1 - line.size()) + "\n";
}

}  // namespace weft::core
