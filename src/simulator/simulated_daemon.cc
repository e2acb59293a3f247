#include "simulator/simulated_daemon.h"

#include <algorithm>
#include <utility>

#include "simulator/simulated_cluster.h"
#include "simulator/simulated_process.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr uint32_t kMaxWorkers = 64;

uint32_t CpusOf(const World& world, const SimulatedNode* node) {
  return node ? node->machine().cpus : world.workload.cpus;
}

ResourceAmounts ResourcesOf(const World& world, const SimulatedNode* node) {
  ResourceAmounts resources{{"CPU", CpusOf(world, node) * kResourceUnit}};
  const uint32_t gpus = node ? node->machine().gpus : world.workload.gpus;
  if (gpus > 0) resources.emplace_back("gpu", gpus * kResourceUnit);
  return resources;
}

}  // namespace

// ---- life ---------------------------------------------------------------------------------------------------------

SimulatedDaemon::SimulatedDaemon(World& world, SimulatedNode* node)
    : world_(world),
      node_(node),
      self_(node ? node->self() : NodeNumber{}),
      cpus_(CpusOf(world, node)),
      core_(*this, UINT32_MAX) {
  core_.Open({.resources = ResourcesOf(world, node),
              .max_workers = kMaxWorkers,
              .place = {.node_id = std::to_string(self_.value), .node = self_, .in_cluster = node != nullptr}},
             node);
  core_.StartNumbersAt((uint64_t{self_.value} << 32) + 1);
  core_.SetFaults(world.options.scheduler_faults, world.options.directory_faults, world.options.router_faults);
  core_.faults = world.options.core_faults;
  all_free_ = core_.scheduler().free();
}

void SimulatedDaemon::Later(int64_t delay_ns, std::function<void()> what) {
  if (node_) return node_->Later(delay_ns, std::move(what));
  world_.queue.At(world_.now() + delay_ns, [this, what = std::move(what)] {
    if (paused_until_ns_ > world_.now()) {
      Later(paused_until_ns_ - world_.now(), what);
    } else {
      what();
    }
  });
}

void SimulatedDaemon::Pause(int64_t until_ns) {
  if (node_) return world_.cluster->network.Pause(node_->machine().number, until_ns);
  paused_until_ns_ = until_ns;
}

void SimulatedDaemon::JoinDriver(ProcessId driver) {
  inboxes_[driver];
  core_.OpenJob(driver, cpus_, cpus_, false);
  core_.AddDriver(driver);
  core_.DriverJoined(driver, world_.now());
  core_.Prestart(driver, world_.now());
  Settle();
}

void SimulatedDaemon::OpenSession() { JoinDriver(core_.NextNumber()); }

void SimulatedDaemon::Open() {
  if (!node_->machine().has_driver || world_.driver) return;
  world_.driver = core_.NextNumber();
  world_.processes[world_.driver] = std::make_unique<SimulatedProcess>(world_, world_.driver, true);
  JoinDriver(world_.driver);
  core_.TellHeadOfJob(world_.driver);
  world_.Find(world_.driver)->StartDriver();
}

void SimulatedDaemon::End() {
  ended_ = true;
  core_.End();
  for (const auto& [id, process] : core_.processes().all()) {
    if (auto* simulated = world_.Find(id); simulated != nullptr && simulated->alive) simulated->Die();
  }
}

size_t SimulatedDaemon::machine() const { return node_->machine().number; }

bool SimulatedDaemon::CouldRunElsewhere(ProcessId id) const {
  const LocalProcess* process = core_.processes().Find(id);
  return process != nullptr && core_.CouldRunElsewhere(*process);
}

// ---- messages of processes ----------------------------------------------------------------------------------------

void SimulatedDaemon::Send(ProcessId from, Message message) {
  const LocalProcess* process = core_.Find(from);
  if (process == nullptr || process->stage == LocalProcess::Stage::kClosing) return;
  Inbox& inbox = inboxes_[from];
  int64_t extra = world_.Sent(HappeningOf(message), world_.Find(from), nullptr);
  if (extra > 0) inbox.not_before_ns = world_.now() + extra;
  inbox.messages.push_back({std::move(message), world_.now()});
  Wake();
}

void SimulatedDaemon::Wake() {
  if (std::exchange(awake_, true)) return;
  Later(world_.Delay(), [this] { Run(); });
}

