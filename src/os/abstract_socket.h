// Unix stream sockets with an abstract name: nothing on disk, and the name is free again when its listener is gone,
// however it went. Anybody on the machine (in the same network namespace) can connect, so both sides ask the kernel who
// the other is.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "os/fd.h"

namespace weft::core {

// The name under which the node daemon with this pid listens for observers.
std::string ObserverSocketName(uid_t uid, pid_t daemon);

// The name under which the node daemon of a lasting node listens for drivers of its user; `cluster` is the address of
// the cluster's head, `number` the node's.
std::string NodeSocketName(uid_t uid, pid_t daemon, const std::string& cluster, uint32_t number);

struct NodeSocket {
  std::string name;
  pid_t daemon = 0;
  std::string cluster;
  uint32_t number = 0;
};
// Those of the user that are there now, in this network namespace; by number: a head comes first in its cluster.
std::vector<NodeSocket> FindNodeSockets(uid_t uid);

// Whether two addresses of clusters name the same one. A cluster with a standby is known by the addresses of both
// heads, with a comma between; its nodes by the list that they were started with, and each head by its own.
bool NamesSameCluster(const std::string& one, const std::string& other);

Result<UniqueFd> ListenAbstract(const std::string& name);  // non-blocking
UniqueFd AcceptAbstract(int listener);                     // non-blocking; invalid if nobody is there
Result<UniqueFd> ConnectAbstract(const std::string& name);

// Of a connected socket: the user that runs the other side (for a client: at the time when it began to listen).
Result<uid_t> PeerUid(int socket);
// The process that made the other side of a socket pair, or connected or listened.
Result<pid_t> PeerPid(int socket);

}  // namespace weft::core
