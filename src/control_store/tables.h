// The records of the control store: the keys and values of each table, and their exact bytes.
//
// Written and read by the head. Every value begins with a version byte. The bytes come from a disk or a server that
// others may have written to: they are input. The caller leaves out records that do not decode, with a warning.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control_store/control_store.h"
#include "wire/ids.h"
#include "wire/messages.h"

namespace weft::core {

using Identity = std::array<uint8_t, 16>;                         // 128 random bits
using Labels = std::vector<std::pair<std::string, std::string>>;  // sorted by name

// One record, key "": the numbers that the cluster counts up and never uses again.
struct ClusterRecord {
  Identity id{};
  uint32_t next_node = 1;
  uint32_t next_job = 1;
  int64_t made_unix_ms = 0;
  uint32_t lease_ms = 0;  // the longest membership lease that a node may have
  bool operator==(const ClusterRecord&) const = default;
};

struct NodeRecord {
  enum State : uint8_t { kAlive = 1, kDead = 2 };
  uint32_t number = 0;  // the key
  Identity identity{};  // of this life of its daemon
  uint8_t state = kAlive;
  std::string name;
  std::string address;  // HOST:PORT of its daemon
  ResourceAmounts resources;
  Labels labels;
  int64_t joined_unix_ms = 0;
  std::string how;  // kDead: how it ended
  bool operator==(const NodeRecord&) const = default;
};

struct JobRecord {
  enum State : uint8_t { kRunning = 1, kEnded = 2 };
  uint32_t number = 0;  // the key
  ProcessId driver;
  uint8_t state = kRunning;
  std::string name;
  std::string name_space;
  int64_t started_unix_ms = 0;
  int64_t ended_unix_ms = 0;
  std::string how;
  std::string session;  // how its workers are started; opaque here
  bool operator==(const JobRecord&) const = default;
};

// What a head needs to go on with an actor that outlives the head before it, or to restart a detached one.
struct ActorRecord {
  ObjectId id;        // the key
  uint8_t state = 0;  // ActorState
  uint8_t detached = 0;
  uint32_t incarnation = 0;
  int32_t restarts_left = 0;  // -1: for ever
  uint32_t depth = 0;
  uint32_t job = 0;
  uint32_t node = 0;  // where its worker is
  ProcessId worker;
  ResourceAmounts to_place, to_hold;
  std::string name, name_space, class_name;
  std::string metadata;     // what a front end needs to make a handle
  std::string constructor;  // how to construct it again without its creator; opaque here
  bool operator==(const ActorRecord&) const = default;
};

struct NameRecord {
  std::string name_space, name;  // the key
  ObjectId actor;
  bool operator==(const NameRecord&) const = default;
};

struct KvRecord {
  std::string name_space, key;  // the key
  std::string value;
  bool operator==(const KvRecord&) const = default;
};

// Values of functions, jobs and actors are sealed: record_sealer.h.
std::string FunctionTableKey(FunctionKey key);
std::optional<FunctionKey> ParseFunctionTableKey(std::string_view key);

void Put(WriteBatch& batch, const ClusterRecord& record);
void Put(WriteBatch& batch, const NodeRecord& record);
void Put(WriteBatch& batch, const JobRecord& record);
void Put(WriteBatch& batch, const ActorRecord& record);
void Put(WriteBatch& batch, const NameRecord& record);
void Put(WriteBatch& batch, const KvRecord& record);
void DeleteNode(WriteBatch& batch, uint32_t number);
void DeleteJob(WriteBatch& batch, uint32_t number);
void DeleteActor(WriteBatch& batch, ObjectId id);
void DeleteName(WriteBatch& batch, std::string_view name_space, std::string_view name);
void DeleteKv(WriteBatch& batch, std::string_view name_space, std::string_view key);

// Nothing if the bytes are not a record of this kind, or have an unknown version.
template <class Record>
std::optional<Record> Decode(const StoredRecord& stored);
template <>
std::optional<ClusterRecord> Decode(const StoredRecord& stored);
template <>
std::optional<NodeRecord> Decode(const StoredRecord& stored);
template <>
std::optional<JobRecord> Decode(const StoredRecord& stored);
template <>
std::optional<ActorRecord> Decode(const StoredRecord& stored);
template <>
std::optional<NameRecord> Decode(const StoredRecord& stored);
template <>
std::optional<KvRecord> Decode(const StoredRecord& stored);

}  // namespace weft::core
