// The doorbell page of a process: which of its incoming rings may hold something, and which thread sleeps and wants
// waking.
//
// The node daemon makes the page (CreateDoorbellPage) and hands it to the owner, which opens it as a Doorbell, and to
// every process that sends to the owner, which opens it as a PeerDoorbell. All of it is shared memory, and any of them
// may be killed at any instruction.
//
// Sleepers. At most two threads of the owner:
//   - the *waiter*, the one thread that polls for all: a thread in `get`, or a worker's main thread without work;
//   - the *background thread*, which takes replies while no thread of the user is inside a weft call. It is woken only
//     while it is *armed*. A thread that leaves a weft call arms it, even though it sleeps already.
// Each has a word of its own; on one word they would steal each other's wake-ups.
//
// What rings. A slot is the owner's number for one incoming ring. Tasks and replies have a bitmap each, chosen by the
// Audience: a ring of tasks concerns only a waiter without work (kAsleepIdle, kAsleepBlocked), and the background
// thread must neither wake up nor spin on it. A bitmap has a summary word with a bit per word, so that a look costs one
// load, whatever the number of channels.
//
// The protocol of the owner: TakeRung, then read each named ring until Peek finds it empty (or remember that it is
// not). A frame that is committed after that sets the bit again. Names may be spurious and, if a peer misbehaves,
// nonsense: ignore slots that are not in use.
//
// Why no wake-up is lost.
//   A producer does, in this order: [P1] publish the frame, [P2] set the slot's bit, [P3] set the summary bit,
//   [P4] load the waiter's state and, if it sleeps, change it to awake by compare-and-swap and wake it; otherwise
//   [P5] load `armed` and, if it is set, change it to unarmed by exchange and signal the background thread.
//   The waiter does: [W1] exchange its state to asleep, [W2] load the summaries that concern it and the caller's own
//   condition, and only if all is quiet [W3] futex-wait for as long as the state is still asleep.
//   P3, P4, P5, W1 and W2 are sequentially consistent, so there is one order of them all.
//   - P3 before W2 in that order: W2 sees the summary bit and the waiter does not sleep.
//   - W2 before P3: then W1 is before P4, and P4 sees the waiter asleep (or what another waker made of it). If our
//     compare-and-swap succeeds, we wake it: either it is in W3 already, or W3 finds the word changed and returns. If
//     it fails, another waker has made it awake since W1 and wakes it, or it woke on its own (deadline, signal). In any
//     case it is awake, and before it sleeps again it passes W2, which is after P3.
//   If no thread is asleep or armed at P4 and P5, the next one sleeps or arms after P4 or P5, so its check of the
//   summary is after P3 and finds the bit. For this reason ArmBackground returns whether something is rung, and its
//   caller must then take it or call WakeBackground. A waiter that leaves without having looked (its deadline passed)
//   is covered too: leaving a weft call ends in ArmBackground.
//   The background thread is signalled through a word that remembers (none, signalled, asleep): a signal that comes
//   before it sleeps makes its next sleep return at once.
//   A waiter that is asleep in `get` is not woken for tasks, and does not look for them in W2. When the worker has no
//   work afterwards, it sleeps as kAsleepIdle, and that W2 looks at both bitmaps.
//   A late wake-up (the waker was descheduled between its compare-and-swap and the system call) finds a thread that
//   sleeps again, or none: a spurious return, after which the caller looks again.
//
// Why a bit that is set already needs no wake-up. A slot has one producer. The bit being set at P2 means that this
// producer set it earlier and the owner has not taken it since. That earlier call has gone through P3 to P5, so by
// the argument above a thread that is awake will look at it; when the owner takes the bit, it does so by an exchange
// that comes after our P2 on the same word and thus sees our frame. P2 must be a read-modify-write for this: a plain
// load of the bit may be older than our frame. Only a predecessor on the same slot can have set the bit without the
// rest, if it died in between; for that case the producer calls Adopt when it gets a slot.
//
// What if the producer dies here? Before P2: the frame is in the ring and no bit says so. Between P2 and P5: the bit is
// set and no thread was woken; another producer's ring may repair that. Inside P4 or P5, between the change of the
// state and the system call: the owner sleeps and looks awake to all others. Only the daemon can notice, and it does:
// it announces the death to each process that had a channel with the dead one, and calls PeerDoorbell::WakeAll, which
// asks the kernel whatever the state says. The owner then drains the ring of the dead without looking at its bit. So
// the delay is the time to notice a death, and nothing is lost. If the owner dies, ringing has no effect.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/result.h"
#include "os/fd.h"
#include "os/futex.h"
#include "os/memfd.h"
#include "transport/channel.h"
#include "transport/steps.h"

