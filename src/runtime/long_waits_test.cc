// When a wait is looked into, and what its thread or coroutine is told.
#include "runtime/long_waits.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "os/futex.h"

namespace weft::core {
namespace {

constexpr ProcessId kSelf{1}, kOther{2};
constexpr int64_t kMs = 1'000'000;

class LongWaitsTest : public testing::Test, protected Inquiries::Host, protected LongWaits::Host {
 protected:
  struct Thread {
    explicit Thread(Object* object) : object(object) {
      LongWaits::Begin(report, 0);
      waiting.objects = {&this->object, 1};
      waiting.wanted = 1;
      waiting.report = &report;
      waiting.waiter = &waiter;
    }
    bool woken() const { return waiter.woken.load() != 0; }
    Object* object;
    WaitReport report;
    Waiter waiter;
    Waiting waiting;
  };

  LongWaitsTest() {
    inquiries_.set_self(kSelf);
    waits_.set_self(kSelf);
    object_.id = {kOther, 7};
  }

  void TakeReplies() override {}
  void AskShape(uint64_t, const ResourceAmounts&) override {}
  void AskWhy(uint64_t number, ObjectId subject) override { asked_.emplace(number, subject); }
  ProcessFact FactOfSelf() override { return {}; }
  ObjectFact FactOfObject(ObjectId) override { return {}; }
  void InquiryEnded(Inquiry& inquiry) override { waits_.InquiryEnded(inquiry); }
  void Wake(Waiter& waiter) override { waiter.woken.store(1); }
  void WakeBackground() override { ++background_; }
  void WakeLoop() override { ++loop_; }
  void DescribeCall(WaitFact& fact, uint64_t execution) override { fact.execution = execution; }
  void Stuck(Object* object, void*, uint64_t await, std::string text) override {
    EXPECT_EQ(object, &object_);
    stuck_.emplace(await, text);
  }

  // The owner's answer to all that was asked: its task waits for itself, or runs.
  void AnswerAll(bool stuck) {
    while (!asked_.empty()) {
      const auto [number, subject] = *asked_.begin();
      asked_.erase(asked_.begin());
      ObjectFact fact;
      fact.id = subject;
      fact.state = stuck ? ObjectState::kArguments : ObjectState::kUnknown;
      if (stuck) fact.objects = {subject};
      inquiries_.WhyAnswered(number, subject, EncodeFact(fact));
    }
  }

