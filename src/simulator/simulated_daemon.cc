#include "simulator/simulated_daemon.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "simulator/simulated_cluster.h"
#include "simulator/simulated_process.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;

uint32_t CpusOf(const World& world, const SimulatedNode* node) {
  return node ? node->machine().cpus : world.workload.cpus;
}

LocalScheduler::Config SchedulerConfig(const World& world, const SimulatedNode* node) {
  ResourceAmounts resources{{"CPU", CpusOf(world, node) * kResourceUnit}};
  const uint32_t gpus = node ? node->machine().gpus : world.workload.gpus;
  if (gpus > 0) resources.emplace_back("gpu", gpus * kResourceUnit);
  LocalScheduler::Config config{resources, 64};
  if (node) {
    config.in_cluster = true;
    config.first_lease = (uint64_t{node->self().value} << 40) + 1;
  }
  return config;
}

WorkerPool::Config PoolConfig(const World& world, const SimulatedNode* node) {
  WorkerPool::Config config;
  config.prestart = CpusOf(world, node);
  config.keep = CpusOf(world, node);
  return config;
}

}  // namespace

SimulatedDaemon::SimulatedDaemon(World& world, SimulatedNode* node)
    : scheduler(SchedulerConfig(world, node)),
      next_number_(node ? (uint64_t{node->self().value} << 32) + 1 : 2),  // 1 is the driver
      pool(PoolConfig(world, node), &next_number_),
      world_(world),
      node_(node),
      self_(node ? node->self() : NodeNumber{}) {
  scheduler.faults = world.options.scheduler_faults;
  directory.faults = world.options.directory_faults;
  sent_wishes_.faults = world.options.wish_faults;
}

void SimulatedDaemon::Later(int64_t delay_ns, std::function<void()> what) {
  if (node_) return node_->Later(delay_ns, std::move(what));
  world_.queue.At(world_.now() + delay_ns, [this, what = std::move(what)] {
    if (paused_until_ns > world_.now()) {
      Later(paused_until_ns - world_.now(), what);
    } else {
      what();
    }
  });
}

void SimulatedDaemon::Pause(int64_t until_ns) {
  if (node_) return world_.cluster->network.Pause(node_->machine().number, until_ns);
  paused_until_ns = until_ns;
}

void SimulatedDaemon::OpenSession() {
  ProcessId driver{1};
  processes_[driver].stage = Stage::kReady;
  scheduler.Handle(ProcessJoined{driver, false}, scheduler_actions_);
  pool.SessionOpened(world_.now(), pool_actions_);
  Settle();
}

void SimulatedDaemon::Send(ProcessId from, Message message) {
  auto found = processes_.find(from);
  if (found == processes_.end() || found->second.stage == Stage::kClosing) return;
  int64_t extra = world_.Sent(HappeningOf(message), world_.Find(from), nullptr);
  if (extra > 0) found->second.not_before_ns = world_.now() + extra;
  found->second.inbox.push_back({std::move(message), world_.now()});
  Wake();
}

void SimulatedDaemon::Wake() {
  if (awake_) return;
  awake_ = true;
  Later(world_.Delay(), [this] { Run(); });
}

void SimulatedDaemon::Run() {
  awake_ = false;
  std::vector<ProcessId> with_messages;
  int64_t next = INT64_MAX;
  for (auto& [id, process] : processes_) {
    if (process.inbox.empty()) continue;
    if (process.not_before_ns > world_.now()) {
      next = std::min(next, process.not_before_ns);
    } else {
      with_messages.push_back(id);
    }
  }
  scheduler.Handle(TimePassed{world_.now()}, scheduler_actions_);
  if (!with_messages.empty()) {
    ProcessId from = with_messages[world_.random.Below(with_messages.size())];
    Process& process = processes_.at(from);
    Incoming incoming = std::move(process.inbox.front());
    process.inbox.pop_front();
    world_.Handled(HappeningOf(incoming.message), incoming.sent_ns);
    Handle(from, incoming.message);
    next = world_.now();
  }
  Settle();
  pool.TimePassed(world_.now(), pool_actions_);
  Settle();
  if (next != INT64_MAX && !awake_) {
    awake_ = true;
    Later(next - world_.now() + world_.Delay(), [this] { Run(); });
  }
}

