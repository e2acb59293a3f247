// Runtime: libraries of C++ functions that other nodes may not have.
//
// A process that submits a function of a library first tells its own daemon the files, and waits for the answer: a
// worker on another node may ask for them before anything else that this process sends arrives there.
#include "base/clock.h"
#include "runtime/runtime.h"
#include "wire/library_body.h"

namespace weft::core {
namespace {

// The daemon answers at once, unless it is stopped. Then its node cannot give the files to others either.
constexpr int64_t kShareNs = 5'000'000'000;

}  // namespace

void Runtime::ShareLibrary(std::string_view body) {
  LibraryBody library;
  if (!DecodeLibraryBody(body, &library) || library.files.empty()) return;
  const std::string identity = library.files[0].identity;
  std::unique_lock lock(mutex_);
  if (shared_libraries_.contains(identity)) return;
  const uint64_t question = questions_.Begin();
  Send(core::ShareLibrary{.request = question, .files = std::move(library.files)});
  const int64_t until_ns = NowNs() + kShareNs;
  auto answer = AwaitAnswer<LibraryAnswer>(lock, question, [until_ns] { return NowNs() > until_ns; });
  if (answer) shared_libraries_.insert(identity);
}

Result<std::vector<std::string>> Runtime::FindLibrary(const std::vector<ProgramFile>& files, ProcessId submitter,
                                                      const GiveUp& give_up) {
  std::unique_lock lock(mutex_);
  if (stopped()) return Error{ErrorKind::kGone, "the session has ended"};
  const uint64_t question = questions_.Begin();
  Send(core::FindLibrary{.request = question, .submitter = submitter, .files = files});
  // The daemon answers in any case: each step that it waits for has an end.
  auto answer = AwaitAnswer<LibraryAnswer>(lock, question, give_up);
  if (!answer) return answer.error();
  if (!answer->error.empty()) return Error{ErrorKind::kInvalid, std::move(answer->error)};
  return std::move(answer->paths);
}

}  // namespace weft::core
