#include "runtime/executor.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "os/futex.h"

namespace weft::core {
namespace {

constexpr uint32_t kMaxStreak = 64;
// How long a worker that exits waits for its last replies to be received.
constexpr int64_t kLastRepliesNs = 2'000'000'000;

}  // namespace

Executor::Executor(Runtime& runtime, TaskRunner& runner)
    : runtime_(runtime), runner_(runner), marks_(runtime_.doorbell()) {
  std::lock_guard lock(runtime_.mutex());
  runtime_.Attach(this);
  runtime_.ForEachSubmitter([this](Runtime::Peer* peer) { adopted_.push_back(peer); });
  news_.store(!adopted_.empty());
}

Executor::~Executor() {
  std::lock_guard lock(runtime_.mutex());
  runtime_.Detach();
}

void Executor::Adopt(Runtime::Peer* peer) {
  adopted_.push_back(peer);
  news_.store(true, std::memory_order_release);
}

void Executor::ExitWhenIdle(bool at_once) {
  if (at_once) exit_at_once_.store(true);
  exit_.store(true, std::memory_order_release);
}

void Executor::TakeAdopted() {
  for (Runtime::Peer* peer : adopted_) {
    submitters_.push_back(std::make_unique<Submitter>());
    submitters_.back()->peer = peer;
  }
  adopted_.clear();
  news_.store(false, std::memory_order_relaxed);
}

void Executor::Run() {
  RunUntilLeaving();
  // The last replies must reach the other side before this process ends.
  std::vector<SharedStream*> streams;
  {
    std::lock_guard lock(runtime_.mutex());
    runtime_.ForEachSubmitter([&streams](Runtime::Peer* peer) {
      if (peer->channel.stream() && !peer->dead) streams.push_back(peer->channel.stream());
    });
  }
  const int64_t deadline_ns = NowNs() + kLastRepliesNs;
  for (SharedStream* stream : streams) stream->AwaitSent(deadline_ns);
}

void Executor::RunUntilLeaving() {
  for (;;) {
    if (news_.load(std::memory_order_acquire)) {
      std::lock_guard lock(runtime_.mutex());
      TakeAdopted();
    }
    if (Step()) {
      if (mode_.loop) return runner_.RunLoop();
      continue;
    }
    if (Idle(kNoDeadline)) continue;
    stepping_ = true;  // for good: no thread takes calls any more
    return;
  }
}

int Executor::Poll(int limit) {
  if (news_.load(std::memory_order_acquire)) {
    std::lock_guard lock(runtime_.mutex());
    TakeAdopted();
  }
  int count = 0;
  while (count < limit && Step()) ++count;
  if (count < limit) WakeSubmitters();
  if (exit_.load(std::memory_order_acquire) || runtime_.stopped()) {
    std::lock_guard lock(runtime_.mutex());
    if (MayLeave()) return -1;
  }
  return count;
}

void Executor::Sleep(int64_t deadline_ns) { Idle(deadline_ns); }

void Executor::Rest() {
  runtime_.SetLoopRests(true);
  // Messages that concern only the link thread wake all; that is no reason to turn the loop.
  do {
    if (!Idle(kNoDeadline)) break;
  } while (!was_disturbed_ && !runtime_.stopped() && !exit_.load(std::memory_order_acquire) && !AnythingToTake());
  runtime_.SetLoopRests(false);
}

bool Executor::AnythingToTake() {
  if (news_.load(std::memory_order_acquire)) return true;
  Frame frame;
  return std::any_of(submitters_.begin(), submitters_.end(), [&](const auto& submitter) {
    return submitter->peer->channel.Peek(&frame) && MayTake(*submitter, frame);
  });
}

void Executor::Wake() {
  woken_.store(true);
  runtime_.waiters().TellPoller();
}

bool Executor::MayLeave() {
  if (runtime_.stopped()) return true;
  if (!exit_.load(std::memory_order_acquire)) return false;
  if (exit_at_once_.load()) return true;
  if (stepping_) return false;
  {
    std::lock_guard running(running_mutex_);
    if (!running_.empty()) return false;
  }
  // Objects of ours that others borrow keep this process; so do tasks that it has submitted, and its actors.
  Owner& owner = runtime_.owner();
  return owner.live_tasks() == 0 && !owner.AnyBorrowed() && !owner.AnyActors();
}

// Their tasks and calls run first: a caller may have ended normally.
void Executor::ForgetEndedSubmitters() {
  if (stepping_) return;  // another thread is about to take a call, perhaps of one of them
  submitter_ended_.store(false);
  std::vector<std::unique_ptr<Submitter>> ended;
  {
    std::lock_guard lock(runtime_.mutex());
    TakeAdopted();
    for (std::unique_ptr<Submitter>& submitter : submitters_) {
      if (!submitter->peer->dead) continue;
      if (IsInUse(*submitter)) {
        submitter_ended_.store(true);
        continue;
      }
      StopAwaiting(*submitter);
      runtime_.ForgetSubmitter(std::exchange(submitter->peer, nullptr)->process);
      ended.push_back(std::move(submitter));
    }
    std::erase(submitters_, nullptr);
  }
  next_ = 0;
  streak_ = 0;
  for (const auto& submitter : ended) {
    for (const auto& [number, what] : submitter->templates) runner_.Forget(*what);
  }
}

bool Executor::IsInUse(const Submitter& submitter) {
  Frame frame;
  if (submitter.peer->channel.Peek(&frame)) return true;
  {
    std::lock_guard running(running_mutex_);
    for (const auto& [number, execution] : running_) {
      if (execution->submitter == &submitter) return true;
    }
  }
  // In this order: a thread that has taken it from owed_ was counted before.
  return owed_.load() == &submitter || waking_.load() > 0;
}

bool Executor::Idle(int64_t deadline_ns) {
  // Without work: take what concerns this process as an owner, then sleep for all.
  WakeSubmitters();
  if (submitter_ended_.load()) ForgetEndedSubmitters();
  std::unique_lock lock(runtime_.mutex());
  runtime_.Drain();
  if (MayLeave()) return false;
  if (news_.load(std::memory_order_relaxed)) return true;
  // Another thread of ours may poll for all, but it does not look for tasks: we poll instead of it.
  Waiters& waiters = runtime_.waiters();
  waiters.Claim(idle_);
  const bool has_rival = waiters.poller() != nullptr;
  if (has_rival) {
    lock.unlock();
    runner_.BeforeSleep();
    lock.lock();
    while (waiters.poller()) {
      idle_.woken.store(0);
      waiters.TellPoller();
      lock.unlock();
      FutexWait(&idle_.woken, 0, kNoDeadline);
      lock.lock();
    }
  }
  idle_.woken.store(0);
  waiters.BeginPolling(idle_);
  runtime_.doorbell().DisarmBackground();
  runtime_.SetWakeUps();
  // No bell rings for a copy. One that came after Step had looked is seen here, a later one is news.
  const uint32_t seen = waiters.news() - (std::exchange(copy_came_, false) ? 1 : 0);
  lock.unlock();
  runtime_.Flush();
  if (!has_rival) runner_.BeforeSleep();
  const auto something = [&] { return runtime_.AnyDue() || waiters.news() != seen || woken_.load(); };
  if (!may_spin_.load(std::memory_order_relaxed) || !spin_.Spin(runtime_.SpinLimitNs(), [&] {
        return runtime_.doorbell().AnyRung() || something() || runtime_.ReadStreams();
      })) {
    SleepOutcome slept = runtime_.SleepAsWaiter(WaiterState::kAsleepIdle, deadline_ns, something);
    was_disturbed_ = slept == SleepOutcome::kInterrupted;
    may_spin_.store(false, std::memory_order_relaxed);
  } else {
    // A bell may ring late, for a task that was found already: the permission to spin stays.
    was_disturbed_ = false;
  }
  was_disturbed_ = woken_.exchange(false) || was_disturbed_;
  lock.lock();
  waiters.EndClaim();
  waiters.EndPolling();
  waiters.HandOver();
  runtime_.ArmBackground();
  lock.unlock();
  runner_.AfterSleep();
  // Bits only say that there is something; Step looks into every channel.
  runtime_.doorbell().TakeRung(Audience::kExecutor, [](uint32_t) {});
  return true;
}

void Executor::TakeMore() {
  bool any = false;
  while (Step()) any = true;
  // The main thread may have waited for this thread, to exit or to forget a submitter.
  if (any && (exit_.load(std::memory_order_acquire) || submitter_ended_.load())) Wake();
}

bool Executor::Step() {
  if (exit_at_once_.load(std::memory_order_relaxed)) return false;  // calls that are still queued fail
  // Another thread is taking a call, and goes on afterwards.
  if (stepping_) return false;
  for (size_t i = 0; i < submitters_.size(); ++i) {
    Submitter& submitter = *submitters_[next_];
    Frame frame;
    // Callers of an actor take turns; a lease has one holder at a time.
    if (streak_ >= kMaxStreak || !submitter.peer->channel.Peek(&frame) || !MayTake(submitter, frame)) {
      next_ = (next_ + 1) % submitters_.size();
      if (streak_ >= kMaxStreak) i = static_cast<size_t>(-1);  // look at it again if no other submitter has anything
      streak_ = 0;
      continue;
    }
    ++streak_;
    stepping_ = mode_.concurrent && !mode_.loop;  // otherwise no other thread takes calls
    TakeFrame(submitter, frame);
    stepping_ = false;
    return true;
  }
  return false;
}

bool Executor::MayTake(Submitter& submitter, const Frame& frame) {
  if (static_cast<FrameType>(frame.type) != FrameType::kTask) return true;
  if (runtime_.in_cluster() && !ArgumentsAreHere(submitter, frame, false)) return false;
  if (constructed_ && !mode_.concurrent) return true;
  auto what = submitter.templates.find(ByteReader(frame.bytes).Fixed<TaskHead>().template_number);
  if (what == submitter.templates.end() || what->second->kind != TemplateKind::kCall) return true;
  if (!constructed_) return false;
  std::lock_guard running(running_mutex_);
  if (groups_.contains(what->second->group)) return true;
  return running_ungrouped_ < mode_.limit;
}

void Executor::TakeFrame(Submitter& submitter, const Frame& frame) {
  auto type = static_cast<FrameType>(frame.type);
  if (type == FrameType::kDefine) {
    Define(submitter, frame.bytes);
    submitter.peer->channel.Pop();
  } else if (type == FrameType::kLease) {
    TakeLease(frame.bytes);
    submitter.peer->channel.Pop();
  } else if (type == FrameType::kTask && submitter.peer->channel.Claim()) {
    if (owes_streams_.load(std::memory_order_relaxed)) {
      IsProven(submitter, frame.bytes) ? GatherReplies() : WakeSubmitters();
    }
    RunTask(submitter, frame.bytes);
  } else {
    PopTask(submitter);  // revoked meanwhile
  }
}

void Executor::TakeLease(std::string_view bytes) {
  ByteReader in(bytes);
  AssignedLease lease;
  lease.lease = in.Fixed<LeaseId>();
  lease.actor = in.Fixed<ObjectId>();
  lease.incarnation = in.Fixed<uint32_t>();
  auto count = in.Fixed<uint32_t>();
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    std::string name(in.Bytes());
    lease.resources.emplace_back(std::move(name), in.Fixed<int64_t>());
  }
  count = in.Fixed<uint32_t>();
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    auto number = in.Fixed<uint32_t>();
    lease.gpus.emplace_back(number, in.Fixed<int64_t>());
  }
  if (!in.ok() || !in.AtEnd()) return;
  lease_ = std::move(lease);
  runner_.Assigned(lease_);
}