void SimulatedDaemon::ReadAll(ProcessId id) {
  for (;;) {
    auto found = processes_.find(id);
    if (found == processes_.end() || found->second.inbox.empty()) return;
    Incoming incoming = std::move(found->second.inbox.front());
    found->second.inbox.pop_front();
    Handle(id, incoming.message);
    Settle();
  }
}

void SimulatedDaemon::Handle(ProcessId from, Message& message) {
  world_.Note("daemon handles", from.value, static_cast<uint64_t>(HappeningOf(message)));
  Process& process = processes_.at(from);
  SimulatedProcess* simulated = world_.Find(from);
  if (std::get_if<WorkerReady>(&message)) {
    process.stage = Stage::kReady;
    FreezeIfNeeded(from);
    pool.WorkerBecameReady(from, world_.now());
    scheduler.Handle(ProcessJoined{from, true, {job_}}, scheduler_actions_);
  } else if (auto* m = std::get_if<RequestLeases>(&message)) {
    RereadBlockedFlags();
    scheduler.Handle(TimePassed{world_.now()}, scheduler_actions_);
    if (auto granted = process.granted.find(m->shape); granted != process.granted.end() && m->heard < granted->second) {
      m->count -= static_cast<uint32_t>(std::min<uint64_t>(m->count, granted->second - m->heard));
    }
    scheduler.Handle(LeasesRequested{from, m->shape, m->count, m->depth}, scheduler_actions_);
  } else if (auto* m = std::get_if<ReturnLease>(&message)) {
    const NodeNumber granted_by{static_cast<uint32_t>(m->lease.value >> 40)};
    if (granted_by != self_) return node_->Send(granted_by, FromProcess{from, job_, Encode(*m)});
    RereadBlockedFlags();
    ProcessId worker = scheduler.WorkerOf(m->lease, from);
    if (worker) pool.WorkerWasFreed(worker, world_.now());
    scheduler.Handle(LeaseReturned{from, m->lease}, scheduler_actions_);
  } else if (std::get_if<Blocked>(&message)) {
    RereadBlockedFlags();
    if (simulated->blocked) scheduler.Handle(WorkerBlocked{from}, scheduler_actions_);
  } else if (std::get_if<Unblocked>(&message)) {
    RereadBlockedFlags();
  } else if (auto* m = std::get_if<RouteTo>(&message)) {
    if (IsElsewhere(m->to)) return RouteElsewhere(from, *m);
    auto target = processes_.find(m->to);
    if (target == processes_.end() || target->second.stage != Stage::kReady) {
      return Tell(from, ProcessDied{m->to, 0, "has ended"});
    }
    Tell(m->to, Routed{from, std::move(m->payload)});
  } else if (auto* m = std::get_if<FreeObjects>(&message)) {
    for (const Location& location : m->locations) {
      ProcessId writer{location.segment.value};
      auto target = processes_.find(writer);
      if (target != processes_.end() && target->second.stage == Stage::kReady) {
        Tell(writer, ObjectsFreed{{location}});
      } else {
        world_.Freed(location);
      }
    }
  } else if (auto* m = std::get_if<AskShape>(&message)) {
    ShapeFact fact = scheduler.Explain(m->shape);
    if (node_) {
      // As NodeDaemon::Explain: with other nodes, nothing is known to be hopeless.
      fact.holders.clear();
      fact.total = m->shape;
      ++fact.starting;
    }
    Tell(from, ShapeAnswer{m->request, EncodeFact(fact)});
  } else if (auto* m = std::get_if<ChannelLost>(&message)) {
    if (!IsElsewhere(m->worker)) return EndUnreachable(m->worker);
    if (node_->Knows(NodeOf(m->worker))) node_->Send(NodeOf(m->worker), ChannelBroken{m->worker, from});
  } else {
    HandleOfActors(from, message);
  }
}

