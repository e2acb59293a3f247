#include "simulator/simulated_process.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "simulator/simulated_daemon.h"

namespace weft::core {
namespace {

constexpr int64_t kLostNs = 100'000'000;  // a tenth of that in runtime_frames.cc, as all times of a cluster are

}  // namespace

SimulatedValue ValueOf(const Object& object) {
  SimulatedValue value;
  value.kind = object.value.kind();
  if (value.kind == ValueKind::kStored) {
    value.location = object.value.location();
  } else {
    value.bytes = object.value.bytes();
  }
  if (object.contained) {
    for (const Object* inner : *object.contained) value.contained.push_back(inner->id);
  }
  return value;
}

bool IsError(ValueKind kind) { return kind == ValueKind::kTaskError || kind == ValueKind::kSystemError; }

SimulatedProcess::SimulatedProcess(World& the_world, ProcessId the_id, bool driver)
    : world(the_world), id(the_id), owner(the_id), driver_(driver) {
  if (the_id.value % 2 == 0) owner.cores = 2;
  owner.faults = world.options.owner_faults;
  machine.faults = world.options.worker_faults;
  inquiries_.faults.judge_from_one_pass = world.options.judge_from_one_pass;
  inquiries_.set_self(the_id);
  outbox_.gather_bytes = 0;  // it may die between any two of them
  owner.max_pushed = world.most_pushed;
  owner.max_pushed_calls = std::max(world.most_pushed, world.room);
  function_ = owner.InternFunction(Function{.key = {1, 1}, .name = "f"});
}

// ---- life and death -----------------------------------------------------------------------------------------------

void SimulatedProcess::SayReady() {
  world.Later(this, world.Delay(), Happening::kWorkerReady, [this] {
    Send(WorkerReady{});
    Flush();
  });
}

void SimulatedProcess::Die() {
  world.Note("dies", id.value);
  const auto unsent = outbox_.Take();
  NoteLosses(unsent);
  if (!left) world.Helped();
  for (const auto& [message, fds] : unsent) OrphanMentions(message);
  for (const Message& message : sending_) OrphanMentions(message);
  OrphanPushed();
  if (body_ && body_->ended && !body_->replied) OrphanMentions(body_->reply, body_->channel->submitter);
  alive = false;
  DoomLeased(true);
  blocked = false;
  for (SimulatedChannel* channel : workers) world.CloseChannel(*channel, id);
  for (SimulatedChannel* channel : submitters) world.CloseChannel(*channel, id);
  SimulatedDaemon* daemon = world.DaemonOf(id);
  if (daemon && (!buried || world.cluster)) daemon->Died(id);
}

void SimulatedProcess::DoomLeased(bool condemn) {
  for (const LeasedWorker& worker : owner.workers()) {
    SimulatedProcess* process = world.Find(worker.process);
    if (!worker.leased || process == nullptr || !process->alive) continue;
    process->condemned = process->condemned || condemn;
    if (std::exchange(process->doomed, true)) continue;
    process->DoomLeased(false);
  }
}

void SimulatedProcess::Absolve() {
  if (!condemned && !body_ && globals_.empty() && owner.live_objects() == 0) doomed = false;
}

void SimulatedProcess::NoteLosses(const std::vector<Outbox::Entry>& unsent) {
  auto lost = [this](Happening happening) { world.coverage.Met(happening, FaultKind::kCrash); };
  for (const Incoming& incoming : inbox) lost(HappeningOf(incoming.message));
  for (const auto& [message, fds] : unsent) lost(HappeningOf(message));
  auto channel_lost = [&](const SimulatedChannel& channel) {
    for (const SimulatedTask& task : channel.tasks) {
      if (task.state != SimulatedTask::kRevoked) lost(Happening::kTask);
    }
    for (const SimulatedReply& reply : channel.replies) lost(reply.happening());
    if (!channel.asked.empty()) lost(Happening::kRevokeAsked);
  };
  for (const auto* channel : workers) channel_lost(*channel);
  for (const auto* channel : submitters) channel_lost(*channel);
  for (const PendingReply& pending : replies_) lost(pending.reply.happening());
  if (SimulatedDaemon* daemon = world.DaemonOf(id)) daemon->NoteLosses(id);
}

void SimulatedProcess::CrashIf(CrashPoint point) {
  if (driver_ || !world.CrashesAt(point)) return;
  world.Note("crashes at", id.value, static_cast<uint64_t>(point));
  Die();
  throw ProcessCrashed{};
}

void SimulatedProcess::AfterEvent() {
  if (!alive) return;
  ScanFinished();
  owner.CheckInvariants();
  for (const LeasedWorker& worker : owner.workers()) {
    bool leased = worker.leased && !worker.actor;
    if (worker.pushed.size > (leased ? owner.max_pushed : owner.max_pushed_calls))
      world.Fail("a worker was given more tasks than the limit");
  }
  ScheduleTick();
  if (!dropped_.empty()) WakeDrain(world.LongDelay());
  if (body_ && body_->awaited && body_->awaited->resolved() && !body_->resuming) {
    body_->resuming = true;
    ScheduleStep(world.Delay());
  }
  // It leaves when nobody needs it any more; a task or message that ends may be what it waited for.
  if (!body_ && MayLeave()) WakeExecutor();
}

void SimulatedProcess::ForEachHandle(const std::function<void(Object*)>& f) {
  for (Object* object : globals_) f(object);
  if (!body_) return;
  for (Object* object : body_->variables) f(object);
  for (Object* object : body_->handles) f(object);
  for (auto& list : body_->returned) {
    for (Object* object : list) f(object);
  }
}

std::string SimulatedProcess::Describe() {
  std::string text = "process " + std::to_string(id.value) + (driver_ ? " (driver)" : "");
  if (actor_) text.append(" (actor ").append(ToString(actor_)).append(")");
  if (!alive) return text + " is dead\n";
  text += ": live tasks " + std::to_string(owner.live_tasks()) + ", objects " + std::to_string(owner.live_objects()) +
          ", ready " + std::to_string(owner.ready_tasks()) + ", inbox " + std::to_string(inbox.size()) + ", globals " +
          std::to_string(globals_.size()) + (blocked ? ", blocked" : "") + (doomed ? ", doomed" : "") +
          (drain_at_ns_ >= 0 ? ", drains at " + std::to_string(drain_at_ns_) : "") +
          (paused_until_ns > world.now() ? ", paused" : "") + (buried ? ", buried" : "") +
          (exit_asked ? ", asked to exit" : "");
  if (body_) {
    text +=
        ", runs " + std::to_string(body_->task.instance) + " with " + std::to_string(body_->steps_left) + " steps left";
    if (body_->awaited) {
      text += ", waits for object " + std::to_string(body_->awaited->id.owner.value) + "/" +
              std::to_string(body_->awaited->id.index) + (body_->awaited->borrowed ? " (borrowed)" : "");
    }
    if (body_->ended) text += ", has ended";
    if (body_->question != 0) text += ", waits for an answer";
    if (body_->found_stuck) text += ", found itself stuck: " + body_->chain;
  }
  text += "\n";
  for (const LeasedWorker& worker : owner.workers()) {
    if (!worker.leased && worker.pushed.size == 0) continue;
    text += "  worker " + std::to_string(worker.process.value) + ": pushed " + std::to_string(worker.pushed.size) +
            (worker.leased ? " leased" : "") + (worker.recalled ? " recalled" : "") +
            (worker.blocked ? " blocked" : "") + (worker.full ? " full" : "") + (worker.dead ? " dead" : "") + "\n";
  }
  for (auto& [object_id, known] : world.objects) {
    Object* object = owner.Find(object_id);
    if (!object || owner.live_objects() > 10) continue;
    text += "  object " + std::to_string(object_id.owner.value) + "/" + std::to_string(object_id.index) + " kind " +
            std::to_string(static_cast<int>(object->value.kind())) + " local " +
            std::to_string(object->local_references.load()) + " holds " + std::to_string(object->holds) + " mentions " +
            std::to_string(object->registrations) + " borrowers";
    if (object->borrowers) {
      for (auto& [borrower, count] : *object->borrowers) {
        text.append(" ").append(std::to_string(borrower.value)).append(":").append(std::to_string(count));
      }
    }
    text += "\n";
  }
  for (uint64_t instance : pending_) {
    const Submitted& task = world.tasks.at(instance);
    text += "  task " + std::to_string(instance) + " starts " + std::to_string(task.starts) + " lost " +
            std::to_string(task.lost) + " takes";
    for (ObjectId dependency : task.dependencies) {
      text.append(" ").append(ToString(dependency));
      Object* object = owner.Find(dependency);
      text += !object ? "(gone)" : object->resolved() ? "" : "(pending)";
    }
    if (Task* live = owner.FindTask(task.handle)) {
      text += " state " + std::to_string(static_cast<int>(live->state)) + " on " +
              (live->worker < 0 ? "none" : std::to_string(owner.workers()[live->worker].process.value));
    }
    text += "\n";
  }
  return text;
}

// ---- the link thread ----------------------------------------------------------------------------------------------

void SimulatedProcess::Receive(Message message) {
  int64_t extra = world.Sent(HappeningOf(message), nullptr, this);
  if (extra > 0) link_not_before_ns_ = world.now() + extra;
  inbox.push_back({std::move(message), world.now()});
  WakeLink();
}

void SimulatedProcess::WakeLink() {
  if (link_awake_ || inbox.empty()) return;
  link_awake_ = true;
  int64_t at = std::max(world.now() + world.Delay(), link_not_before_ns_);
  world.Later(this, at - world.now(), HappeningOf(inbox.front().message), [this] { Link(); });
}

void SimulatedProcess::Link() {
  link_awake_ = false;
  Incoming incoming = std::move(inbox.front());
  inbox.pop_front();
  WakeLink();
  Happening happening = HappeningOf(incoming.message);
  world.Handled(happening, incoming.sent_ns);
  world.Note("handles", id.value, static_cast<uint64_t>(happening));
  CrashIf(CrashPoint::kOnMessage);
  Handle(incoming.message);
  Perform();
  Flush();
}

SimulatedChannel* SimulatedProcess::ChannelTo(ProcessId worker) {
  for (SimulatedChannel* channel : workers) {
    if (channel->worker == worker) return channel;
  }
  return nullptr;
}

void SimulatedProcess::Handle(Message& message) {
  if (auto* m = std::get_if<ChannelOpened>(&message)) {
    if (m->first_side) {
      SimulatedChannel* channel = world.OpenChannel(id, m->peer);
      if (std::find(workers.begin(), workers.end(), channel) == workers.end()) workers.push_back(channel);
    } else {
      SimulatedChannel* channel = world.OpenChannel(m->peer, id);
      if (std::find(submitters.begin(), submitters.end(), channel) == submitters.end()) submitters.push_back(channel);
      WakeExecutor();
    }
  } else if (auto* m = std::get_if<LeaseGranted>(&message)) {
    world.Note("granted", m->worker.value, m->lease.value, owner.InternShape(m->shape));
    owner.LeaseGranted(owner.InternShape(m->shape), m->lease, m->worker, world.now(), actions_);
    if (doomed || buried) DoomLeased(buried);
  } else if (auto* m = std::get_if<ActorChanged>(&message)) {
    auto state = static_cast<ActorState>(m->state);
    if (state == ActorState::kDead || state == ActorState::kRestarting) world.Helped();
    bool has_worker = state == ActorState::kStarting || state == ActorState::kAlive;
    if (has_worker && !ChannelTo(m->worker)) world.Fail("an actor's worker was named without a channel");
    owner.ActorReported(*m, world.now(), actions_);
  } else if (auto* m = std::get_if<ActorAnswer>(&message)) {
    answers_[m->request] = *m;
    if (body_ && body_->question == m->request) ScheduleStep(world.Delay());
  } else if (auto* m = std::get_if<ShapeAnswer>(&message)) {
    inquiries_.ShapeAnswered(m->request, m->fact);
  } else if (auto* m = std::get_if<LeaseRecalled>(&message)) {
    owner.LeaseRecalled(m->lease, actions_);
  } else if (auto* m = std::get_if<LeaseRefused>(&message)) {
    owner.LeaseRefused(owner.InternShape(m->shape), m->why, actions_);
  } else if (auto* m = std::get_if<ProcessDied>(&message)) {
    if (SimulatedProcess* dead = world.Find(m->process); !dead || !dead->left) world.Helped();
    std::vector<uint64_t> unanswered;
    if (SimulatedChannel* channel = ChannelTo(m->process)) {
      DrainChannel(*channel);  // what the dead had replied still counts
      if (LeasedWorker* worker = owner.FindWorker(m->process); worker && !worker->dead) {
        for (Task* task = worker->pushed.first; task; task = task->next) {
          if (task->state == TaskState::kRevoking) unanswered.push_back(task->handle);
        }
      }
    }
    known_dead_.insert(m->process);
    // A socket tells of its end before or after the daemon does.
    bool before = world.random.Chance(50);
    auto answer = [&] {
      for (uint64_t task : unanswered) {
        LeasedWorker* worker = owner.FindWorker(m->process);
        if (worker->dead) {
          if (Task* live = owner.FindTask(task); live && live->state == TaskState::kRevoking) NoteLost(*live);
        }
        owner.RevokeResolved(task, false, world.now(), actions_);
        Perform();
      }
    };
    if (before) answer();
    owner.ProcessDied(m->process, m->how, world.now(), actions_);
    Perform();
    if (!before) answer();
    inquiries_.AbandonAll();
  } else if (auto* m = std::get_if<Routed>(&message)) {
    if (SimulatedChannel* channel = ChannelTo(m->from)) DrainChannel(*channel);
    std::vector<PeerMessage> messages;
    if (!DecodePeerMessages(m->payload, messages)) world.Fail("a message between processes does not decode");
    for (PeerMessage& inner : messages) {
      HandlePeerMessage(m->from, inner);
      Perform();
    }
  } else if (auto* m = std::get_if<ObjectsFreed>(&message)) {
    for (const Location& location : m->locations) world.Freed(location);
  } else if (std::get_if<Exit>(&message)) {
    exit_asked = true;
    WakeExecutor();
  }
}

void SimulatedProcess::HandlePeerMessage(ProcessId from, const PeerMessage& m) {
  switch (m.kind) {
    case PeerMessageKind::kAddBorrower:
    case PeerMessageKind::kRemoveBorrower: {
      if (world.IsActor(m.id) && world.actors.at(m.id).worker == m.process) world.loose.insert(m.id);
      if (!Excused(m.id, from) && !owner.Find(m.id) && world.Trusted(from) && world.Trusted(m.process)) {
        world.Fail("process " + std::to_string(from.value) + " speaks of object " + std::to_string(m.id.index) +
                   " of " + std::to_string(id.value) + ", which was freed");
      }
      auto count = static_cast<int64_t>(m.count);
      owner.BorrowsChanged(m.id, m.process, m.kind == PeerMessageKind::kAddBorrower ? count : -count, actions_);
      break;
    }
    case PeerMessageKind::kAskValue:
      owner.ValueAsked(m.id, from, actions_);
      break;
    case PeerMessageKind::kCancelObject:
      if (Object* object = owner.Find(m.id); object && !object->borrowed) {
        CancelOwned(object, (m.count & 1) != 0, (m.count & 2) != 0);
      }
      break;
    case PeerMessageKind::kCancelTask:
      CancelRunning(from, m.id.index, (m.count & 1) != 0, (m.count & 2) != 0);
      break;
    case PeerMessageKind::kValue: {
      ReturnedValue value{.kind = static_cast<ValueKind>(m.value_kind),
                          .bytes = m.bytes,
                          .location = m.location,
                          .contained = m.contained};
      owner.ValueReceived(m.id, value, actions_);
      break;
    }
    case PeerMessageKind::kAskWhy:
      AnswerWhy(from, m.id, m.count);
      break;
    case PeerMessageKind::kWhy:
      inquiries_.WhyAnswered(m.count, m.id, m.bytes);
      break;
    case PeerMessageKind::kHandOver:
    case PeerMessageKind::kNotYet:    // never: simulated waits lend at once
    case PeerMessageKind::kAskAgain:  // never: all simulated processes are on one node
    case PeerMessageKind::kAfter:
      break;
  }
}

// Its worker is most likely dead, and the daemon says so in a moment. If not, only the connection is.
void SimulatedProcess::ChannelEnded(SimulatedChannel& channel) {
  world.Later(this, kLostNs, Happening::kCount, [this, worker = channel.worker] {
    if (known_dead_.contains(worker)) return;
    Send(ChannelLost{.worker = worker});
    Flush();
  });
}

void SimulatedProcess::Flush() {
  if (!outbox_.any()) return;
  CrashIf(CrashPoint::kBeforeSend);
  for (auto& [message, fds] : outbox_.Take()) sending_.push_back(std::move(message));
  while (!sending_.empty()) {
    Message message = std::move(sending_.front());
    sending_.pop_front();
    if (buried) OrphanMentions(message);
    if (SimulatedDaemon* daemon = world.DaemonOf(id)) daemon->Send(id, std::move(message));
    CrashIf(CrashPoint::kAfterSend);
  }
}

void SimulatedProcess::OrphanMentions(const Message& message) {
  auto* route = std::get_if<RouteTo>(&message);
  if (!route) return;
  std::vector<PeerMessage> inner;
  DecodePeerMessages(route->payload, inner);
  for (const PeerMessage& m : inner) {
    for (ObjectId contained : m.contained) world.MentionOrphaned(contained, route->to);
    // What was handed to an actor, or taken back from one, and its owner does not hear of it.
    SimulatedProcess* receiver = m.process == id ? nullptr : world.Find(m.process);
    if (!receiver || !receiver->actor_) continue;
    if (m.kind == PeerMessageKind::kAddBorrower) world.Taint(m.id);
    if (m.kind == PeerMessageKind::kRemoveBorrower) world.MentionOrphaned(m.id, m.process);
  }
}

// Calls that it had pushed to actors, which live on: what was revoked or handed back is not taken back any more.
void SimulatedProcess::OrphanPushed() {
  for (const LeasedWorker& worker : owner.workers()) {
    for (const Task* task = worker.leased ? nullptr : worker.pushed.first; task; task = task->next) {
      if (!task->borrowed_by_worker) continue;
      for (const Object* object : *task->borrowed_by_worker) world.MentionOrphaned(object->id, worker.process);
    }
  }
}

void SimulatedProcess::OrphanMentions(const SimulatedReply& reply, ProcessId submitter) {
  for (const SimulatedValue& value : reply.values) {
    for (ObjectId contained : value.contained) world.MentionOrphaned(contained, submitter);
  }
}

}  // namespace weft::core