void Executor::Define(Submitter& submitter, std::string_view bytes) {
  ByteReader in(bytes);
  auto number = in.Fixed<uint32_t>();
  auto what = std::make_unique<DefinedTemplate>();
  what->kind = in.Fixed<TemplateKind>();
  what->key = in.Fixed<FunctionKey>();
  what->num_returns = in.Fixed<uint32_t>();
  what->max_retries = in.Fixed<int32_t>();
  what->method = in.Bytes();
  what->group = in.Bytes();
  what->actor_options = in.Bytes();
  what->name = in.Bytes();
  what->function_name = in.Bytes();
  what->retry_exceptions = in.Bytes();
  what->stored_body = in.Fixed<Location>();
  what->body = in.Bytes();
  what->event_name = runtime_.log().NameId(what->name);
  if (in.ok() && in.AtEnd()) submitter.templates[number] = std::move(what);
}

void Executor::Describe(WaitFact& fact, bool main_thread) {
  const uint64_t number = Runtime::CurrentExecution();
  if (number == 0) return;
  auto fill = [&](const TaskCall& call) {
    fact.execution = number;
    fact.submitter = call.submitter;
    fact.task = call.task;
    fact.name = call.what->name;
  };
  if (main_thread && main_.call.execution == number) {
    fill(main_.call);
    fact.group = kAllGroups;
    return;
  }
  std::lock_guard running(running_mutex_);
  auto found = running_.find(number);
  if (found == running_.end()) return;
  fill(found->second->call);
  // While a coroutine waits in get, the whole loop does.
  fact.group = main_thread                                         ? kAllGroups
               : groups_.contains(found->second->call.what->group) ? found->second->call.what->group
                                                                   : "";
}

