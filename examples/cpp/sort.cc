// A parallel sort: samples say where to cut, each block is cut into buckets, and each bucket is sorted on its own.
//
//   blocks ──partition──▶ pieces ──gather──▶ sorted buckets, in order
//
// The numbers stay in shared memory: partition returns one array in which the buckets of its block lie one after the
// other, and gather looks at its own part of each of them where it lies. The driver handles references only.
#include <weft/weft.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <random>
#include <span>
#include <vector>

using Numbers = weft::Array<uint32_t>;
using Cuts = std::vector<uint32_t>;

constexpr size_t kBlocks = 4, kNumbersPerBlock = 1'000'000;

Numbers make_block(int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  Numbers block = weft::empty<uint32_t>(kNumbersPerBlock);
  for (uint32_t& number : block) number = random();
  return block;
}

Cuts sample(std::span<const uint32_t> block) {
  Cuts samples;
  for (size_t i = 0; i < block.size(); i += block.size() / 64) samples.push_back(block[i]);
  return samples;
}

// The block's numbers by bucket, and where each bucket begins: two results, two references.
weft::Returns<Numbers, std::vector<size_t>> partition(std::span<const uint32_t> block, const Cuts& cuts) {
  auto bucket_of = [&](uint32_t number) {
    return static_cast<size_t>(std::upper_bound(cuts.begin(), cuts.end(), number) - cuts.begin());
  };
  std::vector<uint8_t> buckets(block.size());
  std::vector<size_t> begins(cuts.size() + 2);
  for (size_t i = 0; i < block.size(); ++i) {
    buckets[i] = static_cast<uint8_t>(bucket_of(block[i]));
    ++begins[buckets[i] + 1];
  }
  for (size_t i = 1; i < begins.size(); ++i) begins[i] += begins[i - 1];
  Numbers pieces = weft::empty<uint32_t>(block.size());
  std::vector<size_t> next = begins;
  for (size_t i = 0; i < block.size(); ++i) pieces[next[buckets[i]]++] = block[i];
  return {std::move(pieces), std::move(begins)};
}

// One bucket of all blocks, sorted. References in a vector arrive as references.
Numbers gather(const std::vector<weft::Ref<Numbers>>& pieces, const std::vector<weft::Ref<std::vector<size_t>>>& begins,
               size_t bucket) {
  std::vector<std::vector<size_t>> bounds = weft::get(begins);
  std::vector<weft::Array<const uint32_t>> views = weft::get(pieces);  // no copies
  size_t size = 0;
  for (const auto& bound : bounds) size += bound[bucket + 1] - bound[bucket];
  Numbers sorted = weft::empty<uint32_t>(size);
  uint32_t* end = sorted.begin();
  for (size_t i = 0; i < views.size(); ++i) {
    end = std::copy(views[i].begin() + bounds[i][bucket], views[i].begin() + bounds[i][bucket + 1], end);
  }
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

int main() {
  auto session = weft::init();
  std::vector<weft::Ref<Numbers>> blocks;
  for (size_t i = 0; i < kBlocks; ++i) blocks.push_back(weft::remote<make_block>(static_cast<int>(i)));
  weft::wait(blocks, {.num_returns = kBlocks});
  auto begin = std::chrono::steady_clock::now();

  std::vector<weft::Ref<Cuts>> samples;
  for (const auto& block : blocks) samples.push_back(weft::remote<sample>(block));
  Cuts all, cuts;
  for (const Cuts& some : weft::get(samples)) all.insert(all.end(), some.begin(), some.end());
  std::sort(all.begin(), all.end());
  for (size_t i = 1; i < kBlocks; ++i) cuts.push_back(all[i * all.size() / kBlocks]);

  std::vector<weft::Ref<Numbers>> pieces;
  std::vector<weft::Ref<std::vector<size_t>>> begins;
  for (const auto& block : blocks) {
    auto [piece, bounds] = weft::remote<partition>(block, cuts);
    pieces.push_back(piece);
    begins.push_back(bounds);
  }
  std::vector<weft::Ref<Numbers>> sorted;
  for (size_t bucket = 0; bucket < kBlocks; ++bucket) sorted.push_back(weft::remote<gather>(pieces, begins, bucket));

  size_t count = 0;
  uint32_t last = 0;
  std::vector<weft::Array<const uint32_t>> buckets = weft::get(sorted);
  std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  for (const auto& bucket : buckets) {  // views of the workers' results
    if (!std::is_sorted(bucket.begin(), bucket.end()) || (!bucket.empty() && bucket[0] < last)) return 1;
    if (!bucket.empty()) last = bucket[bucket.size() - 1];
    count += bucket.size();
  }
  if (count != kBlocks * kNumbersPerBlock) return 1;
  std::printf("ok: %zu numbers in order after %.2f s, in %zu buckets\n", count, seconds.count(), buckets.size());
}
