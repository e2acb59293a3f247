#include "runtime/executor.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "os/futex.h"

namespace weft::core {
namespace {

// Of calls that have ended and are not run again, less than so many may be told to a caller on another node as "may
// have run", if this process crashes in a method that has run here so often before. Each in a message of its own would
// halve the rate of calls.
constexpr uint32_t kMostPreciousOwed = 8;
constexpr uint32_t kProven = 16;

constexpr uint32_t kMaxStreak = 64;
constexpr size_t kMaxEarlyCancels = 256;
// Tasks whose arguments come from other nodes while those before them run, and how much of that at once.
constexpr size_t kMostAhead = 7;
constexpr uint64_t kMostBytesAhead = 32 << 20;
// The exit code of a worker whose task was cancelled by force.
constexpr int kForcedExit = 75;
// How long a worker that leaves waits for its last replies to be received.
constexpr int64_t kLastRepliesNs = 2'000'000'000;

}  // namespace

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
  // What was replied last must reach the other side before this process ends.
  std::vector<SharedStream*> streams;
  {
    std::lock_guard lock(runtime_.mutex_);
    for (auto& [process, peer] : runtime_.submitters_) {
      if (peer->channel.stream() && !peer->dead) streams.push_back(peer->channel.stream());
    }
  }
  const int64_t deadline_ns = NowNs() + kLastRepliesNs;
  for (SharedStream* stream : streams) stream->AwaitSent(deadline_ns);
}

void Executor::RunUntilLeaving() {
  for (;;) {
    if (news_.load(std::memory_order_acquire)) {
      std::lock_guard lock(runtime_.mutex_);
      TakeAdopted();
    }
    if (Step()) {
      if (mode_.loop) return runner_.RunLoop();
      continue;
    }
    if (!Idle(kNoDeadline)) return;
  }
}

int Executor::Poll(int limit) {
  if (news_.load(std::memory_order_acquire)) {
    std::lock_guard lock(runtime_.mutex_);
    TakeAdopted();
  }
  int count = 0;
  while (count < limit && Step()) ++count;
  if (count < limit) WakeSubmitters();
  if (exit_.load(std::memory_order_acquire) || runtime_.stopped()) {
    std::lock_guard lock(runtime_.mutex_);
    if (MayLeave()) return -1;
  }
  return count;
}

void Executor::Sleep(int64_t deadline_ns) { Idle(deadline_ns); }

void Executor::Rest() {
  runtime_.SetLoopRests(true);
  // Messages that only the link thread is concerned with wake all; that is no reason to turn the loop.
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
  runtime_.Bump();
}

bool Executor::MayLeave() {
  if (runtime_.stopped()) return true;
  if (!exit_.load(std::memory_order_acquire)) return false;
  if (exit_at_once_.load()) return true;
  {
    std::lock_guard running(running_mutex_);
    if (!running_.empty()) return false;
  }
  // Objects of ours that others borrow keep this process; so do tasks that it has submitted, and its actors.
  Owner& owner = *runtime_.owner_;
  return owner.live_tasks() == 0 && !owner.AnyBorrowed() && !owner.AnyActors();
}

