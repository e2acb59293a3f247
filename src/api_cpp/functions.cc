// Submits tasks, for the template remote<f>.
#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>

#include "api_cpp/identity.h"
#include "api_cpp/library_origin.h"
#include "api_cpp/submission.h"
#include "weft/remote.h"
#include "wire/languages.h"
#include "wire/placement.h"
#include "wire/resource_names.h"

namespace weft::detail {

namespace {

[[noreturn]] void Refuse(const char* what, const std::string& name) {
  std::string text(what);
  text.append(": '").append(name).append("'");
  throw std::invalid_argument(text);
}

void AddAmount(core::ResourceAmounts& shape, const std::string& name, double amount) {
  if (!(amount >= 0) || amount > 1e12) Refuse("weft: the amount of a resource must not be negative", name);
  auto units = static_cast<int64_t>(std::llround(amount * static_cast<double>(core::kResourceUnit)));
  if (units > 0) shape.emplace_back(name, units);
}

}  // namespace

core::ResourceAmounts ShapeOf(double num_cpus, double num_gpus, double memory,
                              const std::vector<std::pair<std::string, double>>& resources, bool in_python) {
  core::ResourceAmounts shape;
  AddAmount(shape, "CPU", num_cpus);
  AddAmount(shape, "GPU", num_gpus);
  AddAmount(shape, "memory", memory);
  if (resources.size() > core::kMaxOwnResources) {
    throw std::invalid_argument("weft: at most " + std::to_string(core::kMaxOwnResources) +
                                " resources can be asked for");
  }
  for (const auto& [name, amount] : resources) {
    static_assert(core::kMaxResourceNameBytes == 256);
    if (name.size() > 256) Refuse("weft: the name of a resource has at most 256 bytes", name.substr(0, 40) + "...");
    if (name.starts_with('~')) Refuse("weft: a resource's name does not begin with ~", name);
    if (name.empty() || name == "CPU" || name == "GPU" || name == "memory") {
      Refuse("weft: CPUs, GPUs and memory have options of their own and do not belong in resources", name);
    }
    AddAmount(shape, name, amount);
  }
  if (in_python) shape.emplace_back(core::kPythonWorker, 1);
  std::sort(shape.begin(), shape.end());
  return shape;
}

void AddPlacement(core::ResourceAmounts& shape, const SchedulingStrategy& strategy, const LabelSelector& labels) {
  core::Placement placement;
  placement.spread = std::holds_alternative<Spread>(strategy);
  if (const auto* affinity = std::get_if<NodeAffinity>(&strategy)) {
    placement.node = affinity->node_id;
    placement.soft = affinity->soft;
    if (placement.node.empty()) throw std::invalid_argument("weft: NodeAffinity names no node");
  }
  LabelSelector sorted = labels;
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [key, text] : sorted) {
    auto condition = core::ParseLabelCondition(key, text);
    if (!condition) throw std::invalid_argument("weft: label_selector: " + condition.error().message);
    placement.labels.push_back(std::move(*condition));
  }
  const std::string name = core::EncodePlacement(placement);
  core::Placement decoded;
  if (name.empty()) return;
  if (!core::DecodePlacement(name, &decoded)) {
    throw std::invalid_argument(placement.labels.empty()
                                    ? "weft: NodeAffinity wants a node's id, 32 hexadecimal digits (weft::nodes())"
                                    : "weft: the label_selector is too long, or no node has the id in NodeAffinity");
  }
  core::AddPlacement(shape, placement);
}

void FillTemplate(core::TaskTemplate& what, const TaskOptions& options, const std::string& name) {
  what.max_retries = options.max_retries.value_or(3);
  if (what.max_retries < -1) throw std::invalid_argument("weft: max_retries must be -1 (no limit), 0 or more");
  what.name = options.name.empty() ? name : options.name;
  if (options.retry_exceptions) what.retry_exceptions.push_back('*');  // any
}

const core::TaskTemplate* Bind(FunctionRecord& function, const TaskOptions& options) {
  Using session;
  Runtime& runtime = *session.need().runtime;
  core::ResourceAmounts shape =
      ShapeOf(options.num_cpus.value_or(1), options.num_gpus, options.memory, options.resources);
  AddPlacement(shape, options.scheduling_strategy, options.label_selector);
  core::TaskTemplate what;
  auto interned = runtime.InternFunction(KeyOf(function), std::string(function.name), BodyOf(function));
  if (!interned) ThrowCoreError(interned.error());
  what.function = *interned;
  what.num_returns = function.num_returns;
  FillTemplate(what, options, std::string(function.name));
  return runtime.InternTemplate(std::move(what), shape);
}

namespace {

const Bound* BindDefault(FunctionRecord& function, uint32_t epoch) {
  static std::mutex mutex;
  static auto* all = new std::deque<Bound>();  // never freed: another thread may be reading an old one
  const core::TaskTemplate* what = Bind(function, {});
  std::lock_guard lock(mutex);
  const Bound* bound = &all->emplace_back(Bound{what, nullptr, epoch});
  function.bound.store(bound, std::memory_order_release);
  return bound;
}

void SubmitTo(Runtime& runtime, const core::TaskTemplate* what, Encoder& arguments, Object** returns) {
  runtime.Submit(what, {reinterpret_cast<const char*>(arguments.data()), arguments.size()},
                 {arguments.dependencies.data(), arguments.dependencies.size()},
                 {arguments.contained.data(), arguments.contained.size()}, returns);
}

}  // namespace

void Submit(FunctionRecord& function, Encoder& arguments, Object** returns) {
  Using session;
  SessionState& state = session.need();
  const Bound* bound = function.bound.load(std::memory_order_acquire);
  if (!bound || bound->epoch != state.epoch) [[unlikely]]
    bound = BindDefault(function, state.epoch);
  SubmitTo(*state.runtime, bound->what, arguments, returns);
}

void Submit(const core::TaskTemplate* what, Encoder& arguments, Object** returns) {
  Using session;
  SubmitTo(*session.need().runtime, what, arguments, returns);
}

}  // namespace weft::detail
