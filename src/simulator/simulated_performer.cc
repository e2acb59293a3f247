// SimulatedProcess: takes replies out of channels, performs what the owner decides, and writes tasks into channels.
#include <algorithm>
#include <cstring>
#include <utility>

#include "simulator/simulated_daemon.h"
#include "simulator/simulated_process.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;

}  // namespace

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
    if (owed && !owner.Find({id, index}) && !world.Tainted({id, index}))
      world.Fail("a worker retains an object that was freed");
    owner.BorrowsChanged({id, index}, channel.worker, 1, actions_);
  }
  if (owed) {
    submitted.replied = true;
    submitted.reply = reply;
    submitted.replied_in = world.Find(channel.worker)->incarnation();
    if (reply.kind == ReplyKind::kRetryableError) ++submitted.raised;
  }
  std::vector<ReturnedValue> values;
  for (const SimulatedValue& value : reply.values) {
    values.push_back(
        {.kind = value.kind, .bytes = value.bytes, .location = value.location, .contained = value.contained});
    if (owed && value.kind == ValueKind::kStored) world.store.at(value.location).delivered = true;
    for (ObjectId inner : value.contained) {
      if (owed && !Excused(inner, channel.worker) && inner.owner == id && !owner.Find(inner)) {
        world.Fail("a returned reference was freed on its way");
      }
    }
  }
  owner.Replied(channel.worker, reply.task, reply.kind, reply.error, values, world.now(), actions_, reply.run_ns);
  for (const GivenBack& item : reply.given_back) {
    owner.BorrowsChanged({id, item.index}, channel.worker, -static_cast<int64_t>(item.count), actions_);
  }
  if (!owed && task && !owner.FindTask(reply.task)) world.Fail("a reply that was not owed was accepted");
}

// One that lost something with its submitter may hand on references that are good for nothing.
void SimulatedProcess::TaintIfDoomed(const std::vector<ObjectId>& ids) {
  if (!doomed && !buried) return;
  for (ObjectId object : ids) world.Taint(object);
}

void SimulatedProcess::DrainDrops() {
  for (Object* object : std::exchange(dropped_, {})) {
    if (object->local_references.fetch_sub(1, std::memory_order_acq_rel) == 1) owner.Consider(object, actions_);
  }
}

uint64_t SimulatedProcess::InstanceOf(const Task& task) {
  uint64_t instance;
  std::memcpy(&instance, task.arguments.view().data(), sizeof instance);
  return instance;
}

void SimulatedProcess::NoteLost(const Task& task) {
  ++world.tasks.at(InstanceOf(task)).lost;
  if (task.what->kind != TemplateKind::kCall) return;
  int32_t limit = task.what->max_retries;
  bool again = limit < 0 || task.attempt < static_cast<uint32_t>(limit);
  world.coverage.Did(again && !task.cancelled ? Deed::kCallRetried : Deed::kCallLost);
}

