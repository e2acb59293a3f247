// Bare limit of the C++ row: ints through a ring in shared memory to a native function in another process.
//
// usage: weft_bench_ring_native COUNT SECONDS
// prints {"tasks_per_second": ...}, the median over rounds of COUNT calls.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ring.h"

namespace {

int64_t Increment(int64_t x) { return x + 1; }

// Called through a pointer the compiler cannot see through, as a remote function is.
int64_t (*volatile function)(int64_t) = Increment;

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  int64_t count = argc > 1 ? std::atoll(argv[1]) : 1000;
  double seconds = argc > 2 ? std::atof(argv[2]) : 0.3;
  weft::bench::RingPair* pair = weft::bench::CreateRingPair();
  if (pair == nullptr || count <= 0) return 1;
  pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // The child spins; it must not outlive a killed parent.
    weft::bench::Serve(*pair, [](int64_t x) { return function(x); });
    _exit(0);
  }
  std::vector<double> durations;
  bool right = weft::bench::Round(*pair, count);
  auto begin = std::chrono::steady_clock::now();
  do {
    auto round = std::chrono::steady_clock::now();
    right &= weft::bench::Round(*pair, count);
    durations.push_back(SecondsSince(round));
  } while (SecondsSince(begin) < seconds);
  pair->closed.store(1, std::memory_order_release);
  waitpid(child, nullptr, 0);
  if (!right) return 1;
  std::nth_element(durations.begin(), durations.begin() + durations.size() / 2, durations.end());
  std::printf("{\"tasks_per_second\": %.1f, \"rounds\": %zu}\n", count / durations[durations.size() / 2],
              durations.size());
}
