// The C++ row: 1000 tasks submitted, then all results got, from a C++ driver with C++ workers.
//
// usage: weft_bench_cpp_tasks_async COUNT SECONDS
// prints {"tasks_per_second": median over rounds, "sync_seconds": mean of submit + get}.
#include <weft/weft.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

int Increment(int x) { return x + 1; }

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Seconds for one round; ends the program if a result is wrong, since a wrong result has no speed.
double Round(int count) {
  auto begin = std::chrono::steady_clock::now();
  std::vector<weft::Ref<int>> refs;
  refs.reserve(count);
  for (int i = 0; i < count; ++i) refs.push_back(weft::remote<Increment>(i));
  std::vector<int> results = weft::get(refs);
  double duration = SecondsSince(begin);
  for (int i = 0; i < count; ++i) {
    if (results[i] != i + 1) {
      std::fprintf(stderr, "wrong result of task %d: %d\n", i, results[i]);
      std::exit(1);
    }
  }
  return duration;
}

}  // namespace

int main(int argc, char** argv) {
  auto session = weft::init({.num_cpus = 2});  // In a worker process this call serves tasks and does not return.
  int count = argc > 1 ? std::atoi(argv[1]) : 1000;
  double seconds = argc > 2 ? std::atof(argv[2]) : 0.3;
  if (count <= 0) return 1;
  Round(count);  // Leases and first contact.
  std::vector<double> durations;
  auto begin = std::chrono::steady_clock::now();
  do {
    durations.push_back(Round(count));
  } while (SecondsSince(begin) < seconds);
  int syncs = 0;
  begin = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 20; ++i, ++syncs) weft::get(weft::remote<Increment>(i));
  } while (SecondsSince(begin) < seconds);
  double sync_seconds = SecondsSince(begin) / syncs;
  std::nth_element(durations.begin(), durations.begin() + durations.size() / 2, durations.end());
  std::printf("{\"tasks_per_second\": %.1f, \"sync_seconds\": %.9f, \"rounds\": %zu}\n",
              count / durations[durations.size() / 2], sync_seconds, durations.size());
}
