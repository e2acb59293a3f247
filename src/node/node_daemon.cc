#include "node/node_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "base/clock.h"
#include "events/event_log.h"
#include "log/log.h"
#include "os/abstract_socket.h"
#include "os/child_process.h"
#include "os/entropy.h"
#include "os/memory_limits.h"
#include "os/socket.h"
#include "transport/ring_channel.h"
#include "wire/peer_message.h"
#include "wire/placement.h"
#include "wire/wait_facts.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
// Workers that are started before anybody asks; more would delay the first task on a large machine.
constexpr uint32_t kMaxPrestart = 16;
// Store memory that a process has without asking: the first small objects cost no round trip.
constexpr uint64_t kReservedBytes = 4 << 20;
// A process that does not read makes those who send to it wait at this many queued bytes, and go on at half of it.
constexpr size_t kMaxQueuedBytes = 64 << 20;
// Far beyond that, with everything that nobody can be made to wait for, it is given up.
constexpr size_t kMaxUnreadBytes = 256 << 20;
// Worker output waits in its pipe while the driver has this much to read, so that printing cannot fill the memory.
constexpr size_t kMaxQueuedOutputBytes = 1 << 20;
// Bytes taken from one connection before others get their turn.
constexpr int kReceivesPerTurn = 8;
// How long workers may take to leave in order after the driver's farewell; user code may have exit handlers.
constexpr int64_t kLeaveNs = 150 * kMs;
// How long a driver that has said farewell may take to read the last output.
constexpr int64_t kFarewellNs = 200 * kMs;
constexpr int64_t kMaxGpus = 4096 * kResourceUnit;  // each has an entry of its own
// How long output may have been on its way when we read it: whatever ran since may have printed it.
constexpr int64_t kOutputDelayNs = 10 * kMs;
// What a worker takes of our descriptors: socket, doorbell, event log, two pipes; and a segment.
constexpr uint64_t kDescriptorsPerWorker = 6;
constexpr uint64_t kOwnDescriptors = 192;  // the event logs of the dead among them

bool HasNul(const std::string& text) { return text.find('\0') != std::string::npos; }

// How many descriptors a message of this type comes with.
size_t ExpectedFds(const Message& message) { return std::holds_alternative<SegmentCreated>(message) ? 1 : 0; }

}  // namespace

Result<std::unique_ptr<NodeDaemon>> NodeDaemon::Prepare() {
  auto loop = EventLoop::Create();
  if (!loop) return loop.error();
  std::unique_ptr<NodeDaemon> daemon(new NodeDaemon(std::move(*loop)));
  daemon->descriptor_limit_ = RaiseDescriptorLimit();

  // Orphans of our workers become our children, so that nothing can slip away.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  // Ctrl-C and a closed terminal concern the driver; if it ends, we end.
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  ::sigaddset(&set, SIGTERM);
  ::sigprocmask(SIG_SETMASK, &set, nullptr);
  daemon->signals_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  daemon->null_ = UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!daemon->signals_ || !daemon->null_) {
    return Error{ErrorKind::kUnavailable, std::string("cannot set up signals: ") + strerror(errno)};
  }
  auto* self = daemon.get();
  auto watch = daemon->loop_.Add(daemon->signals_.get(), EPOLLIN, [self](uint32_t) { self->OnSignal(); });
  if (!watch) return watch.error();

  daemon->ListenForObservers();
  if (const char* streams = std::getenv("WEFT_STREAM_CHANNELS")) daemon->test_streams_ = streams;
  return daemon;
}

Result<std::unique_ptr<NodeDaemon>> NodeDaemon::Create(UniqueFd driver) {
  auto daemon = Prepare();
  if (!daemon) return daemon;
  if (Status status = (*daemon)->AddDriver(std::move(driver)); !status) return status.error();
  return daemon;
}

