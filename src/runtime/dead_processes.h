// Which processes have ended, as far as one owner has heard, and how the latest of them did.
//
// Process numbers are given out in order and nearly all processes end, so neighbours are kept as ranges: a session with
// a million workers costs a few entries. Used by Owner, with the runtime's lock held.
#pragma once

#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "wire/ids.h"

namespace weft::core {

class DeadProcesses {
 public:
  // For how many of them it is known how they ended.
  static constexpr size_t kRemembered = 1024;

  // False: it was known.
  bool Insert(ProcessId process, std::string how) {
    if (Contains(process)) return false;
    auto next = ranges_.upper_bound(process.value);
    uint64_t first = process.value, last = process.value;
    if (next != ranges_.end() && next->first == process.value + 1) {
      last = next->second;
      next = ranges_.erase(next);
    }
    if (next != ranges_.begin() && std::prev(next)->second + 1 == process.value) first = std::prev(next)->first;
    ranges_[first] = last;
    how_.emplace(process, std::move(how));
    latest_.push_back(process);
    if (latest_.size() > kRemembered) {
      how_.erase(latest_.front());
      latest_.pop_front();
    }
    return true;
  }

  bool Contains(ProcessId process) const {
    auto next = ranges_.upper_bound(process.value);
    return next != ranges_.begin() && process.value <= std::prev(next)->second;
  }

  std::string How(ProcessId process) const {
    auto found = how_.find(process);
    return found == how_.end() ? "has ended" : found->second;
  }

  size_t ranges() const { return ranges_.size(); }

 private:
  std::map<uint64_t, uint64_t> ranges_;  // first and last number of each
  std::unordered_map<ProcessId, std::string> how_;
  std::deque<ProcessId> latest_;  // those in how_, the oldest first
};

}  // namespace weft::core