bool Executor::Idle(int64_t deadline_ns) {
  // Without work: take what concerns this process as an owner, then sleep for all.
  WakeSubmitters();
  std::unique_lock lock(runtime_.mutex_);
  runtime_.Drain();
  if (MayLeave()) return false;
  if (news_.load(std::memory_order_relaxed)) return true;
  // Another thread of ours may poll for all, but it does not look for tasks: we poll instead of it.
  runtime_.executor_idle_ = true;
  const bool has_rival = runtime_.polling_;
  if (has_rival) {
    lock.unlock();
    runner_.BeforeSleep();
    lock.lock();
    while (runtime_.polling_) {
      ++runtime_.others_waiting_;
      uint32_t seen = runtime_.event_.load();
      runtime_.doorbell_->WakeWaiter();
      lock.unlock();
      FutexWait(&runtime_.event_, seen, kNoDeadline);
      lock.lock();
      --runtime_.others_waiting_;
    }
  }
  runtime_.polling_ = true;
  runtime_.doorbell_->DisarmBackground();
  runtime_.SetWakeUps(runtime_.any_waiters_ > 0);
  // No bell rings for a copy. One that came after Step had looked is seen here, a later one moves event_.
  uint32_t seen = runtime_.event_.load() - (std::exchange(copy_came_, false) ? 1 : 0);
  lock.unlock();
  runtime_.Flush();
  if (!has_rival) runner_.BeforeSleep();
  const auto something = [&] { return runtime_.AnyDue() || runtime_.event_.load() != seen || woken_.load(); };
  if (!may_spin_ || !spin_.Spin(runtime_.SpinLimitNs(), [&] {
        return runtime_.doorbell_->AnyRung() || something() || runtime_.ReadStreams();
      })) {
    SleepOutcome slept = runtime_.SleepAsWaiter(WaiterState::kAsleepIdle, deadline_ns, something);
    was_disturbed_ = slept == SleepOutcome::kInterrupted;
    may_spin_ = false;
  } else {
    // A bell may ring late, for a task that was found before: what was allowed still is.
    was_disturbed_ = false;
  }
  was_disturbed_ = woken_.exchange(false) || was_disturbed_;
  lock.lock();
  runtime_.polling_ = runtime_.executor_idle_ = false;
  if (runtime_.others_waiting_ > 0) runtime_.Bump();
  runtime_.ArmBackground();
  lock.unlock();
  runner_.AfterSleep();
  // Bits only say that there is something; Step looks into every channel.
  runtime_.doorbell_->TakeRung(Audience::kExecutor, [](uint32_t) {});
  return true;
}

bool Executor::Step() {
  if (exit_at_once_.load(std::memory_order_relaxed)) return false;  // calls that are still queued fail
  for (size_t i = 0; i < submitters_.size(); ++i) {
    Submitter& submitter = *submitters_[next_];
    Frame frame;
    // Callers of an actor take turns; a lease has one holder at a time.
    if (streak_ >= kMaxStreak || !submitter.peer->channel.Peek(&frame) || !MayTake(submitter, frame)) {
      next_ = (next_ + 1) % submitters_.size();
      if (streak_ >= kMaxStreak) i = static_cast<size_t>(-1);  // it is looked at again if nobody else has anything
      streak_ = 0;
      continue;
    }
    ++streak_;
    TakeFrame(submitter, frame);
    return true;
  }
  return false;
}

namespace {

// In order, and each once, what of a task lies on other nodes.
std::vector<Location> AwayFrom(NodeNumber here, const Submitter& submitter, std::string_view bytes) {
  std::vector<Location> away;
  ByteReader in(bytes);
  auto head = in.Fixed<TaskHead>();
  auto add = [&](const Location& location) {
    if (location.size > 0 && NodeOf(location.segment) != here) away.push_back(location);
  };
  auto what = submitter.templates.find(head.template_number);
  if (what != submitter.templates.end() && !what->second->front_end) add(what->second->stored_body);
  if (head.num_dependencies == 0) return away;
  if (!in.ok() || head.num_returns > in.remaining() / sizeof(uint64_t)) return {};
  in.Raw(head.num_returns * sizeof(uint64_t));
  if (head.num_mentioned > in.remaining() / sizeof(ObjectId)) return {};
  in.Raw(head.num_mentioned * sizeof(ObjectId));
  for (uint32_t i = 0; i < head.num_dependencies && in.ok(); ++i) {
    auto dependency = in.Fixed<DependencyHead>();
    auto value = in.Raw(dependency.size);
    if (static_cast<DependencyKind>(dependency.kind) == DependencyKind::kStored && value.size() == sizeof(Location)) {
      add(ByteReader(value).Fixed<Location>());
    }
  }
  std::sort(away.begin(), away.end());
  away.erase(std::unique(away.begin(), away.end()), away.end());
  return away;
}

}  // namespace

