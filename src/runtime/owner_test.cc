// The owner's main paths as transcripts: an event, then the actions it led to.
#include "runtime/owner.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace weft::core {
namespace {

constexpr ProcessId kSelf{1}, kWorker{2}, kOther{3}, kThird{4};
constexpr int64_t kMs = 1'000'000;

// Events in, actions out as text. Pushes are accepted and revokes answered by hand.
class Transcript {
 public:
  Transcript() : owner(kSelf) {
    function_ = owner.InternFunction(Function{.key = {1, 1}, .name = "f"});
    shape_ = owner.InternShape({{"CPU", kResourceUnit}});
  }
  ~Transcript() { owner.CheckInvariants(); }

  const TaskTemplate* What(int32_t max_retries = 3, uint32_t num_returns = 1) {
    TaskTemplate what;
    what.function = function_;
    what.shape = shape_;
    what.num_returns = num_returns;
    what.max_retries = max_retries;
    what.name = "f";
    return owner.InternTemplate(what);
  }

  // Submits and names the task by the letter in `name`.
  Object* Submit(const std::string& name, std::vector<Object*> dependencies = {}, std::vector<Object*> contained = {},
                 int32_t max_retries = 3) {
    std::vector<Object*> returns;
    owner.Submit({.what = What(max_retries), .arguments = name, .dependencies = dependencies, .contained = contained},
                 now, returns, actions);
    return returns.at(0);
  }
  Object* Put(const std::string& bytes, std::vector<Object*> contained = {}) {
    Object* object = owner.NewOwned();
    owner.Resolve(object, ValueKind::kInline, bytes, {}, contained, actions);
    return object;
  }
  // An actor of ours, in the worker and constructed.
  Object* Actor(ProcessId worker, bool constructed = true) {
    Object* handle = Put("");
    TaskTemplate what = *What(0, 0);
    what.kind = TemplateKind::kCreation;
    owner.CreateActor(handle, {.what = owner.InternTemplate(what), .arguments = "new"}, {.keep_for_restarts = true},
                      now, actions);
    Report(handle, ActorState::kStarting, 1, worker);
    if (!constructed) return handle;
    EXPECT_EQ(Actions(), "push new to " + std::to_string(worker.value));
    owner.Replied(worker, handles.at("new"), ReplyKind::kValues, "", {}, now, actions);
    Report(handle, ActorState::kAlive, 1, worker);
    EXPECT_EQ(Actions(), "");
    return handle;
  }
  void Report(Object* handle, ActorState state, uint32_t incarnation, ProcessId worker) {
    owner.ActorReported({handle->id, static_cast<uint8_t>(state), incarnation, worker}, now, actions);
  }
  Object* Call(Object* handle, const std::string& name, std::vector<Object*> dependencies = {},
               int32_t max_retries = 0) {
    TaskTemplate what = *What(max_retries);
    what.kind = TemplateKind::kCall;
    what.method = "method";
    std::vector<Object*> returns;
    owner.SubmitCall(handle, {.what = owner.InternTemplate(what), .arguments = name, .dependencies = dependencies}, now,
                     returns, actions);
    return returns.at(0);
  }
  void Grant(ProcessId worker, uint64_t lease) { owner.LeaseGranted(shape_, LeaseId{lease}, worker, now, actions); }
  void Drop(Object* object) {
    if (object->local_references.fetch_sub(1) == 1) owner.Consider(object, actions);
  }
  void Reply(ProcessId worker, const std::string& name, ReplyKind kind = ReplyKind::kValues,
             std::vector<ObjectId> contained = {}, uint32_t run_ns = 0) {
    std::vector<ReturnedValue> values;
    const std::string bytes = "result of " + name, error = "error of " + name;
    if (kind == ReplyKind::kValues) values.push_back({.bytes = bytes, .contained = std::move(contained)});
    owner.Replied(worker, handles.at(name), kind, error, values, now, actions, run_ns);
  }
  void Revoked(const std::string& name, bool revoked) { owner.RevokeResolved(handles.at(name), revoked, now, actions); }
  void Tick(int64_t later_ns) {
    now += later_ns;
    owner.Tick(now, actions);
  }

