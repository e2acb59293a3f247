#include "os/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "os/fd.h"

namespace weft::core {
namespace {

// Tells the parent why it did not come to executing, through a pipe that executing closes.
[[noreturn]] void Report(int pipe) {
  int error = errno;
  [[maybe_unused]] auto ignored = ::write(pipe, &error, sizeof error);
  ::_exit(127);
}

// By system calls alone: the library's functions take locks under sanitizers, which another thread may have held when
// the process was forked.
void ResetSignals(const sigset_t* mask) {
  struct {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    uint64_t mask;
  } normal{};  // SIG_DFL
  for (int signal = 1; signal < NSIG; ++signal) {
    ::syscall(SYS_rt_sigaction, signal, &normal, nullptr, sizeof normal.mask);
  }
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, mask, nullptr, sizeof normal.mask);
}

// In the child, which shares the parent's memory until it executes: nothing but system calls.
[[noreturn]] void Execute(char* const* argv, int socket, const sigset_t* old, int report) {
  ResetSignals(old);
  if (socket == 3) {
    ::fcntl(3, F_SETFD, 0);
  } else {
    ::dup2(socket, 3);
  }
  ::syscall(SYS_close_range, 4u, ~0u, CLOSE_RANGE_CLOEXEC);
  ::execv(argv[0], argv);
  Report(report);
}

// As above; the three standard descriptors are given.
[[noreturn]] void ExecuteProgram(char* const* argv, int input, int output, pid_t parent, const sigset_t* none,
                                 int report) {
  ResetSignals(none);
  if (parent != 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
  }
  ::dup2(input, 0);
  ::dup2(output, 1);
  ::dup2(output, 2);
  ::syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC);
  ::execvp(argv[0], argv);
  Report(report);
}

// For reading and for writing; above what the child puts into place.
Result<std::pair<UniqueFd, UniqueFd>> ReportPipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return Error{ErrorKind::kUnavailable, std::string("cannot make a pipe: ") + strerror(errno)};
  }
  UniqueFd reader(ends[0]), low(ends[1]), writer(::fcntl(ends[1], F_DUPFD_CLOEXEC, 4));
  if (!writer) return Error{ErrorKind::kUnavailable, std::string("cannot make a pipe: ") + strerror(errno)};
  return std::pair(std::move(reader), std::move(writer));
}

// 0 if the child executes its program, else why not. After vfork that is decided already; sanitizers fork instead. The
// limit is for a fork of the user's in that moment, which keeps the pipe open.
int AwaitExecution(std::pair<UniqueFd, UniqueFd>& report) {
  report.second.Reset();
  pollfd ready{report.first.get(), POLLIN, 0};
  while (::poll(&ready, 1, 2'000) < 0 && errno == EINTR) {
  }
  int error = 0;
  if ((ready.revents & POLLIN) == 0) return 0;
  return ::read(report.first.get(), &error, sizeof error) == sizeof error ? error : 0;
}

}  // namespace

Result<pid_t> SpawnWithSocket(const std::vector<std::string>& command, int socket) {
  std::vector<char*> argv;
  for (const auto& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  auto report = ReportPipe();
  if (!report) return report.error();
  // No signal handler of the parent may run in the child while they share memory.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  pid_t pid = ::vfork();
  if (pid == 0) Execute(argv.data(), socket, &old, report->second.get());
  int fork_error = errno;
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (pid < 0) {
    return Error{ErrorKind::kUnavailable, std::string("cannot start the node daemon: ") + strerror(fork_error)};
  }
  if (int error = AwaitExecution(*report); error != 0) {
    ::waitpid(pid, nullptr, 0);
    return Error{ErrorKind::kUnavailable, "cannot execute the node daemon '" + command[0] + "': " + strerror(error)};
  }
  return pid;
}

Result<pid_t> SpawnProgram(const std::vector<std::string>& command, int output, bool die_with_parent) {
  std::vector<char*> argv;
  for (const auto& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  UniqueFd input(::open("/dev/null", O_RDWR | O_CLOEXEC));
  // Above 2, or the first of them to be put into place would overwrite another.
  if (input && input.get() < 3) input.Reset(::fcntl(input.get(), F_DUPFD_CLOEXEC, 3));
  UniqueFd target(::fcntl(output, F_DUPFD_CLOEXEC, 3));
  if (!input || !target) {
    return Error{ErrorKind::kUnavailable, "cannot start '" + command[0] + "': " + strerror(errno)};
  }
  const volatile pid_t parent = die_with_parent ? ::getpid() : 0;
  auto report = ReportPipe();
  if (!report) return report.error();
  sigset_t all, old, none;  // a program of its own hears all signals, whatever we have blocked
  sigfillset(&all);
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  pid_t pid = ::vfork();
  if (pid == 0) ExecuteProgram(argv.data(), input.get(), target.get(), parent, &none, report->second.get());
  int fork_error = errno;
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (pid < 0) {
    return Error{ErrorKind::kUnavailable, "cannot start '" + command[0] + "': " + strerror(fork_error)};
  }
  if (int error = AwaitExecution(*report); error != 0) {
    ::waitpid(pid, nullptr, 0);
    return Error{ErrorKind::kUnavailable, "cannot execute '" + command[0] + "': " + strerror(error)};
  }
  return pid;
}

void WaitForChild(pid_t pid, int64_t deadline_ns) {
  int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (pidfd >= 0) {
    for (;;) {
      int64_t left_ms = (deadline_ns - NowNs()) / 1'000'000;
      pollfd p{pidfd, POLLIN, 0};
      int ready = ::poll(&p, 1, static_cast<int>(std::max<int64_t>(left_ms, 0)));
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0) ::kill(pid, SIGKILL);
      break;
    }
    ::close(pidfd);
  } else {
    ::kill(pid, SIGKILL);
  }
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace weft::core
