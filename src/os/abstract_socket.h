// Unix stream sockets with an abstract name: nothing on disk, and the name is free again when its listener is gone,
// however it ended. Every process on the machine (in the same network namespace) can connect, so both sides ask the
// kernel which user the other is. Every process can also take any name, so a name on which another user listens counts
// as free.
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

// The name under which the daemon of a cluster node listens for drivers of its user; `cluster` is the address of
// the cluster's head, `number` the node's.
std::string NodeSocketName(uid_t uid, pid_t daemon, const std::string& cluster, uint32_t number);

// The user's node daemons, by pid, that listen for observers now in this network namespace, of private sessions and of
// cluster nodes. Does not wait for any of them, since they may be stopped.
std::vector<pid_t> FindObserverSockets(uid_t uid);

struct NodeSocket {
  std::string name;
  pid_t daemon = 0;    // as the name says
  pid_t listener = 0;  // as the kernel says: the same, or 0 in another pid namespace
  std::string cluster;
  uint32_t number = 0;
};
// The same for daemons that listen for drivers, by number: a head comes first in its cluster.
std::vector<NodeSocket> FindNodeSockets(uid_t uid);

// Whether two addresses name the same cluster. A cluster with a standby is known by the addresses of both heads,
// separated by a comma; its nodes by the list that they were started with, and each head by its own.
bool NamesSameCluster(const std::string& one, const std::string& other);

Result<UniqueFd> ListenAbstract(const std::string& name);  // non-blocking
// The same under a daemon's name. If the name is taken, it uses one that begins with it and cannot be guessed, which
// the functions here find as well.
Result<UniqueFd> ListenAsDaemon(const std::string& name);
UniqueFd AcceptAbstract(int listener);  // non-blocking; invalid if there is no connection
// Does not wait: kTimeout if the listener has left so many unaccepted that there is no room for one more.
Result<UniqueFd> ConnectAbstract(const std::string& name);
// Connects to the daemon that listens under this name. kGone if no process or another user does; kTimeout if it is the
// user's, but has no room until the deadline.
Result<UniqueFd> ConnectToDaemon(const std::string& name, uid_t uid, pid_t daemon, int64_t deadline_ns);

// The user that runs the other side of a connected socket (for a client: when that side began to listen).
Result<uid_t> PeerUid(int socket);
// The process that made the other side: of a socket pair, or by connecting or listening.
Result<pid_t> PeerPid(int socket);

}  // namespace weft::core
