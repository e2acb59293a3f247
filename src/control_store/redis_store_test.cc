// What only Redis does: lose, refuse, mix up. The rest is in control_store_contract_test.cc.
#include "control_store/redis_store.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "control_store/store_test_support.h"

namespace weft::core {
namespace {

class RedisStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisIsInstalled()) GTEST_SKIP() << "redis-server is not installed";
  }

  static std::unique_ptr<BlockingStore> Open(std::vector<RedisAddress> servers, bool allow_open = false) {
    RedisStoreOptions options;
    options.servers = std::move(servers);
    options.cluster = "test";
    options.allow_open = allow_open;
    options.silence_timeout_ms = 1'000;
    return std::move(*MakeRedisStore(options));
  }
  static StoreStatus Put(BlockingStore& store, const std::map<std::string, std::string>& values) {
    WriteBatch batch;
    for (const auto& [key, value] : values) batch.Put(Table::kKv, key, value);
    const WriteBatch* group = &batch;
    StoreStatus status = store.Apply({&group, 1});
    const int64_t deadline_ns = NowNs() + kPatienceNs;
    while (status.code() == StoreCode::kAway && NowNs() < deadline_ns) status = store.Apply({&group, 1});
    return status;
  }
  // One attempt, which is then given up.
  static StoreStatus TryPut(BlockingStore& store, const std::map<std::string, std::string>& values) {
    WriteBatch batch;
    for (const auto& [key, value] : values) batch.Put(Table::kKv, key, value);
    const WriteBatch* group = &batch;
    StoreStatus status = store.Apply({&group, 1});
    if (status.code() == StoreCode::kAway) store.Abandon();
    return status;
  }
  static std::map<std::string, std::string> Read(std::vector<RedisAddress> servers) {
    auto store = Open(std::move(servers));
    auto taken = store->Acquire({.name = "reader", .force = true});
    EXPECT_TRUE(taken.ok()) << taken.status().message();
    std::map<std::string, std::string> values;
    if (taken.ok()) {
      for (const StoredRecord& record : taken->snapshot) values[record.key] = record.value;
    }
    return values;
  }
  // Enough keys to have some on every server.
  static std::map<std::string, std::string> Everywhere(const std::string& value) {
    std::map<std::string, std::string> values;
    for (char c = 'a'; c <= 'z'; ++c) values[std::string(1, c)] = value;
    return values;
  }
};

#define ASSERT_STORED(expression)                                                         \
  do {                                                                                    \
    StoreStatus stored = (expression);                                                    \
    ASSERT_TRUE(stored.ok()) << StoreCodeName(stored.code()) << ": " << stored.message(); \
  } while (0)

TEST_F(RedisStoreTest, ARedisThatLostEverythingIsWrittenAnew) {
  TestRedis redis("appendonly no");
  auto store = Open({redis.address});
  auto taken = store->Acquire({.name = "head"});
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  ASSERT_EQ(1u, taken->warnings.size()) << "no append-only file";
  auto values = Everywhere("1");
  ASSERT_STORED(Put(*store, values));
  redis.Kill();
  redis.Start();
  EXPECT_EQ("0", redis.Say({"DBSIZE"})) << "nothing was kept";
  values["b"] = "2";
  ASSERT_STORED(Put(*store, {{"b", "2"}}));
  EXPECT_EQ(values, Read({redis.address}));
}

TEST_F(RedisStoreTest, ARenewalNoticesTheLossToo) {
  TestRedis redis("appendonly no");
  auto store = Open({redis.address});
  ASSERT_TRUE(store->Acquire({.name = "head"}).ok());
  ASSERT_STORED(Put(*store, Everywhere("1")));
  redis.Kill();
  redis.Start();
  StoreStatus status = store->Renew();
  if (status.code() == StoreCode::kAway) status = store->Renew();  // the first met the old connection
  ASSERT_STORED(status);
  EXPECT_EQ(Everywhere("1"), Read({redis.address}));
}