Status NodeDaemon::AddDriver(UniqueFd socket) {
  const ProcessId id = core_.NextNumber();
  auto stream = std::make_unique<MessageStream>(std::move(socket));
  auto watch = loop_.Add(stream->fd(), EPOLLIN, [this, id](uint32_t events) { OnProcessEvent(id, events); });
  if (!watch) return Error{ErrorKind::kInvalid, "the driver's socket cannot be watched: " + watch.error().message};
  auto process = std::make_unique<Process>(core_.AddDriver(id));
  process->stream = std::move(stream);
  process->watch = *watch;
  processes_[id] = std::move(process);
  return {};
}

NodeDaemon::NodeDaemon(EventLoop loop) : loop_(std::move(loop)) {}

NodeDaemon::~NodeDaemon() = default;

int NodeDaemon::Run() {
  while (!ended_) {
    loop_.Wait(NextDeadline());
    int64_t now = NowNs();
    CheckClosing();
    for (auto& [driver, job] : jobs_) LeaveWhenAlone(*job);
    ForgetEndedJobs();
    if (core_.is_open() && !ended_) {
      core_.Tick(now);
      Settle();
      if (auto tick = budget_->NextTickNs(); tick && *tick <= now) {
        budget_->Handle(MemoryBudget::Ticked{now}, budget_actions_);
        Settle();
      }
    }
    if (cluster_ && !ended_) cluster_->Tick(now);
    if (exchange_ && !ended_) {
      exchange_->Tick(NowNs());
      Settle();
    }
    if (programs_ && !ended_) {
      programs_->Tick(NowNs());
      Settle();
    }
    AnswerWithoutHead(now);
    if (!ended_) core_.EndTurn(NowNs());
    FlushAll();
    if (cluster_) cluster_->FlushLinks();
    PauseOrResumeOutput();
  }
  KillEverything();
  LogInfo("node", "has ended all that ran here, and ends with code %d", exit_code_);
  return exit_code_;
}

int64_t NodeDaemon::NextDeadline() const {
  int64_t next = INT64_MAX;
  for (ProcessId id : closing_) {
    const auto& process = *processes_.at(id);
    next =
        std::min(next, process.closing_since_ns + (process.local.killed ? kStatusWaitNs + kKillWaitNs : kStatusWaitNs));
  }
  for (const auto& [driver, job] : jobs_) {
    if (!job->core.ending && job->leaving_until_ns != 0) next = std::min(next, job->leaving_until_ns);
  }
  if (cluster_) next = std::min(next, cluster_->NextDeadline());
  if (exchange_) next = std::min(next, exchange_->NextDeadline());
  if (programs_) next = std::min(next, programs_->NextDeadline());
  if (!asked_nodes_.empty()) next = std::min(next, asked_nodes_.begin()->second.until_ns);
  if (core_.is_open()) next = std::min({next, core_.next_wakeup_ns(), budget_->NextTickNs().value_or(INT64_MAX)});
  return next;
}

NodeDaemon::Process* NodeDaemon::Find(ProcessId id) {
  auto found = processes_.find(id);
  return found == processes_.end() ? nullptr : found->second.get();
}

Job* NodeDaemon::FindJob(ProcessId driver) {
  auto found = jobs_.find(driver);
  return found == jobs_.end() ? nullptr : found->second.get();
}

// ---- messages ---------------------------------------------------------------------------------------------------

