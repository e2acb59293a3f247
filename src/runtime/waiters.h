// The threads of this process that wait inside weft: which of them polls, and which event wakes which of them.
//
// The contract. A thread is woken when what *it* waits for is settled, and by nothing else:
//  - a thread that waits for objects, when the last one that it needs has come or, if it wants that, when one has
//    failed;
//  - a thread that waits for news, such as an answer of the daemon, when there may be some (NewsCame);
//  - every thread, when the session ends or a task is cancelled (WakeAll).
// One thread, the poller, sleeps on the process's doorbell, takes the replies for all and stays the poller until its
// own wait ends; then it hands over (HandOver). The others sleep, each on a futex word of its own, so that n events
// wake at most n threads, however many wait.
//
// All calls need the runtime's lock, except Waiter::woken, which its own thread reads while it sleeps.
// Why no wake-up is lost: a thread clears `woken` with the lock, then looks at what it waits for, and unlocks only to
// sleep as long as `woken` is still clear. Later changes happen with the lock, and set it.
//
// Does not sleep, read the doorbell, or know when a wait has lasted too long.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace weft::core {

class Doorbell;
struct Object;
struct Waiter;

// A thread wants to hear of an object. It is in the object's list until the thread has heard or no longer waits.
struct Interest {
  Object* object = nullptr;  // nullptr: in no list
  Waiter* waiter = nullptr;
  bool needed = true;  // false: only its failure matters
  Interest* previous = nullptr;
  Interest* next = nullptr;
};

// One thread in one wait.
struct Waiter {
  bool to_look = true;  // an object has come when it can be looked at here, and not only exists
  bool ends_at_failure = false;
  bool for_news = false;
  int64_t look_at_ns = INT64_MAX;  // when it wants to look once without being woken
  size_t missing = 0;              // watched objects that it still needs
  bool failed = false;             // one of the watched has
  bool handed = false;             // it was woken to poll, or to pass that on if it need not wait any more
  std::atomic<uint32_t> woken{0};  // futex word
  Waiter* previous = nullptr;
  Waiter* next = nullptr;
};

class Waiters {
 public:
  // Before any thread waits.
  void set_doorbell(Doorbell* doorbell) { doorbell_ = doorbell; }

  // Around each wait.
  void Enter(Waiter& waiter);
  void Leave(Waiter& waiter);
  size_t count() const { return count_; }

  void Add(Interest& interest, Object* object, Waiter& waiter, bool needed);
  void Remove(Interest& interest);

  // The object has a value, can be looked at, or cannot be had.
  void Resolved(Object* object);
  void NewsCame();
  void WakeAll();
  void Wake(Waiter& waiter);

  // ---- polling
  Waiter* poller() const { return poller_; }
  // The executor is idle: it polls, or is about to, and no other thread begins to.
  bool claimed() const { return claim_ != nullptr; }
  bool may_poll() const { return poller_ == nullptr && claim_ == nullptr; }
  void BeginPolling(Waiter& waiter);
  void EndPolling();  // for now: if the executor has claimed it, it is its turn
  // One of the others wakes up and polls. In between, or if there is none, the background thread takes replies.
  void HandOver();
  void Claim(Waiter& executor) { claim_ = &executor; }
  void EndClaim() { claim_ = nullptr; }
  // Something has changed that the poller must look at: times, workers, messages.
  void TellPoller();
  uint32_t news() const { return news_.load(); }  // moves with TellPoller; any thread

 private:
  Doorbell* doorbell_ = nullptr;
  Waiter* first_ = nullptr;  // the one that began last
  size_t count_ = 0, for_news_ = 0;
  Waiter* poller_ = nullptr;
  Waiter* claim_ = nullptr;
  std::atomic<uint32_t> news_{0};
};

}  // namespace weft::core
