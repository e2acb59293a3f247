// Where the control groups of this process keep their limits, version 1 and 2 alike.
//
// Used by memory_limits and cpu_count. Reads files, any thread. `root` stands before every path, for tests.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace weft::core {

// The directories of the controller that limit this process: its own group, then each parent up to the mount. A limit
// of any of them binds. Directories that cannot be seen from inside a container are left out.
std::vector<std::string> CgroupDirectories(const std::string& controller, const std::string& root);

// The content of a small file, or nullopt.
std::optional<std::string> ReadSmallFile(const std::string& path);

}  // namespace weft::core
