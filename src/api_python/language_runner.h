// What a Python worker runs: Python's tasks and actors, and those of C++ libraries that Python has named
// (weft.cpp.library), which need no second process.
//
// On the executor's thread with the GIL, like PythonRunner; C++ bodies run without the GIL. An actor's worker serves
// one language. The C++ half is made when it is first needed.
#pragma once

#include <atomic>
#include <memory>

#include "api_python/python_runner.h"

namespace weft::detail {
class CppRunner;
}

namespace weft::python {

class LanguageRunner final : public core::TaskRunner {
 public:
  explicit LanguageRunner(Runtime& runtime);
  void SetExecutor(core::Executor* executor);
  void Leave();  // when the executor has run, and is still there

  void Prepare(const core::TaskCall& call) override;
  void Run(const std::vector<ObjectId>& returns, core::TaskOutcome& outcome) override;
  void BeforeSleep() override { python_.BeforeSleep(); }
  void AfterSleep() override { python_.AfterSleep(); }
  void Assigned(const core::AssignedLease& lease) override { python_.Assigned(lease); }
  core::ActorMode mode() override;
  void Keep(core::Execution& execution) override;
  void Start(core::Execution& execution) override;
  void RunLoop() override { python_.RunLoop(); }
  void Interrupt(uint64_t execution) override;

 private:
  bool IsCpp(const core::DefinedTemplate& what) const;
  void NeedCpp();

  Runtime& runtime_;
  core::Executor* executor_ = nullptr;
  PythonRunner python_;
  detail::CppRunner* cpp_ = nullptr;       // never freed: its threads may outlast this object
  std::atomic<bool> prepared_cpp_{false};  // the last Prepare was for a C++ task, which may be about to run
  std::atomic<bool> cpp_actor_{false};     // this worker is a C++ actor's
};

}  // namespace weft::python