// The last write is gone, as after a crash with appendfsync everysec: everything else is there, the epoch too.
TEST_F(RedisStoreTest, ALostLastWriteIsBroughtBack) {
  TestRedis redis;
  auto store = Open({redis.address});
  ASSERT_TRUE(store->Acquire({.name = "head"}).ok());
  ASSERT_STORED(Put(*store, {{"a", "1"}, {"b", "1"}}));
  const std::string mark = redis.Say({"HGET", "weft:{test}:fence", "applied"});
  ASSERT_STORED(Put(*store, {{"a", "2"}}));
  redis.Say({"HSET", "weft:{test}:fence", "applied", mark});
  redis.Say({"HSET", "weft:{test}:table:kv", "a", "1"});
  ASSERT_STORED(Put(*store, {{"c", "3"}}));
  EXPECT_EQ((std::map<std::string, std::string>{{"a", "2"}, {"b", "1"}, {"c", "3"}}), Read({redis.address}));
}

// A head that has nothing more to write must not die before that is mended.
TEST_F(RedisStoreTest, ARenewalNoticesALostLastWriteOnAnyServer) {
  for (int victim = 0; victim < 3; ++victim) {
    TestRedis redis[3];
    std::vector<RedisAddress> servers{redis[0].address, redis[1].address, redis[2].address};
    auto store = Open(servers);
    ASSERT_TRUE(store->Acquire({.name = "head"}).ok());
    ASSERT_STORED(Put(*store, Everywhere("1")));
    const std::string mark = redis[victim].Say({"HGET", "weft:{test}:fence", "applied"});
    ASSERT_STORED(Put(*store, Everywhere("2")));
    redis[victim].Say({"HSET", "weft:{test}:fence", "applied", mark});
    redis[victim].Say({"DEL", "weft:{test}:table:kv"});
    ASSERT_STORED(store->Renew());
    EXPECT_EQ(Everywhere("2"), Read(servers)) << victim;
  }
}

// A head was restarted, and the server forgot that: it has the lease of the head's earlier life again.
TEST_F(RedisStoreTest, ALeaseOfAnEarlierLifeHoldsNobodyUp) {
  for (const std::string former : {"head", "another"}) {
    TestRedis redis;
    ASSERT_TRUE(Open({redis.address})->Acquire({.name = former}).ok());
    const std::string holder = redis.Say({"HGET", "weft:{test}:fence", "holder"});
    auto store = Open({redis.address});
    auto taken = store->Acquire({.name = "head", .force = true});
    ASSERT_TRUE(taken.ok()) << taken.status().message();
    ASSERT_EQ(2u, taken->epoch);
    ASSERT_STORED(Put(*store, {{"a", "1"}}));
    redis.Say({"DEL", "weft:{test}:fence", "weft:{test}:table:kv"});
    redis.Say({"HSET", "weft:{test}:fence", "epoch", "1", "holder", holder, "name", former});
    redis.Say({"SET", "weft:{test}:lease", holder, "PX", "60000"});
    if (former == "head") {
      ASSERT_STORED(store->Renew());
      EXPECT_EQ((std::map<std::string, std::string>{{"a", "1"}}), Read({redis.address}));
    } else {  // it may live, and leads again
      EXPECT_EQ(StoreCode::kFenced, store->Renew().code());
    }
  }
}

TEST_F(RedisStoreTest, ALossIsNotMendedOverANewLeader) {
  TestRedis redis("appendonly no");
  auto old = Open({redis.address});
  ASSERT_TRUE(old->Acquire({.name = "old"}).ok());
  ASSERT_STORED(Put(*old, {{"a", "old"}}));
  redis.Kill();
  redis.Start();
  auto newer = Open({redis.address});
  auto taken = newer->Acquire({.name = "new"});  // the lease is lost as well, and gives the same epoch again
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  EXPECT_EQ(1u, taken->epoch);
  ASSERT_STORED(Put(*newer, {{"b", "new"}}));
  EXPECT_EQ(StoreCode::kFenced, Put(*old, {{"a", "too late"}}).code());
  EXPECT_EQ((std::map<std::string, std::string>{{"b", "new"}}), Read({redis.address}));
}

