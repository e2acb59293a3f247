#include "os/abstract_socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "os/tcp.h"

namespace weft::core {
namespace {

Error SystemError(const std::string& what) {
  const int code = errno;
  return Error{code == ECONNREFUSED || code == ENOENT ? ErrorKind::kGone : ErrorKind::kUnavailable,
               what + ": " + strerror(code)};
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
    return SystemError("cannot ask who is at the other end of a socket");
  }
  return credentials;
}

}  // namespace

std::string ObserverSocketName(uid_t uid, pid_t daemon) {
  return "weft-session-" + std::to_string(uid) + "-" + std::to_string(daemon);
}

std::string NodeSocketName(uid_t uid, pid_t daemon, const std::string& cluster, uint32_t number) {
  return "weft-node-" + std::to_string(uid) + "-" + std::to_string(daemon) + "-" + cluster + "/" +
         std::to_string(number);
}

std::vector<NodeSocket> FindNodeSockets(uid_t uid) {
  // A line ends with the name, an @ for its leading NUL; sockets that were accepted carry it too.
  const std::string prefix = " @weft-node-" + std::to_string(uid) + "-";
  std::vector<NodeSocket> found;
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(prefix);
    if (at == std::string::npos) continue;
    NodeSocket socket{.name = line.substr(at + 2)};
    const std::string rest = line.substr(at + prefix.size());
    char* end;
    socket.daemon = static_cast<pid_t>(std::strtol(rest.c_str(), &end, 10));
    if (*end != '-' || socket.daemon <= 0) continue;
    socket.cluster = end + 1;
    const size_t slash = socket.cluster.rfind('/');
    if (slash == std::string::npos) continue;
    socket.number = static_cast<uint32_t>(std::strtoul(socket.cluster.c_str() + slash + 1, nullptr, 10));
    socket.cluster.resize(slash);
    if (std::none_of(found.begin(), found.end(), [&](const auto& other) { return other.name == socket.name; })) {
      found.push_back(std::move(socket));
    }
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

UniqueFd AcceptAbstract(int listener) {
  return UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Result<UniqueFd> ConnectAbstract(const std::string& name) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return SystemError("cannot create a socket");
  auto [address, size] = Address(name);
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    if (errno != EINTR) return SystemError("cannot connect to '" + name + "'");
  }
  return fd;
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
