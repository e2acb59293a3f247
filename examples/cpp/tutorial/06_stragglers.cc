// Stragglers: go on with the results that are there, and take the slow ones later.
//
// wait gives what is ready and what is not, as soon as enough are ready or the time is over.
#include <weft/weft.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <thread>
#include <vector>

#include "check.h"

using namespace std::chrono_literals;

constexpr std::array kDelays = {50ms, 1500ms, 80ms, 1300ms, 110ms, 1200ms};  // every other mirror is slow today

int download(int mirror) {
  weft::this_task::sleep_for(kDelays[static_cast<size_t>(mirror)]);  // a sleep that ends if the task is cancelled
  return mirror;
}

std::vector<int> sorted(std::vector<int> values) {
  std::sort(values.begin(), values.end());
  return values;
}

int main() {
  auto session = weft::init({.num_cpus = 6});

  std::vector<weft::Ref<int>> pending;
  for (int mirror = 0; mirror < 6; ++mirror) pending.push_back(weft::remote<download>(mirror));
  Clock::time_point begin = Clock::now();
  auto [quick, slow] = weft::wait(pending, {.num_returns = 3});
  check(sorted(weft::get(quick)) == std::vector<int>{0, 2, 4});
  check(Clock::now() - begin < 1200ms);  // before the first of the slow ones
  check(slow.size() == 3);

  // With a time limit, wait may return fewer than asked for. It never throws for that.
  auto [ready, rest] = weft::wait(slow, {.num_returns = 3, .timeout = 10ms});
  check(ready.size() + rest.size() == 3 && !rest.empty());

  // get with a time limit does throw, and the task goes on; try_get says the same without an exception.
  try {
    weft::get(slow[0], 10ms);
    check(false);
  } catch (const weft::GetTimeoutError&) {
  }
  check(weft::try_get(slow[0], 10ms).timed_out());

  // What is not wanted any more is cancelled.
  weft::cancel(slow[0]);
  try {
    weft::get(slow[0]);
    check(false);
  } catch (const weft::TaskCancelledError&) {
  }
  check(weft::get(slow[1]) == 3 && weft::get(slow[2]) == 5);
  std::puts("ok: the three quick mirrors were used while the slow ones went on, and one of those was cancelled");
}