TEST_F(RedisStoreTest, OneOfThreeThatLostEverythingIsWrittenAnew) {
  for (int victim = 0; victim < 3; ++victim) {
    TestRedis redis[3] = {TestRedis("appendonly no"), TestRedis("appendonly no"), TestRedis("appendonly no")};
    std::vector<RedisAddress> servers{redis[0].address, redis[1].address, redis[2].address};
    auto store = Open(servers);
    ASSERT_TRUE(store->Acquire({.name = "head"}).ok());
    ASSERT_STORED(Put(*store, Everywhere("1")));
    redis[victim].Kill();
    redis[victim].Start();
    ASSERT_STORED(Put(*store, Everywhere("2")));
    ASSERT_STORED(Put(*store, {{"a", "3"}}));
    auto values = Everywhere("2");
    values["a"] = "3";
    EXPECT_EQ(values, Read(servers)) << victim;
  }
}

// The leader dies when a group has reached some servers: the next one finishes it from the journal.
TEST_F(RedisStoreTest, AGroupOnSeveralServersIsFinishedByTheNextLeader) {
  TestRedis redis[3] = {TestRedis("appendonly yes"), TestRedis("appendonly yes"), TestRedis("appendonly yes")};
  std::vector<RedisAddress> servers{redis[0].address, redis[1].address, redis[2].address};
  for (int victim = 1; victim < 3; ++victim) {
    auto store = Open(servers);
    ASSERT_TRUE(store->Acquire({.name = "head", .force = true}).ok());
    ASSERT_STORED(Put(*store, Everywhere("old")));
    ::kill(redis[victim].pid, SIGSTOP);  // it holds its connection, and takes nothing from it
    EXPECT_EQ(StoreCode::kAway, TryPut(*store, Everywhere("new")).code());
    redis[victim].Kill();
    redis[victim].Start();
    store.reset();
    EXPECT_EQ(Everywhere("new"), Read(servers)) << victim;
  }
}

// If it lives, it has said that the group failed, and takes it back with its next write.
TEST_F(RedisStoreTest, AGroupThatWasGivenUpIsTakenBack) {
  TestRedis redis[3];
  std::vector<RedisAddress> servers{redis[0].address, redis[1].address, redis[2].address};
  auto store = Open(servers);
  ASSERT_TRUE(store->Acquire({.name = "head"}).ok());
  ASSERT_STORED(Put(*store, Everywhere("old")));
  for (int victim = 0; victim < 3; ++victim) {
    ::kill(redis[victim].pid, SIGSTOP);
    EXPECT_EQ(StoreCode::kAway, TryPut(*store, Everywhere("given up")).code());
    ::kill(redis[victim].pid, SIGCONT);  // and it takes what is in its socket
    ASSERT_STORED(Put(*store, {{"after", std::to_string(victim)}}));
    auto values = Everywhere("old");
    values["after"] = std::to_string(victim);
    EXPECT_EQ(values, Read(servers)) << victim;
    ASSERT_TRUE(store->Acquire({.name = "head", .force = true}).ok());
  }
}

TEST_F(RedisStoreTest, FullMemoryIsAnErrorThatPasses) {
  TestRedis redis;
  auto store = Open({redis.address});
  ASSERT_TRUE(store->Acquire({.name = "head"}).ok());
  ASSERT_STORED(Put(*store, {{"a", "1"}}));
  redis.Say({"CONFIG", "SET", "maxmemory", "1"});
  StoreStatus full = Put(*store, {{"a", "2"}, {"b", "2"}});
  EXPECT_EQ(StoreCode::kNoSpace, full.code()) << full.message();
  redis.Say({"CONFIG", "SET", "maxmemory", "0"});
  ASSERT_STORED(Put(*store, {{"c", "3"}}));
  EXPECT_EQ((std::map<std::string, std::string>{{"a", "1"}, {"c", "3"}}), Read({redis.address}));
}

TEST_F(RedisStoreTest, OneFullServerOfThreeRefusesForAll) {
  for (int victim = 0; victim < 3; ++victim) {
    TestRedis redis[3];
    std::vector<RedisAddress> servers{redis[0].address, redis[1].address, redis[2].address};
    auto store = Open(servers);
    ASSERT_TRUE(store->Acquire({.name = "head"}).ok());
    ASSERT_STORED(Put(*store, Everywhere("old")));
    redis[victim].Say({"CONFIG", "SET", "maxmemory", "1"});
    EXPECT_EQ(StoreCode::kNoSpace, Put(*store, Everywhere("new")).code());
    redis[victim].Say({"CONFIG", "SET", "maxmemory", "0"});
    store.reset();  // even without a later write
    EXPECT_EQ(Everywhere("old"), Read(servers)) << victim;
  }
}

