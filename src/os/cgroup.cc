#include "os/cgroup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sstream>

namespace weft::core {
namespace {

bool IsDirectory(const std::string& path) {
  struct stat facts{};
  return stat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode);
}

void AddUpwards(const std::string& mount, std::string path, std::vector<std::string>& out) {
  while (true) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    if (IsDirectory(mount + path)) out.push_back(mount + path);
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

std::optional<std::string> ReadSmallFile(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::string content(16384, '\0');
  size_t size = 0;
  while (size < content.size()) {
    ssize_t got = read(fd, content.data() + size, content.size() - size);
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  close(fd);
  content.resize(size);
  return content;
}

std::vector<std::string> CgroupDirectories(const std::string& controller, const std::string& root) {
  std::vector<std::string> out;
  auto groups = ReadSmallFile(root + "/proc/self/cgroup");
  if (!groups) return out;
  // Each line is "number:controllers:path"; version 2 has the number 0 and names no controllers.
  std::istringstream lines(*groups);
  for (std::string line; std::getline(lines, line);) {
    size_t first = line.find(':');
    size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      AddUpwards(root + "/sys/fs/cgroup", path, out);
    } else if (("," + controllers + ",").find("," + controller + ",") != std::string::npos) {
      AddUpwards(root + "/sys/fs/cgroup/" + controller, path, out);
    }
  }
  return out;
}

}  // namespace weft::core
