// Starting programs from a process that may have many threads, and waiting for their end.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.h"

namespace weft::core {

// Executes command[0] with our environment and descriptors 0, 1 and 2; the child has `socket` as descriptor 3 and no
// others. Safe in a threaded process (vfork, only system calls in between). Fails if it cannot execute.
Result<pid_t> SpawnWithSocket(const std::vector<std::string>& command, int socket);

// Executes command[0], looked up in PATH, with our environment, no input, and output and errors into `output`; the
// child has no other descriptors. Safe in a threaded process, as above. With die_with_parent it is killed when the
// calling thread ends.
Result<pid_t> SpawnProgram(const std::vector<std::string>& command, int output, bool die_with_parent);

// Waits for a child of ours to end until the deadline, then kills it.
void WaitForChild(pid_t pid, int64_t deadline_ns);

}  // namespace weft::core
