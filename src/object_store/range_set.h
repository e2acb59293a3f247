// A set of disjoint byte ranges, found by offset, by size or by age. Neighbours become one range.
//
// Used by FreeRanges only. Pure; every operation is logarithmic in the number of ranges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"

namespace weft::core {

struct Range {
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t end() const { return offset + size; }
  bool operator==(const Range&) const = default;
};

class RangeSet {
 public:
  // Ranges on two sides of a multiple of `fence` stay apart; 0 means no fences.
  // Only an aged set knows its oldest range.
  explicit RangeSet(uint64_t fence = 0, bool aged = false) : fence_(fence), aged_(aged) {}

  // Adds a range that overlaps none and returns the range it has become part of. The younger stamp wins.
  Range Insert(Range range, uint64_t stamp = 0) {
    auto next = by_offset_.lower_bound(range.offset);
    WEFT_CHECK(next == by_offset_.end() || range.end() <= next->first, "a range was inserted twice");
    if (next != by_offset_.begin()) {
      auto left = std::prev(next);
      uint64_t left_end = left->first + left->second.size;
      WEFT_CHECK(left_end <= range.offset, "a range was inserted twice");
      if (left_end == range.offset && !Fenced(range.offset)) {
        range = {left->first, left->second.size + range.size};
        stamp = std::max(stamp, left->second.stamp);
        Erase(left);
      }
    }
    if (next != by_offset_.end() && next->first == range.end() && !Fenced(range.end())) {
      range.size += next->second.size;
      stamp = std::max(stamp, next->second.stamp);
      Erase(next);
    }
    Add(range, stamp);
    return range;
  }

  // Cuts the given range out of the one that contains it, which must exist.
  void Remove(Range range) {
    auto it = Find(range.offset);
    WEFT_CHECK(it != by_offset_.end() && range.end() <= it->first + it->second.size, "a range to remove is not there");
    Range whole{it->first, it->second.size};
    uint64_t stamp = it->second.stamp;
    Erase(it);
    if (whole.offset < range.offset) Add({whole.offset, range.offset - whole.offset}, stamp);
    if (range.end() < whole.end()) Add({range.end(), whole.end() - range.end()}, stamp);
  }

  // The smallest range of at least this size, of these the first.
  std::optional<Range> BestFit(uint64_t size) const {
    auto it = by_size_.lower_bound({size, 0});
    if (it == by_size_.end()) return std::nullopt;
    return Range{it->second, it->first};
  }

  std::optional<Range> Containing(uint64_t offset) const {
    auto it = Find(offset);
    if (it == by_offset_.end()) return std::nullopt;
    return Range{it->first, it->second.size};
  }

  std::optional<Range> Oldest() const {
    if (by_age_.empty()) return std::nullopt;
    uint64_t offset = by_age_.begin()->second;
    return Range{offset, by_offset_.find(offset)->second.size};
  }

  // Calls visit(range) for the parts of the set's ranges that lie in `window`, in order.
  template <class Visit>
  void ForOverlaps(Range window, Visit visit) const {
    auto it = by_offset_.upper_bound(window.offset);
    if (it != by_offset_.begin()) --it;
    for (; it != by_offset_.end() && it->first < window.end(); ++it) {
      uint64_t begin = std::max(it->first, window.offset);
      uint64_t end = std::min(it->first + it->second.size, window.end());
      if (begin < end) visit(Range{begin, end - begin});
    }
  }

  // Calls visit(range) from the largest, or from the last range on, until it returns false.
  template <class Visit>
  void ForLargest(Visit visit) const {
    for (auto it = by_size_.rbegin(); it != by_size_.rend(); ++it) {
      if (!visit(Range{it->second, it->first})) return;
    }
  }
  template <class Visit>
  void ForLast(Visit visit) const {
    for (auto it = by_offset_.rbegin(); it != by_offset_.rend(); ++it) {
      if (!visit(Range{it->first, it->second.size})) return;
    }
  }

  uint64_t bytes() const { return bytes_; }
  size_t count() const { return by_offset_.size(); }
  void CheckInvariants() const {
    uint64_t end = 0, sum = 0;
    bool first = true;
    for (const auto& [offset, node] : by_offset_) {
      WEFT_CHECK(node.size > 0, "an empty range");
      WEFT_CHECK(first || offset > end || (offset == end && Fenced(offset)), "ranges overlap or were not joined");
      WEFT_CHECK(by_size_.count({node.size, offset}) == 1, "a range is missing from the order by size");
      WEFT_CHECK(!aged_ || by_age_.count({node.stamp, offset}) == 1, "a range is missing from the order by age");
      end = offset + node.size;
      sum += node.size;
      first = false;
    }
    WEFT_CHECK(sum == bytes_ && by_size_.size() == count(), "range totals differ");
    WEFT_CHECK(by_age_.size() == (aged_ ? count() : 0), "range ages differ");
  }

 private:
  struct Node {
    uint64_t size;
    uint64_t stamp;
  };
  using ByOffset = std::map<uint64_t, Node>;

  bool Fenced(uint64_t offset) const { return fence_ != 0 && offset % fence_ == 0; }
  ByOffset::const_iterator Find(uint64_t offset) const {
    auto it = by_offset_.upper_bound(offset);
    if (it == by_offset_.begin()) return by_offset_.end();
    --it;
    return offset < it->first + it->second.size ? it : by_offset_.end();
  }
  void Add(Range range, uint64_t stamp) {
    by_offset_.emplace(range.offset, Node{range.size, stamp});
    by_size_.emplace(range.size, range.offset);
    if (aged_) by_age_.emplace(stamp, range.offset);
    bytes_ += range.size;
  }
  void Erase(ByOffset::const_iterator it) {
    by_size_.erase({it->second.size, it->first});
    if (aged_) by_age_.erase({it->second.stamp, it->first});
    bytes_ -= it->second.size;
    by_offset_.erase(it);
  }

  const uint64_t fence_;
  const bool aged_;
  ByOffset by_offset_;
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // size, offset
  std::set<std::pair<uint64_t, uint64_t>> by_age_;   // stamp, offset
  uint64_t bytes_ = 0;
};

}  // namespace weft::core