void NodeDaemon::OnProcessEvent(ProcessId id, uint32_t epoll_events) {
  auto* process = Find(id);
  if (process == nullptr) return;
  if ((epoll_events & EPOLLOUT) != 0) unflushed_.insert(id);
  if ((epoll_events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  // After a hang-up nothing new can be sent, so what is left is bounded and read to its end even from one that waits.
  bool hung_up = (epoll_events & (EPOLLHUP | EPOLLERR)) != 0;
  ReadFrom(*process, hung_up);
}

void NodeDaemon::ReadFrom(Process& process, bool to_the_end) {
  ProcessId id = process.id;
  auto& stream = *process.stream;
  for (int turn = 0; !ended_; ++turn) {
    while (auto received = stream.Next()) {
      HandleMessage(process, std::move(*received));
      Settle();
      if (ended_ || Find(id) == nullptr) return;
      if (!process.waits_for.empty() && !to_the_end) return UpdateInterest(process);
    }
    if (stream.state() == MessageStream::State::kBroken) return Refuse(process, stream.why());
    if (turn == kReceivesPerTurn && !to_the_end) return;
    if (!stream.Receive()) break;
  }
  if (ended_) return;
  if (stream.state() == MessageStream::State::kClosed) BeginClosing(process);
}

void NodeDaemon::HandleMessage(Process& process, ReceivedMessage received) {
  using Stage = LocalProcess::Stage;
  auto& message = received.message;
  bool opens = std::holds_alternative<OpenSession>(message) || std::holds_alternative<WorkerReady>(message);
  bool expected = process.local.stage == Stage::kConnecting
                      ? (process.local.is_driver ? std::holds_alternative<OpenSession>(message)
                                                 : std::holds_alternative<WorkerReady>(message))
                      : !opens;
  if (!expected) return Refuse(process, "sent message " + std::to_string(message.index()) + " out of turn");
  if (received.fds.size() != ExpectedFds(message)) {
    return Refuse(process, "sent message " + std::to_string(message.index()) + " with " +
                               std::to_string(received.fds.size()) + " descriptors");
  }
  if (auto* created = std::get_if<SegmentCreated>(&message)) {
    return HandleSegmentCreated(process, *created, std::move(received.fds[0]));
  }
  if (auto* route = std::get_if<RouteTo>(&message); route != nullptr && (route->to.value & kObserverBit) != 0) {
    return observers_->Send(route->to.value & ~kObserverBit, Routed{process.id, std::move(route->payload)});
  }
  const bool handled = std::visit(
      [&](auto& m) {
        if constexpr (requires { Handle(process, m); }) {
          Handle(process, m);
          return true;
        } else {
          return false;
        }
      },
      message);
  if (handled || core_.MessageCame(process.id, message, NowNs())) return;
  Refuse(process, "sent message " + std::to_string(message.index()) + ", which only a daemon sends");
}

void NodeDaemon::Refuse(Process& process, const std::string& why) {
  LogWarning("process", "%s %s %s; its connection is closed", process.local.is_driver ? "the driver" : "worker",
             process.local.is_driver ? "" : ToString(process.id).c_str(), why.c_str());
  if (process.local.is_driver) return EndJobOf(process.id, 1);
  process.note = "the node daemon ended it because it " + why;
  BeginClosing(process);
  core_.Kill(process.id, process.note);
}

void NodeDaemon::Handle(Process& process, OpenSession& message) {
  auto refuse = [&](const std::string& why) {
    Send(process, SessionRefused{why});
    FlushAll();  // it reads this before the end
    Refuse(process, "asked for a session that cannot be: " + why);
  };
  if (message.protocol != kProtocolVersion) {
    return refuse("it speaks protocol version " + std::to_string(message.protocol) + ", this program version " +
                  std::to_string(kProtocolVersion) + "; install the same weft on both sides");
  }
  if (!IsValidShape(message.resources)) return refuse("its resources are not in order");
  if (AmountOf(message.resources, kGpu) > kMaxGpus) return refuse("no machine has so many GPUs");
  if (message.worker_command.empty() || message.worker_command[0].empty()) return refuse("it names no worker program");
  for (const auto* list : {&message.worker_command, &message.python_worker_command, &message.environment}) {
    if (std::any_of(list->begin(), list->end(), HasNul)) return refuse("a NUL byte in its command or environment");
  }
  if (HasNul(message.working_directory)) return refuse("a NUL byte in its working directory");

  process.claimed_pid = message.pid;
  if (!lasting_) {
    SetUp(message.resources, message.object_store_bytes);
  } else if (!message.resources.empty() || message.object_store_bytes != 0) {
    return refuse("the resources of a cluster are those of its nodes, not a driver's to choose");
  }
  Job& job = AddJob(process.id, std::move(message));
  if (!Welcomed(process)) return refuse("no descriptors are left for it");
  core_.DriverJoined(process.id, NowNs());
  FlushAll();  // the driver goes on while we start what it will need
  Prestart(job);
  if (cluster_) core_.TellHeadOfJob(process.id);  // and others start workers too, before there is work for them
}

void NodeDaemon::SetUp(ResourceAmounts resources, uint64_t store_bytes) {
  if (cluster_) {
    session_ = cluster_->session();
  } else {
    FillWithEntropy({reinterpret_cast<uint8_t*>(&session_), sizeof session_});
  }
  uint64_t most =
      descriptor_limit_ > 2 * kOwnDescriptors ? (descriptor_limit_ - kOwnDescriptors) / kDescriptorsPerWorker : 8;
  const NodeNumber self = cluster_ ? cluster_->self() : NodeNumber{1};
  core_.Open({.resources = std::move(resources),
              .max_workers = static_cast<uint32_t>(std::min<uint64_t>(most, 4096)),
              .place = {.node_id = NodeIdText(session_, self),
                        .node = self,
                        .labels = options_.labels,
                        .in_cluster = cluster_ != nullptr}},
             cluster_.get());
  if (store_bytes == 0) store_bytes = DefaultCapacity(ReadMemoryLimits());
  budget_ = std::make_unique<MemoryBudget>(MemoryBudget::Options{.capacity_bytes = store_bytes});
}

Job& NodeDaemon::AddJob(ProcessId driver, OpenSession session) {
  auto cpus = static_cast<uint64_t>(AmountOf(core_.resources(), kCpu) / kResourceUnit);
  const auto prestart = static_cast<uint32_t>(std::min<uint64_t>(cpus, kMaxPrestart));
  const auto keep = static_cast<uint32_t>(std::min<uint64_t>(std::max<uint64_t>(cpus, 1), 4096));
  auto job = std::make_unique<Job>(core_.OpenJob(driver, prestart, keep, !session.python_worker_command.empty()));
  job->session = std::move(session);
  job->outputs = std::make_unique<WorkerOutputs>(
      loop_, WorkerOutputs::Listener{
                 .read =
                     [this](ProcessId worker, std::string_view bytes) {
                       auto* process = Find(worker);
                       if (process == nullptr || process->local.stage != LocalProcess::Stage::kConnecting) return;
                       std::string& last = process->last_stderr;
                       last.append(bytes);
                       if (last.size() > 4096) last.erase(0, last.size() - 4096);
                     },
                 .whole_lines =
                     [this](ProcessId worker, bool is_stderr, std::string lines, const std::string& printer) {
                       ForwardOutput(worker, is_stderr, std::move(lines), printer);
                     }});
  Job& opened = *(jobs_[driver] = std::move(job));
  LogInfo("job", "%s begins: driver with pid %d in %s", ToString(driver).c_str(), opened.session.pid,
          opened.session.working_directory.c_str());
  if (!opened.session.preload.empty()) StartWarmZygote(opened);
  return opened;
}

bool NodeDaemon::Welcomed(Process& process) {
  auto page = CreateDoorbellPage();
  if (!page) return false;
  auto doorbell = PeerDoorbell::Open(page->get());
  if (!doorbell) return false;
  process.doorbell = std::move(*doorbell);
  process.doorbell_fd = ShareFd(std::move(*page));
  Welcome welcome;
  welcome.process = process.id;
  welcome.driver = process.local.job;
  welcome.session = session_;
  welcome.python_workers = FindJob(process.local.job)->session.python_workers;
  welcome.object_store_bytes = budget_->capacity_bytes();
  welcome.reserved_bytes = budget_->Admit(process.id, kReservedBytes);
  welcome.cpus = static_cast<uint32_t>(AmountOf(core_.resources(), kCpu) / kResourceUnit);
  std::vector<SharedFd> fds{process.doorbell_fd};
  if (keep_events_) {
    auto log = CreateEventLog(process.id);
    if (!log) return false;
    process.events = ShareFd(std::move(*log));
    fds.push_back(process.events);
  }
  Send(process, welcome, std::move(fds));
  orphans_.Handle(OrphanTable::HolderJoined{process.id}, orphan_actions_);
  return true;
}

void NodeDaemon::Handle(Process& process, WorkerReady& message) {
  if (message.protocol != kProtocolVersion) {
    return Refuse(process, "speaks protocol version " + std::to_string(message.protocol));
  }
  process.claimed_pid = message.pid;
  if (!process.zygote_end.empty()) AdoptClaimedPid(process);
  if (process.local.killed) return BeginClosing(process);  // its job has ended while it started
  if (!Welcomed(process)) return Refuse(process, "found no descriptors left");
  process.last_stderr.clear();
  LogInfo("worker", "%s of job %s is ready, with pid %d", ToString(process.id).c_str(),
          ToString(process.local.job).c_str(), process.claimed_pid);
  core_.WorkerBecameReady(process.id, NowNs());
}

void NodeDaemon::HandleSegmentCreated(Process& process, SegmentCreated& message, UniqueFd fd) {
  Status status = segments_.Adopt(SegmentId{process.id.value}, UniqueFd(fd.Release()), message.size);
  if (!status.ok()) return Refuse(process, "offered a segment that cannot be kept: " + status.error().message);
  FindJob(process.local.job)->segments.insert(SegmentId{process.id.value});
}

void NodeDaemon::Handle(Process& process, OpenSegment& message) {
  auto opened = segments_.OpenReadOnly(message.segment);
  if (!opened.ok()) return Send(process, SegmentOpened{message.segment, 0});
  process.opened.insert(message.segment);
  Send(process, SegmentOpened{message.segment, segments_.SizeOf(message.segment)},
       {ShareFd(UniqueFd(opened->Release()))});
}

void NodeDaemon::Handle(Process& process, ReserveMemory& message) {
  budget_->Handle(MemoryBudget::Reserved{process.id, message.request, message.bytes, NowNs()}, budget_actions_);
}

void NodeDaemon::Handle(Process& process, ReleaseMemory& message) {
  budget_->Handle(MemoryBudget::Released{process.id, message.bytes, NowNs()}, budget_actions_);
}

void NodeDaemon::FreeHere(SegmentId segment, std::vector<Location> locations, ProcessId because_of) {
  // What other nodes have of it goes first.
  if (exchange_) locations = exchange_->Freed(std::move(locations));
  if (!locations.empty()) FreeInSegment(segment, std::move(locations), because_of);
}

void NodeDaemon::FreeInSegment(SegmentId segment, std::vector<Location> locations, ProcessId because_of) {
  const ProcessId writer{segment.value};  // a segment has its writer's number
  if (const auto* target = Find(writer); target != nullptr && target->local.ready()) {
    return Send(writer, ObjectsFreed{std::move(locations)}, because_of);
  }
  uint64_t freed = 0;
  for (const auto& location : locations) freed += segments_.FreeDead(location);
  if (freed > 0) budget_->Handle(MemoryBudget::DeadFreed{writer, freed, NowNs()}, budget_actions_);
  SegmentChanged(segment);
}

void NodeDaemon::Handle(Process& process, CloseSession&) {
  if (!process.local.is_driver) return Refuse(process, "closed the session, which only a driver does");
  Job& job = *FindJob(process.local.job);
  if (job.leaving_until_ns != 0) return;
  job.leaving_until_ns = NowNs() + kLeaveNs;
  job.core.leaving = true;
  for (auto& [id, other] : processes_) {
    if (other->local.job == process.local.job && !other->local.is_driver &&
        other->local.stage == LocalProcess::Stage::kReady) {
      Send(*other, Exit{.now = 1});
    }
  }
}

// After the farewell: ends the job when all its workers have left, or had their time.
void NodeDaemon::LeaveWhenAlone(Job& job) {
  if (job.leaving_until_ns == 0 || job.core.ending || ended_) return;
  bool alone = true;
  Process* driver = Find(job.driver);
  for (auto& [id, process] : processes_) {
    if (process->local.job != job.driver) continue;
    alone = alone && (process->local.is_driver || process->local.stage == LocalProcess::Stage::kConnecting);
  }
  if (!alone && NowNs() < job.leaving_until_ns) return;
  // What was printed before still reaches the driver, which reads until we close.
  job.outputs->DrainAll();
  int64_t deadline = NowNs() + kFarewellNs;
  while (driver && driver->stream->Flush() && driver->stream->queued_bytes() > 0 && NowNs() < deadline) {
    pollfd waiting{driver->stream->fd(), POLLOUT, 0};
    ::poll(&waiting, 1, 10);
  }
  EndJobOf(job.driver, 0);
}

void NodeDaemon::EndJobOf(ProcessId driver, int exit_code) {
  if (!lasting_) return EndSession(exit_code);
  Process* process = Find(driver);
  if (process == nullptr || process->local.stage == LocalProcess::Stage::kClosing) return;
  core_.ProcessClosing(driver, NowNs());
  if (Job* job = FindJob(driver)) core_.EndJob(job->core);
  DeclareDead(driver);
}

void NodeDaemon::EndJob(ProcessId driver) {
  ForgetProgram(driver);
  // So that they fork no more.
  for (JobZygote* zygote : FindJob(driver)->Zygotes()) {
    if (zygote->process) ::kill(zygote->process->pid(), SIGKILL);
  }
}

// When the last process of a job has ended, what it had written goes too: whoever could read it is dead.
void NodeDaemon::ForgetEndedJobs() {
  std::erase_if(jobs_, [&](const auto& entry) {
    const Job& job = *entry.second;
    if (!job.core.ending || job.plain_zygote.process || job.warm_zygote.process) return false;
    if (std::any_of(processes_.begin(), processes_.end(),
                    [&](const auto& process) { return process.second->local.job == job.driver; })) {
      return false;
    }
    LogInfo("job", "%s has ended", ToString(job.driver).c_str());
    if (NodeOf(job.driver) == kClusterNode) {
      orphan_segments_.insert(job.segments.begin(), job.segments.end());
    } else {
      for (SegmentId segment : std::exchange(entry.second->segments, {})) ForgetSegment(segment);
    }
    core_.ForgetJob(job.driver);
    return true;
  });
  if (exchange_ && processes_.empty()) exchange_->LastProcessEnded();
  if (jobs_.empty()) {
    for (SegmentId segment : std::exchange(orphan_segments_, {})) ForgetSegment(segment);
  }
  Settle();
}

void NodeDaemon::Send(Process& process, const Message& message, std::vector<SharedFd> fds) {
  if (process.local.stage == LocalProcess::Stage::kClosing) return;
  process.stream->Queue(message, std::move(fds));
  unflushed_.insert(process.id);
}

void NodeDaemon::Forward(Process& sender, Process& target, const Message& message) {
  Send(target, message);
  if (target.stream->queued_bytes() > kMaxQueuedBytes && sender.id != target.id) {
    sender.waits_for.insert(target.id);
    UpdateInterest(sender);
  }
}

void NodeDaemon::FlushAll() {
  while (!unflushed_.empty() && !ended_) {
    std::set<ProcessId> batch;
    batch.swap(unflushed_);
    for (ProcessId id : batch) {
      auto* process = Find(id);
      if (process == nullptr || process->local.stage == LocalProcess::Stage::kClosing) continue;
      bool sent = process->stream->Flush();
      size_t queued = process->stream->queued_bytes();
      if (queued > kMaxUnreadBytes) {
        Refuse(*process, "does not read what is sent to it");
        continue;
      }
      if (queued < kMaxQueuedBytes / 2) ResumeSendersTo(id);
      // Nobody reads at the other end any more. What it had sent is read first.
      if (!sent) ReadFrom(*process, true);
      if (process = Find(id); process != nullptr) UpdateInterest(*process);
    }
  }
}

void NodeDaemon::ResumeSendersTo(ProcessId target) {
  std::vector<ProcessId> resumed;
  for (auto& [id, process] : processes_) {
    if (process->waits_for.erase(target) > 0 && process->waits_for.empty()) resumed.push_back(id);
  }
  for (ProcessId id : resumed) {
    auto* process = Find(id);
    if (process == nullptr || process->local.stage == LocalProcess::Stage::kClosing) continue;
    UpdateInterest(*process);
    ReadFrom(*process, false);  // what it sent before it was stopped lies in our buffer already
  }
}

void NodeDaemon::UpdateInterest(Process& process) {
  if (process.watch == 0) return;
  uint32_t events = 0;
  if (process.waits_for.empty()) events |= EPOLLIN;
  if (process.stream->queued_bytes() > 0) events |= EPOLLOUT;
  loop_.Modify(process.watch, events);
}

// ---- decisions of the machines ----------------------------------------------------------------------------------

void NodeDaemon::Settle() {
  if (settling_ || !core_.is_open()) return;
  settling_ = true;
  core_.Settle(NowNs());
  while (!ended_ && (!budget_actions_.empty() || !orphan_actions_.empty())) {
    for (auto& action : std::exchange(budget_actions_, {})) {
      std::visit([&](const auto& a) { Perform(a); }, action);
    }
    for (auto& action : std::exchange(orphan_actions_, {})) {
      std::visit([&](const auto& a) { Perform(a); }, action);
    }
    core_.Settle(NowNs());
  }
  settling_ = false;
}

void NodeDaemon::Perform(const MemoryBudget::Grant& action) {
  if (exchange_ && action.process == exchange_->account())
    return exchange_->MemoryGranted(action.request, action.bytes);
  if (auto* process = Find(action.process)) Send(*process, MemoryReserved{action.request, 1, ""});
}

void NodeDaemon::Perform(const MemoryBudget::Refuse& action) {
  static LogPace pace;  // a process may ask as often as it likes
  if (pace.Due()) LogInfo("memory", "refused to %s: %s", ToString(action.process).c_str(), action.why.c_str());
  if (exchange_ && action.process == exchange_->account()) return exchange_->MemoryRefused(action.request, action.why);
  if (auto* process = Find(action.process)) Send(*process, MemoryReserved{action.request, 0, action.why});
}

void NodeDaemon::Perform(const MemoryBudget::AskTrim& action) {
  if (exchange_ && action.process == exchange_->account()) return exchange_->Trim(action.bytes);
  if (auto* process = Find(action.process)) Send(*process, TrimMemory{action.bytes});
}

// ---- output -----------------------------------------------------------------------------------------------------

void NodeDaemon::ForwardOutput(ProcessId worker, bool is_stderr, std::string text, const std::string& printer) {
  WorkerOutput output{worker, 0, static_cast<uint8_t>(is_stderr), std::move(text), ""};
  if (auto* process = Find(worker)) {
    output.pid = process->pid != 0 ? process->pid : process->claimed_pid;
    output.name = process->local.actor_class.empty() ? printer : process->local.actor_class;
    // Text without a mark is of whatever ran at the time, if that was one task.
    if (output.name.empty() && process->events) {
      output.name = RecentFunction(process->events->get(), NowNs() - kOutputDelayNs);
    }
    if (process->doorbell) process->doorbell->text_seen(is_stderr ? 1 : 0).fetch_add(1, std::memory_order_relaxed);
    // Names are the user's: one line, and not the longer part of it.
    if (output.name.size() > 80) output.name.resize(80);
    for (char& c : output.name) c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    process->output[is_stderr ? 1 : 0].Append(output.text);
    const Job* job = FindJob(process->local.job);
    if (job != nullptr) core_.Answer(job->core.output_to, output);
  }
}

void NodeDaemon::PauseOrResumeOutput() {
  for (auto& [id, job] : jobs_) {
    const Process* driver = Find(id);
    const bool elsewhere = driver == nullptr && IsElsewhere(job->core.output_to);
    if (driver == nullptr && !elsewhere) continue;
    const size_t queued = elsewhere ? cluster_->KeptBytes(NodeOf(job->core.output_to)) : driver->stream->queued_bytes();
    job->outputs->Pause(queued > (job->outputs->paused() ? kMaxQueuedOutputBytes / 2 : kMaxQueuedOutputBytes));
  }
}

}  // namespace weft::core
