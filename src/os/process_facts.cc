#include "os/process_facts.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace weft::core {
namespace {

// The rest of a line of /proc/PID/status; empty if there is none.
std::string Status(pid_t process, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":\t")) return line.substr(name.size() + 2);
  }
  return "";
}

}  // namespace

bool IsStopped(pid_t process) {
  const std::string state = Status(process, "State");
  return !state.empty() && (state[0] == 'T' || state[0] == 't');
}

bool HasSocket(pid_t process, uid_t uid, uint64_t inode) {
  // The owner of the folder would not do: it is root for a process that hides its memory, whatever user runs it.
  unsigned effective = 0;
  if (std::sscanf(Status(process, "Uid").c_str(), "%*u %u", &effective) != 1 || effective != uid) return false;
  const std::string wanted = "socket:[" + std::to_string(inode) + "]";
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc/" + std::to_string(process) + "/fd", error), end;
       !error && at != end; at.increment(error)) {
    std::error_code closed;  // meanwhile
    if (std::filesystem::read_symlink(at->path(), closed) == wanted) return true;
  }
  return false;
}

}  // namespace weft::core
