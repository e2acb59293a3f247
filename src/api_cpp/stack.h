// Where an exception was thrown that leaves a task, and where a worker crashed.
//
//   ThrowPoint point;
//   try {
//     point.Watch([&] { run the task });
//   } catch (...) {
//     ... point.Stack() ...
//   }
//
// The stack is looked at while the runtime of C++ searches for a handler, before anything is unwound, and only for
// exceptions that no handler of the task takes: tasks that throw nothing, or catch what they throw, pay nothing.
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::detail {

// Stands in a handler to be asked, during the search, whether it takes an exception; it never does. Nothing is of this
// type: its type_info is an object of ours (stack.cc).
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

// From here on, a SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT of this process first writes what ran and where to stderr.
// Not where the program has a handler of its own. The calling thread also gets a stack for the handler, so that it
// works when its own has run out.
void InstallCrashReport() noexcept;
// What this thread runs, for that report; nullptr for nothing. The text must live.
void SetRunningTask(const char* name) noexcept;

}  // namespace weft::detail
