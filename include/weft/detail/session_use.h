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

namespace weft::detail {

struct SessionState;

class Using {
 public:
  // The session of the one around this, else the present one, if there is any.
  Using() noexcept;
  ~Using();
  Using(const Using&) = delete;
  Using& operator=(const Using&) = delete;

  SessionState* get() const { return state_; }  // nullptr: none is open
  // Throws, and says what to do, if there is none or it cannot be used.
  SessionState& need() const;

 private:
  struct Place;
  friend void AwaitUsers(SessionState* state);
  friend bool IsUsed(SessionState* state);
  friend struct PlaceKeeper;
  static Place* PlaceOfThisThread() noexcept;
  static thread_local Place* t_place;

  Place* place_;
  SessionState* before_;
  SessionState* state_;
};

}  // namespace weft::detail
