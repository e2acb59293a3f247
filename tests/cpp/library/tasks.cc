// A library of tasks as Python's tests load it: every kind of value, arrays in place, actors, and what goes wrong.
#include <unistd.h>
#include <weft/library.h>
#include <weft/weft.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

int64_t add(int64_t a, int64_t b) { return a + b; }
double norm(std::span<const double> values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}
weft::Array<double> scaled(std::span<const double> values, double by) {
  auto result = weft::empty<double>(values.size());
  for (size_t i = 0; i < values.size(); ++i) result.data()[i] = values[i] * by;
  return result;
}
uint64_t address(std::span<const double> values) { return reinterpret_cast<uint64_t>(values.data()); }
std::string join(std::vector<std::string> words, std::string between) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}
int64_t total(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}
std::map<std::string, std::vector<double>> table(const std::map<std::string, double>& input) {
  std::map<std::string, std::vector<double>> result;
  for (const auto& [key, value] : input) result[key] = {value, value * value};
  return result;
}
weft::Returns<int64_t, int64_t> divmod(int64_t a, int64_t b) { return {a / b, a % b}; }
struct Point {
  double x = 0, y = 0;
  std::string label;
};
Point mirrored(Point point) { return {-point.x, point.y, point.label + "'"}; }
int64_t fail(const std::string& text) { throw std::out_of_range(text); }
int64_t crash() {
  std::raise(SIGKILL);
  return 0;
}
int64_t pid() { return getpid(); }
// Tasks of C++ call tasks of C++.
int64_t fibonacci(int64_t n) {
  if (n < 2) return n;
  auto a = weft::remote<fibonacci>(n - 1), b = weft::remote<fibonacci>(n - 2);
  auto [x, y] = weft::get(a, b);
  return x + y;
}
int64_t follow(weft::Ref<int64_t> ref) { return weft::get(ref) + 1; }
std::string where() { return weft::context().name_space + ":" + weft::context().task_name; }
int64_t sleeps() {
  weft::this_task::sleep_for(std::chrono::seconds(60));
  return 1;
}

// Waiting without a thread.
weft::Async<int64_t> added_up(std::vector<weft::Ref<int64_t>> refs) {
  int64_t sum = 0;
  for (const auto& ref : refs) sum += co_await ref;
  co_return sum + co_await weft::remote<add>(1, 2);
}
int64_t awaits(int64_t count) {
  std::vector<weft::Ref<int64_t>> refs;
  for (int64_t i = 0; i < count; ++i) refs.push_back(weft::remote<add>(i, 0));
  std::vector<weft::Async<int64_t>> sums;
  for (int i = 0; i < 10; ++i) sums.push_back(added_up(refs));
  int64_t sum = 0;
  for (auto& each : sums) sum += each.get();
  return sum;
}
weft::Async<int64_t> awaits_one(weft::Ref<int64_t> ref) { co_return co_await ref; }
int64_t awaits_ref(weft::Ref<int64_t> ref) { return awaits_one(std::move(ref)).get(); }
std::string calls_back(weft::Ref<int64_t> ref) {
  auto told = std::make_shared<std::promise<std::string>>();
  weft::on_ready(ref, [told](weft::Result<int64_t> result) {
    told->set_value(result ? std::to_string(*result) : result.error_name());
  });
  return told->get_future().get();
}

// An actor whose coroutines go on while it serves other calls.
class Gatherer {
 public:
  Gatherer() = default;
  explicit Gatherer(std::string mark) : mark_(std::move(mark)) {}
  void add(weft::Ref<int64_t> ref) { pending_.push_back(take(std::move(ref))); }
  int64_t taken() const { return taken_; }
  int64_t sum() {
    int64_t sum = 0;
    for (auto& each : pending_) sum += each.get();
    pending_.clear();
    return sum;
  }

 private:
  weft::Async<int64_t> take(weft::Ref<int64_t> ref) {
    std::string mark = mark_;
    try {
      int64_t value = co_await ref;
      ++taken_;
      co_return value;
    } catch (const weft::WeftError& error) {
      if (!mark.empty()) std::ofstream(mark) << error.what();
      throw;
    }
  }
  std::string mark_;
  std::atomic<int64_t> taken_{0};
  std::vector<weft::Async<int64_t>> pending_;
};

class Counter {
 public:
  explicit Counter(int64_t start) : value_(start) {}
  int64_t increment(int64_t by) { return value_ += by; }
  int64_t value() const { return value_; }
  void fail() { throw std::runtime_error("the counter is tired"); }
  weft::Returns<int64_t, std::string> both() const { return {value_, std::to_string(value_)}; }
  int64_t sum(std::vector<std::string> words) const { return static_cast<int64_t>(words.size()) + value_; }

 private:
  int64_t value_;
};
int64_t call_counter(weft::Actor<Counter> counter, int64_t by) {
  return weft::get(counter.call<&Counter::increment>(by));
}
weft::Actor<Counter> make_counter(int64_t start) { return weft::actor<Counter>(start); }

const weft::Library tasks =
    weft::Library("Tasks for the tests of weft.cpp.")
        .function<add>("add")
        .function<norm>("norm")
        .function<scaled>("scaled")
        .function<address>("address")
        .function<join>("join")
        .function<total>("total")
        .function<table>("table")
        .function<divmod>("divmod")
        .function<mirrored>("mirrored")
        .function<fail>("fail")
        .function<crash>("crash")
        .function<pid>("pid")
        .function<fibonacci>("fibonacci")
        .function<follow>("follow")
        .function<where>("where")
        .function<sleeps>("sleeps")
        .function<awaits>("awaits")
        .function<awaits_ref>("awaits_ref")
        .function<calls_back>("calls_back")
        .actor<Gatherer, std::string>(
            "Gatherer", weft::methods<&Gatherer::add, &Gatherer::taken, &Gatherer::sum>("add", "taken", "sum"))
        .function<call_counter>("call_counter")
        .function<make_counter>("make_counter")
        .actor<Counter, int64_t>(
            "Counter",
            weft::methods<&Counter::increment, &Counter::value, &Counter::fail, &Counter::both, &Counter::sum>(
                "increment", "value", "fail", "both", "sum"));

}  // namespace
