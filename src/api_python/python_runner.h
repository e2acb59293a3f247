// Runs the bodies of Python tasks in a worker. Main thread, GIL held (released around sleeping).
#pragma once

#include <unordered_map>

#include "api_python/codec.h"
#include "runtime/executor.h"

namespace weft::python {

class PythonRunner final : public core::TaskRunner {
 public:
  explicit PythonRunner(Runtime& runtime) : runtime_(runtime) {}
  void Prepare(const core::TaskCall& call) override;
  void Run(const std::vector<ObjectId>& returns, core::TaskOutcome& outcome) override;
  void BeforeSleep() override;
  void AfterSleep() override;

 private:
  PyObject* FunctionOf(core::DefinedTemplate& what);
  bool Encode(PyObject* value, ObjectId id, core::TaskReturn& out, size_t* inline_bytes);
  void Fail(core::TaskOutcome& outcome);

  Runtime& runtime_;
  core::DefinedTemplate* what_ = nullptr;
  PyObject* function_ = nullptr;
  std::vector<PyObject*> arguments_;
  size_t num_positional_ = 0;
  PyObject* kwnames_ = nullptr;
  bool failed_ = false;
  std::unordered_map<core::FunctionKey, PyObject*> loaded_;
  PyThreadState* saved_ = nullptr;
};

}  // namespace weft::python
