// Transcripts: what is asked of whom, in which order, and what comes of the answers.
#include "runtime/inquiries.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace weft::core {
namespace {

constexpr ProcessId kSelf{1}, kOther{2};
constexpr ObjectId kTheirs{kOther, 7}, kOurs{kSelf, 3};

class InquiriesTest : public testing::Test, protected Inquiries::Host {
 protected:
  InquiriesTest() { inquiries_.set_self(kSelf); }

  void TakeReplies() override { log_.push_back("take replies"); }
  void AskShape(uint64_t number, const ResourceAmounts&) override { log_.push_back(std::to_string(number) + " shape"); }
  void AskWhy(uint64_t number, ObjectId subject) override {
    const std::string kind = subject.index == 0 ? "process " : "object ";
    log_.push_back(std::to_string(number) + " " + kind + std::to_string(subject.owner.value));
  }
  ProcessFact FactOfSelf() override {
    ProcessFact fact;
    fact.process = kSelf;
    return fact;
  }
  ObjectFact FactOfObject(ObjectId own) override {
    ObjectFact fact;
    fact.id = own;
    fact.state = ours_;
    fact.objects = {kTheirs};
    return fact;
  }
  void InquiryEnded(Inquiry& inquiry) override { log_.push_back(inquiry.open > 0 ? "abandoned" : "ended"); }

  // A thread of this process waits for the object.
  static std::unique_ptr<WaitGraph> Waits(ObjectId object) {
    WaitFact wait;
    wait.wait = 1;
    wait.wanted = 1;
    wait.objects = {object};
    return std::make_unique<WaitGraph>(kSelf, wait);
  }
  // Its task waits for an object of ours.
  static std::string Needs(ObjectId id, ObjectId argument) {
    ObjectFact fact;
    fact.id = id;
    fact.state = ObjectState::kArguments;
    fact.objects = {argument};
    return EncodeFact(fact);
  }
  std::vector<std::string> TakeLog() { return std::exchange(log_, {}); }

  Inquiries inquiries_{*this};
  ObjectState ours_ = ObjectState::kArguments;
  std::vector<std::string> log_;
};

using Log = std::vector<std::string>;

TEST_F(InquiriesTest, WhatMayGoOnIsKnownAfterOneTraversal) {
  Inquiry inquiry;
  ours_ = ObjectState::kThere;
  inquiries_.Begin(inquiry, Waits(kTheirs));
  EXPECT_EQ(TakeLog(), (Log{"take replies", "1 object 2"}));
  inquiries_.WhyAnswered(1, kTheirs, Needs(kTheirs, kOurs));
  EXPECT_EQ(TakeLog(), (Log{"ended"}));
  EXPECT_EQ(inquiry.verdict.kind, WaitVerdict::Kind::kMayGoOn);
  EXPECT_FALSE(inquiries_.any_open());
}

TEST_F(InquiriesTest, ACircleCountsOnlyIfItWasSeenTwice) {
  Inquiry inquiry;
  inquiries_.Begin(inquiry, Waits(kTheirs));
  EXPECT_EQ(TakeLog(), (Log{"take replies", "1 object 2"}));
  inquiries_.WhyAnswered(1, kTheirs, Needs(kTheirs, kOurs));
  EXPECT_EQ(TakeLog(), (Log{"take replies", "2 object 2"}));
  EXPECT_FALSE(inquiry.done);
  inquiries_.WhyAnswered(1, kTheirs, Needs(kTheirs, kOurs));  // late, of the first traversal
  EXPECT_FALSE(inquiry.done);
  inquiries_.WhyAnswered(2, kTheirs, Needs(kTheirs, kOurs));
  EXPECT_EQ(TakeLog(), (Log{"ended"}));
  EXPECT_EQ(inquiry.verdict.kind, WaitVerdict::Kind::kStuck);
}

TEST_F(InquiriesTest, ThePlantedBugCallsACircleStuckThatWasSeenOnce) {
  Inquiry inquiry;
  inquiries_.faults.judge_from_one_pass = true;
  inquiries_.Begin(inquiry, Waits(kTheirs));
  inquiries_.WhyAnswered(1, kTheirs, Needs(kTheirs, kOurs));
  EXPECT_EQ(inquiry.verdict.kind, WaitVerdict::Kind::kStuck);
}

TEST_F(InquiriesTest, AnAnswerThatIsNoneMayGoOn) {
  for (const std::string& bytes : {std::string("nonsense"), Needs(kOurs, kTheirs)}) {
    Inquiry inquiry;
    inquiries_.Begin(inquiry, Waits(kTheirs));
    inquiries_.WhyAnswered(inquiry.number, kTheirs, bytes);
    EXPECT_TRUE(inquiry.done);
    EXPECT_EQ(inquiry.verdict.kind, WaitVerdict::Kind::kMayGoOn);
  }
  Inquiry inquiry;
  inquiries_.Begin(inquiry, Waits(kTheirs));
  inquiries_.ShapeAnswered(inquiry.number + 1, "nonsense");  // of no inquiry
  EXPECT_FALSE(inquiry.done);
  inquiries_.Forget(inquiry);
}

TEST_F(InquiriesTest, ADeathEndsAllThatWait) {
  Inquiry first, second;
  inquiries_.Begin(first, Waits(kTheirs));
  inquiries_.Begin(second, Waits(kTheirs));
  TakeLog();
  inquiries_.AbandonAll();
  EXPECT_EQ(TakeLog(), (Log{"abandoned", "abandoned"}));
  EXPECT_TRUE(first.done && second.done);
  EXPECT_EQ(first.verdict.kind, WaitVerdict::Kind::kMayGoOn);
  inquiries_.WhyAnswered(second.number, kTheirs, Needs(kTheirs, kOurs));
  EXPECT_EQ(TakeLog(), Log{});
}

TEST_F(InquiriesTest, AForgottenOneTakesNoAnswer) {
  Inquiry inquiry;
  inquiries_.Begin(inquiry, Waits(kTheirs));
  inquiries_.Forget(inquiry);
  inquiries_.WhyAnswered(inquiry.number, kTheirs, Needs(kTheirs, kOurs));
  EXPECT_FALSE(inquiry.done);
  EXPECT_FALSE(inquiries_.any_open());
}

}  // namespace
}  // namespace weft::core
