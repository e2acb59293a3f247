// TCP sockets: names and addresses, listening, accepting, connecting. Never blocks, except that ResolveTcp may ask a
// name server for a name that is no address.
//
// Used for links between node daemons. All sockets are close-on-exec, non-blocking, without Nagle's delay, and while
// they are idle notice within about ten seconds that a machine has vanished (keepalive). While bytes are unacknowledged
// the kernel goes on sending for a quarter of an hour: code that must know sooner listens for signs of life, as Link
// does.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "os/fd.h"

namespace weft::core {

struct TcpAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  std::string host() const;  // "127.0.0.1", "::1"
  uint16_t port() const;
  std::string ToText() const;  // "127.0.0.1:6380", "[::1]:6380"
  bool is_loopback() const;
};

// "host:port", "127.0.0.1:6380" or "[::1]:6380".
Result<std::pair<std::string, uint16_t>> ParseHostPort(const std::string& text);

// All addresses of a host, in the order in which they should be tried. Literals cost nothing; a name may block as
// long as the name servers take, so a loop resolves only at start-up. An empty host is every address of this machine.
Result<std::vector<TcpAddress>> ResolveTcp(const std::string& host, uint16_t port);

// Port 0 picks a free one: LocalTcpAddress says which.
Result<UniqueFd> ListenTcp(const std::string& host, uint16_t port);

// An invalid descriptor and errno in *error if there is none to accept now (EAGAIN), it was gone already
// (ECONNABORTED and its like), or descriptors have run out (EMFILE, ENFILE).
UniqueFd AcceptTcp(int listener, int* error);

// Begins to connect. Once the socket is writable, ConnectOutcome says how it went: 0 or an errno.
Result<UniqueFd> BeginConnectTcp(const TcpAddress& address);
int ConnectOutcome(int socket);

Result<TcpAddress> LocalTcpAddress(int socket);
Result<TcpAddress> PeerTcpAddress(int socket);

// "10.0.0.1:6380", "[::1]:6380": what ParseHostPort reads.
std::string HostPortText(const std::string& host, uint16_t port);

// The local address that packets to the other address come from, if there is a route. Sends nothing.
Result<std::string> LocalHostTowards(const TcpAddress& address);

// The parts between commas; at least one, which may be empty.
std::vector<std::string> SplitAddresses(const std::string& text);

}  // namespace weft::core
