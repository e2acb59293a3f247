#include "node/head_ledger.h"

#include <fcntl.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "control_store/memory_store.h"
#include "control_store/redis_store.h"
#include "control_store/sqlite_store.h"
#include "control_store/worker_store.h"
#include "log/log.h"
#include "os/entropy.h"
#include "os/token_file.h"

namespace weft::core {
namespace {

constexpr int64_t kLeaseMs = 5'000;
constexpr int64_t kRenewNs = 1'500'000'000;
// A standby takes over when the leader's lease was seen free for so long: a leader whose store was away renews first.
// That needs until its next attempt to reach the store (WorkerStore pauses for up to a second, and TCP says what was
// lost again after pauses that grow while a cable is out).
constexpr int64_t kGraceMs = 3'000;
// How many numbers of nodes are written down as given out before they are. So a store that loses its last second
// together with the head does not make the next head give one out twice.
constexpr uint32_t kNumbersAhead = 64;
constexpr int64_t kAskAgainNs = 200'000'000;
// How long a head that starts waits for a store that does not answer yet, such as a Redis that is being started.
constexpr int64_t kOpenNs = 15'000'000'000;
constexpr int64_t kLockNs = 2'000'000'000;
constexpr int64_t kStopRedisNs = 3'000'000'000;
constexpr int64_t kResignNs = 500'000'000;

int64_t UnixMs() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

Identity ToIdentity(const NodeIdentity& identity) {
  Identity bytes{};
  static_assert(sizeof bytes == sizeof identity);
  std::memcpy(bytes.data(), &identity, sizeof identity);
  return bytes;
}

NodeIdentity FromIdentity(const Identity& bytes) {
  NodeIdentity identity;
  std::memcpy(&identity, bytes.data(), sizeof identity);
  return identity;
}

std::string Hex(const Identity& bytes) {
  std::string text;
  char two[3];
  for (uint8_t byte : bytes) {
    std::snprintf(two, sizeof two, "%02x", byte);
    text += two;
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<HeadLedger>> HeadLedger::Create(EventLoop& loop, const LastingNodeOptions& options, Host& host) {
  std::unique_ptr<HeadLedger> ledger(new HeadLedger(loop, options, host));
  if (Status status = ledger->OpenStore(); !status) return status.error();
  ledger->give_up_ns_ = NowNs() + kOpenNs;
  ledger->Acquire();
  return ledger;
}

HeadLedger::~HeadLedger() {
  lost_ = true;
  if (store_) store_->Close();
}

Status HeadLedger::OpenStore() {
  if (options_.state_folder.empty()) {
    auto store = MakeMemoryStore(loop_);
    if (!store) return store.error();
    store_ = std::move(*store);
    return {};
  }
  if (Status status = EnsurePrivateDirectory(options_.state_folder); !status) return status;
  // The store's leader is known by its address; whoever holds this lock is the only one that may use it.
  const std::string lock = options_.state_folder + "/head.lock";
  lock_ = UniqueFd(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_) return Error{ErrorKind::kUnavailable, lock + " cannot be opened: " + std::strerror(errno)};
  // One that was just killed holds it for a moment longer.
  const int64_t deadline = NowNs() + kLockNs;
  while (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && NowNs() < deadline) {
    timespec moment{0, 5'000'000};
    ::nanosleep(&moment, nullptr);
  }
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error{ErrorKind::kInvalid, "another head with the state in " + options_.state_folder +
                                          " runs on this machine; stop it first (weft stop), or give this one another "
                                          "--port or --state"};
  }
  std::unique_ptr<BlockingStore> backend;
  if (options_.redis.empty() && options_.own_redis == 0) {
    backend = MakeSqliteStore({.path = options_.state_folder + "/state.db"});
  } else {
    RedisStoreOptions redis;
    redis.cluster = options_.redis_cluster;
    redis.allow_open = options_.allow_open_redis;
    for (const std::string& url : options_.redis) {
      auto address = ParseRedisAddress(url);
      if (!address.ok()) return Error{ErrorKind::kInvalid, address.status().message()};
      if (address->password.empty()) address->password = options_.redis_password;
      redis.servers.push_back(std::move(*address));
    }
    for (uint32_t i = 0; i < options_.own_redis; ++i) {
      auto server = RedisServer::Start(loop_, {.folder = options_.state_folder + "/redis-" + std::to_string(i + 1)});
      if (!server) return server.error();
      redis.servers.push_back((*server)->address());
      servers_.push_back(std::move(*server));
    }
    auto made = MakeRedisStore(std::move(redis));
    if (!made.ok()) return Error{ErrorKind::kInvalid, made.status().message()};
    backend = std::move(*made);
  }
  auto store = WorkerStore::Create(loop_, std::move(backend));
  if (!store) return store.error();
  store_ = std::move(*store);
  return {};
}

// ---- leadership ---------------------------------------------------------------------------------------------------

void HeadLedger::Acquire() {
  acquire_at_ns_ = INT64_MAX;
  // The same after a restart, and no other's: two machines may both listen on 0.0.0.0. (A free port is another each
  // time, but then nothing is kept either.)
  char machine[256] = "";
  ::gethostname(machine, sizeof machine - 1);
  Candidate candidate{.name = std::string(machine) + "/" + options_.host + ":" + std::to_string(options_.port),
                      .lease_ms = kLeaseMs,
                      .grace_ms = kGraceMs};
  store_->AcquireLeadership(std::move(candidate),
                            [this](StoreResult<Leadership> outcome) { Acquired(std::move(outcome)); });
}

void HeadLedger::Acquired(StoreResult<Leadership> outcome) {
  if (lost_) return;
  if (!outcome.ok()) {
    const bool held = outcome.code() == StoreCode::kHeld;
    if (held && !options_.standby) {
      return Lose("another head leads this cluster (" + outcome.status().message() +
                  "); to have this one wait for its end, say --standby");
    }
    // A standby that has once found another head has the right store and password: what is wrong now may be mended.
    const bool may_change = held || outcome.code() == StoreCode::kAway || told_held_;
    if (!may_change || NowNs() >= give_up_ns_) return Lose(outcome.status().message());
    if (held && !std::exchange(told_held_, true)) {
      give_up_ns_ = INT64_MAX;  // from here on nobody waits for us
      LogInfo("store", "another head leads; this one waits");
      host_.LedgerHeld();
    }
    if (!held) {
      TakesNone(outcome.status().message());
    } else if (told_held_) {
      TakesAgain();
    }
    acquire_at_ns_ = NowNs() + kAskAgainNs;
    return;
  }
  for (const std::string& warning : outcome->warnings) LogWarning("store", "%s", warning.c_str());
  open_ = true;
  renew_at_ns_ = NowNs() + kRenewNs;
  Restored restored = Read(*outcome);
  if (restored.found) {
    LogInfo("store", "this head goes on with cluster %s, epoch %llu, %zu nodes", restored.cluster_id.c_str(),
            static_cast<unsigned long long>(restored.epoch), restored.members.size());
  }
  LogInfo("store", "this head leads cluster %s in epoch %" PRIu64, restored.cluster_id.c_str(), restored.epoch);
  WriteBatch batch;
  Put(batch, cluster_);
  for (NodeNumber node : restored.former_selves) DeleteNode(batch, node.value);
  Commit(std::move(batch),
         [this, restored = std::move(restored)]() mutable { host_.LedgerOpened(std::move(restored)); });
}

HeadLedger::Restored HeadLedger::Read(Leadership& leadership) {
  Restored restored{.epoch = leadership.epoch};
  size_t unreadable = 0;
  for (const StoredRecord& record : leadership.snapshot) {
    if (record.table != Table::kCluster) continue;
    if (auto cluster = Decode<ClusterRecord>(record)) {
      cluster_ = *cluster;
      restored.found = true;
    } else {
      ++unreadable;
    }
  }
  if (!restored.found) {
    FillWithEntropy(cluster_.id);
    cluster_.made_unix_ms = UnixMs();
  }
  restored.cluster_id = Hex(cluster_.id);
  sealer_ = std::make_unique<RecordSealer>(options_.token, restored.cluster_id);
  for (StoredRecord& record : leadership.snapshot) {
    switch (record.table) {
      case Table::kNodes:
        if (auto node = Decode<NodeRecord>(record)) {
          restored.next_node.value = std::max(restored.next_node.value, node->number + 1);
          if (node->state != NodeRecord::kAlive || node->name == options_.name) {
            restored.former_selves.push_back({node->number});
          } else {
            restored.members.emplace_back(NodeNumber{node->number},
                                          NodeDescription{FromIdentity(node->identity), node->name, node->address,
                                                          node->resources, node->labels});
          }
          continue;
        }
        break;
      case Table::kActors:
      case Table::kJobs: {
        auto opened = sealer_->Open(record.table, record.key, record.value);
        if (!opened.ok()) {
          LogError("store", "%s; it is left out", opened.status().message().c_str());
          continue;
        }
        record.value = std::move(*opened);
        if (record.table == Table::kJobs) {
          if (auto job = Decode<JobRecord>(record)) {
            restored.jobs.push_back(std::move(*job));
            continue;
          }
        } else if (auto actor = Decode<ActorRecord>(record)) {
          restored.actors.push_back(std::move(*actor));
          continue;
        }
        break;
      }
      default:
        continue;
    }
    ++unreadable;
  }
  if (unreadable > 0) {
    LogError("store", "%zu records of the control store cannot be read and are left out", unreadable);
  }
  cluster_.next_node = std::max(cluster_.next_node, restored.next_node.value);
  restored.next_node.value = cluster_.next_node;
  cluster_.next_node += kNumbersAhead;
  restored.lease_ns = int64_t{cluster_.lease_ms} * 1'000'000;
  // The next head must wait for those, too, who have theirs from an earlier one.
  const auto own_ms = static_cast<uint32_t>(NodeLeaseNs(options_) / 1'000'000);
  cluster_.lease_ms = restored.members.empty() ? own_ms : std::max(cluster_.lease_ms, own_ms);
  return restored;
}

void HeadLedger::Lose(const std::string& why) {
  if (std::exchange(lost_, true)) return;
  open_ = false;
  host_.LedgerLost(why);
}

// ---- changes ------------------------------------------------------------------------------------------------------

// One at a time: a change that the store refuses (no space, away for long) is tried again before any later one, since
// what was decided must not be forgotten, nor overtaken.
void HeadLedger::Commit(WriteBatch batch, std::function<void()> then, Waits waits) {
  if (lost_) return;
  const bool told = waits && !takes_none_.empty();
  if (told) waits(takes_none_);
  changes_.push_back({std::move(batch), std::move(then), told ? nullptr : std::move(waits)});
  if (retry_at_ns_ == INT64_MAX) Submit();
}

void HeadLedger::Submit() {
  if (lost_ || submitted_ || changes_.empty()) return;
  submitted_ = true;
  retry_at_ns_ = INT64_MAX;
  StoreStatus status =
      store_->Commit(changes_.front().batch, [this](StoreStatus outcome) { Committed(std::move(outcome)); });
  if (!status.ok()) Committed(status);
}

void HeadLedger::Committed(const StoreStatus& outcome) {
  submitted_ = false;
  if (lost_ || outcome.code() == StoreCode::kClosed) return;
  if (outcome.code() == StoreCode::kFenced) {
    return Lose("another head has taken over this cluster (" + outcome.message() + ")");
  }
  if (!outcome.ok()) {
    retry_at_ns_ = NowNs() + kAskAgainNs;
    return TakesNone(outcome.message());
  }
  TakesAgain();
  auto then = std::move(changes_.front().then);
  changes_.pop_front();
  if (then) then();
  Submit();
}

// Told once, to the log and to whoever waits.
void HeadLedger::TakesNone(const std::string& why) {
  if (takes_none_.empty()) {
    LogWarning("store", "the control store takes no changes; they wait, and are tried again: %s", why.c_str());
  }
  takes_none_ = why;
  for (size_t i = 0; i < changes_.size(); ++i) {
    if (auto waits = std::exchange(changes_[i].waits, nullptr)) waits(why);
  }
}

void HeadLedger::TakesAgain() {
  if (takes_none_.empty()) return;
  takes_none_.clear();
  LogWarning("store", "the control store takes changes again");
}

void HeadLedger::NodeAccepted(NodeNumber node, const NodeDescription& description, NodeNumber next,
                              std::function<void()> then) {
  WriteBatch batch;
  NodeRecord record;
  record.number = node.value;
  record.identity = ToIdentity(description.identity);
  record.name = description.name;
  record.address = description.address;
  record.resources = description.resources;
  record.labels = description.labels;
  record.joined_unix_ms = UnixMs();
  Put(batch, record);
  if (next.value + kNumbersAhead / 2 > cluster_.next_node) {
    cluster_.next_node = next.value + kNumbersAhead;
    Put(batch, cluster_);
  }
  Commit(std::move(batch), std::move(then));
}

void HeadLedger::NodeDied(NodeNumber node, std::function<void()> then) {
  WriteBatch batch;
  DeleteNode(batch, node.value);
  Commit(std::move(batch), std::move(then));
}

void HeadLedger::CommitSealed(WriteBatch batch, std::function<void()> then, Waits waits) {
  sealer_->SealAll(batch);
  Commit(std::move(batch), std::move(then), std::move(waits));
}

void HeadLedger::Resign() {
  if (open_ && !lost_) {
    [[maybe_unused]] StoreStatus ignored = store_->Resign([](StoreStatus) {});
    // The store's thread is ended next, and must have said it by then: else a standby waits until the lease runs out.
    const int64_t said_by = NowNs() + kResignNs;
    while (!options_.state_folder.empty() && NowNs() < said_by) {
      const StoreHealth::State state = store_->health().state;
      if (state != StoreHealth::kReady && state != StoreHealth::kTroubled) break;
      timespec moment{0, 1'000'000};
      ::nanosleep(&moment, nullptr);
    }
  }
  const int64_t deadline = NowNs() + kStopRedisNs;
  // What was committed before is written first; a server of ours must not end before that.
  while (open_ && !servers_.empty() && store_->health().queued_commits > 0 && NowNs() < deadline) {
    timespec moment{0, 1'000'000};
    ::nanosleep(&moment, nullptr);
  }
  for (auto& server : servers_) server->Stop(deadline);
}

int64_t HeadLedger::NextDeadline() const {
  int64_t next = std::min({acquire_at_ns_, renew_at_ns_, retry_at_ns_});
  for (const auto& server : servers_) next = std::min(next, server->next_wakeup_ns());
  return next;
}

void HeadLedger::Tick(int64_t now_ns) {
  for (auto& server : servers_) {
    if (server->next_wakeup_ns() <= now_ns) server->Tick(now_ns);
  }
  if (lost_) return;
  if (acquire_at_ns_ <= now_ns) Acquire();
  if (retry_at_ns_ <= now_ns) Submit();
  if (open_ && renew_at_ns_ <= now_ns) {
    renew_at_ns_ = now_ns + kRenewNs;
    // One that does not answer is waited for, and a change that fails at last would be late news.
    if (const StoreHealth health = store_->health(); health.state == StoreHealth::kAway) TakesNone(health.message);
    StoreStatus status = store_->Renew([this](StoreStatus outcome) {
      if (lost_) return;
      if (outcome.code() == StoreCode::kFenced) {
        Lose("another head has taken over this cluster (" + outcome.message() + ")");
      } else if (!outcome.ok() && outcome.code() != StoreCode::kClosed) {
        TakesNone(outcome.message());  // a standby may take over if this lasts
      } else if (outcome.ok() && changes_.empty()) {
        TakesAgain();
      }
    });
    if (status.code() == StoreCode::kFenced) Lose("another head has taken over this cluster");
  }
}

}  // namespace weft::core
