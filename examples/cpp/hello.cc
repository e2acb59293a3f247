// The C++ side of the tour: functions become tasks, results are references, and the order follows from the data.
#include <weft/weft.h>

#include <chrono>
#include <cstdio>
#include <vector>

int square(int x) { return x * x; }
int plus(int a, int b) { return a + b; }

int main() {
  auto session = weft::init();  // in a worker process this call serves tasks and does not return

  weft::Ref<int> sum = weft::remote<plus>(weft::remote<square>(3), weft::remote<square>(4));
  std::printf("  plus(square(3), square(4)) = %d\n", weft::get(sum));

  auto start = std::chrono::steady_clock::now();
  std::vector<weft::Ref<int>> refs;
  for (int i = 0; i < 10'000; ++i) refs.push_back(weft::remote<square>(i % 100));
  long total = 0;
  for (int value : weft::get(refs)) total += value;
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("  10,000 tasks, sum of results %ld: %.0f tasks per second\n", total, 10'000 / seconds);

  weft::Ref<int> thousand = weft::put(1'000);
  std::vector<weft::Ref<int>> pending;
  for (int i = 0; i < 4; ++i) pending.push_back(weft::remote<plus>(thousand, i));
  auto [ready, rest] = weft::wait(pending, {.num_returns = 1});
  std::printf("  wait: %zu of %zu ready\n", ready.size(), pending.size());
  return total == 10'000 / 100 * 328'350L ? 0 : 1;
}
