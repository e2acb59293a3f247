// The submission of tasks and actors to the runtime: what both share.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "api_cpp/state.h"
#include "weft/remote.h"

namespace weft::detail {

struct Bound {
  const core::TaskTemplate* what = nullptr;
  const ActorInfo* info = nullptr;  // of a method: for actors with these options
  uint32_t epoch = 0;
};

// Resources from options; throws std::invalid_argument for invalid ones. `in_python`: a Python worker of this C++ job.
core::ResourceAmounts ShapeOf(double num_cpus, double num_gpus, double memory,
                              const std::vector<std::pair<std::string, double>>& resources, bool in_python = false);

// Adds the placement to a shape; throws std::invalid_argument for an invalid one.
void AddPlacement(core::ResourceAmounts& shape, const SchedulingStrategy& strategy, const LabelSelector& labels);

void FillTemplate(core::TaskTemplate& what, const TaskOptions& options, const std::string& name);

// Whether Python functions run in workers of another kind than C++ functions (python.cc).
bool NeedsPythonWorker(const SessionState& state);
const core::Function* PythonFunction(Runtime& runtime, const std::string& module, const std::string& name);

}  // namespace weft::detail
