#include "control_store/simulated_store.h"

#include <algorithm>

namespace weft::core {
namespace {

template <class Records>
void ApplyTo(Records& records, const WriteBatch& batch) {
  for (const Write& write : batch.writes) {
    if (write.erase) {
      records.erase({write.table, write.key});
    } else {
      records[{write.table, write.key}] = write.value;
    }
  }
}

}  // namespace

size_t SimulatedStorage::LoseLast(size_t count) {
  count = std::min(count, recent_.size());
  for (size_t i = 0; i < count; ++i) {
    if (recent_.back().epoch == epoch_) lost_.push_front(std::move(recent_.back()));
    recent_.pop_back();
  }
  return count;
}

void SimulatedStorage::Sync() {
  for (const Performed& performed : recent_) ApplyTo(disk_, performed.batch);
  recent_.clear();
}

Snapshot SimulatedStorage::Read() const {
  Records records = disk_;
  for (const Performed& performed : recent_) ApplyTo(records, performed.batch);
  Snapshot snapshot;
  for (const auto& [key, value] : records) snapshot.push_back({key.first, key.second, value});
  return snapshot;
}

void SimulatedStore::AcquireLeadership(Candidate candidate, LeadershipCallback callback) {
  WEFT_CHECK(health_.state != StoreHealth::kClosed, "leadership is asked for before Close");
  Operation operation{Kind::kAcquire};
  operation.candidate = std::move(candidate);
  operation.leadership = std::move(callback);
  (void)Enqueue(std::move(operation));
}

StoreStatus SimulatedStore::Commit(WriteBatch batch, Callback callback) {
  if (StoreStatus status = CheckBatch(batch, limits_); !status.ok()) return status;
  const size_t bytes = batch.bytes();
  if (commits_ >= limits_.queued_commits || bytes_ + bytes > limits_.queued_bytes) {
    return {StoreCode::kFull, std::to_string(commits_) + " commits wait for the control store already"};
  }
  Operation operation{Kind::kCommit};
  operation.batch = std::move(batch);
  operation.done = [this, bytes, callback = std::move(callback)](StoreStatus status) {
    --commits_;
    bytes_ -= bytes;
    callback(std::move(status));
  };
  StoreStatus status = Enqueue(std::move(operation));
  if (status.ok()) {
    ++commits_;
    bytes_ += bytes;
  }
  return status;
}

StoreStatus SimulatedStore::Renew(Callback callback) {
  auto is_renewal = [](const Operation& operation) { return operation.kind == Kind::kRenew; };
  if (std::any_of(queue_.begin(), queue_.end(), is_renewal)) {
    return {StoreCode::kFull, "the lease is being renewed already"};
  }
  Operation operation{Kind::kRenew};
  operation.done = std::move(callback);
  return Enqueue(std::move(operation));
}

StoreStatus SimulatedStore::Resign(Callback callback) {
  Operation operation{Kind::kResign};
  operation.done = std::move(callback);
  return Enqueue(std::move(operation));
}

StoreStatus SimulatedStore::Enqueue(Operation operation) {
  if (health_.state == StoreHealth::kClosed) return {StoreCode::kClosed, "the control store is closed"};
  operation.asked_ns = storage_->now_ns;
  queue_.push_back(std::move(operation));
  if (queued) queued();
  return {};
}

StoreHealth SimulatedStore::health() const {
  StoreHealth health = health_;
  health.queued_commits = commits_;
  health.queued_bytes = bytes_;
  return health;
}

void SimulatedStore::Close() {
  if (health_.state == StoreHealth::kClosed) return;
  health_.state = StoreHealth::kClosed;
  auto alive = alive_;
  while (*alive && Deliver()) {
  }
  while (*alive && !queue_.empty()) {
    Answer answer{std::move(queue_.front()), {StoreCode::kClosed, "the control store was closed"}, {}};
    queue_.pop_front();
    Call(answer);
  }
}

bool SimulatedStore::Perform() {
  if (queue_.empty()) return false;
  Operation& operation = queue_.front();
  Answer answer;
  if (storage_->away) {
    if (operation.kind != Kind::kAcquire) health_.state = StoreHealth::kAway;
    const bool over = storage_->now_ns >= operation.asked_ns + limits_.outage_ms * 1'000'000;
    if (operation.kind != Kind::kAcquire && !over) return false;
    free_since_ns_ = -1;
    answer.status = {StoreCode::kAway, "the simulated control store is away"};
  } else {
    answer.status = PerformNow(operation, answer.leadership);
  }
  answer.operation = std::move(operation);
  queue_.pop_front();
  answers_.push_back(std::move(answer));
  return true;
}

StoreStatus SimulatedStore::CheckFence() const {
  if (epoch_ == 0) return {StoreCode::kFenced, "this head does not lead: it has not taken the store"};
  if (epoch_ != storage_->epoch_) {
    return {StoreCode::kFenced, "another head leads since epoch " + std::to_string(storage_->epoch_) + "; ours was " +
                                    std::to_string(epoch_)};
  }
  return {};
}

StoreStatus SimulatedStore::PerformNow(Operation& operation, Leadership& leadership) {
  SimulatedStorage& storage = *storage_;
  if (operation.kind == Kind::kAcquire) {
    const Candidate& candidate = operation.candidate;
    const bool replaces = storage.leader_ == candidate.name || candidate.force;
    if (storage.led_ && !replaces) {
      if (storage.now_ns < storage.lease_until_ns_) {
        free_since_ns_ = -1;
        return {StoreCode::kHeld, "another head ('" + storage.leader_ + "') leads"};
      }
      if (free_since_ns_ < 0) free_since_ns_ = storage.now_ns;
      if (storage.now_ns < free_since_ns_ + candidate.grace_ms * 1'000'000) {
        return {StoreCode::kHeld, "the lease of '" + storage.leader_ + "' ran out a moment ago"};
      }
    }
    storage.led_ = true;
    storage.leader_ = candidate.name;
    storage.lost_.clear();
    lease_ns_ = candidate.lease_ms * 1'000'000;
    storage.lease_until_ns_ = storage.now_ns + lease_ns_;
    epoch_ = ++storage.epoch_;
    health_.state = StoreHealth::kReady;
    leadership.epoch = epoch_;
    leadership.snapshot = storage.Read();
    return {};
  }
  if (StoreStatus status = CheckFence(); !status.ok()) {
    health_.state = StoreHealth::kFenced;
    return status;
  }
  for (auto& lost : storage.lost_) storage.recent_.push_back(std::move(lost));
  storage.lost_.clear();
  if (operation.kind == Kind::kResign) {
    storage.led_ = false;
    epoch_ = 0;
    health_.state = StoreHealth::kIdle;
    return {};
  }
  storage.lease_until_ns_ = storage.now_ns + lease_ns_;
  health_.state = StoreHealth::kReady;
  if (operation.kind == Kind::kRenew) return {};
  if (storage.full) {
    health_.state = StoreHealth::kTroubled;
    return {StoreCode::kNoSpace, "the simulated control store is full"};
  }
  storage.recent_.push_back({epoch_, std::move(operation.batch)});
  return {};
}

bool SimulatedStore::Deliver() {
  if (answers_.empty()) return false;
  Answer answer = std::move(answers_.front());
  answers_.pop_front();
  Call(answer);
  return true;
}

void SimulatedStore::Call(Answer& answer) {
  if (answer.operation.kind != Kind::kAcquire) {
    answer.operation.done(std::move(answer.status));
  } else if (answer.status.ok()) {
    answer.operation.leadership(std::move(answer.leadership));
  } else {
    answer.operation.leadership(std::move(answer.status));
  }
}

}  // namespace weft::core
