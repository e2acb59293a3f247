// Executor: replies. Results go to the submitter, at once or gathered with others.
#include <time.h>

#include <algorithm>

#include "base/clock.h"
#include "runtime/executor.h"

namespace weft::core {
namespace {

// If this process crashes in a method that has run here so often before, a caller on another node may be told "may have
// run" about fewer than so many ended calls that are not run again. Sending each reply alone would halve the rate of
// calls.
constexpr uint32_t kMostPreciousOwed = 8;
constexpr uint32_t kProven = 16;
// A call that runs no longer than this is short compared to waking a caller, which costs microseconds on both sides.
constexpr uint32_t kBriefNs = 50'000;
// How many replies of concurrent calls are announced together. So many take a fraction of a millisecond, and the caller
// works on them while the next ones are made.
constexpr uint32_t kMostOwed = 64;

}  // namespace

uint8_t* Executor::RoomForReply(Submitter& submitter, uint32_t size, bool in_language) {
  uint8_t* room = submitter.peer->channel.BeginSend(size);
  if (room) return room;
  // The submitter is behind: wake it and wait. Its background thread reads even if its program does not.
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

void Executor::SendReply(Submitter& submitter, uint32_t size, bool precious, bool failed) {
  submitter.peer->channel.CommitSend(static_cast<uint8_t>(FrameType::kReply), false, size);
  // On a stream, a reply that was not sent dies with this process. Of replies that another run cannot replace, only a
  // few are postponed, and only until something runs that may crash this process.
  if (precious && submitter.peer->channel.stream()) {
    submitter.precious_owed += mode_.concurrent ? kMostPreciousOwed : 1;
  }
  // A get of several ends with the first failure.
  if (submitter.peer->channel.WakeIsAsked() || failed || submitter.precious_owed >= kMostPreciousOwed) {
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

// On a stream the submitter cannot see a reply that was not sent, and what runs now may take long.
void Executor::GatherReplies() {
  owes_streams_.store(false, std::memory_order_relaxed);
  for (auto& submitter : submitters_) {
    SharedStream* stream = submitter->peer->channel.stream();
    if (stream && submitter->owes_wake_up.load(std::memory_order_relaxed)) stream->Gather();
  }
}

void Executor::OweWakeUp(Submitter& submitter) {
  waking_.fetch_add(1);
  Submitter* before = owed_.exchange(&submitter);
  if (before && before != &submitter) before->peer->channel.Notify(Audience::kAnyone);
  waking_.fetch_sub(1);
  if (num_owed_.fetch_add(1, std::memory_order_relaxed) + 1 >= kMostOwed) WakeOwed();
}

void Executor::WakeOwed() {
  if (!owed_.load(std::memory_order_relaxed)) return;
  num_owed_.store(0, std::memory_order_relaxed);
  waking_.fetch_add(1);
  Submitter* owed = owed_.exchange(nullptr);
  if (owed) owed->peer->channel.Notify(Audience::kAnyone);
  waking_.fetch_sub(1);
}

void Executor::WakeSubmitters() {
  WakeOwed();
  owes_streams_.store(false, std::memory_order_relaxed);
  for (auto& submitter : submitters_) {
    if (!submitter->owes_wake_up.load(std::memory_order_relaxed)) continue;
    submitter->owes_wake_up.store(false, std::memory_order_relaxed);
    submitter->precious_owed.store(0, std::memory_order_relaxed);
    submitter->peer->channel.Notify(Audience::kAnyone);
  }
}

// The other writer may wait for the language's lock, or for room: so no thread waits for it with that lock.
std::unique_lock<std::mutex> Executor::AsOnlyWriter(bool in_language) {
  if (!mode_.concurrent || mode_.loop) return {};
  std::unique_lock only(reply_mutex_, std::try_to_lock);
  if (only) return only;
  if (in_language) runner_.BeforeSleep();
  only.lock();
  if (in_language) runner_.AfterSleep();
  return only;
}

void Executor::HandBack(Submitter& submitter, uint64_t task, ReplyKind kind, const std::vector<Location>& lost,
                        std::string_view error) {
  const ReplyHead head{.task = task,
                       .kind = static_cast<uint32_t>(kind),
                       .num_values = static_cast<uint32_t>(lost.size()),
                       .error_size = static_cast<uint32_t>(error.size())};
  const auto size =
      static_cast<uint32_t>(sizeof head + lost.size() * (sizeof(ValueHead) + sizeof(Location)) + error.size());
  auto only = AsOnlyWriter(true);
  uint8_t* room = RoomForReply(submitter, size, true);
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

void Executor::NoteBegin(Execution& execution) {
  const TaskCall& call = execution.call;
  execution.event =
      runtime_.log().Begin(call.submitter, call.task, execution.returns.empty() ? 0 : execution.returns[0].index,
                           call.what->event_name, call.attempt);
}

void Executor::Reply(Execution& execution, bool in_language) {
  const ReplyKind kind = execution.outcome.kind;
  const uint32_t run_ns =
      runtime_.log().End(execution.event, kind == ReplyKind::kValues || kind == ReplyKind::kExited ? EventOutcome::kOk
                                          : kind == ReplyKind::kCancelled ? EventOutcome::kCancelled
                                                                          : EventOutcome::kError);
  execution.call.what->brief.store(run_ns > 0 && run_ns < kBriefNs, std::memory_order_relaxed);
  TaskOutcome& outcome = execution.outcome;
  Submitter& submitter = *execution.submitter;
  const ProcessId from = submitter.peer->process;
  const bool leaves = outcome.kind == ReplyKind::kExited;
  if (leaves) {
    {
      std::unique_lock lock(runtime_.mutex());
      runtime_.Send(ActorExiting{.actor = lease_.actor});
    }
    runtime_.Flush();
  }
  // Stored results are visible to others from here on. What if the submitter dies here: before they are sealed, it is
  // seen to be dead below, and they go at once, as no reply has told of them. After that they are found by the link
  // thread when it hears of the death (Runtime::FindOrphans), which marks the submitter as dead before it looks.
  for (TaskReturn& value : outcome.values) {
    if (value.room.data && runtime_.writer().Seal(value.room.location) && submitter.peer->dead) {
      runtime_.writer().Free(value.room.location);
    }
  }

  ReplyHead reply{.task = execution.call.task, .kind = static_cast<uint32_t>(outcome.kind), .run_ns = run_ns};
  std::vector<GivenBack> given_back;
  std::vector<uint64_t> retained;
  bool references = !execution.references.empty();
  for (TaskReturn& value : outcome.values) references = references || !value.contained.empty();
  if (references) {
    std::unique_lock lock(runtime_.mutex());
    Owner& owner = runtime_.owner();
    Actions& actions = runtime_.actions();
    // The receiver of our values borrows what is inside them, before we let go of anything.
    for (TaskReturn& value : outcome.values) {
      for (Object* object : value.contained) owner.AddBorrower(object, from, actions);
    }
    runtime_.Perform();
    runtime_.DrainDrops();
    runtime_.Perform();
    machine_.Release(owner, from, execution.references, given_back, retained, actions);
    runtime_.Perform();
  }
  // What was routed must be on its way before the reply, so that an owner hears of a borrower before it can lose it.
  runtime_.FlushIfAny();

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
  auto one_at_a_time = AsOnlyWriter(in_language);
  uint8_t* room = RoomForReply(submitter, size, in_language);
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
  SendReply(submitter, size, execution.call.what->max_retries == 0, kind != ReplyKind::kValues);
  if (one_at_a_time) {
    const bool owes = submitter.owes_wake_up.exchange(false, std::memory_order_relaxed);
    one_at_a_time.unlock();
    // Without the language's lock, there may be no other thread to do it later.
    if (owes) in_language ? OweWakeUp(submitter) : submitter.peer->channel.Notify(Audience::kAnyone);
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
    std::lock_guard lock(runtime_.mutex());
    ExitWhenIdle(true);
  }
}

}  // namespace weft::core
