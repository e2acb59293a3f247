// Pi by Monte Carlo: many tasks throw darts, and an actor counts how far they are.
//
// The tasks share nothing. Each reports to the actor now and then without waiting for it, so the driver can show
// progress; the result is the sum of what the tasks return.
#include <weft/weft.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numbers>
#include <vector>

using namespace std::chrono_literals;

class Progress {
 public:
  void add(uint64_t darts) { thrown_ += darts; }
  uint64_t thrown() const { return thrown_; }

 private:
  uint64_t thrown_ = 0;
};

constexpr uint64_t kTasks = 16, kDartsEach = 12'000'000, kReports = 8;

// How many of the darts fall into the circle. The random numbers are those of a counter, hashed: tasks with different
// seeds never share a sequence.
uint64_t throw_darts(uint64_t seed, uint64_t darts, weft::Actor<Progress> progress) {
  auto random = [state = seed << 40]() mutable {  // splitmix64, in [0, 1)
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  };
  uint64_t inside = 0;
  for (uint64_t report = 0; report < kReports; ++report) {
    for (uint64_t i = 0; i < darts / kReports; ++i) {
      double x = random(), y = random();
      inside += x * x + y * y < 1;
    }
    progress.call<&Progress::add>(darts / kReports);  // the Ref is dropped: nobody waits for this call
  }
  return inside;
}

int main() {
  auto session = weft::init();
  auto progress = weft::actor<Progress>();

  std::vector<weft::Ref<uint64_t>> tasks;
  for (uint64_t seed = 0; seed < kTasks; ++seed) {
    tasks.push_back(weft::remote<throw_darts>(seed, kDartsEach, progress));
  }

  uint64_t inside = 0;
  while (!tasks.empty()) {
    auto [done, rest] = weft::wait(tasks, {.num_returns = tasks.size(), .timeout = 100ms});
    for (const auto& ref : done) inside += weft::get(ref);
    tasks = rest;
    std::printf("\r%3.0f %%", 100.0 * weft::get(progress.call<&Progress::thrown>()) / (kTasks * kDartsEach));
    std::fflush(stdout);
  }

  double pi = 4.0 * static_cast<double>(inside) / (kTasks * kDartsEach);
  std::printf("\nok: pi is about %.5f, by %d million darts\n", pi, static_cast<int>(kTasks * kDartsEach / 1'000'000));
  return std::abs(pi - std::numbers::pi) < 0.001 ? 0 : 1;  // eight standard deviations
}
