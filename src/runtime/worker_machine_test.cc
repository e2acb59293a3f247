#include "runtime/worker_machine.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft::core {
namespace {

constexpr ProcessId kSelf{2}, kSubmitter{1}, kOther{3};

struct Worker {
  Owner owner{kSelf};
  WorkerMachine machine;
  WorkerMachine::References references;
  Actions actions;
  std::vector<GivenBack> given_back;
  std::vector<uint64_t> retained;
  void Release() { machine.Release(owner, kSubmitter, references, given_back, retained, actions); }
};

TEST(WorkerMachine, RemembersRecentResultsWithoutReferencesInThem) {
  WorkerMachine machine;
  ObjectId a{kSubmitter, 1}, b{kSubmitter, 2}, c{kSubmitter, 3};
  machine.Remember(a, false, "one", {}, false);
  machine.Remember(b, false, "two", {}, true);
  machine.Remember(c, false, std::string(WorkerMachine::kMaxRememberedBytes + 1, 'x'), {}, false);
  ASSERT_NE(machine.Recall(a), nullptr);
  EXPECT_EQ(machine.Recall(a)->bytes, "one");
  EXPECT_EQ(machine.Recall(b), nullptr);
  EXPECT_EQ(machine.Recall(c), nullptr);
  machine.Remember({kSubmitter, 1 + WorkerMachine::kRemembered}, false, "collides", {}, false);
  EXPECT_EQ(machine.Recall(a), nullptr);
}

TEST(WorkerMachine, WhatIsNoLongerUsedGoesBackWithTheReply) {
  Worker w;
  w.machine.Accept(w.owner, {kSubmitter, 5}, true, w.references);
  w.machine.Accept(w.owner, {kSubmitter, 5}, true, w.references);
  w.machine.Accept(w.owner, {kOther, 6}, true, w.references);
  w.Release();
  ASSERT_EQ(w.given_back.size(), 1u);
  EXPECT_EQ(w.given_back[0].index, 5u);
  EXPECT_EQ(w.given_back[0].count, 2u);
  ASSERT_EQ(w.actions.size(), 1u);  // another owner is told through the daemon
  EXPECT_EQ(w.actions[0].kind, ActionKind::kRemoveBorrower);
  EXPECT_EQ(w.owner.live_objects(), 0u);
}

TEST(WorkerMachine, WhatWasHandedOnGoesBackBehindThatNews) {
  Worker w;
  Object* object = w.machine.Accept(w.owner, {kSubmitter, 5}, true, w.references);
  w.owner.AddBorrower(object, kOther, w.actions);
  w.Release();
  EXPECT_TRUE(w.given_back.empty());
  ASSERT_EQ(w.actions.size(), 2u);
  EXPECT_EQ(w.actions[0].kind, ActionKind::kAddBorrower);
  EXPECT_EQ(w.actions[1].kind, ActionKind::kRemoveBorrower);
}

TEST(WorkerMachine, AnEarlierResultThatIsStillUsedIsRetainedOnce) {
  Worker w;
  Object* object = w.machine.Accept(w.owner, {kSubmitter, 5}, false, w.references);
  w.machine.Accept(w.owner, {kSubmitter, 5}, false, w.references);
  w.machine.Accept(w.owner, {kSubmitter, 6}, true, w.references);
  object->local_references.fetch_add(1);  // a view
  w.Release();
  EXPECT_EQ(w.retained, std::vector<uint64_t>{5});
  EXPECT_EQ(object->registrations, 1u);
  object->local_references.fetch_sub(1);
  w.owner.Consider(object, w.actions);
  ASSERT_EQ(w.actions.size(), 1u);
  EXPECT_EQ(w.actions[0].kind, ActionKind::kRemoveBorrower);
}

TEST(WorkerMachine, AnEarlierResultThatOnlyAChildTaskHoldsIsRetained) {
  Worker w;
  Object* object = w.machine.Accept(w.owner, {kSubmitter, 5}, false, w.references);
  w.owner.Hold(object);
  w.Release();
  EXPECT_EQ(w.retained, std::vector<uint64_t>{5});
}

TEST(WorkerMachine, ADeclinedTaskLeavesTheRegistrationsToItsSubmitter) {
  Worker w;
  w.machine.Accept(w.owner, {kSubmitter, 5}, true, w.references);
  w.machine.Accept(w.owner, {kOther, 6}, true, w.references);
  w.machine.Decline(w.owner, w.references, w.actions);
  EXPECT_TRUE(w.actions.empty());
  EXPECT_EQ(w.owner.live_objects(), 0u);
  EXPECT_TRUE(w.references.empty());
}

}  // namespace
}  // namespace weft::core
