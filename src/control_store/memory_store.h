// A control store without storage: nothing outlives the head, so nothing is kept. It accepts every commit.
//
// The head has the contents of the tables in its memory already, and a store that is not read again need not copy them.
// With a MemoryTables that several stores share (tests), it is a real store: fenced, and read by the next leader.
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
