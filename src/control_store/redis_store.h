// The control store in one or several Redis servers (6 or newer).
//
// Tables are hashes under weft:{CLUSTER}:. Every write is a script that checks the epoch first, so that an old leader
// changes nothing, and that it follows the write that this leader made last, so that neither a repeated nor a late one
// is applied twice or out of order. With several servers records are spread by a hash of table and key; a group of
// commits that concerns more than one is first written to a journal on the first server, and finished from there by the
// next leader if this one dies in between. The lease lives on the first server and expires by its clock.
//
// A Redis that was restarted may have lost its last writes, depending on how it is configured. The scripts notice, and
// the leader writes that server's tables anew: for that it keeps a copy of everything it has committed.
//
// docs/control_store.md has keys, formats and what an administrator should know. A BlockingStore: the calls come on
// WorkerStore's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "control_store/blocking_store.h"
#include "control_store/redis_address.h"

namespace weft::core {

struct RedisStoreOptions {
  std::vector<RedisAddress> servers;  // the same ones in the same order for every head of the cluster
  std::string cluster;                // tells clusters apart that share a server: letters, digits, '-', '_'
  bool allow_open = false;            // a server elsewhere that asks nobody for a password
  int64_t connect_timeout_ms = 3'000;
  int64_t silence_timeout_ms = 5'000;  // a server that says nothing for so long is away
};

StoreResult<std::unique_ptr<BlockingStore>> MakeRedisStore(RedisStoreOptions options);

}  // namespace weft::core