void SimulatedDaemon::Tell(ProcessId to, Message message) {
  auto found = processes_.find(to);
  if (found == processes_.end() || found->second.stage != Stage::kReady) return;
  SimulatedProcess* process = world_.Find(to);
  if (process != nullptr && process->alive) process->Receive(std::move(message));
}

void SimulatedDaemon::Settle() {
  if (settling_) return;
  settling_ = true;
  while (!scheduler_actions_.empty() || !directory_actions_.empty() || !pool_actions_.empty()) {
    for (auto& action : std::exchange(scheduler_actions_, {})) {
      std::visit([&](const auto& a) { Perform(a); }, action);
    }
    for (auto& action : std::exchange(directory_actions_, {})) {
      std::visit([&](const auto& a) { Perform(a); }, action);
    }
    for (auto& action : std::exchange(pool_actions_, {})) {
      std::visit([&](const auto& a) { Perform(a); }, action);
    }
  }
  settling_ = false;
  scheduler.CheckInvariants();
  pool.CheckInvariants();
  directory.CheckInvariants();
  ScheduleTimer();
}

void SimulatedDaemon::Perform(const GrantLease& action) {
  if (IsElsewhere(action.process)) return GrantElsewhere(action);
  auto submitter = processes_.find(action.process);
  WEFT_CHECK(submitter != processes_.end() && processes_.contains(action.worker),
             "the scheduler knows the living only");
  pool.WorkerWasLeased(action.worker);
  world_.Note("grant", action.process.value, action.worker.value, action.lease.value);
  if (submitter->second.stage != Stage::kReady) return;  // its burial ends the lease
  OpenChannel(action.process, action.worker);
  if (auto* process = world_.Find(action.worker)) process->demand = scheduler.demand();
  ++submitter->second.granted[action.shape];
  Tell(action.process, LeaseGranted{action.shape, action.lease, action.worker, action.gpus});
}

void SimulatedDaemon::Perform(const RecallLease& action) {
  if (IsElsewhere(action.process)) return SendElsewhere(action.process, LeaseRecalled{action.lease});
  Tell(action.process, LeaseRecalled{action.lease});
}

void SimulatedDaemon::Perform(const RefuseLeases& action) {
  world_.Helped();
  if (IsElsewhere(action.process)) {
    return SendElsewhere(action.process, LeaseRefused{action.shape, action.why, action.count});
  }
  Tell(action.process, LeaseRefused{action.shape, action.why});
}

void SimulatedDaemon::Perform(const WantWorkers& action) {
  if (job_ending_) return;
  pool.WorkersWanted(action.count, world_.now(), pool_actions_);
}

void SimulatedDaemon::Perform(const SetDemand& action) {
  for (auto& [id, process] : processes_) {
    auto* simulated = world_.Find(id);
    if (simulated == nullptr || !scheduler.IsLeased(id)) continue;
    simulated->demand = action.on;
    if (action.on && simulated->blocked) scheduler.Handle(WorkerBlocked{id}, scheduler_actions_);
  }
  if (action.on) scheduler.Handle(BlockedFlagsRead{}, scheduler_actions_);
}

void SimulatedDaemon::OpenChannel(ProcessId submitter, ProcessId worker) {
  if (channels_.HasSubmitter({submitter, worker})) return;
  if (!channels_.Open({submitter, worker})) world_.Fail("a process has no slot left for a channel");
  world_.OpenChannel(submitter, worker);
  Tell(worker, ChannelOpened{.peer = submitter, .first_side = 0});
  Tell(submitter, ChannelOpened{.peer = worker, .first_side = 1});
}

void SimulatedDaemon::Perform(const KillWorker& action) { Kill(action.worker); }

void SimulatedDaemon::Kill(ProcessId id) {
  world_.Note("kill", id.value);
  // A signal needs no consent, but a moment.
  world_.queue.At(world_.now() + world_.Delay(), [this, id] {
    if (auto* process = world_.Find(id); process != nullptr && process->alive) process->Die();
  });
}