void Executor::DescribeCall(WaitFact& fact, uint64_t execution) {
  std::lock_guard running(running_mutex_);
  auto found = running_.find(execution);
  if (found == running_.end()) return;
  const TaskCall& call = found->second->call;
  fact.execution = execution;
  fact.submitter = call.submitter;
  fact.task = call.task;
  fact.name = call.what->name;
  fact.group = groups_.contains(call.what->group) ? call.what->group : "";
}

std::vector<SlotFact> Executor::Slots() const {
  if (!mode_.concurrent) return {{kAllGroups, 1}};
  std::vector<SlotFact> slots{{"", mode_.limit}};
  for (const auto& [name, limit] : mode_.groups) slots.push_back({name, limit});
  return slots;
}

bool Executor::HandBackQueued() {
  // That task would be handed back too, and run twice; its submitter takes the others back.
  if (reading_) return true;
  if (is_actor_) return true;  // its calls can run nowhere else
  bool all = true;
  TakeAdopted();
  runtime_.doorbell().TakeRung(Audience::kExecutor, [](uint32_t) {});
  for (auto& submitter : submitters_) {
    Frame frame;
    while (submitter->peer->channel.Peek(&frame)) {
      if (static_cast<FrameType>(frame.type) == FrameType::kDefine) {
        Define(*submitter, frame.bytes);
        submitter->peer->channel.Pop();
      } else if (static_cast<FrameType>(frame.type) == FrameType::kLease) {
        break;  // of a lease that begins after this task; its tasks are handed back when it is seen
      } else if (!submitter->peer->channel.BeginSend(sizeof(ReplyHead))) {
        submitter->peer->channel.Notify(Audience::kAnyone);
        all = all && submitter->peer->dead;
        break;
      } else if (StopAwaiting(*submitter); submitter->peer->channel.Claim()) {
        uint64_t task = ByteReader(frame.bytes).Fixed<TaskHead>().task;
        submitter->peer->channel.Pop();
        HandBack(*submitter, task, ReplyKind::kHandedBackBlocked);
      } else {
        submitter->peer->channel.Pop();
      }
    }
  }
  WakeSubmitters();
  return all;
}