// Begins with what is new before it ends with the rest: what is in both comes once.
void Executor::Await(std::vector<Location>& awaited, std::vector<Location> wanted) {
  for (const Location& location : wanted) ++runtime_.BeginFetch(location).others;
  for (const Location& location : std::exchange(awaited, std::move(wanted))) {
    --runtime_.fetches_.at(location).others;
    runtime_.EndFetchIfUnused(location);
  }
}

void Executor::StopAwaiting(Submitter& submitter) {
  Await(submitter.awaited, {});
  Await(submitter.ahead, {});
}

// Or known not to come: then the task is taken, and goes back or fails.
bool Executor::ArgumentsAreHere(Submitter& submitter, const Frame& frame, bool early) {
  std::vector<Location> away = AwayFrom(NodeOf(runtime_.self()), submitter, frame.bytes);
  if (away.empty() && submitter.awaited.empty() && submitter.ahead.empty()) return true;
  bool here = true;
  {
    std::lock_guard lock(runtime_.mutex_);
    if (away != submitter.awaited) {
      Await(submitter.awaited, std::move(away));
      submitter.awaited_early = early;
    } else if (!early && std::exchange(submitter.awaited_early, false)) {
      // There may have been no room beside what the task before it used.
      for (const Location& location : submitter.awaited) runtime_.BeginFetch(location);
    }
    for (const Location& location : submitter.awaited) {
      here = here && runtime_.fetches_.at(location).state != Runtime::Fetch::State::kAsked;
    }
  }
  if (early || !here) AwaitAhead(submitter);
  if (runtime_.has_outgoing_.load(std::memory_order_relaxed)) runtime_.Flush();
  return here;
}

// One argument at a time would wait for four wake-ups on its way, so those of the next few tasks come beside it.
void Executor::AwaitAhead(Submitter& submitter) {
  SharedStream* stream = submitter.peer->channel.stream();
  std::vector<Location> away;
  uint64_t bytes = 0;
  if (stream && !submitter.awaited.empty()) {
    stream->LookAhead(kMostAhead, [&](const Frame& frame) {
      if (static_cast<FrameType>(frame.type) != FrameType::kTask || bytes > kMostBytesAhead) return;
      for (const Location& location : AwayFrom(NodeOf(runtime_.self()), submitter, frame.bytes)) {
        bytes += location.size;
        if (bytes <= kMostBytesAhead) away.push_back(location);
      }
    });
  }
  std::sort(away.begin(), away.end());
  away.erase(std::unique(away.begin(), away.end()), away.end());
  if (away == submitter.ahead) return;
  std::lock_guard lock(runtime_.mutex_);
  Await(submitter.ahead, std::move(away));
}

// The task at the front has its arguments, or will not run here. What the next ones need comes while this one runs.
void Executor::PopTask(Submitter& submitter) {
  submitter.peer->channel.Pop();
  if (!runtime_.in_cluster_) return;
  Frame next;
  if (submitter.peer->channel.Peek(&next) && static_cast<FrameType>(next.type) == FrameType::kTask) {
    ArgumentsAreHere(submitter, next, true);
  } else if (!submitter.awaited.empty() || !submitter.ahead.empty()) {
    {
      std::lock_guard lock(runtime_.mutex_);
      StopAwaiting(submitter);
    }
    runtime_.Flush();
  }
}

bool Executor::MayTake(Submitter& submitter, const Frame& frame) {
  if (static_cast<FrameType>(frame.type) != FrameType::kTask) return true;
  if (runtime_.in_cluster_ && !ArgumentsAreHere(submitter, frame, false)) return false;
  if (constructed_ && !mode_.concurrent) return true;
  auto what = submitter.templates.find(ByteReader(frame.bytes).Fixed<TaskHead>().template_number);
  if (what == submitter.templates.end() || what->second->kind != TemplateKind::kCall) return true;
  if (!constructed_) return false;
  std::lock_guard running(running_mutex_);
  if (groups_.contains(what->second->group)) return true;
  return running_ungrouped_ < mode_.limit;
}

