#include "node/channel_broker.h"

#include <gtest/gtest.h>

namespace weft::core {
namespace {

using Pair = ChannelBroker::Pair;
using Side = ChannelBroker::Side;

constexpr ProcessId kDriver{1}, kWorker{2}, kOther{3}, kFar{uint64_t{1} << 40 | 7};
constexpr int64_t kNow = 1'000'000'000;

ActorChanged Change(uint64_t actor, ProcessId worker) {
  ActorChanged change;
  change.actor = {kDriver, actor};
  change.worker = worker;
  return change;
}

class ChannelBrokerTest : public ::testing::Test {
 protected:
  // Of `process`, that can still be had.
  size_t SlotsLeft(ProcessId process) {
    size_t left = 0;
    while (broker_.TakeSlot(process)) ++left;
    return left;
  }

  ChannelBroker broker_{3};
};

TEST_F(ChannelBrokerTest, AChannelHasASlotOnEachSideAndADirection) {
  broker_.Open({kDriver, kOther});
  auto slots = broker_.Open({kDriver, kWorker});
  ASSERT_TRUE(slots);
  EXPECT_EQ(slots->submitter, 1u);
  EXPECT_EQ(slots->worker, 0u);
  EXPECT_TRUE(broker_.HasSubmitter({kDriver, kWorker}));
  EXPECT_FALSE(broker_.HasSubmitter({kWorker, kDriver}));
  EXPECT_TRUE(broker_.Open({kWorker, kDriver}));
  EXPECT_TRUE(broker_.HasSubmitter({kWorker, kDriver}));
}

TEST_F(ChannelBrokerTest, WithoutASlotOnOneSideTheOtherKeepsItsOwn) {
  EXPECT_EQ(SlotsLeft(kDriver), 3u);
  EXPECT_FALSE(broker_.Open({kDriver, kWorker}));
  EXPECT_FALSE(broker_.Open({kWorker, kDriver}));
  EXPECT_FALSE(broker_.HasSubmitter({kDriver, kWorker}));
  EXPECT_EQ(SlotsLeft(kWorker), 3u);
}

TEST_F(ChannelBrokerTest, SlotsOfTheDeadAreUsedAgainLast) {
  broker_.Open({kDriver, kWorker});
  broker_.Open({kWorker, kDriver});
  broker_.Ended(kWorker);
  EXPECT_FALSE(broker_.HasSubmitter({kDriver, kWorker}));
  EXPECT_EQ(broker_.TakeSlot(kDriver), 2u);
  EXPECT_EQ(broker_.TakeSlot(kDriver), 1u) << "of the channel from the worker, which comes first in its ports";
  EXPECT_EQ(broker_.TakeSlot(kDriver), 0u);
  EXPECT_FALSE(broker_.TakeSlot(kDriver));
}

TEST_F(ChannelBrokerTest, AProcessMayCallItself) {
  EXPECT_TRUE(broker_.Open({kWorker, kWorker}));
  broker_.Ended(kWorker);
  EXPECT_FALSE(broker_.HasSubmitter({kWorker, kWorker}));
}

TEST_F(ChannelBrokerTest, OfAChannelBetweenNodesOneSideHasASlot) {
  EXPECT_EQ(broker_.OpenOne({kDriver, kFar}, Side::kSubmitter), 0u);
  EXPECT_TRUE(broker_.HasSubmitter({kDriver, kFar}));
  EXPECT_EQ(broker_.OpenOne({kFar, kDriver}, Side::kWorker), 1u);
  EXPECT_FALSE(broker_.HasSubmitter({kFar, kDriver}));
  broker_.EndedElsewhere(kFar);
  EXPECT_FALSE(broker_.HasSubmitter({kDriver, kFar}));
  EXPECT_EQ(SlotsLeft(kDriver), 3u);
}

TEST_F(ChannelBrokerTest, AnotherNodeIsAskedOnceAndDialledOnce) {
  EXPECT_TRUE(broker_.Want({kFar, kWorker}));
  EXPECT_FALSE(broker_.Want({kFar, kWorker}));
  broker_.EndedElsewhere(kFar);
  EXPECT_TRUE(broker_.Want({kFar, kWorker}));
  broker_.Ended(kWorker);
  EXPECT_TRUE(broker_.Want({kFar, kWorker}));

  EXPECT_TRUE(broker_.Await({kDriver, kFar}));
  EXPECT_FALSE(broker_.Await({kDriver, kFar}, LeaseRecalled{}));
  EXPECT_TRUE(broker_.IsAwaited({kDriver, kFar}));
}

TEST_F(ChannelBrokerTest, WhatWaitsIsDeliveredInOrderOnceItIsOpen) {
  broker_.Await({kDriver, kFar}, LeaseGranted{});
  broker_.Await({kDriver, kFar}, Change(5, kFar));
  auto messages = broker_.Opened({kDriver, kFar});
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<LeaseGranted>(messages[0]));
  EXPECT_TRUE(std::holds_alternative<ActorChanged>(messages[1]));
  EXPECT_FALSE(broker_.IsAwaited({kDriver, kFar}));
  EXPECT_TRUE(broker_.Opened({kDriver, kFar}).empty());
}

TEST_F(ChannelBrokerTest, GrantsDoNotWaitForASecondConnection) {
  broker_.Await({kDriver, kFar}, LeaseGranted{});
  EXPECT_EQ(broker_.NotReached({kDriver, kFar}, false, kNow).size(), 1u);
  EXPECT_FALSE(broker_.IsAwaited({kDriver, kFar}));
  EXPECT_EQ(broker_.next_dial_ns(), INT64_MAX);
}

TEST_F(ChannelBrokerTest, ForChangesOfActorsItIsDialledAgain) {
  broker_.Await({kDriver, kFar}, Change(5, kFar));
  broker_.Await({kDriver, kFar}, LeaseGranted{});
  auto refused = broker_.NotReached({kDriver, kFar}, false, kNow);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<LeaseGranted>(refused[0]));
  EXPECT_TRUE(broker_.IsAwaited({kDriver, kFar}));
  EXPECT_EQ(broker_.next_dial_ns(), kNow + ChannelBroker::kDialAgainNs);
  EXPECT_TRUE(broker_.Due(kNow).empty());
  EXPECT_EQ(broker_.Due(kNow + ChannelBroker::kDialAgainNs).size(), 1u);
  EXPECT_TRUE(broker_.Due(kNow + ChannelBroker::kDialAgainNs).empty()) << "it is being dialled";

