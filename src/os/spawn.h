// Starting the node daemon from a process that may have many threads (a driver), and waiting for its end.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.h"

namespace weft::core {

// Executes command[0] with our environment and descriptors 0, 1 and 2; the child finds `socket` as descriptor 3 and
// has no others. Safe in a threaded process (vfork, nothing but system calls in between). Fails if it cannot execute.
Result<pid_t> SpawnWithSocket(const std::vector<std::string>& command, int socket);

// Waits for a child of ours to end until the deadline, then kills it.
void WaitForChild(pid_t pid, int64_t deadline_ns);

}  // namespace weft::core
