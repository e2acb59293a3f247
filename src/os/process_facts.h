// What /proc says about a process, for processes that do not answer themselves.
//
// Any thread. All are false for a process that has ended, or that we may not inspect.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace weft::core {

// Whether it is stopped: by SIGSTOP, or in the hands of a debugger.
bool IsStopped(pid_t process);

// Whether it runs with this effective user and has the socket with this inode open.
bool HasSocket(pid_t process, uid_t uid, uint64_t inode);

}  // namespace weft::core
