// Executor: arguments that lie on other nodes. A task stays unclaimed at the front of its channel until its arguments
// are here; those of the next few tasks come meanwhile.
#include <algorithm>

#include "runtime/executor.h"

namespace weft::core {
namespace {

// For how many later tasks arguments are fetched while earlier ones run, and how many bytes at once.
constexpr size_t kMostAhead = 7;
constexpr uint64_t kMostBytesAhead = 32 << 20;

// The arguments of a task that lie on other nodes, in order, each once.
std::vector<Location> AwayFrom(NodeNumber here, const Submitter& submitter, std::string_view bytes) {
  std::vector<Location> away;
  ByteReader in(bytes);
  auto head = in.Fixed<TaskHead>();
  auto add = [&](const Location& location) {
    if (location.size > 0 && NodeOf(location.segment) != here) away.push_back(location);
  };
  auto what = submitter.templates.find(head.template_number);
  if (what != submitter.templates.end() && !what->second->front_end) add(what->second->stored_body);
  if (head.num_dependencies == 0) return away;
  if (!in.ok() || head.num_returns > in.remaining() / sizeof(uint64_t)) return {};
  in.Raw(head.num_returns * sizeof(uint64_t));
  if (head.num_borrowed > in.remaining() / sizeof(ObjectId)) return {};
  in.Raw(head.num_borrowed * sizeof(ObjectId));
  for (uint32_t i = 0; i < head.num_dependencies && in.ok(); ++i) {
    auto dependency = in.Fixed<DependencyHead>();
    auto value = in.Raw(dependency.size);
    if (static_cast<DependencyKind>(dependency.kind) == DependencyKind::kStored && value.size() == sizeof(Location)) {
      add(ByteReader(value).Fixed<Location>());
    }
  }
  std::sort(away.begin(), away.end());
  away.erase(std::unique(away.begin(), away.end()), away.end());
  return away;
}

}  // namespace

// Begins the new fetches before it ends the old ones: one that is in both lists is not fetched twice.
void Executor::Await(std::vector<Location>& awaited, std::vector<Location> wanted) {
  for (const Location& location : wanted) runtime_.copies().AddUser(location);
  for (const Location& location : std::exchange(awaited, std::move(wanted))) {
    runtime_.copies().RemoveUser(location);
  }
}

void Executor::StopAwaiting(Submitter& submitter) {
  Await(submitter.awaited, {});
  Await(submitter.ahead, {});
}

// Or it is known that they will not come: then the task is taken, and goes back or fails.
bool Executor::ArgumentsAreHere(Submitter& submitter, const Frame& frame, bool early) {
  std::vector<Location> away = AwayFrom(NodeOf(runtime_.self()), submitter, frame.bytes);
  if (away.empty() && submitter.awaited.empty() && submitter.ahead.empty()) return true;
  bool here = true;
  {
    std::lock_guard lock(runtime_.mutex());
    if (away != submitter.awaited) {
      Await(submitter.awaited, std::move(away));
      submitter.awaited_early = early;
    } else if (!early && std::exchange(submitter.awaited_early, false)) {
      // There may have been no room beside what the task before it used.
      for (const Location& location : submitter.awaited) runtime_.copies().Ask(location);
    }
    for (const Location& location : submitter.awaited) {
      here = here && !runtime_.copies().IsAsked(location);
    }
  }
  if (early || !here) AwaitAhead(submitter);
  runtime_.FlushIfAny();
  return here;
}

// One argument at a time would wait for four wake-ups on its way, so those of the next few tasks come in parallel.
void Executor::AwaitAhead(Submitter& submitter) {
  SharedStream* stream = submitter.peer->channel.stream();
  std::vector<Location> away;
  uint64_t bytes = 0;
  if (stream && !submitter.awaited.empty()) {
    stream->LookAhead(kMostAhead, [&](const Frame& frame) {
      if (static_cast<FrameType>(frame.type) != FrameType::kTask || bytes > kMostBytesAhead) return;
      for (const Location& location : AwayFrom(NodeOf(runtime_.self()), submitter, frame.bytes)) {
        bytes += location.size;
        if (bytes <= kMostBytesAhead) away.push_back(location);
      }
    });
  }
  std::sort(away.begin(), away.end());
  away.erase(std::unique(away.begin(), away.end()), away.end());
  if (away == submitter.ahead) return;
  std::lock_guard lock(runtime_.mutex());
  Await(submitter.ahead, std::move(away));
}

// The task at the front has its arguments, or will not run here. Those of the next tasks come while this one runs.
void Executor::PopTask(Submitter& submitter) {
  submitter.peer->channel.Pop();
  if (!runtime_.in_cluster()) return;
  Frame next;
  if (submitter.peer->channel.Peek(&next) && static_cast<FrameType>(next.type) == FrameType::kTask) {
    ArgumentsAreHere(submitter, next, true);
  } else if (!submitter.awaited.empty() || !submitter.ahead.empty()) {
    {
      std::lock_guard lock(runtime_.mutex());
      StopAwaiting(submitter);
    }
    runtime_.Flush();
  }
}

}  // namespace weft::core