  EXPECT_TRUE(broker_.NotReached({kDriver, kFar}, false, kNow + ChannelBroker::kReachNs - 1).empty());
  EXPECT_EQ(broker_.NotReached({kDriver, kFar}, false, kNow + ChannelBroker::kReachNs).size(), 1u);
  EXPECT_FALSE(broker_.IsAwaited({kDriver, kFar}));
}

TEST_F(ChannelBrokerTest, TheDeadAreNotDialledAgain) {
  broker_.Await({kDriver, kFar}, Change(5, kFar));
  EXPECT_EQ(broker_.NotReached({kDriver, kFar}, true, kNow).size(), 1u);
  EXPECT_FALSE(broker_.IsAwaited({kDriver, kFar}));

  broker_.Await({kDriver, kFar}, Change(5, kFar));
  broker_.NotReached({kDriver, kFar}, false, kNow);
  broker_.EndedElsewhere(kFar);
  EXPECT_TRUE(broker_.Due(kNow + ChannelBroker::kReachNs).empty());

  broker_.Await({kDriver, kFar}, Change(5, kFar));
  broker_.Ended(kDriver);
  EXPECT_FALSE(broker_.IsAwaited({kDriver, kFar}));
}

TEST_F(ChannelBrokerTest, ANewerChangeOvertakesThoseThatWaitForAnEarlierWorker) {
  broker_.Await({kDriver, kFar}, Change(5, kFar));
  broker_.Await({kDriver, kFar}, Change(6, kFar));
  broker_.Overtake(kDriver, Change(5, kOther));
  broker_.Overtake(kWorker, Change(6, kOther));
  auto messages = broker_.Opened({kDriver, kFar});
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(std::get<ActorChanged>(messages[0]).actor.index, 6u);
}

}  // namespace
}  // namespace weft::core
