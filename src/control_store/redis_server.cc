#include "control_store/redis_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/clock.h"
#include "control_store/holder_id.h"
#include "os/spawn.h"

namespace weft::core {
namespace {

// One that lived so long was well started: if it dies, it is started again at once.
constexpr int64_t kWellStartedNs = 1'000'000'000;
constexpr int64_t kFirstPauseNs = 100'000'000;
constexpr int64_t kLongestPauseNs = 5'000'000'000;

Error Failed(const std::string& what) { return {ErrorKind::kUnavailable, what + ": " + strerror(errno)}; }

Result<std::string> ReadSmall(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return Failed("cannot read " + path);
  char text[4096];
  ssize_t size = ::read(fd.get(), text, sizeof text);
  if (size < 0) return Failed("cannot read " + path);
  return std::string(text, static_cast<size_t>(size));
}

// Whole or not at all, and never readable by others, not even for a moment.
Status WritePrivate(const std::string& path, std::string_view text) {
  const std::string fresh = path + ".new";
  ::unlink(fresh.c_str());
  UniqueFd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) return Failed("cannot write " + path);
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return Failed("cannot write " + path);
  }
  if (::rename(fresh.c_str(), path.c_str()) != 0) return Failed("cannot write " + path);
  return {};
}

Result<uint16_t> FreePort(const std::string& bind) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  v4.sin_family = AF_INET;
  v6.sin6_family = AF_INET6;
  sockaddr* address = reinterpret_cast<sockaddr*>(&v4);
  socklen_t size = sizeof v4;
  if (::inet_pton(AF_INET6, bind.c_str(), &v6.sin6_addr) == 1) {
    address = reinterpret_cast<sockaddr*>(&v6);
    size = sizeof v6;
  } else if (::inet_pton(AF_INET, bind.c_str(), &v4.sin_addr) != 1) {
    return Error{ErrorKind::kInvalid, "'" + bind + "' is no address that a Redis server can listen on"};
  }
  UniqueFd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || ::bind(fd.get(), address, size) != 0 || ::getsockname(fd.get(), address, &size) != 0) {
    return Failed("no free port on " + bind);
  }
  return ntohs(address->sa_family == AF_INET6 ? v6.sin6_port : v4.sin_port);
}

}  // namespace

Result<std::unique_ptr<RedisServer>> RedisServer::Start(EventLoop& loop, RedisServerOptions options) {
  std::unique_ptr<RedisServer> server(new RedisServer(loop, std::move(options)));
  if (Status status = server->Prepare(); !status) return status.error();
  if (!server->Adopt()) {
    if (Status status = server->Launch(); !status) return status.error();
  }
  return server;
}

