// Where the head keeps the control state of a cluster: small tables of binary keys and values, written through.
//
// The head holds every table in memory and reads the store once, when it becomes leader; afterwards it only commits.
// Used on one thread, the loop's: no call blocks, and each callback comes from the loop, in the order of the calls,
// never from inside the call itself.
//
// Leadership is fenced. AcquireLeadership gives a number that grows with each leader, the epoch; from then on the
// commits of every earlier leader fail with kFenced and change nothing, except one that was under way and is finished
// by the new leader before it reads. A lease that the leader renews says that it lives; it only decides when another
// may take over. A fenced leader learns that from its next commit or renewal.
//
// A commit is applied whole or not at all, and after all earlier ones. While the store is away, commits wait, up to
// a limit of time and to limits of number and bytes. A commit that failed with kAway is not applied once a later one
// has succeeded; before that, it may be.
//
// Does not know what the tables mean (tables.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace weft::core {

enum class StoreCode : uint8_t {
  kOk,
  kInvalid,   // the request or the configuration is wrong: correct it
  kFull,      // too much waits already: try later
  kFenced,    // a newer leader exists, or this store is no leader: stop acting as head
  kHeld,      // another leader lives: wait
  kAway,      // not reachable, for as long as a commit may wait
  kNoSpace,   // disk or memory of the store is full: make room; later commits are tried normally
  kReadOnly,  // the store does not accept writes
  kRefused,   // password, version, permissions or safety: correct the environment
  kCorrupt,   // the stored data are not what was written: restore a copy
  kClosed,    // Close came first
};
const char* StoreCodeName(StoreCode code);

class [[nodiscard]] StoreStatus {
 public:
  StoreStatus() = default;
  StoreStatus(StoreCode code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == StoreCode::kOk; }
  StoreCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StoreCode code_ = StoreCode::kOk;
  std::string message_;
};

template <class T>
class [[nodiscard]] StoreResult {
 public:
  StoreResult(T value) : value_(std::move(value)) {}              // NOLINT: a value is a result
  StoreResult(StoreStatus status) : status_(std::move(status)) {  // NOLINT: so is an error
    WEFT_CHECK(!status_.ok(), "a result without a value has an error");
  }
  bool ok() const { return value_.has_value(); }
  StoreCode code() const { return status_.code(); }
  const StoreStatus& status() const { return status_; }
  T& operator*() {
    WEFT_CHECK(ok(), "the value of a failed StoreResult");
    return *value_;
  }
  T* operator->() { return &**this; }

 private:
  std::optional<T> value_;
  StoreStatus status_;
};

// Numbers are stored: never used again for another meaning.
enum class Table : uint8_t {
  kCluster = 1,
  kNodes = 2,
  kJobs = 3,
  kFunctions = 4,
  kActors = 5,
  kNames = 6,
  kKv = 7,
  kPlacementGroups = 8,
};
inline constexpr uint8_t kTables = 8;
const char* TableName(Table table);
constexpr bool IsTable(uint64_t number) { return number >= 1 && number <= kTables; }

struct StoredRecord {
  Table table = Table::kCluster;
  std::string key, value;
  bool operator==(const StoredRecord&) const = default;
};
using Snapshot = std::vector<StoredRecord>;  // sorted by table and key

struct Write {
  Table table = Table::kCluster;
  bool erase = false;
  std::string key, value;
};
// Applied in order: the last write of a key counts.
struct WriteBatch {
  std::vector<Write> writes;
  void Put(Table table, std::string key, std::string value) {
    writes.push_back({table, false, std::move(key), std::move(value)});
  }
  void Delete(Table table, std::string key) { writes.push_back({table, true, std::move(key), {}}); }
  size_t bytes() const {
    size_t sum = 0;
    for (const Write& write : writes) sum += write.key.size() + write.value.size() + kWriteOverhead;
    return sum;
  }
  static constexpr size_t kWriteOverhead = 64;  // about the cost of a write besides its bytes
};

struct Candidate {
  // Stays the same when a head is restarted; a leader of the same name is replaced at once. The head that uses a name
  // makes sure, by a lock on its machine, that no other head with that name lives.
  std::string name;
  int64_t lease_ms = 10'000;
  // A standby waits until it has seen the lease free for so long. So a store that was away does not cost the leader its
  // place: the leader renews first.
  int64_t grace_ms = 0;
  bool force = false;  // take over from a leader that lives
};

struct Leadership {
  uint64_t epoch = 0;
  Snapshot snapshot;
  std::vector<std::string> warnings;  // for the administrator, about the store; a sentence each
};

struct StoreHealth {
  enum State : uint8_t { kIdle, kReady, kAway, kTroubled, kFenced, kClosed };
  State state = kIdle;  // kIdle: no leader yet. kTroubled: the last commit was refused, see message
  std::string message;
  int64_t since_ns = 0;  // when this state began, on the clock of NowNs()
  size_t queued_commits = 0;
  size_t queued_bytes = 0;
};

struct StoreLimits {
  size_t queued_commits = 20'000;
  size_t queued_bytes = size_t{64} << 20;
  size_t batch_bytes = size_t{32} << 20;  // of one commit
  size_t batch_writes = 100'000;          // Redis takes a million words at once, four for a write
  size_t key_bytes = size_t{64} << 10;
  // Longer than the minute that an outage of Redis may last unnoticed.
  int64_t outage_ms = 90'000;
};

class ControlStore {
 public:
  using Callback = std::function<void(StoreStatus)>;
  using LeadershipCallback = std::function<void(StoreResult<Leadership>)>;

  virtual ~ControlStore() = default;

  // One attempt; after kHeld and kAway it may be called again. No other call while one is under way.
  virtual void AcquireLeadership(Candidate candidate, LeadershipCallback callback) = 0;

  // If the result is not ok (kFull, kInvalid, kFenced, kClosed), the callback will not come.
  virtual StoreStatus Commit(WriteBatch batch, Callback callback) = 0;

  // Extends the lease; commits do as well. kFull: the one before is not answered yet, which says nothing new.
  virtual StoreStatus Renew(Callback callback) = 0;

  // Gives the lease up after the earlier commits, so that another may lead at once. For a normal end.
  virtual StoreStatus Resign(Callback callback) = 0;

  virtual StoreHealth health() const = 0;

  // Answers all waiting calls with kClosed, from inside. They may or may not have been applied. The lease stays.
  virtual void Close() = 0;
};

// What the implementations agree on: is the batch acceptable?
StoreStatus CheckBatch(const WriteBatch& batch, const StoreLimits& limits);

}  // namespace weft::core
