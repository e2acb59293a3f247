// Runtime: explaining. Finds out what a wait waits for and whether it can end, by asking the processes and the daemon
// that know (WaitGraph says which), and answers the same questions of others.
//
// A wait is examined after 200 ms, so short ones pay nothing, and then with growing pauses. The waiting thread puts
// itself into a list and sleeps on. The background thread begins the inquiries, one at a time in each process and at
// most fifty a second, and wakes the thread if its wait can never end. Threads that wait for the same object share one
// inquiry. The link thread takes the answers, and also answers others, under the lock and without the GIL.
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "os/futex.h"
#include "runtime/executor.h"
#include "runtime/runtime.h"

namespace weft::core {
namespace {

constexpr int64_t kMillisecondNs = 1'000'000;
constexpr int64_t kFirstLookNs = 200 * kMillisecondNs;
// A coroutine is listed, and its loop asked whether it rests, before it is examined for the first time.
constexpr int64_t kListedNs = 100 * kMillisecondNs;
constexpr int64_t kFirstPauseNs = 400 * kMillisecondNs;
constexpr int64_t kMaxPauseNs = 5'000 * kMillisecondNs;
// Between inquiries; and while another one of this process is open.
constexpr int64_t kTurnNs = 20 * kMillisecondNs;
// If many threads wait, each is examined less often: twenty inquiries a second, however many there are.
constexpr int64_t kShareNs = 50 * kMillisecondNs;
// An inquiry without answer by then is given up: a process is stopped or overloaded.
constexpr int64_t kMaxInquiryNs = 2'000 * kMillisecondNs;
// A thread that only waits for a circle gives those in it so much time to fail: one of them may recover.
constexpr int64_t kOutsidePatienceNs = 400 * kMillisecondNs;
constexpr int64_t kOutsidePauseNs = 100 * kMillisecondNs;
constexpr size_t kMaxObjectsListed = 1000;
// How often in a row a loop is asked whether it rests, before it is left alone for a while.
constexpr uint32_t kMaxTries = 4;

}  // namespace

// What a wait knows about its own time. Lists the wait once it has lasted a while.
int64_t Runtime::ListIfLong(Waiting& waiting, bool by_executor) {
  WaitReport& report = *waiting.report;
  if (waiting.number != 0) return kNoDeadline;  // the background thread looks
  if (report.look_at_ns == 0) BeginReport(report);
  if (NowNs() < report.look_at_ns) return report.look_at_ns;
  List(waiting, by_executor);
  return kNoDeadline;
}

void Runtime::BeginReport(WaitReport& report) {
  report.began_ns = CoarseNowNs();
  report.look_at_ns = report.began_ns + kFirstLookNs;
  report.pause_ns = kFirstPauseNs;
}

void Runtime::List(Waiting& waiting, bool by_executor) {
  waiting.number = ++last_wait_;
  waiting.since_ns = waiting.report->began_ns;
  waiting.task = std::make_unique<WaitFact>();
  if (executor_) executor_->Describe(*waiting.task, by_executor);
  long_waits_.emplace(waiting.number, &waiting);
  if (waiting.objects.size() == 1 && waiting.deadline_ns < 0 && !by_executor) {
    auto& group = groups_[waiting.group = waiting.objects[0]];
    group.emplace(waiting.number, &waiting);
    waiting.leads = group.size() == 1;
    if (!waiting.leads) return;
  }
  looks_.emplace(waiting.report->look_at_ns, waiting.number);
  doorbell_->WakeBackground();
}

// The wait is over, or begins again.
void Runtime::EndLooking(Waiting& waiting) {
  if (waiting.inquiry) std::erase(inquiries_, waiting.inquiry.get());
  if (looked_at_ == &waiting) looked_at_ = nullptr;
  if (waiting.number == 0) return;
  const uint64_t number = std::exchange(waiting.number, 0);
  long_waits_.erase(number);
  waiting.inquiry.reset();
  waiting.verdict.reset();
  looks_.erase({waiting.report->look_at_ns, number});
  auto group = groups_.find(std::exchange(waiting.group, nullptr));
  if (group == groups_.end()) return;
  group->second.erase(number);
  if (group->second.empty()) {
    groups_.erase(group);
  } else if (std::exchange(waiting.leads, false)) {
    // Another one is examined from now on, as often as this one was.
    Waiting& heir = *group->second.begin()->second;
    heir.leads = true;
    heir.report->look_at_ns = waiting.report->look_at_ns;
    heir.report->pause_ns = waiting.report->pause_ns;
    looks_.emplace(heir.report->look_at_ns, heir.number);
  }
}

void Runtime::TellVerdict(Waiting& waiting, WaitOutcome outcome) {
  waiting.verdict = outcome;
  waiters_.Wake(*waiting.waiter);
  auto group = groups_.find(waiting.group);
  if (group == groups_.end() || outcome != WaitOutcome::kStuck) return;
  for (auto& [number, other] : group->second) {
    if (other == &waiting) continue;
    other->report->text = waiting.report->text;
    other->verdict = outcome;
    waiters_.Wake(*other->waiter);
  }
}

int64_t Runtime::LookAtWaits(int64_t now_ns) {
  for (;;) {
    Waiting* waiting = std::exchange(looked_at_, nullptr);
    if (waiting) {
      const Inquiry& inquiry = *waiting->inquiry;
      if (!inquiry.done && now_ns < inquiry.began_ns + kMaxInquiryNs) {
        looked_at_ = waiting;
        return inquiry.began_ns + kMaxInquiryNs;
      }
    } else {
      if (looks_.empty()) return kNoDeadline;
      const int64_t at = std::max(looks_.begin()->first, next_look_ns_);
      if (now_ns < at) return at;
      waiting = long_waits_.at(looks_.begin()->second);
      looks_.erase(looks_.begin());
    }
    next_look_ns_ = now_ns + kTurnNs;
    WaitOutcome outcome;
    if (Look(*waiting, &outcome)) {
      TellVerdict(*waiting, outcome);
    } else if (waiting->inquiry) {
      looked_at_ = waiting;
    } else {
      looks_.emplace(waiting->report->look_at_ns, waiting->number);
    }
  }
}

bool Runtime::Look(Waiting& waiting, WaitOutcome* outcome) {
  WaitReport& report = *waiting.report;
  const int64_t now = NowNs();
  const int64_t notice_at = report.noticed || notice_after_ns_ <= 0 ? INT64_MAX : report.began_ns + notice_after_ns_;
  if (waiting.inquiry) {
    Inquiry& inquiry = *waiting.inquiry;
    if (!inquiry.done && now < inquiry.began_ns + kMaxInquiryNs) return false;
    std::erase(inquiries_, &inquiry);
    std::unique_ptr<Inquiry> ended = std::move(waiting.inquiry);
    if (ended->done && ended->verdict.kind != WaitVerdict::Kind::kMayGoOn && waiting.deadline_ns < 0) {
      if (report.stuck_since_ns == 0) report.stuck_since_ns = now;
      bool unschedulable = ended->verdict.kind == WaitVerdict::Kind::kUnschedulable;
      if (unschedulable || ended->verdict.in_circle || now - report.stuck_since_ns >= kOutsidePatienceNs) {
        report.text = unschedulable ? "UnschedulableError\n" : "DeadlockError\nthis can never end: ";
        report.text += ended->verdict.chain;
        *outcome = WaitOutcome::kStuck;
        return true;
      }
      report.look_at_ns = now + kOutsidePauseNs;
      return false;
    }
    report.stuck_since_ns = 0;
    if (now >= notice_at) {
      report.noticed = true;
      report.text = ended->done ? ended->graph->Line() : "it is not known what (nobody answered)";
      *outcome = WaitOutcome::kNotice;
      return true;
    }
    const int64_t share = static_cast<int64_t>(long_waits_.size()) * kShareNs;
    report.look_at_ns = std::min(now + std::max(report.pause_ns, share), notice_at);
    report.pause_ns = std::min(report.pause_ns * 2, kMaxPauseNs);
    return false;
  }
  if (now < report.look_at_ns) return false;
  if (!waiting.task) {
    waiting.task = std::make_unique<WaitFact>();
    if (executor_) executor_->DescribeCall(*waiting.task, waiting.execution);
  }
  if (waiting.deadline_ns > 0 && now < notice_at) {
    report.look_at_ns = notice_at;  // it ends at its deadline: only worth a notice
    return false;
  }
  if (!inquiries_.empty()) {
    report.look_at_ns = now + kTurnNs;
    return false;
  }
  waiting.inquiry = std::make_unique<Inquiry>();
  waiting.inquiry->began_ns = now;
  report.look_at_ns = now + kMaxInquiryNs;
  BeginPass(*waiting.inquiry, std::make_unique<WaitGraph>(self(), FactOf(waiting)));
  // If there was nothing to ask, the result is known already.
  return waiting.inquiry->done && Look(waiting, outcome);
}

// ---- coroutines that await ----------------------------------------------------------------------------------------

uint64_t Runtime::Await(Object* object, void* cookie, uint64_t execution) {
  std::unique_lock lock(mutex_);
  if (object->settled()) {
    AddReference(object);
    Raise({.kind = RuntimeEvent::kReady, .object = object, .cookie = cookie});
    return 0;
  }
  const uint64_t number = ++last_wait_;
  Awaiting& await = awaits_[number];
  await.object = object;
  await.cookie = cookie;
  await.waiting.objects = {&await.object, 1};
  await.waiting.wanted = 1;
  await.waiting.report = &await.report;
  await.waiting.number = number;
  await.waiting.execution = execution;
  BeginReport(await.report);
  await.waiting.since_ns = await.report.began_ns;
  ++object->callbacks;
  callbacks_[object].push_back({.cookie = cookie, .await = number});
  owner_->WantHere(object, actions_);
  Perform();
  awaits_seen_ = true;
  if (background_idle_) doorbell_->WakeBackground();
  if (!waiters_.poller()) ArmBackground();
  NotifyPeers(lock);
  return number;
}

void Runtime::EndAwait(uint64_t number) {
  std::lock_guard lock(mutex_);
  // The callback stays, like that of an abandoned future.
  ForgetAwait(number);
}

void Runtime::ForgetAwait(uint64_t number) {
  auto found = awaits_.find(number);
  if (found == awaits_.end()) return;
  // Replies are taken even in the middle of an inquiry: then the object is gone, and LookAtAwaits removes the rest.
  if (found->second.waiting.inquiry) {
    found->second.object = nullptr;
  } else {
    awaits_.erase(found);
  }
  loop_rests_ = false;  // the coroutine that awaited it will run, and do anything
}

void Runtime::SetLoopRests(bool rests) {
  std::lock_guard lock(mutex_);
  loop_rests_ = rests;
  if (rests) ++last_rest_;
  loop_asked_.store(false, std::memory_order_relaxed);
}

int64_t Runtime::LookAtAwaits(int64_t now_ns) {
  awaits_seen_ = !awaits_.empty();
  int64_t next = INT64_MAX;
  for (auto it = awaits_.begin(); it != awaits_.end(); ++it) {
    const uint64_t number = it->first;
    Awaiting& await = it->second;
    if (!await.object) {
      EndLooking(await.waiting);
      awaits_.erase(it);
      return now_ns;  // and so on with the others
    }
    if (await.report.began_ns + kListedNs > now_ns) {
      next = std::min(next, await.report.began_ns + kListedNs);
      break;  // those that follow are younger
    }
    if (await.waiting.execution == 0) continue;
    if (await.report.began_ns + kFirstLookNs > now_ns) {
      if (!loop_rests_ && !loop_asked_.exchange(true, std::memory_order_relaxed) && executor_) executor_->Wake();
      next = std::min(next, await.report.began_ns + kFirstLookNs);
      continue;
    }
    if (!await.waiting.inquiry && now_ns >= await.report.look_at_ns && !loop_rests_) {
      // Its loop is asked first, and says so when it goes to sleep. Until then it may go on.
      loop_asked_.store(true, std::memory_order_relaxed);
      if (executor_) executor_->Wake();
      await.report.look_at_ns = now_ns + kTurnNs;
      if (++await.report.tries >= kMaxTries) {
        await.report.tries = 0;
        await.report.look_at_ns = now_ns + await.report.pause_ns;
        await.report.pause_ns = std::min(await.report.pause_ns * 2, kMaxPauseNs);
      }
    }
    if (!await.waiting.inquiry) await.rest = last_rest_;
    WaitOutcome outcome = WaitOutcome::kReady;
    const bool stuck = Look(await.waiting, &outcome) && outcome == WaitOutcome::kStuck;
    if (!await.object) return now_ns;  // it came meanwhile
    if (stuck && (!loop_rests_ || await.rest != last_rest_)) {
      await.report.look_at_ns = now_ns + kTurnNs;  // something ran in its process meanwhile
    } else if (stuck) {
      AddReference(await.object);
      Raise({.kind = RuntimeEvent::kStuck,
             .text = std::move(await.report.text),
             .object = await.object,
             .cookie = await.cookie});
      auto callbacks = callbacks_.find(await.object);
      await.object->callbacks -= static_cast<uint32_t>(
          std::erase_if(callbacks->second, [&](const Callback& call) { return call.await == number; }));
      if (callbacks->second.empty()) callbacks_.erase(callbacks);
      ForgetAwait(number);
      return now_ns + kTurnNs;  // the map has changed
    }
    next = std::min(next,
                    await.waiting.inquiry ? now_ns + kTurnNs / 2 : std::max(await.report.look_at_ns, now_ns + kTurnNs));
  }
  return next;
}

// ---- what this process knows --------------------------------------------------------------------------------------

WaitFact Runtime::FactOf(const Waiting& waiting) const {
  WaitFact fact = *waiting.task;
  fact.wait = waiting.number;
  fact.has_deadline = waiting.deadline_ns >= 0;
  fact.for_ns = NowNs() - waiting.since_ns;
  if (waiting.execution != 0) {
    // Its call goes on with the object. But as long as the loop has other tasks, or is not known to rest, any of them
    // or a timer may cancel this one: then the object is not needed.
    fact.has_deadline = loop_rests_ ? 0 : 2;
    fact.wanted = 1;
    fact.objects.push_back(waiting.objects[0]->id);
    for (const auto& [number, await] : awaits_) {
      if (await.waiting.execution == 0 && await.object) fact.objects.push_back(await.object->id);
      if (fact.objects.size() <= kMaxObjectsListed) continue;
      fact.has_deadline = 2;
      break;
    }
    return fact;
  }
  size_t resolved = 0;
  for (Object* object : waiting.objects) {
    if (object->settled()) {
      ++resolved;
    } else if (fact.objects.size() < kMaxObjectsListed) {
      fact.objects.push_back(object->id);
    } else {
      ++fact.more_objects;
    }
  }
  fact.wanted = static_cast<uint32_t>(waiting.wanted - std::min(resolved, waiting.wanted));
  return fact;
}

ProcessFact Runtime::FactOfSelf() {
  ProcessFact fact;
  fact.process = self();
  fact.pid = getpid();
  if (executor_) fact.slots = executor_->Slots();
  for (const auto& [number, waiting] : long_waits_) fact.waits.push_back(FactOf(*waiting));
  const int64_t now = NowNs();
  for (auto& [number, await] : awaits_) {
    if (await.report.began_ns + kListedNs > now || fact.waits.size() > kMaxObjectsListed) break;
    if (await.waiting.execution == 0 || !await.object) continue;
    if (!await.waiting.task) {
      await.waiting.task = std::make_unique<WaitFact>();
      if (executor_) executor_->DescribeCall(*await.waiting.task, await.waiting.execution);
    }
    fact.waits.push_back(FactOf(await.waiting));
  }
  return fact;
}

void Runtime::AnswerWhy(ProcessId requester, ObjectId subject, uint64_t request) {
  Drain();  // a reply in a ring must be known before the answer is read
  PeerMessage answer{.kind = PeerMessageKind::kWhy, .id = subject, .count = request};
  if (subject.index == 0) {
    answer.bytes = EncodeFact(FactOfSelf());
  } else {
    ObjectFact fact = owner_->Explain(subject);
    fact.pid = getpid();
    answer.bytes = EncodeFact(fact);
  }
  Route(requester, answer);
}

// ---- inquiries ----------------------------------------------------------------------------------------------------

void Runtime::BeginPass(Inquiry& inquiry, std::unique_ptr<WaitGraph> graph) {
  Drain();
  inquiry.graph = std::move(graph);
  inquiry.number = ++last_inquiry_;
  inquiry.open = 0;
  if (std::find(inquiries_.begin(), inquiries_.end(), &inquiry) == inquiries_.end()) inquiries_.push_back(&inquiry);
  Continue(inquiry);
}

void Runtime::Continue(Inquiry& inquiry) {
  for (;;) {
    WaitQuestion question;
    while (inquiry.graph->NextQuestion(&question)) {
      if (question.kind == WaitQuestion::Kind::kShape) {
        ++inquiry.open;
        Send(AskShape{.request = inquiry.number, .shape = question.shape});
      } else if (question.object.owner != self()) {
        ++inquiry.open;
        Route(question.object.owner,
              {.kind = PeerMessageKind::kAskWhy, .id = question.object, .count = inquiry.number});
      } else if (question.kind == WaitQuestion::Kind::kProcess) {
        inquiry.graph->Answer(FactOfSelf());
      } else {
        ObjectFact fact = owner_->Explain(question.object);
        fact.pid = getpid();
        inquiry.graph->Answer(std::move(fact));
      }
    }
    if (inquiry.open > 0 || inquiry.done) return;
    inquiry.verdict = inquiry.graph->Judge(inquiry.second ? &inquiry.proof : nullptr);
    if (inquiry.verdict.kind != WaitVerdict::Kind::kStuck || inquiry.second) {
      inquiry.done = true;
      if (looked_at_ && looked_at_->inquiry.get() == &inquiry) doorbell_->WakeBackground();
      return;
    }
    // Once more, from the same beginning: only facts that are seen twice count.
    inquiry.second = true;
    inquiry.proof = std::move(inquiry.verdict.proof);
    inquiry.number = ++last_inquiry_;
    Drain();
    inquiry.graph = std::make_unique<WaitGraph>(inquiry.graph->Again());
  }
}

void Runtime::WhyAnswered(uint64_t request, ObjectId subject, std::string_view bytes) {
  for (Inquiry* inquiry : inquiries_) {
    if (inquiry->number != request || inquiry->open == 0) continue;
    --inquiry->open;
    if (subject.index == 0) {
      ProcessFact fact;
      if (DecodeFact(bytes, fact) && fact.process == subject.owner) inquiry->graph->Answer(std::move(fact));
    } else {
      ObjectFact fact;
      if (DecodeFact(bytes, fact) && fact.id == subject) inquiry->graph->Answer(std::move(fact));
    }
    return Continue(*inquiry);
  }
}

void Runtime::ShapeAnswered(uint64_t request, std::string_view bytes) {
  for (Inquiry* inquiry : inquiries_) {
    if (inquiry->number != request || inquiry->open == 0) continue;
    --inquiry->open;
    ShapeFact fact;
    if (DecodeFact(bytes, fact)) inquiry->graph->Answer(std::move(fact));
    return Continue(*inquiry);
  }
}

void Runtime::AbandonInquiries() {
  for (Inquiry* inquiry : inquiries_) {
    if (inquiry->done) continue;
    inquiry->graph->Judge(nullptr);  // for its text; unanswered questions count as able to go on
    inquiry->verdict = WaitVerdict();
    inquiry->done = true;
  }
  if (looked_at_) doorbell_->WakeBackground();
}

std::string Runtime::Explain(Object* object) {
  std::unique_lock lock(mutex_);
  Inquiry inquiry;
  inquiry.began_ns = NowNs();
  BeginPass(inquiry, std::make_unique<WaitGraph>(object->id));
  WaitForNews(lock, inquiry.began_ns + kMaxInquiryNs, [&] { return inquiry.done; });
  std::erase(inquiries_, &inquiry);
  if (!inquiry.done) inquiry.graph->Judge(nullptr);
  std::string text = inquiry.graph->Text();
  if (inquiry.done && inquiry.verdict.kind == WaitVerdict::Kind::kStuck) {
    text += "\nthis can never end: " + inquiry.verdict.chain;
  }
  NotifyPeers(lock);
  return text;
}

}  // namespace weft::core
