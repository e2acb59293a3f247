// The control store of the simulator: no thread, no clock, no descriptor. The caller says what happens, and when.
//
// A SimulatedStorage is what outlives a head; each head has a SimulatedStore on it. A commit is first queued, then
// performed (it is in the storage), then delivered (the head hears of it). A slow store performs or delivers late; a
// head that crashes is a store that is destroyed at any point in between. The storage can be away, and it can lose the
// last commits it has performed, as a Redis that writes to its disk once a second can. As with the real one, a living
// leader restores them at its next commit; they are gone only if it dies before that.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "control_store/control_store.h"

namespace weft::core {

class SimulatedStore;

class SimulatedStorage {
 public:
  int64_t now_ns = 0;  // set by the caller
  bool away = false;
  bool full = false;  // commits fail with kNoSpace

  // Forgets the last `count` performed commits that are not on the disk yet. Returns how many there were.
  size_t LoseLast(size_t count);
  void Sync();  // all that was performed is on the disk
  size_t unsynced() const { return recent_.size(); }
  Snapshot Read() const;

 private:
  friend class SimulatedStore;
  struct Performed {
    uint64_t epoch = 0;  // of the leader
    WriteBatch batch;
  };
  using Records = std::map<std::pair<Table, std::string>, std::string>;

  uint64_t epoch_ = 0;
  bool led_ = false;
  std::string leader_;
  int64_t lease_until_ns_ = 0;
  Records disk_;
  std::deque<Performed> recent_;  // performed, not on the disk
  std::deque<Performed> lost_;    // of the present leader, which will bring them back
};

class SimulatedStore : public ControlStore {
 public:
  explicit SimulatedStore(std::shared_ptr<SimulatedStorage> storage, StoreLimits limits = {})
      : storage_(std::move(storage)), limits_(limits) {}
  ~SimulatedStore() override { *alive_ = false; }

  void AcquireLeadership(Candidate candidate, LeadershipCallback callback) override;
  StoreStatus Commit(WriteBatch batch, Callback callback) override;
  StoreStatus Renew(Callback callback) override;
  StoreStatus Resign(Callback callback) override;
  StoreHealth health() const override;
  void Close() override;

  // Called when an operation is queued.
  std::function<void()> queued;

  // The storage takes the oldest queued operation. False: there is none, or it is away and nothing's time is over.
  bool Perform();
  // The oldest answer arrives. False: there is none.
  bool Deliver();

 private:
  enum class Kind : uint8_t { kAcquire, kCommit, kRenew, kResign };
  struct Operation {
    Kind kind;
    int64_t asked_ns = 0;
    Candidate candidate;
    WriteBatch batch;
    LeadershipCallback leadership;
    Callback done;
  };
  struct Answer {
    Operation operation;
    StoreStatus status;
    Leadership leadership;
  };
  StoreStatus Enqueue(Operation operation);
  StoreStatus CheckFence() const;
  StoreStatus PerformNow(Operation& operation, Leadership& leadership);
  void Call(Answer& answer);

  std::shared_ptr<SimulatedStorage> storage_;
  const StoreLimits limits_;
  std::deque<Operation> queue_;
  std::deque<Answer> answers_;
  uint64_t epoch_ = 0;
  int64_t lease_ns_ = 0;
  size_t commits_ = 0, bytes_ = 0;
  int64_t free_since_ns_ = -1;  // when this candidate first saw the lease free; -1: it was not
  StoreHealth health_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace weft::core
