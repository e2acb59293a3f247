// The C++ rows: a C++ driver with C++ workers of the same program. peers/ray_cpp/driver.cc is the same for Ray.
//
// Lines "WORKLOAD SIZE SECONDS" on stdin: tasks (of SIZE per round, per second), task_sync (seconds), calls (of one
// actor, SIZE per round, per second), call_sync (seconds), get_array (of SIZE bytes, seconds).
#include <weft/weft.h>

#include <cstdint>
#include <optional>

#include "conversation.h"

namespace {

int Increment(int x) { return x + 1; }

class Counter {
 public:
  explicit Counter(int start) : count_(start) {}
  int Add(int x) { return count_ += x; }

 private:
  int count_;
};

// The session's actor, and how far it has counted: every answer is known, and the order of calls with it.
struct Counted {
  weft::Actor<Counter> actor;
  int count = 0;
};

double RunTasks(long size, double seconds) {
  return static_cast<double>(size) / bench::MedianSeconds(seconds, [size] {
           std::vector<weft::Ref<int>> refs;
           refs.reserve(static_cast<size_t>(size));
           for (int i = 0; i < size; ++i) refs.push_back(weft::remote<Increment>(i));
           std::vector<int> results = weft::get(refs);
           for (int i = 0; i < size; ++i) bench::Check(results[static_cast<size_t>(i)] == i + 1, "of a task");
         });
}

double RunCalls(Counted& counted, long size, double seconds) {
  return static_cast<double>(size) / bench::MedianSeconds(seconds, [&, size] {
           std::vector<weft::Ref<int>> refs;
           refs.reserve(static_cast<size_t>(size));
           for (int i = 0; i < size; ++i) refs.push_back(counted.actor.call<&Counter::Add>(1));
           std::vector<int> results = weft::get(refs);
           for (int result : results) bench::Check(result == ++counted.count, "of a call");
         });
}

double GetArray(long size, double seconds) {
  auto room = weft::empty<uint8_t>(static_cast<size_t>(size));
  room[0] = room[room.size() - 1] = 7;
  weft::Ref<weft::Array<uint8_t>> ref = weft::put(std::move(room));
  return bench::MeanSeconds(seconds, [&](int) {
    weft::Array<const uint8_t> array = weft::get(ref);
    bench::Check(array.size() == static_cast<size_t>(size) && array[array.size() - 1] == 7, "of an array");
  });
}

}  // namespace

int main() {
  auto session = weft::init({.num_cpus = 2});  // In a worker process this call serves tasks and does not return.
  std::optional<Counted> counted;
  auto actor = [&]() -> Counted& {
    if (!counted) counted.emplace(Counted{weft::actor<Counter>(0)});
    return *counted;
  };
  bench::Serve([&](const std::string& workload, long size, double seconds) {
    if (workload == "tasks") return RunTasks(size, seconds);
    if (workload == "task_sync") {
      return bench::MeanSeconds(
          seconds, [](int i) { bench::Check(weft::get(weft::remote<Increment>(i)) == i + 1, "of a task"); });
    }
    if (workload == "calls") return RunCalls(actor(), size, seconds);
    if (workload == "call_sync") {
      Counted& to = actor();
      return bench::MeanSeconds(
          seconds, [&](int) { bench::Check(weft::get(to.actor.call<&Counter::Add>(1)) == ++to.count, "of a call"); });
    }
    if (workload == "get_array") return GetArray(size, seconds);
    bench::RefuseWorkload(workload);
  });
}
