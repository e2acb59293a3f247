// GPUs: tasks and actors ask for them, and are told which ones are theirs.
//
// weft counts GPUs and tells each task its numbers, also in CUDA_VISIBLE_DEVICES, which the libraries obey. What is
// declared in init need not be there, so this program runs without any hardware.
#include <weft/weft.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

using namespace std::chrono_literals;

struct Run {
  std::vector<int> gpus;
  std::string visible;
  Interval when;
};

Run train(int milliseconds) {
  Clock::time_point begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return {weft::context().gpu_ids, visible ? visible : "", {begin, Clock::now()}};
}

struct Model {
  std::vector<int> gpus() const { return weft::context().gpu_ids; }
};

int main() {
  auto session = weft::init({.num_cpus = 4, .num_gpus = 2});
  check(weft::cluster_resources()["GPU"] == 2);

  auto on_a_gpu = weft::remote<train>.with({.num_gpus = 1});
  std::vector<weft::Ref<Run>> refs;
  for (int i = 0; i < 4; ++i) refs.push_back(on_a_gpu(200));
  std::vector<Run> runs = weft::get(refs);
  for (const Run& run : runs) {
    check(run.gpus.size() == 1 && (run.gpus[0] == 0 || run.gpus[0] == 1));
    check(run.visible == std::to_string(run.gpus[0]));
  }
  for (size_t i = 0; i < runs.size(); ++i) {  // never two on the same GPU
    for (size_t j = 0; j < i; ++j) check(runs[i].gpus != runs[j].gpus || !runs[i].when.overlaps(runs[j].when));
  }

  // An actor keeps its GPU as long as it lives.
  auto model = weft::actor<Model>.with({.num_gpus = 1})();
  std::vector<int> mine = weft::get(model.call<&Model::gpus>());
  check(mine.size() == 1);
  for (int i = 0; i < 3; ++i) check(weft::get(on_a_gpu(1)).gpus != mine);

  // Halves share one.
  auto on_half = weft::remote<train>.with({.num_gpus = 0.5});
  auto [one, other] = weft::get(on_half(100), on_half(100));
  check(one.gpus == other.gpus && one.gpus != mine);
  check(weft::get(weft::remote<train>(0)).gpus.empty());
  std::puts("ok: four trainings shared two GPUs, an actor kept one, and two halves were on the other");
}
