// The C++ half of a worker: finds the function that a task names, makes its arguments, calls it, encodes its results.
//
// Called by Executor on the worker's main thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api_cpp/state.h"
#include "runtime/executor.h"

namespace weft::detail {

// Where the results of the running task go.
struct Returning {
  SessionState& state;
  const std::vector<core::ObjectId>& ids;
  core::TaskOutcome& outcome;
  size_t inline_bytes = 0;
};

class CppRunner final : public core::TaskRunner {
 public:
  explicit CppRunner(SessionState& state) : state_(state) {}
  void Prepare(const core::TaskCall& call) override;
  void Run(const std::vector<core::ObjectId>& returns, core::TaskOutcome& outcome) override;
  void BeforeSleep() override {}
  void AfterSleep() override {}

 private:
  void* StorageFor(const FunctionRecord& function);
  void Fail(core::TaskOutcome& outcome, std::string error);

  SessionState& state_;
  const core::DefinedTemplate* what_ = nullptr;
  FunctionRecord* function_ = nullptr;
  void* storage_ = nullptr;
  std::string failed_;  // not empty: what went wrong before the call
  alignas(64) unsigned char small_[512];
  std::unique_ptr<void, decltype(&std::free)> large_{nullptr, &std::free};
};

}  // namespace weft::detail
