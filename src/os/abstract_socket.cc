#include "os/abstract_socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <utility>

#include "base/clock.h"
#include "os/entropy.h"
#include "os/process_facts.h"
#include "os/socket.h"
#include "os/tcp.h"

namespace weft::core {
namespace {

constexpr unsigned kListens = 1 << 16;  // among the flags in /proc/net/unix
// Between a daemon's name and what makes it unique, if the name was taken.
constexpr char kUnique = '~';
// How often a daemon that has no room is tried again.
constexpr int64_t kRetryNs = 5'000'000;

Error SystemError(const std::string& what) {
  const int code = errno;
  ErrorKind kind = ErrorKind::kUnavailable;
  if (code == ECONNREFUSED || code == ENOENT) kind = ErrorKind::kGone;
  if (code == EAGAIN) kind = ErrorKind::kTimeout;
  return Error{kind, what + ": " + strerror(code)};
}

// The address, and its size: an abstract name is not ended by a NUL, so the size counts.
std::pair<sockaddr_un, socklen_t> Address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof address.sun_path - 1);
  memcpy(address.sun_path + 1, name.data(), size);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size)};
}

Result<ucred> Credentials(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return SystemError("cannot ask which process is at the other end of a socket");
  }
  return credentials;
}

// Names that begin so and are listened on, and the inodes of the sockets: one each. But anything can be in a name, even
// an end of line and then a line for another name.
std::map<std::string, std::vector<uint64_t>> FindListeners(const std::string& prefix) {
  std::map<std::string, std::vector<uint64_t>> found;
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);) {
    unsigned flags = 0;
    uint64_t inode = 0;
    int at = 0;  // of the name, with an @ for its leading NUL
    if (std::sscanf(line.c_str(), "%*s %*s %*s %x %*s %*s %" SCNu64 " %n", &flags, &inode, &at) != 2 || at == 0)
      continue;
    // Sockets that were accepted carry the name too.
    if ((flags & kListens) == 0 || line.compare(static_cast<size_t>(at), prefix.size() + 1, "@" + prefix) != 0)
      continue;
    found[line.substr(static_cast<size_t>(at) + 1)].push_back(inode);
  }
  return found;
}

// Connects without waiting. If there is no room for one more connection, the kernel does not say whose listener it is;
// then it is the daemon's if that has the socket. kTimeout: it is the user's, but there is no room; kGone: it is not.
Result<UniqueFd> ConnectToListener(const std::string& name, const std::vector<uint64_t>& inodes, uid_t uid,
                                   pid_t daemon) {
  auto socket = ConnectAbstract(name);
  if (socket) {
    auto listener = PeerUid(socket->get());
    if (listener && *listener == uid) return socket;
  } else if (socket.error().kind != ErrorKind::kTimeout || (inodes.size() == 1 && HasSocket(daemon, uid, inodes[0]))) {
    return socket;
  }
  return Error{ErrorKind::kGone, "another user listens in the place of the node daemon"};
}

// The pid of the listening process, by the kernel, if the user runs it; 0 if that is in another pid namespace.
Result<pid_t> ListenerOf(const std::string& name, const std::vector<uint64_t>& inodes, uid_t uid, pid_t daemon) {
  // A connection would make the daemon take us for a driver or an observer that dies.
  if (inodes.size() == 1 && HasSocket(daemon, uid, inodes[0])) return daemon;
  auto socket = ConnectToListener(name, inodes, uid, daemon);
  if (socket) return PeerPid(socket->get());
  if (socket.error().kind == ErrorKind::kTimeout) return daemon;
  return socket.error();
}

std::string WithoutUnique(const std::string& name) { return name.substr(0, name.find(kUnique)); }

}  // namespace

std::string ObserverSocketName(uid_t uid, pid_t daemon) {
  return "weft-session-" + std::to_string(uid) + "-" + std::to_string(daemon);
}

std::string NodeSocketName(uid_t uid, pid_t daemon, const std::string& cluster, uint32_t number) {
  return "weft-node-" + std::to_string(uid) + "-" + std::to_string(daemon) + "-" + cluster + "/" +
         std::to_string(number);
}