void SimulatedDaemon::RereadBlockedFlags() {
  for (auto& [id, process] : processes_) {
    auto* simulated = world_.Find(id);
    if (simulated != nullptr && scheduler.IsLending(id) && !simulated->blocked) {
      scheduler.Handle(WorkerUnblocked{id}, scheduler_actions_);
    }
  }
}

void SimulatedDaemon::Perform(const StartWorker& action) {
  ProcessId id = action.worker;
  if (job_ending_) return;
  processes_[id];
  world_.Note("start", id.value);
  int64_t takes = kMs + static_cast<int64_t>(world_.random.Below(15 * kMs));
  bool fails = world_.faulty() && world_.random.Chance(world_.fail_start_percent);
  bool crashes = world_.CrashesAt(CrashPoint::kStarting);
  Later(takes, [this, id, fails, crashes] {
    if (fails || crashes) {
      if (crashes) world_.coverage.Met(Happening::kWorkerReady, FaultKind::kCrash);
      return Bury(id);
    }
    auto process = std::make_unique<SimulatedProcess>(world_, id, false);
    SimulatedProcess* started = process.get();
    world_.processes[id] = std::move(process);
    if (job_ending_) Kill(id);
    started->SayReady();
  });
}

void SimulatedDaemon::Perform(const RetireWorker& action) {
  scheduler.Handle(WorkerRetired{action.worker}, scheduler_actions_);
  Tell(action.worker, Exit{});
}

void SimulatedDaemon::Perform(const AbandonStart& action) {
  if (auto* process = world_.Find(action.worker); process != nullptr && process->alive) process->Die();
}

void SimulatedDaemon::Perform(const GiveUpStarting& action) {
  world_.gave_up_starting = true;
  scheduler.Handle(StartingGivenUp{action.why, {job_}}, scheduler_actions_);
}

void SimulatedDaemon::Died(ProcessId process) {
  // The end of its connection and its exit status are noticed one by one, in any order.
  int64_t closed = world_.Delay(), buried = world_.LongDelay();
  Later(closed, [this, process] { BeginClosing(process); });
  Later(std::max<int64_t>(buried, 1), [this, process] { Bury(process); });
}

void SimulatedDaemon::BeginClosing(ProcessId id) {
  ReadAll(id);
  auto found = processes_.find(id);
  if (found == processes_.end()) return;
  found->second.stage = Stage::kClosing;
  if (scheduler.IsIdle(id)) scheduler.Handle(WorkerRetired{id}, scheduler_actions_);
  Settle();
}

void SimulatedDaemon::Bury(ProcessId id) {
  if (!processes_.contains(id)) return;
  ReadAll(id);
  Settle();
  if (!processes_.contains(id)) return;
  world_.Note("bury", id.value);
  if (node_) {
    if (!world_.options.cluster_faults.keep_deaths_to_itself) node_->SendToAll(ProcessVanished{id, 0, "was killed"});
    deaths_[id] = "was killed";
  }
  channels_.Ended(id);
  TellOfActorsThatEndWith(id);
  for (auto& [other, process] : processes_) {
    if (other != id) Tell(other, ProcessDied{id, 0, "was killed"});
  }
  processes_.erase(id);
  scheduler.Handle(ProcessLost{id}, scheduler_actions_);
  if (id == job_) {
    EndProcessesOfJob();
  } else if (!job_ending_) {
    pool.WorkerEnded(id, "was killed", world_.now(), pool_actions_);
  }
  Settle();
}

void SimulatedDaemon::BuryAlive(ProcessId id) {
  auto* process = world_.Find(id);
  if (process == nullptr || !process->alive || !processes_.contains(id)) return;
  if (processes_.at(id).stage != Stage::kReady) return;
  world_.Note("bury alive", id.value);
  process->buried = true;
  process->DoomLeased(true);
  Bury(id);
  int64_t lives_on = static_cast<int64_t>(world_.random.Below((process->actor() ? 60 : 20) * kMs));
  world_.queue.At(world_.now() + lives_on, [process] {
    if (process->alive) process->Die();
  });
}