namespace weft::core {

inline constexpr uint32_t kDoorbellSlots = 2048;
inline constexpr size_t kDoorbellPageBytes = 4096;

enum class WaiterState : uint32_t {
  kAwake = 0,
  kAsleepInGet = 1,    // wants replies
  kAsleepIdle = 2,     // a worker that waits for tasks; wants everything
  kAsleepBlocked = 3,  // a worker whose task waits; wants replies, and tasks in order to hand them back
};

// What a worker says about its task's wait. The worker writes kNot and the two kinds of waits; the daemon
// turns a wait into kLends when it counts the CPU as lent, and kLends back into that wait if its scheduler has enough
// lenders. A worker that goes on exchanges it for kNot; if it finds kLends, it tells the daemon (Unblocked).
//
// What if a process dies here? The daemon believes the page only as long as the worker lives, and reads the pages of
// all that lend whenever leases change, so no message is needed to end a loan.
//   - The worker, while it waits: its lease ends with it, and the loan with the lease.
//   - The worker, between its exchange and Unblocked: as above; until the death is noticed its CPU counts as lent,
//     though the page says kNot, which is right, as it runs nothing any more.
//   - The daemon, after it wrote kLends and before it counted the loan or took it back: the session ends with it.
// If the worker is stopped and not dead, nothing waits for it: what it lent stays lent. If it goes on between the
// daemon's two writes, it sends one Unblocked too many, which only makes the daemon look; the second write then fails,
// since only the daemon writes kLends.
enum class BlockedState : uint32_t {
  kNot = 0,
  kWaits = 1,           // in the user's own get or wait, for something that is pending
  kWaitsForMemory = 2,  // for room in the store; the daemon lets only so many of these lend
  kLends = 3,
};

// The shared layout. Fields that are written on different occasions have cache lines of their own, so that polling and
// ringing do not disturb each other.
struct DoorbellPage {
  static constexpr uint64_t kMagic = 0x31306c6c65627766;  // "fwbell01"
  static constexpr uint32_t kWords = kDoorbellSlots / 64;

  struct Bitmap {
    alignas(64) std::atomic<uint64_t> summary;
    alignas(64) std::atomic<uint64_t> words[kWords];
  };
  enum BackgroundSignal : uint32_t { kNone = 0, kSignalled = 1, kAsleep = 2 };

  uint64_t magic;
  alignas(64) std::atomic<uint32_t> waiter_state;  // a WaiterState; also the futex word of the waiter
  alignas(64) std::atomic<uint32_t> background_armed;
  alignas(64) std::atomic<uint32_t> background_signal;  // a BackgroundSignal; also its futex word
  alignas(64) std::atomic<BlockedState> blocked;
  alignas(64) std::atomic<uint32_t> demand;
  std::atomic<uint32_t> text_seen[2];
  Bitmap rung[2];  // indexed by Audience
};
static_assert(sizeof(DoorbellPage) <= kDoorbellPageBytes);
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<BlockedState>::is_always_lock_free);

// The memory of one process's doorbell. Called by the node daemon.
Result<UniqueFd> CreateDoorbellPage();

enum class SleepOutcome : uint8_t {
  kWoken,        // something may be there: look
  kTimedOut,     // the deadline passed
  kInterrupted,  // a signal was handled
};

// The owner's side. One thread at a time sleeps as the waiter, one thread as the background thread, and one thread at a
// time calls TakeRung for an audience (the caller serialises). Everything else: any thread.
class Doorbell {
 public:
  // The descriptor may be closed afterwards.
  static Result<std::unique_ptr<Doorbell>> Open(int fd);
  // On memory that is mapped already, so that both sides can live in one process (tests).
  explicit Doorbell(std::shared_ptr<Mapping> memory);
  // For a thread of the owner that rings on behalf of peers that cannot reach the page (PeerDoorbell on it).
  const std::shared_ptr<Mapping>& memory() const { return memory_; }

