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
// How long workers may take to leave after the driver has closed the session; user code may have exit handlers.
constexpr int64_t kLeaveNs = 150 * kMs;
// How long a driver that has closed the session may take to read the last output.
constexpr int64_t kFarewellNs = 200 * kMs;
constexpr size_t kMaxShapes = 256;
constexpr size_t kMaxCountedShapes = 4096;
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
  auto process = std::make_unique<Process>();
  const ProcessId id = process->id = process->job = ProcessId{next_number_++};
  process->is_driver = true;
  process->stream = std::make_unique<MessageStream>(std::move(socket));
  auto watch = loop_.Add(process->stream->fd(), EPOLLIN, [this, id](uint32_t events) { OnProcessEvent(id, events); });
  if (!watch) return Error{ErrorKind::kInvalid, "the driver's socket cannot be watched: " + watch.error().message};
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
    if (scheduler_ && !ended_) {
      scheduler_->Handle(TimePassed{now}, scheduler_actions_);
      Settle();
      for (auto& [driver, job] : jobs_) {
        if (job->leaving_until_ns != 0 || job->ending) continue;
        job->pool->TimePassed(now, pool_actions_);
        if (job->python_pool) job->python_pool->TimePassed(now, pool_actions_);
      }
      Settle();
      if (directory_.next_wakeup_ns() <= now) {
        directory_.Handle(DirectoryTicked{now}, directory_actions_);
        Settle();
      }
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
    if (!ended_) {
      for (const auto& [submitter, worker] : channels_.Due(now)) cluster_->DialChannel(submitter, worker);
    }
    AnswerWithoutHead(now);
    TellHead();
    if (frozen_) FreezeWhatIsNew();
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
    next = std::min(next, process.closing_since_ns + (process.kill_sent ? kStatusWaitNs + kKillWaitNs : kStatusWaitNs));
  }
  for (const auto& [driver, job] : jobs_) {
    if (job->ending) continue;
    if (job->leaving_until_ns != 0) {
      next = std::min(next, job->leaving_until_ns);
      continue;
    }
    next = std::min(next, job->pool->next_wakeup_ns());
    if (job->python_pool) next = std::min(next, job->python_pool->next_wakeup_ns());
  }
  if (cluster_) next = std::min(next, cluster_->NextDeadline());
  if (exchange_) next = std::min(next, exchange_->NextDeadline());
  if (programs_) next = std::min(next, programs_->NextDeadline());
  next = std::min(next, channels_.next_dial_ns());
  if (!asked_nodes_.empty()) next = std::min(next, asked_nodes_.begin()->second.until_ns);
  if (scheduler_) {
    next = std::min({next, scheduler_->next_wakeup_ns(), directory_.next_wakeup_ns()});
    next = std::min(next, budget_->NextTickNs().value_or(INT64_MAX));
  }
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
  using Stage = Process::Stage;
  auto& message = received.message;
  bool opens = std::holds_alternative<OpenSession>(message) || std::holds_alternative<WorkerReady>(message);
  bool expected = process.stage == Stage::kConnecting
                      ? (process.is_driver ? std::holds_alternative<OpenSession>(message)
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
  std::visit(
      [&](auto& m) {
        if constexpr (requires { Handle(process, m); }) {
          Handle(process, m);
        } else {
          Refuse(process, "sent message " + std::to_string(message.index()) + ", which only a daemon sends");
        }
      },
      message);
}

void NodeDaemon::Refuse(Process& process, const std::string& why) {
  LogWarning("process", "%s %s %s; its connection is closed", process.is_driver ? "the driver" : "worker",
             process.is_driver ? "" : ToString(process.id).c_str(), why.c_str());
  if (process.is_driver) return EndJob(process.id, 1);
  process.note = "the node daemon ended it because it " + why;
  BeginClosing(process);
  Kill(process, process.note);
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
  Job& job = OpenJob(process.id, std::move(message));
  if (!Welcomed(process)) return refuse("no descriptors are left for it");
  scheduler_->Handle(TimePassed{NowNs()}, scheduler_actions_);
  scheduler_->Handle(ProcessJoined{process.id, false, {process.id}}, scheduler_actions_);
  FlushAll();  // the driver goes on while we start what it will need
  Prestart(job);
  if (cluster_) TellHeadOfJob(process.id);  // and others start workers too, before there is work for them
}

