#include "runtime/long_waits.h"

#include <algorithm>

#include "os/futex.h"

namespace weft::core {
namespace {

constexpr int64_t kMillisecondNs = 1'000'000;
constexpr int64_t kFirstLookNs = 200 * kMillisecondNs;
// A coroutine is listed, and its loop asked whether it rests, before it is examined for the first time.
constexpr int64_t kListedNs = 100 * kMillisecondNs;
constexpr int64_t kFirstPauseNs = 400 * kMillisecondNs;
constexpr int64_t kMaxPauseNs = 5'000 * kMillisecondNs;
// Between inquiries, and while another one of this process is open.
constexpr int64_t kTurnNs = 20 * kMillisecondNs;
// If many threads wait, each is examined less often: twenty inquiries a second, however many there are.
constexpr int64_t kShareNs = 50 * kMillisecondNs;
// A wait that only depends on a circle gives those in it so much time to fail: one of them may recover.
constexpr int64_t kOutsidePatienceNs = 400 * kMillisecondNs;
constexpr int64_t kOutsidePauseNs = 100 * kMillisecondNs;
constexpr size_t kMaxObjectsListed = 1000;
// How often in a row a loop is asked whether it rests, before it is left alone for a while.
constexpr uint32_t kMaxTries = 4;

bool IsOpen(const Inquiry& inquiry, int64_t now_ns) {
  return !inquiry.done && now_ns < inquiry.began_ns + Inquiries::kPatienceNs;
}

}  // namespace

// ---- threads --------------------------------------------------------------------------------------------------------

void LongWaits::Begin(WaitReport& report, int64_t now_ns) {
  report.began_ns = now_ns;
  report.look_at_ns = report.began_ns + kFirstLookNs;
  report.pause_ns = kFirstPauseNs;
}

void LongWaits::List(Waiting& waiting, WaitFact task, bool shared) {
  waiting.number = ++last_number_;
  waiting.since_ns = waiting.report->began_ns;
  waiting.task = std::make_unique<WaitFact>(std::move(task));
  threads_.emplace(waiting.number, &waiting);
  if (waiting.objects.size() == 1 && waiting.deadline_ns < 0 && shared) {
    auto& group = groups_[waiting.group = waiting.objects[0]];
    group.emplace(waiting.number, &waiting);
    waiting.leads = group.size() == 1;
    if (!waiting.leads) return;
  }
  looks_.emplace(waiting.report->look_at_ns, waiting.number);
  host_.WakeBackground();
}

void LongWaits::End(Waiting& waiting) {
  if (waiting.inquiry) inquiries_.Forget(*waiting.inquiry);
  if (looked_at_ == &waiting) looked_at_ = nullptr;
  if (waiting.number == 0) return;
  const uint64_t number = std::exchange(waiting.number, 0);
  threads_.erase(number);
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

void LongWaits::Tell(Waiting& waiting, WaitOutcome outcome) {
  waiting.verdict = outcome;
  host_.Wake(*waiting.waiter);
  auto group = groups_.find(waiting.group);
  if (group == groups_.end() || outcome != WaitOutcome::kStuck) return;
  for (auto& [number, other] : group->second) {
    if (other == &waiting) continue;
    other->report->text = waiting.report->text;
    other->verdict = outcome;
    host_.Wake(*other->waiter);
  }
}

int64_t LongWaits::LookAtThreads(int64_t now_ns) {
  for (;;) {
    Waiting* waiting = std::exchange(looked_at_, nullptr);
    if (waiting) {
      if (IsOpen(*waiting->inquiry, now_ns)) {
        looked_at_ = waiting;
        return waiting->inquiry->began_ns + Inquiries::kPatienceNs;
      }
    } else {
      if (looks_.empty()) return kNoDeadline;
      const int64_t at = std::max(looks_.begin()->first, next_look_ns_);
      if (now_ns < at) return at;
      waiting = threads_.at(looks_.begin()->second);
      looks_.erase(looks_.begin());
    }
    next_look_ns_ = now_ns + kTurnNs;
    WaitOutcome outcome;
    if (Look(*waiting, now_ns, &outcome)) {
      Tell(*waiting, outcome);
    } else if (waiting->inquiry) {
      looked_at_ = waiting;
    } else {
      looks_.emplace(waiting->report->look_at_ns, waiting->number);
    }
  }
}

void LongWaits::InquiryEnded(const Inquiry& inquiry) {
  if (looked_at_ && looked_at_->inquiry.get() == &inquiry) host_.WakeBackground();
}

int64_t LongWaits::NoticeAt(const WaitReport& report) const {
  return report.noticed || notice_after_ns_ <= 0 ? INT64_MAX : report.began_ns + notice_after_ns_;
}

bool LongWaits::Look(Waiting& waiting, int64_t now_ns, WaitOutcome* outcome) {
  WaitReport& report = *waiting.report;
  if (waiting.inquiry) return !IsOpen(*waiting.inquiry, now_ns) && Judge(waiting, now_ns, outcome);
  if (now_ns < report.look_at_ns) return false;
  Describe(waiting);
  if (const int64_t notice_at = NoticeAt(report); waiting.deadline_ns > 0 && now_ns < notice_at) {
    report.look_at_ns = notice_at;  // it ends at its deadline: only worth a notice
    return false;
  }
  if (inquiries_.any_open()) {
    report.look_at_ns = now_ns + kTurnNs;
    return false;
  }
  waiting.inquiry = std::make_unique<Inquiry>();
  waiting.inquiry->began_ns = now_ns;
  report.look_at_ns = now_ns + Inquiries::kPatienceNs;
  inquiries_.Begin(*waiting.inquiry, std::make_unique<WaitGraph>(self_, FactOf(waiting, now_ns)));
  // If there was nothing to ask, the result is known already.
  return waiting.inquiry->done && Judge(waiting, now_ns, outcome);
}

bool LongWaits::Judge(Waiting& waiting, int64_t now_ns, WaitOutcome* outcome) {
  WaitReport& report = *waiting.report;
  inquiries_.Forget(*waiting.inquiry);
  const std::unique_ptr<Inquiry> ended = std::move(waiting.inquiry);
  if (ended->done && ended->verdict.kind != WaitVerdict::Kind::kMayGoOn && waiting.deadline_ns < 0) {
    if (report.stuck_since_ns == 0) report.stuck_since_ns = now_ns;
    const bool unschedulable = ended->verdict.kind == WaitVerdict::Kind::kUnschedulable;
    if (unschedulable || ended->verdict.in_circle || now_ns - report.stuck_since_ns >= kOutsidePatienceNs) {
      report.text = unschedulable ? "UnschedulableError\n" : "DeadlockError\nthis can never end: ";
      report.text += ended->verdict.chain;
      *outcome = WaitOutcome::kStuck;
      return true;
    }
    report.look_at_ns = now_ns + kOutsidePauseNs;
    return false;
  }
  report.stuck_since_ns = 0;
  const int64_t notice_at = NoticeAt(report);
  if (now_ns >= notice_at) {
    report.noticed = true;
    report.text = ended->done ? ended->graph->Line() : "it is not known what (nobody answered)";
    *outcome = WaitOutcome::kNotice;
    return true;
  }
  const int64_t share = static_cast<int64_t>(threads_.size()) * kShareNs;
  report.look_at_ns = std::min(now_ns + std::max(report.pause_ns, share), notice_at);
  report.pause_ns = std::min(report.pause_ns * 2, kMaxPauseNs);
  return false;
}

// ---- coroutines -----------------------------------------------------------------------------------------------------

uint64_t LongWaits::Await(Object* object, void* cookie, uint64_t execution, int64_t now_ns) {
  const uint64_t number = ++last_number_;
  Awaiting& await = coroutines_[number];
  await.object = object;
  await.cookie = cookie;
  await.waiting.objects = {&await.object, 1};
  await.waiting.wanted = 1;
  await.waiting.report = &await.report;
  await.waiting.number = number;
  await.waiting.execution = execution;
  Begin(await.report, now_ns);
  await.waiting.since_ns = await.report.began_ns;
  coroutines_seen_ = true;
  return number;
}

void LongWaits::EndAwait(uint64_t number) {
  auto found = coroutines_.find(number);
  if (found == coroutines_.end()) return;
  // Replies are taken even in the middle of an inquiry: then the object is gone, and LookAtCoroutines deletes the rest.
  if (found->second.waiting.inquiry) {
    found->second.object = nullptr;
  } else {
    coroutines_.erase(found);
  }
  loop_rests_ = false;  // the coroutine that awaited it will run, and do anything
}

void LongWaits::SetLoopRests(bool rests) {
  loop_rests_ = rests;
  if (rests) ++last_rest_;
  loop_asked_.store(false, std::memory_order_relaxed);
}

void LongWaits::AskLoop() {
  loop_asked_.store(true, std::memory_order_relaxed);
  host_.WakeLoop();
}

int64_t LongWaits::LookAtCoroutines(int64_t now_ns) {
  coroutines_seen_ = !coroutines_.empty();
  int64_t next = INT64_MAX;
  for (auto it = coroutines_.begin(); it != coroutines_.end(); ++it) {
    const uint64_t number = it->first;
    Awaiting& await = it->second;
    if (!await.object) {
      End(await.waiting);
      coroutines_.erase(it);
      return now_ns;  // and so on with the others
    }
    if (await.report.began_ns + kListedNs > now_ns) {
      next = std::min(next, await.report.began_ns + kListedNs);
      break;  // those that follow are younger
    }
    if (await.waiting.execution == 0) continue;
    if (await.report.began_ns + kFirstLookNs > now_ns) {
      if (!loop_rests_ && !LoopIsAsked()) AskLoop();
      next = std::min(next, await.report.began_ns + kFirstLookNs);
      continue;
    }
    if (!await.waiting.inquiry && now_ns >= await.report.look_at_ns && !loop_rests_) {
      // Its loop is asked first, and says so when it goes to sleep. Until then it may go on.
      AskLoop();
      await.report.look_at_ns = now_ns + kTurnNs;
      if (++await.report.tries >= kMaxTries) {
        await.report.tries = 0;
        await.report.look_at_ns = now_ns + await.report.pause_ns;
        await.report.pause_ns = std::min(await.report.pause_ns * 2, kMaxPauseNs);
      }
    }
    if (!await.waiting.inquiry) await.rest = last_rest_;
    WaitOutcome outcome = WaitOutcome::kReady;
    const bool stuck = Look(await.waiting, now_ns, &outcome) && outcome == WaitOutcome::kStuck;
    if (!await.object) return now_ns;  // it came meanwhile
    if (stuck && (!loop_rests_ || await.rest != last_rest_)) {
      await.report.look_at_ns = now_ns + kTurnNs;  // something ran in its process meanwhile
    } else if (stuck) {
      Object* const object = await.object;
      void* const cookie = await.cookie;
      std::string text = std::move(await.report.text);
      EndAwait(number);
      host_.Stuck(object, cookie, number, std::move(text));
      return now_ns + kTurnNs;  // the map has changed
    }
    next = std::min(next,
                    await.waiting.inquiry ? now_ns + kTurnNs / 2 : std::max(await.report.look_at_ns, now_ns + kTurnNs));
  }
  return next;
}

// ---- what this process knows ----------------------------------------------------------------------------------------

void LongWaits::Describe(Waiting& waiting) {
  if (waiting.task) return;
  waiting.task = std::make_unique<WaitFact>();
  host_.DescribeCall(*waiting.task, waiting.execution);
}

WaitFact LongWaits::FactOf(const Waiting& waiting, int64_t now_ns) const {
  WaitFact fact = *waiting.task;
  fact.wait = waiting.number;
  fact.has_deadline = waiting.deadline_ns >= 0;
  fact.for_ns = now_ns - waiting.since_ns;
  if (waiting.execution != 0) {
    // Its call goes on with the object. But as long as the loop has other tasks, or is not known to rest, any of them
    // or a timer may cancel this one: then the object is not needed.
    fact.has_deadline = loop_rests_ ? 0 : 2;
    fact.wanted = 1;
    fact.objects.push_back(waiting.objects[0]->id);
    for (const auto& [number, await] : coroutines_) {
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

std::vector<WaitFact> LongWaits::Facts(int64_t now_ns) {
  std::vector<WaitFact> facts;
  for (const auto& [number, waiting] : threads_) facts.push_back(FactOf(*waiting, now_ns));
  for (auto& [number, await] : coroutines_) {
    if (await.report.began_ns + kListedNs > now_ns || facts.size() > kMaxObjectsListed) break;
    if (await.waiting.execution == 0 || !await.object) continue;
    Describe(await.waiting);
    facts.push_back(FactOf(await.waiting, now_ns));
  }
  return facts;
}

}  // namespace weft::core