void SimulatedDaemon::Run() {
  awake_ = false;
  std::vector<ProcessId> with_messages;
  int64_t next = INT64_MAX;
  for (auto& [id, inbox] : inboxes_) {
    if (inbox.messages.empty()) continue;
    if (inbox.not_before_ns > world_.now()) {
      next = std::min(next, inbox.not_before_ns);
    } else {
      with_messages.push_back(id);
    }
  }
  if (!with_messages.empty()) {
    ProcessId from = with_messages[world_.random.Below(with_messages.size())];
    auto& messages = inboxes_.at(from).messages;
    Incoming incoming = std::move(messages.front());
    messages.pop_front();
    world_.Handled(HappeningOf(incoming.message), incoming.sent_ns);
    Handle(from, incoming.message);
    next = world_.now();
  }
  Settle();
  core_.Tick(world_.now());
  Settle();
  if (next != INT64_MAX && !awake_) {
    awake_ = true;
    Later(next - world_.now() + world_.Delay(), [this] { Run(); });
  }
}

void SimulatedDaemon::ReadAll(ProcessId id) {
  for (;;) {
    auto found = inboxes_.find(id);
    if (found == inboxes_.end() || found->second.messages.empty()) return;
    Incoming incoming = std::move(found->second.messages.front());
    found->second.messages.pop_front();
    Handle(id, incoming.message);
    Settle();
  }
}

void SimulatedDaemon::Handle(ProcessId from, Message& message) {
  world_.Note("daemon handles", from.value, static_cast<uint64_t>(HappeningOf(message)));
  NoteQuestion(from, message);
  if (std::holds_alternative<WorkerReady>(message)) return core_.WorkerBecameReady(from, world_.now());
  if (!core_.MessageCame(from, message, world_.now())) world_.Fail("a message is not for the core of the daemon");
}

// What the truth must know of what is asked.
void SimulatedDaemon::NoteQuestion(ProcessId from, const Message& message) {
  if (auto* create = std::get_if<CreateActor>(&message)) {
    if (create->request != 0) creations_[{from, create->request}] = *create;
  } else if (std::holds_alternative<PlaceActor>(message)) {
    world_.coverage.Did(Deed::kConstructorWaitedForArguments);
  } else if (auto* lookup = std::get_if<LookupActor>(&message)) {
    lookups_[{from, lookup->request}] = lookup->name;
  } else if (auto* kill = std::get_if<KillActor>(&message)) {
    world_.Helped();
    if (kill->no_restart && directory().StateOf(kill->actor) != ActorState::kDead) {
      world_.actors.at(kill->actor).killed = true;
    }
  }
}

void SimulatedDaemon::Send(ProcessId to, const Message& message, ProcessId) {
  if (std::holds_alternative<WorkerOutput>(message)) return;  // for people
  const LocalProcess* known = core_.Find(to);
  if (known == nullptr || !known->ready()) return;
  SimulatedProcess* process = world_.Find(to);
  if (process != nullptr && process->alive) process->Receive(message);
}

void SimulatedDaemon::Settle() {
  core_.Settle(world_.now());
  core_.CheckInvariants();
  ScheduleTimer();
}

void SimulatedDaemon::ScheduleTimer() {
  const int64_t next = core_.next_wakeup_ns();
  if (next >= timer_ns_) return;
  timer_ns_ = next;
  Later(std::max<int64_t>(next - world_.now(), 0), [this, next] {
    if (timer_ns_ == next) timer_ns_ = INT64_MAX;
    core_.Tick(world_.now());
    Settle();
  });
}

// ---- what was decided ---------------------------------------------------------------------------------------------

void SimulatedDaemon::Decided(const SchedulerAction& action) {
  if (auto* grant = std::get_if<GrantLease>(&action)) {
    world_.Note("grant", grant->process.value, grant->worker.value, grant->lease.value);
    if (core_.IsElsewhere(grant->process)) world_.node_coverage.Did("a lease was granted to another node");
  } else if (auto* actor = std::get_if<GrantActor>(&action)) {
    world_.Note("grant actor", actor->actor.owner.value, actor->actor.index, actor->worker.value);
    const bool let_go = directory().ClassOf(actor->worker).empty();
    if (!let_go) world_.ActorPlaced(actor->actor, actor->worker);
  } else if (std::holds_alternative<RefuseLeases>(action) || std::holds_alternative<RefuseActor>(action)) {
    world_.Helped();
  }
}

