// The waits of this process that have lasted a while: decides which of them is examined next, and keeps the result.
// Pure: calls and times in; questions go through Inquiries, everything else through Host.
//
// A wait is listed after 200 ms, so that short ones pay nothing, and is examined then and again after growing pauses.
// One inquiry for a thread is open at a time, at most fifty begin in a second, and threads that wait only for the same
// object share one. A coroutine that awaits an object is examined in the same way; its wait matters only while the
// event loop rests, since anything else that runs there may end it.
//
// The thread gets the verdict (Waiting::verdict), wakes up and raises it; a coroutine gets it through Host::Stuck.
//
// Called by Runtime under its lock: by the threads that wait, and by the background thread, which looks (LookAtThreads,
// LookAtCoroutines say when to call again).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/inquiries.h"
#include "runtime/owner.h"
#include "runtime/waiters.h"
#include "wire/wait_facts.h"

namespace weft::core {

enum class WaitOutcome : uint8_t {
  kReady,
  kFailed,  // one object has failed, and others are not there yet
  kTimedOut,
  kInterrupted,
  kStopped,
  kStuck,   // it can never end: WaitReport::text is a system error (name of the exception class, newline, message)
  kNotice,  // it lasts long: tell the user WaitReport::text, then wait again
};

// What one get or wait of the front end knows about its own wait; pass the same one when it waits again after
// kInterrupted or kNotice. All zeros at first.
struct WaitReport {
  std::string text;
  int64_t began_ns = 0;
  int64_t look_at_ns = 0;  // when to check next whether it can end
  int64_t pause_ns = 0;    // between checks
  int64_t stuck_since_ns = 0;
  bool noticed = false;
  uint32_t tries = 0;  // to find out whether the loop of a coroutine rests
  // The front end's: when it changes (Executor wakes the waiting threads), the wait ends with kInterrupted.
  const std::atomic<uint32_t>* cancelled = nullptr;
  uint32_t cancelled_before = 0;
};

// One wait of a thread, or of a coroutine. Belongs to the thread that waits.
struct Waiting {
  std::span<Object* const> objects;
  size_t wanted = 0;
  int64_t deadline_ns = -1;
  WaitReport* report = nullptr;
  Waiter* waiter = nullptr;
  std::optional<WaitOutcome> verdict;  // how it must end, as the background thread found out

  // ---- of LongWaits alone
  uint64_t number = 0;  // not 0: it has lasted a while, and is listed
  int64_t since_ns = 0;
  Object* group = nullptr;         // it waits for this object alone, with others; one of the group is examined:
  bool leads = false;              // this one
  uint64_t execution = 0;          // not 0: a coroutine of this call awaits
  std::unique_ptr<WaitFact> task;  // once it is listed: the task that waits, if it is one
  std::unique_ptr<Inquiry> inquiry;
};

class LongWaits {
 public:
  class Host {
   public:
    virtual ~Host() = default;
    virtual void Wake(Waiter& waiter) = 0;
    virtual void WakeBackground() = 0;
    virtual void WakeLoop() = 0;  // of an actor, so that it says whether it rests
    virtual void DescribeCall(WaitFact& fact, uint64_t execution) = 0;
    // A coroutine's await can never end. It is forgotten already.
    virtual void Stuck(Object* object, void* cookie, uint64_t await, std::string text) = 0;
  };

  LongWaits(Host& host, Inquiries& inquiries) : host_(host), inquiries_(inquiries) {}
  // After how long a wait tells once what it waits for (kNotice). 0: never.
  void set_notice_after(int64_t ns) { notice_after_ns_ = ns; }
  void set_self(ProcessId self) { self_ = self; }

  // ---- threads
  static void Begin(WaitReport& report, int64_t now_ns);
  // WaitReport::look_at_ns has come. `shared`: it waits like any other thread that waits for the same object.
  void List(Waiting& waiting, WaitFact task, bool shared);
  void End(Waiting& waiting);  // it is over, or begins again
  bool any_threads() const { return !threads_.empty(); }
  int64_t LookAtThreads(int64_t now_ns);

  // ---- coroutines of an actor's event loop
  // The number of the await. `execution`: see Runtime::Await.
  uint64_t Await(Object* object, void* cookie, uint64_t execution, int64_t now_ns);
  void EndAwait(uint64_t number);
  bool any_coroutines() const { return coroutines_seen_; }
  int64_t LookAtCoroutines(int64_t now_ns);
  void SetLoopRests(bool rests);
  // Any thread, without the lock.
  bool LoopIsAsked() const { return loop_asked_.load(std::memory_order_relaxed); }

  // ---- both
  void InquiryEnded(const Inquiry& inquiry);
  // All listed waits, for a process that asks.
  std::vector<WaitFact> Facts(int64_t now_ns);

 private:
  struct Awaiting {
    Object* object = nullptr;  // nullptr: it is over, and its inquiry is open
    void* cookie = nullptr;
    uint64_t rest = 0;  // of its loop, when the inquiry began
    WaitReport report;
    Waiting waiting;
  };

  // Checks whether the wait can end, if it is time for that. True: it is over, with this outcome.
  bool Look(Waiting& waiting, int64_t now_ns, WaitOutcome* outcome);
  bool Judge(Waiting& waiting, int64_t now_ns, WaitOutcome* outcome);  // its inquiry has ended, or lasted too long
  void Tell(Waiting& waiting, WaitOutcome outcome);
  void AskLoop();
  WaitFact FactOf(const Waiting& waiting, int64_t now_ns) const;
  void Describe(Waiting& waiting);
  int64_t NoticeAt(const WaitReport& report) const;

  Host& host_;
  Inquiries& inquiries_;
  ProcessId self_;
  int64_t notice_after_ns_ = 0;
  uint64_t last_number_ = 0;
  std::map<uint64_t, Waiting*> threads_;          // by number
  std::set<std::pair<int64_t, uint64_t>> looks_;  // when to look at which of them
  std::unordered_map<Object*, std::map<uint64_t, Waiting*>> groups_;
  Waiting* looked_at_ = nullptr;             // the wait whose inquiry is open
  int64_t next_look_ns_ = 0;                 // not before
  std::map<uint64_t, Awaiting> coroutines_;  // in the order in which they began to wait
  bool coroutines_seen_ = false;             // the background thread checks them now and then
  bool loop_rests_ = false;                  // as SetLoopRests says
  uint64_t last_rest_ = 0;                   // counts how often it began to rest
  std::atomic<bool> loop_asked_{false};      // relaxed: the loop looks again before it sleeps
};

}  // namespace weft::core
