// Runtime: waiting. How threads sleep until something is there, which one polls for the others, and the background
// thread.
#include <time.h>

#include <algorithm>
#include <optional>

#include "base/clock.h"
#include "os/futex.h"
#include "runtime/executor.h"
#include "runtime/runtime.h"

namespace weft::core {
namespace {

constexpr int64_t kMillisecondNs = 1'000'000;
// While anything is leased or requested, the background thread looks this often for idle leases.
constexpr int64_t kTickNs = 50 * kMillisecondNs;
// After draining, the background thread stays unarmed for this long, so that a stream of replies does not cost a
// wake-up each; longer while replies keep coming.
constexpr int64_t kLingerNs = 100'000;
constexpr int64_t kMaxLingerNs = 1'000'000;
// Drops wake the background thread only now and then; it checks after this time for drops that did not.
constexpr int64_t kFollowUpNs = 25 * kMillisecondNs;
// A worker whose task waits this long hands back the tasks queued behind it.
constexpr int64_t kHandBackAfterNs = kMillisecondNs;
constexpr int64_t kHandBackAgainNs = kMillisecondNs;
// A task that waits for room in the store keeps its CPU for so long: usually others give memory back unasked. Well
// before the daemon gives up (MemoryBudget), tasks that empty the store get their chance.
constexpr int64_t kLendForMemoryAfterNs = 50 * kMillisecondNs;
// A get of several objects begins to watch for failures after so long; most are over before.
constexpr int64_t kWatchFailuresAfterNs = kMillisecondNs;
// The owner of a borrowed object answers within a millisecond, if it gets a CPU.
constexpr int64_t kSlowAnswerNs = 100 * kMillisecondNs;

void SleepNs(int64_t ns) {
  timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
  nanosleep(&t, nullptr);
}

int64_t AbsoluteOrNever(int64_t deadline_ns) { return deadline_ns < 0 ? kNoDeadline : deadline_ns; }

// Certainly pending: for a borrowed object only its owner knows.
bool IsKnownPending(const Object* object) {
  return object->value.kind() == ValueKind::kPending && (!object->borrowed || object->known_pending);
}

// Borrowed, and its owner has not said whether it is there.
bool IsUnanswered(const Object* object) {
  return object->value.kind() == ValueKind::kPending && object->borrowed && !object->known_pending;
}

size_t CountReady(std::span<Object* const> objects, bool to_look) {
  return static_cast<size_t>(
      std::count_if(objects.begin(), objects.end(), [=](const Object* object) { return object->ready(to_look); }));
}

}  // namespace

// One wait of the executor's thread, and what it says about its CPU on the doorbell's page. With the lock held.
class Runtime::CpuLoan {
 public:
  CpuLoan(Runtime& runtime, const Lends& lends) : runtime_(runtime), lends_(lends) {}
  ~CpuLoan() {
    // The daemon may count the CPU as lent, and then more tasks run than there are CPUs until it knows.
    if (offered_ && page().exchange(BlockedState::kNot) == BlockedState::kLends) runtime_.Send(Unblocked{});
  }

  // Called before each sleep; returns when it must be called again at the latest.
  int64_t Offer() {
    if (lends_.when == Lends::When::kNever) return kNoDeadline;
    if (lends_.when == Lends::When::kForMemory) return OfferForMemory();
    if (offered_) return kNoDeadline;
    if (lends_.when == Lends::When::kIfPending && !Any(IsKnownPending)) {
      if (!Any(IsUnanswered)) return kNoDeadline;  // a copy is on its way, say
      // An owner that takes so long to answer may itself be waiting for a CPU.
      if (next_ns_ == 0) next_ns_ = NowNs() + kSlowAnswerNs;
      if (NowNs() < next_ns_) return next_ns_;
    }
    Offer(BlockedState::kWaits);
    return kNoDeadline;
  }