void SimulatedDaemon::RecallEverything() {
  for (auto& [id, process] : processes_) {
    auto* simulated = world_.Find(id);
    if (simulated == nullptr || !simulated->alive) continue;
    for (const LeasedWorker& worker : simulated->owner.workers()) {
      if (!worker.leased) continue;
      world_.coverage.Met(Happening::kLeaseRecalled, FaultKind::kStorm);
      Tell(id, LeaseRecalled{worker.lease});
    }
  }
}

void SimulatedDaemon::ScheduleTimer() {
  int64_t next = std::min({scheduler.next_wakeup_ns(), pool.next_wakeup_ns(), directory.next_wakeup_ns()});
  if (next >= timer_ns_) return;
  timer_ns_ = next;
  Later(std::max<int64_t>(next - world_.now(), 0), [this, next] {
    if (timer_ns_ == next) timer_ns_ = INT64_MAX;
    scheduler.Handle(TimePassed{world_.now()}, scheduler_actions_);
    Settle();
    directory.Handle(DirectoryTicked{world_.now()}, directory_actions_);
    Settle();
    pool.TimePassed(world_.now(), pool_actions_);
    Settle();
  });
}

void SimulatedDaemon::NoteLosses(ProcessId id) {
  auto found = processes_.find(id);
  if (found == processes_.end()) return;
  for (const Incoming& incoming : found->second.inbox) {
    world_.coverage.Met(HappeningOf(incoming.message), FaultKind::kCrash);
  }
}

void SimulatedDaemon::CheckRest() {
  if (scheduler.lease_count() != 0) world_.Fail("at rest, leases are still held");
  if (scheduler.actor_count() != 0) world_.Fail("at rest, the scheduler still knows actors");
  LocalScheduler fresh(SchedulerConfig(world_, node_));
  if (!(scheduler.free() == fresh.free())) world_.Fail("at rest, free resources are not all resources");
  for (auto& [id, process] : processes_) {
    if (!process.inbox.empty()) world_.Fail("at rest, messages to the daemon lie unread");
    if (scheduler.ShapesOf(id) != 0) world_.Fail("at rest, process " + ToString(id) + " still wishes for leases");
    auto* simulated = world_.Find(id);
    if (simulated == nullptr || !simulated->alive) world_.Fail("at rest, the daemon believes in a dead process");
  }
}

std::string SimulatedDaemon::Describe() const {
  std::string text =
      "daemon " + std::to_string(self_.value) + ": " + std::to_string(scheduler.lease_count()) + " leases, free";
  for (const auto& [name, amount] : scheduler.free().amounts()) {
    text.append(" ").append(FormatAmount(amount)).append(" ").append(name);
  }
  text += scheduler.demand() ? ", demand" : "";
  text += ", workers starting " + std::to_string(pool.starting()) + " ready " + std::to_string(pool.ready());
  if (pool.gave_up()) text += ", gave up starting";
  text += "\n";
  for (const ActorInfo& actor : directory.Describe()) {
    text += "  actor " + std::to_string(actor.actor.owner.value) + "/" + std::to_string(actor.actor.index) + " state " +
            std::to_string(actor.state) + " incarnation " + std::to_string(actor.incarnation) + " worker " +
            std::to_string(actor.worker.value) + (actor.detached ? " detached " : " ") + actor.name +
            (actor.why.empty() ? "" : ": " + actor.why) + "\n";
  }
  for (const auto& [id, process] : processes_) {
    text += "  process " + std::to_string(id.value) + (process.stage == Stage::kReady ? " ready" : " not ready");
    if (scheduler.IsLeased(id)) text += " leased";
    if (scheduler.IsLending(id)) text += " lending";
    text += ", wishes and leases in " + std::to_string(scheduler.ShapesOf(id)) + " shapes, unread " +
            std::to_string(process.inbox.size()) + "\n";
  }
  return text;
}

}  // namespace weft::core
