#include "os/abstract_socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <utility>

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
