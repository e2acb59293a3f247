// Where the code of this process lies.
#pragma once

#include <limits.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

inline std::vector<std::string> files_of_this_process() {
  std::vector<std::string> files;
  char path[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  files.emplace_back(path, size > 0 ? static_cast<size_t>(size) : 0);
  std::ifstream maps("/proc/self/maps");
  std::set<std::string> seen;
  for (std::string line; std::getline(maps, line);) {
    const size_t at = line.find('/');
    if (at == std::string::npos || line.find(" r-xp ") == std::string::npos) continue;
    if (seen.insert(line.substr(at)).second) files.push_back(line.substr(at));
  }
  return files;
}
