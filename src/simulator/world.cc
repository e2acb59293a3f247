#include "simulator/world.h"

#include <algorithm>
#include <cstdio>

#include "simulator/simulated_cluster.h"
#include "simulator/simulated_daemon.h"
#include "simulator/simulated_process.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;

bool Is(const SimulatedValue& value, std::string_view error) {
  return value.kind == ValueKind::kSystemError && value.bytes.starts_with(error);
}

std::string Text(ObjectId id) { return std::to_string(id.owner.value) + "/" + std::to_string(id.index); }

}  // namespace

World::World(const SimulationOptions& the_options) : options(the_options), random(the_options.seed * 7919 + 17) {
  workload = options.cluster ? DrawClusterWorkload(random) : DrawWorkload(random);
  tasks_left = workload.tasks;
  actors_left = workload.actors;
  holders_left = workload.holders;
  // Rough in different ways; some calm, so that order itself is tested.
  calm = random.Chance(10);
  tail_percent = calm ? 0 : static_cast<uint32_t>(random.Below(4) * 3);
  tail_ns = random.Chance(50) ? 2 * kMs : 30 * kMs;
  refuse_percent = calm ? 0 : static_cast<uint32_t>(random.Below(3) * 4);
  hand_back_percent = calm ? 0 : static_cast<uint32_t>(random.Below(3) * 3);
  forget_percent = calm ? 0 : static_cast<uint32_t>(random.Below(3) * 5);
  fail_start_percent = calm ? 0 : static_cast<uint32_t>(random.Below(4) * random.Below(12));
  asynchronous = random.Chance(40);
  room = random.Chance(40) ? 2 + random.Below(6) : 300;
  most_pushed = random.Chance(50) ? 2 + random.Below(12) : 256;
  first_look_ns = random.Chance(30) ? 200 * kMs : static_cast<int64_t>(kMs / 50 + random.Below(10 * kMs));
  if (random.Chance(workload.call_share >= 60 ? 80 : 40)) {
    // Much changes while somebody asks around.
    first_look_ns = static_cast<int64_t>(kMs / 50 + random.Below(kMs / 5));
    slow_answer_ns = kMs / 5 + static_cast<int64_t>(random.Below(random.Chance(70) ? kMs : 10 * kMs));
  }
  if (!calm) {
    uint64_t crashes = random.Below(12);
    for (uint64_t i = 0; i < crashes; ++i) {
      planned_crashes_.push_back({static_cast<CrashPoint>(random.Below(static_cast<uint64_t>(CrashPoint::kCount))),
                                  static_cast<uint32_t>(random.Below(random.Chance(50) ? 10 : 150))});
    }
    uint64_t faults = random.Below(16);
    for (uint64_t i = 0; i < faults; ++i) {
      // The rare ones need a plan most.
      if (workload.long_pause && i < 2) {
        planned_faults_.push_back({static_cast<FaultKind>(random.Below(3)), Happening::kExit, 0});
        continue;
      }
      if (workload.cancel_share > 0 && i == 4) {
        planned_faults_.push_back({static_cast<FaultKind>(random.Below(3)), Happening::kCancelled, 0});
        continue;
      }
      if (workload.actors > 0 && i < 4) {
        constexpr Happening kRare[] = {Happening::kPlaceActor,    Happening::kWatchActor,   Happening::kCancelled,
                                       Happening::kActorExiting,  Happening::kExited,       Happening::kReleaseActor,
                                       Happening::kKillActor,     Happening::kCancelObject, Happening::kCancelTask,
                                       Happening::kRetryableError};
        planned_faults_.push_back({static_cast<FaultKind>(random.Below(3)), kRare[random.Below(std::size(kRare))], 0});
        continue;
      }
      planned_faults_.push_back({static_cast<FaultKind>(random.Below(3)),
                                 static_cast<Happening>(random.Below(static_cast<uint64_t>(Happening::kChannelLost))),
                                 static_cast<uint32_t>(random.Below(random.Chance(60) ? 3 : 60))});
    }
  }
  if (options.cluster) {
    cluster = std::make_unique<SimulatedCluster>(*this);
    return;
  }
  daemons[NodeNumber{}] = std::make_unique<SimulatedDaemon>(*this);
  driver = ProcessId{1};
  processes[driver] = std::make_unique<SimulatedProcess>(*this, driver, true);
}