  bool AnyRung(Audience audience) const { return page_->rung[static_cast<int>(audience)].summary.load() != 0; }
  bool AnyRung() const { return AnyRung(Audience::kAnyone) || AnyRung(Audience::kExecutor); }

  // Clears the bits and calls fn(slot) for each that was set. The caller then drains these rings.
  template <class Fn>
  void TakeRung(Audience audience, Fn&& fn) {
    auto& rung = page_->rung[static_cast<int>(audience)];
    if (rung.summary.load() == 0) return;
    // The summary is cleared first: a producer that sets a bit after we took its word sets the summary after that.
    uint64_t summary = rung.summary.exchange(0);
    for (summary &= kSummaryMask; summary != 0; summary &= summary - 1) {
      const uint32_t word = static_cast<uint32_t>(std::countr_zero(summary));
      for (uint64_t bits = rung.words[word].exchange(0); bits != 0; bits &= bits - 1) {
        fn(word * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
      }
    }
  }

  // Sleeps as the waiter until something that concerns `kind` is rung, `something_to_do()` holds when asked once
  // before sleeping, WakeWaiter is called, or the deadline passes. Another thread that makes something_to_do true calls
  // WakeWaiter afterwards. May return kWoken for no reason.
  template <class Condition>
  SleepOutcome SleepAsWaiter(WaiterState kind, int64_t deadline_ns, Condition&& something_to_do) {
    // An exchange and not a store: WakeWaiter is an exchange on the same word, so either it finds us asleep, or we
    // come after it and see everything that its caller did before.
    page_->waiter_state.exchange(static_cast<uint32_t>(kind));
    if (ConcernsRung(kind) || something_to_do()) {
      page_->waiter_state.store(static_cast<uint32_t>(WaiterState::kAwake));
      return SleepOutcome::kWoken;
    }
    return SleepPublished(kind, deadline_ns);
  }
  SleepOutcome SleepAsWaiter(WaiterState kind, int64_t deadline_ns) {
    return SleepAsWaiter(kind, deadline_ns, [] { return false; });
  }
  // The same in parts, for a waiter that sleeps elsewhere (StreamPoller): BeginSleep returns false if there is
  // something to do. Between the two, another thread sleeps on waiter_word and passes wake-ups on.
  template <class Condition>
  bool BeginSleep(WaiterState kind, Condition&& something_to_do) {
    page_->waiter_state.exchange(static_cast<uint32_t>(kind));
    if (!ConcernsRung(kind) && !something_to_do()) return true;
    page_->waiter_state.store(static_cast<uint32_t>(WaiterState::kAwake));
    return false;
  }
  void EndSleep() { page_->waiter_state.exchange(static_cast<uint32_t>(WaiterState::kAwake)); }
  std::atomic<uint32_t>& waiter_word() { return page_->waiter_state; }
  // From another thread of the owner's process.
  void WakeWaiter() {
    if (page_->waiter_state.exchange(static_cast<uint32_t>(WaiterState::kAwake)) !=
        static_cast<uint32_t>(WaiterState::kAwake)) {
      FutexWake(&page_->waiter_state);
    }
  }

  // From now on a reply that finds no waiter wakes the background thread. Returns true if replies are rung already:
  // the caller must then take them, or call WakeBackground. May be called on behalf of the sleeping thread.
  [[nodiscard]] bool ArmBackground() {
    page_->background_armed.store(1);
    return AnyRung(Audience::kAnyone);
  }
  // A wake-up that was on its way may still arrive.
  void DisarmBackground() { page_->background_armed.store(0); }
  bool background_armed() const { return page_->background_armed.load() != 0; }

  // Sleeps as the background thread until signalled. A signal given since the last return counts.
  SleepOutcome SleepAsBackground(int64_t deadline_ns);
  void WakeBackground() { SignalBackground(page_); }

  // Written by the worker and the daemon, as BlockedState says. Used with sequential consistency.
  std::atomic<BlockedState>& blocked() { return page_->blocked; }
  // Set by the daemon when it can use lent CPUs; the worker reads it.
  std::atomic<uint32_t>& demand() { return page_->demand; }
  // Counts of the daemon: how often it has read text of standard output (0) or standard error (1). The worker reads it.
  std::atomic<uint32_t>& text_seen(int stream) { return page_->text_seen[stream]; }

 private:
  friend class PeerDoorbell;
  static constexpr uint64_t kSummaryMask =
      DoorbellPage::kWords == 64 ? ~uint64_t{0} : (uint64_t{1} << (DoorbellPage::kWords % 64)) - 1;

  bool ConcernsRung(WaiterState kind) const {
    return AnyRung(Audience::kAnyone) || (kind != WaiterState::kAsleepInGet && AnyRung(Audience::kExecutor));
  }
  SleepOutcome SleepPublished(WaiterState kind, int64_t deadline_ns);

  template <class Steps = Uninterrupted>
  static void SignalBackground(DoorbellPage* page) {
    if (page->background_signal.exchange(DoorbellPage::kSignalled) == DoorbellPage::kAsleep) {
      Steps::At(25);
      FutexWake(&page->background_signal);
    }
  }

  std::shared_ptr<Mapping> memory_;
  DoorbellPage* page_;
};

// A sender's side of another process's doorbell. Any thread; shared by all channels to the same process.
class PeerDoorbell {
 public:
  // The descriptor may be closed afterwards.
  static Result<std::shared_ptr<PeerDoorbell>> Open(int fd);
  explicit PeerDoorbell(std::shared_ptr<Mapping> memory);

