// LocalScheduler: what it knows of who holds the resources that somebody waits for.
#include <algorithm>

#include "scheduling/local_scheduler.h"
#include "wire/placement.h"

namespace weft::core {

ShapeFact LocalScheduler::Explain(const ResourceAmounts& shape) const {
  ShapeFact fact;
  fact.shape = shape;
  for (const auto& [kind, wanted] : wanted_workers_) {
    if (kind.python_of_cpp_job == WantsPythonWorker(shape) && wanted != UINT32_MAX) fact.starting += wanted;
  }
  for (const auto& [name, amount] : shape) {
    if (IsPlacement(name)) {  // no resource: nobody holds it, and there is enough
      fact.total.emplace_back(name, amount);
      fact.free.emplace_back(name, amount);
      continue;
    }
    if (int64_t total = AmountOf(total_, name); total > 0) fact.total.emplace_back(name, total);
    if (int64_t free = free_.Of(name); free > 0) fact.free.emplace_back(name, free);
  }
  for (const auto& [id, lease] : leases_) {
    HolderFact holder{.lease = id, .worker = lease.worker, .pid = 0, .kept = {}, .actor = {}};
    for (const auto& [name, amount] : lease.holds) {
      // A task that waits lends its CPUs, so they are not what others lack.
      if (name != kCpu && AmountOf(shape, name) > 0) holder.kept.emplace_back(name, amount);
    }
    if (!holder.kept.empty()) fact.holders.push_back(std::move(holder));
  }
  return fact;
}

}  // namespace weft::core