World::~World() = default;

// ---- time and chance ----------------------------------------------------------------------------------------------

int64_t World::Delay() {
  if (faulty() && random.Chance(tail_percent))
    return static_cast<int64_t>(random.Below(static_cast<uint64_t>(tail_ns)));
  return static_cast<int64_t>(200 + random.Below(5'000));
}

int64_t World::LongDelay() {
  return Delay() + static_cast<int64_t>(random.Below(random.Chance(70) ? 100'000 : 3 * kMs));
}

void World::Note(const char* what, uint64_t a, uint64_t b, uint64_t c) {
  auto mix = [this](uint64_t n) { trace_hash = (trace_hash ^ n) * 0x100000001b3ull; };
  mix(static_cast<uint64_t>(now()));
  for (const char* at = what; *at != '\0'; ++at) mix(static_cast<uint64_t>(*at));
  mix(a);
  mix(b);
  mix(c);
  if (options.print_trace) {
    std::printf("%12.6f ms  %-16s %llu %llu %llu\n", static_cast<double>(now()) / 1e6, what,
                static_cast<unsigned long long>(a), static_cast<unsigned long long>(b),
                static_cast<unsigned long long>(c));
  }
}

void World::Fail(const std::string& why) {
  std::string text = why + "\nat " + std::to_string(static_cast<double>(now()) / 1e6) + " ms, event " +
                     std::to_string(queue.executed()) + "\n" + Dump();
  throw SimulationFailed{text};
}

void World::Later(SimulatedProcess* process, int64_t delay_ns, Happening reason, std::function<void()> what) {
  queue.At(now() + delay_ns, [this, process, reason, what = std::move(what)] { RunIn(process, reason, what); });
}

void World::RunIn(SimulatedProcess* process, Happening reason, const std::function<void()>& what) {
  if (!process->alive) return;
  if (process->frozen) {
    process->held_back.push_back([this, process, reason, what] { RunIn(process, reason, what); });
    return;
  }
  int64_t paused = process->paused_until_ns;
  // Its daemon goes on first.
  if (cluster) paused = std::max(paused, cluster->PausedUntil(process->id) + 1);
  if (paused > now()) {
    if (reason != Happening::kCount) coverage.Met(reason, FaultKind::kPause);
    queue.At(paused, [this, process, reason, what] { RunIn(process, reason, what); });
    return;
  }
  last_activity_ns = now();
  if (cluster) cluster->CheckMayRun(*process);
  try {
    what();
    process->AfterEvent();
  } catch (const ProcessCrashed&) {
  }
  if (++checks_ % 8 == 0) CheckHeld();
}

// ---- faults -------------------------------------------------------------------------------------------------------

bool World::CrashesAt(CrashPoint point) {
  if (!faulty()) return false;
  for (size_t i = 0; i < planned_crashes_.size(); ++i) {
    if (planned_crashes_[i].point != point) continue;
    if (planned_crashes_[i].after-- > 0) continue;
    planned_crashes_.erase(planned_crashes_.begin() + static_cast<ptrdiff_t>(i));
    coverage.Crashed(point);
    return true;
  }
  return false;
}

int64_t World::Sent(Happening happening, SimulatedProcess* sender, SimulatedProcess* receiver) {
  coverage.Met(happening);
  if (!faulty()) return 0;
  for (size_t i = 0; i < planned_faults_.size(); ++i) {
    if (planned_faults_[i].happening != happening || planned_faults_[i].after-- > 0) continue;
    FaultKind kind = planned_faults_[i].kind;
    planned_faults_.erase(planned_faults_.begin() + static_cast<ptrdiff_t>(i));
    coverage.Met(happening, kind);
    int64_t duration = kMs + static_cast<int64_t>(random.Below(30 * kMs));
    Note("fault", static_cast<uint64_t>(kind), static_cast<uint64_t>(happening));
    if (kind == FaultKind::kDelay) return duration;
    if (kind == FaultKind::kPause) {
      if (receiver) {
        receiver->paused_until_ns = now() + duration;
      } else if (SimulatedDaemon* daemon = DaemonOf(sender->id)) {
        daemon->Pause(now() + duration);
      }
      return 0;
    }
    SimulatedProcess* victim =
        receiver && !receiver->is_driver() && (random.Chance(50) || !sender || sender->is_driver()) ? receiver : sender;
    if (victim && !victim->is_driver()) {
      queue.At(now() + static_cast<int64_t>(random.Below(20'000)), [victim] {
        if (victim->alive) victim->Die();
      });
    }
    return 0;
  }
  return 0;
}

void World::Handled(Happening happening, int64_t sent_ns) {
  if (now() - sent_ns > 2 * kMs) coverage.Met(happening, FaultKind::kDelay);
}

void World::ScheduleFaults() {
  auto any_time = [this] {
    return static_cast<int64_t>(random.Below(static_cast<uint64_t>((random.Chance(50) ? 40 : 400) * kMs)));
  };
  auto any_process = [this]() -> SimulatedProcess* {
    if (processes.empty()) return nullptr;  // no node has joined yet
    auto at = processes.begin();
    std::advance(at, static_cast<ptrdiff_t>(random.Below(processes.size())));
    return at->second.get();
  };
  if (planned_crashes_.empty() && planned_faults_.empty()) return;  // calm
  for (uint64_t i = random.Below(4); i > 0; --i) {
    queue.At(any_time(), [this, any_process] {
      SimulatedProcess* process = any_process();
      if (!process || !faulty() || !process->alive) return;
      Note("pause", process->id.value);
      process->paused_until_ns = now() + static_cast<int64_t>(random.Below(80 * kMs));
    });
  }
  for (uint64_t i = random.Below(4); i > 0; --i) {
    queue.At(any_time(), [this, any_process] {
      SimulatedProcess* process = any_process();
      if (!process || !faulty() || !process->alive || process->is_driver()) return;
      coverage.Crashed(CrashPoint::kIdle);
      process->Die();
    });
  }
  for (uint64_t i = random.Below(3); i > 0; --i) {
    queue.At(any_time(), [this] {
      for (auto& [node, daemon] : daemons) {
        if (faulty() && !daemon->ended()) daemon->RecallEverything();
      }
    });
  }
  for (uint64_t i = random.Below(7); i > 0; --i) {
    queue.At(any_time(), [this, any_process] {
      SimulatedProcess* process = any_process();
      if (!process) return;
      // Rather one that is in the middle of something.
      for (int tries = 0; tries < 10 && !process->busy(); ++tries) process = any_process();
      for (int tries = 0; tries < 10 && !(process->busy() && process->actor()); ++tries) {
        SimulatedProcess* other = any_process();
        if (other->busy() && other->actor()) process = other;
      }
      SimulatedDaemon* daemon = DaemonOf(process->id);
      if (faulty() && !process->is_driver() && daemon) daemon->DeclareDeadAlive(process->id);
    });
  }
  if (random.Chance(30)) {
    queue.At(any_time(), [this] {
      if (daemons.empty()) return;
      auto at = daemons.begin();
      if (daemons.size() > 1) std::advance(at, static_cast<ptrdiff_t>(random.Below(daemons.size())));
      if (faulty()) at->second->Pause(now() + static_cast<int64_t>(random.Below(50 * kMs)));
    });
  }
}

void World::Heal() {
  if (healed) return;
  healed = true;
  healed_ns = now();
  Note("healed");
  for (auto& [node, daemon] : daemons) daemon->Pause(0);
  for (auto& [id, process] : processes) process->paused_until_ns = 0;
  if (cluster) cluster->Heal();
}

// ---- processes ----------------------------------------------------------------------------------------------------

SimulatedProcess* World::Find(ProcessId id) {
  auto found = processes.find(id);
  return found == processes.end() ? nullptr : found->second.get();
}

SimulatedDaemon* World::DaemonOf(NodeNumber node) {
  auto found = daemons.find(node);
  return found == daemons.end() || found->second->ended() ? nullptr : found->second.get();
}

SimulatedDaemon* World::DaemonOf(ProcessId id) { return DaemonOf(NodeOf(id)); }

bool World::Alive(ProcessId id) {
  SimulatedProcess* process = Find(id);
  return process && process->alive;
}

bool World::Trusted(ProcessId id) {
  SimulatedProcess* process = Find(id);
  return process && process->alive && !process->doomed && !process->buried;
}

SimulatedChannel* World::OpenChannel(ProcessId submitter, ProcessId worker) {
  auto& channel = channels[{submitter, worker}];
  if (!channel) {
    channel = std::make_unique<SimulatedChannel>();
    channel->submitter = submitter;
    channel->worker = worker;
    channel->asynchronous = asynchronous || IsFar(*channel);
    channel->task_room = room;
    channel->reply_room = room < 100 ? 1 + room / 3 : room;
  }
  return channel.get();
}

bool World::IsFar(const SimulatedChannel& channel) const { return NodeOf(channel.submitter) != NodeOf(channel.worker); }

void World::SendAcross(SimulatedChannel& channel, ProcessId from, std::function<void()> arrives) {
  const int side = from == channel.submitter ? SimulatedStream::kDialler : SimulatedStream::kListener;
  // Into a stream that has been replaced, nothing arrives any more.
  cluster->network.Send(channel.stream, side, {[&channel, stream = channel.stream, arrives = std::move(arrives)] {
                          if (channel.stream == stream) arrives();
                        }});
}

void World::SendReply(SimulatedChannel& channel, SimulatedReply reply, int64_t delay_ns, int64_t extra_ns) {
  SimulatedProcess* receiver = Find(channel.submitter);
  std::vector<std::pair<ObjectId, ProcessId>> handed;
  for (const auto& value : reply.values) {
    for (ObjectId contained : value.contained) handed.emplace_back(contained, channel.submitter);
  }
  auto arrives = [&channel, receiver, reply = std::move(reply), delay_ns, extra_ns] {
    channel.replies.push_back(reply);
    if (receiver->alive) receiver->WakeDrain(delay_ns, extra_ns);
  };
  if (!IsFar(channel)) return arrives();
  crossing.insert(handed.begin(), handed.end());
  SendAcross(channel, channel.worker, [this, handed = std::move(handed), arrives = std::move(arrives)] {
    for (const auto& pair : handed) crossing.erase(crossing.find(pair));
    arrives();
  });
}

void World::MentionsSent(std::string_view routed) {
  std::vector<PeerMessage> messages;
  DecodePeerMessages(routed, messages);
  for (const PeerMessage& m : messages) {
    if (m.kind == PeerMessageKind::kAddBorrower) crossing.insert({m.id, m.process});
  }
}

void World::MentionsCame(std::string_view routed) {
  std::vector<PeerMessage> messages;
  DecodePeerMessages(routed, messages);
  for (const PeerMessage& m : messages) {
    if (m.kind == PeerMessageKind::kAddBorrower) crossing.erase(crossing.find({m.id, m.process}));
  }
}

void World::CloseChannel(SimulatedChannel& channel, ProcessId by) {
  if (!channel.stream) return;
  cluster->network.Close(channel.stream,
                         by == channel.submitter ? SimulatedStream::kDialler : SimulatedStream::kListener);
}

// The same value; handles and references that may have led nowhere when it came are left out.
bool World::Same(const SimulatedValue& a, const SimulatedValue& b) const {
  auto certain = [this](std::vector<ObjectId> ids) {
    std::erase_if(ids, [this](ObjectId id) { return Tainted(id) || loose.contains(id); });
    return ids;
  };
  return a.kind == b.kind && a.bytes == b.bytes && certain(a.contained) == certain(b.contained) &&
         (a.kind != ValueKind::kStored || a.location == b.location);
}

// ---- truth --------------------------------------------------------------------------------------------------------

void World::Submit(uint64_t instance, const TaskSpec& spec, ProcessId submitter, const std::vector<Object*>& returns,
                   const Submission& submission) {
  Submitted& task = tasks[instance];
  task.spec = spec;
  task.submitter = submitter;
  for (Object* object : returns) {
    objects[object->id] = {.instance = instance, .number = static_cast<uint32_t>(task.returns.size())};
    task.returns.push_back(object->id);
  }
  for (Object* object : submission.dependencies) task.dependencies.push_back(object->id);
  for (Object* object : submission.contained) task.contained.push_back(object->id);
}

void World::Put(ObjectId id, SimulatedValue value) { objects[id] = {.resolved = true, .outcome = std::move(value)}; }

void World::BodyStarted(const SimulatedTask& frame, SimulatedProcess& worker) {
  Submitted& task = tasks.at(frame.instance);
  const std::string name = "the body of task " + std::to_string(frame.instance);
  ++task.starts;
  if (task.spec.max_retries >= 0 && task.starts > 1 + static_cast<uint32_t>(task.spec.max_retries)) {
    Fail(name + " with max_retries=" + std::to_string(task.spec.max_retries) + " started " +
         std::to_string(task.starts) + " times");
  }
  if (task.finished && Trusted(worker.id)) Fail(name + " started after its end");
  if (frame.kind == TemplateKind::kCreation) return ConstructorStarted(frame, worker);
  if (frame.kind == TemplateKind::kCall) return CallStarted(frame, worker);
  if (!Trusted(worker.id) || !Trusted(task.submitter)) return;
  LeasedWorker* leased = Find(task.submitter)->owner.FindWorker(worker.id);
  if (!leased || !leased->leased ||
      DaemonOf(worker.id)->scheduler().WorkerOf(leased->lease, task.submitter) != worker.id) {
    Fail("a task runs on a worker that its submitter has not leased");
  }
}

void World::Produced(const SimulatedReply& reply, SimulatedProcess& worker) {
  tasks.at(reply.instance).produced[worker.id] = reply;
}

// The owner told others that a call of its own had failed, and died before it noted it itself.
bool World::MayHaveEndedSo(const KnownObject& object, ProcessId owner, const SimulatedValue& value) {
  const auto task = tasks.find(object.instance);
  return !object.resolved && !Alive(owner) && value.kind == ValueKind::kSystemError && task != tasks.end() &&
         task->second.spec.kind == TemplateKind::kCall && WhyCallMayNotFailSo(task->second, value).empty();
}

void World::CheckOutcome(Submitted& task, uint32_t i, const SimulatedValue& value) {
  KnownObject& known = objects.at(task.returns[i]);
  if (known.resolved) Fail("object " + Text(task.returns[i]) + " has two outcomes");
  known.resolved = true;
  known.outcome = value;
  Note("outcome", task.returns[i].owner.value, task.returns[i].index, static_cast<uint64_t>(value.kind));
  if (!Trusted(task.submitter)) return;
  auto wrong = [&](const std::string& why) {
    Fail("object " + Text(task.returns[i]) + " of task " + std::to_string(known.instance) + " ended wrongly: " + why +
         "; it is " + value.bytes.substr(0, 200));
  };
  uint32_t attempts = task.lost + task.raised;
  bool exhausted = task.spec.max_retries >= 0 && attempts == static_cast<uint32_t>(task.spec.max_retries) + 1;
  bool of_dependency = false;
  for (ObjectId id : task.dependencies) {
    auto dependency = objects.find(id);
    if (dependency == objects.end()) continue;
    of_dependency = of_dependency || (dependency->second.resolved && dependency->second.outcome.kind == value.kind &&
                                      dependency->second.outcome.bytes == value.bytes);
    of_dependency = of_dependency || dependency->second.vanished;
    of_dependency = of_dependency || MayHaveEndedSo(dependency->second, id.owner, value);
    of_dependency = of_dependency || (Is(value, "OwnerDiedError") && !Trusted(id.owner)) || Tainted(id);
  }
  switch (value.kind) {
    case ValueKind::kPending:
      wrong("pending");
      break;
    case ValueKind::kInline:
    case ValueKind::kStored:
      if (!task.replied || task.reply.kind != ReplyKind::kValues || i >= task.reply.values.size()) {
        wrong("no body returned it");
      }
      if (!Same(task.reply.values[i], value)) wrong("its body returned something else");
      if (task.actor && task.starts_in[task.replied_in] != 1) wrong("it ran twice in one incarnation of its actor");
      if (value.kind == ValueKind::kInline && value.bytes != ValueBytes(task.spec.number, i))
        wrong("not its own value");
      break;
    case ValueKind::kTaskError:
      if (of_dependency) break;
      if (!task.replied || task.reply.error != value.bytes) wrong("no body raised it");
      if (task.reply.kind == ReplyKind::kRetryableError && !exhausted && !task.cancel_asked)
        wrong("it was not tried again as asked");
      break;
    case ValueKind::kSystemError:
      if (of_dependency) break;
      if (Is(value, "UnschedulableError") && value.bytes.find("its actor can never start") != std::string::npos) {
        if (!task.actor || !actors.at(task.actor).dead || task.starts > 0) wrong("its actor was not refused");
      } else if (Is(value, "UnschedulableError")) {
        if (task.spec.satisfiable && !task.spec.unsendable && !gave_up_starting) wrong("it could have run");
      } else if (Is(value, "WorkerCrashedError")) {
        if (task.lost == 0 || !exhausted) wrong("it should have been tried again");
      } else if (Is(value, "TaskCancelledError")) {
        if (!task.cancel_asked) wrong("nobody cancelled it");
      } else if (task.spec.kind == TemplateKind::kCall) {
        if (std::string why = WhyCallMayNotFailSo(task, value); !why.empty()) wrong(why);
      } else {
        wrong("there is no reason for it");
      }
      break;
  }
}

void World::CheckRead(SimulatedProcess& reader, ObjectId id, const SimulatedValue& value) {
  if (!Trusted(reader.id) || Tainted(id)) return;
  if (value.kind == ValueKind::kStored) CheckStored(reader, value.location, "read");
  if (Is(value, "OwnerDiedError") && !Trusted(id.owner)) return;
  auto found = objects.find(id);
  if (found == objects.end()) Fail("a value of an unknown object was read");
  const KnownObject& known = found->second;
  if (known.resolved) {
    if (!Same(known.outcome, value)) {
      Fail("process " + std::to_string(reader.id.value) + " read object " + Text(id) + " as '" +
           value.bytes.substr(0, 100) + "', but its outcome was '" + known.outcome.bytes.substr(0, 100) + "'");
    }
    return;
  }
  if (value.kind == ValueKind::kTaskError || value.kind == ValueKind::kSystemError) {
    if (Trusted(id.owner))
      Fail("process " + std::to_string(reader.id.value) + " read an error of " + Text(id) +
           " before its owner: " + value.bytes.substr(0, 200));
    return;
  }
  // The result of an earlier task of the reader's own, or its owner died before anybody else could look.
  const Submitted& task = tasks.at(known.instance);
  for (const auto& [worker, reply] : task.produced) {
    if (Alive(id.owner) && worker != reader.id) continue;
    if (known.number < reply.values.size() && reply.values[known.number].kind == value.kind &&
        reply.values[known.number].bytes == value.bytes) {
      return;
    }
  }
  Fail("process " + std::to_string(reader.id.value) + " read object " + Text(id) + " differently from what was made");
}

void World::CheckStored(SimulatedProcess& reader, const Location& location, const char* what) {
  const StoredRange& range = store.at(location);
  if (range.let_go || range.freed) {
    Fail("process " + std::to_string(reader.id.value) + " " + what + " object " + Text(range.id) +
         ", whose memory was freed");
  }
}

void World::CheckHeld() {
  for (auto& [id, process] : processes) {
    if (!Trusted(id)) continue;
    process->ForEachHandle([&, holder = process.get()](Object* object) {
      if (holder->owner.Find(object->id) != object) {
        Fail("process " + std::to_string(holder->id.value) + " lost the record of an object that it uses");
      }
      ObjectId held = object->id;
      if (Tainted(held)) return;
      // An actor that knows itself does not keep itself, and who found it by name has yet to say so.
      if (IsActor(held) && (actors.at(held).worker == holder->id || loose.contains(held))) return;
      if (object->borrowed && Trusted(held.owner) && !Find(held.owner)->owner.Find(held)) {
        Fail("object " + Text(held) + " was freed while process " + std::to_string(holder->id.value) + " uses it");
      }
      if (object->value.kind() == ValueKind::kStored && Trusted(held.owner)) {
        CheckStored(*holder, object->value.location(), "uses");
      }
    });
  }
}

void World::LetGo(SimulatedProcess& owner, const Location& location) {
  StoredRange& range = store.at(location);
  Note("lets go", owner.id.value, location.offset);
  if (range.let_go) Fail("the memory of object " + Text(range.id) + " was freed twice");
  range.let_go = true;
  CheckHeld();
}

void World::Freed(const Location& location) {
  StoredRange& range = store.at(location);
  if (range.freed) Fail("the memory of object " + Text(range.id) + " was freed twice");
  range.freed = true;
}

std::set<ObjectId> World::Leftovers() {
  std::set<ObjectId> left;
  for (auto& [id, known] : objects) {
    for (auto& [holder, process] : processes) {
      if (process->alive && process->owner.Find(id)) left.insert(id);
    }
  }
  std::set<ObjectId> contained;
  for (ObjectId id : left) {
    const KnownObject& known = objects.at(id);
    contained.insert(known.outcome.contained.begin(), known.outcome.contained.end());
  }
  for (ObjectId id : left) {
    // References in a circle keep each other; and see MentionOrphaned.
    auto mentions = [id](const auto& handed) {
      auto found = handed.lower_bound({id, ProcessId{}});
      return found != handed.end() && found->first == id;
    };
    if (contained.contains(id) || mentions(orphaned) || mentions(crossing)) continue;
    Fail("at rest, object " + Text(id) + " still exists");
  }
  return left;
}

void World::CheckRest() {
  std::set<ObjectId> left = Leftovers();
  for (auto& [id, process] : processes) {
    if (!process->alive) continue;
    std::string who = "at rest, process " + std::to_string(id.value);
    if (process->condemned || process->buried) Fail(who + " was to be killed and was not");
    if (process->owner.live_tasks() != 0) Fail(who + " still has tasks");
    if (process->owner.live_objects() != 0 && left.empty()) Fail(who + " still has objects");
    if (process->owner.AnyLeased()) Fail(who + " still holds leases");
    if (!process->inbox.empty()) Fail(who + " has unread messages");
    for (SimulatedChannel* channel : process->submitters) {
      if (!channel->tasks.empty() && Alive(channel->submitter)) Fail(who + " has unread tasks");
    }
  }
  for (const auto& [location, range] : store) {
    if (range.freed || left.contains(range.id)) continue;
    // What a dead owner left behind, and results that died with their worker, are not freed one by one; nor is what
    // its writer was told to free and did not live to.
    if (!Alive(range.id.owner) || ((!range.delivered || range.let_go) && !Alive(range.writer))) continue;
    Fail("at rest, the memory of object " + Text(range.id) + " is still in use");
  }
  for (auto& [node, daemon] : daemons) {
    if (!daemon->ended()) daemon->CheckRest();
  }
  CheckNames();
  if (cluster) cluster->CheckRest();
}

std::string World::Dump() {
  std::string text = cluster ? cluster->Describe() : "";
  for (auto& [node, daemon] : daemons) {
    if (!daemon->ended()) text += daemon->Describe();
  }
  for (auto& [id, process] : processes) text += process->Describe();
  for (auto& [key, channel] : channels) {
    if (channel->tasks.empty() && channel->replies.empty() && channel->asked.empty()) continue;
    text += "channel " + std::to_string(key.first.value) + "->" + std::to_string(key.second.value) + ": " +
            std::to_string(channel->tasks.size()) + " tasks, " + std::to_string(channel->replies.size()) +
            " replies, " + std::to_string(channel->asked.size()) + " revokes\n";
  }
  return text;
}

}  // namespace weft::core
