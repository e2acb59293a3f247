#include "simulator/simulated_process.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "simulator/simulated_daemon.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kHandBackAfterNs = kMs;
constexpr int64_t kRetryReplyNs = 100'000;
constexpr size_t kMostVariables = 12;

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

}  // namespace

SimulatedProcess::SimulatedProcess(World& the_world, ProcessId the_id, bool driver)
    : world(the_world), id(the_id), owner(the_id), driver_(driver) {
  owner.faults = world.options.owner_faults;
  machine.faults = world.options.worker_faults;
  owner.max_pushed = world.most_pushed;
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
  NoteLosses();
  for (const Message& message : routed_outbox_) OrphanMentions(message);
  for (const Message& message : sending_) OrphanMentions(message);
  if (body_ && body_->ended && !body_->replied) OrphanMentions(body_->reply, body_->channel->submitter);
  alive = false;
  DoomLeased(true);
  blocked = false;
  if (!buried) world.daemon->Died(id);
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

void SimulatedProcess::NoteLosses() {
  auto lost = [this](Happening happening) { world.coverage.Met(happening, FaultKind::kCrash); };
  for (const Incoming& incoming : inbox) lost(HappeningOf(incoming.message));
  for (const Message& message : outbox_) lost(HappeningOf(message));
  for (const Message& message : routed_outbox_) lost(HappeningOf(message));
  if (!free_outbox_.empty()) lost(Happening::kFreeObjects);
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
  world.daemon->NoteLosses(id);
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
    if (worker.pushed.size > owner.max_pushed) world.Fail("a worker was given more tasks than the limit");
  }
  ScheduleTick();
  if (!dropped_.empty()) WakeDrain(world.LongDelay());
  if (body_ && body_->awaited && body_->awaited->resolved() && !body_->resuming) {
    body_->resuming = true;
    ScheduleStep(world.Delay());
  }
  // It leaves when nobody needs it any more; a task or message that ends may be what it waited for.
  if (exit_asked && !body_ && owner.live_tasks() == 0 && !owner.AnyBorrowed()) WakeExecutor();
}

void SimulatedProcess::ForEachHandle(const std::function<void(Object*)>& f) {
  for (Object* object : globals_) f(object);
  if (!body_) return;
  for (Object* object : body_->variables) f(object);
  for (auto& list : body_->returned) {
    for (Object* object : list) f(object);
  }
}

std::string SimulatedProcess::Describe() {
  std::string text = "process " + std::to_string(id.value) + (driver_ ? " (driver)" : "");
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
            std::to_string(object->mentions) + " borrowers";
    if (object->borrowers) {
      for (auto& [borrower, count] : *object->borrowers) {
        text += " " + std::to_string(borrower.value) + ":" + std::to_string(count);
      }
    }
    text += "\n";
  }
  for (uint64_t instance : pending_) {
    const Submitted& task = world.tasks.at(instance);
    text += "  task " + std::to_string(instance) + " starts " + std::to_string(task.starts) + " lost " +
            std::to_string(task.lost) + " takes";
    for (ObjectId dependency : task.dependencies) {
      text += " " + std::to_string(dependency.owner.value) + "/" + std::to_string(dependency.index);
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
      workers.push_back(world.OpenChannel(id, m->peer));
    } else {
      submitters.push_back(world.OpenChannel(m->peer, id));
      WakeExecutor();
    }
  } else if (auto* m = std::get_if<LeaseGranted>(&message)) {
    world.Note("granted", m->worker.value, m->lease.value, owner.InternShape(m->shape));
    owner.LeaseGranted(owner.InternShape(m->shape), m->lease, m->worker, world.now(), actions_);
    if (doomed || buried) DoomLeased(buried);
  } else if (auto* m = std::get_if<LeaseRecalled>(&message)) {
    owner.LeaseRecalled(m->lease, actions_);
  } else if (auto* m = std::get_if<LeaseRefused>(&message)) {
    owner.LeaseRefused(owner.InternShape(m->shape), m->why, actions_);
  } else if (auto* m = std::get_if<ProcessDied>(&message)) {
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
    case PeerMessageKind::kMention:
    case PeerMessageKind::kGiveBack: {
      if (!owner.Find(m.id) && world.Trusted(from) && world.Trusted(m.process)) {
        world.Fail("process " + std::to_string(from.value) + " speaks of object " + std::to_string(m.id.index) +
                   " of " + std::to_string(id.value) + ", which was freed");
      }
      auto count = static_cast<int64_t>(m.count);
      owner.BorrowerMentioned(m.id, m.process, m.kind == PeerMessageKind::kMention ? count : -count, actions_);
      break;
    }
    case PeerMessageKind::kAskValue:
      owner.ValueAsked(m.id, from, actions_);
      break;
    case PeerMessageKind::kCancelObject:
    case PeerMessageKind::kCancelTask:
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
    case PeerMessageKind::kWhy:
      break;
  }
}

