#include "control_store/tables.h"

#include "base/bytes.h"

namespace weft::core {
namespace {

constexpr uint8_t kVersion = 1;  // of every record; a change of one gets a number of its own

// Numbers in keys are big-endian, so that tables are sorted by them.
template <class T>
void KeyNumber(std::string& key, T number) {
  for (int shift = 8 * (static_cast<int>(sizeof number) - 1); shift >= 0; shift -= 8) {
    key += static_cast<char>(number >> shift & 0xff);
  }
}
template <class T>
bool TakeNumber(std::string_view& key, T& number) {
  if (key.size() < sizeof number) return false;
  number = 0;
  for (size_t i = 0; i < sizeof number; ++i) number = static_cast<T>(number << 8 | static_cast<uint8_t>(key[i]));
  key.remove_prefix(sizeof number);
  return true;
}
std::string NumberKey(uint32_t number) {
  std::string key;
  KeyNumber(key, number);
  return key;
}
bool ParseNumberKey(std::string_view key, uint32_t& number) { return TakeNumber(key, number) && key.empty(); }

std::string ActorKey(ObjectId id) {
  std::string key;
  KeyNumber(key, id.owner.value);
  KeyNumber(key, id.index);
  return key;
}

// Two texts, either of any bytes: the length of the first, then both.
std::string PairKey(std::string_view first, std::string_view second) {
  std::string key = NumberKey(static_cast<uint32_t>(first.size()));
  key += first;
  key += second;
  return key;
}
bool ParsePairKey(std::string_view key, std::string& first, std::string& second) {
  uint32_t size = 0;
  if (!TakeNumber(key, size) || key.size() < size) return false;
  first = key.substr(0, size);
  second = key.substr(size);
  return true;
}

void WriteResources(ByteWriter& out, const ResourceAmounts& resources) {
  out.Fixed(static_cast<uint32_t>(resources.size()));
  for (const auto& [name, amount] : resources) {
    out.Bytes(name);
    out.Fixed(amount);
  }
}
bool ReadResources(ByteReader& in, ResourceAmounts& resources) {
  const auto count = in.Fixed<uint32_t>();
  if (count > in.remaining() / 12) return false;  // an entry has at least so many bytes
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    std::string name(in.Bytes());
    const auto amount = in.Fixed<int64_t>();
    // Sorted, no zeros, nothing negative: what the schedulers rely on.
    if (amount <= 0 || (!resources.empty() && resources.back().first >= name)) return false;
    resources.emplace_back(std::move(name), amount);
  }
  return in.ok();
}

void WriteLabels(ByteWriter& out, const Labels& labels) {
  out.Fixed(static_cast<uint32_t>(labels.size()));
  for (const auto& [name, value] : labels) {
    out.Bytes(name);
    out.Bytes(value);
  }
}
bool ReadLabels(ByteReader& in, Labels& labels) {
  const auto count = in.Fixed<uint32_t>();
  if (count > in.remaining() / 8) return false;
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    std::string name(in.Bytes());
    std::string value(in.Bytes());
    if (!labels.empty() && labels.back().first >= name) return false;
    labels.emplace_back(std::move(name), std::move(value));
  }
  return in.ok();
}

ByteWriter Begin() {
  ByteWriter out;
  out.Fixed(kVersion);
  return out;
}
bool Begins(ByteReader& in) { return in.Fixed<uint8_t>() == kVersion; }
bool Ends(const ByteReader& in) { return in.ok() && in.AtEnd(); }

}  // namespace

std::string FunctionTableKey(FunctionKey key) {
  std::string text;
  KeyNumber(text, key.high);
  KeyNumber(text, key.low);
  return text;
}
std::optional<FunctionKey> ParseFunctionTableKey(std::string_view text) {
  FunctionKey key;
  if (!TakeNumber(text, key.high) || !TakeNumber(text, key.low) || !text.empty()) return std::nullopt;
  return key;
}

void Put(WriteBatch& batch, const ClusterRecord& record) {
  ByteWriter out = Begin();
  out.Fixed(record.id);
  out.Fixed(record.next_node);
  out.Fixed(record.next_job);
  out.Fixed(record.made_unix_ms);
  out.Fixed(record.lease_ms);
  batch.Put(Table::kCluster, "", out.Take());
}
template <>
std::optional<ClusterRecord> Decode(const StoredRecord& stored) {
  ByteReader in(stored.value);
  ClusterRecord record;
  if (stored.table != Table::kCluster || !stored.key.empty() || !Begins(in)) return std::nullopt;
  record.id = in.Fixed<Identity>();
  record.next_node = in.Fixed<uint32_t>();
  record.next_job = in.Fixed<uint32_t>();
  record.made_unix_ms = in.Fixed<int64_t>();
  record.lease_ms = in.Fixed<uint32_t>();
  if (!Ends(in)) return std::nullopt;
  return record;
}

void Put(WriteBatch& batch, const NodeRecord& record) {
  ByteWriter out = Begin();
  out.Fixed(record.identity);
  out.Fixed(record.state);
  out.Bytes(record.name);
  out.Bytes(record.address);
  WriteResources(out, record.resources);
  WriteLabels(out, record.labels);
  out.Fixed(record.joined_unix_ms);
  out.Bytes(record.how);
  batch.Put(Table::kNodes, NumberKey(record.number), out.Take());
}
template <>
std::optional<NodeRecord> Decode(const StoredRecord& stored) {
  ByteReader in(stored.value);
  NodeRecord record;
  if (stored.table != Table::kNodes || !ParseNumberKey(stored.key, record.number) || !Begins(in)) return std::nullopt;
  record.identity = in.Fixed<Identity>();
  record.state = in.Fixed<uint8_t>();
  record.name = in.Bytes();
  record.address = in.Bytes();
  if (!ReadResources(in, record.resources) || !ReadLabels(in, record.labels)) return std::nullopt;
  record.joined_unix_ms = in.Fixed<int64_t>();
  record.how = in.Bytes();
  if (!Ends(in) || record.state < NodeRecord::kAlive || record.state > NodeRecord::kDead) return std::nullopt;
  return record;
}
void DeleteNode(WriteBatch& batch, uint32_t number) { batch.Delete(Table::kNodes, NumberKey(number)); }

