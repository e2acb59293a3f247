// Finds out where an exception was thrown that leaves a task, and where a worker crashed.
//
//   ThrowPoint point;
//   try {
//     point.Watch([&] { run the task });
//   } catch (...) {
//     ... point.Stack() ...
//   }
//
// It reads the stack while the C++ runtime searches for a handler, before anything is unwound, and only for exceptions
// that no handler of the task takes: tasks that throw nothing, or catch what they throw, pay nothing. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::detail {

// The type of a handler that is asked, during the search, whether it takes an exception; it never does. No object has
// this type: its type_info is an object of ours (stack.cc).
struct EscapingException {
  virtual void Never();
};

class ThrowPoint {
 public:
  ThrowPoint() {}  // NOLINT: most of it is filled only when something is thrown
  ThrowPoint(const ThrowPoint&) = delete;
  ThrowPoint& operator=(const ThrowPoint&) = delete;

  template <class Body>
  __attribute__((noinline)) void Watch(Body&& body) {
    Watching watching(*this, __builtin_frame_address(0));
    try {
      body();
    } catch (const EscapingException&) {
      throw;
    }
  }

  // A line "at function (file+0x12)" for each of the user's frames, from the one that threw; "" if nothing is known.
  std::string Stack() const;

 private:
  friend class AskedType;
  class Watching {
   public:
    Watching(ThrowPoint& point, const void* frame) noexcept;
    ~Watching();
    Watching(const Watching&) = delete;
    Watching& operator=(const Watching&) = delete;

   private:
    ThrowPoint* before_;
  };
  void Note() noexcept;

  static constexpr size_t kMaxFrames = 96;
  uintptr_t limit_ = 0;  // frames above this address are not the task's
  size_t count_ = 0;
  uintptr_t addresses_[kMaxFrames];
};

// From now on, a SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT of this process first writes to stderr what ran and where,
// unless the program has a handler of its own. The calling thread also gets a stack for the handler, so that it works
// after a stack overflow.
void InstallCrashReport() noexcept;
// What this thread runs, for that report; nullptr for nothing. The text must stay alive.
void SetRunningTask(const char* name) noexcept;

}  // namespace weft::detail
