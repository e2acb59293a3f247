// Completion order: handle each result when it is there, and keep a fixed number of tasks going.
//
// The loop starts a new task whenever one is done, as a search does that decides by its results where to look next.
// Then the same in batches: as many as are ready, not one by one.
#include <weft/weft.h>

#include <cstdio>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"

std::pair<int, int> score(int candidate) {
  std::minstd_rand random(static_cast<unsigned>(candidate) + 1);
  random.discard(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(random() % 40));
  return {candidate, -(candidate - 42) * (candidate - 42)};
}

int main() {
  auto session = weft::init({.num_cpus = 4});

  int next = 0;
  std::vector<weft::Ref<std::pair<int, int>>> pending;
  for (; next < 16; next += 4) pending.push_back(weft::remote<score>(next));
  std::map<int, int> by_score;
  while (!pending.empty()) {
    auto [done, rest] = weft::wait(pending);  // one
    auto [candidate, value] = weft::get(done[0]);
    by_score[value] = candidate;
    pending = rest;
    if (next < 100) pending.push_back(weft::remote<score>(next));
    next += 4;
    check(pending.size() <= 4);
  }
  int best = by_score.rbegin()->second;
  check(best == 40 || best == 44);

  // Batches: wait for three, and take what else has come by then.
  std::vector<weft::Ref<std::pair<int, int>>> all;
  for (int candidate = 0; candidate < 24; ++candidate) all.push_back(weft::remote<score>(candidate));
  int batches = 0, done = 0;
  while (!all.empty()) {
    weft::wait(all, {.num_returns = std::min<size_t>(3, all.size())});
    auto [ready, rest] = weft::wait(all, {.num_returns = all.size(), .timeout = std::chrono::seconds(0)});
    check(ready.size() >= 3 || rest.empty());
    done += static_cast<int>(weft::get(ready).size());
    ++batches;
    all = rest;
  }
  check(done == 24 && batches <= 8);
  std::printf("ok: the best candidate is %d; 24 more came in %d batches, in the order in which they ended\n", best,
              batches);
}
