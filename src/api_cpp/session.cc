// Beginning, end and role of a session.
#include "weft/session.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "api_cpp/cpp_runner.h"
#include "api_cpp/event_thread.h"
#include "api_cpp/program_listing.h"
#include "api_cpp/stack.h"
#include "api_cpp/state.h"
#include "base/clock.h"
#include "os/cpu_count.h"
#include "weft/errors.h"
#include "wire/resource_names.h"

namespace weft::detail {

constinit std::atomic<SessionState*> g_session{nullptr};
constinit std::atomic<uint64_t> g_blocks{0};

namespace {

constinit std::atomic<uint32_t> g_last_epoch{0};
constexpr const char* kWorkerFd = "WEFT_WORKER_FD";
constexpr const char* kNamespace = "WEFT_NAMESPACE";

// Guards opening and closing, and ended sessions whose memory is still used by arrays.
std::mutex& SessionMutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}
std::vector<SessionState*>& EndedSessions() {
  static auto* ended = new std::vector<SessionState*>();
  return *ended;
}

void ForgetEndedSessions() {
  if (g_blocks.load() != 0) return;
  std::erase_if(EndedSessions(), [](SessionState* state) {
    if (IsUsed(state)) return false;  // by the thread that ended it, further up its stack
    delete state;
    return true;
  });
}

std::string ReadFile(const char* path) {
  std::string text;
  if (std::FILE* file = std::fopen(path, "rb")) {
    char buffer[4096];
    for (size_t size; (size = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, size);
    std::fclose(file);
  }
  return text;
}

// The path of this executable; if another file is there by now, a name for the running one.
std::string OwnExecutable() {
  char path[PATH_MAX];
  ssize_t size = ::readlink("/proc/self/exe", path, sizeof path - 1);
  struct stat here, running;
  if (size > 0) {
    path[size] = '\0';
    if (::stat(path, &here) == 0 && ::stat("/proc/self/exe", &running) == 0 && here.st_dev == running.st_dev &&
        here.st_ino == running.st_ino) {
      return path;
    }
  }
  return "/proc/" + std::to_string(::getpid()) + "/exe";
}

std::vector<std::string> OwnCommand(const std::string& executable) {
  std::vector<std::string> command{executable};
  std::string text = ReadFile("/proc/self/cmdline");
  size_t at = text.find('\0');  // after argv[0]
  while (at != std::string::npos && at + 1 < text.size()) {
    size_t end = text.find('\0', at + 1);
    if (end == std::string::npos) break;
    command.push_back(text.substr(at + 1, end - at - 1));
    at = end;
  }
  return command;
}

// Where libweft.so lies, with a slash behind; empty if that is not known.
std::string OwnLibraryFolder() {
  Dl_info info;
  char path[PATH_MAX];
  if (::dladdr(reinterpret_cast<const void*>(&g_session), &info) == 0 || !info.dli_fname ||
      !::realpath(info.dli_fname, path)) {
    return {};
  }
  return std::string(path, std::strrchr(path, '/') + 1);
}

std::string FindProgram(const InitOptions& options, const std::string& executable) {
  if (!options.program.empty()) {
    if (::access(options.program.c_str(), X_OK) == 0) return options.program;
    throw std::invalid_argument("weft::init: program '" + options.program +
                                "' cannot be executed: " + std::strerror(errno));
  }
  if (const char* named = std::getenv("WEFT_PROGRAM"); named && *named) {
    if (::access(named, X_OK) == 0) return named;
    throw WeftError(std::string("WEFT_PROGRAM names '") + named +
                    "', which cannot be executed: " + std::strerror(errno));
  }
  std::string folder = executable.substr(0, executable.rfind('/') + 1);
  std::vector<std::string> places = {folder + "weft", folder + "../bin/weft"};
  // libweft.so and the program are installed together: lib/ and bin/, or in a Python package _cpp/lib/ and _bin/.
  std::string library = OwnLibraryFolder();
  if (!library.empty()) {
    places.push_back(library + "../bin/weft");
    places.push_back(library + "../../_bin/weft");
  }
  std::string looked;
  for (const auto& place : places) {
    struct stat info;
    if (::stat(place.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(place.c_str(), X_OK) == 0) return place;
    looked += (looked.empty() ? "" : ", ") + place;
  }
  throw WeftError("the program 'weft', which starts workers, was not found (looked for " + looked +
                  "); set WEFT_PROGRAM or InitOptions::program to its path");
}

core::ResourceAmounts Resources(const InitOptions& options) {
  core::ResourceAmounts amounts;
  auto add = [&](const std::string& name, double amount) {
    if (!(amount >= 0) || amount > 1e12) {
      throw std::invalid_argument("weft::init: the amount of '" + name + "' must be a number that is not negative");
    }
    auto units = static_cast<int64_t>(std::llround(amount * static_cast<double>(core::kResourceUnit)));
    if (units > 0) amounts.emplace_back(name, units);
  };
  double cpus = options.num_cpus.value_or(core::AllowedCpus());
  if (cpus != std::floor(cpus)) throw std::invalid_argument("weft::init: num_cpus must be a whole number");
  add("CPU", cpus);
  add("GPU", options.num_gpus);
  if (options.resources.size() > core::kMaxOwnResources) {
    throw std::invalid_argument("weft::init: there can be at most " + std::to_string(core::kMaxOwnResources) +
                                " resources");
  }
  for (const auto& [name, amount] : options.resources) {
    if (name.size() > core::kMaxResourceNameBytes) {
      throw std::invalid_argument("weft::init: the name of the resource '" + name.substr(0, 40) +
                                  "...' has more than " + std::to_string(core::kMaxResourceNameBytes) + " bytes");
    }
    if (name.empty() || name == "CPU" || name == "GPU") {
      throw std::invalid_argument("weft::init: resources must not name '" + name +
                                  "'; CPUs and GPUs have options of "
                                  "their own");
    }
    add(name, amount);
  }
  std::sort(amounts.begin(), amounts.end());
  auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (auto twice = std::adjacent_find(amounts.begin(), amounts.end(), same); twice != amounts.end()) {
    throw std::invalid_argument("weft::init: resource '" + twice->first + "' is given twice");
  }
  return amounts;
}

// Of the cluster to join; empty: none.
std::string ClusterAddress(const InitOptions& options) {
  std::string address = options.address;
  const char* given = std::getenv("WEFT_ADDRESS");
  if (address.empty() && given) address = given;
  if (address.empty() || address == "local") return "";
  if (options.num_cpus || options.num_gpus != 0 || !options.resources.empty() || options.object_store_memory != 0) {
    throw std::invalid_argument(
        "weft::init: num_cpus, num_gpus, resources and object_store_memory are for private sessions; a cluster has "
        "what its nodes have (weft start --num-cpus=...)");
  }
  return address;
}

std::vector<std::string> WorkerOf(const InitOptions& options, const std::string& program) {
  std::vector<std::string> command{program, "worker"};
  for (const std::string& library : options.libraries) {
    char absolute[PATH_MAX];
    if (!::realpath(library.c_str(), absolute)) {
      throw std::invalid_argument("weft::init: there is no library of tasks at " + library + ": " +
                                  std::strerror(errno));
    }
    command.push_back(absolute);
  }
  return command;
}

// The descriptor that makes this process a worker; -1 if it is none. Read once: programs that user code starts are not
// workers.
int TakeWorkerFd() {
  const char* text = std::getenv(kWorkerFd);
  if (!text) return -1;
  char* end;
  long fd = std::strtol(text, &end, 10);
  bool valid = *text != '\0' && *end == '\0' && fd >= 0 && fd <= INT_MAX &&
               ::fcntl(static_cast<int>(fd), F_SETFD, FD_CLOEXEC) == 0;
  ::unsetenv(kWorkerFd);
  return valid ? static_cast<int>(fd) : -1;
}

[[noreturn]] void Serve(int fd) {
  InstallCrashReport();
  // As on a terminal: a task's output is shown while it runs, under its name, and is not lost in a crash.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  auto runtime = Runtime::JoinAsWorker(core::UniqueFd(fd));
  if (!runtime) {
    std::fprintf(stderr, "weft: this worker cannot join its session: %s\n", runtime.error().message.c_str());
    std::fflush(nullptr);
    ::_exit(1);
  }
  const char* long_wait = std::getenv("WEFT_LONG_WAIT_SECONDS");
  (*runtime)->set_notice_after(static_cast<int64_t>((long_wait ? std::atof(long_wait) : 10.0) * 1e9));
  auto* state = new SessionState();
  state->runtime = std::move(*runtime);
  state->epoch = ++g_last_epoch;
  const char* name_space = std::getenv(kNamespace);
  state->name_space = name_space ? name_space : "";
  g_session.store(state, std::memory_order_release);
  // Never destroyed: threads of a threaded actor may still be on their way out of a call when this process ends.
  auto* runner = new CppRunner(*state);
  auto* executor = new core::Executor(*state->runtime, *runner);
  runner->SetExecutor(executor);
  g_runner = runner;
  executor->Run();
  runner->DestroyInstance();  // while it can still use weft
  g_session.store(nullptr);
  state->runtime->Stop();
  StopEvents(*state);
  std::exit(0);  // as at the end of main: what the program registered for its end runs
}

}  // namespace

std::string ProgramPath() { return FindProgram({}, OwnExecutable()); }

CppRunner* JoinSession(Runtime& runtime, const std::string& name_space, core::Executor& executor) {
  auto* state = new SessionState();
  state->runtime.reset(&runtime);
  state->epoch = ++g_last_epoch;
  state->name_space = name_space;
  state->hosted = true;
  g_session.store(state, std::memory_order_release);
  g_runner = new CppRunner(*state);
  g_runner->SetExecutor(&executor);
  return g_runner;
}

void LeaveSession() {
  g_runner->DestroyInstance();  // while it can still use weft
  SessionState* state = g_session.exchange(nullptr);
  state->runtime->EndEvents(core::Receiver::kHosted);
  StopEvents(*state);
}

uint32_t OpenSession(const InitOptions& options) {
  serve_if_worker();
  std::lock_guard lock(SessionMutex());
  if (Runtime::forked())
    throw WeftError(
        "weft::init: this process was forked from a weft driver; execute a program of "
        "its own to start another session");
  if (g_session.load()) {
    throw WeftError("weft::init: a session is open in this process already; end it first (Session::shutdown)");
  }
  ForgetEndedSessions();
  PrepareUsing();
  core::SessionOptions session;
  std::string executable = OwnExecutable();
  session.daemon_path = FindProgram(options, executable);
  session.open.pid = ::getpid();
  session.address = ClusterAddress(options);
  if (session.address.empty()) session.open.resources = Resources(options);
  session.open.object_store_bytes = options.object_store_memory;
  session.open.python_workers = 0;
  session.open.worker_command =
      options.libraries.empty() ? OwnCommand(executable) : WorkerOf(options, session.daemon_path);
  // On other nodes the program may be missing, or another one.
  if (!session.address.empty()) session.open.files = ListProgramFiles(session.open.worker_command, options.libraries);
  // Started when Python is first called, if ever.
  const char* python = std::getenv("WEFT_PYTHON");
  session.open.python_worker_command = {!options.python.empty() ? options.python
                                        : python && *python     ? python
                                                                : "python3",
                                        "-m", "weft._cpp_zygote"};
  for (char** entry = environ; *entry; ++entry) {
    if (std::strncmp(*entry, kNamespace, std::strlen(kNamespace)) != 0) session.open.environment.push_back(*entry);
  }
  session.open.environment.push_back(std::string(kNamespace) + "=" + options.name_space);
  char folder[PATH_MAX];
  session.open.working_directory = ::getcwd(folder, sizeof folder) ? folder : "/";
  session.open.forward_output = options.log_to_driver ? 1 : 0;
  auto runtime = Runtime::StartSession(std::move(session));
  if (!runtime) throw WeftError("weft::init: " + runtime.error().message);
  auto* state = new SessionState();
  state->runtime = std::move(*runtime);
  state->epoch = ++g_last_epoch;
  state->name_space = options.name_space;
  if (options.log_to_driver) StartEvents(*state);
  g_session.store(state, std::memory_order_release);
  return state->epoch;
}

void CloseSession(uint32_t epoch) noexcept {
  std::unique_lock lock(SessionMutex());
  SessionState* state = g_session.load();
  if (!state || state->epoch != epoch || Runtime::forked()) return;
  g_session.store(nullptr);
  state->runtime->Stop();
  lock.unlock();  // callbacks that are made now, or run already, may end sessions and open others
  StopEvents(*state);
  AwaitUsers(state);  // calls that waited return now, with an exception that says why
  lock.lock();
  EndedSessions().push_back(state);
  ForgetEndedSessions();
}

bool IsOpen(uint32_t epoch) noexcept {
  Using session;
  SessionState* state = session.get();
  return state && state->epoch == epoch && !state->runtime->stopped();
}

}  // namespace weft::detail

namespace weft {

void serve_if_worker() {
  int fd = detail::TakeWorkerFd();
  if (fd >= 0) detail::Serve(fd);
}

bool is_initialized() noexcept { return detail::g_session.load() != nullptr; }

}  // namespace weft
