// Virtual time: what happens next, in order of time and then of scheduling. The simulator's only clock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace weft::core {

class EventQueue {
 public:
  int64_t now() const { return now_ns_; }
  uint64_t executed() const { return executed_; }
  bool empty() const { return heap_.empty(); }
  int64_t next_ns() const { return heap_.front().at_ns; }

  void At(int64_t at_ns, std::function<void()> what) {
    heap_.push_back({std::max(at_ns, now_ns_), next_number_++, std::move(what)});
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }

  void RunNext() {
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    Item item = std::move(heap_.back());
    heap_.pop_back();
    now_ns_ = item.at_ns;
    ++executed_;
    item.what();
  }

 private:
  struct Item {
    int64_t at_ns;
    uint64_t number;
    std::function<void()> what;
  };
  static bool Later(const Item& a, const Item& b) {
    return a.at_ns != b.at_ns ? a.at_ns > b.at_ns : a.number > b.number;
  }

  std::vector<Item> heap_;
  int64_t now_ns_ = 0;
  uint64_t next_number_ = 0;
  uint64_t executed_ = 0;
};

}  // namespace weft::core