  // What was to be done since the last call.
  std::string Actions() {
    std::string text;
    for (const Action& action : std::exchange(actions, {})) {
      if (!text.empty()) text += "; ";
      auto process = [](ProcessId id) { return std::to_string(id.value); };
      switch (action.kind) {
        case ActionKind::kPush: {
          std::string name(action.task->arguments.view());
          handles[name] = action.task->handle;
          text.append("push ").append(name).append(" to ").append(process(owner.workers()[action.worker].process));
          break;
        }
        case ActionKind::kPlaceActor:
          text += "place actor";
          break;
        case ActionKind::kWatchActor:
          text += "watch actor";
          break;
        case ActionKind::kReleaseActor:
          text += "release actor";
          break;
        case ActionKind::kKillActor:
          text += "kill actor";
          break;
        case ActionKind::kAskCancel:
          text += "ask " + process(action.process) + " to cancel";
          break;
        case ActionKind::kCancelRunning:
          text += "tell " + process(action.process) + " to cancel";
          break;
        case ActionKind::kRevoke:
          text += "revoke";
          for (const auto& [name, handle] : handles) {
            if (handle == action.number) text.append(" ").append(name);
          }
          break;
        case ActionKind::kRequestLeases:
          text.append("request ").append(std::to_string(action.number));
          break;
        case ActionKind::kReturnLease:
          text.append("return lease ").append(std::to_string(action.number));
          break;
        case ActionKind::kFreeStored:
          text.append("free at ").append(std::to_string(action.location.offset));
          if (action.number != 0) text += " everywhere";
          break;
        case ActionKind::kBring:
          text.append("bring ").append(std::to_string(action.location.offset));
          break;
        case ActionKind::kLetGo:
          text.append("let go of ").append(std::to_string(action.location.offset));
          break;
        case ActionKind::kMention:
          text.append("mention ").append(process(action.process)).append(" to ").append(process(action.id.owner));
          break;
        case ActionKind::kGiveBack:
          text.append("give back ")
              .append(std::to_string(action.number))
              .append(" of ")
              .append(process(action.process));
          text.append(" to ").append(process(action.id.owner));
          break;
        case ActionKind::kFetch:
          text.append("fetch from ").append(process(action.process));
          break;
        case ActionKind::kAskAgain:
          text.append("ask ").append(process(action.process)).append(" again");
          break;
        case ActionKind::kRunAgain:
          text.append("run ").append(action.task->arguments.view()).append(" again");
          break;
        case ActionKind::kSendValue:
          text.append(action.object && action.number == 0 ? "send value to " : "send loss to ");
          text.append(process(action.process));
          if (action.object) owner.Unhold(action.object, actions);
          break;
        case ActionKind::kResolved:
          text += "resolved";
          break;
      }
    }
    return text;
  }

  Owner owner;
  weft::core::Actions actions;
  std::map<std::string, uint64_t> handles;
  int64_t now = kMs;