TEST_F(RedisStoreTest, AReplicaIsReadOnly) {
  TestRedis redis;
  auto store = Open({redis.address});
  ASSERT_TRUE(store->Acquire({.name = "head"}).ok());
  redis.Say({"REPLICAOF", "127.0.0.1", "1"});
  StoreStatus status = Put(*store, {{"a", "1"}});
  EXPECT_EQ(StoreCode::kReadOnly, status.code()) << status.message();
  EXPECT_EQ(StoreCode::kReadOnly, Open({redis.address})->Acquire({.name = "other"}).code());
  redis.Say({"REPLICAOF", "NO", "ONE"});
  ASSERT_STORED(Put(*store, {{"a", "2"}}));
}

TEST_F(RedisStoreTest, ARedisThatCannotSaveIsReadOnly) {
  TestRedis redis("save 3600 1");
  std::filesystem::create_directory(redis.folder.path + "/dump.rdb");  // in the way of its snapshot
  auto store = Open({redis.address});
  ASSERT_TRUE(store->Acquire({.name = "head"}).ok());
  redis.Say({"BGSAVE"});
  ASSERT_TRUE(Eventually(
      [&] { return redis.Say({"INFO", "persistence"}).find("rdb_last_bgsave_status:err") != std::string::npos; }));
  StoreStatus status = Put(*store, {{"a", "1"}});
  EXPECT_EQ(StoreCode::kReadOnly, status.code()) << status.message();
  EXPECT_NE(status.message().find("MISCONF"), std::string::npos) << status.message();
  redis.Say({"CONFIG", "SET", "stop-writes-on-bgsave-error", "no"});
  ASSERT_STORED(Put(*store, {{"a", "1"}}));
}

TEST_F(RedisStoreTest, PasswordsAreAskedForAndNeverTold) {
  TestRedis redis("requirepass secret", "secret");
  auto with = [&](std::string user, std::string password) {
    RedisAddress address = redis.address;
    address.user = std::move(user);
    address.password = std::move(password);
    return Open({address})->Acquire({.name = "head"});
  };
  EXPECT_EQ(StoreCode::kRefused, with("", "").code());
  auto wrong = with("", "not the secret");
  EXPECT_EQ(StoreCode::kRefused, wrong.code());
  EXPECT_EQ(wrong.status().message().find("not the secret"), std::string::npos);
  EXPECT_EQ(StoreCode::kRefused, with("nobody", "secret").code());
  auto right = with("", "secret");
  EXPECT_TRUE(right.ok()) << right.status().message();
  EXPECT_TRUE(with("default", "secret").ok());
}

// The rights that docs/control_store.md asks for are enough.
TEST_F(RedisStoreTest, AnAclUserNeedsNoMoreThanIsDocumented) {
  const std::string document = ReadFile(std::string(WEFT_SOURCE) + "/docs/control_store.md");
  const size_t begin = document.find("ACL SETUSER weft on >PASSWORD ");
  ASSERT_NE(document.npos, begin);
  std::istringstream line(document.substr(begin, document.find('\n', begin) - begin));
  TestRedis redis("requirepass secret", "secret");
  std::vector<std::string> words;
  for (std::string word; line >> word;) words.push_back(word == ">PASSWORD" ? ">weaving" : word);
  redis.Say(words);
  RedisAddress address = redis.address;
  address.user = "weft";
  address.password = "weaving";
  auto store = Open({address});
  auto taken = store->Acquire({.name = "head"});
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  ASSERT_STORED(Put(*store, {{"a", "1"}}));
  // A repair uses every command there is.
  redis.Say({"HSET", "weft:{test}:fence", "applied", "0.1"});
  ASSERT_STORED(Put(*store, {{"b", "2"}}));
  ASSERT_STORED(store->Renew());
  ASSERT_STORED(store->Resign());
  // Another cluster's keys are out of reach if the pattern says so.
  redis.Say({"ACL", "SETUSER", "weft", "resetkeys", "~weft:{another}:*"});
  StoreResult<Leadership> refused = Open({address})->Acquire({.name = "head"});
  EXPECT_EQ(StoreCode::kRefused, refused.code()) << refused.status().message();
}

