// The owner's main paths as transcripts: an event, then the actions it led to.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/owner_transcript.h"

namespace weft::core {
namespace {

// A third process has said that it borrows; nobody here ever had to do with it.
TEST(Owner, BorrowersGoWithTheirNode) {
  Transcript t;
  Object* a = t.Submit("a");
  const ObjectId id = a->id;
  t.Grant(kWorker, 7);
  t.Actions();
  t.Reply(kWorker, "a");
  const ProcessId remote{(uint64_t{9} << 32) + 5}, other_remote{(uint64_t{10} << 32) + 5};
  t.owner.BorrowsChanged(id, remote, 1, t.actions);
  t.owner.BorrowsChanged(id, other_remote, 1, t.actions);
  t.Drop(a);
  t.owner.ProcessDied(DaemonOf(NodeNumber{10}), "was lost with its node", t.now, t.actions);
  EXPECT_NE(t.owner.Find(id), nullptr);
  t.owner.ProcessDied(DaemonOf(NodeNumber{9}), "was lost with its node", t.now, t.actions);
  EXPECT_EQ(t.owner.Find(id), nullptr);
}

TEST(Owner, ABorrowerOfALostNodeIsNotCountedLater) {
  Transcript t;
  Object* a = t.Submit("a");
  const ObjectId id = a->id;
  t.Grant(kWorker, 7);
  t.Actions();
  t.Reply(kWorker, "a");
  t.owner.ProcessDied(DaemonOf(NodeNumber{9}), "was lost with its node", t.now, t.actions);
  t.owner.BorrowsChanged(id, ProcessId{(uint64_t{9} << 32) + 5}, 1, t.actions);
  t.Drop(a);
  EXPECT_EQ(t.owner.Find(id), nullptr);
}

TEST(Owner, ATaskGetsALeaseIsPushedAndResolved) {
  Transcript t;
  Object* a = t.Submit("a");
  EXPECT_EQ(t.Actions(), "request 1");
  t.Grant(kWorker, 7);
  EXPECT_EQ(t.Actions(), "push a to 2");
  t.Reply(kWorker, "a");
  EXPECT_EQ(t.Actions(), "");
  EXPECT_EQ(a->value.kind(), ValueKind::kInline);
  EXPECT_EQ(Text(a), "result of a");
  EXPECT_EQ(t.owner.live_tasks(), 0u);
  t.Drop(a);
  EXPECT_EQ(t.owner.live_objects(), 0u);
}

TEST(Owner, ArgumentsOfAnySizeArriveWhole) {
  // Those of up to 24 bytes lie in the task's record, longer ones beside it.
  Transcript t;
  Object* first = t.Submit("first");
  t.Grant(kWorker, 7);
  t.Actions();
  t.Reply(kWorker, "first");
  t.Drop(first);
  for (size_t size : {0, 1, 24, 25, 10'000}) {
    std::string arguments(size, 'a');
    if (size > 0) arguments.back() = 'z';
    Object* result = t.Submit(arguments);
    EXPECT_EQ(t.Actions(), "push " + arguments + " to 2");
    t.Reply(kWorker, arguments);
    t.Drop(result);
  }
  EXPECT_EQ(t.owner.live_tasks(), 0u);
}

TEST(Owner, TheWorkerOfAnActorThatWasForgottenIsNumberedNevertheless) {
  Transcript t;
  ActorChanged change{ObjectId{kSelf, 77}, static_cast<uint8_t>(ActorState::kStarting), 1, kWorker};
  t.owner.ActorReported(change, t.now, t.actions);
  ASSERT_NE(t.owner.FindWorker(kWorker), nullptr);  // the runtime has put its channel on the list
}

TEST(Owner, TheNumberOfADeadWorkerIsGivenToAnother) {
  Transcript t;
  t.Submit("a");
  t.Grant(kWorker, 7);
  t.Actions();
  t.owner.ProcessDied(kWorker, "was killed", t.now, t.actions);
  EXPECT_EQ(t.Actions(), "revoke a");
  EXPECT_TRUE(t.forgotten.empty()) << "it owes a task";
  t.Revoked("a", true);
  EXPECT_EQ(t.Actions(), "request 1");
  EXPECT_EQ(t.forgotten, std::vector{kWorker});
  EXPECT_EQ(t.owner.FindWorker(kWorker), nullptr);
  t.Grant(kOther, 8);
  EXPECT_EQ(t.Actions(), "push a to " + std::to_string(kOther.value));
  EXPECT_EQ(t.owner.workers().size(), 1u);
}

TEST(Owner, AGrantThatComesAfterTheDeathLeavesNoRecord) {
  Transcript t;
  t.Submit("a");
  t.owner.ProcessDied(kWorker, "was killed", t.now, t.actions);
  t.Actions();
  t.Grant(kWorker, 7);
  EXPECT_EQ(t.Actions(), "request 1");
  EXPECT_EQ(t.forgotten, std::vector{kWorker});
  EXPECT_EQ(t.owner.FindWorker(kWorker), nullptr);
}

TEST(Owner, ADeadWorkerIsKnownUntilItsActorIsJudged) {
  Transcript t;
  Object* handle = t.Actor(kWorker);
  Object* call = t.Call(handle, "call");
  t.Actions();
  t.owner.ProcessDied(kWorker, "was killed", t.now, t.actions);
  EXPECT_EQ(t.Actions(), "");
  EXPECT_TRUE(t.forgotten.empty());
  t.Report(handle, ActorState::kDead, 1, {});
  EXPECT_EQ(t.Actions(), "revoke call");
  t.Revoked("call", true);
  t.Actions();
  EXPECT_TRUE(Text(call).starts_with("ActorDiedError")) << Text(call);
  EXPECT_EQ(t.forgotten, std::vector{kWorker});
}

TEST(DeadProcesses, AreKeptAsRanges) {
  DeadProcesses dead;
  auto number = [](uint64_t value) { return ProcessId{value}; };
  for (uint64_t value : {5, 3, 9, 4, 8}) EXPECT_TRUE(dead.Insert(number(value), "by signal " + std::to_string(value)));
  EXPECT_FALSE(dead.Insert(number(4), "once more"));
  EXPECT_EQ(dead.ranges(), 2u);
  for (uint64_t value = 1; value <= 11; ++value) {
    EXPECT_EQ(dead.Contains(number(value)), (value >= 3 && value <= 5) || value == 8 || value == 9) << value;
  }
  EXPECT_EQ(dead.How(number(4)), "by signal 4");
  for (uint64_t value = 100; value < 100 + 2 * DeadProcesses::kRemembered; ++value) dead.Insert(number(value), "late");
  EXPECT_EQ(dead.ranges(), 3u);
  EXPECT_TRUE(dead.Contains(number(4)));
  EXPECT_EQ(dead.How(number(4)), "has ended");
}

TEST(Owner, CallsBehindOneThatFailsOrIsCancelledAreSent) {
  Transcript t;
  Object* handle = t.Actor(kWorker);
  Object *late = t.owner.NewOwned(), *never = t.owner.NewOwned();
  Object* a = t.Call(handle, "a", {late});
  Object* b = t.Call(handle, "b", {never});
  Object* c = t.Call(handle, "c");
  EXPECT_EQ(t.Actions(), "");  // they keep their order
  t.owner.Resolve(late, ValueKind::kTaskError, "failed", {}, {}, t.actions);
  EXPECT_EQ(Text(a), "failed");
  EXPECT_EQ(t.Actions(), "");
  t.owner.Cancel(b, false, false, t.now, t.actions);
  EXPECT_TRUE(Text(b).starts_with("TaskCancelledError"));
  EXPECT_EQ(t.Actions(), "push c to 2");
  t.Reply(kWorker, "c");
  EXPECT_EQ(Text(c), "result of c");
  // The same if the one in front fails.
  Object* later = t.owner.NewOwned();
  t.Call(handle, "d", {later});
  t.Call(handle, "e");
  EXPECT_EQ(t.Actions(), "");
  t.owner.Resolve(later, ValueKind::kTaskError, "failed", {}, {}, t.actions);
  EXPECT_EQ(t.Actions(), "push e to 2");
}

TEST(Owner, AConstructorThatIsHandedBackGoesBeforeItsCallsAgain) {
  Transcript t;
  Object* handle = t.Actor(kWorker, false);
  t.Call(handle, "a");
  t.Call(handle, "b");
  EXPECT_EQ(t.Actions(), "push new to 2; push a to 2; push b to 2");
  t.Reply(kWorker, "new", ReplyKind::kHandedBack);
  EXPECT_EQ(t.Actions(), "revoke a; revoke b; push new to 2");
  t.Call(handle, "c");
  t.Revoked("b", true);
  EXPECT_EQ(t.Actions(), "");  // not before those that were called earlier
  t.Revoked("a", true);
  EXPECT_EQ(t.Actions(), "push a to 2; push b to 2; push c to 2");
}

TEST(Owner, WhatAnActorReturnsToItselfIsKeptUntilItsReplyIsRead) {
  Transcript t;
  Object* handle = t.Actor(kSelf);
  Object* mine = t.Put("value");
  Object* a = t.Call(handle, "a", {mine});
  EXPECT_EQ(t.Actions(), "push a to 1");
  ObjectId id = mine->id;
  t.owner.AddBorrower(mine, kSelf, t.actions);
  t.Drop(mine);
  t.Reply(kSelf, "a", ReplyKind::kValues, {id});
  ASSERT_EQ(t.owner.Find(id), mine);
  EXPECT_EQ(a->contained->at(0), mine);
  t.Drop(a);
  EXPECT_EQ(t.owner.Find(id), nullptr);
}

TEST(Owner, CallsWaitForTheWordOfTheActorIfTheDeathOfItsWorkerIsHeardFirst) {
  Transcript t;
  Object* handle = t.Actor(kWorker);
  Object* first = t.Call(handle, "a");
  t.Call(handle, "b");
  EXPECT_EQ(t.Actions(), "push a to 2; push b to 2");
  t.owner.ProcessDied(kWorker, "was killed", t.now, t.actions);
  t.Call(handle, "c");
  EXPECT_EQ(t.Actions(), "") << "whether it restarts is not known yet";

  t.Report(handle, ActorState::kRestarting, 1, {});
  EXPECT_EQ(t.Actions(), "revoke a; revoke b");
  t.Revoked("a", false);
  t.Revoked("b", true);
  EXPECT_EQ(first->value.bytes().substr(0, 21), "ActorUnavailableError");
  t.Report(handle, ActorState::kStarting, 2, kOther);
  EXPECT_EQ(t.Actions(), "push new to 3; push b to 3; push c to 3");
}

TEST(Owner, CallsFailAsOfADeadActorIfTheDeathOfItsWorkerIsHeardFirst) {
  Transcript t;
  Object* handle = t.Actor(kWorker);
  Object* first = t.Call(handle, "a");
  EXPECT_EQ(t.Actions(), "push a to 2");
  t.owner.ProcessDied(kWorker, "was killed", t.now, t.actions);
  EXPECT_EQ(t.Actions(), "");
  t.Report(handle, ActorState::kDead, 1, {});
  EXPECT_EQ(t.Actions(), "revoke a");
  t.Revoked("a", false);
  EXPECT_EQ(first->value.bytes().substr(0, 14), "ActorDiedError");
  EXPECT_NE(first->value.bytes().find("may have had effects"), std::string_view::npos);
}

TEST(Owner, ACallThatRanBeforeAndIsQueuedSaysSoWhenItsActorDies) {
  Transcript t;
  Object* handle = t.Actor(kWorker);
  Object* a = t.Call(handle, "a", {}, 3);
  Object* b = t.Call(handle, "b", {}, 3);
  EXPECT_EQ(t.Actions(), "push a to 2; push b to 2");
  t.Report(handle, ActorState::kRestarting, 1, {});
  t.owner.ProcessDied(kWorker, "was killed", t.now, t.actions);
  EXPECT_EQ(t.Actions(), "revoke a; revoke b");
  t.Revoked("a", false);
  t.Revoked("b", true);
  t.Report(handle, ActorState::kDead, 1, {});
  EXPECT_NE(Text(a).find("so it may have had effects"), std::string::npos) << Text(a);
  EXPECT_NE(Text(b).find("The call did not run"), std::string::npos) << Text(b);
}

TEST(Owner, AnIdleLeaseGoesBackAfterAWhile) {
  Transcript t;
  t.Drop(t.Submit("a"));
  t.Grant(kWorker, 7);
  t.Actions();
  t.Reply(kWorker, "a");
  t.Tick(99 * kMs);
  EXPECT_EQ(t.Actions(), "");
  t.Tick(1 * kMs);
  EXPECT_EQ(t.Actions(), "return lease 7");
  EXPECT_EQ(t.owner.NextTick(), 0);
}

TEST(Owner, ALeaseRequestIsWithdrawnWhenNothingIsLeftToRun) {
  Transcript t;
  t.Submit("a");
  t.Submit("b");
  t.Submit("c");
  t.Submit("d");
  EXPECT_EQ(t.Actions(), "request 1; request 4");
  t.Grant(kWorker, 7);
  for (const char* name : {"a", "b", "c", "d"}) {
    t.Actions();
    t.Reply(kWorker, name);
  }
  t.Actions();
  t.Tick(10 * kMs);
  EXPECT_EQ(t.Actions(), "request 0");
}

TEST(Owner, ADependentIsQueuedBehindItsProducer) {
  Transcript t;
  Object* a = t.Submit("a");
  t.Submit("b", {a, a});
  t.Actions();
  t.Grant(kWorker, 7);
  EXPECT_EQ(t.Actions().substr(0, 24), "push a to 2; push b to 2");
  t.Reply(kWorker, "a");
  EXPECT_EQ(t.Actions(), "");
  t.Reply(kWorker, "b");
  EXPECT_EQ(t.owner.live_tasks(), 0u);
}

// Otherwise it would come back again and again, and the process it was recalled for would never get it.
TEST(Owner, ALeaseThatCouldNotBeUsedIsNotRequestedAtOnce) {
  Transcript t;
  Object* a = t.Submit("a");
  Object* b = t.Submit("b", {a});  // cannot go elsewhere
  t.Actions();
  t.Grant(kWorker, 7);
  EXPECT_EQ(t.Actions(), "push a to 2; push b to 2; request 1");
  t.Grant(kOther, 8);
  EXPECT_EQ(t.Actions(), "");
  t.owner.LeaseRecalled(LeaseId{8}, t.actions);
  EXPECT_EQ(t.Actions(), "return lease 8");
  EXPECT_NE(t.owner.NextTick(), 0);
  t.now = t.owner.NextTick();
  t.owner.Tick(t.now, t.actions);
  EXPECT_EQ(t.Actions(), "request 1");
  // What can run needs one, whatever was before.
  t.Grant(kOther, 9);
  t.owner.LeaseRecalled(LeaseId{9}, t.actions);
  EXPECT_EQ(t.Actions(), "return lease 9");
  Object* c = t.Submit("c");
  EXPECT_EQ(t.Actions().substr(0, 11), "push c to 2");
  t.Reply(kWorker, "a");
  t.Reply(kWorker, "b");
  t.Reply(kWorker, "c");
  for (Object* each : {a, b, c}) t.Drop(each);
}

TEST(Owner, AFailedArgumentFailsTheTaskThatWasQueuedBehindIt) {
  Transcript t;
  Object* a = t.Submit("a");
  Object* b = t.Submit("b", {a});
  t.Grant(kWorker, 7);
  t.Actions();
  t.Reply(kWorker, "a", ReplyKind::kTaskError);
  EXPECT_FALSE(b->resolved());  // it is in the worker's channel, and comes back
  t.Reply(kWorker, "b", ReplyKind::kHandedBack);
  EXPECT_EQ(b->value.kind(), ValueKind::kTaskError);
  EXPECT_EQ(Text(b), "error of a");
}

TEST(Owner, AnUnclaimedTaskOfADeadWorkerCostsNoRetry) {
  Transcript t;
  Object* a = t.Submit("a", {}, {}, 0);
  Object* b = t.Submit("b", {}, {}, 0);
  t.Grant(kWorker, 7);
  t.Actions();
  t.owner.ProcessDied(kWorker, "was killed", t.now, t.actions);
  EXPECT_EQ(t.Actions(), "revoke a; revoke b");
  t.Revoked("a", false);
  t.Revoked("b", true);
  EXPECT_EQ(a->value.kind(), ValueKind::kSystemError);
  EXPECT_NE(Text(a).find("WorkerCrashedError"), std::string::npos);
  EXPECT_FALSE(b->resolved());
  t.Actions();
  t.Grant(kOther, 8);
  EXPECT_EQ(t.Actions(), "push b to 3");
}

TEST(Owner, AClaimedTaskIsRetriedUpToItsLimit) {
  Transcript t;
  Object* a = t.Submit("a", {}, {}, 1);
  t.Grant(kWorker, 7);
  t.Actions();
  t.owner.ProcessDied(kWorker, "was killed", t.now, t.actions);
  t.Actions();
  t.Revoked("a", false);
  EXPECT_EQ(t.Actions(), "request 1");
  t.Grant(kOther, 8);
  EXPECT_EQ(t.Actions(), "push a to 3");
  t.owner.ProcessDied(kOther, "was killed", t.now, t.actions);
  t.Actions();
  t.Revoked("a", false);
  EXPECT_NE(Text(a).find("it was run 2 times (max_retries=1)"), std::string::npos);
}

TEST(Owner, AReplyThatIsNotOwedIsIgnored) {
  Transcript t;
  Object* a = t.Submit("a");
  t.Grant(kWorker, 7);
  t.Actions();
  t.owner.ProcessDied(kWorker, "was killed", t.now, t.actions);
  t.Actions();
  t.Revoked("a", false);
  t.Grant(kOther, 8);
  t.Actions();
  t.Reply(kWorker, "a");
  EXPECT_FALSE(a->resolved());
  t.Reply(kOther, "a");
  EXPECT_TRUE(a->resolved());
}

TEST(Owner, AnExceptionIsRetriedOnlyOnRequestAndOnlyToTheLimit) {
  Transcript t;
  Object* a = t.Submit("a", {}, {}, 1);
  Object* b = t.Submit("b", {}, {}, 1);
  t.Grant(kWorker, 7);
  t.Actions();
  t.Reply(kWorker, "a", ReplyKind::kTaskError);
  EXPECT_EQ(Text(a), "error of a");
  t.Reply(kWorker, "b", ReplyKind::kRetryableError);
  EXPECT_EQ(t.Actions(), "push b to 2");
  t.Reply(kWorker, "b", ReplyKind::kRetryableError);
  EXPECT_EQ(Text(b), "error of b");
}

TEST(Owner, ARecalledLeaseIsReturnedAfterTheRunningTask) {
  Transcript t;
  t.Submit("a");
  t.Submit("b");
  t.Grant(kWorker, 7);
  t.Actions();
  t.owner.LeaseRecalled(LeaseId{7}, t.actions);
  EXPECT_EQ(t.Actions(), "revoke a; revoke b");
  t.Revoked("a", false);
  t.Revoked("b", true);
  EXPECT_EQ(t.Actions(), "");  // the first request still stands for b
  t.Reply(kWorker, "a");
  EXPECT_EQ(t.Actions(), "return lease 7");
}

TEST(Owner, AnIdleWorkerTakesHalfOfWhatTheBusiestHasNotBegun) {
  Transcript t;
  for (const char* name : {"a", "b", "c", "d"}) t.Submit(name);
  t.Grant(kWorker, 7);
  t.Actions();
  t.Grant(kOther, 8);
  EXPECT_EQ(t.Actions(), "revoke d; revoke c");
  t.Revoked("d", true);
  t.Revoked("c", false);
  EXPECT_EQ(t.Actions(), "push d to 3");
}

// Two workers, and tasks of which one has been seen to take `run_ns`.
void Learn(Transcript& t, uint32_t run_ns) {
  t.Submit("learn");
  t.Grant(kWorker, 7);
  t.Grant(kOther, 8);
  t.Actions();
  t.Reply(kWorker, "learn", ReplyKind::kValues, {}, run_ns);
  t.Actions();
}

TEST(Owner, ShortTasksGatherAtABusyWorkerAndLongOnesSpread) {
  Transcript brief, lengthy;
  Learn(brief, 1'000);
  Learn(lengthy, 10'000'000);
  for (const char* name : {"a", "b", "c"}) {
    brief.Submit(name);
    lengthy.Submit(name);
  }
  EXPECT_EQ(brief.Actions(), "push a to 2; push b to 2; push c to 2; request 1");
  EXPECT_EQ(lengthy.Actions(), "push a to 2; push b to 3; push c to 2; request 1");
}

TEST(Owner, AnIdleWorkerIsUsedOnceThereIsEnoughForIt) {
  Transcript t;
  Learn(t, 10'000);
  for (char name = 'a'; name < 'g'; ++name) t.Submit(std::string(1, name));
  EXPECT_EQ(t.Actions(),
            "push a to 2; push b to 2; push c to 2; request 1; push d to 2; push e to 3; push f to 3; request 4");
}

TEST(Owner, WithoutAFreeCoreAnIdleWorkerIsLeftAloneUntilTheSubmitterWaits) {
  Transcript t;
  Learn(t, 20'000);
  t.owner.cores = 2;
  for (char name = 'a'; name < 'i'; ++name) t.Submit(std::string(1, name));
  EXPECT_EQ(t.Actions(),
            "push a to 2; push b to 2; push c to 2; request 1; push d to 2; push e to 2; push f to 2; request 4; "
            "push g to 2; push h to 2");
  t.owner.SubmitterWaits(t.actions);
  EXPECT_EQ(t.Actions(), "revoke h; revoke g; revoke f; revoke e");
}

TEST(Owner, TasksBehindOneThatTakesUnexpectedlyLongGoElsewhere) {
  Transcript t;
  Learn(t, 1'000);
  t.Submit("a");
  t.Submit("b");
  EXPECT_EQ(t.Actions(), "push a to 2; push b to 2");
  ASSERT_EQ(t.owner.NextUrgentTick(), t.now + 2 * kMs);
  t.Tick(1 * kMs);
  EXPECT_EQ(t.Actions(), "");
  t.Tick(1 * kMs);
  EXPECT_EQ(t.Actions(), "revoke b");
  EXPECT_EQ(t.owner.NextUrgentTick(), 0);
  t.Revoked("b", true);
  EXPECT_EQ(t.Actions(), "push b to 3");
}

TEST(Owner, ATaskThatWasAskedBackBeforeItsPushWasRefusedIsNotLost) {
  Transcript t;
  for (const char* name : {"a", "b", "c", "d"}) t.Submit(name);
  t.Grant(kWorker, 7);
  t.Grant(kOther, 8);  // asks for c and d before the pushes have been performed
  EXPECT_EQ(t.Actions(),
            "request 1; request 4; push a to 2; push b to 2; push c to 2; push d to 2; revoke d; revoke c");
  t.owner.PushRefused(t.handles.at("d"), t.now, t.actions);
  t.owner.PushRefused(t.handles.at("c"), t.now, t.actions);
  EXPECT_EQ(t.Actions(), "push d to 3; push c to 3");
}

TEST(Owner, TasksBehindTheirProducersDoNotHideWhatCouldMove) {
  Transcript t;
  Object* a = t.Submit("a");
  t.Grant(kWorker, 7);
  t.Submit("b", {a});  // behind a: as many tasks as the other worker has, but none to take
  t.Submit("c");
  t.Submit("d");
  t.Grant(kOther, 8);
  t.Actions();
  t.Revoked("d", true);
  t.Revoked("c", true);
  t.Actions();
  t.Grant(kThird, 9);
  EXPECT_EQ(t.Actions(), "revoke c; request 1");
}

TEST(Owner, ARefusedPushWaitsForAResultOrForTick) {
  Transcript t;
  t.Submit("a");
  t.Grant(kWorker, 7);
  t.Actions();
  t.owner.PushRefused(t.handles.at("a"), t.now, t.actions);
  EXPECT_EQ(t.Actions(), "request 1");
  EXPECT_NE(t.owner.NextTick(), 0);
  t.Tick(1 * kMs);
  EXPECT_EQ(t.Actions(), "push a to 2");
}

TEST(Owner, AGrantOnAWorkerThatIsKnownToBeDeadRenewsTheRequest) {
  Transcript t;
  t.Drop(t.Submit("a"));
  t.Grant(kWorker, 7);
  t.Actions();
  t.Reply(kWorker, "a");
  t.Tick(100 * kMs);
  EXPECT_EQ(t.Actions(), "return lease 7");
  t.Submit("b");
  EXPECT_EQ(t.Actions(), "request 1");
  t.owner.ProcessDied(kWorker, "was killed", t.now, t.actions);
  t.Grant(kWorker, 8);
  EXPECT_EQ(t.Actions(), "request 1");
}

TEST(Owner, ARefusalFailsWhatWaitsAndIsNotForEver) {
  Transcript t;
  Object* a = t.Submit("a");
  t.Actions();
  t.owner.LeaseRefused(0, "no worker can be started", t.actions);
  EXPECT_EQ(Text(a), "UnschedulableError\nno worker can be started");
  t.Actions();
  Object* b = t.Submit("b");
  EXPECT_EQ(t.Actions(), "request 1");
  t.Grant(kWorker, 7);
  EXPECT_EQ(t.Actions(), "push b to 2");
  t.Submit("c");
  t.owner.LeaseRefused(0, "no more", t.actions);
  t.Actions();
  t.Reply(kWorker, "b");
  EXPECT_TRUE(b->resolved());
  EXPECT_EQ(t.owner.live_tasks(), 1u);  // c goes on with the lease there is
}

TEST(Owner, AnObjectLivesAsLongAsSomebodyBorrowsIt) {
  Transcript t;
  Object* a = t.Put("value");
  ObjectId id = a->id;
  // A registration may be given back before it has arrived.
  t.owner.BorrowsChanged(id, kWorker, -1, t.actions);
  t.Drop(a);
  EXPECT_NE(t.owner.Find(id), nullptr);
  t.owner.BorrowsChanged(id, kWorker, 2, t.actions);
  EXPECT_NE(t.owner.Find(id), nullptr);
  t.owner.BorrowsChanged(id, kWorker, -1, t.actions);
  EXPECT_EQ(t.owner.Find(id), nullptr);
}

TEST(Owner, ADeadBorrowerIsForgottenEvenIfItIsRegisteredLater) {
  Transcript t;
  Object* a = t.Put("value");
  ObjectId id = a->id;
  t.owner.BorrowsChanged(id, kWorker, 1, t.actions);
  t.Drop(a);
  t.owner.ProcessDied(kWorker, "was killed", t.now, t.actions);
  EXPECT_EQ(t.owner.Find(id), nullptr);
  Object* b = t.Put("value");
  ObjectId other = b->id;
  t.owner.BorrowsChanged(other, kWorker, 1, t.actions);
  t.Drop(b);
  EXPECT_EQ(t.owner.Find(other), nullptr);
}

TEST(Owner, TheWorkerIsRegisteredForWhatATaskTakesAndNoLongerWhenItIsTakenBack) {
  Transcript t;
  Object* borrowed = t.owner.Receive({kThird, 5}, 1);
  t.Submit("a", {}, {borrowed});
  t.Actions();
  t.Grant(kWorker, 7);
  EXPECT_EQ(t.Actions(), "register 2 at 4; push a to 2");
  t.Reply(kWorker, "a", ReplyKind::kHandedBack);
  EXPECT_EQ(t.Actions(), "give back 1 of 2 to 4; register 2 at 4; push a to 2");
  t.Reply(kWorker, "a");
  EXPECT_EQ(t.Actions(), "");  // the worker has taken the registration over
  t.Drop(borrowed);
  EXPECT_EQ(t.Actions(), "give back 1 of 1 to 4");
}

TEST(Owner, ARegistrationIsTakenBackEvenForADeadWorker) {
  Transcript t;
  Object* borrowed = t.owner.Receive({kThird, 5}, 1);
  t.Submit("a", {}, {borrowed});
  t.Grant(kWorker, 7);
  t.Actions();
  t.owner.ProcessDied(kWorker, "was killed", t.now, t.actions);
  t.Actions();
  t.Revoked("a", true);
  EXPECT_EQ(t.Actions(), "give back 1 of 2 to 4; request 1");
}

TEST(Owner, AValueIsSentToWhoAskedEvenIfNobodyWantsItAnyMore) {
  Transcript t;
  Object* a = t.Submit("a");
  ObjectId id = a->id;
  t.Grant(kWorker, 7);
  t.Actions();
  t.owner.BorrowsChanged(id, kOther, 1, t.actions);
  t.owner.ValueAsked(id, kOther, t.actions);
  t.owner.BorrowsChanged(id, kOther, -1, t.actions);
  t.Drop(a);
  t.Reply(kWorker, "a");
  EXPECT_NE(t.owner.Find(id), nullptr);  // until it was sent
  EXPECT_EQ(t.Actions(), "send value to 3");
  EXPECT_EQ(t.owner.Find(id), nullptr);
  t.owner.ValueAsked(id, kOther, t.actions);
  EXPECT_EQ(t.Actions(), "send loss to 3");
}

TEST(Owner, ABorrowedArgumentIsFetchedAndItsOwnersDeathFailsTheTask) {
  Transcript t;
  Object* borrowed = t.owner.Receive({kThird, 5}, 1);
  Object* a = t.Submit("a", {borrowed});
  EXPECT_EQ(t.Actions(), "fetch from 4");
  t.owner.ProcessDied(kThird, "was killed", t.now, t.actions);
  EXPECT_EQ(Text(a).find("OwnerDiedError\nthe process that owned the object was killed; "), 0u) << Text(a);
  t.Drop(borrowed);
  EXPECT_EQ(t.Actions(), "");  // nobody to give it back to
}

TEST(ReadyList, ConsumersGoBeforeTheRestAndEachKindInOrder) {
  std::vector<Task> tasks(8);
  ReadyList list;
  auto number = [&](const Task* task) { return static_cast<int>(task - tasks.data()); };
  auto take_all = [&] {
    std::vector<int> taken;
    while (Task* task = list.PopFront()) taken.push_back(number(task));
    EXPECT_EQ(list.size(), 0u);
    return taken;
  };
  list.Add(&tasks[0], false, false);
  list.Add(&tasks[1], true, false);
  list.Add(&tasks[2], false, false);
  list.Add(&tasks[3], true, false);
  list.Add(&tasks[4], false, true);
  list.Add(&tasks[5], true, true);
  EXPECT_EQ(take_all(), (std::vector<int>{5, 1, 3, 4, 0, 2}));
  // The last consumer is taken out, and then the only one.
  list.Add(&tasks[0], false, false);
  list.Add(&tasks[1], true, false);
  list.Add(&tasks[2], true, false);
  list.Remove(&tasks[2]);
  list.Add(&tasks[3], true, false);
  list.Remove(&tasks[1]);
  list.Remove(&tasks[3]);
  list.Add(&tasks[6], false, true);
  list.Add(&tasks[7], true, false);
  EXPECT_EQ(take_all(), (std::vector<int>{7, 6, 0}));
}

TEST(ReadyList, AnEndlessStreamOfConsumersLetsTheRestThrough) {
  constexpr int kInARow = ReadyList::kConsumersInARow;
  std::vector<Task> consumers(100), rest(3);
  ReadyList list;
  size_t next = 0;
  for (; next < 2; ++next) list.Add(&consumers[next], true, false);
  while (next < 20) {  // alone they are not counted
    EXPECT_EQ(list.PopFront(), &consumers[next - 2]);
    list.Add(&consumers[next++], true, false);
  }
  for (Task& task : rest) list.Add(&task, false, false);
  std::vector<int> turns;  // of the rest, after so many consumers
  for (int taken = 0, row = 0; taken < 3;) {
    EXPECT_EQ(list.size(), 5u - static_cast<size_t>(taken));
    Task* task = list.first();
    EXPECT_EQ(list.PopFront(), task);
    if (task == &rest[static_cast<size_t>(taken)]) {
      turns.push_back(std::exchange(row, 0));
      ++taken;
    } else {
      EXPECT_EQ(task, &consumers[next - 2]);
      ++row;
      list.Add(&consumers[next++], true, false);
    }
  }
  EXPECT_EQ(turns, (std::vector<int>{kInARow, kInARow, kInARow}));
  EXPECT_EQ(list.PopFront(), &consumers[next - 2]);
}

TEST(Owner, ATaskThatTakesAStoredValueInAContainerIsAConsumer) {
  Transcript t;
  Object* made = t.Submit("make");
  t.Grant(kWorker, 7);
  t.Actions();
  ReplyStored(t, kWorker, "make", {{kWorker.value}, 64, 100'000, 3});
  t.owner.max_pushed = 1;
  Object* small = t.Put("small");
  std::vector<Object*> all{made, small, t.Submit("first")};
  all.push_back(t.Submit("other", {}, {small}));
  all.push_back(t.Submit("whole", {}, {small, made}));
  all.push_back(t.Submit("itself", {made}));
  for (const char* name : {"first", "whole", "itself", "other"}) {
    std::string actions = t.Actions();
    EXPECT_NE(actions.find("push " + std::string(name) + " to 2"), std::string::npos) << actions;
    t.Reply(kWorker, name);
  }
  for (Object* object : all) t.Drop(object);
}

TEST(Owner, SaysWhatItHasOfADeadOwnerAndWhenItLetsGo) {
  Transcript t;
  Object* five = t.owner.Receive({kThird, 5}, 1);
  Object* six = t.owner.Receive({kThird, 6}, 1);
  Object* others = t.owner.Receive({kOther, 7}, 1);
  EXPECT_FALSE(t.owner.MustBeRegistered({kThird, 5}));
  t.owner.ProcessDied(kThird, "was killed", t.now, t.actions);
  t.Drop(six);
  EXPECT_EQ(t.Actions(), "") << "nobody has asked";
  EXPECT_EQ(t.owner.HeldOf(kThird), std::vector<uint64_t>{5});
  EXPECT_FALSE(t.owner.MustBeRegistered({kThird, 5}));
  EXPECT_TRUE(t.owner.MustBeRegistered({kThird, 6}));
  EXPECT_FALSE(t.owner.MustBeRegistered({kOther, 7}));
  // One that is received later is the daemon's business only once it was registered.
  six = t.owner.Receive({kThird, 6}, 0);
  t.Drop(six);
  EXPECT_EQ(t.Actions(), "");
  six = t.owner.Receive({kThird, 6}, 0);
  t.owner.Registered({kThird, 6});
  EXPECT_FALSE(t.owner.MustBeRegistered({kThird, 6}));
  t.Drop(six);
  EXPECT_EQ(t.Actions(), "end hold of 6 of 4");
  t.Drop(five);
  EXPECT_EQ(t.Actions(), "end hold of 5 of 4");
  EXPECT_TRUE(t.owner.MustBeRegistered({kThird, 5}));
  t.Drop(others);
}

TEST(Owner, OneThatIsAskedMayNotHaveHeardOfTheDeath) {
  Transcript t;
  EXPECT_EQ(t.owner.HeldOf(kThird), std::vector<uint64_t>{});
  EXPECT_TRUE(t.owner.MustBeRegistered({kThird, 5}));
  EXPECT_EQ(t.owner.WhyOrphaned({kThird, 5}).find("OwnerDiedError\nthe process that owned the object has ended; "), 0u);
}

TEST(Owner, FreesWhatADeadWorkerHasLeftAndNeverReplied) {
  Transcript t;
  const Location told{{kWorker.value}, 640, 100'000, 1}, untold{{kWorker.value}, 6400, 100'000, 2};
  Object* a = t.Submit("a");
  Object* b = t.Submit("b");
  const ObjectId id = a->id, pending = b->id;
  t.Grant(kWorker, 7);
  t.Actions();
  ReplyStored(t, kWorker, "a", told);
  t.owner.ProcessDied(kWorker, "was killed", t.now, t.actions);
  t.Actions();
  t.owner.ResultsLeft({{id, told}, {pending, untold}, {{kSelf, 12345}, untold}}, t.actions);
  EXPECT_EQ(t.Actions(), "free at 6400 everywhere; free at 6400 everywhere");
  t.Drop(a);
  EXPECT_EQ(t.Actions(), "free at 640");
  t.Drop(b);
}

TEST(Owner, AValueThatComesTooLateGivesBackWhatItContains) {
  Transcript t;
  Object* borrowed = t.owner.Receive({kThird, 5}, 1);
  t.owner.Want(borrowed, t.actions);
  t.Drop(borrowed);
  EXPECT_EQ(t.Actions(), "fetch from 4; give back 1 of 1 to 4");
  t.owner.ValueReceived({kThird, 5}, {.bytes = "late", .contained = {{kOther, 9}}}, t.actions);
  EXPECT_EQ(t.Actions(), "give back 1 of 1 to 3");
  EXPECT_EQ(t.owner.live_objects(), 0u);
}

TEST(Owner, ReferencesInsideAValueLiveWithIt) {
  Transcript t;
  Object* inner = t.Put("inner");
  ObjectId inner_id = inner->id;
  Object* outer = t.Put("outer", {inner});
  t.Drop(inner);
  EXPECT_NE(t.owner.Find(inner_id), nullptr);
  t.owner.ValueAsked(outer->id, kWorker, t.actions);
  EXPECT_EQ(t.Actions(), "send value to 2");
  t.Drop(outer);
  EXPECT_NE(t.owner.Find(inner_id), nullptr);  // 2 is registered for it
  t.owner.BorrowsChanged(inner_id, kWorker, -1, t.actions);
  EXPECT_EQ(t.owner.Find(inner_id), nullptr);
}

TEST(Owner, StoredMemoryIsFreedOnce) {
  Transcript t;
  Object* a = t.owner.NewOwned();
  t.owner.Resolve(a, ValueKind::kStored, {}, Location{SegmentId{1}, 64, 1000, 1}, {}, t.actions);
  t.Drop(a);
  EXPECT_EQ(t.Actions(), "free at 64");
  t.owner.Consider(a, t.actions);
  EXPECT_EQ(t.Actions(), "");
}

// ---- other nodes
// ------------------------------------------------------------------------------------------------------

TEST(OwnerElsewhere, AResultOfAnotherNodeIsBroughtWhenSomebodyLooksAtIt) {
  Transcript t;
  Object* a = t.Submit("a");
  Object* b = t.Submit("b", {a});
  t.Grant(kRemoteWorker, 7);
  t.Actions();
  ReplyStored(t, kRemoteWorker, "a", kRemotePlace);
  EXPECT_TRUE(a->resolved());
  EXPECT_FALSE(a->here());
  EXPECT_FALSE(a->settled());
  EXPECT_EQ(t.Actions(), "") << "nobody looks at it; the task that takes it was pushed behind";
  ++a->waiters;
  t.owner.WantHere(a, t.actions);
  t.owner.WantHere(a, t.actions);
  EXPECT_EQ(t.Actions(), "bring 640");
  t.owner.Brought(a, kRemotePlace, kCopy, t.actions);
  EXPECT_EQ(t.Actions(), "resolved");
  EXPECT_TRUE(a->here());
  EXPECT_EQ(a->copy->place, kCopy);
  EXPECT_EQ(a->value.location(), kRemotePlace) << "others are told where it lies";
  --a->waiters;
  t.Drop(a);
  EXPECT_EQ(t.Actions(), "") << "a task takes it";
  t.Reply(kRemoteWorker, "b");
  EXPECT_EQ(t.Actions(), "free at 640; let go of 640");
  t.Drop(b);
}

TEST(OwnerElsewhere, WhatIsAwaitedIsBroughtAsSoonAsItIsKnownWhere) {
  Transcript t;
  Object* a = t.Submit("a");
  t.Grant(kRemoteWorker, 7);
  t.Actions();
  ++a->callbacks;
  t.owner.WantHere(a, t.actions);
  EXPECT_EQ(t.Actions(), "");
  ReplyStored(t, kRemoteWorker, "a", kRemotePlace);
  EXPECT_EQ(t.Actions(), "bring 640") << "and nobody is called yet";
  t.owner.Brought(a, kRemotePlace, kCopy, t.actions);
  EXPECT_EQ(t.Actions(), "resolved");
  --a->callbacks;
  t.Drop(a);
  EXPECT_EQ(t.Actions(), "free at 640; let go of 640");
}

TEST(OwnerElsewhere, WhatIsLostIsAskedForAgainByTheNextWhoWantsIt) {
  Transcript t;
  const std::string error = "ObjectLostError\ngone";
  Object* a = t.owner.Receive({kRemoteOther, 3}, 1);
  ++a->waiters;
  t.owner.WantHere(a, t.actions);
  EXPECT_EQ(t.Actions(), "fetch from " + std::to_string(kRemoteOther.value));
  t.owner.ValueReceived(a->id, {.kind = ValueKind::kStored, .bytes = {}, .location = kRemotePlace, .contained = {}},
                        t.actions);
  EXPECT_EQ(t.Actions(), "bring 640");
  t.owner.NotBrought(a, kRemotePlace, &error, false, t.actions);
  EXPECT_EQ(t.Actions(), "resolved");
  EXPECT_TRUE(a->settled());
  EXPECT_FALSE(a->here());
  t.owner.WantHere(a, t.actions);
  EXPECT_EQ(t.Actions(), "bring 640");
  EXPECT_FALSE(a->settled());
  t.owner.Brought(a, kRemotePlace, kCopy, t.actions);
  EXPECT_TRUE(a->here());
  --a->waiters;
  t.Actions();
  t.Drop(a);
  EXPECT_EQ(t.Actions(), "give back 1 of 1 to " + std::to_string(kRemoteOther.value) + "; let go of 640");
}

TEST(OwnerElsewhere, WhatNobodyWantsAnyMoreIsNotBrought) {
  Transcript t;
  Object* a = t.Submit("a");
  t.Grant(kRemoteWorker, 7);
  t.Actions();
  t.owner.WantHere(a, t.actions);
  t.Drop(a);
  ReplyStored(t, kRemoteWorker, "a", kRemotePlace);
  EXPECT_EQ(t.Actions(), "free at 640");
}

TEST(OwnerElsewhere, ACopyThatCameWithATaskServesGetToo) {
  Transcript t;
  Object* a = t.owner.Receive({kRemoteOther, 3}, 1);
  t.owner.CameWithTask(a, kRemotePlace, kCopy);
  EXPECT_FALSE(a->resolved());
  t.owner.WantHere(a, t.actions);
  EXPECT_EQ(t.Actions(), "fetch from " + std::to_string(kRemoteOther.value));
  t.owner.ValueReceived(a->id, {.kind = ValueKind::kStored, .bytes = {}, .location = kRemotePlace, .contained = {}},
                        t.actions);
  EXPECT_EQ(t.Actions(), "");
  EXPECT_TRUE(a->here());
  t.Drop(a);
  EXPECT_EQ(t.Actions(), "give back 1 of 1 to " + std::to_string(kRemoteOther.value) + "; let go of 640");
}

TEST(OwnerElsewhere, WhatOtherNodesHaveBorrowedIsFreedEverywhere) {
  for (bool by_handing_on : {false, true}) {
    Transcript t;
    Object* near = t.owner.NewOwned();
    Object* remote = t.owner.NewOwned();
    t.owner.Resolve(near, ValueKind::kStored, {}, {{kSelf.value}, 64, 10, 1}, {}, t.actions);
    t.owner.Resolve(remote, ValueKind::kStored, {}, {{kSelf.value}, 128, 10, 2}, {}, t.actions);
    if (by_handing_on) {
      t.owner.AddBorrower(near, kOther, t.actions);
      t.owner.AddBorrower(remote, kRemoteOther, t.actions);
    } else {
      t.owner.BorrowsChanged(near->id, kOther, 1, t.actions);
      t.owner.BorrowsChanged(remote->id, kRemoteOther, 1, t.actions);
    }
    const ObjectId near_id = near->id, remote_id = remote->id;
    t.Drop(near);
    t.Drop(remote);
    EXPECT_EQ(t.Actions(), "");
    t.owner.BorrowsChanged(near_id, kOther, -1, t.actions);
    t.owner.BorrowsChanged(remote_id, kRemoteOther, -1, t.actions);
    EXPECT_EQ(t.Actions(), "free at 64; free at 128 everywhere");
  }
}

}  // namespace
}  // namespace weft::core
