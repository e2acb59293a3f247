// Keeps a session from being freed while a thread works with it, at the price of two stores to memory of its own.
//
// Each thread has a place in which it notes the session that it uses; who ends a session waits until no other thread's
// place names it. The note must be seen by who ends the session, or the end by who makes the note. The end is rare: it
// asks the kernel for the barrier (membarrier) that the notes then need not have; where the kernel has none, notes are
// made with a fence.
//
// Threads: any. Calls into weft have one, and get has one until it has made the value out of the session's memory.
// Inside of another the session is the outer one's, even if that has ended meanwhile, so that a call never mixes two. A
// callback or coroutine may end the session that it was called from: the thread's own place is not waited for.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft::detail {

struct SessionState;

// Of a thread. Never freed: taken over by a later thread when its own has ended.
struct alignas(64) UserPlace {
  std::atomic<SessionState*> uses{nullptr};
  std::atomic<bool> taken{true};
  UserPlace* next = nullptr;
};
extern constinit thread_local UserPlace* t_user_place __attribute__((tls_model("initial-exec")));
UserPlace* TakeUserPlace() noexcept;

class Using {
 public:
  // The session of the one around this, else the present one, if there is any.
  Using() noexcept
      : place_(t_user_place ? t_user_place : TakeUserPlace()), outer_(place_->uses.load(std::memory_order_relaxed)) {
    state_ = outer_ ? outer_ : Begin();
  }
  ~Using() {
    if (!outer_) place_->uses.store(nullptr, std::memory_order_release);
  }
  Using(const Using&) = delete;
  Using& operator=(const Using&) = delete;

  SessionState* get() const { return state_; }  // nullptr: none is open
  // Throws, and says what to do, if there is none or it cannot be used.
  SessionState& need() const;
  uint32_t epoch() const;  // likewise

 private:
  SessionState* Begin() noexcept;

  UserPlace* const place_;
  SessionState* const outer_;
  SessionState* state_;
};

}  // namespace weft::detail
