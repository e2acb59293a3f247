// Cuts a worker's output into whole lines, so that the lines of several workers never mix. Pure.
//
// A line longer than kMaxLineBytes is passed on in pieces: a worker that never ends its line must not fill the memory.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace weft::core {

class LineSplitter {
 public:
  static constexpr size_t kMaxLineBytes = 64 << 10;

  // Adds output and returns the whole lines that are there now, their ends included; empty if there is none.
  std::string Append(std::string_view output) {
    held_.append(output);
    size_t end = held_.rfind('\n');
    if (end == std::string::npos) {
      if (held_.size() < kMaxLineBytes) return {};
      return TakeRest();
    }
    std::string lines = held_.substr(0, end + 1);
    held_.erase(0, end + 1);
    return lines;
  }
  // The unfinished last line; called when the worker has ended.
  std::string TakeRest() { return std::exchange(held_, {}); }

 private:
  std::string held_;
};

}  // namespace weft::core
