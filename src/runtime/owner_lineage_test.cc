// Results that are lost with their node, as transcripts. owner_lineage_play_test.cc has random programs.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/owner_transcript.h"

namespace weft::core {
namespace {

constexpr ProcessId kThirdNode{uint64_t{3} << 32 | 1};
constexpr Location kRemoteA{{kRemoteWorker.value}, 1, 100'000, 1}, kRemoteB{{kRemoteWorker.value}, 2, 100'000, 2},
    kRemoteC{{kRemoteWorker.value}, 3, 100'000, 3};
constexpr Location kNewA{{kThirdNode.value}, 11, 100'000, 1}, kNewB{{kThirdNode.value}, 12, 100'000, 2},
    kNewC{{kThirdNode.value}, 13, 100'000, 3};
const std::string kGone = "ObjectLostError\nit lay on node 2 (two), and no other node has all of it";

// Node two with its worker is gone, and another worker is to be had.
void LoseNodeTwo(Transcript& t) {
  t.owner.ProcessDied(kRemoteWorker, "was lost", t.now, t.actions);
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
  t.Grant(kRemoteWorker, 7);
  t.Actions();
  ReplyStored(t, kRemoteWorker, "a", kRemoteA);
  EXPECT_EQ(t.owner.lineages(), 1u);
  LoseNodeTwo(t);
  ++a->waiters;
  FindLost(t, a, kRemoteA);
  EXPECT_EQ(t.Actions(), "let go of 1; run a again; push a to " + std::to_string(kThirdNode.value));
  EXPECT_FALSE(a->settled());
  t.owner.ValueAskedAgain(a->id, kRemoteOther, kRemoteA, t.actions);
  t.owner.ValueAskedAgain(a->id, kOther, kRemoteA, t.actions);
  EXPECT_EQ(t.Actions(), "") << "it is being made";
  EXPECT_EQ(t.owner.FindTask(t.handles.at("a"))->attempt, 1u);
  ReplyStored(t, kThirdNode, "a", kNewA);
  EXPECT_EQ(t.Actions(), "bring 11; send value to " + std::to_string(kRemoteOther.value) + "; send value to 3");
  t.owner.NotBrought(a, kRemoteA, &kGone, true, t.actions);
  EXPECT_EQ(t.Actions(), "") << "of the former value";
  t.owner.ValueAskedAgain(a->id, kOther, kRemoteA, t.actions);
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
  t.Grant(kRemoteWorker, 7);
  t.Actions();
  t.Drop(a);
  ReplyStored(t, kRemoteWorker, "a", kRemoteA);
  EXPECT_EQ(t.Actions(), "");
  ReplyStored(t, kRemoteWorker, "b", kRemoteB);
  EXPECT_EQ(t.Actions(), "free at 1") << "to make it again its record is enough";
  ReplyStored(t, kRemoteWorker, "c", kRemoteC);
  EXPECT_EQ(t.Actions(), "");
  t.Drop(b);
  EXPECT_EQ(t.Actions(), "free at 2");
  EXPECT_EQ(t.owner.lineages(), 3u);
  t.owner.CheckInvariants();
  LoseNodeTwo(t);
  FindLost(t, c, kRemoteC);
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
  t.Grant(kRemoteWorker, 7);
  t.Actions();
  ReplyStored(t, kRemoteWorker, "a", kRemoteA);
  LoseNodeTwo(t);
  Object* b = t.Submit("b", {a});
  Object* c = t.Submit("c", {a});
  const std::string there = std::to_string(kThirdNode.value);
  EXPECT_EQ(t.Actions(), "push b to " + there + "; push c to " + there + "; request 1");
  auto lost = [&](const std::string& name) {
    t.owner.Replied(kThirdNode, t.handles.at(name), ReplyKind::kArgumentLost, kGone,
                    {{.kind = ValueKind::kStored, .bytes = {}, .location = kRemoteA, .contained = {}}}, t.now,
                    t.actions);
  };
  lost("b");
  EXPECT_EQ(t.Actions(), "run a again; push a to " + there + "; push b to " + there) << "b behind a";
  lost("c");
  EXPECT_EQ(t.Actions(), "");
  ReplyStored(t, kThirdNode, "a", kNewA);
  EXPECT_EQ(t.Actions(), "push c to " + there);
  t.Reply(kThirdNode, "b");
  t.Reply(kThirdNode, "c");
  t.owner.BorrowsChanged(a->id, kThirdNode, -1, t.actions);
  EXPECT_TRUE(b->here() && c->here());
  for (Object* object : {a, b, c}) t.Drop(object);
  EXPECT_EQ(t.Actions(), "free at 11 everywhere");
}

TEST(OwnerLineage, EachTimeCostsARetryAndTheErrorSaysThatNoneIsLeft) {
  Transcript t;
  Object* a = t.Submit("a", {}, {}, 1);
  Object* never = t.Submit("n", {}, {}, 0);
  t.Grant(kRemoteWorker, 7);
  t.Actions();
  ReplyStored(t, kRemoteWorker, "a", kRemoteA);
  ReplyStored(t, kRemoteWorker, "n", kRemoteB);
  EXPECT_EQ(t.owner.lineages(), 1u) << "what may not run again needs none";
  LoseNodeTwo(t);
  FindLost(t, never, kRemoteB);
  EXPECT_EQ(t.Actions(), "let go of 2");
  EXPECT_EQ(never->value.bytes(),
            "ReconstructionFailedError\nit lay on node 2 (two), and no other node has all of it; task 'f', which made "
            "it, was not run again: it has max_retries=0");
  FindLost(t, a, kRemoteA);
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
  t.Grant(kRemoteWorker, 7);
  for (uint64_t i = 0; i < 5; ++i) {
    const std::string name = std::string(90, 'x') + std::to_string(i);
    objects.push_back(t.Submit(name));
    t.Actions();
    ReplyStored(t, kRemoteWorker, name, {{kRemoteWorker.value}, i, 100'000, i + 1});
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
  t.Grant(kRemoteWorker, 7);
  auto make = [&](const std::string& name, Object* argument, const Location& where) {
    Object* made = t.Submit(name, {argument});
    t.Actions();
    const bool stored = argument->value.kind() == ValueKind::kStored;
    const ObjectId id = argument->id;
    t.Drop(argument);
    ReplyStored(t, kRemoteWorker, name, where);
    if (stored) t.owner.BorrowsChanged(id, kRemoteWorker, -1, t.actions);
    return made;
  };
  Object* put = t.owner.NewOwned();
  t.owner.Resolve(put, ValueKind::kStored, {}, {{kSelf.value}, 64, 10, 1}, {}, t.actions);
  Object* a = make("a", put, kRemoteA);
  EXPECT_EQ(t.Actions(), "free at 64 everywhere");
  Object* b = make("b", t.Put("small"), kRemoteB);
  EXPECT_EQ(t.Actions(), "");
  LoseNodeTwo(t);
  FindLost(t, a, kRemoteA);
  t.Actions();
  EXPECT_NE(a->value.bytes().find("an argument of it no longer exists"), std::string::npos) << a->value.bytes();
  FindLost(t, b, kRemoteB);
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
  t.Grant(kRemoteWorker, 7);
  t.Actions();
  auto reply = [&](ProcessId worker, const Location& first, const Location& last) {
    t.owner.Replied(worker, t.handles.at("m"), ReplyKind::kValues, "",
                    {{.kind = ValueKind::kStored, .bytes = {}, .location = first, .contained = {}},
                     {.kind = ValueKind::kInline, .bytes = "small", .location = {}, .contained = {}},
                     {.kind = ValueKind::kStored, .bytes = {}, .location = last, .contained = {}}},
                    t.now, t.actions);
  };
  reply(kRemoteWorker, kRemoteA, kRemoteC);
  LoseNodeTwo(t);
  FindLost(t, made[2], kRemoteC);
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
    t.Grant(kRemoteWorker, 7);
    t.Actions();
    ReplyStored(t, kRemoteWorker, "a", kRemoteA);
    LoseNodeTwo(t);
    ++a->waiters;
    FindLost(t, a, kRemoteA);
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
  t.Grant(kRemoteWorker, 7);
  t.Actions();
  ReplyStored(t, kRemoteWorker, "a", kRemoteA);
  t.owner.WantHere(a, t.actions);
  t.owner.Brought(a, kRemoteA, kCopy, t.actions);
  LoseNodeTwo(t);
  t.owner.ValueAskedAgain(a->id, kOther, kRemoteA, t.actions);
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
  t.Grant(kRemoteWorker, 7);
  t.Actions();
  ReplyStored(t, kRemoteWorker, "a", kRemoteA);
  t.owner.WantHere(a, t.actions);
  t.owner.Brought(a, kRemoteA, kCopy, t.actions);
  LoseNodeTwo(t);
  t.owner.ValueAskedAgain(a->id, kOther, kRemoteA, t.actions);
  EXPECT_EQ(t.Actions(), "send loss to 3");
  EXPECT_TRUE(a->here());
  Object* b = t.Submit("b", {a});
  t.Actions();
  t.owner.Replied(kThirdNode, t.handles.at("b"), ReplyKind::kArgumentLost, kGone,
                  {{.kind = ValueKind::kStored, .bytes = {}, .location = kRemoteA, .contained = {}}}, t.now, t.actions);
  EXPECT_NE(b->value.bytes().find("max_retries=0"), std::string::npos);
  t.Drop(b);
  t.Drop(a);
}

TEST(OwnerLineage, ABorrowerAsksTheOwnerAgain) {
  Transcript t;
  Object* a = t.owner.Receive({kRemoteOther, 3}, 1);
  auto told = [&](const Location& where) {
    t.owner.ValueReceived(a->id, {.kind = ValueKind::kStored, .bytes = {}, .location = where, .contained = {}},
                          t.actions);
  };
  t.owner.WantHere(a, t.actions);
  told(kRemoteA);
  t.Actions();
  t.owner.NotBrought(a, kRemoteA, &kGone, true, t.actions);
  EXPECT_EQ(t.Actions(), "let go of 1; ask " + std::to_string(kRemoteOther.value) + " again");
  EXPECT_FALSE(a->resolved());
  t.owner.WantHere(a, t.actions);
  EXPECT_EQ(t.Actions(), "") << "it was asked";
  told(kNewA);
  EXPECT_EQ(t.Actions(), "bring 11");
  t.owner.NotBrought(a, kNewA, &kGone, true, t.actions);
  t.Actions();
  t.owner.ProcessDied(kRemoteOther, "was lost", t.now, t.actions);
  EXPECT_EQ(a->value.kind(), ValueKind::kSystemError);
  EXPECT_TRUE(a->here());
  t.Drop(a);
}

TEST(OwnerLineage, CallsWaitOrFailButNeverChangeTheirOrder) {
  Transcript t;
  Object* made = t.Submit("a");
  t.Grant(kRemoteWorker, 7);
  t.Actions();
  ReplyStored(t, kRemoteWorker, "a", kRemoteA);
  Object* handle = t.Actor(kOther);
  LoseNodeTwo(t);
  auto lost = [&](const std::string& name) {
    t.owner.Replied(kOther, t.handles.at(name), ReplyKind::kArgumentLost, kGone,
                    {{.kind = ValueKind::kStored, .bytes = {}, .location = kRemoteA, .contained = {}}}, t.now,
                    t.actions);
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
    handle = t.Actor(kRemoteWorker);
    result = t.Call(handle, "c", std::move(dependencies), max_retries);
    t.Actions();
    ReplyStored(t, kRemoteWorker, "c", kRemoteA);
  }
  // With node two; its constructor runs in another one.
  void Restart(Transcript& t) const {
    t.owner.ProcessDied(kRemoteWorker, "was lost", t.now, t.actions);
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
  FindLost(t, lost.result, kRemoteA);
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
  t.owner.ProcessDied(kRemoteWorker, "was lost", t.now, t.actions);
  FindLost(t, lost.result, kRemoteA);
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
  FindLost(t, lost.result, kRemoteA);
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
    t.owner.ProcessDied(kRemoteWorker, "was lost", t.now, t.actions);
    if (dead) {
      t.Report(lost.handle, ActorState::kDead, 1, {}, "its node is gone");
    } else {
      t.Drop(lost.handle);
      EXPECT_EQ(t.Actions(), "release actor") << "a lineage keeps no actor";
    }
    t.Actions();
    FindLost(t, lost.result, kRemoteA);
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
  t.owner.ProcessDied(kRemoteWorker, "was lost", t.now, t.actions);
  FindLost(t, lost.result, kRemoteA);
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
  t.Grant(kRemoteOther, 7);
  Object* b = t.Submit("b", {lost.result});
  t.Actions();
  const ObjectId id = lost.result->id;
  t.Drop(lost.result);
  ReplyStored(t, kRemoteOther, "b", kRemoteB);
  t.owner.BorrowsChanged(id, kRemoteOther, -1, t.actions);
  EXPECT_EQ(t.Actions(), "free at 1 everywhere") << "to make it again its record is enough";
  EXPECT_EQ(t.owner.lineages(), 2u);
  t.owner.ProcessDied(kRemoteOther, "was lost", t.now, t.actions);
  lost.Restart(t);
  FindLost(t, b, kRemoteB);
  EXPECT_EQ(t.Actions(), "let go of 2; run b again; run c again; push c to " + lost.kThere);
  ReplyStored(t, kThirdNode, "c", kNewA);
  EXPECT_EQ(t.Actions(), "request 1");
  t.Grant(kOther, 9);
  EXPECT_EQ(t.Actions(), "push b to 3");
  t.Reply(kOther, "b");
  EXPECT_EQ(Text(b), "result of b");
  t.owner.BorrowsChanged(id, kOther, -1, t.actions);
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
                  {{.kind = ValueKind::kStored, .bytes = {}, .location = kRemoteA, .contained = {}}}, t.now, t.actions);
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
  FindLost(t, lost.result, kRemoteA);
  EXPECT_EQ(t.Actions(), "let go of 1; run c again; push c to " + lost.kThere) << "behind the one that takes it";
  t.owner.Replied(kThirdNode, t.handles.at("t"), ReplyKind::kArgumentLost, kGone,
                  {{.kind = ValueKind::kStored, .bytes = {}, .location = kRemoteA, .contained = {}}}, t.now, t.actions);
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
    ReplyStored(t, kRemoteWorker, name, where);
    return made;
  };
  Object* d = call("d", kRemoteB);
  Object* e = call("e", kRemoteC);
  lost.Restart(t);
  FindLost(t, d, kRemoteB);
  EXPECT_EQ(t.Actions(), "let go of 2; run d again; push d to " + lost.kThere);
  auto argument_lost = [&](const std::string& name) {
    t.owner.Replied(kThirdNode, t.handles.at(name), ReplyKind::kArgumentLost, kGone,
                    {{.kind = ValueKind::kStored, .bytes = {}, .location = kRemoteA, .contained = {}}}, t.now,
                    t.actions);
  };
  argument_lost("d");
  EXPECT_EQ(t.Actions(), "run c again; push c to " + lost.kThere) << "d waits for it, before it in the queue";
  FindLost(t, e, kRemoteC);
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
  t.Grant(kRemoteWorker, 7);
  t.Actions();
  const ObjectId id = a->id;
  t.Drop(a);
  ReplyStored(t, kRemoteWorker, "a", kRemoteA);
  ReplyStored(t, kRemoteWorker, "b", kRemoteB);
  EXPECT_EQ(t.Actions(), "free at 1");
  // Somebody has the reference again, from a value that was on its way.
  a = t.owner.Receive(id, 0);
  t.owner.Want(a, t.actions);
  EXPECT_EQ(t.Actions(), "run a again; push a to " + std::to_string(kRemoteWorker.value));
  ReplyStored(t, kRemoteWorker, "a", kRemoteC);
  t.Drop(a);
  t.Drop(b);
}

}  // namespace
}  // namespace weft::core
