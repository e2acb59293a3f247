// NodeDaemon: what it tells observers, and what it keeps for them.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "events/event_log.h"
#include "log/log.h"
#include "node/node_daemon.h"
#include "os/abstract_socket.h"
#include "os/shared_memory.h"
#include "wire/peer_message.h"
#include "wire/wait_facts.h"

namespace weft::core {
namespace {

// Dead processes of which the event log and the last output are kept: at most 64 MB of logs, and usually little.
constexpr size_t kMaxDead = 64;
// Of each worker's output, per stream.
constexpr size_t kOutputTailBytes = 16 << 10;
// An observer may ask for this many tasks and objects of each process; a report must fit into one message.
constexpr uint32_t kMaxReported = 10'000;

}  // namespace

void NodeDaemon::OutputTail::Append(std::string_view more) {
  if (more.size() > kOutputTailBytes) more.remove_prefix(more.size() - kOutputTailBytes);
  text.append(more);
  // Cut seldom, so that a stream of short lines does not move the whole text for each.
  if (text.size() > 2 * kOutputTailBytes) text.erase(0, text.size() - kOutputTailBytes);
}

void NodeDaemon::ListenForObservers() {
  started_ns_ = NowNs();
  const char* events = std::getenv("WEFT_EVENTS");
  keep_events_ = events == nullptr || std::strcmp(events, "0") != 0;
  observers_ = std::make_unique<Observers>(loop_, [this](uint64_t observer, Message& question) {
    if (auto* observe = std::get_if<Observe>(&question)) return AnswerObserver(observer, *observe);
    if (!core_.is_open()) return observers_->Close(observer);
    if (auto* shape = std::get_if<AskShape>(&question)) {
      if (!IsValidShape(shape->shape)) return observers_->Close(observer);
      return observers_->Send(observer, ShapeAnswer{shape->request, EncodeFact(core_.Explain(shape->shape))});
    }
    if (auto* route = std::get_if<RouteTo>(&question)) RouteForObserver(observer, *route);
  });
  if (Status status = observers_->Listen(ObserverSocketName(::geteuid(), ::getpid())); !status) {
    LogWarning("node", "`weft list` and its like will not find this session: %s", status.error().message.c_str());
  }
}

// An observer asks a process why something waits; the answer comes back as RouteTo its number. All else that processes
// tell each other changes something, and is refused.
void NodeDaemon::RouteForObserver(uint64_t observer, RouteTo& question) {
  std::vector<PeerMessage> messages;
  const bool decoded = DecodePeerMessages(question.payload, messages);
  if (!decoded || messages.empty() || !std::all_of(messages.begin(), messages.end(), [](const PeerMessage& message) {
        return message.kind == PeerMessageKind::kAskWhy;
      })) {
    return observers_->Close(observer);
  }
  auto* target = Find(question.to);
  if (target == nullptr || target->local.stage != LocalProcess::Stage::kReady) {
    return observers_->Send(observer, ProcessDied{question.to, 0, "it has ended"});
  }
  Send(*target, Routed{ProcessId{kObserverBit | observer}, std::move(question.payload)});
}

ProcessInfo NodeDaemon::Describe(const Process& process) const {
  ProcessInfo info;
  info.process = process.id;
  info.pid = process.pid != 0 ? process.pid : process.claimed_pid;
  info.role = static_cast<uint8_t>(process.local.is_driver ? Role::kDriver : Role::kWorker);
  ProcessStage stage = ProcessStage::kIdle;
  if (process.local.stage == LocalProcess::Stage::kConnecting) {
    stage = ProcessStage::kStarting;
  } else if (process.local.stage == LocalProcess::Stage::kClosing) {
    stage = ProcessStage::kEnding;
  } else if (process.doorbell && process.doorbell->blocked().load() != BlockedState::kNot) {
    stage = ProcessStage::kBlocked;
  } else if (process.local.is_driver || core_.scheduler().IsLeased(process.id)) {
    stage = ProcessStage::kLeased;
  }
  info.stage = static_cast<uint8_t>(stage);
  info.actor = process.local.actor_class;
  return info;
}

void NodeDaemon::AnswerObserver(uint64_t observer, const Observe& question) {
  if (!core_.is_open()) return observers_->Send(observer, Observed{});  // the session is not open yet
  if ((question.what & kObserveNodes) == 0) return AnswerObserver(observer, question, {});
  if (cluster_ && !cluster_->is_head()) return AskHeadForNodes(observer, question);
  AnswerObserver(observer, question, OwnNodes());
}

void NodeDaemon::AnswerObserver(uint64_t observer, const Observe& question, const std::vector<NodeListed>& nodes) {
  NodeInfo node;
  node.daemon_pid = ::getpid();
  node.total = core_.resources();
  for (const auto& [name, amount] : core_.scheduler().free().amounts()) {
    if (amount > 0 && name != kPythonWorker) node.available.emplace_back(name, amount);
  }
  node.store_bytes = budget_->capacity_bytes();
  node.store_used_bytes = budget_->used_bytes();
  node.started_ns = started_ns_;
  if (!jobs_.empty()) {
    const OpenSession& first = jobs_.begin()->second->session;
    node.driver_pid = first.pid;
    node.working_directory = first.working_directory;
  }
  observers_->Send(observer, node);
  for (const NodeListed& listed : nodes) observers_->Send(observer, listed);

  auto send_process = [&](ProcessInfo info, const SharedFd& events) {
    info.store_bytes = budget_->reserved_by(info.process);  // of a dead one: what it has left
    std::vector<SharedFd> fds;
    if ((question.what & kObserveEvents) != 0 && events) {
      if (auto reopened = ReopenReadOnly(events->get())) fds.push_back(ShareFd(std::move(*reopened)));
    }
    observers_->Send(observer, info, std::move(fds));
  };
  for (const DeadProcess& dead : dead_) send_process(dead.info, dead.events);
  for (const auto& [id, process] : processes_) send_process(Describe(*process), process->events);
  for (const ActorInfo& actor : core_.directory().Describe()) observers_->Send(observer, actor);

  if ((question.what & kObserveOutput) != 0) {
    auto send_output = [&](ProcessId id, int32_t pid, const OutputTail* tails) {
      for (int i = 0; i < 2; ++i) {
        std::string text = tails[i].text;
        if (text.size() > kOutputTailBytes) text.erase(0, text.size() - kOutputTailBytes);
        if (!text.empty())
          observers_->Send(observer, WorkerOutput{id, pid, static_cast<uint8_t>(i), std::move(text), ""});
      }
    };
    for (const DeadProcess& dead : dead_) send_output(dead.info.process, dead.info.pid, dead.output);
    for (const auto& [id, process] : processes_) send_output(id, Describe(*process).pid, process->output);
  }

  Observed observed;
  if ((question.what & kObserveState) != 0) {
    AskState ask{.request = observer, .limit = std::min(question.limit, kMaxReported)};
    for (auto& [id, process] : processes_) {
      if (process->local.stage != LocalProcess::Stage::kReady) continue;
      Send(*process, ask);
      ++observed.reports;
    }
  }
  observers_->Send(observer, observed);
}

void NodeDaemon::Handle(Process& process, StateReport& message) {
  message.process = process.id;
  observers_->Send(message.request, message);
}

void NodeDaemon::RememberDead(Process& process, const std::string& how) {
  DeadProcess dead;
  dead.info = Describe(process);
  dead.info.stage = static_cast<uint8_t>(ProcessStage::kDead);
  dead.info.how = how;
  if (process.events && !IsUnusedEventLog(process.events->get())) dead.events = process.events;
  for (int i = 0; i < 2; ++i) dead.output[i] = std::move(process.output[i]);
  dead_.push_back(std::move(dead));
  if (dead_.size() > kMaxDead) dead_.pop_front();
}

}  // namespace weft::core
