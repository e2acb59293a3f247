// What every control store promises, tried on each of them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>

#include <filesystem>

#include "base/clock.h"
#include "control_store/memory_store.h"
#include "control_store/redis_server.h"
#include "control_store/redis_store.h"
#include "control_store/simulated_store.h"
#include "control_store/sqlite_store.h"
#include "control_store/store_test_support.h"
#include "control_store/worker_store.h"

namespace weft::core {
namespace {

// A store's surroundings: where its bytes are, and how that place fails.
class World {
 public:
  virtual ~World() = default;
  virtual std::unique_ptr<ControlStore> Open(StoreLimits limits) = 0;
  virtual void Turn() { loop.Wait(NowNs() + 20'000'000); }
  virtual bool CanBeAway() const { return false; }
  virtual void GoAway() {}
  virtual void Return() {}
  virtual bool CanCrash() const { return false; }
  virtual void CrashAndRestart() {}

  EventLoop loop = std::move(*EventLoop::Create());
};

class MemoryWorld : public World {
 public:
  std::unique_ptr<ControlStore> Open(StoreLimits limits) override {
    return std::move(*MakeMemoryStore(loop, tables_, limits));
  }

 private:
  std::shared_ptr<MemoryTables> tables_ = std::make_shared<MemoryTables>();
};

class SqliteWorld : public World {
 public:
  std::unique_ptr<ControlStore> Open(StoreLimits limits) override {
    return std::move(*WorkerStore::Create(loop, MakeSqliteStore({folder_.path + "/store/control.db"}), limits));
  }
  // Somebody else's transaction keeps every writer out.
  bool CanBeAway() const override { return true; }
  void GoAway() override {
    ASSERT_EQ(SQLITE_OK, sqlite3_open((folder_.path + "/store/control.db").c_str(), &intruder_));
    sqlite3_busy_timeout(intruder_, 20'000);
    ASSERT_EQ(SQLITE_OK, sqlite3_exec(intruder_, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr));
  }
  void Return() override { sqlite3_close(intruder_); }

 private:
  TemporaryFolder folder_;
  sqlite3* intruder_ = nullptr;
};

class SimulatedWorld : public World {
 public:
  std::unique_ptr<ControlStore> Open(StoreLimits limits) override {
    auto store = std::make_unique<SimulatedStore>(storage_, limits);
    stores_.push_back(store.get());
    // Known by its health: a destroyed one must not be turned. Tests close what they destroy.
    struct Registered : ControlStore {
      Registered(SimulatedWorld* world, std::unique_ptr<SimulatedStore> inner)
          : world(world), inner(std::move(inner)) {}
      ~Registered() override { std::erase(world->stores_, inner.get()); }
      void AcquireLeadership(Candidate c, LeadershipCallback f) override { inner->AcquireLeadership(c, std::move(f)); }
      StoreStatus Commit(WriteBatch b, Callback f) override { return inner->Commit(std::move(b), std::move(f)); }
      StoreStatus Renew(Callback f) override { return inner->Renew(std::move(f)); }
      StoreStatus Resign(Callback f) override { return inner->Resign(std::move(f)); }
      StoreHealth health() const override { return inner->health(); }
      void Close() override { inner->Close(); }
      SimulatedWorld* world;
      std::unique_ptr<SimulatedStore> inner;
    };
    return std::make_unique<Registered>(this, std::move(store));
  }
  void Turn() override {
    storage_->now_ns += 10'000'000;
    for (SimulatedStore* store : std::vector(stores_)) {
      for (int i = 0; i < 7; ++i) store->Perform();
      for (int i = 0; i < 5; ++i) store->Deliver();
    }
  }
  bool CanBeAway() const override { return true; }
  void GoAway() override { storage_->away = true; }
  void Return() override { storage_->away = false; }
  bool CanCrash() const override { return true; }
  void CrashAndRestart() override { storage_->LoseLast(3); }

