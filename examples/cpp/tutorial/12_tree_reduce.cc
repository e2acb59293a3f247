// A tree reduce: combine many values in few rounds, pairs at a time.
//
// In a chain every step waits for the one before. In a tree half as many values are left after each round, and the
// pairs of a round are combined side by side. Only references are handled here; the values stay with the workers.
#include <weft/weft.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <random>
#include <vector>

#include "check.h"

struct Histogram {
  int depth = 0;  // how many combinations it took, one after the other
  std::array<long, 10> counts{};
};

Histogram histogram(int seed) {
  std::minstd_rand random(static_cast<unsigned>(seed) + 1);
  Histogram result;
  for (int i = 0; i < 10'000; ++i) ++result.counts[random() % 10];
  return result;
}

Histogram combine(const Histogram& left, const Histogram& right) {
  Histogram sum{std::max(left.depth, right.depth) + 1, left.counts};
  for (size_t i = 0; i < sum.counts.size(); ++i) sum.counts[i] += right.counts[i];
  return sum;
}

using Refs = std::vector<weft::Ref<Histogram>>;

weft::Ref<Histogram> reduce_tree(const Refs& refs) {  // two from the front, their combination to the back
  std::deque<weft::Ref<Histogram>> queue(refs.begin(), refs.end());
  while (queue.size() > 1) {
    queue.push_back(weft::remote<combine>(queue[0], queue[1]));
    queue.erase(queue.begin(), queue.begin() + 2);
  }
  return queue[0];
}

weft::Ref<Histogram> reduce_chain(const Refs& refs) {  // the same number of tasks, each behind the other
  weft::Ref<Histogram> result = refs[0];
  for (size_t i = 1; i < refs.size(); ++i) result = weft::remote<combine>(result, refs[i]);
  return result;
}

int main() {
  auto session = weft::init({.num_cpus = 4});

  Refs leaves;
  for (int seed = 0; seed < 32; ++seed) leaves.push_back(weft::remote<histogram>(seed));
  auto [tree, chain] = weft::get(reduce_tree(leaves), reduce_chain(leaves));
  check(tree.counts == chain.counts);
  long sum = 0;
  for (long count : tree.counts) sum += count;
  check(sum == 32 * 10'000);
  check(tree.depth == 5 && chain.depth == 31);
  std::printf("ok: 32 histograms were combined in %d rounds instead of %d\n", tree.depth, chain.depth);
}
