#include "simulator/script.h"

namespace weft::core {

uint64_t DerivedNumber(uint64_t number, uint64_t n) {
  Random random(number * 0x9e3779b97f4a7c15ull + n + 1);
  random.Next();
  return random.Next() | 1;
}

Workload DrawWorkload(Random& random) {
  Workload w;
  w.cpus = static_cast<uint32_t>(1 + random.Below(8));
  w.gpus = static_cast<uint32_t>(random.Below(3));
  w.tasks = static_cast<uint32_t>(60 + random.Below(340));
  w.driver_steps = static_cast<uint32_t>(40 + random.Below(160));
  w.max_depth = static_cast<uint32_t>(1 + random.Below(4));
  w.raise_percent = static_cast<uint32_t>(random.Below(4) * 5);
  w.stored_percent = static_cast<uint32_t>(random.Below(4) * 20);
  w.longest_compute_ns = random.Chance(50) ? 300'000 : 10'000'000;
  w.long_pause = random.Chance(25);
  if (random.Chance(70)) {
    w.actors = static_cast<uint32_t>(1 + random.Below(8));
    // Enough CPUs are left for everything else: what an idle actor holds may never come back.
    w.holders = w.cpus > 3 ? static_cast<uint32_t>(random.Below(w.cpus - 2)) : 0;
    w.names = static_cast<uint32_t>(1 + random.Below(3));
    w.call_share = static_cast<uint32_t>(10 + random.Below(3) * 15);
    w.kill_share = static_cast<uint32_t>(random.Below(4));
    w.timeout_percent = static_cast<uint32_t>(random.Below(3) * 15);
  }
  if (random.Chance(70)) w.cancel_share = static_cast<uint32_t>(1 + random.Below(6));
  if (random.Chance(30)) {
    // Few actors that call each other all the time: circles, and what looks like circles.
    w.actors = static_cast<uint32_t>(2 + random.Below(3));
    w.holders = 0;
    w.max_depth = 4;
    w.call_share = 60;
    w.kill_share = w.cancel_share = w.timeout_percent = w.raise_percent = 0;
    w.longest_compute_ns = 300'000;
    w.long_pause = false;
  }
  return w;
}

Workload DrawClusterWorkload(Random& random) {
  Workload w = DrawWorkload(random);
  w.in_cluster = true;
  w.cpus = 2;
  w.gpus = 1;
  w.actors = w.holders = w.call_share = w.kill_share = w.stored_percent = 0;
  w.long_pause = false;
  w.tasks = static_cast<uint32_t>(40 + random.Below(160));
  w.longest_compute_ns = random.Chance(50) ? 3'000'000 : 100'000'000;
  return w;
}

TaskSpec DrawTask(uint64_t number, uint32_t depth, const Workload& workload) {
  Random random(number);
  TaskSpec spec;
  spec.number = number;
  spec.depth = depth;
  uint64_t shape = random.Below(100);
  int64_t cpus = kResourceUnit;
  if (shape < 10) {
    cpus = kResourceUnit / 2;
  } else if (shape < 20 && workload.cpus >= 2) {
    cpus = 2 * kResourceUnit;
  } else if (shape < 22 && !workload.in_cluster) {
    cpus = (workload.cpus + 1) * kResourceUnit;
    spec.satisfiable = false;
  }
  spec.shape = {{"CPU", cpus}};
  const bool gpu = shape >= 22 && shape < 27 && workload.gpus > 0;
  if (gpu) spec.shape.emplace_back("gpu", kResourceUnit);
  // What only some nodes have must come free by itself: those who wait elsewhere do not make it lent.
  if (gpu && workload.in_cluster) spec.shape.erase(spec.shape.begin());
  if (shape == 27) spec.shape.clear();
  uint64_t returns = random.Below(20);
  spec.num_returns = returns == 0 ? 0 : returns < 15 ? 1 : static_cast<uint32_t>(2 + random.Below(3));
  spec.max_retries = static_cast<int32_t>(random.Below(4));
  if (random.Chance(workload.raise_percent)) {
    spec.ending = random.Chance(50) ? Ending::kRaise : Ending::kRaiseEarly;
    spec.succeeds_at = static_cast<uint32_t>(1 + random.Below(3));
  }
  spec.steps = depth >= workload.max_depth ? static_cast<uint32_t>(random.Below(3))
               : random.Chance(70)         ? static_cast<uint32_t>(random.Below(4))
                                           : static_cast<uint32_t>(random.Below(12));
  // What a waiting task keeps besides CPUs is not lent: if its children need the same, they wait for ever, and are
  // told.
  if (spec.shape.size() > 1 && random.Chance(70)) spec.steps = 0;
  if (gpu && workload.in_cluster) spec.steps = 0;
  spec.unsendable = random.Below(200) == 0;
  return spec;
}

TaskSpec DrawCall(uint64_t number, uint32_t depth, int32_t max_task_retries, const Workload& workload) {
  TaskSpec spec = DrawTask(number, depth, workload);
  Random random(DerivedNumber(number, 31));
  spec.kind = TemplateKind::kCall;
  spec.shape.clear();
  spec.satisfiable = true;
  spec.max_retries = max_task_retries;
  spec.steps = depth >= workload.max_depth ? static_cast<uint32_t>(random.Below(3))
                                           : static_cast<uint32_t>(random.Below(random.Chance(80) ? 4 : 10));
  // Exceptions of calls are not retried.
  if (spec.ending == Ending::kRaiseEarly) spec.ending = Ending::kReturn;
  if (random.Chance(1)) spec.ending = Ending::kExit;
  return spec;
}

ActorSpec DrawActor(uint64_t number, uint32_t depth, bool may_hold, const Workload& workload) {
  Random random(number);
  ActorSpec spec;
  spec.number = number;
  if (random.Chance(90)) spec.to_place = {{"CPU", kResourceUnit}};
  if (may_hold && random.Chance(50)) spec.to_hold = {{"CPU", kResourceUnit}};
  if (random.Chance(3)) spec.to_place = {{"CPU", (workload.cpus + 1) * kResourceUnit}};
  uint64_t restarts = random.Below(10);
  spec.max_restarts = restarts < 4 ? 0 : restarts < 6 ? -1 : static_cast<int32_t>(random.Below(4));
  uint64_t retries = random.Below(10);
  spec.max_task_retries = retries < 4 ? 0 : retries < 6 ? -1 : static_cast<int32_t>(random.Below(4));
  if (random.Chance(40)) {
    spec.name = "name " + std::to_string(random.Below(workload.names));
    spec.get_if_exists = random.Chance(50);
    spec.detached = random.Chance(40);
  }
  spec.constructor.number = DerivedNumber(number, 17);
  spec.constructor.kind = TemplateKind::kCreation;
  spec.constructor.depth = depth;
  spec.constructor.num_returns = 0;
  spec.constructor.max_retries = -1;
  spec.constructor.steps = random.Chance(70) ? 0 : static_cast<uint32_t>(random.Below(4));
  if (random.Chance(6)) spec.constructor.ending = Ending::kRaise;
  return spec;
}

Step DrawStep(Random& random, bool driver, const Workload& workload) {
  if (workload.actors > 0 && random.Chance(workload.call_share)) return random.Chance(80) ? Step::kCall : Step::kCreate;
  if (workload.actors > 0 && random.Chance(1)) return Step::kLookUp;
  if (workload.actors > 0 && random.Chance(workload.kill_share)) return Step::kKill;
  if (random.Chance(workload.cancel_share)) return Step::kCancel;
  uint64_t r = random.Below(100);
  if (r < 45) return Step::kSubmit;
  if (r < 53) return Step::kPut;
  if (r < (driver ? 60 : 70)) return Step::kGet;
  if (r < 80) return Step::kDrop;
  if (r < 85 && !driver) return Step::kKeep;
  if (r < 89 && !driver) return Step::kForget;
  return Step::kCompute;
}

std::string ValueBytes(uint64_t number, uint32_t i) {
  std::string bytes = "value " + std::to_string(number) + "." + std::to_string(i);
  // Some fit into a record, some do not, some are too large to be remembered.
  uint64_t kind = DerivedNumber(number, 77 + i) % 8;
  if (kind == 0) bytes.resize(2000, '.');
  if (kind == 1) bytes.resize(100, '.');
  return bytes;
}

bool IsStored(uint64_t number, uint32_t i, const Workload& workload) {
  return DerivedNumber(number, 177 + i) % 100 < workload.stored_percent;
}

}  // namespace weft::core
