// Python functions, for weft::python.
#include "weft/python.h"

#include <cstring>
#include <mutex>

#include "api_cpp/identity.h"
#include "api_cpp/submission.h"
#include "weft/errors.h"
#include "wire/languages.h"

namespace weft::detail {

struct PythonTarget {
  std::string module, name;
  uint32_t num_returns;
  TaskOptions options;
  std::mutex mutex;
  const core::TaskTemplate* what = nullptr;
  uint32_t epoch = 0;  // what `what` is of
};

bool NeedsPythonWorker(const SessionState& state) { return state.runtime->welcome().python_workers == 0; }

const core::Function* PythonFunction(Runtime& runtime, const std::string& module, const std::string& name) {
  auto check = [](const std::string& text, const char* what) {
    if (text.empty() || text.find_first_of(std::string("\n\0", 2)) != std::string::npos) {
      throw std::invalid_argument(std::string("weft::python: this is not the name of a ") + what + ": '" + text + "'");
    }
  };
  check(module, "module");
  check(name, "function or class");
  std::string body = std::string(core::kImportMark) + module + "\n" + name;
  auto function = runtime.InternFunction(HashOf(body), name, body);
  if (!function) ThrowCoreError(function.error());
  return *function;
}

std::shared_ptr<PythonTarget> NewPythonFunction(std::string module, std::string name, uint32_t num_returns,
                                                TaskOptions options) {
  auto target = std::make_shared<PythonTarget>();
  target->module = std::move(module);
  target->name = std::move(name);
  target->num_returns = num_returns;
  target->options = std::move(options);
  return target;
}

void SubmitPython(PythonTarget& target, Encoder& arguments, Object** returns) {
  Using session;
  SessionState& state = session.need();
  const core::TaskTemplate* what;
  {
    std::lock_guard lock(target.mutex);
    if (target.epoch != state.epoch) {
      const TaskOptions& options = target.options;
      core::TaskTemplate made;
      made.function = PythonFunction(*state.runtime, target.module, target.name);
      FillTemplate(made, options, target.name);
      made.num_returns = target.num_returns;
      core::ResourceAmounts shape = ShapeOf(options.num_cpus.value_or(1), options.num_gpus, options.memory,
                                            options.resources, NeedsPythonWorker(state));
      AddPlacement(shape, options.scheduling_strategy, options.label_selector);
      target.what = state.runtime->InternTemplate(std::move(made), shape);
      target.epoch = state.epoch;
    }
    what = target.what;
  }
  Submit(what, arguments, returns);
}

}  // namespace weft::detail
