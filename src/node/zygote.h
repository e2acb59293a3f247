// The daemon's end of the zygote: a warm Python interpreter that forks workers on request (python/weft/_zygote.py).
//
// Only plumbing: it starts the process, sends requests and decodes answers; the daemon decides. Loop thread only.
//
// The two talk over a SOCK_SEQPACKET pair, the zygote's end being its descriptor 3. Little-endian, one packet each:
//   daemon to zygote  'F' uint64 worker                 with three descriptors: the worker's socket, stdout, stderr
//   zygote to daemon  'R' int32 pid                     it is ready; once
//                     'F' uint64 worker, int32 pid      the worker was forked; -errno if that failed
//                     'X' int32 pid, int32 status       the worker has ended (as from waitpid)
//                     'W' text                          a warning for the driver
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "base/result.h"
#include "os/child_process.h"
#include "os/fd.h"
#include "transport/message_stream.h"
#include "wire/ids.h"

namespace weft::core {

struct ZygoteReady {
  pid_t pid;
};
struct WorkerForked {
  ProcessId worker;
  pid_t pid;  // or -errno
};
struct WorkerExited {
  pid_t pid;
  int status;
};
struct ZygoteWarning {
  std::string text;
};
using ZygoteEvent = std::variant<ZygoteReady, WorkerForked, WorkerExited, ZygoteWarning>;

class Zygote {
 public:
  // Starts the program; its output goes to a pipe that output_fd() reads.
  static Result<std::unique_ptr<Zygote>> Start(ChildProgram program);

  pid_t pid() const { return pid_; }
  int fd() const { return socket_.get(); }
  int output_fd() const { return output_.get(); }

  void RequestFork(ProcessId worker, SharedFd socket, SharedFd standard_output, SharedFd standard_error);
  // Sends what is queued. True if some of it is left because the socket is full.
  bool Flush();
  // One event, if there is one; closed() tells whether more may come.
  std::optional<ZygoteEvent> Next();
  bool closed() const { return closed_; }

  // Reads what it printed. The last of it explains why it could not start. False when no more can come.
  bool ReadOutput();
  const std::string& last_output() const { return last_output_; }

 private:
  struct Request {
    ProcessId worker;
    SharedFd fds[3];
  };

  pid_t pid_ = 0;
  UniqueFd socket_;
  UniqueFd output_;
  std::deque<Request> requests_;
  std::string last_output_;
  bool closed_ = false;
};

}  // namespace weft::core
