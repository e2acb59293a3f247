#include "node/head_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "control_store/memory_store.h"
#include "control_store/redis_store.h"
#include "control_store/sqlite_store.h"
#include "control_store/worker_store.h"
#include "os/token_file.h"

namespace weft::core {
namespace {

constexpr int64_t kLockNs = 2'000'000'000;
constexpr int64_t kStopRedisNs = 3'000'000'000;
constexpr int64_t kResignNs = 500'000'000;

void PauseBriefly() {
  timespec moment{0, 1'000'000};
  ::nanosleep(&moment, nullptr);
}

}  // namespace

Result<std::unique_ptr<HeadStore>> HeadStore::Open(EventLoop& loop, const LastingNodeOptions& options) {
  std::unique_ptr<HeadStore> store(new HeadStore);
  if (Status status = store->OpenStore(loop, options); !status) return status.error();
  return store;
}

HeadStore::~HeadStore() {
  if (store_) store_->Close();
}

Status HeadStore::OpenStore(EventLoop& loop, const LastingNodeOptions& options) {
  if (options.state_folder.empty()) {
    auto store = MakeMemoryStore(loop);
    if (!store) return store.error();
    store_ = std::move(*store);
    return {};
  }
  if (Status status = EnsurePrivateDirectory(options.state_folder); !status) return status;
  // The store's leader is known by its address; the holder of this lock is the only one that may use it.
  const std::string lock = options.state_folder + "/head.lock";
  lock_ = UniqueFd(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_) return Error{ErrorKind::kUnavailable, lock + " cannot be opened: " + std::strerror(errno)};
  // One that was just killed holds it for a moment longer.
  const int64_t deadline = NowNs() + kLockNs;
  while (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && NowNs() < deadline) {
    timespec moment{0, 5'000'000};
    ::nanosleep(&moment, nullptr);
  }
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error{ErrorKind::kInvalid, "another head with the state in " + options.state_folder +
                                          " runs on this machine; stop it first (weft stop), or give this one another "
                                          "--port or --state"};
  }
  std::unique_ptr<BlockingStore> backend;
  if (options.redis.empty() && options.own_redis == 0) {
    backend = MakeSqliteStore({.path = options.state_folder + "/state.db"});
  } else {
    RedisStoreOptions redis;
    redis.cluster = options.redis_cluster;
    redis.allow_open = options.allow_open_redis;
    for (const std::string& url : options.redis) {
      auto address = ParseRedisAddress(url);
      if (!address.ok()) return Error{ErrorKind::kInvalid, address.status().message()};
      if (address->password.empty()) address->password = options.redis_password;
      redis.servers.push_back(std::move(*address));
    }
    for (uint32_t i = 0; i < options.own_redis; ++i) {
      auto server = RedisServer::Start(loop, {.folder = options.state_folder + "/redis-" + std::to_string(i + 1)});
      if (!server) return server.error();
      redis.servers.push_back((*server)->address());
      servers_.push_back(std::move(*server));
    }
    auto made = MakeRedisStore(std::move(redis));
    if (!made.ok()) return Error{ErrorKind::kInvalid, made.status().message()};
    backend = std::move(*made);
  }
  auto store = WorkerStore::Create(loop, std::move(backend));
  if (!store) return store.error();
  store_ = std::move(*store);
  return {};
}

void HeadStore::End(bool resigned) {
  // The store's thread is ended next, and must have said it by then: else a standby waits until the lease runs out.
  const int64_t said_by = NowNs() + kResignNs;
  while (resigned && lock_ && NowNs() < said_by) {
    const StoreHealth::State state = store_->health().state;
    if (state != StoreHealth::kReady && state != StoreHealth::kTroubled) break;
    PauseBriefly();
  }
  const int64_t deadline = NowNs() + kStopRedisNs;
  // What was committed before is written first; a server of ours must not end before that.
  while (!servers_.empty() && store_->health().queued_commits > 0 && NowNs() < deadline) PauseBriefly();
  for (auto& server : servers_) server->Stop(deadline);
}

int64_t HeadStore::NextDeadline() const {
  int64_t next = INT64_MAX;
  for (const auto& server : servers_) next = std::min(next, server->next_wakeup_ns());
  return next;
}

void HeadStore::Tick(int64_t now_ns) {
  for (auto& server : servers_) {
    if (server->next_wakeup_ns() <= now_ns) server->Tick(now_ns);
  }
}

}  // namespace weft::core
