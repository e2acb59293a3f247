// What the tutorial's programs share: an assertion that is not switched off in release builds, and a clock.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>

// Says which line was wrong. In a task the exception travels to the process that gets the result, like every other.
// (The standard's std::source_location says the same; Clang has it only from version 16 on.)
inline void check(bool is_true, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (!is_true) throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": not as expected");
}

using Clock = std::chrono::steady_clock;

// When something ran. Times are values like others: they come back from tasks, and the processes of one machine share
// the clock.
struct Interval {
  Clock::time_point begin, end;

  bool overlaps(const Interval& other) const { return begin < other.end && other.begin < end; }
};