void SimulatedProcess::Send(Message message) { outbox_.push_back(std::move(message)); }

void SimulatedProcess::Route(ProcessId to, const PeerMessage& message) {
  std::string payload;
  EncodePeerMessage(message, payload);
  routed_outbox_.push_back(RouteTo{.to = to, .payload = std::move(payload)});
}

void SimulatedProcess::Flush() {
  if (outbox_.empty() && routed_outbox_.empty() && free_outbox_.empty()) return;
  CrashIf(CrashPoint::kBeforeSend);
  for (Message& message : std::exchange(routed_outbox_, {})) sending_.push_back(std::move(message));  // before leases
  for (Message& message : std::exchange(outbox_, {})) sending_.push_back(std::move(message));
  if (!free_outbox_.empty()) sending_.push_back(FreeObjects{.locations = std::exchange(free_outbox_, {})});
  while (!sending_.empty()) {
    Message message = std::move(sending_.front());
    sending_.pop_front();
    if (buried) OrphanMentions(message);
    world.daemon->Send(id, std::move(message));
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
  }
}

void SimulatedProcess::OrphanMentions(const SimulatedReply& reply, ProcessId submitter) {
  for (const SimulatedValue& value : reply.values) {
    for (ObjectId contained : value.contained) world.MentionOrphaned(contained, submitter);
  }
}

// ---- draining and performing --------------------------------------------------------------------------------------

void SimulatedProcess::WakeDrain(int64_t delay_ns, int64_t extra_ns) {
  if (extra_ns > 0) drain_not_before_ns_ = world.now() + extra_ns;
  int64_t at = std::max(world.now() + delay_ns, drain_not_before_ns_);
  if (drain_at_ns_ >= 0 && drain_at_ns_ <= at) return;
  drain_at_ns_ = at;
  Happening reason = Happening::kCount;
  for (SimulatedChannel* channel : workers) {
    if (!channel->replies.empty()) reason = channel->replies.front().happening();
  }
  world.Later(this, at - world.now(), reason, [this, at] {
    if (drain_at_ns_ == at) drain_at_ns_ = -1;
    Drain();
    Flush();
  });
}

void SimulatedProcess::Drain() {
  for (size_t i = 0; i < workers.size(); ++i) {
    SimulatedChannel* channel = workers[i];
    LeasedWorker* worker = owner.FindWorker(channel->worker);
    // Replies that nobody is owed any more are normally not even looked at; now and then they are.
    if ((worker && worker->pushed.size > 0) || world.random.Chance(50)) DrainChannel(*channel);
  }
  DrainDrops();
  Perform();
}

void SimulatedProcess::DrainChannel(SimulatedChannel& channel) {
  while (!channel.replies.empty()) {
    CrashIf(CrashPoint::kOnReply);
    SimulatedReply reply = std::move(channel.replies.front());
    channel.replies.pop_front();
    world.Handled(reply.happening(), reply.sent_ns);
    TakeReply(channel, reply);
    Perform();
  }
}

void SimulatedProcess::TakeReply(SimulatedChannel& channel, const SimulatedReply& reply) {
  if (reply.is_revoke_answer) {
    // The answer counts for the ticket that was asked about, not for a later push of the same task.
    LeasedWorker* worker = owner.FindWorker(channel.worker);
    for (Task* task = worker ? worker->pushed.first : nullptr; task; task = task->next) {
      if (task->ticket_sequence != reply.ticket || task->state != TaskState::kRevoking) continue;
      world.Note("revoke answered", id.value, task->handle, reply.revoked);
      owner.RevokeResolved(task->handle, reply.revoked, world.now(), actions_);
      return;
    }
    return;
  }
  world.Note("reply", id.value, reply.instance, static_cast<uint64_t>(reply.kind));
  Submitted& submitted = world.tasks.at(reply.instance);
  Task* task = owner.FindTask(reply.task);
  bool owed = task && (task->state == TaskState::kPushed || task->state == TaskState::kRevoking) &&
              owner.workers()[task->worker].process == channel.worker;
  if (!owed) {
    world.coverage.Met(reply.happening(), FaultKind::kUntimely);
    OrphanMentions(reply, id);
  }
  for (uint64_t index : reply.retained) {
    if (owed && !owner.Find({id, index})) world.Fail("a worker retains an object that was freed");
    owner.BorrowerMentioned({id, index}, channel.worker, 1, actions_);
  }
  if (owed) {
    submitted.replied = true;
    submitted.reply = reply;
    if (reply.kind == ReplyKind::kRetryableError) ++submitted.raised;
  }
  std::vector<ReturnedValue> values;
  for (const SimulatedValue& value : reply.values) {
    values.push_back(
        {.kind = value.kind, .bytes = value.bytes, .location = value.location, .contained = value.contained});
    if (owed && value.kind == ValueKind::kStored) world.store.at(value.location).delivered = true;
    for (ObjectId inner : value.contained) {
      if (owed && inner.owner == id && !owner.Find(inner)) world.Fail("a returned reference was freed on its way");
    }
  }
  owner.Replied(channel.worker, reply.task, reply.kind, reply.error, values, world.now(), actions_);
  for (const GivenBack& item : reply.given_back) {
    owner.BorrowerMentioned({id, item.index}, channel.worker, -static_cast<int64_t>(item.count), actions_);
  }
  if (!owed && task && !owner.FindTask(reply.task)) world.Fail("a reply that was not owed was accepted");
}

