// NodeDaemon: what NodeCore acts through on a real node (NodeIo).
#include <signal.h>

#include <cstring>

#include "base/clock.h"
#include "log/log.h"
#include "node/node_daemon.h"
#include "os/socket.h"
#include "transport/ring_channel.h"
#include "wire/actor_recipe.h"
#include "wire/task_frame.h"

namespace weft::core {

// ---- messages -----------------------------------------------------------------------------------------------------

void NodeDaemon::Send(ProcessId to, const Message& message, ProcessId because_of) {
  Process* target = Find(to);
  if (target == nullptr) return;
  Process* sender = because_of ? Find(because_of) : nullptr;
  sender != nullptr ? Forward(*sender, *target, message) : Send(*target, message);
  // The dead may have been about to wake it.
  if (target->doorbell && std::holds_alternative<ProcessDied>(message)) target->doorbell->WakeAll();
}

void NodeDaemon::HoldBackFor(NodeNumber node, ProcessId id) {
  Process* process = Find(id);
  if (process == nullptr || !cluster_->Crowded(node)) return;
  process->waits_for.insert(DaemonOf(node));
  UpdateInterest(*process);
}

void NodeDaemon::Refuse(ProcessId id, const std::string& why) {
  if (auto* process = Find(id)) Refuse(*process, why);
}

void NodeDaemon::Log(LogLevel level, const char* what, const std::string& text) { core::Log(level, what, text); }

// ---- channels -----------------------------------------------------------------------------------------------------

bool NodeDaemon::OpenRing(ChannelBroker::Pair pair, ChannelBroker& channels) {
  Process &submitter = *Find(pair.submitter), &worker = *Find(pair.worker);
  SharedFd shared, submitter_end, worker_end;
  if (test_streams_.empty()) {
    auto memory = CreateChannelMemory();
    if (!memory) return false;
    shared = ShareFd(std::move(*memory));
  } else {
    auto ends = test_streams_ == "tcp" ? LoopbackTcpPair() : StreamSocketPair(Blocking::kNo);
    if (!ends) return false;
    worker_end = ShareFd(std::move(ends->first));
    submitter_end = ShareFd(std::move(ends->second));
  }
  const auto slots = channels.Open(pair);
  if (!slots) return false;
  if (shared) {
    Send(worker, ChannelOpened{submitter.id, slots->worker, slots->submitter, 0}, {shared, submitter.doorbell_fd});
    Send(submitter, ChannelOpened{worker.id, slots->submitter, slots->worker, 1}, {shared, worker.doorbell_fd});
  } else {
    Send(worker, StreamOpened{submitter.id, slots->worker, 0}, {worker_end});
    Send(submitter, StreamOpened{worker.id, slots->submitter, 1}, {submitter_end});
  }
  return true;
}

// A channel with the constructor in it.
std::string NodeDaemon::Construct(uint32_t slot, const ConstructActor& construct) {
  Process& worker = *Find(construct.worker);
  ActorRecipe recipe;
  if (!DecodeRecipe(construct.recipe, &recipe)) return "what its actor is made of cannot be read";
  auto memory = CreateChannelMemory();
  auto page = CreateDoorbellPage();
  if (!memory || !page) return "no descriptors or channel slots are left on this node";
  auto channel = RingChannel::Open(memory->get(), true, worker.doorbell, slot);
  if (!channel) return channel.error().message;
  const RecipeFrames frames = FramesOf(recipe, construct.actor, construct.incarnation, construct.gpus);
  auto put = [&](FrameType type, const std::string& bytes) {
    uint8_t* room = bytes.size() > (*channel)->MaxFrameBytes()
                        ? nullptr
                        : (*channel)->BeginSend(static_cast<uint32_t>(bytes.size()));
    if (room == nullptr) return false;
    std::memcpy(room, bytes.data(), bytes.size());
    (*channel)->CommitSend(static_cast<uint8_t>(type), type == FrameType::kTask, static_cast<uint32_t>(bytes.size()));
    return true;
  };
  if (!put(FrameType::kDefine, frames.define) || !put(FrameType::kLease, frames.lease) ||
      !put(FrameType::kTask, frames.task)) {
    return "what its actor is made of is too large";
  }
  Send(worker, ChannelOpened{kCluster, slot, 0, 0}, {ShareFd(std::move(*memory)), ShareFd(std::move(*page))});
  (*channel)->Notify(Audience::kExecutor);
  return "";
}

// ---- signals ------------------------------------------------------------------------------------------------------

void NodeDaemon::Kill(ProcessId id, const std::string& why) {
  Process& process = *Find(id);
  if (process.note.empty()) process.note = why;
  if (process.pid > 0 && !process.exit_status) ::kill(process.pid, SIGKILL);
}

bool NodeDaemon::Stop(ProcessId id) {
  const Process& process = *Find(id);
  return process.pid > 0 && !process.exit_status && ::kill(process.pid, SIGSTOP) == 0;
}

void NodeDaemon::Continue(ProcessId id) {
  const Process& process = *Find(id);
  if (process.pid > 0 && !process.exit_status) ::kill(process.pid, SIGCONT);
}

int32_t NodeDaemon::PidOf(ProcessId id) const {
  const Process* process = Find(id);
  if (process == nullptr) return 0;
  return process->pid != 0 ? process->pid : process->claimed_pid;
}

// ---- the flags of a worker ----------------------------------------------------------------------------------------

// Sequentially consistent, like the worker's accesses: it sets its flag and then looks at ours, so if we set ours and
// then look at its (TakeLoan), at least one of the two sees the other.
void NodeDaemon::SetDemand(ProcessId id, bool on) {
  if (const Process* worker = Find(id); worker != nullptr && worker->doorbell) worker->doorbell->demand().store(on);
}

// If the page says that it lends when its task goes on, the worker tells us (Unblocked).
Loan NodeDaemon::TakeLoan(ProcessId id) {
  const Process* worker = Find(id);
  if (worker == nullptr || !worker->doorbell) return Loan::kNone;
  auto& page = worker->doorbell->blocked();
  BlockedState state = page.load();
  if (state != BlockedState::kWaits && state != BlockedState::kWaitsForMemory) return Loan::kNone;
  const Loan loan = state == BlockedState::kWaits ? Loan::kForValue : Loan::kForMemory;
  return page.compare_exchange_strong(state, BlockedState::kLends) ? loan : Loan::kNone;
}

void NodeDaemon::ReturnLoan(ProcessId id, Loan loan) {
  BlockedState lends = BlockedState::kLends;
  Find(id)->doorbell->blocked().compare_exchange_strong(
      lends, loan == Loan::kForMemory ? BlockedState::kWaitsForMemory : BlockedState::kWaits);
}

bool NodeDaemon::Lends(ProcessId id) const {
  const Process* worker = Find(id);
  return worker == nullptr || !worker->doorbell || worker->doorbell->blocked().load() == BlockedState::kLends;
}

// An actor without calls, or a lease that has run out of tasks, runs nothing. One whose threads run calls while its
// main thread sleeps is taken for idle: then more may lend, but no more than twice as many.
bool NodeDaemon::RunsTask(ProcessId id) const {
  const Process* worker = Find(id);
  return worker != nullptr && worker->doorbell && worker->doorbell->blocked().load() == BlockedState::kNot &&
         worker->doorbell->waiter_state() != WaiterState::kAsleepIdle;
}

// ---- jobs and owners ----------------------------------------------------------------------------------------------

void NodeDaemon::OpenJob(const JobDescribed& described) {
  auto decoded = Decode(described.session);
  auto* session = std::get_if<OpenSession>(&decoded);
  if (session == nullptr || session->worker_command.empty()) return;
  Job& job = AddJob(described.driver, std::move(*session));
  if (described.output_to) job.core.output_to = described.output_to;
  if (NodeOf(described.driver) != kClusterNode && !LooksForProgram(job)) Prestart(job);
}

JobDescribed NodeDaemon::DescribeJob(ProcessId driver) const {
  const Job& job = *jobs_.at(driver);
  return {driver, Encode(job.session), job.core.output_to};
}

void NodeDaemon::RemoteOwnerDied(ProcessId owner) { FindOrphans(segments_.ObjectsOf(owner)); }

}  // namespace weft::core