 private:
  std::shared_ptr<SimulatedStorage> storage_ = std::make_shared<SimulatedStorage>();
  std::vector<SimulatedStore*> stores_;
};

// Real servers, which are paused and killed.
class RedisWorld : public World {
 public:
  explicit RedisWorld(size_t servers) {
    for (size_t i = 0; i < servers; ++i) {
      RedisServerOptions options;
      options.folder = folder_.path + "/" + std::to_string(i);
      options.dies_with_us = true;
      // Both ways to listen.
      if (i % 2 == 1) options.bind = "127.0.0.1";
      servers_.push_back(std::move(*RedisServer::Start(loop, options)));
    }
  }
  std::unique_ptr<ControlStore> Open(StoreLimits limits) override {
    RedisStoreOptions options;
    options.cluster = "test";
    options.silence_timeout_ms = 1'000;
    for (const auto& server : servers_) options.servers.push_back(server->address());
    return std::move(*WorkerStore::Create(loop, std::move(*MakeRedisStore(options)), limits));
  }
  void Turn() override {
    int64_t until_ns = NowNs() + 20'000'000;
    for (const auto& server : servers_) until_ns = std::min(until_ns, server->next_wakeup_ns());
    loop.Wait(until_ns);
    for (const auto& server : servers_) server->Tick(NowNs());
  }
  bool CanBeAway() const override { return true; }
  void GoAway() override {
    for (const auto& server : servers_) ::kill(server->pid(), SIGSTOP);
  }
  void Return() override {
    for (const auto& server : servers_) ::kill(server->pid(), SIGCONT);
  }
  bool CanCrash() const override { return true; }
  void CrashAndRestart() override {  // the loop starts them again
    for (const auto& server : servers_) ::kill(server->pid(), SIGKILL);
  }

 private:
  TemporaryFolder folder_;
  std::vector<std::unique_ptr<RedisServer>> servers_;
};
std::unique_ptr<World> MakeRedisWorld(size_t servers) {
  return RedisIsInstalled() ? std::make_unique<RedisWorld>(servers) : nullptr;
}

struct Kind {
  const char* name;
  std::unique_ptr<World> (*make)();
};

class ControlStoreContract : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    world_ = GetParam().make();
    if (!world_) GTEST_SKIP() << "redis-server is not installed";
    // A server that was just started may not listen yet.
    auto store = Open();
    ASSERT_TRUE(Until([&] { return TryLead(*store, {.name = "first of all"}).ok(); }));
    ASSERT_TRUE(Resign(*store).ok());
  }

  template <class Condition>
  bool Until(Condition&& condition) {
    const int64_t deadline_ns = NowNs() + kPatienceNs;
    while (!condition()) {
      if (NowNs() > deadline_ns) return false;
      world_->Turn();
    }
    return true;
  }

  std::unique_ptr<ControlStore> Open(StoreLimits limits = {}) { return world_->Open(limits); }

  StoreResult<Leadership> TryLead(ControlStore& store, Candidate candidate) {
    std::optional<StoreResult<Leadership>> result;
    store.AcquireLeadership(candidate, [&](StoreResult<Leadership> r) { result.emplace(std::move(r)); });
    if (!Until([&] { return result.has_value(); })) return StoreStatus(StoreCode::kAway, "no answer in the test");
    return std::move(*result);
  }
  Leadership Lead(ControlStore& store, const std::string& name = "head") {
    auto result = TryLead(store, {.name = name});
    EXPECT_TRUE(result.ok()) << StoreCodeName(result.code()) << ": " << result.status().message();
    return result.ok() ? std::move(*result) : Leadership{};
  }
  StoreStatus Commit(ControlStore& store, WriteBatch batch) {
    std::optional<StoreStatus> result;
    StoreStatus queued = store.Commit(std::move(batch), [&](StoreStatus status) { result = std::move(status); });
    if (!queued.ok()) return queued;
    if (!Until([&] { return result.has_value(); })) return {StoreCode::kAway, "no answer in the test"};
    return *result;
  }
  StoreStatus Renew(ControlStore& store) {
    std::optional<StoreStatus> result;
    StoreStatus queued = store.Renew([&](StoreStatus status) { result = std::move(status); });
    if (!queued.ok()) return queued;
    if (!Until([&] { return result.has_value(); })) return {StoreCode::kAway, "no answer in the test"};
    return *result;
  }
  StoreStatus Resign(ControlStore& store) {
    std::optional<StoreStatus> result;
    StoreStatus queued = store.Resign([&](StoreStatus status) { result = std::move(status); });
    if (!queued.ok()) return queued;
    if (!Until([&] { return result.has_value(); })) return {StoreCode::kAway, "no answer in the test"};
    return *result;
  }
  // What a head that starts now finds.
  Snapshot ReadAll() {
    auto store = Open();
    return TryLead(*store, {.name = "reader", .force = true})->snapshot;
  }