void SimulatedDaemon::Decided(const DirectoryAction& action) {
  if (auto* want = std::get_if<WantActor>(&action)) {
    world_.ActorWanted(want->actor);
  } else if (auto* tell = std::get_if<TellWatcher>(&action)) {
    world_.ActorToldOf(tell->change);
  } else if (auto* answer = std::get_if<AnswerCreator>(&action)) {
    std::pair key{answer->process, answer->answer.request};
    if (auto asked = creations_.find(key); asked != creations_.end()) {
      world_.NameAnswered(asked->second, answer->answer);
      creations_.erase(asked);
    } else if (auto looked_up = lookups_.find(key); looked_up != lookups_.end()) {
      world_.NameFound(looked_up->second, answer->answer);
      lookups_.erase(looked_up);
    } else {
      world_.Fail("the directory answers what was not asked");
    }
  } else if (std::holds_alternative<AnswerList>(action)) {
    world_.Fail("the directory answers what was not asked");
  }
}

void SimulatedDaemon::Decided(const PoolAction& action) {
  if (std::holds_alternative<GiveUpStarting>(action)) world_.gave_up_starting = true;
}

void SimulatedDaemon::Happened(const char* what) { world_.node_coverage.Did(what); }

// ---- channels and memory ------------------------------------------------------------------------------------------

bool SimulatedDaemon::OpenRing(ChannelBroker::Pair pair, ChannelBroker& channels) {
  if (!channels.Open(pair)) world_.Fail("a process has no slot left for a channel");
  world_.OpenChannel(pair.submitter, pair.worker);
  Send(pair.worker, ChannelOpened{.peer = pair.submitter, .first_side = 0}, {});
  Send(pair.submitter, ChannelOpened{.peer = pair.worker, .first_side = 1}, {});
  return true;
}

std::string SimulatedDaemon::Construct(uint32_t, const ConstructActor&) {
  world_.Fail("detached actors of a cluster are not simulated");
}

void SimulatedDaemon::FreeHere(SegmentId segment, std::vector<Location> locations, ProcessId) {
  const ProcessId writer{segment.value};
  if (const LocalProcess* process = core_.Find(writer); process != nullptr && process->ready()) {
    return Send(writer, ObjectsFreed{std::move(locations)}, {});
  }
  for (const Location& location : locations) world_.Freed(location);
}

// ---- lives of processes -------------------------------------------------------------------------------------------

Status SimulatedDaemon::Launch(const StartWorker& start) {
  const ProcessId id = start.worker;
  core_.WorkerStarted(id, start.kind);
  world_.Note("start", id.value);
  int64_t takes = kMs + static_cast<int64_t>(world_.random.Below(15 * kMs));
  bool fails = world_.faulty() && world_.random.Chance(world_.fail_start_percent);
  bool crashes = world_.CrashesAt(CrashPoint::kStarting);
  Later(takes, [this, id, fails, crashes] {
    if (fails || crashes) {
      if (crashes) world_.coverage.Met(Happening::kWorkerReady, FaultKind::kCrash);
      return DeclareDead(id);
    }
    auto process = std::make_unique<SimulatedProcess>(world_, id, false);
    SimulatedProcess* started = process.get();
    world_.processes[id] = std::move(process);
    if (core_.Find(id)->killed) Kill(id, "");  // which had nobody to go to before
    started->SayReady();
  });
  return Status();
}

void SimulatedDaemon::Kill(ProcessId id, const std::string&) {
  world_.Note("kill", id.value);
  // A signal needs no consent, but a moment.
  world_.queue.At(world_.now() + world_.Delay(), [this, id] {
    if (auto* process = world_.Find(id); process != nullptr && process->alive) process->Die();
  });
}

void SimulatedDaemon::Refuse(ProcessId process, const std::string& why) {
  world_.Fail("process " + std::to_string(process.value) + " was refused: it " + why);
}

void SimulatedDaemon::FreezeWork() {
  freezing_ = true;
  core_.FreezeWork();
  freezing_ = false;
}

bool SimulatedDaemon::Stop(ProcessId id) {
  SimulatedProcess* process = world_.Find(id);
  if (process == nullptr || !process->alive) return false;
  process->frozen = true;
  if (!freezing_) world_.node_coverage.Did("a process was frozen from its beginning");
  return true;
}