RedisServer::~RedisServer() {
  if (options_.dies_with_us) {
    Stop(NowNs() + 2'000'000'000);
  } else {
    Unwatch();
  }
}

Status RedisServer::Prepare() {
  const std::string& folder = options_.folder;
  if (folder.empty() || folder[0] != '/' || folder.find_first_of("\"\\\n\r'") != std::string::npos) {
    return Error{ErrorKind::kInvalid,
                 "the folder of a Redis server must be an absolute path without quotes: " + folder};
  }
  if (Path("redis.sock").size() > 107) {
    return Error{ErrorKind::kInvalid, "the folder of a Redis server has a path too long for a unix socket: " + folder};
  }
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return Failed("cannot make the folder " + folder);
  struct stat info{};
  if (::lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() ||
      (info.st_mode & 077) != 0) {
    return Error{ErrorKind::kUnavailable, folder + " is not a folder of this user with mode 0700"};
  }
  auto password = ReadSmall(Path("password"));
  if (!password.ok() || password->size() != 64) {
    password = NewHolderId() + NewHolderId();
    if (Status status = WritePrivate(Path("password"), *password); !status) return status;
  }
  address_.password = *password;
  port_ = 0;
  if (options_.bind.empty()) {
    address_.unix_path = Path("redis.sock");
    return {};
  }
  address_.host = options_.bind == "0.0.0.0" ? "127.0.0.1" : options_.bind == "::" ? "::1" : options_.bind;
  port_ = options_.port;
  if (auto text = ReadSmall(Path("port")); port_ == 0 && text.ok()) {
    std::from_chars(text->data(), text->data() + text->size(), port_);
  }
  if (port_ == 0) {
    auto port = FreePort(options_.bind);
    if (!port) return port.error();
    port_ = *port;
  }
  address_.port = port_;
  return WritePrivate(Path("port"), std::to_string(port_));
}

bool RedisServer::Adopt() {
  auto text = ReadSmall(Path("pid"));
  int pid = 0;
  if (!text.ok()) return false;
  std::from_chars(text->data(), text->data() + text->size(), pid);
  if (pid <= 1) return false;
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return false;
  // The number may belong to another program by now: ours works in this folder.
  std::error_code error;
  const std::string process = "/proc/" + std::to_string(pid);
  auto folder = std::filesystem::read_symlink(process + "/cwd", error);
  if (error || folder != std::filesystem::canonical(options_.folder, error) || error) return false;
  pid_ = pid;
  is_child_ = false;
  pidfd_ = std::move(pidfd);
  launched_ns_ = NowNs();
  return Watch().ok();
}

Status RedisServer::Launch() {
  // Redis reads what it should not tell others from a file; the log goes to a file as well.
  std::string config;
  auto line = [&](const std::string& text) { config += text + "\n"; };
  line("dir \"" + options_.folder + "\"");
  line("port " + std::to_string(port_));
  if (!options_.bind.empty()) line("bind " + options_.bind);
  line("unixsocket \"" + Path("redis.sock") + "\"");
  line("unixsocketperm 700");
  line("protected-mode yes");
  line("requirepass " + address_.password);
  line("daemonize no");
  line("appendonly yes");
  line("appendfsync always");
  line("save \"\"");
  line("maxmemory-policy noeviction");
  line("tcp-keepalive 30");
  if (Status status = WritePrivate(Path("redis.conf"), config); !status) return status;
  UniqueFd log(::open(Path("redis.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!log) return Failed("cannot write " + Path("redis.log"));
  auto pid = SpawnProgram({options_.program, Path("redis.conf")}, log.get(), options_.dies_with_us);
  if (!pid) {
    return Error{ErrorKind::kUnavailable, pid.error().message + "; install Redis (Debian: apt install redis-server)"};
  }
  pid_ = *pid;
  is_child_ = true;
  launched_ns_ = NowNs();
  restart_at_ns_ = INT64_MAX;
  pidfd_.Reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_) return Failed("cannot watch a Redis server");
  if (Status status = WritePrivate(Path("pid"), std::to_string(pid_)); !status) return status;
  return Watch();
}

Status RedisServer::Watch() {
  auto watch = loop_.Add(pidfd_.get(), EPOLLIN, [this](uint32_t) { Ended(); });
  if (!watch) return watch.error();
  watch_ = *watch;
  return {};
}

void RedisServer::Unwatch() {
  if (watch_ != 0) loop_.Remove(watch_);
  watch_ = 0;
  pidfd_.Reset();
}

void RedisServer::Ended() {
  Unwatch();
  if (is_child_) ::waitpid(pid_, nullptr, WNOHANG);
  pid_ = -1;
  const int64_t now_ns = NowNs();
  pause_ns_ = now_ns - launched_ns_ >= kWellStartedNs ? 0 : std::clamp(2 * pause_ns_, kFirstPauseNs, kLongestPauseNs);
  restart_at_ns_ = now_ns + pause_ns_;
  if (pause_ns_ == 0) Tick(now_ns);
}

void RedisServer::Tick(int64_t now_ns) {
  if (now_ns < restart_at_ns_) return;
  restart_at_ns_ = INT64_MAX;
  ++restarts_;
  if (Launch().ok()) return;
  pause_ns_ = std::clamp(2 * pause_ns_, kFirstPauseNs, kLongestPauseNs);
  restart_at_ns_ = now_ns + pause_ns_;
}

void RedisServer::Stop(int64_t deadline_ns) {
  restart_at_ns_ = INT64_MAX;
  if (pid_ <= 0) return;
  if (watch_ != 0) loop_.Remove(watch_);
  watch_ = 0;
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGTERM, nullptr, 0);
  for (;;) {
    const int64_t left_ms = std::max<int64_t>((deadline_ns - NowNs() + 999'999) / 1'000'000, 0);
    pollfd ended{pidfd_.get(), POLLIN, 0};
    int ready = ::poll(&ended, 1, static_cast<int>(left_ms));
    if (ready > 0) break;
    if (ready < 0 && errno == EINTR) continue;
    ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
    deadline_ns = NowNs() + 5'000'000'000;  // the kernel needs a moment
  }
  if (is_child_) ::waitpid(pid_, nullptr, 0);
  pidfd_.Reset();
  pid_ = -1;
  ::unlink(Path("pid").c_str());
}

}  // namespace weft::core
