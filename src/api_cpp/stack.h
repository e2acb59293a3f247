// Where an exception was thrown that leaves a task, and where a worker crashed.
//
//   try {
//     WithThrowStack([&] { run the task });
//   } catch (...) {
//     ... ThrowStack() ...
//   }
//
// The stack is looked at while the runtime of C++ searches for a handler, before anything is unwound, and only for
// exceptions that no handler of the task takes: tasks that throw nothing, or catch what they throw, pay nothing.
// Any thread; what is remembered is of the thread.
#pragma once

#include <cstdint>
#include <string>

namespace weft::detail {

// Stands in a handler to be asked, during the search, whether it takes an exception; it never does. Nothing is of this
// type: its type_info is an object of ours (stack.cc).
struct EscapingException {
  virtual void Never();
};

// Forgets what was remembered, and what is below `frame` is not the task's.
void BeginThrowStack(const void* frame) noexcept;

template <class Body>
__attribute__((noinline)) void WithThrowStack(Body&& body) {
  BeginThrowStack(__builtin_frame_address(0));
  try {
    body();
  } catch (const EscapingException&) {
    throw;
  }
}

// A line "at function (file+0x12)" for each of the user's frames, from the one that threw; "" if nothing is known.
std::string ThrowStack();

// From here on, a SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT of this process first writes what ran and where to stderr.
// Not where the program has a handler of its own. The calling thread also gets a stack for the handler, so that it
// works when its own has run out.
void InstallCrashReport() noexcept;
// What this thread runs, for that report; nullptr for nothing. The text must live.
void SetRunningTask(const char* name) noexcept;

}  // namespace weft::detail
