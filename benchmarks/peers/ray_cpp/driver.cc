// Ray's C++ API under measurement: the workloads of cpp/workloads.cc, but for arrays, which that API does not have.
//
// usage: weft_bench_ray_cpp ADDRESS LIBRARY
// It joins a Ray that is already running. One that it started itself it would end with `ray stop`, which ends every
// other Ray of the machine, too.
#include <ray/api.h>

#include <memory>

#include "../../cpp/conversation.h"
#include "functions.h"

namespace {

struct Counted {
  ray::ActorHandle<Counter> actor;
  int count = 0;
};

double RunTasks(long size, double seconds) {
  return static_cast<double>(size) / bench::MedianSeconds(seconds, [size] {
           std::vector<ray::ObjectRef<int>> refs;
           refs.reserve(static_cast<size_t>(size));
           for (int i = 0; i < size; ++i) refs.push_back(ray::Task(Increment).Remote(i));
           std::vector<std::shared_ptr<int>> results = ray::Get(refs);
           for (int i = 0; i < size; ++i) bench::Check(*results[static_cast<size_t>(i)] == i + 1, "of a task");
         });
}

double RunCalls(Counted& counted, long size, double seconds) {
  return static_cast<double>(size) / bench::MedianSeconds(seconds, [&, size] {
           std::vector<ray::ObjectRef<int>> refs;
           refs.reserve(static_cast<size_t>(size));
           for (int i = 0; i < size; ++i) refs.push_back(counted.actor.Task(&Counter::Add).Remote(1));
           for (const auto& result : ray::Get(refs)) bench::Check(*result == ++counted.count, "of a call");
         });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  ray::RayConfig config;
  config.address = argv[1];
  config.code_search_path = {argv[2]};
  ray::Init(config);
  std::unique_ptr<Counted> counted;
  auto actor = [&]() -> Counted& {
    if (!counted) counted.reset(new Counted{ray::Actor(Counter::Create).Remote(0)});
    return *counted;
  };
  bench::Serve([&](const std::string& workload, long size, double seconds) {
    if (workload == "tasks") return RunTasks(size, seconds);
    if (workload == "task_sync") {
      return bench::MeanSeconds(
          seconds, [](int i) { bench::Check(*ray::Get(ray::Task(Increment).Remote(i)) == i + 1, "of a task"); });
    }
    if (workload == "calls") return RunCalls(actor(), size, seconds);
    if (workload == "call_sync") {
      Counted& to = actor();
      return bench::MeanSeconds(seconds, [&](int) {
        bench::Check(*ray::Get(to.actor.Task(&Counter::Add).Remote(1)) == ++to.count, "of a call");
      });
    }
    bench::RefuseWorkload(workload);
  });
  counted.reset();
  ray::Shutdown();
}
