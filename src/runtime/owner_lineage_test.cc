// Results that are lost with their node, as transcripts; and random programs on nodes that die: whatever can be made
// again is, with the right value, and nothing is left over.
//
// In the random programs the owner is the real one. Workers, stores and copies are played by this file, one step at a
// time: a worker reads where its arguments lie as they were told to it when its task was pushed, so a stale place is
// found out.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "runtime/owner_transcript.h"

namespace weft::core {
namespace {

constexpr ProcessId kThirdNode{uint64_t{3} << 32 | 1};
constexpr Location kFarA{{kFarWorker.value}, 1, 100'000, 1}, kFarB{{kFarWorker.value}, 2, 100'000, 2},
    kFarC{{kFarWorker.value}, 3, 100'000, 3};
constexpr Location kNewA{{kThirdNode.value}, 11, 100'000, 1}, kNewB{{kThirdNode.value}, 12, 100'000, 2},
    kNewC{{kThirdNode.value}, 13, 100'000, 3};
const std::string kGone = "ObjectLostError\nit lay on node 2 (two), and no other node has all of it";

// Node two with its worker is gone, and another worker is to be had.
void LoseNodeTwo(Transcript& t) {
  t.owner.ProcessDied(kFarWorker, "was lost", t.now, t.actions);
  t.Grant(kThirdNode, 9);
  t.Actions();
}

// Somebody wants to look at it, and its copy cannot be had.
void FindLost(Transcript& t, Object* object, Location where) {
  t.owner.WantHere(object, t.actions);
  EXPECT_EQ(t.Actions(), "bring " + std::to_string(where.offset));
  t.owner.NotBrought(object, where, &kGone, true, t.actions);
}

TEST(OwnerLineage, AResultThatIsLostIsMadeAgainOnce) {
  Transcript t;
  Object* a = t.Submit("a");
  t.Grant(kFarWorker, 7);
  t.Actions();
  ReplyStored(t, kFarWorker, "a", kFarA);
  EXPECT_EQ(t.owner.lineages(), 1u);
  LoseNodeTwo(t);
  ++a->waiters;
  FindLost(t, a, kFarA);
  EXPECT_EQ(t.Actions(), "let go of 1; run a again; push a to " + std::to_string(kThirdNode.value));
  EXPECT_FALSE(a->settled());
  t.owner.ValueAskedAgain(a->id, kFarOther, kFarA, t.actions);
  t.owner.ValueAskedAgain(a->id, kOther, kFarA, t.actions);
  EXPECT_EQ(t.Actions(), "") << "it is being made";
  EXPECT_EQ(t.owner.FindTask(t.handles.at("a"))->attempt, 1u);
  ReplyStored(t, kThirdNode, "a", kNewA);
  EXPECT_EQ(t.Actions(), "bring 11; send value to " + std::to_string(kFarOther.value) + "; send value to 3");
  t.owner.NotBrought(a, kFarA, &kGone, true, t.actions);
  EXPECT_EQ(t.Actions(), "") << "of the former value";
  t.owner.ValueAskedAgain(a->id, kOther, kFarA, t.actions);
  EXPECT_EQ(t.Actions(), "send value to 3") << "which lies elsewhere now";
  t.owner.Brought(a, kNewA, kCopy, t.actions);
  EXPECT_EQ(t.Actions(), "resolved");
  EXPECT_TRUE(a->here());
  --a->waiters;
  t.Drop(a);
  EXPECT_EQ(t.Actions(), "free at 11; let go of 11");
  EXPECT_EQ(t.owner.lineages(), 0u);
  EXPECT_EQ(t.owner.live_objects(), 0u);
}

TEST(OwnerLineage, OfAChainTheValuesAreFreedAndMadeAgainInOrder) {
  Transcript t;
  Object* a = t.Submit("a");
  Object* b = t.Submit("b", {a});
  Object* c = t.Submit("c", {b});
  t.Grant(kFarWorker, 7);
  t.Actions();
  t.Drop(a);
  ReplyStored(t, kFarWorker, "a", kFarA);
  EXPECT_EQ(t.Actions(), "");
  ReplyStored(t, kFarWorker, "b", kFarB);
  EXPECT_EQ(t.Actions(), "free at 1") << "to make it again its record is enough";
  ReplyStored(t, kFarWorker, "c", kFarC);
  EXPECT_EQ(t.Actions(), "");
  t.Drop(b);
  EXPECT_EQ(t.Actions(), "free at 2");
  EXPECT_EQ(t.owner.lineages(), 3u);
  t.owner.CheckInvariants();
  LoseNodeTwo(t);
  FindLost(t, c, kFarC);
  const std::string there = std::to_string(kThirdNode.value);
  EXPECT_EQ(t.Actions(), "let go of 3; run c again; run b again; run a again; push a to " + there + "; push b to " +
                             there + "; push c to " + there);
  ReplyStored(t, kThirdNode, "a", kNewA);
  ReplyStored(t, kThirdNode, "b", kNewB);
  EXPECT_EQ(t.Actions(), "free at 11");
  ReplyStored(t, kThirdNode, "c", kNewC);
  EXPECT_EQ(t.Actions(), "free at 12; bring 13");
  t.owner.CheckInvariants();
  t.Drop(c);
  EXPECT_EQ(t.Actions(), "free at 13; let go of 13");
  EXPECT_EQ(t.owner.live_objects(), 0u);
  EXPECT_EQ(t.owner.lineage_bytes(), 0u);
}

TEST(OwnerLineage, ATaskWhoseArgumentIsLostRunsWhenThatIsMadeAgain) {
  Transcript t;
  Object* a = t.Submit("a");
  t.Grant(kFarWorker, 7);
  t.Actions();
  ReplyStored(t, kFarWorker, "a", kFarA);
  LoseNodeTwo(t);
  Object* b = t.Submit("b", {a});
  Object* c = t.Submit("c", {a});
  const std::string there = std::to_string(kThirdNode.value);
  EXPECT_EQ(t.Actions(), "push b to " + there + "; push c to " + there + "; request 1");
  auto lost = [&](const std::string& name) {
    t.owner.Replied(kThirdNode, t.handles.at(name), ReplyKind::kArgumentLost, kGone,
                    {{.kind = ValueKind::kStored, .bytes = {}, .location = kFarA, .contained = {}}}, t.now, t.actions);
  };
  lost("b");
  EXPECT_EQ(t.Actions(), "run a again; push a to " + there + "; push b to " + there) << "b behind a";
  lost("c");
  EXPECT_EQ(t.Actions(), "");
  ReplyStored(t, kThirdNode, "a", kNewA);
  EXPECT_EQ(t.Actions(), "push c to " + there);
  t.Reply(kThirdNode, "b");
  t.Reply(kThirdNode, "c");
  t.owner.BorrowerMentioned(a->id, kThirdNode, -1, t.actions);
  EXPECT_TRUE(b->here() && c->here());
  for (Object* object : {a, b, c}) t.Drop(object);
  EXPECT_EQ(t.Actions(), "free at 11 everywhere");
}

TEST(OwnerLineage, EachTimeCostsARetryAndTheErrorSaysThatNoneIsLeft) {
  Transcript t;
  Object* a = t.Submit("a", {}, {}, 1);
  Object* never = t.Submit("n", {}, {}, 0);
  t.Grant(kFarWorker, 7);
  t.Actions();
  ReplyStored(t, kFarWorker, "a", kFarA);
  ReplyStored(t, kFarWorker, "n", kFarB);
  EXPECT_EQ(t.owner.lineages(), 1u) << "what may not run again needs none";
  LoseNodeTwo(t);
  FindLost(t, never, kFarB);
  EXPECT_EQ(t.Actions(), "let go of 2");
  EXPECT_EQ(never->value.bytes(),
            "ReconstructionFailedError\nit lay on node 2 (two), and no other node has all of it; task 'f', which made "
            "it, was not run again: it has max_retries=0");
  FindLost(t, a, kFarA);
  t.Actions();
  ReplyStored(t, kThirdNode, "a", kNewA);
  EXPECT_EQ(t.Actions(), "bring 11");
  EXPECT_EQ(t.owner.lineages(), 0u);
  t.owner.NotBrought(a, kNewA, &kGone, true, t.actions);
  EXPECT_EQ(t.Actions(), "let go of 11");
  EXPECT_NE(a->value.bytes().find("no retries left (max_retries=1)"), std::string::npos) << a->value.bytes();
  EXPECT_TRUE(a->here());
  t.Drop(a);
  t.Drop(never);
  EXPECT_EQ(t.Actions(), "");
}

TEST(OwnerLineage, TheOldestIsDroppedWhenThereIsTooMuch) {
  Transcript t;
  t.owner.max_lineage_bytes = 3 * (sizeof(Lineage) + 100);
  std::vector<Object*> objects;
  t.Grant(kFarWorker, 7);
  for (uint64_t i = 0; i < 5; ++i) {
    const std::string name = std::string(90, 'x') + std::to_string(i);
    objects.push_back(t.Submit(name));
    t.Actions();
    ReplyStored(t, kFarWorker, name, {{kFarWorker.value}, i, 100'000, i + 1});
  }
  EXPECT_EQ(t.owner.lineages(), 3u);
  t.Actions();
  LoseNodeTwo(t);
  FindLost(t, objects[1], objects[1]->value.location());
  EXPECT_NE(objects[1]->value.bytes().find("was dropped"), std::string::npos) << objects[1]->value.bytes();
  t.Actions();
  FindLost(t, objects[2], objects[2]->value.location());
  EXPECT_FALSE(objects[2]->resolved());
  for (Object* object : objects) t.Drop(object);
}

TEST(OwnerLineage, AnArgumentThatIsNeitherSmallNorMadeByATaskIsNotKept) {
  Transcript t;
  t.Grant(kFarWorker, 7);
  auto make = [&](const std::string& name, Object* argument, const Location& where) {
    Object* made = t.Submit(name, {argument});
    t.Actions();
    const bool stored = argument->value.kind() == ValueKind::kStored;
    const ObjectId id = argument->id;
    t.Drop(argument);
    ReplyStored(t, kFarWorker, name, where);
    if (stored) t.owner.BorrowerMentioned(id, kFarWorker, -1, t.actions);
    return made;
  };
  Object* put = t.owner.NewOwned();
  t.owner.Resolve(put, ValueKind::kStored, {}, {{kSelf.value}, 64, 10, 1}, {}, t.actions);
  Object* a = make("a", put, kFarA);
  EXPECT_EQ(t.Actions(), "free at 64 everywhere");
  Object* b = make("b", t.Put("small"), kFarB);
  EXPECT_EQ(t.Actions(), "");
  LoseNodeTwo(t);
  FindLost(t, a, kFarA);
  t.Actions();
  EXPECT_NE(a->value.bytes().find("an argument of it no longer exists"), std::string::npos) << a->value.bytes();
  FindLost(t, b, kFarB);
  EXPECT_EQ(t.Actions(), "let go of 2; run b again; push b to " + std::to_string(kThirdNode.value));
  ReplyStored(t, kThirdNode, "b", kNewB);
  t.Actions();
  t.Drop(a);
  t.Drop(b);
  EXPECT_EQ(t.Actions(), "free at 12; let go of 12");
  EXPECT_EQ(t.owner.live_objects(), 0u);
}

TEST(OwnerLineage, OneRunMakesAllResultsOfATaskAgain) {
  Transcript t;
  std::vector<Object*> made;
  t.owner.Submit({.what = t.What(3, 3), .arguments = "m"}, t.now, made, t.actions);
  t.Grant(kFarWorker, 7);
  t.Actions();
  auto reply = [&](ProcessId worker, const Location& first, const Location& last) {
    t.owner.Replied(worker, t.handles.at("m"), ReplyKind::kValues, "",
                    {{.kind = ValueKind::kStored, .bytes = {}, .location = first, .contained = {}},
                     {.kind = ValueKind::kInline, .bytes = "small", .location = {}, .contained = {}},
                     {.kind = ValueKind::kStored, .bytes = {}, .location = last, .contained = {}}},
                    t.now, t.actions);
  };
  reply(kFarWorker, kFarA, kFarC);
  LoseNodeTwo(t);
  FindLost(t, made[2], kFarC);
  EXPECT_FALSE(made[0]->resolved());
  EXPECT_TRUE(made[1]->resolved());
  t.Actions();
  reply(kThirdNode, kNewA, kNewC);
  EXPECT_EQ(t.Actions(), "bring 13");
  EXPECT_EQ(made[0]->value.location(), kNewA);
  EXPECT_EQ(made[1]->value.bytes(), "small");
  for (Object* object : made) t.Drop(object);
  t.Actions();
  EXPECT_EQ(t.owner.live_objects(), 0u);
}

TEST(OwnerLineage, AResultMayBeSmallWhenItIsMadeAgainOrFail) {
  for (bool fails : {false, true}) {
    Transcript t;
    Object* a = t.Submit("a");
    t.Grant(kFarWorker, 7);
    t.Actions();
    ReplyStored(t, kFarWorker, "a", kFarA);
    LoseNodeTwo(t);
    ++a->waiters;
    FindLost(t, a, kFarA);
    t.Actions();
    t.Reply(kThirdNode, "a", fails ? ReplyKind::kTaskError : ReplyKind::kValues);
    EXPECT_EQ(t.Actions(), "resolved");
    EXPECT_TRUE(a->here());
    EXPECT_EQ(a->value.bytes(), fails ? "error of a" : "result of a");
    EXPECT_EQ(t.owner.lineages(), 0u);
    --a->waiters;
    t.Drop(a);
    EXPECT_EQ(t.Actions(), "");
  }
}

TEST(OwnerLineage, WhoHasACopyKeepsItThoughTheResultIsMadeAgainForOthers) {
  Transcript t;
  Object* a = t.Submit("a");
  t.Grant(kFarWorker, 7);
  t.Actions();
  ReplyStored(t, kFarWorker, "a", kFarA);
  t.owner.WantHere(a, t.actions);
  t.owner.Brought(a, kFarA, kCopy, t.actions);
  LoseNodeTwo(t);
  t.owner.ValueAskedAgain(a->id, kOther, kFarA, t.actions);
  EXPECT_EQ(t.Actions(), "run a again; push a to " + std::to_string(kThirdNode.value)) << "views need the copy";
  ReplyStored(t, kThirdNode, "a", kNewA);
  EXPECT_EQ(t.Actions(), "bring 11; send value to 3");
  t.owner.Brought(a, kNewA, kCopy, t.actions);
  t.Drop(a);
  EXPECT_EQ(t.Actions(), "free at 11; let go of 11; let go of 1");
}

TEST(OwnerLineage, WhoHasACopyOfWhatCannotBeMadeAgainTellsOthersSo) {
  Transcript t;
  Object* a = t.Submit("a", {}, {}, 0);
  t.Grant(kFarWorker, 7);
  t.Actions();
  ReplyStored(t, kFarWorker, "a", kFarA);
  t.owner.WantHere(a, t.actions);
  t.owner.Brought(a, kFarA, kCopy, t.actions);
  LoseNodeTwo(t);
  t.owner.ValueAskedAgain(a->id, kOther, kFarA, t.actions);
  EXPECT_EQ(t.Actions(), "send loss to 3");
  EXPECT_TRUE(a->here());
  Object* b = t.Submit("b", {a});
  t.Actions();
  t.owner.Replied(kThirdNode, t.handles.at("b"), ReplyKind::kArgumentLost, kGone,
                  {{.kind = ValueKind::kStored, .bytes = {}, .location = kFarA, .contained = {}}}, t.now, t.actions);
  EXPECT_NE(b->value.bytes().find("max_retries=0"), std::string::npos);
  t.Drop(b);
  t.Drop(a);
}

TEST(OwnerLineage, ABorrowerAsksTheOwnerAgain) {
  Transcript t;
  Object* a = t.owner.Receive({kFarOther, 3}, 1);
  auto told = [&](const Location& where) {
    t.owner.ValueReceived(a->id, {.kind = ValueKind::kStored, .bytes = {}, .location = where, .contained = {}},
                          t.actions);
  };
  t.owner.WantHere(a, t.actions);
  told(kFarA);
  t.Actions();
  t.owner.NotBrought(a, kFarA, &kGone, true, t.actions);
  EXPECT_EQ(t.Actions(), "let go of 1; ask " + std::to_string(kFarOther.value) + " again");
  EXPECT_FALSE(a->resolved());
  t.owner.WantHere(a, t.actions);
  EXPECT_EQ(t.Actions(), "") << "it was asked";
  told(kNewA);
  EXPECT_EQ(t.Actions(), "bring 11");
  t.owner.NotBrought(a, kNewA, &kGone, true, t.actions);
  t.Actions();
  t.owner.ProcessDied(kFarOther, "was lost", t.now, t.actions);
  EXPECT_EQ(a->value.kind(), ValueKind::kSystemError);
  EXPECT_TRUE(a->here());
  t.Drop(a);
}

TEST(OwnerLineage, CallsWaitOrFailButNeverChangeTheirOrder) {
  Transcript t;
  Object* made = t.Submit("a");
  t.Grant(kFarWorker, 7);
  t.Actions();
  ReplyStored(t, kFarWorker, "a", kFarA);
  Object* handle = t.Actor(kOther);
  LoseNodeTwo(t);
  auto lost = [&](const std::string& name) {
    t.owner.Replied(kOther, t.handles.at(name), ReplyKind::kArgumentLost, kGone,
                    {{.kind = ValueKind::kStored, .bytes = {}, .location = kFarA, .contained = {}}}, t.now, t.actions);
  };
  Object* first = t.Call(handle, "c", {made});
  Object* second = t.Call(handle, "d", {made});
  EXPECT_EQ(t.Actions(), "push c to 3; push d to 3");
  lost("c");
  EXPECT_NE(first->value.bytes().find("call it again"), std::string::npos) << "another one was pushed behind it";
  EXPECT_EQ(t.Actions(), "run a again; push a to " + std::to_string(kThirdNode.value));
  lost("d");
  Object* third = t.Call(handle, "e");
  EXPECT_EQ(t.Actions(), "") << "both wait";
  ReplyStored(t, kThirdNode, "a", kNewA);
  EXPECT_EQ(t.Actions(), "push d to 3; push e to 3");
  t.Reply(kOther, "d");
  t.Reply(kOther, "e");
  for (Object* object : {made, first, second, third, handle}) t.Drop(object);
}

// ---- results of actors' calls

// An actor in node two with one call whose result lies there.
struct LostCall {
  explicit LostCall(Transcript& t, int32_t max_retries, std::vector<Object*> dependencies = {}) {
    handle = t.Actor(kFarWorker);
    result = t.Call(handle, "c", std::move(dependencies), max_retries);
    t.Actions();
    ReplyStored(t, kFarWorker, "c", kFarA);
  }
  // With node two; its constructor runs in another one.
  void Restart(Transcript& t) const {
    t.owner.ProcessDied(kFarWorker, "was lost", t.now, t.actions);
    t.Report(handle, ActorState::kRestarting, 1, {});
    t.Report(handle, ActorState::kStarting, 2, kThirdNode);
    EXPECT_EQ(t.Actions(), "push new to " + kThere);
    t.owner.Replied(kThirdNode, t.handles.at("new"), ReplyKind::kValues, "", {}, t.now, t.actions);
    t.Report(handle, ActorState::kAlive, 2, kThirdNode);
    t.Actions();
  }
  const std::string kThere = std::to_string(kThirdNode.value);
  Object* handle;
  Object* result;
};

TEST(OwnerLineageCalls, ACallWithRetriesIsMadeAgainInTheNextIncarnation) {
  Transcript t;
  LostCall lost(t, 1);
  EXPECT_EQ(t.owner.lineages(), 1u);
  lost.Restart(t);
  ++lost.result->waiters;
  FindLost(t, lost.result, kFarA);
  EXPECT_EQ(t.Actions(), "let go of 1; run c again; push c to " + lost.kThere);
  EXPECT_EQ(t.owner.FindTask(t.handles.at("c"))->attempt, 1u);
  EXPECT_EQ(lost.handle->actor->pending_calls, 1u);
  ReplyStored(t, kThirdNode, "c", kNewA);
  EXPECT_EQ(t.Actions(), "bring 11");
  EXPECT_EQ(t.owner.lineages(), 0u) << "it has no retries left";
  EXPECT_EQ(lost.handle->actor->pending_calls, 0u);
  t.owner.NotBrought(lost.result, kNewA, &kGone, true, t.actions);
  EXPECT_EQ(t.Actions(), "let go of 11; resolved");
  EXPECT_EQ(Text(lost.result),
            "ReconstructionFailedError\nit lay on node 2 (two), and no other node has all of it; the method 'f' of an "
            "actor, which returned it, was not called again: it has no retries left (max_task_retries=1)");
  --lost.result->waiters;
  t.Drop(lost.result);
  t.Drop(lost.handle);
  EXPECT_EQ(t.Actions(), "release actor");
  EXPECT_EQ(t.owner.live_objects(), 0u);
}

TEST(OwnerLineageCalls, ItWaitsForTheActorToBeThereAgain) {
  Transcript t;
  LostCall lost(t, -1);
  t.owner.ProcessDied(kFarWorker, "was lost", t.now, t.actions);
  FindLost(t, lost.result, kFarA);
  EXPECT_EQ(t.Actions(), "let go of 1; run c again");
  t.Report(lost.handle, ActorState::kRestarting, 1, {});
  t.Report(lost.handle, ActorState::kStarting, 2, kThirdNode);
  EXPECT_EQ(t.Actions(), "push new to " + lost.kThere + "; push c to " + lost.kThere);
  // The next incarnation is lost as well, while it runs.
  t.owner.ProcessDied(kThirdNode, "was lost", t.now, t.actions);
  t.Report(lost.handle, ActorState::kRestarting, 2, {});
  EXPECT_EQ(t.Actions(), "revoke new; revoke c");
  t.Revoked("new", false);
  t.Revoked("c", false);
  t.Report(lost.handle, ActorState::kStarting, 3, kOther);
  EXPECT_EQ(t.Actions(), "push new to 3; push c to 3");
  EXPECT_EQ(t.owner.FindTask(t.handles.at("c"))->attempt, 2u);
  t.Reply(kOther, "c");
  EXPECT_EQ(Text(lost.result), "result of c");
  EXPECT_EQ(t.owner.lineages(), 0u);
  t.Drop(lost.result);
}

TEST(OwnerLineageCalls, WithoutRetriesNothingIsKeptAndTheErrorSaysWhatToDo) {
  Transcript t;
  LostCall lost(t, 0);
  EXPECT_EQ(t.owner.lineages(), 0u);
  lost.Restart(t);
  FindLost(t, lost.result, kFarA);
  EXPECT_EQ(t.Actions(), "let go of 1");
  EXPECT_EQ(Text(lost.result),
            "ObjectLostError\nit lay on node 2 (two), and no other node has all of it; the method 'f' of an actor "
            "returned it, and was not called again, since that may change the actor and it has max_task_retries=0: "
            "call it again, or set max_task_retries, and lost results are made again by calling it");
  t.Drop(lost.result);
}

TEST(OwnerLineageCalls, ADeadActorAndOneWithoutHandleAreNotCalled) {
  for (bool dead : {false, true}) {
    Transcript t;
    LostCall lost(t, 3);
    t.owner.ProcessDied(kFarWorker, "was lost", t.now, t.actions);
    if (dead) {
      t.Report(lost.handle, ActorState::kDead, 1, {}, "its node is gone");
    } else {
      t.Drop(lost.handle);
      EXPECT_EQ(t.Actions(), "release actor") << "a lineage keeps no actor";
    }
    t.Actions();
    FindLost(t, lost.result, kFarA);
    EXPECT_EQ(t.Actions(), "let go of 1");
    const std::string why = dead ? "its actor is dead: its node is gone" : "no handle of its actor is left";
    EXPECT_NE(Text(lost.result).find("was not called again: " + why), std::string::npos) << Text(lost.result);
    EXPECT_TRUE(Text(lost.result).starts_with("ReconstructionFailedError\n"));
    EXPECT_EQ(t.owner.lineages(), 0u);
    t.Drop(lost.result);
    if (dead) t.Drop(lost.handle);
    t.Actions();
    EXPECT_EQ(t.owner.live_objects(), 0u);
  }
}

TEST(OwnerLineageCalls, AnActorThatDiesMeanwhileEndsItWithTheSameError) {
  Transcript t;
  LostCall lost(t, 3);
  t.owner.ProcessDied(kFarWorker, "was lost", t.now, t.actions);
  FindLost(t, lost.result, kFarA);
  t.Actions();
  t.Report(lost.handle, ActorState::kDead, 1, {}, "its node is gone");
  EXPECT_TRUE(Text(lost.result).starts_with("ReconstructionFailedError\n")) << Text(lost.result);
  EXPECT_NE(Text(lost.result).find("because its actor is dead: its node is gone"), std::string::npos);
  t.Drop(lost.result);
  t.Drop(lost.handle);
}

TEST(OwnerLineageCalls, AChainThroughACallIsMadeAgainInOrder) {
  Transcript t;
  LostCall lost(t, -1);
  t.Grant(kFarOther, 7);
  Object* b = t.Submit("b", {lost.result});
  t.Actions();
  const ObjectId id = lost.result->id;
  t.Drop(lost.result);
  ReplyStored(t, kFarOther, "b", kFarB);
  t.owner.BorrowerMentioned(id, kFarOther, -1, t.actions);
  EXPECT_EQ(t.Actions(), "free at 1 everywhere") << "to make it again its record is enough";
  EXPECT_EQ(t.owner.lineages(), 2u);
  t.owner.ProcessDied(kFarOther, "was lost", t.now, t.actions);
  lost.Restart(t);
  FindLost(t, b, kFarB);
  EXPECT_EQ(t.Actions(), "let go of 2; run b again; run c again; push c to " + lost.kThere);
  ReplyStored(t, kThirdNode, "c", kNewA);
  EXPECT_EQ(t.Actions(), "request 1");
  t.Grant(kOther, 9);
  EXPECT_EQ(t.Actions(), "push b to 3");
  t.Reply(kOther, "b");
  EXPECT_EQ(Text(b), "result of b");
  t.owner.BorrowerMentioned(id, kOther, -1, t.actions);
  EXPECT_EQ(t.Actions(), "free at 11 everywhere");
  t.Drop(b);
  t.Drop(lost.handle);
  t.Actions();
  EXPECT_EQ(t.owner.live_objects(), 0u);
}

TEST(OwnerLineageCalls, ItComesLastButNoCallWaitsForAnotherInVain) {
  Transcript t;
  LostCall lost(t, -1);
  lost.Restart(t);
  // One that takes the lost result comes back, and waits for what is made again behind it.
  Object* taker = t.Call(lost.handle, "t", {lost.result});
  EXPECT_EQ(t.Actions(), "push t to " + lost.kThere);
  t.owner.Replied(kThirdNode, t.handles.at("t"), ReplyKind::kArgumentLost, kGone,
                  {{.kind = ValueKind::kStored, .bytes = {}, .location = kFarA, .contained = {}}}, t.now, t.actions);
  EXPECT_EQ(t.Actions(), "run c again; push c to " + lost.kThere);
  Object* later = t.Call(lost.handle, "l");
  EXPECT_EQ(t.Actions(), "") << "it was made after the one that waits";
  EXPECT_EQ(t.owner.Explain(later->id).state, ObjectState::kBehind);
  EXPECT_EQ(t.owner.Explain(lost.result->id).state, ObjectState::kPushed);
  t.owner.CheckInvariants();
  ReplyStored(t, kThirdNode, "c", kNewA);
  EXPECT_EQ(t.Actions(), "push t to " + lost.kThere + "; push l to " + lost.kThere);
  t.Reply(kThirdNode, "t");
  t.Reply(kThirdNode, "l");
  for (Object* object : {lost.result, taker, later, lost.handle}) t.Drop(object);
}

TEST(OwnerLineageCalls, ACallThatWasSentBeforeIsNotTakenForOvertaken) {
  Transcript t;
  LostCall lost(t, -1);
  lost.Restart(t);
  Object* taker = t.Call(lost.handle, "t", {lost.result});
  EXPECT_EQ(t.Actions(), "push t to " + lost.kThere);
  FindLost(t, lost.result, kFarA);
  EXPECT_EQ(t.Actions(), "let go of 1; run c again; push c to " + lost.kThere) << "behind the one that takes it";
  t.owner.Replied(kThirdNode, t.handles.at("t"), ReplyKind::kArgumentLost, kGone,
                  {{.kind = ValueKind::kStored, .bytes = {}, .location = kFarA, .contained = {}}}, t.now, t.actions);
  EXPECT_FALSE(taker->resolved()) << Text(taker);
  ReplyStored(t, kThirdNode, "c", kNewA);
  EXPECT_EQ(t.Actions(), "bring 11; push t to " + lost.kThere);
  t.Reply(kThirdNode, "t");
  EXPECT_EQ(Text(taker), "result of t");
  for (Object* object : {lost.result, taker, lost.handle}) t.Drop(object);
}

TEST(OwnerLineageCalls, CallsThatNeedEachOthersResultsAreMadeAgainWhateverTheirOrder) {
  Transcript t;
  LostCall lost(t, -1);
  auto call = [&](const std::string& name, const Location& where) {
    Object* made = t.Call(lost.handle, name, {lost.result}, -1);
    t.Actions();
    ReplyStored(t, kFarWorker, name, where);
    return made;
  };
  Object* d = call("d", kFarB);
  Object* e = call("e", kFarC);
  lost.Restart(t);
  FindLost(t, d, kFarB);
  EXPECT_EQ(t.Actions(), "let go of 2; run d again; push d to " + lost.kThere);
  auto argument_lost = [&](const std::string& name) {
    t.owner.Replied(kThirdNode, t.handles.at(name), ReplyKind::kArgumentLost, kGone,
                    {{.kind = ValueKind::kStored, .bytes = {}, .location = kFarA, .contained = {}}}, t.now, t.actions);
  };
  argument_lost("d");
  EXPECT_EQ(t.Actions(), "run c again; push c to " + lost.kThere) << "d waits for it, before it in the queue";
  FindLost(t, e, kFarC);
  EXPECT_EQ(t.Actions(), "let go of 3; run e again");
  ReplyStored(t, kThirdNode, "c", kNewA);
  EXPECT_EQ(t.Actions(), "push d to " + lost.kThere + "; push e to " + lost.kThere);
  t.Reply(kThirdNode, "d");
  t.Reply(kThirdNode, "e");
  EXPECT_EQ(Text(d) + Text(e), "result of dresult of e");
  for (Object* object : {lost.result, d, e, lost.handle}) t.Drop(object);
}

TEST(OwnerLineage, WhatIsOnlyAwaitedIsMadeAgainToo) {
  Transcript t;
  Object* a = t.Submit("a");
  Object* b = t.Submit("b", {a});
  t.Grant(kFarWorker, 7);
  t.Actions();
  const ObjectId id = a->id;
  t.Drop(a);
  ReplyStored(t, kFarWorker, "a", kFarA);
  ReplyStored(t, kFarWorker, "b", kFarB);
  EXPECT_EQ(t.Actions(), "free at 1");
  // Somebody has the reference again, from a value that was on its way.
  a = t.owner.Receive(id, 0);
  t.owner.Want(a, t.actions);
  EXPECT_EQ(t.Actions(), "run a again; push a to " + std::to_string(kFarWorker.value));
  ReplyStored(t, kFarWorker, "a", kFarC);
  t.Drop(a);
  t.Drop(b);
}

// ---- random programs ----------------------------------------------------------------------------------------------

constexpr ProcessId kPlayer{uint64_t{1} << 32 | 1};
constexpr uint32_t kNodes = 3;  // besides ours
constexpr ProcessId kBorrower{uint64_t{1} << 32 | 99};

struct Seen {
  uint64_t runs_again = 0, calls_again = 0, arguments_lost = 0, errors = 0, overtaken = 0, asked_again = 0, dropped = 0;
};

class Play {
 public:
  // Forgiving: tasks have few retries, and some arguments cannot be made again.
  Play(uint32_t seed, bool forgiving, const Owner::Faults& faults)
      : random_(seed), forgiving_(forgiving), owner_(kPlayer) {
    owner_.faults = faults;
    function_ = owner_.InternFunction(Function{.key = {1, 1}, .name = "f"});
    shape_ = owner_.InternShape({{"CPU", kResourceUnit}});
    for (uint32_t i = 0; i < kNodes; ++i) AddNode();
    actor_ = owner_.NewOwned();
    owner_.Resolve(actor_, ValueKind::kInline, "", {}, {}, actions_);
    actor_id_ = actor_->id;
    TaskTemplate what = What(0, 0);
    what.kind = TemplateKind::kCreation;
    owner_.CreateActor(actor_, {.what = owner_.InternTemplate(what), .arguments = "new"}, {.keep_for_restarts = true},
                       ++now_, actions_);
    Perform();
  }

  // What went wrong, or nothing.
  std::string Run() {
    for (int i = 0; i < 150 && wrong_.empty(); ++i) {
      Act();
      for (uint32_t steps = Below(4); steps > 0; --steps) Step();
      owner_.CheckInvariants();
    }
    for (const Held& held : held_) Look(held.object);
    Quiet();
    for (const Held& held : held_) Judge(held);
    while (!held_.empty()) Drop();
    if (actor_) LetGoOfActor();
    Quiet();
    if (owner_.live_objects() != 0) Wrong(std::to_string(owner_.live_objects()) + " objects are left");
    if (owner_.lineages() != 0 || owner_.lineage_bytes() != 0) Wrong("lineage is left");
    if (owner_.live_tasks() != 0) Wrong("tasks are left");
    for (const auto& [where, value] : store_) {
      if (Alive(where)) Wrong("something stored is left at " + std::to_string(where.offset));
    }
    return wrong_;
  }

  Seen seen;

 private:
  struct Held {
    Object* object;
    uint64_t expected;
  };
  struct Argument {
    enum { kInline, kStored, kEarlier } kind;
    ObjectId id;
    uint64_t value = 0;
    Location where;
  };
  struct Frame {
    uint64_t task, push;
    std::string name;
    uint32_t max_runs;
    std::vector<ObjectId> returns, mentioned;
    std::vector<Argument> arguments;
    uint64_t order = 0;  // of a call, unless it is made again
  };
  struct Worker {
    ProcessId process;
    bool alive = true, leased = false;
    bool actor = false;       // then it is never leased
    uint64_t last_order = 0;  // of the calls that ran here
    std::deque<Frame> frames;
    std::map<ObjectId, ReturnedValue> remembered;
    std::map<ObjectId, std::string> bytes;
  };
  struct Coming {
    Object* object;
    Location where;
  };

  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  void Wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  bool Alive(const Location& where) const { return !gone_.contains(NodeOf(where.segment)); }
  void AddNode() {
    const uint32_t node = next_node_++;
    workers_.emplace_back().process = ProcessId{uint64_t{node} << 32 | 1};
  }
  static uint64_t Mix(uint64_t a, uint64_t b) { return (a ^ (b + 0x9e3779b97f4a7c15 + (a << 6) + (a >> 2))) * 31; }

  // ---- the program

  void Act() {
    const uint32_t what = Below(100);
    if (what < 28) {
      Submit(false);
    } else if (what < 40) {
      Submit(actor_ != nullptr);
    } else if (what < 41) {
      if (forgiving_ && actor_ && Below(3) == 0) LetGoOfActor();
    } else if (what < 48) {
      Put();
    } else if (what < 70) {
      if (held_.size() > 3) Drop();
    } else if (what < 85) {
      if (!held_.empty()) Look(held_[Below(static_cast<uint32_t>(held_.size()))].object);
    } else if (what < 92) {
      AskAgain();
    } else {
      LoseNode();
    }
    Perform();
  }

  TaskTemplate What(uint32_t returns, int32_t retries) const {
    TaskTemplate what;
    what.function = function_;
    what.shape = shape_;
    what.num_returns = returns;
    what.max_retries = retries;
    what.name = "f";
    return what;
  }

  void Submit(bool call) {
    TaskTemplate what = What(1 + Below(2), forgiving_ ? static_cast<int32_t>(Below(4)) : -1);
    const std::string name = std::to_string(next_task_++);
    uint64_t expected = std::hash<std::string>()(name);
    std::vector<Object*> dependencies;
    for (uint32_t i = Below(4); i > 0 && !held_.empty(); --i) {
      const Held& held = held_[Below(static_cast<uint32_t>(held_.size()))];
      dependencies.push_back(held.object);
      expected = Mix(expected, held.expected);
    }
    std::vector<Object*> returns;
    if (call) what.kind = TemplateKind::kCall;
    const Submission submission{.what = owner_.InternTemplate(what), .arguments = name, .dependencies = dependencies};
    if (call) {
      owner_.SubmitCall(actor_, submission, ++now_, returns, actions_);
    } else {
      owner_.Submit(submission, ++now_, returns, actions_);
    }
    for (size_t i = 0; i < returns.size(); ++i) held_.push_back({returns[i], Mix(expected, i)});
  }

  void Put() {
    const uint64_t value = random_();
    Object* object = owner_.NewOwned();
    if (forgiving_ && Below(2) == 0) {
      owner_.Resolve(object, ValueKind::kStored, {}, Store(kPlayer, value), {}, actions_);
    } else {
      owner_.Resolve(object, ValueKind::kInline, std::to_string(value), {}, {}, actions_);
    }
    held_.push_back({object, value});
  }

  void Drop() {
    const uint32_t which = Below(static_cast<uint32_t>(held_.size()));
    Object* object = held_[which].object;
    held_.erase(held_.begin() + which);
    if (object->local_references.fetch_sub(1) == 1) owner_.Consider(object, actions_);
    Perform();
  }

  void Look(Object* object) {
    owner_.WantHere(object, actions_);
    Perform();
  }

  // Somebody elsewhere has found it gone.
  void AskAgain() {
    for (const Held& held : held_) {
      if (held.object->value.kind() != ValueKind::kStored || Alive(held.object->value.location())) continue;
      ++seen.asked_again;
      const Location where = held.object->value.location();
      owner_.ValueAskedAgain(held.object->id, kBorrower, where, actions_);
      return;
    }
  }

  void LetGoOfActor() {
    Object* handle = std::exchange(actor_, nullptr);
    if (handle->local_references.fetch_sub(1) == 1) owner_.Consider(handle, actions_);
    Perform();
  }

  Worker& AnyLiving() {
    std::vector<Worker*> living;
    for (Worker& worker : workers_) {
      if (worker.alive && !worker.actor) living.push_back(&worker);
    }
    return *living[Below(static_cast<uint32_t>(living.size()))];
  }

  void LoseNode() {
    const NodeNumber node = NodeOf(AnyLiving().process);
    gone_.insert(node);
    AddNode();
    std::vector<ProcessId> dead;
    bool actor = false;
    for (Worker& worker : workers_) {
      if (NodeOf(worker.process) != node || !worker.alive) continue;
      worker.alive = worker.leased = false;
      actor = actor || worker.actor;
      dead.push_back(worker.process);
    }
    const bool told_first = Below(2) == 0;
    if (actor && told_first) ReportActor(ActorState::kRestarting, {});
    for (ProcessId process : dead) owner_.ProcessDied(process, "was lost", ++now_, actions_);
    if (actor && !told_first) ReportActor(ActorState::kRestarting, {});
    if (actor) wants_worker_ = true;
  }

  void ReportActor(ActorState state, ProcessId worker) {
    owner_.ActorReported({actor_id_, static_cast<uint8_t>(state), incarnation_, worker}, ++now_, actions_);
  }

  void StartActor() {
    wants_worker_ = false;
    ++incarnation_;
    const ProcessId process{uint64_t{NodeOf(AnyLiving().process).value} << 32 | (1000 + incarnation_)};
    workers_.emplace_back().process = process;
    workers_.back().actor = true;
    ReportActor(ActorState::kStarting, process);
  }

  void Judge(const Held& held) {
    const Object& object = *held.object;
    if (!object.settled()) return Wrong("waited in vain");
    if (object.value.kind() == ValueKind::kSystemError) {
      ++seen.errors;
      // The one thing that is not made good: see CallsWaitOrFailButNeverChangeTheirOrder.
      const bool overtaken = Text(&object).find("calls that were made after it have gone on") != std::string::npos;
      seen.overtaken += overtaken;
      if (!forgiving_ && !overtaken) Wrong("an error: " + Text(&object));
      return;
    }
    uint64_t value = 0;
    if (object.value.kind() == ValueKind::kInline) {
      value = std::stoull(std::string(object.value.bytes()));
    } else if (object.place == Place::kCopied) {
      value = object.copy->place.offset;
    } else if (object.place == Place::kLost) {
      return Wrong("lost, though nobody said so");
    } else {
      value = store_.at(object.value.location());
    }
    if (value != held.expected) Wrong("a wrong value");
  }

  // ---- the world

  Location Store(ProcessId writer, uint64_t value) {
    const Location where{{writer.value}, next_place_, 100'000, next_place_};
    ++next_place_;
    store_[where] = value;
    return where;
  }

  void Quiet() {
    for (int i = 0; i < 20'000; ++i) {
      if (!Step()) return;
    }
    Wrong("it never ends");
  }

  // One thing that can happen, if any can.
  bool Step() {
    if (!wrong_.empty()) return false;
    std::vector<uint32_t> busy;
    for (uint32_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].alive && !workers_[i].frames.empty()) busy.push_back(i);
    }
    std::vector<uint32_t> free;
    for (uint32_t i = 0; i < workers_.size() && wished_ > 0; ++i) {
      if (workers_[i].alive && !workers_[i].leased && !workers_[i].actor) free.push_back(i);
    }
    if (wants_worker_ && (Below(3) == 0 || (coming_.empty() && busy.empty() && free.empty()))) {
      StartActor();
      Perform();
      return true;
    }
    if (!coming_.empty() && (Below(3) == 0 || (busy.empty() && free.empty()))) {
      const Coming came = coming_.front();
      coming_.pop_front();
      if (Alive(came.where)) {
        if (!store_.contains(came.where)) Wrong("it was freed while it was fetched");
        // The copy's place is not looked at; its offset has the value.
        owner_.Brought(came.object, came.where, {{kPlayer.value}, store_[came.where], 100'000, 1}, actions_);
      } else {
        owner_.NotBrought(came.object, came.where, &kError, true, actions_);
      }
    } else if (!free.empty() && (busy.empty() || Below(2) == 0)) {
      Worker& worker = workers_[free[Below(static_cast<uint32_t>(free.size()))]];
      --wished_;
      worker.leased = true;
      owner_.LeaseGranted(shape_, LeaseId{worker.process.value}, worker.process, ++now_, actions_);
    } else if (!busy.empty()) {
      Execute(workers_[busy[Below(static_cast<uint32_t>(busy.size()))]]);
    } else {
      return false;
    }
    Perform();
    return true;
  }

  void Execute(Worker& worker) {
    const Frame frame = worker.frames.front();
    worker.frames.pop_front();
    std::vector<ReturnedValue> values;
    uint64_t value = std::hash<std::string>()(frame.name);
    for (const Argument& argument : frame.arguments) {
      uint64_t part = argument.value;
      Location where = argument.where;
      if (argument.kind == Argument::kEarlier) {
        auto found = worker.remembered.find(argument.id);
        // What it remembers may be of a former run; the generation of its place tells.
        if (found == worker.remembered.end() ||
            (found->second.kind == ValueKind::kStored && !store_.contains(found->second.location))) {
          return owner_.Replied(worker.process, frame.task, ReplyKind::kHandedBack, "", {}, ++now_, actions_);
        }
        where = found->second.location;
        if (found->second.kind == ValueKind::kInline) part = std::stoull(worker.bytes.at(argument.id));
      }
      if (where.size > 0) {
        if (!Alive(where)) {
          values.push_back({.kind = ValueKind::kStored, .bytes = {}, .location = where, .contained = {}});
          continue;
        }
        if (!store_.contains(where)) return Wrong("an argument was freed");
        part = store_.at(where);
      }
      value = Mix(value, part);
    }
    if (!values.empty()) {
      ++seen.arguments_lost;
      return owner_.Replied(worker.process, frame.task, ReplyKind::kArgumentLost, kError, values, ++now_, actions_);
    }
    if (frame.name == "new") {
      owner_.Replied(worker.process, frame.task, ReplyKind::kValues, "", {}, ++now_, actions_);
      return ReportActor(ActorState::kAlive, worker.process);
    }
    if (++runs_[frame.name] > frame.max_runs) Wrong("a task ran more often than it may");
    if (frame.order > 0 && frame.order <= worker.last_order) Wrong("calls ran out of order");
    worker.last_order = std::max(worker.last_order, frame.order);
    std::vector<std::string> bytes(frame.returns.size());
    for (size_t i = 0; i < frame.returns.size(); ++i) {
      const uint64_t result = Mix(value, i);
      bytes[i] = std::to_string(result);
      ReturnedValue returned{.kind = ValueKind::kInline, .bytes = bytes[i], .location = {}, .contained = {}};
      if (Below(5) > 0) returned = {ValueKind::kStored, {}, Store(worker.process, result), {}};
      worker.remembered[frame.returns[i]] = returned;
      worker.bytes[frame.returns[i]] = bytes[i];
      values.push_back(returned);
    }
    owner_.Replied(worker.process, frame.task, ReplyKind::kValues, "", values, ++now_, actions_);
    for (ObjectId id : frame.mentioned) owner_.BorrowerMentioned(id, worker.process, -1, actions_);
  }

  void Push(int32_t number, Task* task) {
    const ProcessId process = owner_.workers()[static_cast<size_t>(number)].process;
    Frame frame{.task = task->handle, .push = task->push, .name = std::string(task->arguments.view()), .max_runs = 0};
    const int32_t limit = task->what->max_retries;
    frame.max_runs = limit < 0 ? UINT32_MAX : static_cast<uint32_t>(limit) + 1;
    if (!task->lineage) frame.order = task->order;
    for (uint32_t i = 0; i < task->what->num_returns; ++i) frame.returns.push_back(task->Return(i)->id);
    if (task->mentioned) {
      for (const Object* object : *task->mentioned) frame.mentioned.push_back(object->id);
    }
    for (uint32_t i = 0; i < task->num_dependencies; ++i) {
      const Object* object = task->dependencies[i];
      Argument argument{.kind = Argument::kEarlier, .id = object->id, .value = 0, .where = {}};
      if (object->value.kind() == ValueKind::kInline) {
        argument.kind = Argument::kInline;
        argument.value = std::stoull(std::string(object->value.bytes()));
      } else if (object->value.kind() == ValueKind::kStored) {
        argument.kind = Argument::kStored;
        argument.where = object->value.location();
      }
      frame.arguments.push_back(argument);
    }
    for (Worker& worker : workers_) {
      if (worker.process == process) worker.frames.push_back(std::move(frame));
    }
  }

  void Perform() {
    for (size_t i = 0; i < actions_.size(); ++i) {
      const Action action = actions_[i];
      switch (action.kind) {
        case ActionKind::kPush:
          Push(action.worker, action.task);
          break;
        case ActionKind::kRevoke: {
          // What was begun has ended: nothing is claimed here for longer than a step.
          const ProcessId process = owner_.workers()[static_cast<size_t>(action.worker)].process;
          for (Worker& worker : workers_) {
            if (worker.process != process) continue;
            std::erase_if(worker.frames, [&](const Frame& frame) { return frame.task == action.number; });
          }
          owner_.RevokeResolved(action.number, true, ++now_, actions_);
          break;
        }
        case ActionKind::kRequestLeases:
          wished_ = action.number;
          break;
        case ActionKind::kReturnLease:
          for (Worker& worker : workers_) {
            if (worker.process.value == action.number) worker.leased = false;
          }
          break;
        case ActionKind::kFreeStored:
          if (store_.erase(action.location) == 0) Wrong("freed twice");
          break;
        case ActionKind::kBring:
          coming_.push_back({action.object, action.location});
          break;
        case ActionKind::kLetGo:
          std::erase_if(coming_, [&](const Coming& coming) {
            return coming.object == action.object && coming.where == action.location;
          });
          break;
        case ActionKind::kSendValue:
          if (action.object) owner_.Unhold(action.object, actions_);
          break;
        case ActionKind::kRunAgain:
          ++seen.runs_again;
          if (const Task* task = owner_.FindTask(action.number)) seen.calls_again += task->actor != nullptr;
          break;
        case ActionKind::kPlaceActor:
          wants_worker_ = true;
          break;
        case ActionKind::kReleaseActor:
          wants_worker_ = false;
          for (Worker& worker : workers_) {
            if (!worker.actor || !worker.alive) continue;
            worker.alive = false;
            owner_.ProcessDied(worker.process, "has ended", ++now_, actions_);
          }
          break;
        default:
          break;
      }
    }
    actions_.clear();
    owner_.ForEachObject([&](Object* object) {
      seen.dropped += object->dropped;
      const bool used = object->local_references > 0 || object->holds > 0 || object->callbacks > 0 ||
                        (object->borrowers && !object->borrowers->empty());
      if (!used && object->lineage_holds > 0 && object->value.kind() == ValueKind::kStored) {
        Wrong("a value is kept for lineage alone");
      }
    });
  }

  const std::string kError = "ObjectLostError\nits node is gone";
  std::mt19937 random_;
  const bool forgiving_;
  Owner owner_;
  const Function* function_;
  uint32_t shape_;
  Actions actions_;
  int64_t now_ = 1;
  uint64_t wished_ = 0, next_place_ = 1, next_task_ = 1;
  uint32_t next_node_ = 2, incarnation_ = 0;
  Object* actor_ = nullptr;  // nullptr: let go of
  ObjectId actor_id_;
  bool wants_worker_ = true;  // the actor
  std::deque<Worker> workers_;
  std::set<NodeNumber> gone_;
  std::map<Location, uint64_t> store_;
  std::deque<Coming> coming_;
  std::vector<Held> held_;
  std::map<std::string, uint32_t> runs_;
  std::string wrong_;
};

Seen Sum(bool forgiving) {
  Seen sum;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    Play play(seed, forgiving, {});
    const std::string wrong = play.Run();
    EXPECT_EQ(wrong, "") << "seed " << seed;
    if (!wrong.empty()) break;
    sum.runs_again += play.seen.runs_again;
    sum.calls_again += play.seen.calls_again;
    sum.overtaken += play.seen.overtaken;
    sum.arguments_lost += play.seen.arguments_lost;
    sum.errors += play.seen.errors;
    sum.asked_again += play.seen.asked_again;
    sum.dropped += play.seen.dropped;
  }
  EXPECT_GT(sum.runs_again, 300u);
  EXPECT_GT(sum.calls_again, 100u);
  EXPECT_GT(sum.arguments_lost, 100u);
  EXPECT_GT(sum.asked_again, 100u);
  EXPECT_GT(sum.dropped, 100u);
  return sum;
}

TEST(OwnerLineageSeeds, WhatMayRunAgainIsAlwaysMadeAgain) {
  const Seen sum = Sum(false);
  EXPECT_EQ(sum.errors, sum.overtaken);
}

TEST(OwnerLineageSeeds, WhatMayNotEndsInAnErrorAndNeverRunsTooOften) { EXPECT_GT(Sum(true).errors, 50u); }

TEST(OwnerLineageSeeds, PlantedBugsAreFound) {
  auto found = [](bool Owner::Faults::* fault) {
    Owner::Faults faults;
    faults.*fault = true;
    for (uint32_t seed = 1; seed <= 100; ++seed) {
      if (!Play(seed, true, faults).Run().empty()) return true;
    }
    return false;
  };
  EXPECT_TRUE(found(&Owner::Faults::make_again_without_counting));
  EXPECT_TRUE(found(&Owner::Faults::keep_values_for_lineage));
}

}  // namespace
}  // namespace weft::core
