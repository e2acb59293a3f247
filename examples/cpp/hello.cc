// The C++ side of the tour: functions become tasks, results are references, and the order follows from the data.
#include <weft/weft.h>

#include <chrono>
#include <cstdio>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

int square(int x) { return x * x; }
int plus(int a, int b) { return a + b; }
void nap() { std::this_thread::sleep_for(100ms); }
weft::Returns<int, int> divmod(int a, int b) { return {a / b, a % b}; }  // two objects
double mean(std::span<const float> values) {                             // looks at the array where it lies
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}
int must_be_positive(int x) {
  if (x <= 0) throw std::invalid_argument("not positive: " + std::to_string(x));
  return x;
}

class Stopwatch {
 public:
  double ms() const { return std::chrono::duration<double, std::milli>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
};

int main() {
  Stopwatch start;
  auto session = weft::init({.num_cpus = 4});  // in a worker process this call serves tasks and does not return
  weft::get(weft::remote<plus>(1, 1));
  std::printf("  init and first task: %.1f ms\n", start.ms());

  // Dependencies: a Ref is accepted wherever its value is.
  weft::Ref<int> sum = weft::remote<plus>(weft::remote<square>(3), weft::remote<square>(4));
  auto [quotient, remainder] = weft::remote<divmod>(sum, 7);
  std::printf("  plus(square(3), square(4)) = %d = %d * 7 + %d\n", weft::get(sum), weft::get(quotient),
              weft::get(remainder));

  // Parallel tasks.
  Stopwatch naps;
  std::vector<weft::Ref<void>> sleepers;
  for (int i = 0; i < 4; ++i) sleepers.push_back(weft::remote<nap>());
  weft::get(sleepers);
  std::printf("  4 naps of 100 ms: %.0f ms\n", naps.ms());

  // Many tiny tasks.
  Stopwatch tasks;
  std::vector<weft::Ref<int>> refs;
  for (int i = 0; i < 10'000; ++i) refs.push_back(weft::remote<square>(i % 100));
  long total = 0;
  for (int value : weft::get(refs)) total += value;
  std::printf("  10,000 tasks, sum of results %ld: %.0f tasks per second\n", total, 10'000 / tasks.ms() * 1000);

  // An array in shared memory: filled in place, put without a copy, read by two tasks without a copy.
  Stopwatch array;
  weft::Array<float> x = weft::empty<float>(10'000'000);
  std::fill(x.begin(), x.end(), 0.25f);
  double filled = array.ms();
  weft::Ref<weft::Array<float>> shared = weft::put(std::move(x));
  auto [one, two] = weft::get(weft::remote<mean>(shared), weft::remote<mean>(shared));
  std::printf("  40 MB filled in %.1f ms, put and averaged by two tasks (%.2f, %.2f) in %.1f ms\n", filled, one, two,
              array.ms() - filled);
  Stopwatch view;
  weft::Array<const float> same = weft::get(shared);
  std::printf("  looking at it here: %.3f ms\n", view.ms());

  // What fails says so.
  try {
    weft::get(weft::remote<must_be_positive>(-1));
  } catch (const weft::TaskError& error) {
    std::printf("  %s\n", error.what());
  }
  bool right = total == 10'000 / 100 * 328'350L && one == 0.25 && same[0] == 0.25f;
  std::puts(right ? "ok: the results are as they should be" : "the results are wrong");
  return right ? 0 : 1;
}
