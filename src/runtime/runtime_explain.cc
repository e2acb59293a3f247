// Runtime: explaining. Finds out what a wait waits for and whether it can end (LongWaits says when, Inquiries asks),
// and answers the same questions of others.
//
// The thread that waits lists its wait and sleeps on; the background thread begins the inquiries, and wakes the thread
// if its wait can never end. Answers are taken in by the link thread, which also answers others, under the lock and
// without the GIL.
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "runtime/executor.h"
#include "runtime/runtime.h"

namespace weft::core {

int64_t Runtime::ListIfLong(Waiting& waiting, bool by_executor) {
  WaitReport& report = *waiting.report;
  if (waiting.number != 0) return kNoDeadline;  // the background thread looks
  if (report.look_at_ns == 0) LongWaits::Begin(report, CoarseNowNs());
  if (NowNs() < report.look_at_ns) return report.look_at_ns;
  WaitFact task;
  if (executor_) executor_->Describe(task, by_executor);
  long_waits_.List(waiting, std::move(task), !by_executor);
  return kNoDeadline;
}

// ---- coroutines that await ----------------------------------------------------------------------------------------

uint64_t Runtime::Await(Object* object, void* cookie, uint64_t execution) {
  std::unique_lock lock(mutex_);
  if (object->settled()) {
    AddReference(object);
    Raise({.kind = RuntimeEvent::kReady, .object = object, .cookie = cookie});
    return 0;
  }
  const uint64_t number = long_waits_.Await(object, cookie, execution, CoarseNowNs());
  ++object->callbacks;
  callbacks_[object].push_back({.cookie = cookie, .await = number});
  owner_->WantHere(object, actions_);
  Perform();
  if (background_idle_) doorbell_->WakeBackground();
  if (!waiters_.poller()) ArmBackground();
  NotifyPeers(lock);
  return number;
}

void Runtime::EndAwait(uint64_t number) {
  std::lock_guard lock(mutex_);
  // The callback stays, as that of a future which nobody wants any more.
  long_waits_.EndAwait(number);
}

void Runtime::SetLoopRests(bool rests) {
  std::lock_guard lock(mutex_);
  long_waits_.SetLoopRests(rests);
}

void Runtime::WakeLoop() {
  if (executor_) executor_->Wake();
}

void Runtime::Stuck(Object* object, void* cookie, uint64_t await, std::string text) {
  AddReference(object);
  Raise({.kind = RuntimeEvent::kStuck, .text = std::move(text), .object = object, .cookie = cookie});
  auto callbacks = callbacks_.find(object);
  object->callbacks -= static_cast<uint32_t>(
      std::erase_if(callbacks->second, [&](const Callback& call) { return call.await == await; }));
  if (callbacks->second.empty()) callbacks_.erase(callbacks);
}

// ---- what this process knows --------------------------------------------------------------------------------------

void Runtime::DescribeCall(WaitFact& fact, uint64_t execution) {
  if (executor_) executor_->DescribeCall(fact, execution);
}

ProcessFact Runtime::FactOfSelf() {
  ProcessFact fact;
  fact.process = self();
  fact.pid = getpid();
  if (executor_) fact.slots = executor_->Slots();
  fact.waits = long_waits_.Facts(NowNs());
  return fact;
}

ObjectFact Runtime::FactOfObject(ObjectId own) {
  ObjectFact fact = owner_->Explain(own);
  fact.pid = getpid();
  return fact;
}

void Runtime::AnswerWhy(ProcessId requester, ObjectId subject, uint64_t request) {
  Drain();  // a reply that lies in a ring is known to the reader of the answer
  PeerMessage answer{.kind = PeerMessageKind::kWhy, .id = subject, .count = request};
  answer.bytes = subject.index == 0 ? EncodeFact(FactOfSelf()) : EncodeFact(FactOfObject(subject));
  Route(requester, answer);
}

// ---- inquiries ----------------------------------------------------------------------------------------------------

void Runtime::AskShape(uint64_t number, const ResourceAmounts& shape) {
  Send(weft::core::AskShape{.request = number, .shape = shape});
}

void Runtime::AskWhy(uint64_t number, ObjectId subject) {
  Route(subject.owner, {.kind = PeerMessageKind::kAskWhy, .id = subject, .count = number});
}

std::string Runtime::Explain(Object* object) {
  std::unique_lock lock(mutex_);
  Inquiry inquiry;
  inquiry.began_ns = NowNs();
  inquiries_.Begin(inquiry, std::make_unique<WaitGraph>(object->id));
  WaitForNews(lock, inquiry.began_ns + Inquiries::kPatienceNs, [&] { return inquiry.done; });
  inquiries_.Forget(inquiry);
  if (!inquiry.done) inquiry.graph->Judge(nullptr);
  std::string text = inquiry.graph->Text();
  if (inquiry.done && inquiry.verdict.kind == WaitVerdict::Kind::kStuck) {
    text += "\nthis can never end: " + inquiry.verdict.chain;
  }
  NotifyPeers(lock);
  return text;
}

}  // namespace weft::core
