#include "control_store/control_store.h"

namespace weft::core {

const char* StoreCodeName(StoreCode code) {
  switch (code) {
    case StoreCode::kOk:
      return "ok";
    case StoreCode::kInvalid:
      return "invalid";
    case StoreCode::kFull:
      return "full";
    case StoreCode::kFenced:
      return "fenced";
    case StoreCode::kHeld:
      return "held";
    case StoreCode::kAway:
      return "away";
    case StoreCode::kNoSpace:
      return "no space";
    case StoreCode::kReadOnly:
      return "read only";
    case StoreCode::kRefused:
      return "refused";
    case StoreCode::kCorrupt:
      return "corrupt";
    case StoreCode::kClosed:
      return "closed";
  }
  return "unknown";
}

const char* TableName(Table table) {
  switch (table) {
    case Table::kCluster:
      return "cluster";
    case Table::kNodes:
      return "nodes";
    case Table::kJobs:
      return "jobs";
    case Table::kFunctions:
      return "functions";
    case Table::kActors:
      return "actors";
    case Table::kNames:
      return "names";
    case Table::kKv:
      return "kv";
    case Table::kPlacementGroups:
      return "placement_groups";
  }
  return "unknown";
}

StoreStatus CheckBatch(const WriteBatch& batch, const StoreLimits& limits) {
  if (batch.writes.empty()) return {StoreCode::kInvalid, "a commit without writes"};
  if (batch.writes.size() > limits.batch_writes) {
    return {StoreCode::kInvalid, "a commit of " + std::to_string(batch.writes.size()) + " writes; at most " +
                                     std::to_string(limits.batch_writes) + " are taken at once"};
  }
  for (const Write& write : batch.writes) {
    if (!IsTable(static_cast<uint8_t>(write.table))) return {StoreCode::kInvalid, "a write to an unknown table"};
    if (write.key.size() > limits.key_bytes) {
      return {StoreCode::kInvalid, "a key of " + std::to_string(write.key.size()) + " bytes in table " +
                                       TableName(write.table) + "; at most " + std::to_string(limits.key_bytes)};
    }
  }
  if (size_t bytes = batch.bytes(); bytes > limits.batch_bytes) {
    return {StoreCode::kInvalid, "a commit of " + std::to_string(bytes) + " bytes to the control store; at most " +
                                     std::to_string(limits.batch_bytes) + " are taken at once"};
  }
  return {};
}

}  // namespace weft::core
