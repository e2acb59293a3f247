// How much memory this machine or container allows. The node daemon reads it once at start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weft::core {

struct MemoryLimits {
  std::optional<uint64_t> cgroup_bytes;     // the lowest limit of our control groups, if there is one
  std::optional<uint64_t> available_bytes;  // MemAvailable of the machine
};

MemoryLimits ReadMemoryLimits(const std::string& root = "");

// The object store's size if the user gives none: 30 % of the lower of the two, in whole megabytes, at least 64 MB.
uint64_t DefaultCapacity(const MemoryLimits& limits);
inline uint64_t DefaultCapacity() { return DefaultCapacity(ReadMemoryLimits()); }

}  // namespace weft::core
