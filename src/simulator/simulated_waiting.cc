// SimulatedProcess: waiting in get, as runtime_waiting.cc does, and finding out whether that can end, by Inquiries.
//
// A wait that was found to be stuck mostly does not fail at once, as it does outside the simulator, but goes on for a
// while: if it then ends although nothing came from outside (World::helps), it was never stuck.
#include <algorithm>
#include <utility>

#include "simulator/simulated_daemon.h"
#include "simulator/simulated_process.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kHandBackAfterNs = kMs;
constexpr int64_t kFirstPauseNs = 20 * kMs;
constexpr int64_t kMaxPauseNs = 2'000 * kMs;

}  // namespace

void SimulatedProcess::BeginGet(Object* object) {
  Body& body = *body_;
  body.awaited = object;
  body.resuming = body.handed_back = body.timed_out = body.listed = body.found_stuck = body.raises = false;
  body.wait_number = next_wait_++;
  body.wait_began_ns = world.now();
  body.look_pause_ns = kFirstPauseNs;
  body.deadline_ns = -1;
  if (object->resolved()) {
    body.resuming = true;
    return ScheduleStep(world.Delay());
  }
  owner.Want(object, actions_);
  owner.SubmitterWaits(actions_);
  Perform();
  ++object->waiters;
  if (!body.last_gets && body.random.Chance(world.workload.timeout_percent)) {
    int64_t timeout = static_cast<int64_t>(body.random.Below(body.random.Chance(50) ? 5 * kMs : 1'000 * kMs));
    body.deadline_ns = world.now() + timeout;
    world.Later(this, timeout, Happening::kCount, [this, number = body.wait_number] {
      if (!body_ || !body_->awaited || body_->wait_number != number || body_->resuming) return;
      body_->timed_out = body_->resuming = true;
      ScheduleStep(world.Delay());
    });
  }
  ScheduleLook(world.first_look_ns);
  if (driver_) return;
  blocked = true;
  if (demand) Send(Blocked{});
  Flush();
  HandBackWhileWaiting();
}

void SimulatedProcess::HandBackWhileWaiting() {
  world.Later(this, kHandBackAfterNs, Happening::kCount, [this, number = body_->wait_number] {
    if (!body_ || (!body_->awaited && body_->question == 0) || body_->wait_number != number || body_->resuming) return;
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
  if (std::exchange(lends, false)) {
    Send(Unblocked{});
    Flush();
  }
  if (object->waiters > 0) --object->waiters;
  auto raise = [&](const std::string& why) {
    if (driver_ || body.interrupted || body.random.Chance(50)) return;  // caught
    body.failed = true;
    body.failure = "raised by get in " + std::to_string(body.spec.number) + ": " + why;
  };
  if (!object->resolved()) {
    if (!body.timed_out && !body.raises && !body.interrupted) world.Fail("a wait ended for no reason");
    if (body.timed_out) world.coverage.Did(Deed::kGetTimedOut);
    if (body.last_gets) {
      body.variables.pop_back();
      Drop(object);
    }
    return raise(body.timed_out ? "GetTimeoutError" : "DeadlockError");
  }
  SimulatedValue value = ValueOf(*object);
  world.Note("got", id.value, object->id.owner.value, object->id.index);
  // What was found is that it never gets its value; something else that it needs may fail, and so end it.
  if (body.found_stuck && world.helps == body.helps_before && !IsError(value.kind)) {
    world.Fail("process " + std::to_string(id.value) +
               " was told that its wait can never end, and it ended: " + body.chain);
  }
  world.CheckRead(*this, object->id, value);
  if (body.last_gets) {
    body.variables.pop_back();
    Drop(object);
    return;
  }
  if (IsError(value.kind)) return raise(value.bytes);
  if (object->contained) {
    for (Object* inner : *object->contained) Keep(inner);
  }
  if (value.kind == ValueKind::kStored && !driver_ && !world.closing && body.random.Chance(20)) {
    AddReference(object);
    globals_.push_back(object);
  }
}

// ---- looking into a wait ------------------------------------------------------------------------------------------

void SimulatedProcess::ScheduleLook(int64_t delay_ns) {
  world.Later(this, delay_ns, Happening::kCount, [this, number = body_->wait_number] {
    if (!body_ || !body_->awaited || body_->wait_number != number || body_->resuming) return;
    Look();
    Flush();
  });
}

void SimulatedProcess::Look() {
  Body& body = *body_;
  body.listed = true;
  if (body.deadline_ns >= 0) return;  // it ends by itself
  if (body.found_stuck) {
    if (world.now() < body.raises_at_ns) return ScheduleLook(body.raises_at_ns - world.now());
    if (world.helps == body.helps_before) {
      world.coverage.Did(Deed::kStuckConfirmed);
      world.Helped();  // those who wait for it
      body.raises = body.resuming = true;
      return ScheduleStep(world.Delay());
    }
    body.found_stuck = false;  // something may have changed: look again
  }
  if (inquiry_) inquiries_.Forget(*inquiry_);
  inquiry_ = std::make_unique<Inquiry>();
  inquiry_->began_ns = world.now();
  inquiry_wait_ = body.wait_number;
  inquiry_helps_ = world.helps;
  world.Later(this, Inquiries::kPatienceNs, Happening::kCount, [this, number = body.wait_number, began = world.now()] {
    if (inquiry_ && inquiry_wait_ == number && inquiry_->began_ns == began) {
      inquiries_.Forget(*inquiry_);
      inquiry_.reset();
      Inquired(WaitVerdict());
    }
    Flush();
  });
  inquiries_.Begin(*inquiry_, std::make_unique<WaitGraph>(id, FactOfWait()));
}

WaitFact SimulatedProcess::FactOfWait() const {
  const Body& body = *body_;
  WaitFact fact;
  fact.wait = body.wait_number;
  if (!driver_) {
    fact.execution = body.execution;
    fact.submitter = body.channel->submitter;
    fact.task = body.task.task;
    fact.name = "function";
    fact.group = kAllGroups;
  }
  fact.has_deadline = body.deadline_ns >= 0;
  fact.for_ns = world.now() - body.wait_began_ns;
  if (!body.awaited->resolved()) {
    fact.objects.push_back(body.awaited->id);
    fact.wanted = 1;
  }
  return fact;
}

ProcessFact SimulatedProcess::FactOfSelf() {
  ProcessFact fact;
  fact.process = id;
  if (!driver_) fact.slots = {{kAllGroups, 1}};
  if (body_ && body_->awaited && body_->listed && !body_->resuming) fact.waits.push_back(FactOfWait());
  return fact;
}

void SimulatedProcess::AnswerWhy(ProcessId requester, ObjectId subject, uint64_t request) {
  int64_t delay = world.random.Chance(60)
                      ? static_cast<int64_t>(world.random.Below(static_cast<uint64_t>(world.slow_answer_ns) + 1))
                      : 0;
  world.Later(this, delay, Happening::kAskWhy, [this, requester, subject, request] {
    Drain();  // a reply that lies in a ring is known to who reads the answer
    PeerMessage answer{.kind = PeerMessageKind::kWhy, .id = subject, .count = request};
    answer.bytes = subject.index == 0 ? EncodeFact(FactOfSelf()) : EncodeFact(owner.Explain(subject));
    Route(requester, answer);
    Flush();
  });
}

void SimulatedProcess::AskShape(uint64_t number, const ResourceAmounts& shape) {
  Send(weft::core::AskShape{.request = number, .shape = shape});
}

void SimulatedProcess::AskWhy(uint64_t number, ObjectId subject) {
  Route(subject.owner, {.kind = PeerMessageKind::kAskWhy, .id = subject, .count = number});
}

void SimulatedProcess::InquiryEnded(Inquiry&) {
  const std::unique_ptr<Inquiry> ended = std::move(inquiry_);
  if (ended->second && ended->open == 0 && ended->verdict.kind == WaitVerdict::Kind::kMayGoOn) {
    world.coverage.Did(Deed::kSecondLookDiffered);
  }
  Inquired(ended->verdict);
}

// What was found out of the wait that inquiry_wait_ names.
void SimulatedProcess::Inquired(const WaitVerdict& verdict) {
  if (!body_ || !body_->awaited || body_->wait_number != inquiry_wait_ || body_->resuming) return;
  Body& body = *body_;
  if (verdict.kind == WaitVerdict::Kind::kMayGoOn) {
    ScheduleLook(body.look_pause_ns);
    body.look_pause_ns = std::min(body.look_pause_ns * 2, kMaxPauseNs);
    return;
  }
  world.Note("found stuck", id.value, body.awaited->id.owner.value, body.awaited->id.index);
  body.found_stuck = true;
  body.found_unschedulable = verdict.kind == WaitVerdict::Kind::kUnschedulable;
  body.chain = verdict.chain;
  body.helps_before = inquiry_helps_;
  world.coverage.Did(body.found_unschedulable ? Deed::kFoundUnschedulable
                     : verdict.in_circle      ? Deed::kFoundStuck
                                              : Deed::kFoundStuckOutsideOfCircle);
  bool at_once = verdict.in_circle && world.random.Chance(20);
  body.raises_at_ns = world.now() + (at_once ? 0 : static_cast<int64_t>(world.random.Below(3'000 * kMs)));
  ScheduleLook(body.raises_at_ns - world.now());
}

}  // namespace weft::core