 private:
  int64_t OfferForMemory() {
    const int64_t now = NowNs();
    if (next_ns_ != 0 && now < next_ns_) return next_ns_;
    if (offered_) {
      Remind();  // there may have been too many lenders; now the daemon may change the page
    } else if (next_ns_ != 0) {
      Offer(BlockedState::kWaitsForMemory);
    }
    return next_ns_ = now + kLendForMemoryAfterNs;
  }
  void Offer(BlockedState state) {
    offered_ = true;
    // Sequentially consistent with the daemon, which sets demand and then reads blocked: one of us sees the other.
    page().store(state);
    Remind();
  }
  void Remind() {
    if (runtime_.doorbell_->demand().load() != 0 && page().load() != BlockedState::kLends) runtime_.Send(Blocked{});
  }
  bool Any(bool (*is)(const Object*)) const { return std::any_of(lends_.objects.begin(), lends_.objects.end(), is); }
  std::atomic<BlockedState>& page() { return runtime_.doorbell_->blocked(); }

  Runtime& runtime_;
  const Lends& lends_;
  bool offered_ = false;
  int64_t next_ns_ = 0;
};

// ---- waiting ------------------------------------------------------------------------------------------------------

WaitOutcome Runtime::WaitUntil(std::unique_lock<std::mutex>& lock, int64_t deadline_ns, Waiter& waiter,
                               const std::function<bool()>& ready, Lends lends, Waiting* waiting) {
  bool polled = false;
  bool handed_back = false;
  bool by_executor = executor_ != nullptr && std::this_thread::get_id() == executor_thread_;
  int64_t hand_back_at = 0;
  std::optional<CpuLoan> loan;
  if (by_executor) loan.emplace(*this, lends);
  WaitOutcome outcome;
  waiters_.Enter(waiter);
  for (;;) {
    waiter.woken.store(0);  // before we look: see waiters.h
    Drain();
    if (ready()) {
      outcome = WaitOutcome::kReady;
      break;
    }
    if (stopped()) {
      outcome = WaitOutcome::kStopped;
      break;
    }
    if (deadline_ns == 0 || (deadline_ns > 0 && NowNs() >= deadline_ns)) {
      outcome = WaitOutcome::kTimedOut;
      break;
    }
    if (forked()) {
      outcome = WaitOutcome::kStopped;
      break;
    }
    if (waiting && waiting->report && waiting->report->cancelled &&
        waiting->report->cancelled->load() != waiting->report->cancelled_before) {
      waiting->report->cancelled_before = waiting->report->cancelled->load();
      outcome = WaitOutcome::kInterrupted;
      break;
    }
    int64_t until = std::min(AbsoluteOrNever(deadline_ns), waiter.look_at_ns);
    if (waiting && waiting->report) {
      if (waiting->verdict) {
        outcome = *std::exchange(waiting->verdict, std::nullopt);
        break;
      }
      until = std::min(until, ListIfLong(*waiting, by_executor));
    }
    if (by_executor) {
      until = std::min(until, loan->Offer());
      if (hand_back_at == 0) hand_back_at = NowNs() + kHandBackAfterNs;
      if (!handed_back && NowNs() >= hand_back_at) handed_back = true;
      if (handed_back) {
        if (!executor_->HandBackQueued()) until = std::min(until, NowNs() + kHandBackAgainNs);
      } else {
        until = std::min(until, hand_back_at);
      }
    }
    owner_->SubmitterWaits(actions_);
    if (!actions_.empty()) Perform();
    if (int64_t urgent = owner_->NextUrgentTick()) {
      if (NowNs() >= urgent) {
        owner_->Tick(NowNs(), actions_);
        Perform();
      } else if (!waiters_.poller() || waiters_.claimed()) {
        until = std::min(until, urgent);  // otherwise the poller does it
      }
    }
    SleepOutcome slept = SleepOutcome::kWoken;
    if (waiters_.may_poll()) {
      waiters_.BeginPolling(waiter);
      polled = true;
      doorbell_->DisarmBackground();
      SetWakeUps(eager_waits_ > 0);
      const uint32_t seen = waiters_.news();
      const bool spin = !due_list_.empty() && CoresAreFree();
      lock.unlock();
      Flush();
      auto kind = handed_back ? WaiterState::kAsleepBlocked : WaiterState::kAsleepInGet;
      const auto something = [&] { return AnyDue() || waiter.woken.load() != 0 || waiters_.news() != seen; };
      if (!spin || !poller_spin_.Spin(SpinLimitNs(), [&] { return something() || ReadStreams(); })) {
        slept = SleepAsWaiter(kind, until, something);
      }
      lock.lock();
      waiters_.EndPolling();
    } else {
      lock.unlock();
      Flush();
      if (FutexWait(&waiter.woken, 0, until) == FutexOutcome::kInterrupted) slept = SleepOutcome::kInterrupted;
      lock.lock();
    }
    if (slept == SleepOutcome::kInterrupted) {
      Drain();
      outcome = ready() ? WaitOutcome::kReady : WaitOutcome::kInterrupted;
      break;
    }
  }
  waiters_.Leave(waiter);
  loan.reset();
  if (polled && waiters_.poller() == nullptr) {
    waiters_.HandOver();
    ArmBackground();
  }
  return outcome;
}

// For something of the runtime itself that a message of the daemon announces.
WaitOutcome Runtime::WaitForNews(std::unique_lock<std::mutex>& lock, int64_t deadline_ns,
                                 const std::function<bool()>& ready, Lends lends) {
  Waiter waiter;
  waiter.for_news = true;
  return WaitUntil(lock, deadline_ns, waiter, ready, lends);
}

// The other objects that a thread in get needs, watched for failures. It begins so late that most gets are over before.
class Runtime::FailureWatch {
 public:
  FailureWatch(Waiters& waiters, Waiter& waiter) : waiters_(waiters), waiter_(waiter) {}
  ~FailureWatch() {
    for (Interest& interest : interests_) waiters_.Remove(interest);
  }
  bool begun() const { return begun_; }
  void Begin(std::span<Object* const> objects) {
    begun_ = true;
    waiter_.look_at_ns = INT64_MAX;
    interests_.resize(objects.size());
    for (size_t i = 0; i < objects.size(); ++i) {
      if (!objects[i]->settled()) waiters_.Add(interests_[i], objects[i], waiter_, false);
      waiter_.failed = waiter_.failed || objects[i]->failed();
    }
  }