  Inquiries inquiries_{*this};
  LongWaits waits_{*this, inquiries_};
  Object object_;
  std::map<uint64_t, ObjectId> asked_;
  std::map<uint64_t, std::string> stuck_;
  int background_ = 0, loop_ = 0;
};

TEST_F(LongWaitsTest, AWaitIsLookedIntoWhenItsTimeHasCome) {
  Thread thread(&object_);
  EXPECT_EQ(waits_.LookAtThreads(0), kNoDeadline);
  waits_.List(thread.waiting, {}, true);
  EXPECT_EQ(background_, 1);
  EXPECT_EQ(waits_.LookAtThreads(199 * kMs), 200 * kMs);
  EXPECT_TRUE(asked_.empty());
  EXPECT_EQ(waits_.LookAtThreads(200 * kMs), 200 * kMs + Inquiries::kPatienceNs);
  EXPECT_EQ(asked_.size(), 1u);
  AnswerAll(false);
  EXPECT_EQ(background_, 2);  // to look at the answer
  waits_.LookAtThreads(210 * kMs);
  EXPECT_FALSE(thread.woken());
  EXPECT_EQ(waits_.LookAtThreads(300 * kMs), 610 * kMs);  // after the first pause
  EXPECT_TRUE(asked_.empty());
  waits_.End(thread.waiting);
  EXPECT_FALSE(waits_.any_threads());
}

TEST_F(LongWaitsTest, ThreadsThatWaitForOneObjectAreLookedAtAsOneAndToldAllOfThem) {
  Thread first(&object_), second(&object_), third(&object_);
  for (Thread* thread : {&first, &second, &third}) waits_.List(thread->waiting, {}, true);
  waits_.LookAtThreads(200 * kMs);
  EXPECT_EQ(asked_.size(), 1u);
  // The first one's wait ends otherwise; another one is looked at from then on.
  waits_.End(first.waiting);
  asked_.clear();
  waits_.LookAtThreads(3'000 * kMs);
  EXPECT_EQ(asked_.size(), 1u);
  AnswerAll(true);
  // They only depend on what is stuck, and leave it to that to fail first.
  int64_t now = 3'010 * kMs;
  for (; !second.waiting.verdict && now < 10'000 * kMs; now += 10 * kMs) {
    waits_.LookAtThreads(now);
    AnswerAll(true);
  }
  EXPECT_GE(now, 3'400 * kMs);
  EXPECT_FALSE(first.woken());
  for (Thread* thread : {&second, &third}) {
    EXPECT_TRUE(thread->woken());
    EXPECT_EQ(thread->waiting.verdict, WaitOutcome::kStuck);
    EXPECT_EQ(thread->report.text.rfind("DeadlockError\nthis can never end: ", 0), 0u) << thread->report.text;
    waits_.End(thread->waiting);
  }
}

TEST_F(LongWaitsTest, AWaitThatLastsLongIsToldOfOnce) {
  waits_.set_notice_after(1'000 * kMs);
  Thread thread(&object_);
  waits_.List(thread.waiting, {}, true);
  int notices = 0;
  for (int64_t now = 200 * kMs; now < 20'000 * kMs; now += 100 * kMs) {
    waits_.LookAtThreads(now);
    AnswerAll(false);
    if (!thread.waiting.verdict) continue;
    EXPECT_GE(now, 1'000 * kMs);
    EXPECT_EQ(thread.waiting.verdict, WaitOutcome::kNotice);
    ++notices;
    waits_.End(thread.waiting);  // as the front end does, which waits again with the same report
    waits_.List(thread.waiting, {}, true);
  }
  EXPECT_EQ(notices, 1);
  waits_.End(thread.waiting);
}

TEST_F(LongWaitsTest, AWaitWithADeadlineIsNotLookedInto) {
  Thread thread(&object_);
  thread.waiting.deadline_ns = 60'000 * kMs;
  waits_.List(thread.waiting, {}, true);
  waits_.LookAtThreads(5'000 * kMs);
  EXPECT_TRUE(asked_.empty());
  waits_.End(thread.waiting);
}

TEST_F(LongWaitsTest, ACoroutineIsStuckOnlyWhileItsLoopRests) {
  const uint64_t number = waits_.Await(&object_, nullptr, 5, 0);
  EXPECT_TRUE(waits_.any_coroutines());
  EXPECT_EQ(waits_.LookAtCoroutines(50 * kMs), 100 * kMs);
  waits_.LookAtCoroutines(150 * kMs);  // its loop is asked before the first look
  EXPECT_EQ(loop_, 1);
  EXPECT_TRUE(waits_.LoopIsAsked());
  waits_.LookAtCoroutines(200 * kMs);
  EXPECT_EQ(loop_, 2);
  EXPECT_TRUE(asked_.empty());

  waits_.SetLoopRests(true);
  EXPECT_FALSE(waits_.LoopIsAsked());
  int64_t now = 300 * kMs;
  for (; now < 5'000 * kMs; now += 10 * kMs) {
    waits_.LookAtCoroutines(now);
    AnswerAll(true);
    waits_.SetLoopRests(false);  // something runs in between, every time
    waits_.SetLoopRests(true);
  }
  EXPECT_TRUE(stuck_.empty());
  for (; stuck_.empty() && now < 20'000 * kMs; now += 10 * kMs) {
    waits_.LookAtCoroutines(now);
    AnswerAll(true);
  }
  ASSERT_EQ(stuck_.size(), 1u);
  EXPECT_EQ(stuck_.begin()->first, number);
  waits_.LookAtCoroutines(30'000 * kMs);
  EXPECT_FALSE(waits_.any_coroutines());
}

TEST_F(LongWaitsTest, AnAwaitThatEndsInTheMiddleOfAnInquiryIsForgotten) {
  const uint64_t number = waits_.Await(&object_, nullptr, 5, 0);
  waits_.SetLoopRests(true);
  waits_.LookAtCoroutines(300 * kMs);
  ASSERT_EQ(asked_.size(), 1u);
  waits_.EndAwait(number);
  AnswerAll(true);
  waits_.LookAtCoroutines(310 * kMs);
  waits_.LookAtCoroutines(320 * kMs);
  EXPECT_TRUE(stuck_.empty());
  EXPECT_FALSE(waits_.any_coroutines());
  EXPECT_FALSE(inquiries_.any_open());
}

}  // namespace
}  // namespace weft::core
