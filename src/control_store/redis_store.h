// The control store in one or several Redis servers (6 or newer).
//
// Tables are hashes under weft:{CLUSTER}:. Every write is a script that first checks the epoch, so that an old leader
// changes nothing, and then that the write follows this leader's last one, so that no repeated or late write is applied
// twice or out of order. With several servers, a hash of table and key chooses the server of a record. A group of
// commits for more than one server is first written to a journal on the first server; if the leader dies in between,
// the next one finishes it from there. The lease lives on the first server and expires by its clock.
//
// A restarted Redis may have lost its last writes, depending on its configuration. The scripts notice, and the leader
// writes that server's tables again: for that it keeps a copy of everything it has committed.
//
// docs/control_store.md has keys, formats and notes for administrators. A BlockingStore: the calls come on
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
  bool allow_open = false;            // accept a remote server without a password
  int64_t connect_timeout_ms = 3'000;
  int64_t silence_timeout_ms = 5'000;  // a server that says nothing for so long is away
};

StoreResult<std::unique_ptr<BlockingStore>> MakeRedisStore(RedisStoreOptions options);

}  // namespace weft::core
