// weft_bench_scheduler NODES SECONDS: how many placements per second of CPU the global scheduler decides, and what a
// node costs it in memory. Prints one JSON object.
//
// The machine runs alone, without network or processes. Each placement is a wish of a random node in one of eight
// shapes, sometimes with arguments elsewhere or SPREAD; the report in which its node has taken it up; the report when
// it has ended; and the withdrawal. So a decision is four events. The nodes are kept about three quarters full.
#include <malloc.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "scheduling/free_resources.h"
#include "scheduling/global_scheduler.h"

using namespace weft::core;

namespace {

struct Running {
  uint32_t node = 0;
  WishId wish;
  ResourceAmounts shape;
  AssignedGpus gpus;
};

// What a node's daemon would do: take what was placed, give back what has ended, report.
class Cluster {
 public:
  explicit Cluster(uint32_t nodes) {
    for (uint32_t number = 1; number <= nodes; ++number) {
      ResourceAmounts total = {{"CPU", 16 * kResourceUnit}};
      if (number % 4 == 0) total.emplace_back("GPU", 4 * kResourceUnit);
      total.emplace_back("memory", 64 * kResourceUnit);
      if (number % 10 == 0) total.emplace_back("tape", 2 * kResourceUnit);
      nodes_.emplace_back(total);
      seen_.push_back(0);
      totals_.push_back(std::move(total));
    }
    for (int64_t cpus : {1, 1, 2, 4}) shapes_.push_back({{"CPU", cpus * kResourceUnit}});
    shapes_.push_back({{"CPU", kResourceUnit / 2}});
    shapes_.push_back({{"CPU", kResourceUnit}, {"GPU", kResourceUnit}});
    shapes_.push_back({{"CPU", kResourceUnit}, {"memory", 8 * kResourceUnit}});
    shapes_.push_back({{"CPU", kResourceUnit}, {"tape", kResourceUnit}});
  }

  void Join() {
    NodeLabels labels = {{"region", "eu"}, {"zone", "a"}};
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      Handle(NodeJoined{NodeNumber{i + 1}, totals_[i], totals_[i], {}, labels});
    }
  }

  void Wish() {
    WorkWished wish;
    wish.wish = {NodeNumber{static_cast<uint32_t>(1 + random_.Below(nodes_.size()))}, next_wish_++};
    wish.process = ProcessId{uint64_t{wish.wish.asker.value} << 32 | 7};
    wish.job = random_.Below(4);
    wish.shape = shapes_[random_.Below(shapes_.size())];
    wish.count = 1;
    if (random_.Chance(10)) wish.strategy.kind = PlacementStrategy::Kind::kSpread;
    if (random_.Chance(20)) {
      wish.argument_bytes.emplace_back(NodeNumber{static_cast<uint32_t>(1 + random_.Below(nodes_.size()))}, 64 << 20);
    }
    Handle(wish);
  }

  void EndOldest() {
    Running done = std::move(running_.front());
    running_.pop_front();
    nodes_[done.node].Give(done.shape, done.gpus);
    Handle(WishWithdrawn{done.wish});
    Report(done.node);
  }

  size_t running() const { return running_.size(); }
  uint64_t decisions() const { return decisions_; }

 private:
  void Report(uint32_t node) {
    NodeReported report{NodeNumber{node + 1}, seen_[node], {}, nodes_[node].gpus(), 0, {}};
    for (const auto& [name, amount] : nodes_[node].amounts().amounts()) {
      if (amount > 0) report.available.emplace_back(name, amount);
    }
    Handle(report);
  }

  template <class Event>
  void Handle(const Event& event) {
    std::vector<GlobalAction> actions;
    scheduler_.Handle(event, actions);
    for (auto& action : actions) {
      auto* place = std::get_if<PlaceWork>(&action);
      if (place == nullptr) continue;
      uint32_t node = place->node.value - 1;
      WEFT_CHECK(nodes_[node].Fits(place->shape), "the scheduler's picture is the truth here");
      running_.push_back({node, place->wish, place->shape, nodes_[node].Take(place->shape)});
      seen_[node] = place->placement;
      ++decisions_;
      Report(node);
    }
  }

  Random random_{1};
  GlobalScheduler scheduler_;
  std::vector<FreeResources> nodes_;
  std::vector<uint64_t> seen_;
  std::vector<ResourceAmounts> totals_;
  std::vector<ResourceAmounts> shapes_;
  std::deque<Running> running_;
  uint64_t next_wish_ = 1;
  uint64_t decisions_ = 0;
};

// The head has other things to do on its core; what counts is what of it this takes.
double CpuSeconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: weft_bench_scheduler NODES SECONDS\n");
    return 2;
  }
  auto nodes = static_cast<uint32_t>(std::atoi(argv[1]));
  double seconds = std::atof(argv[2]);
  Cluster cluster(nodes);
  size_t before = mallinfo2().uordblks;
  cluster.Join();
  // A tree for each shape, and some wishes of each node: what the scheduler holds is what a busy one holds.
  while (cluster.running() < size_t{6} * nodes) cluster.Wish();
  // The model's own record of what runs is counted as well: the number is a little too high.
  size_t bytes = mallinfo2().uordblks - before;
  uint64_t first = cluster.decisions();
  double start = CpuSeconds(), now = start;
  for (; now - start < seconds; now = CpuSeconds()) {
    for (int i = 0; i < 64; ++i) {
      while (cluster.running() >= size_t{6} * nodes) cluster.EndOldest();
      cluster.Wish();
    }
  }
  double rate = static_cast<double>(cluster.decisions() - first) / (now - start);
  std::printf("{\"decisions_per_second\": %.0f, \"bytes_per_node\": %.0f}\n", rate, static_cast<double>(bytes) / nodes);
  return 0;
}