void SimulatedProcess::DrainDrops() {
  for (Object* object : std::exchange(dropped_, {})) {
    if (object->local_references.fetch_sub(1, std::memory_order_acq_rel) == 1) owner.Consider(object, actions_);
  }
}

void SimulatedProcess::NoteLost(const Task& task) {
  uint64_t instance;
  std::memcpy(&instance, task.arguments.get(), sizeof instance);
  ++world.tasks.at(instance).lost;
}

void SimulatedProcess::Perform() {
  size_t performed = 0;
  for (size_t i = 0; i < actions_.size(); ++i) {
    Action action = actions_[i];
    if (++performed > 100'000) world.Fail("an event has endless consequences");
    CrashIf(CrashPoint::kBetweenActions);
    switch (action.kind) {
      case ActionKind::kPush:
        if (!PushTask(action)) owner.PushRefused(action.task->handle, world.now(), actions_);
        break;
      case ActionKind::kRevoke:
        RevokeTask(action);
        break;
      case ActionKind::kRequestLeases:
        world.Note("requests", id.value, action.number, static_cast<uint64_t>(action.worker));
        Send(RequestLeases{.shape = owner.shape(static_cast<uint32_t>(action.worker)),
                           .count = static_cast<uint32_t>(action.number),
                           .depth = owner.depth()});
        break;
      case ActionKind::kReturnLease: {
        ProcessId leased = world.daemon->scheduler.WorkerOf({action.number}, id);
        if (SimulatedProcess* worker = leased ? world.Find(leased) : nullptr) {
          if (worker->alive && worker->RunsTaskOf(id) && !worker->buried && !buried) {
            world.Fail("a lease was returned while its worker runs a task of it");
          }
          worker->Absolve();
        }
        Send(ReturnLease{.lease = {action.number}});
        break;
      }
      case ActionKind::kFreeStored:
        world.LetGo(*this, action.location);
        if (action.location.segment.value == id.value) {
          world.Freed(action.location);
        } else {
          free_outbox_.push_back(action.location);
        }
        break;
      case ActionKind::kMention:
      case ActionKind::kGiveBack:
        Route(action.id.owner,
              {.kind = action.kind == ActionKind::kMention ? PeerMessageKind::kMention : PeerMessageKind::kGiveBack,
               .id = action.id,
               .process = action.process,
               .count = action.number});
        break;
      case ActionKind::kFetch:
        Route(action.id.owner, {.kind = PeerMessageKind::kAskValue, .id = action.id});
        break;
      case ActionKind::kSendValue: {
        PeerMessage answer{.kind = PeerMessageKind::kValue, .id = action.id};
        if (action.object) {
          SimulatedValue value = ValueOf(*action.object);
          answer.value_kind = static_cast<uint8_t>(value.kind);
          answer.location = value.location;
          answer.bytes = value.bytes;
          answer.contained = value.contained;
        } else {
          answer.value_kind = static_cast<uint8_t>(ValueKind::kSystemError);
          answer.bytes = "ObjectLostError\nits owner no longer has the object";
        }
        Route(action.process, answer);
        if (action.object) owner.Unhold(action.object, actions_);
        break;
      }
      case ActionKind::kPlaceActor:
      case ActionKind::kWatchActor:
      case ActionKind::kReleaseActor:
      case ActionKind::kKillActor:
      case ActionKind::kAskCancel:
      case ActionKind::kCancelRunning:
        break;  // the simulated programs have no actors and cancel nothing
      case ActionKind::kResolved:
        break;  // AfterEvent looks
    }
  }
  actions_.clear();
}

bool SimulatedProcess::PushTask(const Action& action) {
  Task* task = action.task;
  ProcessId worker = owner.workers()[action.worker].process;
  SimulatedChannel& channel = *ChannelTo(worker);
  if (known_dead_.contains(worker)) return false;
  uint64_t instance;
  std::memcpy(&instance, task->arguments.get(), sizeof instance);
  Submitted& submitted = world.tasks.at(instance);
  submitted.handle = task->handle;
  if (submitted.spec.unsendable) {
    owner.FailPushed(task->handle, "UnschedulableError\ntoo large", world.now(), actions_);
    return true;
  }
  if (channel.tasks.size() >= channel.task_room || (world.faulty() && world.random.Chance(world.refuse_percent))) {
    world.coverage.Met(Happening::kTask, FaultKind::kFull);
    world.Note("push refused", id.value, worker.value, instance);
    return false;
  }
  if (task->attempt != submitted.lost + submitted.raised) {
    world.Fail("task " + std::to_string(instance) + " is pushed as attempt " + std::to_string(task->attempt) +
               ", but " + std::to_string(submitted.lost) + " were lost and " + std::to_string(submitted.raised) +
               " asked for a retry");
  }
  SimulatedTask frame;
  frame.ticket = channel.next_ticket++;
  frame.sent_ns = world.now();
  frame.task = task->handle;
  frame.instance = instance;
  frame.attempt = task->attempt;
  frame.depth = owner.depth();
  for (uint32_t i = 0; i < task->what->num_returns; ++i) frame.returns.push_back(task->Return(i)->handle);
  if (task->mentioned) {
    for (Object* object : *task->mentioned) frame.mentioned.push_back(object->id);
  }
  for (uint32_t i = 0; i < task->num_dependencies; ++i) {
    SimulatedDependency dependency{.id = task->dependencies[i]->id, .kind = DependencyKind::kEarlier};
    const Value& value = task->dependencies[i]->value;
    if (value.kind() == ValueKind::kInline) {
      dependency.kind = DependencyKind::kInline;
      dependency.bytes = value.bytes();
    } else if (value.kind() == ValueKind::kStored) {
      dependency.kind = DependencyKind::kStored;
      dependency.location = value.location();
    }
    frame.dependencies.push_back(std::move(dependency));
  }
  if (task->contained) {
    for (Object* object : *task->contained) frame.contained.push_back(object->id);
  }
  task->ticket_sequence = frame.ticket;
  world.Note("push", id.value, worker.value, instance);
  channel.tasks.push_back(std::move(frame));
  SimulatedProcess* receiver = world.Find(worker);
  int64_t extra = world.Sent(Happening::kTask, this, receiver);
  if (receiver->alive) receiver->WakeExecutor(extra);
  return true;
}

void SimulatedProcess::RevokeTask(const Action& action) {
  Task* task = owner.FindTask(action.number);
  if (!task) return;
  const LeasedWorker& worker = owner.workers()[action.worker];
  SimulatedChannel& channel = *ChannelTo(worker.process);
  if (!channel.asynchronous) {
    bool revoked = channel.Revoke(task->ticket_sequence);
    world.Note("revoke", id.value, action.number, revoked);
    if (!revoked && worker.dead) NoteLost(*task);
    owner.RevokeResolved(action.number, revoked, world.now(), actions_);
  } else if (worker.dead) {
    NoteLost(*task);  // it may have run
    owner.RevokeResolved(action.number, false, world.now(), actions_);
  } else {
    channel.asked.push_back({task->ticket_sequence, world.now()});
    SimulatedProcess* receiver = world.Find(worker.process);
    int64_t extra = world.Sent(Happening::kRevokeAsked, this, receiver);
    if (receiver->alive) {
      world.Later(receiver, world.Delay() + extra, Happening::kRevokeAsked, [receiver] { receiver->AnswerRevokes(); });
    }
  }
}

void SimulatedProcess::ScheduleTick() {
  int64_t next = owner.NextTick();
  if (next == 0) return;
  next = std::max(next, world.now());
  if (tick_at_ns_ >= 0 && tick_at_ns_ <= next) return;
  tick_at_ns_ = next;
  // The background thread looks only now and then.
  int64_t late = static_cast<int64_t>(world.random.Below(50 * kMs));
  world.Later(this, next - world.now() + late, Happening::kCount, [this, next] {
    if (tick_at_ns_ == next) tick_at_ns_ = -1;
    Drain();
    owner.Tick(world.now(), actions_);
    Perform();
    Flush();
  });
}

void SimulatedProcess::ScanFinished() {
  if (owner.live_tasks() >= known_live_) return;
  known_live_ = owner.live_tasks();
  std::erase_if(pending_, [this](uint64_t instance) {
    Submitted& task = world.tasks.at(instance);
    if (task.returns.empty()) {
      return task.handle != 0 && owner.FindTask(task.handle) == nullptr;
    }
    Object* first = owner.Find(task.returns[0]);
    bool finished = !first || first->resolved();
    if (!finished) return false;
    task.finished = true;
    for (ObjectId returned : task.returns) world.objects.at(returned).vanished = !owner.Find(returned);
    for (uint32_t i = 0; i < task.returns.size(); ++i) {
      Object* object = owner.Find(task.returns[i]);
      if (!object) continue;
      if (!object->resolved()) world.Fail("a task has ended, but one of its returns is pending");
      world.CheckOutcome(task, i, ValueOf(*object));
    }
    return true;
  });
}

// ---- executing ----------------------------------------------------------------------------------------------------

void SimulatedProcess::WakeExecutor(int64_t extra_ns) {
  if (extra_ns > 0) executor_not_before_ns_ = world.now() + extra_ns;
  if (executor_awake_ || driver_) return;
  executor_awake_ = true;
  int64_t at = std::max(world.now() + world.Delay(), executor_not_before_ns_);
  world.Later(this, at - world.now(), Happening::kTask, [this] {
    executor_awake_ = false;
    Execute();
    Flush();
  });
}

void SimulatedProcess::Execute() {
  if (!replies_.empty()) {
    if (!SendReplies()) {
      executor_awake_ = true;
      world.Later(this, kRetryReplyNs, Happening::kCount, [this] {
        executor_awake_ = false;
        Execute();
      });
      return;
    }
  }
  if (body_) {
    if (body_->awaited && body_->handed_back) HandBackQueued();
    return;
  }
  for (size_t i = 0; i < submitters.size(); ++i) {
    SimulatedChannel& channel = *submitters[next_submitter_ % submitters.size()];
    while (!channel.tasks.empty() && channel.tasks.front().state == SimulatedTask::kRevoked) channel.tasks.pop_front();
    if (channel.tasks.empty()) {
      ++next_submitter_;
      continue;
    }
    TakeTask(channel);
    if (!body_) WakeExecutor();
    return;
  }
  if (exit_asked && owner.live_tasks() == 0 && !owner.AnyBorrowed()) {
    world.Note("exits", id.value);
    DrainDrops();
    Perform();
    Flush();
    Die();
    throw ProcessCrashed{};
  }
}

void SimulatedProcess::AnswerRevokes() {
  for (SimulatedChannel* channel : submitters) {
    while (!channel->asked.empty()) {
      auto asked = channel->asked.front();
      channel->asked.pop_front();
      world.Handled(Happening::kRevokeAsked, asked.sent_ns);
      CrashIf(CrashPoint::kOnMessage);
      SimulatedReply answer{.is_revoke_answer = true, .ticket = asked.ticket, .revoked = channel->Revoke(asked.ticket)};
      answer.sent_ns = world.now();
      channel->replies.push_back(std::move(answer));
      SimulatedProcess* receiver = world.Find(channel->submitter);
      int64_t extra = world.Sent(Happening::kRevokeAnswered, this, receiver);
      if (receiver->alive) receiver->WakeDrain(world.Delay(), extra);
    }
  }
}

void SimulatedProcess::HandBack(SimulatedChannel& channel, const SimulatedTask& task, ReplyKind kind) {
  world.Note("hands back", id.value, task.instance, static_cast<uint64_t>(kind));
  SimulatedReply reply{.task = task.task, .instance = task.instance, .kind = kind};
  replies_.push_back({&channel, std::move(reply), false});
  if (!SendReplies()) WakeExecutor();
}

bool SimulatedProcess::SendReplies() {
  while (!replies_.empty()) {
    PendingReply& pending = replies_.front();
    SimulatedChannel& channel = *pending.channel;
    bool of_body = pending.of_body;
    if (!known_dead_.contains(channel.submitter)) {
      if (channel.replies.size() >= channel.reply_room) {
        world.coverage.Met(pending.reply.happening(), FaultKind::kFull);
        if (SimulatedProcess* receiver = world.Find(channel.submitter); receiver->alive)
          receiver->WakeDrain(world.Delay());
        return false;
      }
      if (of_body) CrashIf(CrashPoint::kBeforeReply);
      if (of_body) {
        world.Produced(pending.reply, *this);
        body_->replied = true;
        if (buried) OrphanMentions(pending.reply, channel.submitter);
      }
      Happening happening = pending.reply.happening();
      pending.reply.sent_ns = world.now();
      channel.replies.push_back(std::move(pending.reply));
      replies_.pop_front();
      SimulatedProcess* receiver = world.Find(channel.submitter);
      int64_t extra = world.Sent(happening, this, receiver);
      if (receiver->alive) receiver->WakeDrain(world.random.Chance(80) ? world.Delay() : world.LongDelay(), extra);
      if (of_body) CrashIf(CrashPoint::kAfterReply);
    } else {
      replies_.pop_front();
    }
    if (of_body) AfterReply();
  }
  return true;
}

void SimulatedProcess::HandBackQueued() {
  for (SimulatedChannel* channel : submitters) {
    while (!channel->tasks.empty()) {
      CrashIf(CrashPoint::kBeforeClaim);
      SimulatedTask& front = channel->tasks.front();
      bool claimed = channel->Claim(front.ticket);
      SimulatedTask task = std::move(front);
      channel->tasks.pop_front();
      if (!claimed) continue;
      CrashIf(CrashPoint::kAfterClaim);
      HandBack(*channel, task, ReplyKind::kHandedBackBlocked);
    }
  }
}

void SimulatedProcess::TakeTask(SimulatedChannel& channel) {
  CrashIf(CrashPoint::kBeforeClaim);
  SimulatedTask& front = channel.tasks.front();
  world.Handled(Happening::kTask, front.sent_ns);
  bool claimed = channel.Claim(front.ticket);
  SimulatedTask task = front;
  if (!claimed) {
    channel.tasks.pop_front();
    return;
  }
  CrashIf(CrashPoint::kAfterClaim);
  if (buried) world.coverage.Met(Happening::kTask, FaultKind::kUntimely);
  if (world.faulty() && world.random.Chance(world.forget_percent)) machine.ForgetResults();
  bool spurious = world.faulty() && world.random.Chance(world.hand_back_percent);
  if (spurious) world.coverage.Met(Happening::kTask, FaultKind::kHandBack);
  bool missing = spurious;
  struct Argument {
    SimulatedValue value;
    Object* object = nullptr;
  };
  std::vector<Argument> arguments;
  for (const SimulatedDependency& dependency : task.dependencies) {
    Argument argument;
    if (dependency.kind == DependencyKind::kEarlier) {
      const auto* earlier = machine.Recall(dependency.id);
      if (!earlier) {
        missing = true;
        break;
      }
      argument.value.kind = earlier->stored ? ValueKind::kStored : ValueKind::kInline;
      argument.value.bytes = earlier->stored ? "" : earlier->bytes;
      argument.value.location = earlier->location;
    } else {
      argument.value.kind = dependency.kind == DependencyKind::kStored ? ValueKind::kStored : ValueKind::kInline;
      argument.value.bytes = dependency.bytes;
      argument.value.location = dependency.location;
    }
    arguments.push_back(std::move(argument));
  }
  if (missing) {
    channel.tasks.pop_front();
    return HandBack(channel, task, ReplyKind::kHandedBack);
  }
  const bool trusted = world.Trusted(id);
  for (ObjectId mentioned : task.mentioned) {
    if (!machine.Accept(owner, mentioned, true, references) && trusted) world.Fail("an argument of our own was freed");
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].value.kind != ValueKind::kStored) continue;
    arguments[i].object = machine.Accept(owner, task.dependencies[i].id, false, references);
    if (!arguments[i].object && trusted) world.Fail("a stored argument of our own was freed");
  }
  if (world.faulty() && world.random.Chance(world.hand_back_percent)) {
    // An argument that cannot be mapped.
    channel.tasks.pop_front();
    machine.Decline(owner, references, actions_);
    Perform();
    Flush();
    return HandBack(channel, task, ReplyKind::kHandedBack);
  }

  body_ = std::make_unique<Body>();
  body_->channel = &channel;
  body_->task = task;
  body_->spec = world.tasks.at(task.instance).spec;
  body_->random = Random(DerivedNumber(body_->spec.number, 5));
  body_->steps_left = body_->spec.steps;
  channel.tasks.pop_front();
  owner.set_depth(task.depth + 1);
  world.Note("body starts", id.value, task.instance, task.attempt);
  world.BodyStarted(task.instance, *this);
  auto take = [&](ObjectId reference) {
    Object* object = owner.Find(reference);
    if (!object) {
      if (trusted) world.Fail("a reference among the arguments is not known here");
      return;
    }
    AddReference(object);
    body_->variables.push_back(object);
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    Argument& argument = arguments[i];
    ObjectId dependency = task.dependencies[i].id;
    if (auto known = world.objects.find(dependency); known != world.objects.end()) {
      argument.value.contained = known->second.outcome.contained;
    }
    world.CheckRead(*this, dependency, argument.value);
    for (ObjectId inner : argument.value.contained) take(inner);
    // A view of a stored argument, to be kept beyond the task.
    if (argument.object && !world.closing && body_->random.Chance(20)) {
      AddReference(argument.object);
      globals_.push_back(argument.object);
    }
  }
  for (ObjectId reference : task.contained) take(reference);
  ScheduleStep(world.Delay());
}