void SimulatedProcess::Perform() {
  size_t performed = 0;
  for (size_t i = 0; i < actions_.size(); ++i) {
    Action action = actions_[i];
    if (++performed > 100'000) world.Fail("an event has endless consequences");
    CrashIf(CrashPoint::kBetweenActions);
    switch (action.kind) {
      case ActionKind::kPush:
        // A call is not tried once one before it was refused: calls keep their order.
        if ((action.task->actor && owner.workers()[action.worker].full) || !PushTask(action))
          owner.PushRefused(action.task->handle, world.now(), actions_);
        break;
      case ActionKind::kRevoke:
        RevokeTask(action);
        break;
      case ActionKind::kRequestLeases:
        world.Note("requests", id.value, action.number, static_cast<uint64_t>(action.worker));
        Send(RequestLeases{
            .shape = owner.shape(static_cast<uint32_t>(action.worker)),
            .count = static_cast<uint32_t>(action.number),
            .depth = owner.depth(),
            .heard = world.cluster ? owner.GrantsOf(static_cast<uint32_t>(action.worker)) : RequestLeases::kAllHeard});
        break;
      case ActionKind::kReturnLease: {
        SimulatedDaemon* lender = world.DaemonOf(NodeNumber{static_cast<uint32_t>(action.number >> 40)});
        ProcessId leased = lender ? lender->scheduler().WorkerOf({action.number}, id) : ProcessId{};
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
          outbox_.Free(action.location);
        }
        break;
      case ActionKind::kAddBorrower:
        if (action.id == actor_) world.loose.insert(actor_);
        [[fallthrough]];
      case ActionKind::kRemoveBorrower:
        Route(action.id.owner, {.kind = action.kind == ActionKind::kAddBorrower ? PeerMessageKind::kAddBorrower
                                                                                : PeerMessageKind::kRemoveBorrower,
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
          TaintIfDoomed(answer.contained);
        } else {
          answer.value_kind = static_cast<uint8_t>(ValueKind::kSystemError);
          answer.bytes = "ObjectLostError\nits owner no longer has the object";
        }
        Route(action.process, answer);
        if (action.object) owner.Unhold(action.object, actions_);
        break;
      }
      case ActionKind::kPlaceActor:
        Send(PlaceActor{.actor = action.id});
        break;
      case ActionKind::kWatchActor:
        Send(WatchActor{.actor = action.id});
        break;
      case ActionKind::kReleaseActor:
        Send(ReleaseActor{.actor = action.id});
        break;
      case ActionKind::kKillActor:
        world.Helped();
        Send(KillActor{.actor = action.id, .no_restart = 1});
        break;
      case ActionKind::kAskCancel:
        Route(action.process, {.kind = PeerMessageKind::kCancelObject, .id = action.id, .count = action.number});
        break;
      case ActionKind::kCancelRunning:
        Route(action.process, {.kind = PeerMessageKind::kCancelTask, .id = action.id, .count = action.number});
        break;
      case ActionKind::kBring:  // never: all simulated processes are on one node
      case ActionKind::kLetGo:
      case ActionKind::kEndHold:  // never: no simulated daemon asks
      case ActionKind::kAskAgain:
      case ActionKind::kForgetWorker:
      case ActionKind::kRunAgain:
        break;
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
  const uint64_t instance = InstanceOf(*task);
  Submitted& submitted = world.tasks.at(instance);
  if (submitted.spec.unsendable) {
    owner.FailPushed(task->handle, "UnschedulableError\ntoo large", world.now(), actions_);
    return true;
  }
  if (channel.tasks.size() >= channel.task_room || (world.faulty() && world.random.Chance(world.refuse_percent))) {
    world.coverage.Met(Happening::kTask, FaultKind::kFull);
    world.Note("push refused", id.value, worker.value, instance);
    return false;
  }
  if (task->cancelled) world.Fail("task " + std::to_string(instance) + " is pushed although it was cancelled");
  const bool creation = task->what->kind == TemplateKind::kCreation;
  if (!creation && task->attempt != submitted.lost + submitted.raised) {
    world.Fail("task " + std::to_string(instance) + " is pushed as attempt " + std::to_string(task->attempt) +
               ", but " + std::to_string(submitted.lost) + " were lost and " + std::to_string(submitted.raised) +
               " asked for a retry");
  }
  SimulatedTask frame;
  frame.ticket = channel.next_ticket++;
  frame.sent_ns = world.now();
  frame.task = task->handle;
  frame.instance = instance;
  frame.kind = task->what->kind;
  if (task->actor) {
    frame.actor = task->actor->handle->id;
    frame.incarnation = task->actor->incarnation;
    if (frame.actor == actor_) world.coverage.Did(Deed::kCallMadeToItself);
  }
  frame.attempt = task->attempt;
  frame.depth = owner.depth();
  for (uint32_t i = 0; i < task->what->num_returns; ++i) frame.returns.push_back(task->Return(i)->handle);
  if (task->borrowed_by_worker) {
    for (Object* object : *task->borrowed_by_worker) frame.mentioned.push_back(object->id);
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
  if (task->actor) {
    TaintIfDoomed(frame.mentioned);
    for (const auto& dependency : frame.dependencies) TaintIfDoomed({dependency.id});
  }
  task->ticket_sequence = frame.ticket;
  world.Note("push", id.value, worker.value, instance);
  SimulatedProcess* receiver = world.Find(worker);
  int64_t extra = world.Sent(Happening::kTask, this, receiver);
  if (world.IsFar(channel)) {
    world.SendAcross(channel, id, [&channel, receiver, frame = std::move(frame), extra] {
      channel.tasks.push_back(frame);
      if (receiver->alive) receiver->WakeExecutor(extra);
    });
    return true;
  }
  channel.tasks.push_back(std::move(frame));
  if (receiver->alive) receiver->WakeExecutor(extra);
  return true;
}

void SimulatedProcess::RevokeTask(const Action& action) {
  Task* task = owner.FindTask(action.number);
  if (!task || task->state != TaskState::kRevoking || task->push != action.id.index) return;
  const LeasedWorker& worker = owner.workers()[action.worker];
  SimulatedChannel& channel = *ChannelTo(worker.process);
  if (!channel.asynchronous) {
    bool revoked = channel.Revoke(task->ticket_sequence);
    world.Note("revoke", id.value, action.number, revoked);
    if (revoked && worker.dead && task->what->kind == TemplateKind::kCall) world.coverage.Did(Deed::kCallRequeued);
    if (revoked && task->cancelled) world.coverage.Did(Deed::kCancelledWhilePushed);
    if (!revoked && worker.dead) NoteLost(*task);
    owner.RevokeResolved(action.number, revoked, world.now(), actions_);
  } else if (worker.dead) {
    NoteLost(*task);  // it may have run
    owner.RevokeResolved(action.number, false, world.now(), actions_);
  } else {
    SimulatedProcess* receiver = world.Find(worker.process);
    int64_t extra = world.Sent(Happening::kRevokeAsked, this, receiver);
    if (world.IsFar(channel)) {
      world.SendAcross(channel, id, [&channel, receiver, ticket = task->ticket_sequence, this] {
        channel.asked.push_back({ticket, world.now()});
        if (!receiver->alive) return;
        world.Later(receiver, world.Delay(), Happening::kRevokeAsked, [receiver] { receiver->AnswerRevokes(); });
      });
      return;
    }
    channel.asked.push_back({task->ticket_sequence, world.now()});
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
  if (owner.finished_tasks() == known_finished_) return;
  known_finished_ = owner.finished_tasks();
  std::erase_if(pending_, [this](uint64_t instance) {
    Submitted& task = world.tasks.at(instance);
    if (task.returns.empty()) {
      task.finished = owner.FindTask(task.handle) == nullptr;
      return task.finished;
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

}  // namespace weft::core