bool Executor::TakeFrame(Submitter& submitter, const Frame& frame) {
  auto type = static_cast<FrameType>(frame.type);
  if (type == FrameType::kDefine) {
    Define(submitter, frame.bytes);
    submitter.peer->channel.Pop();
    return true;
  }
  if (type == FrameType::kLease) {
    TakeLease(frame.bytes);
    submitter.peer->channel.Pop();
    return true;
  }
  if (type == FrameType::kTask && submitter.peer->channel.Claim()) {
    if (owes_streams_.load(std::memory_order_relaxed)) {
      IsProven(submitter, frame.bytes) ? GatherReplies() : WakeSubmitters();
    }
    RunTask(submitter, frame.bytes);
  } else {
    PopTask(submitter);  // revoked meanwhile
  }
  return true;
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
  what->event_name = runtime_.log_.NameId(what->name);
  if (in.ok() && in.AtEnd()) submitter.templates[number] = std::move(what);
}

uint8_t* Executor::RoomForReply(Submitter& submitter, uint32_t size) {
  uint8_t* room = submitter.peer->channel.BeginSend(size);
  if (room) return room;
  // The submitter is behind: wake it and wait. Its background thread reads even if its program does not.
  const bool in_language = !mode_.concurrent || mode_.loop;  // else Complete was called without its lock
  if (in_language) runner_.BeforeSleep();
  while (!room && !submitter.peer->dead && !submitter.peer->channel.gone() && !runtime_.stopped()) {
    submitter.peer->channel.Notify(Audience::kAnyone);
    timespec pause{0, 100'000};
    nanosleep(&pause, nullptr);
    room = submitter.peer->channel.BeginSend(size);
  }
  if (in_language) runner_.AfterSleep();
  return room;
}

void Executor::SendReply(Submitter& submitter, uint32_t size, bool precious) {
  submitter.peer->channel.CommitSend(static_cast<uint8_t>(FrameType::kReply), false, size);
  // On a stream, a reply that was not sent dies with us. Of those that cannot be had by running the task again only a
  // few are put off, and only until something runs that may do us harm.
  if (precious && submitter.peer->channel.stream()) {
    submitter.precious_owed += mode_.concurrent ? kMostPreciousOwed : 1;
  }
  if (submitter.peer->channel.WakeIsAsked() || submitter.precious_owed >= kMostPreciousOwed) {
    submitter.owes_wake_up.store(false, std::memory_order_relaxed);
    submitter.precious_owed = 0;
    submitter.peer->channel.Notify(Audience::kAnyone);
  } else {
    // At the latest when there is nothing more to do.
    submitter.owes_wake_up.store(true, std::memory_order_relaxed);
    if (submitter.peer->channel.stream()) owes_streams_.store(true, std::memory_order_relaxed);
  }
}

bool Executor::IsProven(const Submitter& submitter, std::string_view bytes) {
  auto what = submitter.templates.find(ByteReader(bytes).Fixed<TaskHead>().template_number);
  return what != submitter.templates.end() && what->second->ended_well >= kProven;
}

// On a stream nobody can see a reply that was not sent, and what runs now may take long.
void Executor::GatherReplies() {
  owes_streams_.store(false, std::memory_order_relaxed);
  for (auto& submitter : submitters_) {
    SharedStream* stream = submitter->peer->channel.stream();
    if (stream && submitter->owes_wake_up.load(std::memory_order_relaxed)) stream->Gather();
  }
}

void Executor::WakeSubmitters() {
  owes_streams_.store(false, std::memory_order_relaxed);
  for (auto& submitter : submitters_) {
    if (!submitter->owes_wake_up.load(std::memory_order_relaxed)) continue;
    submitter->owes_wake_up.store(false, std::memory_order_relaxed);
    submitter->precious_owed.store(0, std::memory_order_relaxed);
    submitter->peer->channel.Notify(Audience::kAnyone);
  }
}

std::unique_lock<std::mutex> Executor::AsOnlyWriter() {
  return mode_.concurrent && !mode_.loop ? std::unique_lock(reply_mutex_) : std::unique_lock<std::mutex>();
}

void Executor::HandBack(Submitter& submitter, uint64_t task, ReplyKind kind, const std::vector<Location>& lost,
                        std::string_view error) {
  const ReplyHead head{.task = task,
                       .kind = static_cast<uint32_t>(kind),
                       .num_values = static_cast<uint32_t>(lost.size()),
                       .error_size = static_cast<uint32_t>(error.size())};
  const auto size =
      static_cast<uint32_t>(sizeof head + lost.size() * (sizeof(ValueHead) + sizeof(Location)) + error.size());
  auto only = AsOnlyWriter();
  uint8_t* room = submitter.peer->channel.BeginSend(size);
  while (!room && !submitter.peer->dead && !submitter.peer->channel.gone() && !runtime_.stopped()) {
    submitter.peer->channel.Notify(Audience::kAnyone);
    timespec pause{0, 100'000};
    nanosleep(&pause, nullptr);
    room = submitter.peer->channel.BeginSend(size);
  }
  if (!room) return;
  FrameWriter out(room);
  out.Put(head);
  for (const Location& location : lost) {
    out.Put(ValueHead{.kind = static_cast<uint32_t>(ValueKind::kStored)});
    out.Put(location);
  }
  out.PutBytes(error);
  submitter.peer->channel.CommitSend(static_cast<uint8_t>(FrameType::kReply), false, size);
  submitter.peer->channel.Notify(Audience::kAnyone);
  submitter.owes_wake_up.store(false, std::memory_order_relaxed);
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

void Executor::HandBackQueued() {
  if (reading_) return;   // that task would be handed back, too, and run twice; who submitted it takes the others away
  if (is_actor_) return;  // its calls can run nowhere else
  TakeAdopted();
  runtime_.doorbell_->TakeRung(Audience::kExecutor, [](uint32_t) {});
  for (auto& submitter : submitters_) {
    Frame frame;
    while (submitter->peer->channel.Peek(&frame)) {
      if (static_cast<FrameType>(frame.type) == FrameType::kDefine) {
        Define(*submitter, frame.bytes);
        submitter->peer->channel.Pop();
      } else if (static_cast<FrameType>(frame.type) == FrameType::kLease) {
        break;  // of a lease that begins after this task; its tasks are handed back when it is seen
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
  std::string impossible;
  std::vector<Location> gone;  // with their nodes
  bool all_gone = true;        // of what is impossible
  if (fits) {
    for (uint32_t i = 0; i < head.num_returns; ++i) execution.returns.push_back({from, in.Fixed<uint64_t>()});
    call.first_return = execution.returns.empty() ? head.task : execution.returns[0].index;
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

  if (!mentioned.empty() || !stored.empty()) {
    std::unique_lock lock(runtime_.mutex_);
    Owner& owner = *runtime_.owner_;
    for (ObjectId id : mentioned) machine_.Accept(owner, id, true, execution.references);
    for (Pending& pending : stored) {
      Object* object = machine_.Accept(owner, pending.id, false, execution.references);
      call.dependencies[pending.argument].object = object;
      if (!object || !runtime_.in_cluster_ || !runtime_.IsElsewhere(pending.location)) continue;
      auto found = runtime_.fetches_.find(pending.location);
      if (found == runtime_.fetches_.end()) continue;  // MapStored will wait for it
      Runtime::Fetch& fetch = found->second;
      if (fetch.state == Runtime::Fetch::State::kFailed) {
        if (impossible.empty() || !fetch.node_gone) impossible = *fetch.error;
        fetch.node_gone ? gone.push_back(pending.location) : void(all_gone = false);
      }
      if (fetch.state != Runtime::Fetch::State::kHere) continue;
      // The object's from now on: a view of it may outlive the task.
      owner.CameWithTask(object, pending.location, fetch.place);
      if (std::find(fetch.objects.begin(), fetch.objects.end(), object) == fetch.objects.end()) {
        fetch.objects.push_back(object);
      }
      pending.location = fetch.place;
    }
  }
  bool lost = false;
  if (!impossible.empty()) stored.clear();
  for (Pending& pending : stored) {
    TaskArgument& argument = call.dependencies[pending.argument];
    Result<const uint8_t*> data = runtime_.MapStored(pending.location);
    while (!data && data.error().kind == ErrorKind::kTimeout) data = runtime_.MapStored(pending.location);
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
  may_spin_ = head.may_spin != 0;
  execution.outcome.kind = ReplyKind::kValues;
  execution.outcome.values.clear();
  execution.outcome.error.clear();
  // Its owner can have them made again.
  const bool to_be_made = !gone.empty() && all_gone && call.what->kind != TemplateKind::kCreation;
  if (lost || to_be_made) {
    PopTask(submitter);
    {
      std::unique_lock lock(runtime_.mutex_);
      machine_.Decline(*runtime_.owner_, execution.references, runtime_.actions_);
      runtime_.Perform();
    }
    if (runtime_.has_outgoing_.load(std::memory_order_relaxed)) runtime_.Flush();
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
      return Reply(*execution);
    }
    if (begun != Begun::kReady) return;
    PopTask(submitter);
    return StartConcurrent(std::move(execution));
  }
  reading_ = true;
  const Begun begun = Begin(main_, submitter, bytes);
  const bool constructs = begun != Begun::kHandedBack && main_.call.what->kind == TemplateKind::kCreation;
  if (constructs) is_actor_ = true;
  if (begun == Begun::kReady) runner_.Prepare(main_.call);
  reading_ = false;
  if (begun == Begun::kHandedBack) return;
  if (begun == Begun::kImpossible) {
    PopTask(submitter);
    NoteBegin(main_);
    if (constructs) Constructed(main_);
    return Reply(main_);
  }
  PopTask(submitter);
  runtime_.owner_->set_depth(main_.call.depth + 1);
  Runtime::SetCurrentExecution(main_.call.execution);
  current_execution_.store(main_.call.execution, std::memory_order_relaxed);
  current_submitter_.store(main_.call.submitter.value, std::memory_order_release);
  current_task_.store(main_.call.task);
  if (num_early_cancels_.load() > 0) TakeEarlyCancel(main_);
  NoteBegin(main_);
  runner_.Run(main_.returns, main_.outcome);
  ++main_.call.what->ended_well;
  current_task_.store(0, std::memory_order_release);
  Runtime::SetCurrentExecution(0);
  if (constructs) Constructed(main_);
  Reply(main_);
}

void Executor::Constructed(Execution& execution) {
  const bool ok = execution.outcome.kind == ReplyKind::kValues;
  if (ok) {
    ActorMode mode = runner_.mode();
    std::lock_guard lock(runtime_.mutex_);  // Slots
    constructed_ = true;
    mode_ = std::move(mode);
    for (const auto& [name, limit] : mode_.groups) groups_[name].limit = limit;
  }
  {
    std::unique_lock lock(runtime_.mutex_);
    runtime_.Send(ActorConstructed{.actor = lease_.actor, .ok = ok, .error = execution.outcome.error});
  }
  runtime_.Flush();
}

// ---- calls beside each other --------------------------------------------------------------------------------------

void Executor::StartConcurrent(std::unique_ptr<Execution> owned) {
  Execution* execution = owned.get();
  runner_.Keep(*execution);
  {
    std::lock_guard running(running_mutex_);
    running_.emplace(execution->call.execution, std::move(owned));
    if (auto group = groups_.find(execution->call.what->group); group != groups_.end()) {
      if (group->second.running >= group->second.limit) {
        group->second.waiting.push_back(execution);
        execution = nullptr;
      } else {
        ++group->second.running;
      }
    } else {
      ++running_ungrouped_;
    }
  }
  if (num_early_cancels_.load() > 0 && execution) TakeEarlyCancel(*execution);
  if (!execution) return;
  NoteBegin(*execution);
  runner_.Start(*execution);
}

void Executor::Complete(Execution* execution) {
  Reply(*execution);
  Execution* next = nullptr;
  std::unique_ptr<Execution> ended;
  bool was_full = false;
  {
    std::lock_guard running(running_mutex_);
    if (auto group = groups_.find(execution->call.what->group); group != groups_.end()) {
      if (group->second.waiting.empty()) {
        --group->second.running;
      } else {
        next = group->second.waiting.front();
        group->second.waiting.pop_front();
      }
    } else {
      was_full = running_ungrouped_-- == mode_.limit;
    }
    auto it = running_.find(execution->call.execution);
    ended = std::move(it->second);
    running_.erase(it);
  }
  ended.reset();
  if (next) {
    NoteBegin(*next);
    runner_.Start(*next);
  }
  // The main thread may have left calls in their channels, or may wait to leave.
  if (!mode_.loop && (was_full || exit_.load(std::memory_order_acquire))) Wake();
}

// ---- cancelling ---------------------------------------------------------------------------------------------------

uint64_t Executor::RunningNow(ProcessId submitter, uint64_t task) const {
  const uint64_t execution = current_execution_.load(std::memory_order_acquire);
  if (current_task_.load() != task || current_submitter_.load(std::memory_order_acquire) != submitter.value) return 0;
  // If the next run has not begun meanwhile, what was read belongs together.
  return current_execution_.load() == execution ? execution : 0;
}

void Executor::CancelRunning(ProcessId submitter, uint64_t task, bool force, bool recursive) {
  uint64_t found = RunningNow(submitter, task);
  if (found == 0) {
    std::lock_guard running(running_mutex_);
    for (const auto& [number, execution] : running_) {
      if (execution->call.task == task && execution->call.submitter == submitter) found = number;
    }
  }
  if (found == 0) {
    early_cancels_.push_back({submitter, task, force, recursive});
    if (early_cancels_.size() > kMaxEarlyCancels) early_cancels_.pop_front();
    num_early_cancels_.store(static_cast<uint32_t>(early_cancels_.size()));
    // It may have begun between the look and the note.
    found = RunningNow(submitter, task);
    if (found == 0) return;
  }
  if (force && !is_actor_) ::_exit(kForcedExit);
  if (recursive) runtime_.owner_->CancelChildren(found, force, CoarseNowNs(), runtime_.actions_);
  runner_.Interrupt(found);
  runtime_.Bump();  // it may wait for objects
}

void Executor::TakeEarlyCancel(const Execution& execution) {
  std::lock_guard lock(runtime_.mutex_);
  for (auto it = early_cancels_.begin(); it != early_cancels_.end(); ++it) {
    if (it->task != execution.call.task || it->submitter != execution.call.submitter) continue;
    if (it->force && !is_actor_) ::_exit(kForcedExit);
    early_cancels_.erase(it);
    num_early_cancels_.store(static_cast<uint32_t>(early_cancels_.size()));
    runner_.Interrupt(execution.call.execution);
    return;
  }
}

// ---- replies ------------------------------------------------------------------------------------------------------

void Executor::NoteBegin(Execution& execution) {
  const TaskCall& call = execution.call;
  execution.event =
      runtime_.log_.Begin(call.submitter, call.task, execution.returns.empty() ? 0 : execution.returns[0].index,
                          call.what->event_name, call.attempt);
}

void Executor::Reply(Execution& execution) {
  const ReplyKind kind = execution.outcome.kind;
  const uint32_t run_ns =
      runtime_.log_.End(execution.event, kind == ReplyKind::kValues || kind == ReplyKind::kExited ? EventOutcome::kOk
                                         : kind == ReplyKind::kCancelled ? EventOutcome::kCancelled
                                                                         : EventOutcome::kError);
  TaskOutcome& outcome = execution.outcome;
  Submitter& submitter = *execution.submitter;
  const ProcessId from = submitter.peer->process;
  const bool leaves = outcome.kind == ReplyKind::kExited;
  if (leaves) {
    {
      std::unique_lock lock(runtime_.mutex_);
      runtime_.Send(ActorExiting{.actor = lease_.actor});
    }
    runtime_.Flush();
  }
  // Stored results are visible to others from here on.
  for (TaskReturn& value : outcome.values) {
    if (value.room.data) runtime_.writer_.Seal(value.room.location);
  }

  ReplyHead reply{.task = execution.call.task, .kind = static_cast<uint32_t>(outcome.kind), .run_ns = run_ns};
  std::vector<GivenBack> given_back;
  std::vector<uint64_t> retained;
  bool references = !execution.references.empty();
  for (TaskReturn& value : outcome.values) references = references || !value.contained.empty();
  if (references) {
    std::unique_lock lock(runtime_.mutex_);
    Owner& owner = *runtime_.owner_;
    Actions& actions = runtime_.actions_;
    // The receiver of our values borrows what is inside them, before we let go of anything.
    for (TaskReturn& value : outcome.values) {
      for (Object* object : value.contained) owner.Mention(object, from, actions);
    }
    runtime_.Perform();
    runtime_.DrainDrops();
    runtime_.Perform();
    machine_.Release(owner, from, execution.references, given_back, retained, actions);
    runtime_.Perform();
  }
  // What was routed must be on its way before the reply, so that an owner hears of a borrower before it can lose it.
  if (runtime_.has_outgoing_.load(std::memory_order_relaxed)) runtime_.Flush();

  uint32_t size = sizeof reply + static_cast<uint32_t>(outcome.error.size() + given_back.size() * sizeof(GivenBack) +
                                                       retained.size() * sizeof(uint64_t));
  for (TaskReturn& value : outcome.values) {
    size += sizeof(ValueHead) + static_cast<uint32_t>(value.contained.size() * sizeof(ObjectId));
    size += value.room.data ? sizeof(Location) : static_cast<uint32_t>(value.bytes.size());
  }
  reply.num_values = static_cast<uint32_t>(outcome.values.size());
  reply.error_size = static_cast<uint32_t>(outcome.error.size());
  reply.num_given_back = static_cast<uint32_t>(given_back.size());
  reply.num_retained = static_cast<uint32_t>(retained.size());
  auto one_at_a_time = AsOnlyWriter();
  uint8_t* room = RoomForReply(submitter, size);
  if (!room) return;  // the submitter is dead
  FrameWriter out(room);
  out.Put(reply);
  for (TaskReturn& value : outcome.values) {
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
  out.PutBytes(outcome.error);
  for (const GivenBack& item : given_back) out.Put(item);
  for (uint64_t index : retained) out.Put(index);
  SendReply(submitter, size, execution.call.what->max_retries == 0);
  if (one_at_a_time) {
    // Nobody else may be there to do it later.
    const bool owes = submitter.owes_wake_up.exchange(false, std::memory_order_relaxed);
    one_at_a_time.unlock();
    if (owes) submitter.peer->channel.Notify(Audience::kAnyone);
  }

  for (size_t i = 0; !is_actor_ && i < outcome.values.size(); ++i) {
    TaskReturn& value = outcome.values[i];
    machine_.Remember(execution.returns[i], value.room.data != nullptr, value.bytes, value.room.location,
                      !value.contained.empty());
  }
  for (TaskReturn& value : outcome.values) {
    for (Object* object : value.contained) runtime_.DropReference(object);
  }
  if (leaves) {
    submitter.peer->channel.Notify(Audience::kAnyone);
    std::lock_guard lock(runtime_.mutex_);
    ExitWhenIdle(true);
  }
}

}  // namespace weft::core
