#include "os/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

namespace weft::core {
namespace {

rlimit original_limit{0, 0};  // written once at the start of the process; 0: never raised

[[noreturn]] void Refuse(const char* what, const char* object) {
  std::string text = std::string("weft: ") + what + " " + object + ": " + strerror(errno) + "\n";
  [[maybe_unused]] auto ignored = ::write(2, text.data(), text.size());
  ::_exit(127);
}

[[noreturn]] void BecomeProgram(const ChildProgram& program, pid_t parent, char* const* argv, char* const* envp) {
  if (program.die_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // it died before we asked
  }
  if (program.new_process_group) ::setpgid(0, 0);
  // Sources are moved out of the way first, so that no target overwrites a source still needed.
  int highest = 2;
  for (const auto& [from, to] : program.descriptors) highest = std::max(highest, to);
  std::vector<int> moved;
  for (const auto& [from, to] : program.descriptors) {
    int fd = ::fcntl(from, F_DUPFD_CLOEXEC, highest + 1);
    if (fd < 0) Refuse("cannot pass a descriptor to", argv[0]);
    moved.push_back(fd);
  }
  bool has_stdin = false;
  for (size_t i = 0; i < moved.size(); ++i) {
    int to = program.descriptors[i].second;
    if (::dup2(moved[i], to) < 0) Refuse("cannot pass a descriptor to", argv[0]);
    has_stdin = has_stdin || to == 0;
  }
  if (!has_stdin) {
    int null = ::open("/dev/null", O_RDWR);
    if (null > 0) ::dup2(null, 0);
    if (null > highest) ::close(null);
  }
  // All of ours are close-on-exec already; this is for what a library may have opened without.
  ::syscall(SYS_close_range, static_cast<unsigned>(highest + 1), ~0u, CLOSE_RANGE_CLOEXEC);

  struct sigaction standard{};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &standard, nullptr);
  standard.sa_handler = SIG_IGN;
  ::sigaction(SIGINT, &standard, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (original_limit.rlim_max != 0) ::setrlimit(RLIMIT_NOFILE, &original_limit);

  if (!program.working_directory.empty() && ::chdir(program.working_directory.c_str()) != 0) {
    Refuse("cannot change to the directory", program.working_directory.c_str());
  }
  ::execvpe(argv[0], argv, envp);
  Refuse("cannot run", argv[0]);
}

const char* SignalName(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? "?" : name;
}

}  // namespace

Result<pid_t> StartProgram(const ChildProgram& program) {
  if (program.command.empty()) return Error{ErrorKind::kInvalid, "there is no program to start"};
  std::vector<char*> argv, envp;
  for (const auto& word : program.command) argv.push_back(const_cast<char*>(word.c_str()));
  for (const auto& word : program.environment) envp.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  pid_t parent = ::getpid();
  pid_t pid = ::fork();
  if (pid < 0) return Error{ErrorKind::kUnavailable, std::string("cannot start a process: ") + strerror(errno)};
  if (pid == 0) BecomeProgram(program, parent, argv.data(), envp.data());
  return pid;
}

uint64_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  original_limit = limit;
  // The kernel copies tables of this size on fork: a million would cost milliseconds and is never needed.
  rlim_t wanted = std::min<rlim_t>(limit.rlim_max, 65536);
  if (wanted > limit.rlim_cur) {
    rlimit raised{wanted, limit.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) return wanted;
  }
  return limit.rlim_cur;
}

std::string DescribeExit(int wait_status) {
  if (WIFEXITED(wait_status)) return "exited with code " + std::to_string(WEXITSTATUS(wait_status));
  if (WIFSIGNALED(wait_status)) {
    int signal = WTERMSIG(wait_status);
    return "killed by signal " + std::to_string(signal) + " (SIG" + SignalName(signal) + ")";
  }
  return "ended with status " + std::to_string(wait_status);
}

}  // namespace weft::core