 private:
  const Function* function_;
  uint32_t shape_;
};

std::string Text(const Object* object) { return std::string(object->value.bytes()); }

TEST(Owner, ATaskIsWishedForPushedAndResolved) {
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
  t.owner.Mention(mine, kSelf, t.actions);
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

TEST(Owner, AWishIsWithdrawnWhenNothingIsLeftToRun) {
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
  EXPECT_EQ(t.Actions(), "");  // the wish of the beginning still stands for b
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

TEST(Owner, AGrantOnAWorkerThatIsKnownToBeDeadRenewsTheWish) {
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
  // A return may arrive before the mention that it returns.
  t.owner.BorrowerMentioned(id, kWorker, -1, t.actions);
  t.Drop(a);
  EXPECT_NE(t.owner.Find(id), nullptr);
  t.owner.BorrowerMentioned(id, kWorker, 2, t.actions);
  EXPECT_NE(t.owner.Find(id), nullptr);
  t.owner.BorrowerMentioned(id, kWorker, -1, t.actions);
  EXPECT_EQ(t.owner.Find(id), nullptr);
}

TEST(Owner, ADeadBorrowerIsForgottenAlsoIfItIsMentionedLater) {
  Transcript t;
  Object* a = t.Put("value");
  ObjectId id = a->id;
  t.owner.BorrowerMentioned(id, kWorker, 1, t.actions);
  t.Drop(a);
  t.owner.ProcessDied(kWorker, "was killed", t.now, t.actions);
  EXPECT_EQ(t.owner.Find(id), nullptr);
  Object* b = t.Put("value");
  ObjectId other = b->id;
  t.owner.BorrowerMentioned(other, kWorker, 1, t.actions);
  t.Drop(b);
  EXPECT_EQ(t.owner.Find(other), nullptr);
}

TEST(Owner, WhatATaskTakesAlongIsMentionedAndTakenBackWithIt) {
  Transcript t;
  Object* borrowed = t.owner.Receive({kThird, 5}, 1);
  t.Submit("a", {}, {borrowed});
  t.Actions();
  t.Grant(kWorker, 7);
  EXPECT_EQ(t.Actions(), "mention 2 to 4; push a to 2");
  t.Reply(kWorker, "a", ReplyKind::kHandedBack);
  EXPECT_EQ(t.Actions(), "give back 1 of 2 to 4; mention 2 to 4; push a to 2");
  t.Reply(kWorker, "a");
  EXPECT_EQ(t.Actions(), "");  // the worker has taken the mention over
  t.Drop(borrowed);
  EXPECT_EQ(t.Actions(), "give back 1 of 1 to 4");
}

TEST(Owner, AMentionIsTakenBackAlsoForADeadWorker) {
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
  t.owner.BorrowerMentioned(id, kOther, 1, t.actions);
  t.owner.ValueAsked(id, kOther, t.actions);
  t.owner.BorrowerMentioned(id, kOther, -1, t.actions);
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
  EXPECT_NE(t.owner.Find(inner_id), nullptr);  // 2 was mentioned for it
  t.owner.BorrowerMentioned(inner_id, kWorker, -1, t.actions);
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

// Processes of this test are on no node in particular, the number 0; these are elsewhere.
constexpr ProcessId kFarWorker{uint64_t{2} << 32 | 1}, kFarOther{uint64_t{2} << 32 | 2};
constexpr Location kFar{{kFarWorker.value}, 640, 100'000, 77};
constexpr Location kCopy{{9}, 1280, 100'000, 5};

void ReplyStored(Transcript& t, ProcessId worker, const std::string& name, const Location& location) {
  t.owner.Replied(worker, t.handles.at(name), ReplyKind::kValues, "",
                  {{.kind = ValueKind::kStored, .bytes = {}, .location = location, .contained = {}}}, t.now, t.actions);
}

TEST(OwnerElsewhere, AResultOfAnotherNodeIsBroughtWhenSomebodyLooksAtIt) {
  Transcript t;
  Object* a = t.Submit("a");
  Object* b = t.Submit("b", {a});
  t.Grant(kFarWorker, 7);
  t.Actions();
  ReplyStored(t, kFarWorker, "a", kFar);
  EXPECT_TRUE(a->resolved());
  EXPECT_FALSE(a->here());
  EXPECT_FALSE(a->settled());
  EXPECT_EQ(t.Actions(), "") << "nobody looks at it; the task that takes it was pushed behind";
  ++a->waiters;
  t.owner.WantHere(a, t.actions);
  t.owner.WantHere(a, t.actions);
  EXPECT_EQ(t.Actions(), "bring 640");
  t.owner.Brought(a, kFar, kCopy, t.actions);
  EXPECT_EQ(t.Actions(), "resolved");
  EXPECT_TRUE(a->here());
  EXPECT_EQ(a->copy->place, kCopy);
  EXPECT_EQ(a->value.location(), kFar) << "others are told where it lies";
  --a->waiters;
  t.Drop(a);
  EXPECT_EQ(t.Actions(), "") << "a task takes it";
  t.Reply(kFarWorker, "b");
  EXPECT_EQ(t.Actions(), "free at 640; let go of 640");
  t.Drop(b);
}

TEST(OwnerElsewhere, WhatIsAwaitedIsBroughtAsSoonAsItIsKnownWhere) {
  Transcript t;
  Object* a = t.Submit("a");
  t.Grant(kFarWorker, 7);
  t.Actions();
  ++a->callbacks;
  t.owner.WantHere(a, t.actions);
  EXPECT_EQ(t.Actions(), "");
  ReplyStored(t, kFarWorker, "a", kFar);
  EXPECT_EQ(t.Actions(), "bring 640") << "and nobody is called yet";
  t.owner.Brought(a, kFar, kCopy, t.actions);
  EXPECT_EQ(t.Actions(), "resolved");
  --a->callbacks;
  t.Drop(a);
  EXPECT_EQ(t.Actions(), "free at 640; let go of 640");
}

TEST(OwnerElsewhere, WhatIsLostIsAskedForAgainByTheNextWhoWantsIt) {
  Transcript t;
  const std::string error = "ObjectLostError\ngone";
  Object* a = t.owner.Receive({kFarOther, 3}, 1);
  ++a->waiters;
  t.owner.WantHere(a, t.actions);
  EXPECT_EQ(t.Actions(), "fetch from " + std::to_string(kFarOther.value));
  t.owner.ValueReceived(a->id, {.kind = ValueKind::kStored, .bytes = {}, .location = kFar, .contained = {}}, t.actions);
  EXPECT_EQ(t.Actions(), "bring 640");
  t.owner.NotBrought(a, kFar, &error, false, t.actions);
  EXPECT_EQ(t.Actions(), "resolved");
  EXPECT_TRUE(a->settled());
  EXPECT_FALSE(a->here());
  t.owner.WantHere(a, t.actions);
  EXPECT_EQ(t.Actions(), "bring 640");
  EXPECT_FALSE(a->settled());
  t.owner.Brought(a, kFar, kCopy, t.actions);
  EXPECT_TRUE(a->here());
  --a->waiters;
  t.Actions();
  t.Drop(a);
  EXPECT_EQ(t.Actions(), "give back 1 of 1 to " + std::to_string(kFarOther.value) + "; let go of 640");
}

TEST(OwnerElsewhere, WhatNobodyWantsAnyMoreIsNotBrought) {
  Transcript t;
  Object* a = t.Submit("a");
  t.Grant(kFarWorker, 7);
  t.Actions();
  t.owner.WantHere(a, t.actions);
  t.Drop(a);
  ReplyStored(t, kFarWorker, "a", kFar);
  EXPECT_EQ(t.Actions(), "free at 640");
}

TEST(OwnerElsewhere, ACopyThatCameWithATaskServesGetToo) {
  Transcript t;
  Object* a = t.owner.Receive({kFarOther, 3}, 1);
  t.owner.CameWithTask(a, kFar, kCopy);
  EXPECT_FALSE(a->resolved());
  t.owner.WantHere(a, t.actions);
  EXPECT_EQ(t.Actions(), "fetch from " + std::to_string(kFarOther.value));
  t.owner.ValueReceived(a->id, {.kind = ValueKind::kStored, .bytes = {}, .location = kFar, .contained = {}}, t.actions);
  EXPECT_EQ(t.Actions(), "");
  EXPECT_TRUE(a->here());
  t.Drop(a);
  EXPECT_EQ(t.Actions(), "give back 1 of 1 to " + std::to_string(kFarOther.value) + "; let go of 640");
}

TEST(OwnerElsewhere, WhatOtherNodesHaveBorrowedIsFreedEverywhere) {
  for (bool by_mention : {false, true}) {
    Transcript t;
    Object* near = t.owner.NewOwned();
    Object* far = t.owner.NewOwned();
    t.owner.Resolve(near, ValueKind::kStored, {}, {{kSelf.value}, 64, 10, 1}, {}, t.actions);
    t.owner.Resolve(far, ValueKind::kStored, {}, {{kSelf.value}, 128, 10, 2}, {}, t.actions);
    if (by_mention) {
      t.owner.Mention(near, kOther, t.actions);
      t.owner.Mention(far, kFarOther, t.actions);
    } else {
      t.owner.BorrowerMentioned(near->id, kOther, 1, t.actions);
      t.owner.BorrowerMentioned(far->id, kFarOther, 1, t.actions);
    }
    const ObjectId near_id = near->id, far_id = far->id;
    t.Drop(near);
    t.Drop(far);
    EXPECT_EQ(t.Actions(), "");
    t.owner.BorrowerMentioned(near_id, kOther, -1, t.actions);
    t.owner.BorrowerMentioned(far_id, kFarOther, -1, t.actions);
    EXPECT_EQ(t.Actions(), "free at 64; free at 128 everywhere");
  }
}

// ---- lineage
// ------------------------------------------------------------------------------------------------------

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

}  // namespace
}  // namespace weft::core
