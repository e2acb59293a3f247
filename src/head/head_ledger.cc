#include "head/head_ledger.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

namespace weft::core {
namespace {

// How many numbers of nodes are persisted as given out before they are. So a store that loses its last second together
// with the head does not make the next head give one out twice.
constexpr uint32_t kNumbersAhead = 64;

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

void HeadLedger::Start() {
  give_up_ns_ = io_.Now() + config_.open_ns;
  Acquire();
}

// ---- leadership ---------------------------------------------------------------------------------------------------

void HeadLedger::Acquire() {
  acquire_at_ns_ = INT64_MAX;
  store_.AcquireLeadership(config_.candidate,
                           [this](StoreResult<Leadership> outcome) { Acquired(std::move(outcome)); });
}

void HeadLedger::Acquired(StoreResult<Leadership> outcome) {
  if (lost_ || outcome.code() == StoreCode::kClosed) return;
  if (!outcome.ok()) {
    const bool held = outcome.code() == StoreCode::kHeld;
    if (held && !config_.standby) {
      return Lose("another head leads this cluster (" + outcome.status().message() +
                  "); to have this one wait for its end, say --standby");
    }
    // A standby that has once found another head has the right store and password: what is wrong now may be mended.
    const bool may_change = held || outcome.code() == StoreCode::kAway || told_held_;
    if (!may_change || io_.Now() >= give_up_ns_) return Lose(outcome.status().message());
    if (held && !std::exchange(told_held_, true)) {
      give_up_ns_ = INT64_MAX;  // from here on nobody waits for us
      io_.Log(LogLevel::kInfo, "store", "another head leads; this one waits");
      host_.LedgerHeld();
    }
    if (!held) {
      TakesNone(outcome.status().message());
    } else if (told_held_) {
      TakesAgain();
    }
    acquire_at_ns_ = io_.Now() + config_.again_ns;
    return;
  }
  for (const std::string& warning : outcome->warnings) io_.Log(LogLevel::kWarning, "store", warning);
  open_ = true;
  renew_at_ns_ = io_.Now() + config_.renew_ns;
  Restored restored = Read(*outcome);
  const std::string epoch = std::to_string(restored.epoch);
  if (restored.found) {
    io_.Log(LogLevel::kInfo, "store",
            "this head goes on with cluster " + restored.cluster_id + ", epoch " + epoch + ", " +
                std::to_string(restored.members.size()) + " nodes");
  }
  io_.Log(LogLevel::kInfo, "store", "this head leads cluster " + restored.cluster_id + " in epoch " + epoch);
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
    cluster_.id = config_.new_cluster;
    cluster_.made_unix_ms = io_.UnixMs();
  }
  restored.cluster_id = Hex(cluster_.id);
  sealer_ = std::make_unique<RecordSealer>(config_.token, restored.cluster_id);
  for (StoredRecord& record : leadership.snapshot) {
    switch (record.table) {
      case Table::kNodes:
        if (auto node = Decode<NodeRecord>(record)) {
          restored.next_node.value = std::max(restored.next_node.value, node->number + 1);
          if (node->state != NodeRecord::kAlive || node->name == config_.node_name) {
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
          io_.Log(LogLevel::kError, "store", opened.status().message() + "; it is left out");
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
    io_.Log(LogLevel::kError, "store",
            std::to_string(unreadable) + " records of the control store cannot be read and are left out");
  }
  cluster_.next_node = std::max(cluster_.next_node, restored.next_node.value);
  restored.next_node.value = cluster_.next_node;
  cluster_.next_node += kNumbersAhead;
  restored.lease_ns = int64_t{cluster_.lease_ms} * 1'000'000;
  // The next head must wait for members of earlier heads, too.
  const auto own_ms = static_cast<uint32_t>(config_.lease_ns / 1'000'000);
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
      store_.Commit(changes_.front().batch, [this](StoreStatus outcome) { Committed(std::move(outcome)); });
  if (!status.ok()) Committed(status);
}

void HeadLedger::Committed(const StoreStatus& outcome) {
  submitted_ = false;
  if (lost_ || outcome.code() == StoreCode::kClosed) return;
  if (outcome.code() == StoreCode::kFenced) {
    return Lose("another head has taken over this cluster (" + outcome.message() + ")");
  }
  if (!outcome.ok()) {
    retry_at_ns_ = io_.Now() + config_.again_ns;
    return TakesNone(outcome.message());
  }
  TakesAgain();
  auto then = std::move(changes_.front().then);
  changes_.pop_front();
  if (then) then();
  Submit();
}

// Told once, to the log and to the callers that wait.
void HeadLedger::TakesNone(const std::string& why) {
  if (takes_none_.empty()) {
    io_.Log(LogLevel::kWarning, "store", "the control store takes no changes; they wait, and are tried again: " + why);
  }
  takes_none_ = why;
  for (size_t i = 0; i < changes_.size(); ++i) {
    if (auto waits = std::exchange(changes_[i].waits, nullptr)) waits(why);
  }
}

void HeadLedger::TakesAgain() {
  if (takes_none_.empty()) return;
  takes_none_.clear();
  io_.Log(LogLevel::kWarning, "store", "the control store takes changes again");
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
  record.joined_unix_ms = io_.UnixMs();
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

bool HeadLedger::Resign() {
  if (!open_ || lost_) return false;
  [[maybe_unused]] StoreStatus ignored = store_.Resign([](StoreStatus) {});
  return true;
}

int64_t HeadLedger::next_wakeup_ns() const { return std::min({acquire_at_ns_, renew_at_ns_, retry_at_ns_}); }

void HeadLedger::Tick(int64_t now_ns) {
  if (lost_) return;
  if (acquire_at_ns_ <= now_ns) Acquire();
  if (retry_at_ns_ <= now_ns) Submit();
  if (open_ && renew_at_ns_ <= now_ns) Renew(now_ns);
}

void HeadLedger::Renew(int64_t now_ns) {
  renew_at_ns_ = now_ns + config_.renew_ns;
  // One that does not answer is waited for, and a change that fails at last would be late news.
  if (const StoreHealth health = store_.health(); health.state == StoreHealth::kAway) TakesNone(health.message);
  StoreStatus status = store_.Renew([this](StoreStatus outcome) {
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

}  // namespace weft::core
