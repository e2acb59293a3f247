// The control store of a private session: nothing outlives it, so nothing is kept. It accepts every commit.
//
// What the tables would hold is in the head's memory already; a store that nobody reads again need not copy it. With a
// MemoryTables that several stores share (tests), it is a real store: fenced, and read by the next leader.
#pragma once

#include <map>
#include <memory>

#include "control_store/callback_queue.h"
#include "control_store/control_store.h"

namespace weft::core {

struct MemoryTables {
  uint64_t epoch = 0;
  bool led = false;
  std::string leader;
  int64_t lease_until_ns = 0;
  std::map<std::pair<Table, std::string>, std::string> records;
};

// `tables` may be null: nothing is kept.
Result<std::unique_ptr<ControlStore>> MakeMemoryStore(EventLoop& loop, std::shared_ptr<MemoryTables> tables = nullptr,
                                                      StoreLimits limits = {});

}  // namespace weft::core
