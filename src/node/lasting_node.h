// How a lasting node is started: what `weft start` was told.
#pragma once

#include <cstdint>
#include <string>

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
  TlsSettings tls;  // none: links are plain
  int parent = -1;  // pidfd of a process that the node ends with; -1: none
};

}  // namespace weft::core
