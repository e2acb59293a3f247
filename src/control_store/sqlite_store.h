// The embedded control store of a head: one SQLite file.
//
// Write-ahead log, one fsync per group of commits. File 0600, in a folder of our own (made 0700 if it is missing).
// Which head leads is decided by three things: a lock on `<file>.lock`, which the kernel drops when its holder dies,
// so that a restarted head leads at once; a lease on the machine's own clock, for a holder that lives but hangs; and
// the epoch in the file, which every transaction checks. The file must lie on a local disk.
//
// A BlockingStore: the calls come on WorkerStore's thread.
#pragma once

#include <memory>
#include <string>

#include "control_store/blocking_store.h"

namespace weft::core {

struct SqliteStoreOptions {
  std::string path;
  uint64_t max_bytes = 0;  // of the file; beyond that commits fail with kNoSpace. 0: no limit but the disk
};

std::unique_ptr<BlockingStore> MakeSqliteStore(SqliteStoreOptions options);

}  // namespace weft::core
