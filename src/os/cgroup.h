// Where the control groups of this process, version 1 and 2, keep their limits.
//
// Used by memory_limits and cpu_count. Reads files, any thread. `root` stands before every path, for tests.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace weft::core {

// The controller's directories that limit this process: its own group, then each parent up to the mount. The limits of
// all of them apply. Leaves out directories that cannot be seen from inside a container.
std::vector<std::string> CgroupDirectories(const std::string& controller, const std::string& root);

// The content of a small file, or nullopt.
std::optional<std::string> ReadSmallFile(const std::string& path);

}  // namespace weft::core