void SimulatedDaemon::Continue(ProcessId id) {
  SimulatedProcess* process = world_.Find(id);
  process->frozen = false;
  for (auto& what : std::exchange(process->held_back, {})) world_.queue.At(world_.now(), std::move(what));
}

void SimulatedDaemon::Died(ProcessId process) {
  // The end of its connection and its exit status are noticed one by one, in any order.
  int64_t closed = world_.Delay(), noticed = world_.LongDelay();
  Later(closed, [this, process] { BeginClosing(process); });
  Later(std::max<int64_t>(noticed, 1), [this, process] { DeclareDead(process); });
}

void SimulatedDaemon::BeginClosing(ProcessId id) {
  ReadAll(id);
  if (!Knows(id)) return;
  core_.ProcessClosing(id, world_.now());
  Settle();
}

void SimulatedDaemon::DeclareDead(ProcessId id) {
  if (!Knows(id)) return;
  ReadAll(id);
  Settle();
  if (!Knows(id)) return;
  world_.Note("declare dead", id.value);
  NodeJob* job = core_.FindJob(id);
  if (job != nullptr && !job->ending) core_.EndJob(*job);
  core_.ProcessIsGone(id, 0, "was killed", "was killed", world_.now());
  inboxes_.erase(id);
  Settle();
}

void SimulatedDaemon::DeclareDeadAlive(ProcessId id) {
  auto* process = world_.Find(id);
  const LocalProcess* known = core_.Find(id);
  if (process == nullptr || !process->alive || known == nullptr || !known->ready()) return;
  world_.Note("declare dead alive", id.value);
  process->buried = true;
  process->DoomLeased(true);
  DeclareDead(id);
  int64_t lives_on = static_cast<int64_t>(world_.random.Below((process->actor() ? 60 : 20) * kMs));
  world_.queue.At(world_.now() + lives_on, [process] {
    if (process->alive) process->Die();
  });
}

void SimulatedDaemon::RecallEverything() {
  for (const auto& [id, known] : core_.processes().all()) {
    auto* simulated = world_.Find(id);
    if (simulated == nullptr || !simulated->alive) continue;
    for (const LeasedWorker& worker : simulated->owner.workers()) {
      if (!worker.leased) continue;
      world_.coverage.Met(Happening::kLeaseRecalled, FaultKind::kStorm);
      Send(id, LeaseRecalled{worker.lease}, {});
    }
  }
}

// ---- the flags of a worker's doorbell page ------------------------------------------------------------------------

void SimulatedDaemon::SetDemand(ProcessId id, bool on) {
  if (SimulatedProcess* worker = world_.Find(id)) worker->demand = on;
}

Loan SimulatedDaemon::TakeLoan(ProcessId id) {
  SimulatedProcess* worker = world_.Find(id);
  if (worker == nullptr || !worker->blocked || std::exchange(worker->lends, true)) return Loan::kNone;
  return Loan::kForValue;
}

void SimulatedDaemon::ReturnLoan(ProcessId id, Loan) { world_.Find(id)->lends = false; }

bool SimulatedDaemon::Lends(ProcessId id) const {
  const SimulatedProcess* worker = world_.Find(id);
  return worker == nullptr || worker->lends;
}

bool SimulatedDaemon::RunsTask(ProcessId id) const {
  const SimulatedProcess* worker = world_.Find(id);
  return worker != nullptr && !worker->blocked;
}

// ---- other nodes --------------------------------------------------------------------------------------------------

void SimulatedDaemon::OpenJob(const JobDescribed& described) {
  core_.OpenJob(described.driver, cpus_, cpus_, false);
  core_.Prestart(described.driver, world_.now());
}

void SimulatedDaemon::HeadForgot() {
  core_.HeadForgot(world_.now());
  Settle();
}

void SimulatedDaemon::EndTurn() {
  Settle();
  core_.EndTurn(world_.now());
}

void SimulatedDaemon::NodeMessageCame(NodeNumber from, NodeMessage& message) {
  if (auto* routed = std::get_if<RoutedAcross>(&message)) world_.MentionsCame(routed->payload);
  core_.NodeMessageCame(from, message, world_.now());
  Settle();
}

void SimulatedDaemon::NodeIsGone(NodeNumber node, const std::string& why) {
  core_.NodeIsGone(node, why, world_.now());
  Settle();
}

