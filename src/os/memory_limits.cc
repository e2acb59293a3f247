#include "os/memory_limits.h"

#include <algorithm>
#include <charconv>

#include "os/cgroup.h"

namespace weft::core {
namespace {

// The number at the start of a text, after blanks; nullopt for "max" and the like.
std::optional<uint64_t> LeadingNumber(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  uint64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

// Version 1 writes "no limit" as the largest multiple of a page; nothing above this is a limit.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

}  // namespace

MemoryLimits ReadMemoryLimits(const std::string& root) {
  MemoryLimits limits;
  for (const std::string& directory : CgroupDirectories("memory", root)) {
    for (const char* name : {"/memory.max", "/memory.limit_in_bytes"}) {
      auto content = ReadSmallFile(directory + name);
      auto bytes = content ? LeadingNumber(*content) : std::nullopt;
      if (bytes && *bytes < kNoLimit) limits.cgroup_bytes = std::min(limits.cgroup_bytes.value_or(kNoLimit), *bytes);
    }
  }
  if (auto content = ReadSmallFile(root + "/proc/meminfo")) {
    constexpr std::string_view kName = "MemAvailable:";
    size_t at = content->find(kName);
    if (at != std::string::npos) {
      auto kilobytes = LeadingNumber(std::string_view(*content).substr(at + kName.size()));
      if (kilobytes) limits.available_bytes = *kilobytes * 1024;
    }
  }
  return limits;
}

uint64_t DefaultCapacity(const MemoryLimits& limits) {
  constexpr uint64_t kUnknown = uint64_t{2} << 30;  // if the machine tells nothing, assume a small one
  uint64_t allowed = kUnknown;
  if (limits.cgroup_bytes && limits.available_bytes) {
    allowed = std::min(*limits.cgroup_bytes, *limits.available_bytes);
  } else if (limits.cgroup_bytes || limits.available_bytes) {
    allowed = limits.cgroup_bytes ? *limits.cgroup_bytes : *limits.available_bytes;
  }
  uint64_t share = allowed / 10 * 3;
  return std::max<uint64_t>(share >> 20 << 20, 64u << 20);
}

}  // namespace weft::core