void NodeDaemon::SetUp(ResourceAmounts resources, uint64_t store_bytes) {
  resources_ = resources;
  if (cluster_) {
    session_ = cluster_->session();
  } else {
    FillWithEntropy({reinterpret_cast<uint8_t*>(&session_), sizeof session_});
  }
  uint64_t most =
      descriptor_limit_ > 2 * kOwnDescriptors ? (descriptor_limit_ - kOwnDescriptors) / kDescriptorsPerWorker : 8;
  resources.emplace_back(kPythonWorker, int64_t{1} << 40);
  std::sort(resources.begin(), resources.end());
  scheduler_ = std::make_unique<LocalScheduler>(
      LocalScheduler::Config{.resources = std::move(resources),
                             .max_workers = static_cast<uint32_t>(std::min<uint64_t>(most, 4096)),
                             .in_cluster = lasting_,
                             .first_lease = cluster_ ? (uint64_t{cluster_->self().value} << 40) + 1 : 1});
  if (store_bytes == 0) store_bytes = DefaultCapacity(ReadMemoryLimits());
  budget_ = std::make_unique<MemoryBudget>(MemoryBudget::Options{.capacity_bytes = store_bytes});
}

Job& NodeDaemon::OpenJob(ProcessId driver, OpenSession session) {
  auto job = std::make_unique<Job>();
  job->driver = job->output_to = driver;
  job->session = std::move(session);
  auto cpus = static_cast<uint64_t>(AmountOf(resources_, kCpu) / kResourceUnit);
  WorkerPool::Config pool;
  pool.kind = {driver, false};
  pool.prestart = static_cast<uint32_t>(std::min<uint64_t>(cpus, kMaxPrestart));
  pool.keep = static_cast<uint32_t>(std::min<uint64_t>(std::max<uint64_t>(cpus, 1), 4096));
  job->pool = std::make_unique<WorkerPool>(pool, &next_number_);
  if (!job->session.python_worker_command.empty()) {  // none before somebody asks for one
    job->python_pool =
        std::make_unique<WorkerPool>(WorkerPool::Config{.keep = pool.keep, .kind = {driver, true}}, &next_number_);
  }
  job->outputs = std::make_unique<WorkerOutputs>(
      loop_, WorkerOutputs::Listener{
                 .read =
                     [this](ProcessId worker, std::string_view bytes) {
                       auto* process = Find(worker);
                       if (process == nullptr || process->stage != Process::Stage::kConnecting) return;
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

WorkerPool& NodeDaemon::PoolOf(ProcessId worker) {
  const Process& process = *Find(worker);
  return *FindJob(process.job)->PoolOf(process.python_of_cpp_job);
}

bool NodeDaemon::Welcomed(Process& process) {
  auto page = CreateDoorbellPage();
  if (!page) return false;
  auto doorbell = PeerDoorbell::Open(page->get());
  if (!doorbell) return false;
  process.doorbell = std::move(*doorbell);
  process.doorbell_fd = ShareFd(std::move(*page));
  process.stage = Process::Stage::kReady;
  Welcome welcome;
  welcome.process = process.id;
  welcome.driver = process.job;
  welcome.session = session_;
  welcome.python_workers = FindJob(process.job)->session.python_workers;
  welcome.object_store_bytes = budget_->capacity_bytes();
  welcome.reserved_bytes = budget_->Admit(process.id, kReservedBytes);
  welcome.cpus = static_cast<uint32_t>(AmountOf(resources_, kCpu) / kResourceUnit);
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
  if (process.kill_sent) return BeginClosing(process);  // its job has ended while it started
  if (!Welcomed(process)) return Refuse(process, "found no descriptors left");
  process.last_stderr.clear();
  LogInfo("worker", "%s of job %s is ready, with pid %d", ToString(process.id).c_str(), ToString(process.job).c_str(),
          process.claimed_pid);
  const bool runs_tasks = PoolOf(process.id).WorkerBecameReady(process.id, NowNs());
  if (!runs_tasks) Send(process, Exit{});
  scheduler_->Handle(ProcessJoined{process.id, runs_tasks, {process.job, process.python_of_cpp_job}},
                     scheduler_actions_);
}

void NodeDaemon::Handle(Process& process, RequestLeases& message) {
  if (!IsValidShape(message.shape)) return Refuse(process, "asked for resources that cannot be");
  if (scheduler_->ShapesOf(process.id) >= kMaxShapes && message.count > 0) {
    return Send(process, LeaseRefused{message.shape, "one process asks for more than " + std::to_string(kMaxShapes) +
                                                         " different resource shapes at once"});
  }
  if (auto granted = process.granted.find(message.shape);
      granted != process.granted.end() && message.heard < granted->second) {
    message.count -= static_cast<uint32_t>(std::min<uint64_t>(message.count, granted->second - message.heard));
  }
  if (WishForPlace(process, message)) return;
  RereadBlockedFlags();
  scheduler_->Handle(LeasesRequested{process.id, std::move(message.shape), message.count, message.depth},
                     scheduler_actions_);
}

void NodeDaemon::Handle(Process& process, ReturnLease& message) {
  const NodeNumber granted_by{static_cast<uint32_t>(message.lease.value >> 40)};
  if (cluster_ && granted_by != cluster_->self()) {
    return cluster_->Send(granted_by, FromProcess{process.id, process.job, Encode(message)});
  }
  EndLease(process.id, message.lease);
}

void NodeDaemon::EndLease(ProcessId holder, LeaseId lease) {
  RereadBlockedFlags();
  ProcessId worker = scheduler_->WorkerOf(lease, holder);
  if (worker && !PoolOf(worker).WorkerWasFreed(worker, NowNs())) Perform(RetireWorker{worker});
  scheduler_->Handle(LeaseReturned{holder, lease}, scheduler_actions_);
}

void NodeDaemon::Handle(Process& process, Blocked&) {
  RereadBlockedFlags();
  TakeLoan(process);
}

void NodeDaemon::Handle(Process&, Unblocked&) { RereadBlockedFlags(); }

bool NodeDaemon::NothingRuns() const {
  return std::none_of(processes_.begin(), processes_.end(), [&](const auto& entry) {
    const auto& [id, process] = entry;
    if (!process->doorbell || !scheduler_->IsLeased(id)) return false;
    // An actor without calls, or a lease that has run out of tasks, runs nothing. One whose threads run calls while its
    // main thread sleeps is taken for idle: then more may lend, but no more than twice as many.
    return process->doorbell->blocked().load() == BlockedState::kNot &&
           process->doorbell->waiter_state() != WaiterState::kAsleepIdle;
  });
}

// Counts the CPU of a worker whose task waits as lent, if the scheduler agrees. The task may go on at any moment; if
// the page says by then that it lends, the worker tells us (Unblocked).
void NodeDaemon::TakeLoan(Process& process) {
  auto& page = process.doorbell->blocked();
  BlockedState state = page.load();
  if (state != BlockedState::kWaits && state != BlockedState::kWaitsForMemory) return;
  if (!page.compare_exchange_strong(state, BlockedState::kLends)) return;
  const bool for_memory = state == BlockedState::kWaitsForMemory;
  scheduler_->Handle(WorkerBlocked{process.id, for_memory, for_memory && NothingRuns()}, scheduler_actions_);
  if (scheduler_->IsLending(process.id)) return;
  BlockedState lends = BlockedState::kLends;
  page.compare_exchange_strong(lends, state);
}

void NodeDaemon::HandleSegmentCreated(Process& process, SegmentCreated& message, UniqueFd fd) {
  Status status = segments_.Adopt(SegmentId{process.id.value}, UniqueFd(fd.Release()), message.size);
  if (!status.ok()) return Refuse(process, "offered a segment that cannot be kept: " + status.error().message);
  FindJob(process.job)->segments.insert(SegmentId{process.id.value});
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

void NodeDaemon::Handle(Process& process, RouteTo& message) {
  if (NodeOf(message.to) == kClusterNode) return;  // it counts no borrowers
  if ((message.to.value & kObserverBit) != 0) {
    return observers_->Send(message.to.value & ~kObserverBit, Routed{process.id, std::move(message.payload)});
  }
  const NodeNumber node = NodeOf(message.to);
  if (IsElsewhere(message.to) && (cluster_->Knows(node) || cluster_->MayAppear(node)) &&
      !deaths_.contains(message.to)) {
    remote_peers_.insert(message.to);
    return SendFor(process, NodeOf(message.to), RoutedAcross{process.id, message.to, std::move(message.payload)});
  }
  auto* target = Find(message.to);
  if (target == nullptr || target->stage != Process::Stage::kReady) {
    auto death = deaths_.find(message.to);
    std::string how = death != deaths_.end()             ? death->second
                      : message.to.value >= next_number_ ? "it never existed"
                                                         : "it has ended";
    // A process that is closing will be announced; the answer then comes twice, which does no harm.
    return Send(process, ProcessDied{message.to, 0, std::move(how)});
  }
  Forward(process, *target, Routed{process.id, std::move(message.payload)});
}

void NodeDaemon::Handle(Process& process, FreeObjects& message) { FreeHere(message.locations, &process); }

void NodeDaemon::FreeHere(const std::vector<Location>& all, Process* sender) {
  std::map<SegmentId, std::vector<Location>> by_segment;
  for (const auto& location : all) by_segment[location.segment].push_back(location);
  for (auto& [segment, locations] : by_segment) {
    ProcessId writer{segment.value};  // a segment has its writer's number
    if (IsElsewhere(writer)) {
      if (sender != nullptr) {
        SendFor(*sender, NodeOf(writer),
                FromProcess{sender->id, sender->job, Encode(FreeObjects{std::move(locations)})});
      }
      continue;
    }
    // What other nodes have of it goes first.
    if (exchange_) locations = exchange_->Freed(std::move(locations));
    if (!locations.empty()) FreeInSegment(segment, std::move(locations), sender);
  }
}

void NodeDaemon::FreeInSegment(SegmentId segment, std::vector<Location> locations, Process* sender) {
  const ProcessId writer{segment.value};
  if (auto* target = Find(writer); target != nullptr && target->stage == Process::Stage::kReady) {
    if (sender != nullptr) return Forward(*sender, *target, ObjectsFreed{std::move(locations)});
    return Send(*target, ObjectsFreed{std::move(locations)});
  }
  uint64_t freed = 0;
  for (const auto& location : locations) freed += segments_.FreeDead(location);
  if (freed > 0) budget_->Handle(MemoryBudget::DeadFreed{writer, freed, NowNs()}, budget_actions_);
  SegmentChanged(segment);
}

void NodeDaemon::Handle(Process& process, AskShape& message) {
  if (!IsValidShape(message.shape)) return Refuse(process, "asked about resources that cannot be");
  Send(process, ShapeAnswer{message.request, EncodeFact(Explain(message.shape))});
}

ShapeFact NodeDaemon::Explain(const ResourceAmounts& shape) {
  ShapeFact fact = scheduler_->Explain(shape);
  if (cluster_) {
    // What others hold there is not known here, and nobody here keeps it from coming: it may yet be served. Nor is
    // anything hopeless that no node has: one that has it may join.
    const ResourceAmounts plain = WithoutPlacement(shape);
    const auto& nodes = cluster_->nodes();
    const bool somewhere = std::any_of(nodes.begin(), nodes.end(), [&](const auto& node) {
      return ResourceLedger(node.second.resources).Fits(plain);
    });
    if (MayBeServedElsewhere(shape) || !somewhere) {
      fact.holders.clear();
      fact.total = shape;
      ++fact.starting;
    }
  }
  for (HolderFact& holder : fact.holders) {
    if (auto* worker = Find(holder.worker)) holder.pid = worker->pid != 0 ? worker->pid : worker->claimed_pid;
    if (std::string name = directory_.ClassOf(holder.worker); !name.empty()) holder.actor = "actor " + name;
  }
  return fact;
}

void NodeDaemon::Handle(Process& process, CloseSession&) {
  if (!process.is_driver) return Refuse(process, "closed the session, which only a driver does");
  Job& job = *FindJob(process.job);
  if (job.leaving_until_ns != 0) return;
  job.leaving_until_ns = NowNs() + kLeaveNs;
  for (auto& [id, other] : processes_) {
    if (other->job == process.job && !other->is_driver && other->stage == Process::Stage::kReady) {
      Send(*other, Exit{.now = 1});
    }
  }
}

// After the driver has closed the session: ends the job when all its workers have left, or had their time.
void NodeDaemon::LeaveWhenAlone(Job& job) {
  if (job.leaving_until_ns == 0 || job.ending || ended_) return;
  bool alone = true;
  Process* driver = Find(job.driver);
  for (auto& [id, process] : processes_) {
    if (process->job != job.driver) continue;
    alone = alone && (process->is_driver || process->stage == Process::Stage::kConnecting);
  }
  if (!alone && NowNs() < job.leaving_until_ns) return;
  // What was printed before still reaches the driver, which reads until we close.
  job.outputs->DrainAll();
  int64_t deadline = NowNs() + kFarewellNs;
  while (driver && driver->stream->Flush() && driver->stream->queued_bytes() > 0 && NowNs() < deadline) {
    pollfd waiting{driver->stream->fd(), POLLOUT, 0};
    ::poll(&waiting, 1, 10);
  }
  EndJob(job.driver, 0);
}

void NodeDaemon::EndJob(ProcessId driver, int exit_code) {
  if (!lasting_) return EndSession(exit_code);
  Process* process = Find(driver);
  if (process == nullptr || process->stage == Process::Stage::kClosing) return;
  process->stage = Process::Stage::kClosing;
  if (Job* job = FindJob(driver)) EndProcessesOf(*job);
  Bury(driver);
}

void NodeDaemon::EndProcessesOf(Job& job) {
  job.ending = true;
  ForgetProgram(job.driver);
  // The zygotes first, so that they fork no more.
  for (JobZygote* zygote : job.Zygotes()) {
    if (zygote->process) ::kill(zygote->process->pid(), SIGKILL);
  }
  for (auto& [id, worker] : processes_) {
    if (worker->job == job.driver && !worker->is_driver) Kill(*worker, "its driver has ended");
  }
}

// When the last process of a job has ended, what it had written goes too: whoever could read it is dead.
void NodeDaemon::ForgetEndedJobs() {
  std::erase_if(jobs_, [&](const auto& entry) {
    const Job& job = *entry.second;
    if (!job.ending || job.plain_zygote.process || job.warm_zygote.process) return false;
    if (std::any_of(processes_.begin(), processes_.end(),
                    [&](const auto& process) { return process.second->job == job.driver; })) {
      return false;
    }
    LogInfo("job", "%s has ended", ToString(job.driver).c_str());
    told_jobs_.erase(job.driver);
    if (cluster_ && NodeOf(job.driver) != kClusterNode) cluster_->ForgetJob(job.driver);
    if (NodeOf(job.driver) == kClusterNode) {
      orphan_segments_.insert(job.segments.begin(), job.segments.end());
      return true;
    }
    for (SegmentId segment : std::exchange(entry.second->segments, {})) ForgetSegment(segment);
    return true;
  });
  if (exchange_ && processes_.empty()) exchange_->LastProcessEnded();
  if (jobs_.empty()) {
    for (SegmentId segment : std::exchange(orphan_segments_, {})) ForgetSegment(segment);
  }
  Settle();
}

void NodeDaemon::Send(Process& process, const Message& message, std::vector<SharedFd> fds) {
  if (process.stage == Process::Stage::kClosing) return;
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
      if (process == nullptr || process->stage == Process::Stage::kClosing) continue;
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
    if (process == nullptr || process->stage == Process::Stage::kClosing) continue;
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
  if (settling_ || !scheduler_) return;
  settling_ = true;
  while (!ended_ && (!scheduler_actions_.empty() || !directory_actions_.empty() || !pool_actions_.empty() ||
                     !budget_actions_.empty() || !orphan_actions_.empty())) {
    for (auto& action : std::exchange(scheduler_actions_, {})) {
      std::visit([&](const auto& a) { Perform(a); }, action);
    }
    for (auto& action : std::exchange(directory_actions_, {})) {
      std::visit([&](const auto& a) { Perform(a); }, action);
    }
    for (auto& action : std::exchange(pool_actions_, {})) {
      std::visit([&](const auto& a) { Perform(a); }, action);
    }
    for (auto& action : std::exchange(budget_actions_, {})) {
      std::visit([&](const auto& a) { Perform(a); }, action);
    }
    for (auto& action : std::exchange(orphan_actions_, {})) {
      std::visit([&](const auto& a) { Perform(a); }, action);
    }
  }
  settling_ = false;
}

void NodeDaemon::Perform(const GrantLease& action) {
  if (IsElsewhere(action.process)) return GrantElsewhere(action);
  auto* submitter = Find(action.process);
  auto* worker = Find(action.worker);
  WEFT_CHECK(submitter != nullptr && worker != nullptr, "the scheduler knows the living only");
  PoolOf(action.worker).WorkerWasLeased(action.worker);
  // If the submitter is closing, its burial ends the lease. If the worker is, the submitter gets the lease all the same
  // and then hears of the death like of any other: a wish never vanishes.
  if (submitter->stage != Process::Stage::kReady) return;
  if (cluster_ && !MayServe(action.shape)) {  // the head has placed it here
    sent_wishes_.Arrived(action.process, action.shape);
    WishWasPlaced(action.process, action.shape);
  }
  if (!OpenChannel(*submitter, *worker)) {
    EndLease(action.process, action.lease);
    Send(*submitter, LeaseRefused{action.shape, "no descriptors or channel slots are left on this node"});
    return;
  }
  worker->doorbell->demand().store(scheduler_->demand() ? 1 : 0);
  CountGrant(*submitter, action.shape);
  Send(*submitter, LeaseGranted{action.shape, action.lease, action.worker, action.gpus});
}

void NodeDaemon::CountGrant(Process& process, const ResourceAmounts& shape) {
  if (process.granted.size() >= kMaxCountedShapes) process.granted.clear();  // then one too many may be granted
  ++process.granted[shape];
}

bool NodeDaemon::OpenChannel(Process& submitter, Process& worker) {
  const ChannelBroker::Pair pair{submitter.id, worker.id};
  if (channels_.HasSubmitter(pair)) return true;
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
  const auto slots = channels_.Open(pair);
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

void NodeDaemon::Perform(const RecallLease& action) {
  if (IsElsewhere(action.process)) return SendElsewhere(action.process, LeaseRecalled{action.lease});
  if (auto* process = Find(action.process)) Send(*process, LeaseRecalled{action.lease});
}

void NodeDaemon::Perform(const RefuseLeases& action) {
  if (IsElsewhere(action.process)) {
    const std::string why = "on " + cluster_->Describe(cluster_->self()) + " " + action.why;
    return SendElsewhere(action.process, LeaseRefused{action.shape, why, action.count});
  }
  if (auto* process = Find(action.process)) Send(*process, LeaseRefused{action.shape, action.why});
}

void NodeDaemon::Perform(const WantWorkers& action) {
  Job* job = FindJob(action.kind.job);
  if (job == nullptr || job->ending || job->leaving_until_ns != 0) return;
  if (WorkerPool* pool = job->PoolOf(action.kind.python_of_cpp_job)) {
    pool->WorkersWanted(action.count, NowNs(), pool_actions_);
  }
}

void NodeDaemon::Perform(const SetDemand& action) {
  // The flag first, then the look (both sequentially consistent): a worker that blocks sets its flag and then looks at
  // ours, so at least one of the two sees the other.
  for (auto& [id, process] : processes_) {
    if (!process->doorbell || !scheduler_->IsLeased(id)) continue;
    process->doorbell->demand().store(action.on ? 1 : 0);
    if (action.on) TakeLoan(*process);
  }
  if (action.on) scheduler_->Handle(BlockedFlagsRead{}, scheduler_actions_);
}

void NodeDaemon::Perform(const KillWorker& action) {
  if (auto* process = Find(action.worker)) Kill(*process, "the process whose tasks it ran has ended");
}

void NodeDaemon::RereadBlockedFlags() {
  scheduler_->Handle(TimePassed{NowNs()}, scheduler_actions_);  // what follows is counted from now
  for (ProcessId id : std::set<ProcessId>(scheduler_->lending())) {
    auto* process = Find(id);
    if (process == nullptr || !process->doorbell || process->doorbell->blocked().load() == BlockedState::kLends)
      continue;
    scheduler_->Handle(WorkerUnblocked{id}, scheduler_actions_);
    if (scheduler_->demand()) TakeLoan(*process);  // it waits again, perhaps
  }
}

void NodeDaemon::Perform(const StartWorker& action) {
  Job* job = FindJob(action.kind.job);
  if (job == nullptr || job->ending || job->leaving_until_ns != 0 || AwaitsProgram(*job, action)) return;
  if (Status status = Launch(action.worker, action.kind); !status.ok()) {
    job->PoolOf(action.kind.python_of_cpp_job)
        ->WorkerEnded(action.worker, status.error().message, NowNs(), pool_actions_);
  }
}

void NodeDaemon::Perform(const RetireWorker& action) {
  scheduler_->Handle(WorkerRetired{action.worker}, scheduler_actions_);
  if (auto* process = Find(action.worker)) Send(*process, Exit{});
}

void NodeDaemon::Perform(const AbandonStart& action) {
  if (auto* process = Find(action.worker)) Kill(*process, "it took too long to start");
}

void NodeDaemon::Perform(const GiveUpStarting& action) {
  LogInfo("worker", "none can be started for job %s: %s", ToString(action.kind.job).c_str(), action.why.c_str());
  scheduler_->Handle(StartingGivenUp{action.why, action.kind}, scheduler_actions_);
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
    output.name = process->actor_class.empty() ? printer : process->actor_class;
    // Text without a mark is of whatever ran at the time, if that was one task.
    if (output.name.empty() && process->events) {
      output.name = RecentFunction(process->events->get(), NowNs() - kOutputDelayNs);
    }
    if (process->doorbell) process->doorbell->text_seen(is_stderr ? 1 : 0).fetch_add(1, std::memory_order_relaxed);
    // Names are the user's: one line, and not the longer part of it.
    if (output.name.size() > 80) output.name.resize(80);
    for (char& c : output.name) c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    process->output[is_stderr ? 1 : 0].Append(output.text);
    const Job* job = FindJob(process->job);
    if (job != nullptr) Answer(job->output_to, output);
  }
}

void NodeDaemon::PauseOrResumeOutput() {
  for (auto& [id, job] : jobs_) {
    const Process* driver = Find(id);
    const bool elsewhere = driver == nullptr && IsElsewhere(job->output_to);
    if (driver == nullptr && !elsewhere) continue;
    const size_t queued = elsewhere ? cluster_->KeptBytes(NodeOf(job->output_to)) : driver->stream->queued_bytes();
    job->outputs->Pause(queued > (job->outputs->paused() ? kMaxQueuedOutputBytes / 2 : kMaxQueuedOutputBytes));
  }
}

}  // namespace weft::core