void SimulatedProcess::ScheduleStep(int64_t delay_ns) {
  world.Later(this, delay_ns, Happening::kCount, [this] {
    if (!body_ || body_->ended) return;
    Step();
    Flush();
  });
}

void SimulatedProcess::Step() {
  if (body_->awaited) {
    if (!body_->resuming) return;
    EndGet();
  } else {
    CrashIf(CrashPoint::kInBody);
  }
  if (driver_ && body_->steps_left == 0) {
    world.Heal();
    body_->last_gets = true;
    if (!body_->variables.empty()) return BeginGet(body_->variables.back());
    body_.reset();
    world.Note("driver ends", id.value);
    return;
  }
  if (body_->steps_left == 0 || body_->failed) return EndBody();
  --body_->steps_left;
  DoStep();
}

void SimulatedProcess::EndBody() {
  Body& body = *body_;
  body.ended = true;
  body.reply = SimulatedReply{.task = body.task.task, .instance = body.task.instance};
  CrashIf(CrashPoint::kAfterBody);
  if (body.failed) {
    body.reply.kind = ReplyKind::kTaskError;
    body.reply.error = body.failure;
  } else if (body.spec.ending == Ending::kRaise) {
    body.reply.kind = ReplyKind::kTaskError;
    body.reply.error = "raised by " + std::to_string(body.spec.number);
  } else if (body.spec.ending == Ending::kRaiseEarly && body.task.attempt < body.spec.succeeds_at) {
    body.reply.kind = ReplyKind::kRetryableError;
    body.reply.error = "raised early by " + std::to_string(body.spec.number);
  } else {
    for (uint32_t i = 0; i < body.spec.num_returns; ++i) {
      SimulatedValue value;
      body.returned.emplace_back();
      while (!body.variables.empty() && body.random.Chance(30) && value.contained.size() < 3) {
        Object* inner = PickVariable();
        AddReference(inner);
        body.returned.back().push_back(inner);
        value.contained.push_back(inner->id);
      }
      if (IsStored(body.spec.number, i, world.workload)) {
        value.kind = ValueKind::kStored;
        value.location = {SegmentId{id.value}, ++world.next_offset, 100'000, 1};
        world.store[value.location] = {{body.channel->submitter, body.task.returns[i]}, id};
      } else {
        value.bytes = ValueBytes(body.spec.number, i);
      }
      body.reply.values.push_back(std::move(value));
    }
  }
  for (Object* object : std::exchange(body.variables, {})) Drop(object);
  ProcessId from = body.channel->submitter;
  for (auto& list : body.returned) {
    for (Object* object : list) owner.Mention(object, from, actions_);
  }
  Perform();
  DrainDrops();
  Perform();
  machine.Release(owner, from, references, body.reply.given_back, body.reply.retained, actions_);
  Perform();
  Flush();
  world.Note("body ends", id.value, body.task.instance, static_cast<uint64_t>(body.reply.kind));
  replies_.push_back({body.channel, body.reply, true});
  SendReplies();
  WakeExecutor();
}

void SimulatedProcess::AfterReply() {
  for (size_t i = 0; i < body_->reply.values.size(); ++i) {
    const SimulatedValue& value = body_->reply.values[i];
    machine.Remember({body_->channel->submitter, body_->task.returns[i]}, value.kind == ValueKind::kStored, value.bytes,
                     value.location, !value.contained.empty());
  }
  for (auto& list : body_->returned) {
    for (Object* object : list) Drop(object);
  }
  body_.reset();
}

// ---- user code ----------------------------------------------------------------------------------------------------

void SimulatedProcess::StartDriver() {
  body_ = std::make_unique<Body>();
  body_->spec.number = world.options.seed + 1;
  body_->random = Random(DerivedNumber(world.options.seed, 3));
  body_->steps_left = world.workload.driver_steps;
  ScheduleStep(0);
}

void SimulatedProcess::ForgetGlobals() {
  world.Later(this, world.Delay(), Happening::kCount, [this] {
    for (Object* object : std::exchange(globals_, {})) Drop(object);
  });
}

void SimulatedProcess::Drop(Object* object) {
  uint32_t count = object->local_references.load();
  if (count == 0) world.Fail("a reference was dropped that was not held");
  if (count > 1) {
    object->local_references.store(count - 1);
  } else {
    dropped_.push_back(object);
  }
}

Object* SimulatedProcess::PickVariable() {
  auto& variables = body_->variables;
  // Mostly a recent one, so that there are chains.
  size_t back =
      body_->random.Below(body_->random.Chance(60) ? std::min<size_t>(3, variables.size()) : variables.size());
  return variables[variables.size() - 1 - back];
}

void SimulatedProcess::DoStep() {
  Body& body = *body_;
  int64_t pause = static_cast<int64_t>(body.random.Below(20'000));
  auto drop_at = [&](size_t i) {
    Drop(body.variables[i]);
    body.variables.erase(body.variables.begin() + static_cast<ptrdiff_t>(i));
  };
  switch (DrawStep(body.random, driver_)) {
    case Step::kSubmit:
      if (world.tasks_left > 0 && body.spec.depth < world.workload.max_depth + (driver_ ? 1 : 0)) SubmitChild();
      break;
    case Step::kPut:
      PutValue();
      break;
    case Step::kGet:
      if (!body.variables.empty()) return BeginGet(PickVariable());
      break;
    case Step::kDrop:
      if (!body.variables.empty()) drop_at(body.random.Below(body.variables.size()));
      break;
    case Step::kKeep:
      if (!body.variables.empty() && !world.closing) {
        Object* object = PickVariable();
        AddReference(object);
        globals_.push_back(object);
      }
      break;
    case Step::kForget:
      if (!globals_.empty()) {
        size_t i = body.random.Below(globals_.size());
        Drop(globals_[i]);
        globals_.erase(globals_.begin() + static_cast<ptrdiff_t>(i));
      }
      break;
    case Step::kCompute:
      pause = static_cast<int64_t>(body.random.Below(static_cast<uint64_t>(world.workload.longest_compute_ns)));
      break;
  }
  while (!driver_ && body.variables.size() > kMostVariables) drop_at(0);
  if (driver_ && world.workload.long_pause && body.steps_left == world.workload.driver_steps / 2) pause = 11'000 * kMs;
  if (body.random.Chance(10)) Drain();
  ScheduleStep(pause);
}

const TaskTemplate* SimulatedProcess::TemplateOf(const TaskSpec& spec) {
  TaskTemplate what;
  what.function = function_;
  what.shape = owner.InternShape(spec.shape);
  what.num_returns = spec.num_returns;
  what.max_retries = spec.max_retries;
  what.name = "f";
  what.retry_exceptions = spec.ending == Ending::kRaiseEarly ? "*" : "";
  return owner.InternTemplate(std::move(what));
}

void SimulatedProcess::SubmitChild() {
  Body& body = *body_;
  --world.tasks_left;
  uint64_t number = DerivedNumber(body.spec.number, 1000 + body.children++);
  TaskSpec spec = DrawTask(number, body.spec.depth + 1, world.workload);
  Submission submission;
  submission.what = TemplateOf(spec);
  while (!body.variables.empty() && body.random.Chance(50) && submission.dependencies.size() < 4) {
    submission.dependencies.push_back(PickVariable());
    if (body.random.Chance(10)) submission.dependencies.push_back(submission.dependencies.back());
  }
  while (!body.variables.empty() && body.random.Chance(25) && submission.contained.size() < 3) {
    submission.contained.push_back(PickVariable());
  }
  uint64_t instance = world.next_instance++;
  submission.arguments = {reinterpret_cast<const char*>(&instance), sizeof instance};
  std::vector<Object*> returns;
  // Known before the call, as the call may fail the task at once.
  ++known_live_;
  pending_.push_back(instance);
  owner.Submit(submission, world.now(), returns, actions_);
  world.Submit(instance, spec, id, returns, submission.dependencies);
  world.Note("submit", id.value, instance, submission.what->shape);
  for (Object* object : returns) body.variables.push_back(object);
  Perform();
}

void SimulatedProcess::PutValue() {
  Body& body = *body_;
  uint64_t number = DerivedNumber(body.spec.number, 5000 + body.children++);
  SimulatedValue value;
  std::vector<Object*> contained;
  while (!body.variables.empty() && body.random.Chance(40) && contained.size() < 3) {
    contained.push_back(PickVariable());
    value.contained.push_back(contained.back()->id);
  }
  Object* object = owner.NewOwned();
  if (IsStored(number, 0, world.workload)) {
    value.kind = ValueKind::kStored;
    value.location = {SegmentId{id.value}, ++world.next_offset, 100'000, 1};
    world.store[value.location] = {object->id, id, true};
  } else {
    value.bytes = ValueBytes(number, 0);
  }
  world.Put(object->id, value);
  owner.Resolve(object, value.kind, value.bytes, value.location, contained, actions_);
  body.variables.push_back(object);
  Perform();
}

void SimulatedProcess::BeginGet(Object* object) {
  Body& body = *body_;
  body.awaited = object;
  body.resuming = false;
  body.handed_back = false;
  body.wait_number = next_wait_++;
  if (object->resolved()) {
    body.resuming = true;
    return ScheduleStep(world.Delay());
  }
  owner.Want(object, actions_);
  Perform();
  ++object->waiters;
  if (driver_) return;
  blocked = true;
  if (demand) Send(Blocked{});
  Flush();
  world.Later(this, kHandBackAfterNs, Happening::kCount, [this, number = body.wait_number] {
    if (!body_ || !body_->awaited || body_->wait_number != number || body_->resuming) return;
    CrashIf(CrashPoint::kInGet);
    body_->handed_back = true;
    HandBackQueued();
  });
}

void SimulatedProcess::EndGet() {
  Body& body = *body_;
  Object* object = std::exchange(body.awaited, nullptr);
  body.resuming = false;
  blocked = false;
  if (object->waiters > 0) --object->waiters;
  SimulatedValue value = ValueOf(*object);
  world.Note("got", id.value, object->id.owner.value, object->id.index);
  world.CheckRead(*this, object->id, value);
  if (body.last_gets) {
    body.variables.pop_back();
    Drop(object);
    return;
  }
  if (IsError(value.kind)) {
    if (driver_ || body.random.Chance(50)) return;  // caught
    body.failed = true;
    body.failure = "raised by get in " + std::to_string(body.spec.number) + ": " + value.bytes;
    return;
  }
  if (object->contained) {
    for (Object* inner : *object->contained) {
      AddReference(inner);
      body.variables.push_back(inner);
    }
  }
  if (value.kind == ValueKind::kStored && !driver_ && !world.closing && body.random.Chance(20)) {
    AddReference(object);
    globals_.push_back(object);
  }
}

}  // namespace weft::core
