#include "runtime/executor.h"

#include <time.h>

#include <algorithm>

#include "base/clock.h"
#include "os/futex.h"

namespace weft::core {

Executor::Executor(Runtime& runtime, TaskRunner& runner) : runtime_(runtime), runner_(runner) {
  std::lock_guard lock(runtime_.mutex_);
  runtime_.executor_ = this;
  runtime_.executor_thread_ = std::this_thread::get_id();
  for (auto& [process, peer] : runtime_.submitters_) adopted_.push_back(peer.get());
  news_.store(!adopted_.empty());
}

Executor::~Executor() {
  std::lock_guard lock(runtime_.mutex_);
  runtime_.executor_ = nullptr;
}

void Executor::Adopt(Runtime::Peer* peer) {
  adopted_.push_back(peer);
  news_.store(true, std::memory_order_release);
}

void Executor::ExitWhenIdle(bool at_once) {
  if (at_once) exit_at_once_.store(true);
  exit_.store(true, std::memory_order_release);
}

void Executor::Run() {
  for (;;) {
    if (news_.load(std::memory_order_acquire)) {
      std::lock_guard lock(runtime_.mutex_);
      for (Runtime::Peer* peer : adopted_) {
        submitters_.push_back(std::make_unique<Submitter>());
        submitters_.back()->peer = peer;
      }
      adopted_.clear();
      news_.store(false, std::memory_order_relaxed);
    }
    if (Step()) continue;
    // Without work: take what concerns this process as an owner, then sleep for all.
    WakeSubmitters();
    std::unique_lock lock(runtime_.mutex_);
    runtime_.Drain();
    if (runtime_.stopped()) return;
    if (exit_.load(std::memory_order_acquire)) {
      // Objects of ours that others borrow keep this process; so do tasks that it has submitted.
      if (exit_at_once_.load() || (runtime_.owner_->live_tasks() == 0 && !runtime_.owner_->AnyBorrowed())) return;
    }
    if (news_.load(std::memory_order_relaxed)) continue;
    runtime_.polling_ = true;
    runtime_.doorbell_->DisarmBackground();
    runtime_.SetWakeUps(runtime_.any_waiters_ > 0);
    uint32_t seen = runtime_.event_.load();
    lock.unlock();
    runtime_.Flush();
    runner_.BeforeSleep();
    const auto something = [&] { return runtime_.AnyDue() || runtime_.event_.load() != seen; };
    if (!may_spin_ || !spin_.Spin([&] { return runtime_.doorbell_->AnyRung() || something(); })) {
      runtime_.doorbell_->SleepAsWaiter(WaiterState::kAsleepIdle, kNoDeadline, something);
    }
    may_spin_ = false;
    lock.lock();
    runtime_.polling_ = false;
    if (runtime_.others_waiting_ > 0) runtime_.Bump();
    runtime_.ArmBackground();
    lock.unlock();
    runner_.AfterSleep();
    // Bits only say that there is something; Step looks into every channel.
    runtime_.doorbell_->TakeRung(Audience::kExecutor, [](uint32_t) {});
  }
}

bool Executor::Step() {
  for (size_t i = 0; i < submitters_.size(); ++i) {
    Submitter& submitter = *submitters_[next_];
    Frame frame;
    if (!submitter.peer->channel->Peek(&frame)) {
      next_ = (next_ + 1) % submitters_.size();
      continue;
    }
    TakeFrame(submitter, frame);
    return true;
  }
  return false;
}

bool Executor::TakeFrame(Submitter& submitter, const Frame& frame) {
  auto type = static_cast<FrameType>(frame.type);
  if (type == FrameType::kDefine) {
    Define(submitter, frame.bytes);
    submitter.peer->channel->Pop();
    return true;
  }
  if (type == FrameType::kTask && submitter.peer->channel->Claim()) {
    RunTask(submitter, frame.bytes);
    return true;
  }
  submitter.peer->channel->Pop();  // revoked meanwhile
  return true;
}

void Executor::Define(Submitter& submitter, std::string_view bytes) {
  ByteReader in(bytes);
  auto number = in.Fixed<uint32_t>();
  auto what = std::make_unique<DefinedTemplate>();
  what->key = in.Fixed<FunctionKey>();
  what->num_returns = in.Fixed<uint32_t>();
  what->name = in.Bytes();
  what->function_name = in.Bytes();
  what->retry_exceptions = in.Bytes();
  what->stored_body = in.Fixed<Location>();
  what->body = in.Bytes();
  if (in.ok() && in.AtEnd()) submitter.templates[number] = std::move(what);
}

uint8_t* Executor::RoomForReply(Submitter& submitter, uint32_t size) {
  uint8_t* room = submitter.peer->channel->BeginSend(size);
  if (room) return room;
  // The submitter is behind: wake it and wait. Its background thread reads even if its program does not.
  runner_.BeforeSleep();
  while (!room && !submitter.peer->dead && !runtime_.stopped()) {
    submitter.peer->channel->Notify(Audience::kAnyone);
    timespec pause{0, 100'000};
    nanosleep(&pause, nullptr);
    room = submitter.peer->channel->BeginSend(size);
  }
  runner_.AfterSleep();
  return room;
}

void Executor::SendReply(Submitter& submitter, uint32_t size) {
  submitter.peer->channel->CommitSend(static_cast<uint8_t>(FrameType::kReply), false, size);
  if (submitter.peer->channel->WakeIsAsked()) {
    submitter.owes_wake_up = false;
    submitter.peer->channel->Notify(Audience::kAnyone);
  } else {
    submitter.owes_wake_up = true;  // at the latest when there is nothing more to do
  }
}

void Executor::WakeSubmitters() {
  for (auto& submitter : submitters_) {
    if (!submitter->owes_wake_up) continue;
    submitter->owes_wake_up = false;
    submitter->peer->channel->Notify(Audience::kAnyone);
  }
}

void Executor::HandBack(Submitter& submitter, uint64_t task, ReplyKind kind) {
  ReplyHead head{.task = task, .kind = static_cast<uint32_t>(kind)};
  uint8_t* room = submitter.peer->channel->BeginSend(sizeof head);
  while (!room && !submitter.peer->dead && !runtime_.stopped()) {
    submitter.peer->channel->Notify(Audience::kAnyone);
    timespec pause{0, 100'000};
    nanosleep(&pause, nullptr);
    room = submitter.peer->channel->BeginSend(sizeof head);
  }
  if (!room) return;
  FrameWriter(room).Put(head);
  submitter.peer->channel->CommitSend(static_cast<uint8_t>(FrameType::kReply), false, sizeof head);
  submitter.peer->channel->Notify(Audience::kAnyone);
  submitter.owes_wake_up = false;
}

void Executor::Describe(WaitFact& fact) const {
  fact.execution = runs_;
  fact.submitter = call_.submitter;
  fact.task = call_.task;
  fact.name = call_.what->name;
}

void Executor::HandBackQueued() {
  for (Runtime::Peer* peer : adopted_) {
    submitters_.push_back(std::make_unique<Submitter>());
    submitters_.back()->peer = peer;
  }
  adopted_.clear();
  news_.store(false, std::memory_order_relaxed);
  runtime_.doorbell_->TakeRung(Audience::kExecutor, [](uint32_t) {});
  for (auto& submitter : submitters_) {
    Frame frame;
    while (submitter->peer->channel->Peek(&frame)) {
      if (static_cast<FrameType>(frame.type) == FrameType::kDefine) {
        Define(*submitter, frame.bytes);
        submitter->peer->channel->Pop();
      } else if (submitter->peer->channel->Claim()) {
        uint64_t task = ByteReader(frame.bytes).Fixed<TaskHead>().task;
        submitter->peer->channel->Pop();
        HandBack(*submitter, task, ReplyKind::kHandedBackBlocked);
      } else {
        submitter->peer->channel->Pop();
      }
    }
  }
  WakeSubmitters();
}

void Executor::RunTask(Submitter& submitter, std::string_view bytes) {
  ByteReader in(bytes);
  auto head = in.Fixed<TaskHead>();
  call_.dependencies.clear();
  returns_.clear();
  auto what = submitter.templates.find(head.template_number);
  bool fits = in.ok() && what != submitter.templates.end() && head.num_returns <= in.remaining() / sizeof(uint64_t) &&
              head.num_mentioned <= in.remaining() / sizeof(ObjectId) &&
              head.num_dependencies <= in.remaining() / sizeof(DependencyHead);
  const ProcessId from = submitter.peer->process;
  std::vector<ObjectId> mentioned;
  struct Pending {
    ObjectId id;
    Location location;
    size_t argument;
  };
  std::vector<Pending> stored;
  bool missing = false;
  if (fits) {
    for (uint32_t i = 0; i < head.num_returns; ++i) returns_.push_back({from, in.Fixed<uint64_t>()});
    for (uint32_t i = 0; i < head.num_mentioned; ++i) mentioned.push_back(in.Fixed<ObjectId>());
    for (uint32_t i = 0; i < head.num_dependencies && in.ok(); ++i) {
      auto dependency = in.Fixed<DependencyHead>();
      auto value = in.Raw(dependency.size);
      TaskArgument argument;
      switch (static_cast<DependencyKind>(dependency.kind)) {
        case DependencyKind::kInline:
          argument.bytes = value;
          break;
        case DependencyKind::kStored:
          stored.push_back({dependency.id, ByteReader(value).Fixed<Location>(), call_.dependencies.size()});
          break;
        case DependencyKind::kEarlier: {
          const WorkerMachine::Remembered* earlier = machine_.Recall(dependency.id);
          if (!earlier) {
            missing = true;
          } else if (earlier->stored) {
            stored.push_back({dependency.id, earlier->location, call_.dependencies.size()});
          } else {
            argument.bytes = earlier->bytes;
          }
          break;
        }
        default:
          fits = false;
      }
      call_.dependencies.push_back(argument);
    }
    call_.arguments = in.Raw(head.arguments_size);
    fits = fits && in.ok();
  }
  if (!fits || missing) {
    submitter.peer->channel->Pop();
    HandBack(submitter, head.task, ReplyKind::kHandedBack);
    return;
  }

  if (!mentioned.empty() || !stored.empty()) {
    std::unique_lock lock(runtime_.mutex_);
    Owner& owner = *runtime_.owner_;
    for (ObjectId id : mentioned) machine_.Accept(owner, id, true);
    for (Pending& pending : stored) {
      call_.dependencies[pending.argument].object = machine_.Accept(owner, pending.id, false);
    }
  }
  bool lost = false;
  for (Pending& pending : stored) {
    TaskArgument& argument = call_.dependencies[pending.argument];
    Result<const uint8_t*> data = runtime_.MapStored(pending.location);
    while (!data && data.error().kind == ErrorKind::kTimeout) data = runtime_.MapStored(pending.location);
    if (!data || !argument.object) {
      lost = true;
      break;
    }
    argument.bytes = {reinterpret_cast<const char*>(*data), pending.location.size};
    argument.stored = true;
  }

  call_.what = what->second.get();
  call_.submitter = from;
  call_.task = head.task;
  call_.attempt = head.attempt;
  call_.depth = head.depth;
  may_spin_ = head.may_spin != 0;
  outcome_.kind = ReplyKind::kValues;
  outcome_.values.clear();
  outcome_.error.clear();
  if (lost) {
    submitter.peer->channel->Pop();
    {
      std::unique_lock lock(runtime_.mutex_);
      machine_.Decline(*runtime_.owner_, runtime_.actions_);
      runtime_.Perform();
    }
    if (runtime_.has_outgoing_.load(std::memory_order_relaxed)) runtime_.Flush();
    HandBack(submitter, head.task, ReplyKind::kHandedBack);
    return;
  }
  runner_.Prepare(call_);
  submitter.peer->channel->Pop();
  runtime_.owner_->set_depth(head.depth + 1);
  ++runs_;
  runner_.Run(returns_, outcome_);

  // Stored results are visible to others from here on.
  for (TaskReturn& value : outcome_.values) {
    if (value.room.data) runtime_.writer_.Seal(value.room.location);
  }

  ReplyHead reply{.task = head.task, .kind = static_cast<uint32_t>(outcome_.kind)};
  std::vector<GivenBack> given_back;
  std::vector<uint64_t> retained;
  bool references = machine_.holds_references();
  for (TaskReturn& value : outcome_.values) references = references || !value.contained.empty();
  if (references) {
    std::unique_lock lock(runtime_.mutex_);
    Owner& owner = *runtime_.owner_;
    Actions& actions = runtime_.actions_;
    // The receiver of our values borrows what is inside them, before we let go of anything.
    for (TaskReturn& value : outcome_.values) {
      for (Object* object : value.contained) owner.Mention(object, from, actions);
    }
    runtime_.Perform();
    runtime_.DrainDrops();
    runtime_.Perform();
    machine_.Release(owner, from, given_back, retained, actions);
    runtime_.Perform();
  }
  // What was routed must be on its way before the reply, so that an owner hears of a borrower before it can lose it.
  if (runtime_.has_outgoing_.load(std::memory_order_relaxed)) runtime_.Flush();

  uint32_t size = sizeof reply + static_cast<uint32_t>(outcome_.error.size() + given_back.size() * sizeof(GivenBack) +
                                                       retained.size() * sizeof(uint64_t));
  for (TaskReturn& value : outcome_.values) {
    size += sizeof(ValueHead) + static_cast<uint32_t>(value.contained.size() * sizeof(ObjectId));
    size += value.room.data ? sizeof(Location) : static_cast<uint32_t>(value.bytes.size());
  }
  reply.num_values = static_cast<uint32_t>(outcome_.values.size());
  reply.error_size = static_cast<uint32_t>(outcome_.error.size());
  reply.num_given_back = static_cast<uint32_t>(given_back.size());
  reply.num_retained = static_cast<uint32_t>(retained.size());
  uint8_t* room = RoomForReply(submitter, size);
  if (!room) return;  // the submitter is dead
  FrameWriter out(room);
  out.Put(reply);
  for (TaskReturn& value : outcome_.values) {
    ValueHead value_head{.kind = static_cast<uint32_t>(value.room.data ? ValueKind::kStored : ValueKind::kInline),
                         .num_contained = static_cast<uint32_t>(value.contained.size()),
                         .size = static_cast<uint32_t>(value.bytes.size())};
    out.Put(value_head);
    if (value.room.data) {
      out.Put(value.room.location);
    } else {
      out.PutBytes(value.bytes);
    }
    for (Object* object : value.contained) out.Put(object->id);
  }
  out.PutBytes(outcome_.error);
  for (const GivenBack& item : given_back) out.Put(item);
  for (uint64_t index : retained) out.Put(index);
  SendReply(submitter, size);

  for (size_t i = 0; i < outcome_.values.size(); ++i) {
    TaskReturn& value = outcome_.values[i];
    machine_.Remember(returns_[i], value.room.data != nullptr, value.bytes, value.room.location,
                      !value.contained.empty());
  }
  for (TaskReturn& value : outcome_.values) {
    for (Object* object : value.contained) runtime_.DropReference(object);
  }
}

}  // namespace weft::core