std::vector<pid_t> FindObserverSockets(uid_t uid) {
  const std::string prefix = "weft-session-" + std::to_string(uid) + "-";
  std::vector<pid_t> found;
  for (const auto& [name, inodes] : FindListeners(prefix)) {
    const auto daemon = static_cast<pid_t>(std::strtol(name.c_str() + prefix.size(), nullptr, 10));
    if (daemon <= 0 || WithoutUnique(name) != ObserverSocketName(uid, daemon)) continue;
    if (ListenerOf(name, inodes, uid, daemon)) found.push_back(daemon);
  }
  return found;
}

std::vector<NodeSocket> FindNodeSockets(uid_t uid) {
  const std::string prefix = "weft-node-" + std::to_string(uid) + "-";
  std::vector<NodeSocket> found;
  for (const auto& [name, inodes] : FindListeners(prefix)) {
    NodeSocket socket{.name = name};
    const std::string rest = WithoutUnique(name).substr(prefix.size());
    char* end;
    socket.daemon = static_cast<pid_t>(std::strtol(rest.c_str(), &end, 10));
    if (*end != '-' || socket.daemon <= 0) continue;
    socket.cluster = end + 1;
    const size_t slash = socket.cluster.rfind('/');
    if (slash == std::string::npos) continue;
    socket.number = static_cast<uint32_t>(std::strtoul(socket.cluster.c_str() + slash + 1, nullptr, 10));
    socket.cluster.resize(slash);
    auto listener = ListenerOf(name, inodes, uid, socket.daemon);
    if (!listener) continue;
    socket.listener = *listener;
    found.push_back(std::move(socket));
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return std::pair(a.number, a.daemon) < std::pair(b.number, b.daemon); });
  return found;
}

bool NamesSameCluster(const std::string& one, const std::string& other) {
  const std::string list = "," + other + ",";
  for (const std::string& head : SplitAddresses(one)) {
    if (list.find("," + head + ",") != std::string::npos) return true;
  }
  return false;
}

Result<UniqueFd> ListenAbstract(const std::string& name) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return SystemError("cannot create a socket");
  auto [address, size] = Address(name);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 || ::listen(fd.get(), 8) != 0) {
    return SystemError("cannot listen as '" + name + "'");
  }
  return fd;
}

Result<UniqueFd> ListenAsDaemon(const std::string& name) {
  auto listener = ListenAbstract(name);
  if (listener) return listener;
  uint64_t unique = 0;
  FillWithEntropy({reinterpret_cast<uint8_t*>(&unique), sizeof unique});
  char text[20];
  std::snprintf(text, sizeof text, "%c%016" PRIx64, kUnique, unique);
  return ListenAbstract(name + text);
}

UniqueFd AcceptAbstract(int listener) {
  return UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Result<UniqueFd> ConnectAbstract(const std::string& name) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return SystemError("cannot create a socket");
  auto [address, size] = Address(name);
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    if (errno != EINTR) return SystemError("cannot connect to '" + name + "'");
  }
  if (Status status = SetNonblocking(fd.get(), false); !status) return status.error();
  return fd;
}

Result<UniqueFd> ConnectToDaemon(const std::string& name, uid_t uid, pid_t daemon, int64_t deadline_ns) {
  for (;;) {
    auto socket = ConnectAbstract(name);
    if (socket) {
      auto listener = PeerUid(socket->get());
      if (listener && *listener == uid) return socket;
    }
    // Another process has taken the name, or it is crowded.
    Result<UniqueFd> outcome = Error{
        ErrorKind::kGone, socket ? "another user listens in the place of the node daemon" : socket.error().message};
    for (const auto& [found, inodes] : FindListeners(name)) {
      if (found != name && !found.starts_with(name + kUnique)) continue;
      auto other = ConnectToListener(found, inodes, uid, daemon);
      if (other) return other;
      if (other.error().kind == ErrorKind::kTimeout) outcome = std::move(other);
    }
    if (outcome.error().kind != ErrorKind::kTimeout || NowNs() >= deadline_ns) return outcome;
    const timespec pause{0, kRetryNs};
    ::nanosleep(&pause, nullptr);
  }
}

Result<uid_t> PeerUid(int socket) {
  auto credentials = Credentials(socket);
  if (!credentials) return credentials.error();
  return credentials->uid;
}

Result<pid_t> PeerPid(int socket) {
  auto credentials = Credentials(socket);
  if (!credentials) return credentials.error();
  return credentials->pid;
}

}  // namespace weft::core
