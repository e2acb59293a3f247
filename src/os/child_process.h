// Starts programs, and describes how they ended.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace weft::core {

struct ChildProgram {
  std::vector<std::string> command;      // the first is looked up in our own PATH
  std::vector<std::string> environment;  // NAME=VALUE, complete
  std::string working_directory;         // empty: ours
  // (ours, the child's). Standard input is /dev/null unless given; all others are closed in the child.
  std::vector<std::pair<int, int>> descriptors;
  bool new_process_group = false;
  bool die_with_parent = false;  // killed if we die first
};

// Forks and executes. The child has default signal handlers (except that it ignores SIGINT, which belongs to the
// driver), no blocked signals, and the descriptor limit that this process had at its start. If the program cannot be
// executed, the child says why on its standard error and exits with code 127. Call it only from a process with one
// thread.
Result<pid_t> StartProgram(const ChildProgram& program);

// Raises our own descriptor limit to the allowed maximum; children get the old one. Returns the limit.
uint64_t RaiseDescriptorLimit();

// "exited with code 3", "killed by signal 9 (SIGKILL)". Takes what waitpid gives.
std::string DescribeExit(int wait_status);

}  // namespace weft::core