  // Says that the ring of `slot` has something new, and wakes the thread that it concerns, if that sleeps.
  // Called after the frame was published; several frames may share one call.
  template <class Steps = Uninterrupted>
  void Ring(uint32_t slot, Audience audience) {
    auto& rung = page_->rung[static_cast<int>(audience)];
    const uint64_t bit = uint64_t{1} << (slot % 64);
    const uint32_t word = (slot / 64) % DoorbellPage::kWords;
    Steps::At(20);
    if ((rung.words[word].fetch_or(bit) & bit) != 0) return;  // the header argues why this is enough
    Steps::At(21);
    rung.summary.fetch_or(uint64_t{1} << word);
    Steps::At(22);
    WakeFor<Steps>(audience);
    Steps::At(26);
  }

  // A producer that begins to use a slot calls this once: it completes a ring that a predecessor on the same slot left
  // half done when it died. Without such a predecessor it does nothing.
  void Adopt(uint32_t slot);

  // Wakes both sleepers whatever the page says. The daemon calls it for every process that had a channel with a dead
  // one, which may have been about to ring.
  void WakeAll();

  WaiterState waiter_state() const { return static_cast<WaiterState>(page_->waiter_state.load()); }
  std::atomic<BlockedState>& blocked() { return page_->blocked; }
  std::atomic<uint32_t>& demand() { return page_->demand; }
  std::atomic<uint32_t>& text_seen(int stream) { return page_->text_seen[stream]; }

 private:
  template <class Steps>
  void WakeFor(Audience audience) {
    uint32_t state = page_->waiter_state.load();
    const bool wakes_waiter = audience == Audience::kAnyone
                                  ? state != static_cast<uint32_t>(WaiterState::kAwake)
                                  : state == static_cast<uint32_t>(WaiterState::kAsleepIdle) ||
                                        state == static_cast<uint32_t>(WaiterState::kAsleepBlocked);
    if (wakes_waiter) {
      // Only one of several producers wins, and only it pays for the system call.
      if (page_->waiter_state.compare_exchange_strong(state, static_cast<uint32_t>(WaiterState::kAwake))) {
        Steps::At(23);
        FutexWake(&page_->waiter_state);
        return;
      }
    }
    if (audience == Audience::kExecutor) return;
    if (page_->background_armed.load() != 0 && page_->background_armed.exchange(0) != 0) {
      Steps::At(24);
      Doorbell::SignalBackground<Steps>(page_);
    }
  }

  std::shared_ptr<Mapping> memory_;
  DoorbellPage* page_;
};

}  // namespace weft::core