void Put(WriteBatch& batch, const JobRecord& record) {
  ByteWriter out = Begin();
  out.Fixed(record.driver);
  out.Fixed(record.state);
  out.Bytes(record.name);
  out.Bytes(record.name_space);
  out.Fixed(record.started_unix_ms);
  out.Fixed(record.ended_unix_ms);
  out.Bytes(record.how);
  out.Bytes(record.session);
  batch.Put(Table::kJobs, NumberKey(record.number), out.Take());
}
template <>
std::optional<JobRecord> Decode(const StoredRecord& stored) {
  ByteReader in(stored.value);
  JobRecord record;
  if (stored.table != Table::kJobs || !ParseNumberKey(stored.key, record.number) || !Begins(in)) return std::nullopt;
  record.driver = in.Fixed<ProcessId>();
  record.state = in.Fixed<uint8_t>();
  record.name = in.Bytes();
  record.name_space = in.Bytes();
  record.started_unix_ms = in.Fixed<int64_t>();
  record.ended_unix_ms = in.Fixed<int64_t>();
  record.how = in.Bytes();
  record.session = in.Bytes();
  if (!Ends(in) || record.state < JobRecord::kRunning || record.state > JobRecord::kEnded) return std::nullopt;
  return record;
}
void DeleteJob(WriteBatch& batch, uint32_t number) { batch.Delete(Table::kJobs, NumberKey(number)); }

void Put(WriteBatch& batch, const ActorRecord& record) {
  ByteWriter out = Begin();
  out.Fixed(record.state);
  out.Fixed(record.detached);
  out.Fixed(record.incarnation);
  out.Fixed(record.restarts_left);
  out.Fixed(record.depth);
  out.Fixed(record.job);
  out.Fixed(record.node);
  out.Fixed(record.worker);
  WriteResources(out, record.to_place);
  WriteResources(out, record.to_hold);
  out.Bytes(record.name);
  out.Bytes(record.name_space);
  out.Bytes(record.class_name);
  out.Bytes(record.metadata);
  out.Bytes(record.constructor);
  batch.Put(Table::kActors, ActorKey(record.id), out.Take());
}
template <>
std::optional<ActorRecord> Decode(const StoredRecord& stored) {
  ByteReader in(stored.value);
  ActorRecord record;
  std::string_view key = stored.key;
  if (stored.table != Table::kActors || !TakeNumber(key, record.id.owner.value) || !TakeNumber(key, record.id.index) ||
      !key.empty() || !Begins(in)) {
    return std::nullopt;
  }
  record.state = in.Fixed<uint8_t>();
  record.detached = in.Fixed<uint8_t>();
  record.incarnation = in.Fixed<uint32_t>();
  record.restarts_left = in.Fixed<int32_t>();
  record.depth = in.Fixed<uint32_t>();
  record.job = in.Fixed<uint32_t>();
  record.node = in.Fixed<uint32_t>();
  record.worker = in.Fixed<ProcessId>();
  if (!ReadResources(in, record.to_place) || !ReadResources(in, record.to_hold)) return std::nullopt;
  record.name = in.Bytes();
  record.name_space = in.Bytes();
  record.class_name = in.Bytes();
  record.metadata = in.Bytes();
  record.constructor = in.Bytes();
  if (!Ends(in) || record.detached > 1 || record.restarts_left < -1) return std::nullopt;
  return record;
}
void DeleteActor(WriteBatch& batch, ObjectId id) { batch.Delete(Table::kActors, ActorKey(id)); }

void Put(WriteBatch& batch, const NameRecord& record) {
  ByteWriter out = Begin();
  out.Fixed(record.actor);
  batch.Put(Table::kNames, PairKey(record.name_space, record.name), out.Take());
}
template <>
std::optional<NameRecord> Decode(const StoredRecord& stored) {
  ByteReader in(stored.value);
  NameRecord record;
  if (stored.table != Table::kNames || !ParsePairKey(stored.key, record.name_space, record.name) || !Begins(in)) {
    return std::nullopt;
  }
  record.actor = in.Fixed<ObjectId>();
  if (!Ends(in)) return std::nullopt;
  return record;
}
void DeleteName(WriteBatch& batch, std::string_view name_space, std::string_view name) {
  batch.Delete(Table::kNames, PairKey(name_space, name));
}

void Put(WriteBatch& batch, const KvRecord& record) {
  ByteWriter out = Begin();
  out.Raw(record.value);
  batch.Put(Table::kKv, PairKey(record.name_space, record.key), out.Take());
}
template <>
std::optional<KvRecord> Decode(const StoredRecord& stored) {
  ByteReader in(stored.value);
  KvRecord record;
  if (stored.table != Table::kKv || !ParsePairKey(stored.key, record.name_space, record.key) || !Begins(in)) {
    return std::nullopt;
  }
  record.value = in.Raw(in.remaining());
  return record;
}
void DeleteKv(WriteBatch& batch, std::string_view name_space, std::string_view key) {
  batch.Delete(Table::kKv, PairKey(name_space, key));
}

}  // namespace weft::core
