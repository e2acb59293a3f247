// Keeps a session from being freed while a thread works with it, at the price of two stores to the thread's own memory.
//
// Each thread has a place in which it notes the session that it uses; the thread that ends a session waits until no
// other thread's place names it. Either the ending thread must see the note, or the noting thread must see the end.
// Ends are rare: they ask the kernel for a barrier (membarrier), so the notes need none; where the kernel has no
// membarrier, notes are made with a fence.
//
// Threads: any. Each call into weft has a Using, and get keeps it until it has made the value from the session's
// memory. A nested one uses the session of the outer one, even if that has ended meanwhile, so that a call never mixes
// two sessions. A callback or coroutine may end the session that it was called from: the ending thread does not wait
// for its own place.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft::detail {

struct SessionState;

// A thread's place. Never freed: a later thread takes it over when its own thread has ended.
struct alignas(64) UserPlace {
  std::atomic<SessionState*> uses{nullptr};
  std::atomic<bool> taken{true};
  UserPlace* next = nullptr;
};
extern constinit thread_local UserPlace* t_user_place __attribute__((tls_model("initial-exec")));
UserPlace* TakeUserPlace() noexcept;

class Using {
 public:
  // The session of the enclosing Using, otherwise the present one, if there is any.
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
