#include "node/node_core.h"

#include <algorithm>

#include "base/check.h"
#include "wire/placement.h"
#include "wire/wait_facts.h"

namespace weft::core {
namespace {

constexpr size_t kMaxShapes = 256;
constexpr size_t kMaxCountedShapes = 4096;

}  // namespace

void NodeCore::Open(Config config, NodeLinks* links) {
  links_ = links;
  resources_ = config.resources;
  const uint64_t node = links ? links->self().value : 0;
  router_ = std::make_unique<LeaseRouter>(std::move(config.place));
  config.resources.emplace_back(kPythonWorker, int64_t{1} << 40);
  std::sort(config.resources.begin(), config.resources.end());
  scheduler_ = std::make_unique<LocalScheduler>(LocalScheduler::Config{.resources = std::move(config.resources),
                                                                       .max_workers = config.max_workers,
                                                                       .in_cluster = links != nullptr,
                                                                       .first_lease = (node << 40) + 1});
}

void NodeCore::SetFaults(const LocalScheduler::Faults& scheduler, const ActorDirectory::Faults& directory,
                         const LeaseRouter::Faults& router) {
  scheduler_->faults = scheduler;
  directory_.faults = directory;
  router_->faults = router;
}

// ---- jobs ---------------------------------------------------------------------------------------------------------

NodeJob& NodeCore::OpenJob(ProcessId driver, uint32_t prestart, uint32_t keep, bool python_workers) {
  NodeJob& job = jobs_[driver];
  job.driver = job.output_to = driver;
  WorkerPool::Config config{.prestart = prestart, .keep = keep, .kind = {driver, false}};
  job.pool = std::make_unique<WorkerPool>(config, processes_.next_number());
  if (python_workers) {  // none before somebody asks for one
    config = {.keep = keep, .kind = {driver, true}};
    job.python_pool = std::make_unique<WorkerPool>(config, processes_.next_number());
  }
  return job;
}

void NodeCore::Prestart(ProcessId driver, int64_t now_ns) {
  FindJob(driver)->pool->SessionOpened(now_ns, pool_actions_);
}

// At once, so that no actor gets one of those that leave.
void NodeCore::RenewWorkers(ProcessId driver, int64_t now_ns) {
  now_ns_ = now_ns;
  std::vector<PoolAction> actions;
  FindJob(driver)->pool->Renew(now_ns, actions);
  PerformAll(actions);
}

void NodeCore::HoldActors(ProcessId driver, bool on, int64_t now_ns) {
  now_ns_ = now_ns;
  scheduler_->Handle(ActorsHeld{driver, on}, scheduler_actions_);
}

void NodeCore::EndJob(NodeJob& job) {
  job.ending = true;
  io_.EndJob(job.driver);
  for (auto& [id, process] : processes_.all()) {
    if (process.job == job.driver && !process.is_driver) Kill(id, "its driver has ended");
  }
}

void NodeCore::ForgetJob(ProcessId driver) {
  told_jobs_.erase(driver);
  if (links_ && NodeOf(driver) != kClusterNode) links_->ForgetJob(driver);
  jobs_.erase(driver);
}

NodeJob* NodeCore::FindJob(ProcessId driver) {
  auto found = jobs_.find(driver);
  return found == jobs_.end() ? nullptr : &found->second;
}

WorkerPool& NodeCore::PoolOf(const LocalProcess& worker) {
  return *FindJob(worker.job)->PoolOf(worker.python_of_cpp_job);
}

// ---- processes ----------------------------------------------------------------------------------------------------

LocalProcess& NodeCore::AddDriver(ProcessId id) { return processes_.Add({.id = id, .job = id, .is_driver = true}); }

void NodeCore::DriverJoined(ProcessId driver, int64_t now_ns) {
  now_ns_ = now_ns;
  Find(driver)->stage = LocalProcess::Stage::kReady;
  scheduler_->Handle(TimePassed{now_ns}, scheduler_actions_);
  scheduler_->Handle(ProcessJoined{driver, false, {driver}}, scheduler_actions_);
}

void NodeCore::WorkerStarted(ProcessId worker, const WorkerKind& kind) {
  processes_.Add({.id = worker, .job = kind.job, .python_of_cpp_job = kind.python_of_cpp_job});
}

void NodeCore::StartFailed(const StartWorker& start, const std::string& why, int64_t now_ns) {
  NodeJob* job = FindJob(start.kind.job);
  if (job == nullptr || job->ending) return;
  job->PoolOf(start.kind.python_of_cpp_job)->WorkerEnded(start.worker, why, now_ns, pool_actions_);
}

void NodeCore::Start(const StartWorker& start, int64_t now_ns) {
  now_ns_ = now_ns;
  Perform(start);
}

void NodeCore::WorkerBecameReady(ProcessId id, int64_t now_ns) {
  now_ns_ = now_ns;
  LocalProcess& worker = *Find(id);
  worker.stage = LocalProcess::Stage::kReady;
  const bool runs_tasks = PoolOf(worker).WorkerBecameReady(id, now_ns);
  if (!runs_tasks) Send(worker, Exit{});
  scheduler_->Handle(ProcessJoined{id, runs_tasks, {worker.job, worker.python_of_cpp_job}}, scheduler_actions_);
}

bool NodeCore::MessageCame(ProcessId from, Message& message, int64_t now_ns) {
  now_ns_ = now_ns;
  LocalProcess& process = *Find(from);
  return std::visit(
      [&](auto& m) {
        if constexpr (requires { Handle(process, m); }) {
          Handle(process, m);
          return true;
        } else {
          return false;
        }
      },
      message);
}

void NodeCore::ProcessClosing(ProcessId id, int64_t now_ns) {
  now_ns_ = now_ns;
  Find(id)->stage = LocalProcess::Stage::kClosing;
  // No leases for it any more, if it is idle. If it is leased, the lease ends with its death.
  if (is_open() && scheduler_->IsIdle(id)) scheduler_->Handle(WorkerRetired{id}, scheduler_actions_);
}

void NodeCore::ProcessIsGone(ProcessId id, int32_t pid, const std::string& how, const std::string& why_not_started,
                             int64_t now_ns) {
  now_ns_ = now_ns;
  channels_.Ended(id);
  if (links_ && !faults.keep_deaths_to_itself) links_->SendToAll(ProcessVanished{id, pid, how});
  remote_.workers.erase(id);
  TellOfActorsThatEndWith(id, pid, how);
  AnnounceDeath(id, pid, how);
  processes_.RememberDeath(id, how);
  const LocalProcess process = std::move(*Find(id));
  processes_.Remove(id);
  scheduler_->Handle(ProcessLost{id}, scheduler_actions_);
  if (NodeJob* job = FindJob(process.job); job != nullptr && !process.is_driver && !job->ending) {
    job->PoolOf(process.python_of_cpp_job)->WorkerEnded(id, why_not_started, now_ns, pool_actions_);
  }
}

// To every process: an owner may count the dead as a borrower by the word of a third process alone.
void NodeCore::AnnounceDeath(ProcessId id, int32_t pid, const std::string& how) {
  for (const auto& [other_id, other] : processes_.all()) {
    if (other_id != id && other.ready()) Send(other, ProcessDied{id, pid, how});
  }
}

void NodeCore::Kill(ProcessId id, const std::string& why) {
  LocalProcess* process = Find(id);
  if (process == nullptr) return;
  process->killed = true;
  io_.Kill(id, why);
}

// ---- time ---------------------------------------------------------------------------------------------------------

void NodeCore::Tick(int64_t now_ns) {
  if (!is_open()) return;
  now_ns_ = now_ns;
  scheduler_->Handle(TimePassed{now_ns}, scheduler_actions_);
  SettleNow();
  for (auto& [driver, job] : jobs_) {
    if (!job.starts_workers()) continue;
    job.pool->TimePassed(now_ns, pool_actions_);
    if (job.python_pool) job.python_pool->TimePassed(now_ns, pool_actions_);
  }
  SettleNow();
  if (directory_.next_wakeup_ns() <= now_ns) {
    directory_.Handle(DirectoryTicked{now_ns}, directory_actions_);
    SettleNow();
  }
  for (const auto& [submitter, worker] : channels_.Due(now_ns)) links_->DialChannel(submitter, worker);
}

int64_t NodeCore::next_wakeup_ns() const {
  if (!is_open()) return INT64_MAX;
  int64_t next = std::min({scheduler_->next_wakeup_ns(), directory_.next_wakeup_ns(), channels_.next_dial_ns()});
  for (const auto& [driver, job] : jobs_) {
    if (!job.starts_workers()) continue;
    next = std::min(next, job.pool->next_wakeup_ns());
    if (job.python_pool) next = std::min(next, job.python_pool->next_wakeup_ns());
  }
  return next;
}

void NodeCore::EndTurn(int64_t now_ns) {
  if (!is_open() || ended_) return;
  now_ns_ = now_ns;
  if (links_) TellHead();
  if (frozen_ && !faults.freeze_only_the_present) FreezeWhatIsNew();
}

void NodeCore::Settle(int64_t now_ns) {
  now_ns_ = now_ns;
  SettleNow();
}

void NodeCore::SettleNow() {
  if (settling_ || !is_open()) return;
  settling_ = true;
  while (!ended_ && (!scheduler_actions_.empty() || !directory_actions_.empty() || !pool_actions_.empty())) {
    PerformAll(scheduler_actions_);
    PerformAll(directory_actions_);
    PerformAll(pool_actions_);
  }
  settling_ = false;
}

template <class Actions>
void NodeCore::PerformAll(Actions& actions) {
  for (auto& action : std::exchange(actions, {})) {
    std::visit([&](const auto& a) { Perform(a); }, action);
    io_.Decided(action);
  }
}

void NodeCore::CheckInvariants() const {
  scheduler_->CheckInvariants();
  directory_.CheckInvariants();
  for (const auto& [driver, job] : jobs_) {
    job.pool->CheckInvariants();
    if (job.python_pool) job.python_pool->CheckInvariants();
  }
}

// ---- messages of processes ----------------------------------------------------------------------------------------

void NodeCore::Handle(LocalProcess& process, RequestLeases& message) {
  if (!IsValidShape(message.shape)) return io_.Refuse(process.id, "asked for resources that cannot be");
  if (scheduler_->ShapesOf(process.id) >= kMaxShapes && message.count > 0) {
    return Send(process, LeaseRefused{message.shape, "one process asks for more than " + std::to_string(kMaxShapes) +
                                                         " different resource shapes at once"});
  }
  if (auto granted = process.granted.find(message.shape);
      granted != process.granted.end() && message.heard < granted->second) {
    message.count -= static_cast<uint32_t>(std::min<uint64_t>(message.count, granted->second - message.heard));
  }
  if (!PlacementOf(message.shape).empty()) {
    if (const std::string why = router_->WhyMisplaced(message.shape); !why.empty()) {
      if (message.count > 0) Send(process, LeaseRefused{message.shape, "the task cannot run: " + why});
      return;
    }
    if (router_->Ask({process.id, message.shape}, message.count, message.depth)) return;
  }
  RereadBlockedFlags();
  scheduler_->Handle(LeasesRequested{process.id, std::move(message.shape), message.count, message.depth},
                     scheduler_actions_);
}

void NodeCore::Handle(LocalProcess& process, ReturnLease& message) {
  const NodeNumber granted_by{static_cast<uint32_t>(message.lease.value >> 40)};
  if (links_ && granted_by != links_->self()) {
    return links_->Send(granted_by, FromProcess{process.id, process.job, Encode(message)});
  }
  EndLease(process.id, message.lease);
}

void NodeCore::EndLease(ProcessId holder, LeaseId lease) {
  RereadBlockedFlags();
  const ProcessId worker = scheduler_->WorkerOf(lease, holder);
  if (worker && !PoolOf(*Find(worker)).WorkerWasFreed(worker, now_ns_)) Perform(RetireWorker{worker});
  scheduler_->Handle(LeaseReturned{holder, lease}, scheduler_actions_);
}

void NodeCore::Handle(LocalProcess& process, Blocked&) {
  RereadBlockedFlags();
  TakeLoan(process.id);
}

void NodeCore::Handle(LocalProcess&, Unblocked&) { RereadBlockedFlags(); }

bool NodeCore::NothingRuns() const {
  return std::none_of(processes_.all().begin(), processes_.all().end(), [&](const auto& entry) {
    return entry.second.ready() && scheduler_->IsLeased(entry.first) && io_.RunsTask(entry.first);
  });
}

// Counts the CPU of a worker whose task waits as lent, if the scheduler agrees. The task may go on at any moment.
void NodeCore::TakeLoan(ProcessId worker) {
  const Loan loan = io_.TakeLoan(worker);
  if (loan == Loan::kNone) return;
  const bool for_memory = loan == Loan::kForMemory;
  scheduler_->Handle(WorkerBlocked{worker, for_memory, for_memory && NothingRuns()}, scheduler_actions_);
  if (!scheduler_->IsLending(worker)) io_.ReturnLoan(worker, loan);
}

void NodeCore::RereadBlockedFlags() {
  scheduler_->Handle(TimePassed{now_ns_}, scheduler_actions_);  // what follows is counted from now
  for (ProcessId id : std::set<ProcessId>(scheduler_->lending())) {
    if (io_.Lends(id)) continue;
    scheduler_->Handle(WorkerUnblocked{id}, scheduler_actions_);
    if (scheduler_->demand()) TakeLoan(id);  // it waits again, perhaps
  }
}

void NodeCore::Handle(LocalProcess& process, RouteTo& message) {
  if (NodeOf(message.to) == kClusterNode) return;  // it counts no borrowers
  const NodeNumber node = NodeOf(message.to);
  const bool elsewhere = IsElsewhere(message.to);
  if (elsewhere && (links_->Knows(node) || links_->MayAppear(node)) && !processes_.RemembersDeath(message.to)) {
    remote_peers_.insert(message.to);
    return SendFor(process, node, RoutedAcross{process.id, message.to, std::move(message.payload)});
  }
  const LocalProcess* target = Find(message.to);
  if (target == nullptr || !target->ready()) {
    const bool never_was = !processes_.RemembersDeath(message.to) && !processes_.WasGiven(message.to);
    // A process that is closing will be announced; the answer then comes twice, which does no harm.
    return Send(process, ProcessDied{message.to, 0, never_was ? "it never existed" : processes_.HowItDied(message.to)});
  }
  io_.Send(target->id, Routed{process.id, std::move(message.payload)}, process.id);
}

void NodeCore::Handle(LocalProcess& process, FreeObjects& message) { FreeRanges(message.locations, process.id); }

void NodeCore::FreeRanges(const std::vector<Location>& all, ProcessId sender) {
  std::map<SegmentId, std::vector<Location>> by_segment;
  for (const auto& location : all) by_segment[location.segment].push_back(location);
  for (auto& [segment, locations] : by_segment) {
    const ProcessId writer{segment.value};  // a segment has its writer's number
    if (!IsElsewhere(writer)) {
      io_.FreeHere(segment, std::move(locations), sender);
    } else if (const LocalProcess* process = Find(sender)) {
      SendFor(*process, NodeOf(writer), FromProcess{sender, process->job, Encode(FreeObjects{std::move(locations)})});
    }
  }
}

void NodeCore::Handle(LocalProcess& process, AskShape& message) {
  if (!IsValidShape(message.shape)) return io_.Refuse(process.id, "asked about resources that cannot be");
  Send(process, ShapeAnswer{message.request, EncodeFact(Explain(message.shape))});
}

ShapeFact NodeCore::Explain(const ResourceAmounts& shape) {
  ShapeFact fact = scheduler_->Explain(shape);
  if (links_) {
    // What others hold there is not known here, and nobody here keeps it from coming: it may yet be served. Nor is
    // anything hopeless that no node has: one that has it may join.
    const ResourceAmounts plain = WithoutPlacement(shape);
    if (MayBeServedElsewhere(shape) || !AnyFits(plain, NodeNumber{})) {
      fact.holders.clear();
      fact.total = shape;
      ++fact.starting;
    }
  }
  for (HolderFact& holder : fact.holders) {
    holder.pid = io_.PidOf(holder.worker);
    if (std::string name = directory_.ClassOf(holder.worker); !name.empty()) holder.actor = "actor " + name;
  }
  return fact;
}

bool NodeCore::AnyFits(const ResourceAmounts& shape, NodeNumber except) const {
  return std::any_of(links_->nodes().begin(), links_->nodes().end(), [&](const auto& node) {
    return node.first != except && ResourceLedger(node.second.resources).Fits(shape);
  });
}

// By another node that there is, or by one that joins if none can serve it as things are.
bool NodeCore::MayBeServedElsewhere(const ResourceAmounts& shape) const {
  const bool here = ResourceLedger(resources_).Fits(shape) && router_->MayServe(shape);
  return !here || AnyFits(shape, links_->self());
}

// ---- decisions of the scheduler and the pools ---------------------------------------------------------------------

void NodeCore::Perform(const GrantLease& action) {
  LocalProcess* worker = Find(action.worker);
  WEFT_CHECK(worker != nullptr, "the scheduler knows the living only");
  PoolOf(*worker).WorkerWasLeased(action.worker);
  if (IsElsewhere(action.process)) return GrantElsewhere(action);
  LocalProcess* submitter = Find(action.process);
  WEFT_CHECK(submitter != nullptr, "the scheduler knows the living only");
  // If the submitter is closing, its death ends the lease. If the worker is, the submitter gets the lease all the same
  // and then hears of the death like of any other: a request never vanishes.
  if (!submitter->ready()) return;
  if (links_ && !router_->MayServe(action.shape)) {  // the head has placed it here
    router_->Arrived({action.process, action.shape});
    LeaseWasGranted(action.process, action.shape);
  }
  if (!OpenChannel(action.process, action.worker)) {
    EndLease(action.process, action.lease);
    return Send(*submitter, LeaseRefused{action.shape, "no descriptors or channel slots are left on this node"});
  }
  io_.SetDemand(action.worker, scheduler_->demand());
  CountGrant(*submitter, action.shape);
  Send(*submitter, LeaseGranted{action.shape, action.lease, action.worker, action.gpus});
}

void NodeCore::CountGrant(LocalProcess& process, const ResourceAmounts& shape) {
  if (process.granted.size() >= kMaxCountedShapes) process.granted.clear();  // then one too many may be granted
  ++process.granted[shape];
}

bool NodeCore::OpenChannel(ProcessId submitter, ProcessId worker) {
  const ChannelBroker::Pair pair{submitter, worker};
  if (channels_.HasSubmitter(pair)) return true;
  return io_.OpenRing(pair, channels_);
}

void NodeCore::Perform(const RecallLease& action) { Answer(action.process, LeaseRecalled{action.lease}); }

void NodeCore::Perform(const RefuseLeases& action) {
  if (IsElsewhere(action.process)) {
    const std::string why = "on " + links_->Describe(links_->self()) + " " + action.why;
    return SendElsewhere(action.process, LeaseRefused{action.shape, why, action.count});
  }
  Answer(action.process, LeaseRefused{action.shape, action.why});
}

void NodeCore::Perform(const WantWorkers& action) {
  NodeJob* job = FindJob(action.kind.job);
  if (job == nullptr || !job->starts_workers()) return;
  if (WorkerPool* pool = job->PoolOf(action.kind.python_of_cpp_job))
    pool->WorkersWanted(action.count, now_ns_, pool_actions_);
}

void NodeCore::Perform(const SetDemand& action) {
  // The flag first, then the look: a worker that blocks sets its flag and then looks at ours, so at least one of the
  // two sees the other.
  for (const auto& [id, process] : processes_.all()) {
    if (process.stage == LocalProcess::Stage::kConnecting || !scheduler_->IsLeased(id)) continue;
    io_.SetDemand(id, action.on);
    if (action.on) TakeLoan(id);
  }
  if (action.on) scheduler_->Handle(BlockedFlagsRead{}, scheduler_actions_);
}

void NodeCore::Perform(const KillWorker& action) { Kill(action.worker, "the process whose tasks it ran has ended"); }

void NodeCore::Perform(const StartWorker& action) {
  NodeJob* job = FindJob(action.kind.job);
  if (job == nullptr || !job->starts_workers()) return;
  if (Status status = io_.Launch(action); !status.ok()) StartFailed(action, status.error().message, now_ns_);
}

void NodeCore::Perform(const RetireWorker& action) {
  scheduler_->Handle(WorkerRetired{action.worker}, scheduler_actions_);
  if (const LocalProcess* process = Find(action.worker)) Send(*process, Exit{});
}

void NodeCore::Perform(const AbandonStart& action) { Kill(action.worker, "it took too long to start"); }

void NodeCore::Perform(const GiveUpStarting& action) {
  io_.Log(LogLevel::kInfo, "worker", "none can be started for job " + ToString(action.kind.job) + ": " + action.why);
  scheduler_->Handle(StartingGivenUp{action.why, action.kind}, scheduler_actions_);
}

}  // namespace weft::core