TEST_F(RedisStoreTest, MissingRightsAreNamed) {
  TestRedis redis("requirepass secret", "secret");
  redis.Say({"ACL", "SETUSER", "weft", "on", ">weaving", "~weft:*", "+@all"});
  RedisAddress address = redis.address;
  address.user = "weft";
  address.password = "weaving";
  auto message = [&](std::vector<std::string> rights) {
    std::vector<std::string> words{"ACL", "SETUSER", "weft"};
    words.insert(words.end(), rights.begin(), rights.end());
    redis.Say(words);
    auto taken = Open({address})->Acquire({.name = "head"});
    EXPECT_EQ(StoreCode::kRefused, taken.code());
    return taken.status().message();
  };
  auto has = [](const std::string& text, const char* words) {
    return text.find(words) != text.npos ? testing::AssertionSuccess() : testing::AssertionFailure() << text;
  };
  // Inside of scripts, where Redis itself does not say which: all at once.
  EXPECT_TRUE(has(message({"-rename", "-hset"}),
                  "'weft' the commands rename, hset; its administrator says: ACL SETUSER "
                  "weft +rename +hset"));
  EXPECT_TRUE(has(message({"+rename", "+hset", "-hscan"}), "ACL SETUSER weft +hscan"));
  EXPECT_TRUE(has(message({"+hscan", "-info"}), "(+info)"));
  EXPECT_TRUE(has(message({"+info", "-evalsha"}), "(+evalsha)"));
  EXPECT_TRUE(has(message({"+evalsha", "-script"}), "(+script|load)"));
  EXPECT_TRUE(has(message({"+script", "resetkeys"}), "(~weft:*)"));
  auto without = [&](std::string user, std::string password) {
    address.user = std::move(user);
    address.password = std::move(password);
    return Open({address})->Acquire({.name = "head"}).status().message();
  };
  EXPECT_TRUE(has(without("", ""), "--redis-password-file"));
  EXPECT_TRUE(has(without("weft", "wrong"), "check user and password"));
}

TEST_F(RedisStoreTest, AnOpenServerElsewhereIsRefusedUnlessForced) {
  TestRedis redis("port 0");
  auto port = [&] {  // a port that was free a moment ago
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(0, ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size));
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.sin_port);
  }();
  redis.Say({"CONFIG", "SET", "bind", "127.0.0.1"});
  redis.Say({"CONFIG", "SET", "port", std::to_string(port)});
  RedisAddress address;
  address.host = "127.0.0.1";
  address.port = port;
  EXPECT_TRUE(Open({address})->Acquire({.name = "head"}).ok());
  address.host = "::ffff:127.0.0.1";  // not a loopback address by its name, and it leads here
  ASSERT_FALSE(address.IsLocal());
  auto refused = Open({address})->Acquire({.name = "head"});
  EXPECT_EQ(StoreCode::kRefused, refused.code()) << refused.status().message();
  // A password that nobody asks for does not help.
  address.user = "default";
  address.password = "any";
  EXPECT_EQ(StoreCode::kRefused, Open({address})->Acquire({.name = "head"}).code());
  auto forced = Open({address}, true)->Acquire({.name = "head"});
  EXPECT_TRUE(forced.ok()) << forced.status().message();
  redis.Say({"CONFIG", "SET", "requirepass", "secret"});
  address.user.clear();
  address.password = "secret";
  auto closed = Open({address})->Acquire({.name = "head"});
  EXPECT_TRUE(closed.ok()) << closed.status().message();
}

TEST_F(RedisStoreTest, AServerThatThrowsKeysAwayIsRefused) {
  TestRedis redis("maxmemory 100mb\nmaxmemory-policy allkeys-lru");
  auto refused = Open({redis.address})->Acquire({.name = "head"});
  EXPECT_EQ(StoreCode::kRefused, refused.code());
  EXPECT_NE(refused.status().message().find("noeviction"), std::string::npos);
}