Executor::Begun Executor::Begin(Execution& execution, Submitter& submitter, std::string_view bytes) {
  ByteReader in(bytes);
  auto head = in.Fixed<TaskHead>();
  TaskCall& call = execution.call;
  execution.submitter = &submitter;
  call.task = head.task;
  call.dependencies.clear();
  execution.returns.clear();
  auto what = submitter.templates.find(head.template_number);
  bool fits = in.ok() && what != submitter.templates.end() && head.num_returns <= in.remaining() / sizeof(uint64_t) &&
              head.num_borrowed <= in.remaining() / sizeof(ObjectId) &&
              head.num_dependencies <= in.remaining() / sizeof(DependencyHead);
  const ProcessId from = submitter.peer->process;
  std::vector<ObjectId> borrowed;
  struct Pending {
    ObjectId id;
    Location location;
    size_t argument;
  };
  std::vector<Pending> stored;
  bool missing = false;
  std::string impossible;
  std::vector<Location> gone;     // with their nodes
  std::vector<ObjectId> orphans;  // their owners are dead
  bool all_gone = true;           // every impossible argument is
  if (fits) {
    for (uint32_t i = 0; i < head.num_returns; ++i) execution.returns.push_back({from, in.Fixed<uint64_t>()});
    call.first_return = execution.returns.empty() ? head.task : execution.returns[0].index;
    for (uint32_t i = 0; i < head.num_borrowed; ++i) borrowed.push_back(in.Fixed<ObjectId>());
    for (uint32_t i = 0; i < head.num_dependencies && in.ok(); ++i) {
      auto dependency = in.Fixed<DependencyHead>();
      auto value = in.Raw(dependency.size);
      TaskArgument argument;
      switch (static_cast<DependencyKind>(dependency.kind)) {
        case DependencyKind::kInline:
          argument.bytes = value;
          break;
        case DependencyKind::kStored:
          stored.push_back({dependency.id, ByteReader(value).Fixed<Location>(), call.dependencies.size()});
          break;
        case DependencyKind::kEarlier: {
          const WorkerMachine::Remembered* earlier = machine_.Recall(dependency.id);
          if (!earlier) {
            missing = true;
          } else if (earlier->stored) {
            stored.push_back({dependency.id, earlier->location, call.dependencies.size()});
          } else {
            argument.bytes = earlier->bytes;
          }
          break;
        }
        default:
          fits = false;
      }
      call.dependencies.push_back(argument);
    }
    call.arguments = in.Raw(head.arguments_size);
    fits = fits && in.ok();
  }
  if (!fits || missing) {
    PopTask(submitter);
    HandBack(submitter, head.task, ReplyKind::kHandedBack);
    return Begun::kHandedBack;
  }

  if (!borrowed.empty() || !stored.empty()) {
    std::unique_lock lock(runtime_.mutex());
    Owner& owner = runtime_.owner();
    for (ObjectId id : borrowed) machine_.Accept(owner, id, true, execution.references);
    for (Pending& pending : stored) {
      Object* object = machine_.Accept(owner, pending.id, false, execution.references);
      call.dependencies[pending.argument].object = object;
      // A copy from another node is counted elsewhere.
      if (!runtime_.IsElsewhere(pending.location) && owner.MustBeRegistered(pending.id)) orphans.push_back(pending.id);
      if (!object || !runtime_.in_cluster() || !runtime_.IsElsewhere(pending.location)) continue;
      Copies::Copy* copy = runtime_.copies().Find(pending.location);
      if (copy == nullptr) continue;  // MapStored will wait for it
      if (copy->state == Copies::Copy::State::kFailed) {
        if (impossible.empty() || !copy->node_gone) impossible = *copy->error;
        copy->node_gone ? gone.push_back(pending.location) : void(all_gone = false);
      }
      if (copy->state != Copies::Copy::State::kHere) continue;
      // The object's from now on: a view of it may outlive the task.
      owner.CameWithTask(object, pending.location, copy->place);
      if (std::find(copy->objects.begin(), copy->objects.end(), object) == copy->objects.end()) {
        copy->objects.push_back(object);
      }
      pending.location = copy->place;
    }
  }
  bool lost = false;
  if (!impossible.empty()) stored.clear();
  for (ObjectId id : orphans) runtime_.HoldOrphan(id);
  for (Pending& pending : stored) {
    TaskArgument& argument = call.dependencies[pending.argument];
    Result<const uint8_t*> data = runtime_.MapStored(pending.location);
    while (!data && data.error().kind == ErrorKind::kTimeout) data = runtime_.MapStored(pending.location);
    if (!data && std::find(orphans.begin(), orphans.end(), pending.id) != orphans.end()) {
      // Freed before we could register, and it cannot be made again.
      {
        std::lock_guard lock(runtime_.mutex());
        impossible = runtime_.owner().WhyOrphaned(pending.id);
      }
      all_gone = false;
      break;
    }
    if (!data || !argument.object) {
      lost = true;
      break;
    }
    argument.bytes = {reinterpret_cast<const char*>(*data), pending.location.size};
    argument.stored = true;
  }

  call.what = what->second.get();
  call.submitter = from;
  call.execution = next_execution_++;
  call.attempt = head.attempt;
  call.depth = head.depth;
  may_spin_.store(head.may_spin != 0, std::memory_order_relaxed);
  execution.outcome.kind = ReplyKind::kValues;
  execution.outcome.values.clear();
  execution.outcome.error.clear();
  // The owner can have them made again.
  const bool to_be_made = !gone.empty() && all_gone && call.what->kind != TemplateKind::kCreation;
  if (lost || to_be_made) {
    PopTask(submitter);
    {
      std::unique_lock lock(runtime_.mutex());
      machine_.Decline(runtime_.owner(), execution.references, runtime_.actions());
      runtime_.Perform();
    }
    runtime_.FlushIfAny();
    if (to_be_made) {
      HandBack(submitter, head.task, ReplyKind::kArgumentLost, gone, impossible);
    } else {
      HandBack(submitter, head.task, ReplyKind::kHandedBack);
    }
    return Begun::kHandedBack;
  }
  if (impossible.empty()) return Begun::kReady;
  execution.outcome.kind = ReplyKind::kRefused;
  execution.outcome.error = std::move(impossible);
  return Begun::kImpossible;
}