 private:
  Waiters& waiters_;
  Waiter& waiter_;
  bool begun_ = false;
  std::vector<Interest> interests_;
};

WaitOutcome Runtime::WaitForAll(std::span<Object* const> objects, int64_t deadline_ns, WaitReport* report,
                                bool ends_at_failure) {
  std::unique_lock lock(mutex_);
  // Objects of other nodes are fetched in parallel, and a lost one may be available by now.
  if (in_cluster_) {
    for (Object* object : objects) {
      if (!object->here()) owner_->WantHere(object, actions_);
    }
    Perform();
  }
  Waiting waiting{.objects = objects, .wanted = objects.size(), .deadline_ns = deadline_ns, .report = report};
  const WaitOutcome outcome = WaitForEach(lock, waiting, true, ends_at_failure && objects.size() > 1);
  long_waits_.End(waiting);
  NotifyPeers(lock);
  return outcome;
}

// One after the other, from the end: the last one is likely to be ready last, and then all others need no wake-up of
// their own.
WaitOutcome Runtime::WaitForEach(std::unique_lock<std::mutex>& lock, Waiting& waiting, bool to_look,
                                 bool ends_at_failure) {
  const std::span<Object* const> objects = waiting.objects;
  Waiter waiter;
  waiter.to_look = to_look;
  waiter.ends_at_failure = ends_at_failure;
  waiting.waiter = &waiter;
  FailureWatch failures(waiters_, waiter);
  for (size_t i = objects.size(); i-- > 0;) {
    Object* object = objects[i];
    if (object->ready(to_look)) {
      waiter.failed = waiter.failed || (ends_at_failure && object->failed());
      continue;
    }
    if (waiter.failed) return WaitOutcome::kFailed;
    to_look ? owner_->WantHere(object, actions_) : owner_->Want(object, actions_);
    Perform();
    waiting.objects = objects.first(waiting.wanted = i + 1);
    const Lends lends{.when = Lends::When::kIfPending, .objects = objects.subspan(i, 1)};
    if (ends_at_failure && !failures.begun() && waiter.look_at_ns == INT64_MAX) {
      waiter.look_at_ns = NowNs() + kWatchFailuresAfterNs;
    }
    const auto over = [&] {
      if (object->ready(to_look)) return true;
      if (waiter.look_at_ns != INT64_MAX && NowNs() >= waiter.look_at_ns) failures.Begin(waiting.objects);
      return waiter.failed;
    };
    Interest interest;
    waiters_.Add(interest, object, waiter, true);
    ++object->waiters;
    WaitOutcome outcome = WaitUntil(lock, waiting.deadline_ns, waiter, over, lends, &waiting);
    --object->waiters;
    waiter.missing = 0;
    waiters_.Remove(interest);
    if (outcome == WaitOutcome::kTimedOut && ends_at_failure) {
      if (!failures.begun()) failures.Begin(waiting.objects);
      if (waiter.failed) return WaitOutcome::kFailed;
    }
    if (outcome != WaitOutcome::kReady) return outcome;
    if (!object->ready(to_look)) return WaitOutcome::kFailed;
    waiter.failed = waiter.failed || (ends_at_failure && object->failed());
    if (waiting.verdict) long_waits_.End(waiting);  // something from outside has helped
  }
  return WaitOutcome::kReady;
}

WaitOutcome Runtime::WaitFor(std::span<Object* const> objects, size_t wanted, int64_t deadline_ns, WaitReport* report,
                             bool to_look) {
  std::unique_lock lock(mutex_);
  if (CountReady(objects, to_look) >= wanted) return WaitOutcome::kReady;
  for (Object* object : objects) {
    if (object->ready(to_look)) continue;
    to_look ? owner_->WantHere(object, actions_) : owner_->Want(object, actions_);
  }
  Perform();
  Waiting waiting{.objects = objects, .wanted = wanted, .deadline_ns = deadline_ns, .report = report};
  const WaitOutcome outcome =
      wanted == objects.size() ? WaitForEach(lock, waiting, to_look, false) : WaitForSome(lock, waiting, to_look);
  long_waits_.End(waiting);
  NotifyPeers(lock);
  return outcome;
}

// Any of the replies may be the last that is needed.
WaitOutcome Runtime::WaitForSome(std::unique_lock<std::mutex>& lock, Waiting& waiting, bool to_look) {
  const std::span<Object* const> objects = waiting.objects;
  Waiter waiter;
  waiter.to_look = to_look;
  waiting.waiter = &waiter;
  std::vector<Interest> interests(objects.size());
  const Lends lends{.when = Lends::When::kIfPending, .objects = objects};
  WaitOutcome outcome;
  ++eager_waits_;
  // A ready object may be lost again with its node before enough others are ready: then all are counted again.
  do {
    size_t pending = 0;
    for (size_t i = 0; i < objects.size(); ++i) {
      if (objects[i]->ready(to_look)) continue;
      ++pending;
      if (!interests[i].object) waiters_.Add(interests[i], objects[i], waiter, true);
    }
    const size_t may_stay_away = objects.size() - waiting.wanted;
    waiter.missing = pending - std::min(pending, may_stay_away);
    const auto over = [&] { return waiter.missing == 0; };
    outcome = WaitUntil(lock, waiting.deadline_ns, waiter, over, lends, &waiting);
  } while (outcome == WaitOutcome::kReady && CountReady(objects, to_look) < waiting.wanted);
  --eager_waits_;
  for (Interest& interest : interests) waiters_.Remove(interest);
  return outcome;
}

WaitOutcome Runtime::TakeCompletions(Completions& from, int64_t deadline_ns, std::vector<uint32_t>& taken) {
  std::unique_lock lock(mutex_);
  Waiter waiter;
  from.waiter = &waiter;
  auto outcome =
      WaitUntil(lock, deadline_ns, waiter, [&] { return !from.ready.empty(); }, {.when = Lends::When::kAtOnce});
  from.waiter = nullptr;
  taken.swap(from.ready);
  from.ready.clear();
  NotifyPeers(lock);
  return outcome;
}

WaitOutcome Runtime::WaitUntilTold(const std::function<bool()>& ready) {
  std::unique_lock lock(mutex_);
  // Any reply may matter: a callback of it may be what makes it ready.
  ++eager_waits_;
  auto outcome = WaitForNews(lock, -1, ready, {.when = Lends::When::kAtOnce});
  --eager_waits_;
  NotifyPeers(lock);
  return outcome;
}

void Runtime::WakeWaiters() {
  // With the lock: there is no gap between the check and the sleep.
  std::lock_guard lock(mutex_);
  waiters_.NewsCame();
}

void Runtime::SetWakeUps(bool any) {
  const auto& workers = owner_->workers();
  due_list_.clear();
  for (int32_t number : owner_->busy_workers()) {
    const auto i = static_cast<size_t>(number);
    due_list_.push_back(peer_of_worker_[i]);
    size_t wanted = any ? 1 : owner_->RepliesUntilWanted(workers[i]);
    peer_of_worker_[i]->channel.AskWakeAfter(wanted);
  }
}

bool Runtime::AnyDue() {
  // Called without the lock by the one poller, which made the list (SetWakeUps) before it unlocked. No other thread
  // makes one, or frees a channel (FreeForgotten), while a thread polls.
  for (Peer* peer : due_list_) {
    if (peer->channel.WakeIsDue()) return true;
  }
  return false;
}

void Runtime::ArmBackground() {
  while (!stopped()) {
    SetWakeUps(eager_waits_ > 0);
    bool rung = doorbell_->ArmBackground();
    if (!rung && !AnyDue()) return;
    Drain();
  }
}

// ---- the background thread ----------------------------------------------------------------------------------------

void Runtime::BackgroundLoop() {
  std::unique_lock lock(mutex_);
  bool followed_up = false;
  for (;;) {
    if (stopped()) return;
    if (!to_hand_over_.empty()) {
      lock.unlock();
      HandOverReady();
      lock.lock();
    }
    // Leases and requests must be watched; freed memory is given back after a while; otherwise sleep for good.
    int64_t deadline = kNoDeadline;
    if (owner_->NextTick() != 0 || owner_->AnyLeased()) {
      deadline = NowNs() + kTickNs;
      if (int64_t urgent = owner_->NextUrgentTick()) deadline = std::min(deadline, urgent);
    } else if (!followed_up) {
      deadline = NowNs() + kFollowUpNs;  // drops that did not wake us
      followed_up = true;
    } else if (writer_.created() && writer_.HasIdleMemory(welcome_.reserved_bytes)) {
      deadline = NowNs() + 1'000 * kMillisecondNs;
    }
    if (long_waits_.any_coroutines()) deadline = std::min(deadline, long_waits_.LookAtCoroutines(NowNs()));
    if (long_waits_.any_threads()) deadline = std::min(deadline, long_waits_.LookAtThreads(NowNs()));
    if (!lost_peers_.empty()) deadline = std::min(deadline, LookAtLost(NowNs()));
    background_idle_ = deadline == kNoDeadline;
    if (!waiters_.poller()) ArmBackground();
    lock.unlock();
    Flush();
    auto slept = doorbell_->SleepAsBackground(deadline);
    lock.lock();
    background_idle_ = false;
    ++stats_.background_wakeups;
    if (stopped()) return;
    size_t taken = waiters_.poller() ? 0 : Drain();
    if (taken > 0 || slept == SleepOutcome::kWoken) followed_up = false;
    owner_->Tick(NowNs(), actions_);
    Perform();
    if (writer_.created()) {
      if (uint64_t released = writer_.TrimIdle(NowNs(), welcome_.reserved_bytes)) {
        Send(ReleaseMemory{.bytes = released});
      }
    }
    int64_t linger = kLingerNs;
    while (taken > 0 && !waiters_.poller() && !stopped()) {
      lock.unlock();
      Flush();
      SleepNs(linger);
      lock.lock();
      if (waiters_.poller()) break;
      taken = Drain();
      linger = std::min(linger * 2, kMaxLingerNs);
    }
  }
}

}  // namespace weft::core
