// The `weft` program. Each subcommand is a function of its own; this file only chooses.
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "cli/start.h"
#include "log/log.h"
#include "node/node_daemon.h"

namespace weft::core {
namespace {

constexpr const char* kHelp =
    "weft " WEFT_VERSION
    " - tasks, actors and objects on all cores\n"
    "\n"
    "usage: weft [--help | --version | --cmake-dir | --include-dir]\n"
    "       weft COMMAND [...]\n"
    "\n"
    "commands:\n"
    "  start     begin a cluster on this machine, or join one; see weft start --help\n"
    "  stop      end the nodes that `weft start` started here\n"
    "  run       run a Python program in which `import ray` gives weft; see weft run --help\n"
    "  status    the sessions and clusters that run on this machine, and what they use\n"
    "  list      tasks, actors, objects, nodes or workers of a session or node\n"
    "  summary   the same in numbers\n"
    "  explain   what a reference, or every waiting process, waits for\n"
    "  logs      what workers printed last; with --daemon the log of a node daemon\n"
    "  stack     where the threads of drivers and workers are\n"
    "  timeline  what ran when, for ui.perfetto.dev (.json) or a browser (.html)\n"
    "  worker    serve tasks of C++ libraries (started by weft::init({.libraries = ...}), not by hand)\n"
    "  node      serve one driver (started by weft.init(), not by hand: the driver's socket is descriptor 3)\n";

// Prints a folder of this installation, for building C++ programs: cmake -Dweft_DIR=$(weft --cmake-dir).
int PrintFolder(const char* name) {
  char path[PATH_MAX] = "";
  if (::realpath("/proc/self/exe", path)) {
    for (const char* from : {"/..", "/../_cpp"}) {  // installed by CMake; in a Python package
      std::string folder = std::string(path, std::strrchr(path, '/')) + from + "/" + name;
      if (char found[PATH_MAX]; ::realpath(folder.c_str(), found)) {
        std::puts(found);
        return 0;
      }
    }
  }
  std::fprintf(stderr, "weft: there is no %s beside %s; install weft with pip or cmake --install\n", name, path);
  return 1;
}

// The daemon of a private session leaves no file unless the user asks for one.
void KeepLogIfAsked() {
  const char* name = std::getenv("WEFT_LOG_LEVEL");
  if (name == nullptr || *name == '\0') return;
  auto level = ReadLogLevel("WEFT_LOG_LEVEL", name);
  if (!level) LogWarning("log", "%s; it is info now", level.error().message.c_str());
  auto folder = LogFolder();
  if (!folder) return LogWarning("log", "%s; there will be no log", folder.error().message.c_str());
  LogSettings settings;
  if (level) settings.level = *level;
  settings.directory = *folder;
  settings.node = "private";
  const std::string first = "weft " WEFT_VERSION " starts for process " + std::to_string(::getppid());
  [[maybe_unused]] Status told = OpenLog(settings, first);
}

int RunNode() {
  constexpr int kDriverSocket = 3;
  // Out of the driver's terminal session: a Ctrl-C there is the driver's to answer.
  ::setsid();
  ::prctl(PR_SET_NAME, "weft-node");
  // When the driver has ended we see the end of its socket, unless we are stopped: then the kernel wakes us. Not
  // SIGKILL: it would also come when only the thread that called init ends, and then nothing would end what our workers
  // have started.
  ::prctl(PR_SET_PDEATHSIG, SIGCONT);
  // The driver's input and output are not ours to hold open; errors are told on its standard error.
  int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null >= 0) {
    ::dup2(null, 0);
    ::dup2(null, 1);
    if (null > kDriverSocket) ::close(null);
  }
  ::syscall(SYS_close_range, kDriverSocket + 1u, ~0u, 0);
  if (::fcntl(kDriverSocket, F_SETFD, FD_CLOEXEC) != 0) {
    std::fprintf(stderr, "weft node: descriptor 3 is not a driver's socket; weft.init() starts this program itself\n");
    return 2;
  }
  KeepLogIfAsked();
  auto daemon = NodeDaemon::Create(UniqueFd(kDriverSocket));
  if (!daemon) {
    LogError("node", "%s", daemon.error().message.c_str());
    return 1;
  }
  return (*daemon)->Run();
}

// A worker that is not the driver's own program again: loads the libraries its tasks lie in, and serves.
int RunWorker(int count, char** libraries) {
  void* library = nullptr;
  for (int i = 0; i < count; ++i) {
    library = ::dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
      std::fprintf(stderr, "weft worker: the library of tasks %s cannot be loaded: %s\n", libraries[i], ::dlerror());
      return 1;
    }
  }
  // weft::serve_if_worker(), in the libweft.so that the library is linked with.
  auto serve = library ? reinterpret_cast<void (*)()>(::dlsym(library, "_ZN4weft15serve_if_workerEv")) : nullptr;
  if (!serve) {
    std::fprintf(stderr,
                 count > 0 ? "weft worker: %s is not linked with weft::weft\n"
                           : "weft worker: which library? usage: weft worker LIBRARY...\n",
                 count > 0 ? libraries[count - 1] : "");
    return 2;
  }
  serve();  // does not return in a worker
  std::fprintf(stderr, "weft worker: started by weft::init({.libraries = ...}), not by hand\n");
  return 2;
}

int Main(int argc, char** argv) {
  std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "--version") {
    std::puts("weft " WEFT_VERSION);
    return 0;
  }
  if (command == "--cmake-dir") return PrintFolder("lib/cmake/weft");
  if (command == "--include-dir") return PrintFolder("include/weft/..");
  if (command == "--help" || command == "-h" || command == "help") {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (command == "start") return StartNode(argc - 2, argv + 2);
  if (command == "stop") return StopNodes(argc - 2, argv + 2);
  if (command == "worker") return RunWorker(argc - 2, argv + 2);
  if (command == "node") {
    if (argc > 2) {
      bool help = std::string_view(argv[2]) == "--help";
      std::fputs(kHelp, help ? stdout : stderr);
      return help ? 0 : 2;
    }
    return RunNode();
  }
  for (std::string_view of_python : {"status", "list", "summary", "logs", "stack", "timeline", "explain"}) {
    if (command != of_python) continue;
    std::fprintf(stderr, "weft: 'weft %s' is a command of the Python package; run the weft that pip installed\n",
                 argv[1]);
    return 2;
  }
  if (command.empty()) {
    std::fputs(kHelp, stderr);
  } else {
    std::fprintf(stderr, "weft: there is no command '%s'; see weft --help\n", argv[1]);
  }
  return 2;
}

}  // namespace
}  // namespace weft::core

int main(int argc, char** argv) { return weft::core::Main(argc, argv); }
