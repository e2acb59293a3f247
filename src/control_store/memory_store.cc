#include "control_store/memory_store.h"

#include "base/clock.h"

namespace weft::core {
namespace {

class MemoryStore : public ControlStore {
 public:
  MemoryStore(std::shared_ptr<MemoryTables> tables, StoreLimits limits)
      : keeps_(tables != nullptr),
        tables_(tables ? std::move(tables) : std::make_shared<MemoryTables>()),
        limits_(limits) {
    health_.since_ns = NowNs();
  }
  ~MemoryStore() override { Close(); }

  void AcquireLeadership(Candidate candidate, LeadershipCallback callback) override {
    WEFT_CHECK(health_.state != StoreHealth::kClosed, "leadership is asked for before Close");
    const int64_t now_ns = NowNs();
    if (tables_->led && tables_->leader != candidate.name && now_ns < tables_->lease_until_ns && !candidate.force) {
      Answer([callback = std::move(callback), name = tables_->leader] {
        callback(StoreStatus(StoreCode::kHeld, "another head ('" + name + "') leads"));
      });
      return;
    }
    tables_->led = true;
    tables_->leader = candidate.name;
    lease_ns_ = candidate.lease_ms * 1'000'000;
    tables_->lease_until_ns = now_ns + lease_ns_;
    epoch_ = ++tables_->epoch;
    SetState(StoreHealth::kReady);
    Leadership leadership;
    leadership.epoch = epoch_;
    for (const auto& [key, value] : tables_->records) leadership.snapshot.push_back({key.first, key.second, value});
    Answer([callback = std::move(callback), leadership = std::move(leadership)]() mutable {
      callback(std::move(leadership));
    });
  }

  StoreStatus Commit(WriteBatch batch, Callback callback) override {
    if (StoreStatus status = CheckBatch(batch, limits_); !status.ok()) return status;
    const size_t bytes = batch.bytes();
    if (commits_ >= limits_.queued_commits || bytes_ + bytes > limits_.queued_bytes) {
      return {StoreCode::kFull, std::to_string(commits_) + " commits wait for the control store already"};
    }
    StoreStatus status = CheckFence();
    if (status.code() == StoreCode::kClosed) return status;
    if (status.ok() && keeps_) {
      for (Write& write : batch.writes) {
        std::pair key(write.table, std::move(write.key));
        if (write.erase) {
          tables_->records.erase(key);
        } else {
          tables_->records[std::move(key)] = std::move(write.value);
        }
      }
    }
    ++commits_;
    bytes_ += bytes;
    Answer([this, bytes, callback = std::move(callback), status = std::move(status)]() mutable {
      --commits_;
      bytes_ -= bytes;
      callback(std::move(status));
    });
    return {};
  }

  StoreStatus Renew(Callback callback) override {
    StoreStatus status = CheckFence();
    if (status.code() == StoreCode::kClosed) return status;
    Answer([callback = std::move(callback), status = std::move(status)]() mutable { callback(std::move(status)); });
    return {};
  }

  StoreStatus Resign(Callback callback) override {
    StoreStatus status = CheckFence();
    if (status.code() == StoreCode::kClosed) return status;
    if (status.ok()) {
      tables_->led = false;
      epoch_ = 0;
      SetState(StoreHealth::kIdle);
    }
    Answer([callback = std::move(callback), status = std::move(status)]() mutable { callback(std::move(status)); });
    return {};
  }

  StoreHealth health() const override {
    StoreHealth health = health_;
    health.queued_commits = commits_;
    health.queued_bytes = bytes_;
    return health;
  }

  void Close() override {
    if (health_.state == StoreHealth::kClosed) return;
    SetState(StoreHealth::kClosed);
    if (callbacks) callbacks->Drain();
  }

  std::unique_ptr<CallbackQueue> callbacks;

 private:
  void Answer(std::function<void()> call) { callbacks->Post(std::move(call)); }

  StoreStatus CheckFence() {
    if (health_.state == StoreHealth::kClosed) return {StoreCode::kClosed, "the control store is closed"};
    if (epoch_ == 0) return {StoreCode::kFenced, "this head does not lead: it has not taken the store"};
    if (epoch_ != tables_->epoch) {
      SetState(StoreHealth::kFenced);
      return {StoreCode::kFenced, "another head leads since epoch " + std::to_string(tables_->epoch) + "; ours was " +
                                      std::to_string(epoch_)};
    }
    tables_->lease_until_ns = NowNs() + lease_ns_;
    return {};
  }

  void SetState(StoreHealth::State state) {
    if (health_.state != state) health_.since_ns = NowNs();
    health_.state = state;
  }

  const bool keeps_;
  std::shared_ptr<MemoryTables> tables_;
  const StoreLimits limits_;
  StoreHealth health_;
  uint64_t epoch_ = 0;
  int64_t lease_ns_ = 0;
  size_t commits_ = 0, bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<ControlStore>> MakeMemoryStore(EventLoop& loop, std::shared_ptr<MemoryTables> tables,
                                                      StoreLimits limits) {
  auto store = std::make_unique<MemoryStore>(std::move(tables), limits);
  auto callbacks = CallbackQueue::Create(loop);
  if (!callbacks) return callbacks.error();
  store->callbacks = std::move(*callbacks);
  return std::unique_ptr<ControlStore>(std::move(store));
}

}  // namespace weft::core