void SimulatedDaemon::ChannelConnected(ProcessId submitter, ProcessId worker, bool dialled, StreamPointer stream) {
  const ProcessId own = dialled ? submitter : worker;
  const int side = dialled ? SimulatedStream::kDialler : SimulatedStream::kListener;
  bool used = false;
  auto use = [&](uint32_t) {
    if (!world_.Alive(own)) return;  // and its end closes the connection
    used = true;
    SimulatedChannel* channel = world_.OpenChannel(submitter, worker);
    if (channel->stream != stream) {
      channel->stream = stream;
      channel->tasks.clear();
      channel->replies.clear();
      channel->asked.clear();
    }
    if (dialled) {
      stream->side[side].closed = [this, submitter, channel, stream](bool) {
        SimulatedProcess* simulated = world_.Find(submitter);
        if (simulated->alive && channel->stream == stream) simulated->ChannelEnded(*channel);
      };
    }
    const ProcessId other = dialled ? worker : submitter;
    Send(own, ChannelOpened{.peer = other, .first_side = static_cast<uint8_t>(dialled ? 1 : 0)}, {});
  };
  core_.ChannelConnected(submitter, worker, dialled, stream ? "" : "nobody answers", use, world_.now());
  if (stream && !used) world_.cluster->network.Close(stream, side);
  Settle();
}

// ---- checks -------------------------------------------------------------------------------------------------------

void SimulatedDaemon::NoteLosses(ProcessId id) {
  auto found = inboxes_.find(id);
  if (found == inboxes_.end()) return;
  for (const Incoming& incoming : found->second.messages) {
    world_.coverage.Met(HappeningOf(incoming.message), FaultKind::kCrash);
  }
}

void SimulatedDaemon::CheckRest() {
  if (scheduler().lease_count() != 0) world_.Fail("at rest, leases are still held");
  if (scheduler().actor_count() != 0) world_.Fail("at rest, the scheduler still knows actors");
  if (!(scheduler().free() == all_free_)) world_.Fail("at rest, free resources are not all resources");
  for (const auto& [id, process] : core_.processes().all()) {
    if (!inboxes_[id].messages.empty()) world_.Fail("at rest, messages to the daemon lie unread");
    if (scheduler().ShapesOf(id) != 0) world_.Fail("at rest, process " + ToString(id) + " still requests leases");
    auto* simulated = world_.Find(id);
    if (simulated == nullptr || !simulated->alive) world_.Fail("at rest, the daemon believes in a dead process");
  }
}

std::string SimulatedDaemon::Describe() const {
  std::string text =
      "daemon " + std::to_string(self_.value) + ": " + std::to_string(scheduler().lease_count()) + " leases, free";
  for (const auto& [name, amount] : scheduler().free().amounts()) {
    text.append(" ").append(FormatAmount(amount)).append(" ").append(name);
  }
  text += scheduler().demand() ? ", demand" : "";
  for (const auto& [driver, job] : core_.jobs()) {
    text += ", job " + std::to_string(driver.value) + " workers starting " + std::to_string(job.pool->starting()) +
            " ready " + std::to_string(job.pool->ready()) + (job.pool->gave_up() ? ", gave up starting" : "");
  }
  text += "\n";
  for (const ActorInfo& actor : directory().Describe()) {
    text += "  actor " + std::to_string(actor.actor.owner.value) + "/" + std::to_string(actor.actor.index) + " state " +
            std::to_string(actor.state) + " incarnation " + std::to_string(actor.incarnation) + " worker " +
            std::to_string(actor.worker.value) + (actor.detached ? " detached " : " ") + actor.name +
            (actor.why.empty() ? "" : ": " + actor.why) + "\n";
  }
  for (const auto& [id, process] : core_.processes().all()) {
    text += "  process " + std::to_string(id.value) + (process.ready() ? " ready" : " not ready");
    if (scheduler().IsLeased(id)) text += " leased";
    if (scheduler().IsLending(id)) text += " lending";
    auto inbox = inboxes_.find(id);
    text += ", requests and leases in " + std::to_string(scheduler().ShapesOf(id)) + " shapes, unread " +
            std::to_string(inbox == inboxes_.end() ? 0 : inbox->second.messages.size()) + "\n";
  }
  return text;
}

}  // namespace weft::core
