// A ControlStore made of a BlockingStore and a thread that calls it.
//
// It needs a thread, because waiting for a disk's fsync or for the name of a Redis server cannot be split. While the
// thread is in one call, commits gather and go to the backend together in the next: grouped commits. Public calls come
// on the loop's thread; the two threads share a mutex, held only briefly, and a CallbackQueue.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "control_store/blocking_store.h"
#include "control_store/callback_queue.h"

namespace weft::core {

class WorkerStore : public ControlStore {
 public:
  static Result<std::unique_ptr<WorkerStore>> Create(EventLoop& loop, std::unique_ptr<BlockingStore> backend,
                                                     StoreLimits limits = {});
  ~WorkerStore() override;

  void AcquireLeadership(Candidate candidate, LeadershipCallback callback) override;
  StoreStatus Commit(WriteBatch batch, Callback callback) override;
  StoreStatus Renew(Callback callback) override;
  StoreStatus Resign(Callback callback) override;
  StoreHealth health() const override;
  void Close() override;

 private:
  enum class Kind : uint8_t { kAcquire, kCommit, kRenew, kResign };
  struct Operation {
    Kind kind;
    int64_t asked_ns = 0;
    size_t bytes = 0;
    Candidate candidate;
    WriteBatch batch;
    LeadershipCallback leadership;
    Callback done;
  };

  WorkerStore(std::unique_ptr<BlockingStore> backend, StoreLimits limits)
      : backend_(std::move(backend)), limits_(limits) {}
  StoreStatus Enqueue(Operation operation);
  void Run();                                   // the thread
  std::vector<Operation> TakeGroup();           // empty: closed
  void Perform(std::vector<Operation>& group);  // until its outcome is known or its time is up
  bool Pause(int64_t until_ns);                 // false: closed
  void Finish(Operation& operation, StoreStatus status);
  void SetState(StoreHealth::State state, const std::string& message);

  // Constant after Create, or the thread's own.
  std::unique_ptr<BlockingStore> backend_;
  const StoreLimits limits_;
  std::unique_ptr<CallbackQueue> callbacks_;
  std::thread thread_;

  // The loop's own.
  bool closed_ = false;
  bool renewing_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool stop_ = false;
  std::deque<Operation> queue_;
  size_t commits_ = 0, bytes_ = 0;  // that are not answered yet
  StoreHealth health_;
};

}  // namespace weft::core
