#include "control_store/worker_store.h"

#include <signal.h>

#include <algorithm>

#include "base/clock.h"

namespace weft::core {
namespace {

// What one call of the backend takes: large enough that the cost of an fsync or a round trip is spread thin, small
// enough that it is over in a few milliseconds.
constexpr size_t kGroupCommits = 2'000;
constexpr size_t kGroupBytes = size_t{4} << 20;

// Between two attempts to reach a store that is away: soon at first, as it may only have been restarted.
constexpr int64_t kFirstPauseNs = 10'000'000;
constexpr int64_t kLongestPauseNs = 1'000'000'000;

}  // namespace

Result<std::unique_ptr<WorkerStore>> WorkerStore::Create(EventLoop& loop, std::unique_ptr<BlockingStore> backend,
                                                         StoreLimits limits) {
  std::unique_ptr<WorkerStore> store(new WorkerStore(std::move(backend), limits));
  auto callbacks = CallbackQueue::Create(loop);
  if (!callbacks) return callbacks.error();
  store->callbacks_ = std::move(*callbacks);
  store->health_.since_ns = NowNs();
  // Signals belong to the loop's thread; a broken pipe is an error here, not a signal.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  store->thread_ = std::thread([raw = store.get()] { raw->Run(); });
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return store;
}

WorkerStore::~WorkerStore() {
  Close();
  *alive_ = false;
}

void WorkerStore::AcquireLeadership(Candidate candidate, LeadershipCallback callback) {
  Operation operation{Kind::kAcquire};
  operation.candidate = std::move(candidate);
  operation.leadership = std::move(callback);
  WEFT_CHECK(!closed_, "leadership is asked for before Close");
  (void)Enqueue(std::move(operation));
}

StoreStatus WorkerStore::Commit(WriteBatch batch, Callback callback) {
  if (StoreStatus status = CheckBatch(batch, limits_); !status.ok()) return status;
  Operation operation{Kind::kCommit};
  operation.bytes = batch.bytes();
  operation.batch = std::move(batch);
  operation.done = std::move(callback);
  return Enqueue(std::move(operation));
}

StoreStatus WorkerStore::Renew(Callback callback) {
  if (renewing_) return {StoreCode::kFull, "the lease is being renewed already"};
  Operation operation{Kind::kRenew};
  operation.done = [this, callback = std::move(callback)](StoreStatus status) {
    renewing_ = false;
    callback(std::move(status));
  };
  StoreStatus status = Enqueue(std::move(operation));
  renewing_ = status.ok();
  return status;
}

StoreStatus WorkerStore::Resign(Callback callback) {
  Operation operation{Kind::kResign};
  operation.done = std::move(callback);
  return Enqueue(std::move(operation));
}

StoreStatus WorkerStore::Enqueue(Operation operation) {
  if (closed_) return {StoreCode::kClosed, "the control store is closed"};
  operation.asked_ns = NowNs();
  {
    std::lock_guard lock(mutex_);
    if (operation.kind == Kind::kCommit) {
      if (commits_ >= limits_.queued_commits || bytes_ + operation.bytes > limits_.queued_bytes) {
        return {StoreCode::kFull,
                std::to_string(commits_) + " commits (" + std::to_string(bytes_) +
                    " bytes) wait for the control store already" +
                    (health_.state == StoreHealth::kAway ? ", which is away: " + health_.message : "")};
      }
      ++commits_;
      bytes_ += operation.bytes;
    }
    queue_.push_back(std::move(operation));
  }
  changed_.notify_one();
  return {};
}

StoreHealth WorkerStore::health() const {
  std::lock_guard lock(mutex_);
  StoreHealth health = health_;
  health.queued_commits = commits_;
  health.queued_bytes = bytes_;
  return health;
}

void WorkerStore::Close() {
  if (closed_) return;
  closed_ = true;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  backend_->Interrupt();
  if (thread_.joinable()) thread_.join();
  auto alive = alive_;
  callbacks_->Drain();  // what the thread has finished, and then what it has not begun
  if (!*alive) return;
  StoreStatus closed(StoreCode::kClosed, "the control store was closed");
  std::deque<Operation> rest;
  {
    std::lock_guard lock(mutex_);
    rest.swap(queue_);
    commits_ = bytes_ = 0;
    health_.state = StoreHealth::kClosed;
    health_.since_ns = NowNs();
  }
  for (Operation& operation : rest) {
    if (operation.leadership) operation.leadership(closed);
    if (operation.done) operation.done(closed);
    if (!*alive) return;
  }
}

// ---- the thread -------------------------------------------------------------------------------------------------

void WorkerStore::Run() {
  for (;;) {
    std::vector<Operation> group = TakeGroup();
    if (group.empty()) return;
    Perform(group);
  }
}

std::vector<WorkerStore::Operation> WorkerStore::TakeGroup() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
  std::vector<Operation> group;
  if (stop_) return group;
  size_t bytes = 0;
  do {
    bytes += queue_.front().bytes;
    group.push_back(std::move(queue_.front()));
    queue_.pop_front();
  } while (group[0].kind == Kind::kCommit && !queue_.empty() && queue_.front().kind == Kind::kCommit &&
           group.size() < kGroupCommits && bytes + queue_.front().bytes <= kGroupBytes);
  return group;
}

