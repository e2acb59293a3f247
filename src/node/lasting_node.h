// How a lasting node is started: what `weft start` was told.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transport/tls.h"
#include "wire/messages.h"

namespace weft::core {

struct LastingNodeOptions {
  ResourceAmounts resources;        // "CPU" included
  uint64_t object_store_bytes = 0;  // 0: as for a private session
  std::string name;                 // for people
  NodeLabels labels;
  std::string host = "127.0.0.1";  // where it listens for other nodes
  bool head = false;
  uint16_t port = 0;         // of the head; 0: any
  std::string head_address;  // of a node that joins: "host:port"
  std::string token;
  TlsSettings tls;             // none: links are plain
  std::string program_folder;  // where copies of drivers' programs are kept (ProgramCache); empty: nowhere
  bool returns = false;        // it was a node before and comes back, for which it waits as long as the head wants
  int parent = -1;             // pidfd of a process that the node ends with; -1: none

  // Of a head: where the control state lies. Empty: nowhere, it ends with this process.
  std::string state_folder;
  std::vector<std::string> redis;      // URLs; none: SQLite in the state folder
  std::string redis_password;          // for those whose URL has none
  uint32_t own_redis = 0;              // so many servers of our own instead
  std::string redis_cluster = "weft";  // tells clusters apart that share a server
  bool allow_open_redis = false;
  int64_t node_timeout_ns = 10'000'000'000;  // a node that is silent for so long is known to be dead by then
  bool standby = false;                      // wait until the head that leads is gone
};

// A little less than that: others hear of it after it was written down, and who has a stream with a worker there gives
// its last bytes half a second.
inline int64_t NodeLeaseNs(const LastingNodeOptions& options) { return options.node_timeout_ns - 700'000'000; }

}  // namespace weft::core
