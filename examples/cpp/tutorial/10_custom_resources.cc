// Resources of your own: names and amounts, for what must not be used by too many at a time.
//
// Here a license server hands out three licenses. Tasks that need one wait for it; the others do not.
#include <weft/weft.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <vector>

#include "check.h"

Interval work(int milliseconds) {
  Clock::time_point begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  return {begin, Clock::now()};
}

size_t most_at_once(const std::vector<Interval>& all) {
  size_t most = 0;
  for (const Interval& one : all) {
    most = std::max<size_t>(most, static_cast<size_t>(std::count_if(all.begin(), all.end(), [&](const Interval& other) {
                              return other.begin <= one.begin && one.begin < other.end;
                            })));
  }
  return most;
}

int main() {
  auto session = weft::init({.num_cpus = 8, .resources = {{"license", 3}}});
  check(weft::cluster_resources()["license"] == 3);

  auto simulate = weft::remote<work>.with({.resources = {{"license", 1}}});
  auto preview = weft::remote<work>.with({.num_cpus = 0, .resources = {{"license", 0.5}}});
  auto run = [](auto& task, int times) {
    std::vector<weft::Ref<Interval>> refs;
    for (int i = 0; i < times; ++i) refs.push_back(task(100));
    return refs;
  };
  size_t simulations = most_at_once(weft::get(run(simulate, 7)));
  size_t previews = most_at_once(weft::get(run(preview, 9)));
  check(simulations <= 3 && previews <= 6);  // fractions are counted exactly

  // Tasks without a license are not held up by those that queue for one.
  std::vector<weft::Ref<Interval>> queued = run(simulate, 9);
  check(weft::get(run(weft::remote<work>, 4)).size() == 4);
  check(!weft::wait(queued, {.num_returns = 9, .timeout = std::chrono::seconds(0)}).rest.empty());
  weft::get(queued);

  // What no machine can ever give is an error, not a wait without end.
  auto impossible = weft::try_get(weft::remote<work>.with({.resources = {{"license", 4}}})(0));
  check(!impossible && impossible.error_name() == "UnschedulableError");
  std::printf("ok: at most %zu simulations and %zu previews ran at once with 3 licenses\n", simulations, previews);
}