void WorkerStore::Perform(std::vector<Operation>& group) {
  if (group[0].kind == Kind::kAcquire) {
    StoreResult<Leadership> result = backend_->Acquire(group[0].candidate);
    if (result.ok()) {
      SetState(StoreHealth::kReady, "");
    } else if (result.code() == StoreCode::kAway) {
      SetState(StoreHealth::kAway, result.status().message());
    } else {
      SetState(StoreHealth::kIdle, result.status().message());
    }
    callbacks_->Post([callback = std::move(group[0].leadership), result = std::move(result)]() mutable {
      callback(std::move(result));
    });
    return;
  }

  std::vector<const WriteBatch*> batches;
  for (const Operation& operation : group) batches.push_back(&operation.batch);
  const int64_t limit_ns = limits_.outage_ms * 1'000'000;
  int64_t pause_ns = kFirstPauseNs;
  for (;;) {
    StoreStatus status;
    switch (group[0].kind) {
      case Kind::kCommit:
        status = backend_->Apply(batches);
        break;
      case Kind::kRenew:
        status = backend_->Renew();
        break;
      default:
        status = backend_->Resign();
        break;
    }
    switch (status.code()) {
      case StoreCode::kOk:
        SetState(group[0].kind == Kind::kResign ? StoreHealth::kIdle : StoreHealth::kReady, "");
        break;
      case StoreCode::kAway:
        SetState(StoreHealth::kAway, status.message());
        break;
      case StoreCode::kFenced:
        SetState(StoreHealth::kFenced, status.message());
        break;
      default:
        SetState(StoreHealth::kTroubled, status.message());
        break;
    }
    if (status.code() != StoreCode::kAway) {
      for (Operation& operation : group) Finish(operation, status);
      return;
    }
    // Away: the outcome is open, so the same group is tried again until the oldest of it may wait no longer.
    const int64_t until_ns = std::min(NowNs() + pause_ns, group[0].asked_ns + limit_ns);
    pause_ns = std::min(2 * pause_ns, kLongestPauseNs);
    const bool open = Pause(until_ns);
    if (open && NowNs() < group[0].asked_ns + limit_ns) continue;
    if (group[0].kind == Kind::kCommit) backend_->Abandon();
    StoreStatus failed =
        open ? StoreStatus(StoreCode::kAway, "the control store was away for more than " +
                                                 std::to_string(limits_.outage_ms / 1000) + " s: " + status.message())
             : StoreStatus(StoreCode::kClosed, "the control store was closed while it was away");
    size_t finished = 0;
    while (finished < group.size() && (!open || NowNs() >= group[finished].asked_ns + limit_ns)) {
      Finish(group[finished++], failed);
    }
    std::lock_guard lock(mutex_);  // the younger ones wait on, in their place
    for (size_t i = group.size(); i > finished; --i) queue_.push_front(std::move(group[i - 1]));
    return;
  }
}

bool WorkerStore::Pause(int64_t until_ns) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(until_ns - NowNs(), 0)), [&] { return stop_; });
  return !stop_;
}

void WorkerStore::Finish(Operation& operation, StoreStatus status) {
  if (operation.kind == Kind::kCommit) {
    std::lock_guard lock(mutex_);
    --commits_;
    bytes_ -= operation.bytes;
  }
  callbacks_->Post(
      [callback = std::move(operation.done), status = std::move(status)]() mutable { callback(std::move(status)); });
}

void WorkerStore::SetState(StoreHealth::State state, const std::string& message) {
  std::lock_guard lock(mutex_);
  if (health_.state != state) health_.since_ns = NowNs();
  health_.state = state;
  health_.message = message;
}

}  // namespace weft::core
