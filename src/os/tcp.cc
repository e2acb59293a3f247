#include "os/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#include <algorithm>

namespace weft::core {
namespace {

Error SystemError(const std::string& what, int code) {
  return Error{code == ECONNREFUSED ? ErrorKind::kGone : ErrorKind::kUnavailable, what + ": " + strerror(code)};
}

void SetOption(int socket, int level, int option, int value) {
  // A socket that does not know an option works without it.
  (void)::setsockopt(socket, level, option, &value, sizeof value);
}

void SetStreamOptions(int socket) {
  SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  // Five silent seconds, then a probe each second: a machine that lost its power is noticed in about ten.
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, 5);
  // TCP_USER_TIMEOUT is left alone: it would also end a connection whose receiver is alive but has not read for that
  // long, such as a process that stands in a debugger.
}

using NameCall = int (*)(int, sockaddr*, socklen_t*);

Result<TcpAddress> NameOf(int socket, NameCall call, const char* what) {
  TcpAddress address;
  address.size = sizeof address.storage;
  if (call(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) return SystemError(what, errno);
  return address;
}

}  // namespace

std::string TcpAddress::host() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr, text, sizeof text);
  } else if (storage.ss_family == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
    // An IPv4 peer of a listener for both kinds.
    if (IN6_IS_ADDR_V4MAPPED(&address)) {
      ::inet_ntop(AF_INET, address.s6_addr + 12, text, sizeof text);
    } else {
      ::inet_ntop(AF_INET6, &address, text, sizeof text);
    }
  }
  return text;
}

uint16_t TcpAddress::port() const {
  if (storage.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  if (storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return 0;
}

std::string TcpAddress::ToText() const { return HostPortText(host(), port()); }

std::string HostPortText(const std::string& host, uint16_t port) {
  const std::string port_text = std::to_string(port);
  return host.find(':') == std::string::npos ? host + ":" + port_text : "[" + host + "]:" + port_text;
}

bool TcpAddress::is_loopback() const {
  const std::string name = host();
  return name == "::1" || name.rfind("127.", 0) == 0;
}

Result<std::pair<std::string, uint16_t>> ParseHostPort(const std::string& text) {
  const Error bad{ErrorKind::kInvalid,
                  "'" + text + "' is no address: write HOST:PORT, such as 10.0.0.1:6380 or [::1]:6380"};
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size() || text.size() - colon > 6) return bad;
  std::string host = text.substr(0, colon);
  if (host.front() == '[') {
    if (host.size() < 3 || host.back() != ']') return bad;
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":]") != std::string::npos) {
    return bad;
  }
  uint32_t port = 0;
  for (size_t i = colon + 1; i < text.size(); ++i) {
    if (text[i] < '0' || text[i] > '9') return bad;
    port = port * 10 + static_cast<uint32_t>(text[i] - '0');
  }
  if (port == 0 || port > 65535 || host.find('\0') != std::string::npos) return bad;
  return std::pair(host, static_cast<uint16_t>(port));
}

Result<std::vector<TcpAddress>> ResolveTcp(const std::string& host, uint16_t port) {
  if (host.find('\0') != std::string::npos || host.size() > 255) {
    return Error{ErrorKind::kInvalid,
                 "this is no name of a host: it has " + std::to_string(host.size()) + " characters, or NUL among them"};
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (host.empty() ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    const std::string why = code == EAI_SYSTEM ? strerror(errno) : gai_strerror(code);
    return Error{ErrorKind::kUnavailable, "cannot find the address of host '" + host + "': " + why};
  }
  std::vector<TcpAddress> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    TcpAddress address;
    memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.size = each->ai_addrlen;
    addresses.push_back(address);
  }
  ::freeaddrinfo(found);
  if (addresses.empty()) return Error{ErrorKind::kUnavailable, "host '" + host + "' has no IP address"};
  return addresses;
}

Result<UniqueFd> ListenTcp(const std::string& host, uint16_t port) {
  auto addresses = ResolveTcp(host, port);
  if (!addresses) return addresses.error();
  // Every address of this machine: the IPv6 one serves both kinds, if the machine has IPv6.
  if (host.empty()) {
    std::stable_sort(addresses->begin(), addresses->end(), [](const TcpAddress& a, const TcpAddress& b) {
      return a.storage.ss_family == AF_INET6 && b.storage.ss_family != AF_INET6;
    });
  }
  Error last{ErrorKind::kUnavailable, ""};
  for (const TcpAddress& address : *addresses) {
    UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const std::string what = "cannot listen at " + address.ToText();
    if (!fd) {
      last = SystemError(what, errno);
      continue;
    }
    // A daemon that is started again finds its port while old connections linger.
    SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (address.storage.ss_family == AF_INET6) SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, host.empty() ? 0 : 1);
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 ||
        ::listen(fd.get(), 1024) != 0) {
      const int code = errno;
      last = SystemError(what, code);
      if (code == EADDRNOTAVAIL) last.message += "; this machine has no such address";
      if (code == EADDRINUSE) last.message += "; another program listens there, or another head: choose another port";
      continue;
    }
    return fd;
  }
  return last;
}

UniqueFd AcceptTcp(int listener, int* error) {
  for (;;) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    *error = fd ? 0 : errno;
    if (!fd && errno == EINTR) continue;
    if (fd) SetStreamOptions(fd.get());
    return fd;
  }
}

Result<UniqueFd> BeginConnectTcp(const TcpAddress& address) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return SystemError("cannot connect to " + address.ToText(), errno);
  SetStreamOptions(fd.get());
  // EINTR: the attempt goes on by itself.
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 &&
      errno != EINPROGRESS && errno != EINTR) {
    return SystemError("cannot connect to " + address.ToText(), errno);
  }
  return fd;
}

int ConnectOutcome(int socket) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

Result<TcpAddress> LocalTcpAddress(int socket) {
  return NameOf(
      socket, [](int fd, sockaddr* out, socklen_t* size) { return ::getsockname(fd, out, size); },
      "cannot ask for a socket's own address");
}

Result<TcpAddress> PeerTcpAddress(int socket) {
  return NameOf(
      socket, [](int fd, sockaddr* out, socklen_t* size) { return ::getpeername(fd, out, size); },
      "cannot ask who is at the other end of a connection");
}

Result<std::string> LocalHostTowards(const TcpAddress& address) {
  // A datagram socket that is connected has chosen its way, and that is all it does.
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0) {
    return SystemError("there is no way to " + address.ToText(), errno);
  }
  auto local = LocalTcpAddress(fd.get());
  if (!local) return local.error();
  return local->host();
}

std::vector<std::string> SplitAddresses(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0;;) {
    const size_t comma = text.find(',', at);
    parts.push_back(text.substr(at, comma == std::string::npos ? comma : comma - at));
    if (comma == std::string::npos) return parts;
    at = comma + 1;
  }
}

}  // namespace weft::core
