// A broken invariant of our own aborts, with a message, in release builds too.
//
// Never used on input: bytes from another process, a user or a disk lead to a Result or a typed error.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace weft::core {

[[noreturn]] inline void CheckFailed(const char* condition, const char* file, int line, const char* message) {
  std::fprintf(stderr, "weft: internal error at %s:%d: %s (%s)\n", file, line, message, condition);
  std::abort();
}

}  // namespace weft::core

// Only the file's name, not the path where weft was built.
#define WEFT_CHECK(condition, message)                                                                              \
  do {                                                                                                              \
    if (__builtin_expect(!(condition), 0)) ::weft::core::CheckFailed(#condition, __FILE_NAME__, __LINE__, message); \
  } while (0)