  std::unique_ptr<World> world_;
};

#define ASSERT_STORED(expression)                                                         \
  do {                                                                                    \
    StoreStatus stored = (expression);                                                    \
    ASSERT_TRUE(stored.ok()) << StoreCodeName(stored.code()) << ": " << stored.message(); \
  } while (0)

std::string Key(int number) {
  std::string key = "k";
  return key += std::to_string(number);
}

WriteBatch OnePut(Table table, std::string key, std::string value) {
  WriteBatch batch;
  batch.Put(table, std::move(key), std::move(value));
  return batch;
}

TEST_P(ControlStoreContract, KeepsWhatWasCommitted) {
  auto store = Open();
  Leadership first = Lead(*store);
  EXPECT_TRUE(first.snapshot.empty());
  WriteBatch batch;
  batch.Put(Table::kNodes, "n1", "one");
  batch.Put(Table::kNodes, "n2", "two");
  batch.Put(Table::kKv, "n1", "another table");
  ASSERT_STORED(Commit(*store, std::move(batch)));
  WriteBatch second;
  second.Put(Table::kNodes, "n2", "twice");
  second.Delete(Table::kNodes, "n1");
  second.Delete(Table::kNodes, "never there");
  second.Put(Table::kJobs, "j", "");
  ASSERT_STORED(Commit(*store, std::move(second)));
  EXPECT_EQ(StoreHealth::kReady, store->health().state);
  store->Close();
  store.reset();

  auto again = Open();
  Leadership next = Lead(*again);
  EXPECT_GT(next.epoch, first.epoch);
  EXPECT_EQ((Snapshot{{Table::kNodes, "n2", "twice"}, {Table::kJobs, "j", ""}, {Table::kKv, "n1", "another table"}}),
            next.snapshot);
}

TEST_P(ControlStoreContract, CommitsAreAnsweredAndAppliedInOrder) {
  auto store = Open();
  Lead(*store);
  constexpr int kCommits = 500;
  std::vector<int> answered;
  for (int i = 0; i < kCommits; ++i) {
    WriteBatch batch;
    if (i % 3 == 2) batch.Delete(Table::kKv, Key((i - 1) % 7));
    batch.Put(Table::kKv, Key(i % 7), std::to_string(i));
    batch.Put(Table::kKv, "last", std::to_string(i));
    ASSERT_STORED(store->Commit(std::move(batch), [&answered, i](StoreStatus status) {
      EXPECT_TRUE(status.ok()) << status.message();
      answered.push_back(i);
    }));
  }
  EXPECT_TRUE(answered.empty()) << "a callback came from inside a call";
  ASSERT_TRUE(Until([&] { return answered.size() == kCommits; }));
  for (int i = 0; i < kCommits; ++i) ASSERT_EQ(i, answered[static_cast<size_t>(i)]);

  std::map<std::string, std::string> expected;
  for (int i = 0; i < kCommits; ++i) {
    if (i % 3 == 2) expected.erase(Key((i - 1) % 7));
    expected[Key(i % 7)] = std::to_string(i);
    expected["last"] = std::to_string(i);
  }
  Snapshot snapshot = ReadAll();
  ASSERT_EQ(expected.size(), snapshot.size());
  for (const StoredRecord& record : snapshot) EXPECT_EQ(expected[record.key], record.value) << record.key;
}

TEST_P(ControlStoreContract, LaterWritesOfABatchCount) {
  auto store = Open();
  Lead(*store);
  WriteBatch batch;
  batch.Put(Table::kKv, "a", "1");
  batch.Delete(Table::kKv, "a");
  batch.Put(Table::kKv, "b", "1");
  batch.Delete(Table::kKv, "b");
  batch.Put(Table::kKv, "b", "2");
  ASSERT_STORED(Commit(*store, std::move(batch)));
  EXPECT_EQ((Snapshot{{Table::kKv, "b", "2"}}), ReadAll());
}

TEST_P(ControlStoreContract, KeysAndValuesAreAnyBytes) {
  auto store = Open();
  Lead(*store);
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  WriteBatch batch;
  batch.Put(Table::kKv, "", "the empty key");
  batch.Put(Table::kKv, std::string("\0", 1), std::string("\0", 1));
  batch.Put(Table::kKv, std::string("\0\0", 2), "");
  batch.Put(Table::kKv, "\r\n$5\r\n", "*1\r\n");
  batch.Put(Table::kKv, all, all);
  ASSERT_STORED(Commit(*store, std::move(batch)));
  Snapshot expected = {{Table::kKv, "", "the empty key"},
                       {Table::kKv, std::string("\0", 1), std::string("\0", 1)},
                       {Table::kKv, std::string("\0\0", 2), ""},
                       {Table::kKv, all, all},
                       {Table::kKv, "\r\n$5\r\n", "*1\r\n"}};
  EXPECT_EQ(expected, ReadAll());
}

TEST_P(ControlStoreContract, ValuesMayBeLarge) {
  auto store = Open();
  Lead(*store);
  std::string large(size_t{16} << 20, 'x');
  for (size_t i = 0; i < large.size(); i += 997) large[i] = static_cast<char>(i);
  ASSERT_STORED(Commit(*store, OnePut(Table::kFunctions, "f", large)));
  ASSERT_STORED(Commit(*store, OnePut(Table::kFunctions, "g", "small")));
  Snapshot snapshot = ReadAll();
  ASSERT_EQ(2u, snapshot.size());
  EXPECT_TRUE(snapshot[0].value == large);
}

TEST_P(ControlStoreContract, RefusesWhatIsNoCommit) {
  StoreLimits limits;
  limits.batch_bytes = 1'000;
  limits.key_bytes = 100;
  auto store = Open(limits);
  Lead(*store);
  auto never = [](StoreStatus) { ADD_FAILURE() << "a refused commit was called back"; };
  EXPECT_EQ(StoreCode::kInvalid, store->Commit({}, never).code());
  EXPECT_EQ(StoreCode::kInvalid, store->Commit(OnePut(Table::kKv, "k", std::string(1'000, 'x')), never).code());
  EXPECT_EQ(StoreCode::kInvalid, store->Commit(OnePut(Table::kKv, std::string(101, 'k'), ""), never).code());
  EXPECT_EQ(StoreCode::kInvalid, store->Commit(OnePut(static_cast<Table>(99), "k", ""), never).code());
  ASSERT_STORED(Commit(*store, OnePut(Table::kKv, std::string(100, 'k'), "")));
}

TEST_P(ControlStoreContract, OnlyALeaderCommits) {
  auto store = Open();
  EXPECT_EQ(StoreCode::kFenced, Commit(*store, OnePut(Table::kKv, "k", "v")).code());
  EXPECT_EQ(StoreCode::kFenced, Renew(*store).code());
}

TEST_P(ControlStoreContract, AnOldLeaderIsFenced) {
  auto old = Open();
  uint64_t first = Lead(*old, "first").epoch;
  ASSERT_STORED(Commit(*old, OnePut(Table::kKv, "k", "old")));
  auto newer = Open();
  auto taken = TryLead(*newer, {.name = "second", .force = true});
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  EXPECT_EQ((Snapshot{{Table::kKv, "k", "old"}}), taken->snapshot);
  EXPECT_GT(taken->epoch, first);

  EXPECT_EQ(StoreCode::kFenced, Commit(*old, OnePut(Table::kKv, "k", "too late")).code());
  EXPECT_EQ(StoreCode::kFenced, Renew(*old).code());
  EXPECT_EQ(StoreCode::kFenced, Resign(*old).code());
  EXPECT_EQ(StoreHealth::kFenced, old->health().state);
  ASSERT_STORED(Renew(*newer));
  ASSERT_STORED(Commit(*newer, OnePut(Table::kKv, "l", "new")));
  EXPECT_EQ(StoreCode::kFenced, Commit(*old, OnePut(Table::kKv, "l", "too late")).code());
  EXPECT_EQ((Snapshot{{Table::kKv, "k", "old"}, {Table::kKv, "l", "new"}}), ReadAll());
}

// Commits of the old leader that wait while another takes over: a first part of them is applied, in order, and the
// others are refused. None is applied after the new leader has read. Where a commit is written in several places, the
// new leader finishes one that was under way, and the old one cannot know.
TEST_P(ControlStoreContract, ATakeoverCutsTheQueueOnce) {
  for (int round = 0; round < 5; ++round) {
    auto old = Open();
    ASSERT_TRUE(TryLead(*old, {.name = "old", .force = true}).ok());
    int applied = -1, refused = 0, answered = 0;
    constexpr int kCommits = 300;
    for (int i = 0; i < kCommits; ++i) {
      WriteBatch batch;
      batch.Put(Table::kKv, "a", std::to_string(i));
      batch.Put(Table::kActors, "b", std::to_string(i));
      ASSERT_STORED(old->Commit(std::move(batch), [&, i](StoreStatus status) {
        ++answered;
        if (status.ok()) {
          EXPECT_EQ(0, refused) << "a commit succeeded after one was fenced";
          applied = i;
        } else {
          EXPECT_EQ(StoreCode::kFenced, status.code()) << status.message();
          ++refused;
        }
      }));
    }
    auto newer = Open();
    auto taken = TryLead(*newer, {.name = "new", .force = true});
    ASSERT_TRUE(taken.ok()) << taken.status().message();
    ASSERT_TRUE(Until([&] { return answered == kCommits; }));
    const bool finishes = std::string(GetParam().name) == "three_redis";
    if (applied < 0 && round == 0 && !finishes) {
      for (const auto& record : taken->snapshot) ADD_FAILURE() << record.key << " was never acknowledged";
    } else if (applied >= 0) {
      ASSERT_EQ(2u, taken->snapshot.size());
      EXPECT_EQ(taken->snapshot[0].value, taken->snapshot[1].value);
      EXPECT_LE(applied, std::stoi(taken->snapshot[0].value));
      if (!finishes) {
        EXPECT_EQ(std::to_string(applied), taken->snapshot[0].value);
      }
    }
    EXPECT_EQ(taken->snapshot, ReadAll()) << "something was applied after the new leader had read";
    old->Close();
    newer->Close();
  }
}

TEST_P(ControlStoreContract, ASecondHeadWaitsForTheFirst) {
  auto first = Open();
  Lead(*first, "first");
  auto second = Open();
  EXPECT_EQ(StoreCode::kHeld, TryLead(*second, {.name = "second"}).code());
  ASSERT_STORED(Commit(*first, OnePut(Table::kKv, "k", "v")));
  ASSERT_STORED(Resign(*first));
  EXPECT_EQ(StoreCode::kFenced, Commit(*first, OnePut(Table::kKv, "k", "resigned")).code());
  auto taken = TryLead(*second, {.name = "second", .grace_ms = 100'000});  // nobody leads: no grace
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  EXPECT_EQ((Snapshot{{Table::kKv, "k", "v"}}), taken->snapshot);
  EXPECT_EQ(StoreCode::kHeld, TryLead(*first, {.name = "first"}).code());
}

TEST_P(ControlStoreContract, AStandbyTakesOverWhenTheLeaseRunsOut) {
  auto first = Open();
  ASSERT_TRUE(TryLead(*first, {.name = "first", .lease_ms = 300}).ok());
  ASSERT_STORED(Commit(*first, OnePut(Table::kKv, "k", "v")));
  auto second = Open();
  std::optional<StoreResult<Leadership>> taken;
  ASSERT_TRUE(Until([&] {
    taken.emplace(TryLead(*second, {.name = "second", .grace_ms = 50}));
    if (!taken->ok()) {
      EXPECT_EQ(StoreCode::kHeld, taken->code()) << taken->status().message();
    }
    return taken->ok();
  }));
  EXPECT_EQ((Snapshot{{Table::kKv, "k", "v"}}), (*taken)->snapshot);
  EXPECT_EQ(StoreCode::kFenced, Commit(*first, OnePut(Table::kKv, "k", "late")).code());
}

TEST_P(ControlStoreContract, WhoRenewsStays) {
  auto first = Open();
  ASSERT_TRUE(TryLead(*first, {.name = "first", .lease_ms = 1'500}).ok());
  auto second = Open();
  const int64_t began_ns = NowNs();
  int tries = 0;
  while (NowNs() < began_ns + 2'500'000'000 && tries < 10'000) {
    const int64_t renewed_ns = NowNs();
    ASSERT_STORED(Renew(*first));
    StoreCode code = TryLead(*second, {.name = "second"}).code();
    // On a machine that stood still for longer than the lease, the second may have it.
    if (NowNs() - renewed_ns < 1'000'000'000) {
      ASSERT_EQ(StoreCode::kHeld, code);
    }
    if (code != StoreCode::kHeld) return;
    ++tries;
  }
  EXPECT_GT(tries, 1);
}

TEST_P(ControlStoreContract, ARestartedHeadLeadsAtOnce) {
  auto first = Open();
  Lead(*first, "head");
  ASSERT_STORED(Commit(*first, OnePut(Table::kKv, "k", "v")));
  first->Close();  // as if it was killed: the lease stays
  first.reset();
  auto second = Open();
  auto taken = TryLead(*second, {.name = "head"});
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  EXPECT_EQ(1u, taken->snapshot.size());
}

TEST_P(ControlStoreContract, CommitsWaitWhileTheStoreIsAway) {
  if (!world_->CanBeAway()) GTEST_SKIP() << "never away";
  auto store = Open();
  Lead(*store);
  ASSERT_STORED(Commit(*store, OnePut(Table::kKv, "k", "before")));
  world_->GoAway();
  std::vector<int> answered;
  for (int i = 0; i < 50; ++i) {
    ASSERT_STORED(store->Commit(OnePut(Table::kKv, "k", std::to_string(i)), [&answered, i](StoreStatus status) {
      EXPECT_TRUE(status.ok()) << status.message();
      answered.push_back(i);
    }));
  }
  ASSERT_TRUE(Until([&] { return store->health().state == StoreHealth::kAway; }));
  EXPECT_EQ(50u, store->health().queued_commits);
  EXPECT_TRUE(answered.empty());
  world_->Return();
  ASSERT_TRUE(Until([&] { return answered.size() == 50; }));
  for (int i = 0; i < 50; ++i) ASSERT_EQ(i, answered[static_cast<size_t>(i)]);
  EXPECT_EQ(StoreHealth::kReady, store->health().state);
  EXPECT_EQ(0u, store->health().queued_commits);
  EXPECT_EQ((Snapshot{{Table::kKv, "k", "49"}}), ReadAll());
}

TEST_P(ControlStoreContract, CommitsWaitNoLongerThanTheLimit) {
  if (!world_->CanBeAway()) GTEST_SKIP() << "never away";
  StoreLimits limits;
  limits.outage_ms = 300;
  auto store = Open(limits);
  Lead(*store);
  ASSERT_STORED(Commit(*store, OnePut(Table::kKv, "k", "before")));
  world_->GoAway();
  StoreStatus failed = Commit(*store, OnePut(Table::kKv, "lost", "1"));
  EXPECT_EQ(StoreCode::kAway, failed.code()) << failed.message();
  world_->Return();
  // What failed is not there, once a later commit is.
  StoreStatus later;
  ASSERT_TRUE(Until([&] {
    later = Commit(*store, OnePut(Table::kKv, "k", "after"));
    return later.code() != StoreCode::kAway;
  }));
  ASSERT_STORED(later);
  EXPECT_EQ((Snapshot{{Table::kKv, "k", "after"}}), ReadAll());
}

TEST_P(ControlStoreContract, TheQueueIsBounded) {
  StoreLimits limits;
  limits.queued_commits = 10;
  limits.queued_bytes = 4'000;
  auto store = Open(limits);
  Lead(*store);
  if (world_->CanBeAway()) world_->GoAway();
  int answered = 0;
  auto count = [&](StoreStatus status) {
    EXPECT_TRUE(status.ok()) << status.message();
    ++answered;
  };
  auto never = [](StoreStatus) { ADD_FAILURE() << "a refused commit was called back"; };
  for (int i = 0; i < 10; ++i) ASSERT_STORED(store->Commit(OnePut(Table::kKv, std::to_string(i), ""), count));
  EXPECT_EQ(StoreCode::kFull, store->Commit(OnePut(Table::kKv, "one too many", ""), never).code());
  if (world_->CanBeAway()) world_->Return();
  ASSERT_TRUE(Until([&] { return answered == 10; }));
  if (world_->CanBeAway()) world_->GoAway();
  ASSERT_STORED(store->Commit(OnePut(Table::kKv, "a", std::string(3'000, 'x')), count));
  EXPECT_EQ(StoreCode::kFull, store->Commit(OnePut(Table::kKv, "b", std::string(2'000, 'x')), never).code());
  if (world_->CanBeAway()) world_->Return();
  ASSERT_TRUE(Until([&] { return answered == 11; }));
  EXPECT_EQ(11u, ReadAll().size());
}

TEST_P(ControlStoreContract, CloseAnswersEverybodyOnce) {
  for (bool away : {false, true}) {
    if (away && !world_->CanBeAway()) continue;
    auto store = Open();
    ASSERT_TRUE(TryLead(*store, {.name = "head", .force = true}).ok());
    if (away) world_->GoAway();
    std::vector<int> answers(100);
    for (size_t i = 0; i < answers.size(); ++i) {
      ASSERT_STORED(store->Commit(OnePut(Table::kKv, std::to_string(i), "v"), [&answers, i](StoreStatus status) {
        EXPECT_TRUE(status.ok() || status.code() == StoreCode::kClosed) << status.message();
        ++answers[i];
      }));
    }
    store->Close();
    for (int count : answers) EXPECT_EQ(1, count);
    EXPECT_EQ(StoreCode::kClosed, store->Commit(OnePut(Table::kKv, "k", "v"), [](StoreStatus) {}).code());
    EXPECT_EQ(StoreHealth::kClosed, store->health().state);
    if (away) world_->Return();
  }
}

TEST_P(ControlStoreContract, AStoreThatCrashesLosesNothing) {
  if (!world_->CanCrash()) GTEST_SKIP() << "does not crash apart from its head";
  auto store = Open();
  Lead(*store);
  constexpr int kRounds = 3, kCommits = 100;
  for (int round = 0; round < kRounds; ++round) {
    int answered = 0;
    for (int i = 0; i < kCommits; ++i) {
      WriteBatch batch;
      for (int k = 0; k < 8; ++k) batch.Put(Table::kKv, Key(k), std::to_string(round * kCommits + i));
      batch.Put(Table::kJobs, std::to_string(round * kCommits + i), "");
      ASSERT_STORED(store->Commit(std::move(batch), [&](StoreStatus status) {
        EXPECT_TRUE(status.ok()) << status.message();
        ++answered;
      }));
    }
    ASSERT_TRUE(Until([&] { return answered > 0; }));
    world_->CrashAndRestart();
    ASSERT_TRUE(Until([&] { return answered == kCommits; }));
  }
  ASSERT_STORED(Renew(*store));
  Snapshot snapshot = ReadAll();
  ASSERT_EQ(8u + kRounds * kCommits, snapshot.size());
  for (const StoredRecord& record : snapshot) {
    if (record.table == Table::kKv) {
      EXPECT_EQ(std::to_string(kRounds * kCommits - 1), record.value);
    }
  }
}

// Store and head die together, at any point: what was acknowledged is there, whole, and what was not is there whole or
// not at all, in order.
TEST_P(ControlStoreContract, ABatchIsWholeWhateverDies) {
  int floor = 0;
  for (int round = 0; round < 6; ++round) {
    auto store = Open();
    ASSERT_TRUE(Until([&] { return TryLead(*store, {.name = "head", .force = true}).ok(); }));
    int acknowledged = floor;
    constexpr int kCommits = 200;
    for (int i = 1; i <= kCommits; ++i) {
      WriteBatch batch;
      for (int k = 0; k < 8; ++k) batch.Put(Table::kKv, Key(k), std::to_string(floor + i));
      ASSERT_STORED(store->Commit(std::move(batch), [&acknowledged, number = floor + i](StoreStatus status) {
        if (status.ok()) acknowledged = number;
      }));
    }
    ASSERT_TRUE(Until([&] { return acknowledged >= floor + round * 20; }));
    store->Close();
    store.reset();
    if (world_->CanCrash() && round % 2 == 1 && std::string(GetParam().name) != "simulated") world_->CrashAndRestart();
    Snapshot snapshot;
    auto reader = Open();
    ASSERT_TRUE(Until([&] {
      auto taken = TryLead(*reader, {.name = "reader", .force = true});
      if (taken.ok()) snapshot = taken->snapshot;
      return taken.ok();
    }));
    if (snapshot.empty()) {
      EXPECT_EQ(0, acknowledged);
      continue;
    }
    ASSERT_EQ(8u, snapshot.size());
    const int found = std::stoi(snapshot[0].value);
    for (const StoredRecord& record : snapshot) EXPECT_EQ(snapshot[0].value, record.value) << record.key;
    EXPECT_GE(found, acknowledged);
    EXPECT_LE(found, floor + kCommits);
    floor = found;
  }
}

// Not a test: prints what docs/control_store.md says. --gtest_also_run_disabled_tests --gtest_filter='*PerSecond*'
TEST_P(ControlStoreContract, DISABLED_CommitsPerSecond) {
  auto store = Open();
  Lead(*store);
  for (int together : {1, 1'000}) {
    int asked = 0, answered = 0;
    const int64_t began_ns = NowNs(), until_ns = began_ns + 1'000'000'000;
    while (NowNs() < until_ns || answered < asked) {
      while (NowNs() < until_ns && asked - answered < together) {
        WriteBatch batch;
        batch.Put(Table::kActors, Key(asked % 5'000), std::string(300, 'x'));
        ASSERT_STORED(store->Commit(std::move(batch), [&](StoreStatus) { ++answered; }));
        ++asked;
      }
      world_->Turn();
    }
    const double seconds = static_cast<double>(NowNs() - began_ns) * 1e-9;
    printf("%s, %d under way: %.0f commits/s\n", GetParam().name, together, answered / seconds);
  }
}

const Kind kKinds[] = {
    {"memory", []() -> std::unique_ptr<World> { return std::make_unique<MemoryWorld>(); }},
    {"sqlite", []() -> std::unique_ptr<World> { return std::make_unique<SqliteWorld>(); }},
    {"redis", [] { return MakeRedisWorld(1); }},
    {"three_redis", [] { return MakeRedisWorld(3); }},
    {"simulated", []() -> std::unique_ptr<World> { return std::make_unique<SimulatedWorld>(); }},
};

INSTANTIATE_TEST_SUITE_P(Stores, ControlStoreContract, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weft::core