void Executor::RunTask(Submitter& submitter, std::string_view bytes) {
  if (mode_.concurrent) {
    auto execution = std::make_unique<Execution>();
    reading_ = true;
    const Begun begun = Begin(*execution, submitter, bytes);
    if (begun == Begun::kReady) runner_.Prepare(execution->call);
    reading_ = false;
    if (begun == Begun::kImpossible) {
      PopTask(submitter);
      NoteBegin(*execution);
      return Reply(*execution, true);
    }
    if (begun != Begun::kReady) return;
    PopTask(submitter);
    return StartConcurrent(std::move(execution));
  }
  reading_ = true;
  const Begun begun = Begin(main_, submitter, bytes);
  const bool constructs = begun != Begun::kHandedBack && main_.call.what->kind == TemplateKind::kCreation;
  if (constructs) is_actor_ = true;
  if (begun == Begun::kReady) {
    if (!is_actor_) marks_.TaskBegins(main_.call.what->event_name, main_.call.what->name);
    runner_.Prepare(main_.call);
  }
  reading_ = false;
  if (begun == Begun::kHandedBack) return;
  if (begun == Begun::kImpossible) {
    PopTask(submitter);
    NoteBegin(main_);
    if (constructs) Constructed(main_);
    return Reply(main_, true);
  }
  PopTask(submitter);
  runtime_.owner().set_depth(main_.call.depth + 1);
  Runtime::SetCurrentExecution(main_.call.execution);
  current_execution_.store(main_.call.execution, std::memory_order_relaxed);
  current_submitter_.store(main_.call.submitter.value, std::memory_order_release);
  current_task_.store(main_.call.task);
  if (num_early_cancels_.load() > 0) TakeEarlyCancel(main_.call.submitter, main_.call.task, main_.call.execution);
  NoteBegin(main_);
  runner_.Run(main_.returns, main_.outcome);
  ++main_.call.what->ended_well;
  current_task_.store(0, std::memory_order_release);
  Runtime::SetCurrentExecution(0);
  if (constructs) Constructed(main_);
  Reply(main_, true);
}

void Executor::Constructed(Execution& execution) {
  const bool ok = execution.outcome.kind == ReplyKind::kValues;
  if (ok) {
    ActorMode mode = runner_.mode();
    std::lock_guard lock(runtime_.mutex());  // Slots
    constructed_ = true;
    mode_ = std::move(mode);
    for (const auto& [name, limit] : mode_.groups) groups_[name].limit = limit;
  }
  {
    std::unique_lock lock(runtime_.mutex());
    runtime_.Send(ActorConstructed{.actor = lease_.actor, .ok = ok, .error = execution.outcome.error});
  }
  runtime_.Flush();
}

}  // namespace weft::core