TEST_F(RedisStoreTest, ServersInAnotherOrderAreRefused) {
  TestRedis redis[2];
  ASSERT_TRUE(Open({redis[0].address, redis[1].address})->Acquire({.name = "head"}).ok());
  EXPECT_EQ(StoreCode::kInvalid, Open({redis[1].address, redis[0].address})->Acquire({.name = "head"}).code());
  EXPECT_EQ(StoreCode::kInvalid, Open({redis[0].address})->Acquire({.name = "head"}).code());
  EXPECT_TRUE(Open({redis[0].address, redis[1].address})->Acquire({.name = "head"}).ok());
}

TEST_F(RedisStoreTest, ClustersShareAServer) {
  TestRedis redis;
  auto store = Open({redis.address});
  ASSERT_TRUE(store->Acquire({.name = "head"}).ok());
  ASSERT_STORED(Put(*store, {{"a", "1"}}));
  RedisStoreOptions options;
  options.servers = {redis.address};
  options.cluster = "other";
  auto other = std::move(*MakeRedisStore(options));
  auto taken = other->Acquire({.name = "another head"});
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  EXPECT_TRUE(taken->snapshot.empty());
  ASSERT_STORED(Put(*store, {{"a", "2"}}));
}

TEST_F(RedisStoreTest, AStandbyLetsTheLeaderRenewAfterAnOutage) {
  TestRedis redis;
  auto leader = Open({redis.address});
  auto standby = Open({redis.address});
  ASSERT_TRUE(leader->Acquire({.name = "leader", .lease_ms = 200}).ok());
  EXPECT_EQ(StoreCode::kHeld, standby->Acquire({.name = "standby", .grace_ms = 100'000}).code());
  // The lease runs out while neither reaches the server.
  ASSERT_TRUE(Eventually([&] { return redis.Say({"EXISTS", "weft:{test}:lease"}) == "0"; }));
  EXPECT_EQ(StoreCode::kHeld, standby->Acquire({.name = "standby", .grace_ms = 100'000}).code());
  ASSERT_STORED(leader->Renew());
  EXPECT_EQ(StoreCode::kHeld, standby->Acquire({.name = "standby", .grace_ms = 100'000}).code());
  ASSERT_STORED(Put(*leader, {{"a", "1"}}));
}

// Also if the standby has seen the lease free before the outage.
TEST_F(RedisStoreTest, AStandbyCountsItsGraceAnewAfterAnOutage) {
  TestRedis redis;
  auto leader = Open({redis.address});
  auto standby = Open({redis.address});
  const Candidate candidate{.name = "standby", .grace_ms = 500};
  ASSERT_TRUE(leader->Acquire({.name = "leader", .lease_ms = 50}).ok());
  ASSERT_TRUE(Eventually([&] { return redis.Say({"EXISTS", "weft:{test}:lease"}) == "0"; }));
  EXPECT_EQ(StoreCode::kHeld, standby->Acquire(candidate).code());
  ::kill(redis.pid, SIGSTOP);
  EXPECT_EQ(StoreCode::kAway, standby->Acquire(candidate).code());  // takes a second
  ::kill(redis.pid, SIGCONT);
  EXPECT_EQ(StoreCode::kHeld, standby->Acquire(candidate).code());
  ASSERT_STORED(leader->Renew());
  ASSERT_STORED(Put(*leader, {{"a", "1"}}));
}

TEST_F(RedisStoreTest, AStandbyLetsTheLeaderRenewAfterTheMemoryWasFull) {
  TestRedis redis;
  auto leader = Open({redis.address});
  auto standby = Open({redis.address});
  const Candidate candidate{.name = "standby", .grace_ms = 100};
  ASSERT_TRUE(leader->Acquire({.name = "leader", .lease_ms = 50}).ok());
  redis.Say({"CONFIG", "SET", "maxmemory", "1"});
  EXPECT_EQ(StoreCode::kNoSpace, leader->Renew().code());
  ASSERT_TRUE(Eventually([&] { return redis.Say({"EXISTS", "weft:{test}:lease"}) == "0"; }));
  const int64_t begun_ns = NowNs();
  while (NowNs() < begun_ns + 200'000'000) EXPECT_EQ(StoreCode::kNoSpace, standby->Acquire(candidate).code());
  redis.Say({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_EQ(StoreCode::kHeld, standby->Acquire(candidate).code());
  ASSERT_STORED(leader->Renew());
  ASSERT_STORED(Put(*leader, {{"a", "1"}}));
}

// Something that is no Redis, or an old one: answers what it is told to whatever it is asked.
class FakeServer {
 public:
  explicit FakeServer(std::string answer) : answer_(std::move(answer)) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    listener_.Reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(0, ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&name), size));
    EXPECT_EQ(0, ::listen(listener_.get(), 5));
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&name), &size);
    address.host = "127.0.0.1";
    address.port = ntohs(name.sin_port);
    thread_ = std::thread([this] {
      for (;;) {
        UniqueFd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!peer) return;
        char bytes[4096];
        while (::recv(peer.get(), bytes, sizeof bytes, 0) > 0) {
          if (::send(peer.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL) < 0) break;
        }
      }
    });
  }
  ~FakeServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  RedisAddress address;

 private:
  const std::string answer_;
  UniqueFd listener_;
  std::thread thread_;
};

TEST_F(RedisStoreTest, WhatIsNoRedisIsSaidSo) {
  for (std::string answer :
       {"HTTP/1.1 400 Bad Request\r\n\r\n", "\x16\x03\x01\x02", "*2147483647\r\n", "$9223372036854775807\r\n",
        "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", "", ":1\r\n", "$-1\r\n"}) {
    FakeServer server(answer);
    StoreResult<Leadership> result = Open({server.address})->Acquire({.name = "head"});
    EXPECT_TRUE(result.code() == StoreCode::kAway || result.code() == StoreCode::kRefused)
        << StoreCodeName(result.code()) << ": " << result.status().message();
  }
}

TEST_F(RedisStoreTest, AnOldRedisIsRefused) {
  FakeServer server("$21\r\nredis_version:5.0.14\n\r\n");
  auto result = Open({server.address})->Acquire({.name = "head"});
  EXPECT_EQ(StoreCode::kRefused, result.code());
  EXPECT_NE(result.status().message().find("5.0.14"), std::string::npos) << result.status().message();
}

TEST_F(RedisStoreTest, NobodyThereIsAway) {
  RedisAddress address;
  address.unix_path = "/tmp/weft_no_such_socket";
  auto result = Open({address})->Acquire({.name = "head"});
  EXPECT_EQ(StoreCode::kAway, result.code());
  EXPECT_NE(result.status().message().find("/tmp/weft_no_such_socket"), std::string::npos);
}

// Whoever can write to Redis can spoil what is there, and no more than that.
TEST_F(RedisStoreTest, NonsenseInTheTablesIsAnErrorOrLeftOut) {
  TestRedis redis;
  {
    auto store = Open({redis.address});
    ASSERT_TRUE(store->Acquire({.name = "head"}).ok());
    ASSERT_STORED(Put(*store, {{"a", "1"}}));
  }
  for (auto& [words, code] : std::vector<std::pair<std::vector<std::string>, StoreCode>>{
           {{"SET", "weft:{test}:journal", "nonsense"}, StoreCode::kCorrupt},
           {{"SET", "weft:{test}:journal", std::string("\1\0\0\0\0\xff\xff\xff\xff", 9)}, StoreCode::kCorrupt},
           {{"SET", "weft:{test}:table:kv", "a string"}, StoreCode::kCorrupt},
           {{"HSET", "weft:{test}:fence", "format", "99"}, StoreCode::kRefused},
           {{"SET", "weft:{test}:fence", "a string"}, StoreCode::kCorrupt}}) {
    redis.Say({"FLUSHALL"});
    redis.Say(words);
    auto result = Open({redis.address})->Acquire({.name = "head"});
    EXPECT_EQ(code, result.code()) << words[1] << ": " << result.status().message();
  }
}

TEST(RedisStoreOptionsTest, AreChecked) {
  RedisStoreOptions options;
  options.cluster = "c";
  EXPECT_EQ(StoreCode::kInvalid, MakeRedisStore(options).code()) << "no server";
  options.servers.resize(1);
  EXPECT_TRUE(MakeRedisStore(options).ok());
  for (const char* name : {"", "a b", "{x}", "a:b", "a\n"}) {
    options.cluster = name;
    EXPECT_EQ(StoreCode::kInvalid, MakeRedisStore(options).code()) << name;
  }
}

}  // namespace
}  // namespace weft::core
