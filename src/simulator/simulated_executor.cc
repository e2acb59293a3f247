// SimulatedProcess: takes tasks out of channels, runs their bodies and replies, as Executor does.
#include <algorithm>
#include <utility>

#include "simulator/simulated_daemon.h"
#include "simulator/simulated_process.h"

namespace weft::core {
namespace {

constexpr int64_t kRetryReplyNs = 100'000;

}  // namespace

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
    if (channel.tasks.empty() || !MayTake(channel.tasks.front())) {
      ++next_submitter_;
      continue;
    }
    TakeTask(channel);
    if (!body_) WakeExecutor();
    return;
  }
  if (MayLeave()) Leave();
}

void SimulatedProcess::Leave() {
  world.Note("exits", id.value);
  left = MayLeave();
  DrainDrops();
  Perform();
  Flush();
  Die();
  throw ProcessCrashed{};
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
      SimulatedProcess* receiver = world.Find(channel->submitter);
      int64_t extra = world.Sent(Happening::kRevokeAnswered, this, receiver);
      world.SendReply(*channel, std::move(answer), world.Delay(), extra);
      if (!body_) WakeExecutor();  // what is behind it may be taken now
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
      SimulatedReply reply = std::move(pending.reply);
      replies_.pop_front();
      int64_t extra = world.Sent(happening, this, world.Find(channel.submitter));
      world.SendReply(channel, std::move(reply), world.random.Chance(80) ? world.Delay() : world.LongDelay(), extra);
      if (of_body) CrashIf(CrashPoint::kAfterReply);
    } else {
      replies_.pop_front();
    }
    if (of_body) AfterReply();  // may not return
  }
  return true;
}

void SimulatedProcess::HandBackQueued() {
  if (actor_) return;  // its calls can run nowhere else
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
  const bool call = task.kind == TemplateKind::kCall;  // in order, so never back
  bool spurious = !call && world.faulty() && world.random.Chance(world.hand_back_percent);
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
  // What a dead caller kept for us may be gone; nobody awaits the result.
  const bool trusted = world.Trusted(id) && world.Trusted(channel.submitter);
  for (ObjectId mentioned : task.mentioned) {
    Object* object = machine.Accept(owner, mentioned, true, references);
    if (!object && trusted && !Excused(mentioned, channel.submitter)) world.Fail("an argument of our own was freed");
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].value.kind != ValueKind::kStored) continue;
    arguments[i].object = machine.Accept(owner, task.dependencies[i].id, false, references);
    if (!arguments[i].object && trusted && !world.Tainted(task.dependencies[i].id)) {
      world.Fail("a stored argument of our own was freed");
    }
  }
  if (!call && world.faulty() && world.random.Chance(world.hand_back_percent)) {
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
  body_->execution = next_execution_++;
  channel.tasks.pop_front();
  owner.set_depth(task.depth + 1);
  world.Note("body starts", id.value, task.instance, task.attempt);
  if (task.kind == TemplateKind::kCreation) {
    actor_ = task.actor;
    incarnation_ = task.incarnation;
    if (owner.Find(actor_)) world.loose.insert(actor_);
  }
  world.BodyStarted(task, *this);
  auto take = [&](ObjectId reference) {
    Object* object = owner.Find(reference);
    if (!object) {
      if (trusted && !Excused(reference, channel.submitter))
        world.Fail("a reference among the arguments is not known here");
      return;
    }
    Keep(object);
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
  // What an actor's state knows, its methods use.
  for (Object* known : actor_ ? globals_ : std::vector<Object*>()) {
    if (world.IsActor(known->id) && body_->handles.size() < 4) Keep(known);
  }
  TakeEarlyCancel();
  ScheduleStep(world.Delay());
}

// Whether a reference that comes from this process may lead nowhere.
bool SimulatedProcess::Excused(ObjectId reference, ProcessId from) const {
  if (world.Tainted(reference)) return true;
  // An actor that knows itself does not keep itself, and who found it by name may have come too late.
  return world.IsActor(reference) &&
         (world.loose.contains(reference) || world.actors.at(reference).worker == from || reference == actor_);
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
  } else if (body_->question != 0) {
    if (!answers_.contains(body_->question)) return;
    EndQuestion();
  } else {
    CrashIf(CrashPoint::kInBody);
  }
  if (driver_ && body_->steps_left == 0) {
    world.Heal();
    body_->last_gets = true;
    if (!body_->variables.empty()) return BeginGet(body_->variables.back());
    for (Object* handle : std::exchange(body_->handles, {})) Drop(handle);
    body_.reset();
    world.Note("driver ends", id.value);
    return;
  }
  if (body_->steps_left == 0 || body_->failed || body_->interrupted) return EndBody();
  --body_->steps_left;
  DoStep();
}

void SimulatedProcess::EndBody() {
  Body& body = *body_;
  body.ended = true;
  body.reply = SimulatedReply{.task = body.task.task, .instance = body.task.instance};
  // Said to be short although most are not, so that others are put behind them wrongly.
  body.reply.run_ns = body.task.instance % 3 == 0 ? 2'000'000 : 200;
  CrashIf(CrashPoint::kAfterBody);
  const bool creation = body.task.kind == TemplateKind::kCreation;
  if (body.interrupted) {
    body.reply.kind = ReplyKind::kCancelled;
    body.reply.error = "TaskCancelledError\ncancelled while it ran";
    world.coverage.Did(Deed::kCancelledWhileRunning);
  } else if (body.failed) {
    body.reply.kind = ReplyKind::kTaskError;
    body.reply.error = body.failure;
  } else if (body.spec.ending == Ending::kRaise) {
    body.reply.kind = ReplyKind::kTaskError;
    body.reply.error = "raised by " + std::to_string(body.spec.number);
  } else if (body.spec.ending == Ending::kRaiseEarly && body.task.attempt < body.spec.succeeds_at) {
    body.reply.kind = ReplyKind::kRetryableError;
    body.reply.error = "raised early by " + std::to_string(body.spec.number);
  } else if (body.spec.ending == Ending::kExit) {
    body.reply.kind = ReplyKind::kExited;
    body.reply.error = "ActorDiedError\nthe actor ended itself in call " + std::to_string(body.spec.number);
  } else {
    for (uint32_t i = 0; i < body.spec.num_returns; ++i) {
      SimulatedValue value;
      AddContained(body.returned.emplace_back(), 30, 3);
      for (Object* inner : body.returned.back()) {
        AddReference(inner);
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
  if (creation) Constructed(body.reply.kind == ReplyKind::kValues);
  if (body.reply.kind == ReplyKind::kExited) {
    Send(ActorExiting{.actor = actor_});
    Flush();
  }
  for (Object* object : std::exchange(body.variables, {})) Drop(object);
  for (Object* object : std::exchange(body.handles, {})) Drop(object);
  ProcessId from = body.channel->submitter;
  for (auto& list : body.returned) {
    for (Object* object : list) owner.AddBorrower(object, from, actions_);
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
  for (size_t i = 0; !actor_ && i < body_->reply.values.size(); ++i) {
    const SimulatedValue& value = body_->reply.values[i];
    machine.Remember({body_->channel->submitter, body_->task.returns[i]}, value.kind == ValueKind::kStored, value.bytes,
                     value.location, !value.contained.empty());
  }
  for (auto& list : body_->returned) {
    for (Object* object : list) Drop(object);
  }
  const bool leaves = body_->reply.kind == ReplyKind::kExited;
  body_.reset();
  if (leaves) Leave();
}

}  // namespace weft::core
