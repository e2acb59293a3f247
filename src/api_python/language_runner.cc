#include "api_python/language_runner.h"

#include "api_cpp/cpp_runner.h"
#include "wire/library_body.h"

namespace weft::python {

LanguageRunner::LanguageRunner(Runtime& runtime) : runtime_(runtime), python_(runtime) {}

void LanguageRunner::Leave() {
  if (!cpp_) return;
  Py_BEGIN_ALLOW_THREADS detail::LeaveSession();
  Py_END_ALLOW_THREADS
}

void LanguageRunner::SetExecutor(core::Executor* executor) {
  executor_ = executor;
  python_.SetExecutor(executor);
}

bool LanguageRunner::IsCpp(const core::DefinedTemplate& what) const {
  if (what.kind == core::TemplateKind::kCall) return cpp_actor_.load(std::memory_order_relaxed);
  return core::IsLibraryBody(what.body);
}

void LanguageRunner::NeedCpp() {
  if (cpp_) return;
  PyObject* find = Callback("weft._api", "namespace");
  Owned text(find ? PyObject_CallNoArgs(find) : nullptr);
  const char* name_space = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  PyErr_Clear();
  cpp_ = detail::JoinSession(runtime_, name_space ? name_space : "", *executor_);
}

void LanguageRunner::Prepare(const core::TaskCall& call) {
  const bool cpp = IsCpp(*call.what);
  if (cpp) NeedCpp();
  prepared_cpp_.store(cpp, std::memory_order_release);
  if (!cpp) [[likely]]
    return python_.Prepare(call);
  // It may wait for the library.
  Py_BEGIN_ALLOW_THREADS cpp_->Prepare(call);
  Py_END_ALLOW_THREADS if (call.what->kind == core::TemplateKind::kCreation) cpp_actor_.store(true);
}

void LanguageRunner::Run(const std::vector<ObjectId>& returns, core::TaskOutcome& outcome) {
  if (!prepared_cpp_.load(std::memory_order_relaxed)) [[likely]]
    return python_.Run(returns, outcome);
  Py_BEGIN_ALLOW_THREADS cpp_->Run(returns, outcome);
  Py_END_ALLOW_THREADS
}

core::ActorMode LanguageRunner::mode() { return cpp_actor_ ? cpp_->mode() : python_.mode(); }

void LanguageRunner::Keep(core::Execution& execution) { cpp_actor_ ? cpp_->Keep(execution) : python_.Keep(execution); }

void LanguageRunner::Start(core::Execution& execution) {
  cpp_actor_ ? cpp_->Start(execution) : python_.Start(execution);
}

void LanguageRunner::Interrupt(uint64_t execution) {
  // Even if it has not begun: Run checks the note.
  if (cpp_actor_ || prepared_cpp_) {
    cpp_->Interrupt(execution);
  } else {
    python_.Interrupt(execution);
  }
}

}  // namespace weft::python
