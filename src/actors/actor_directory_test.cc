#include "actors/actor_directory.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/random.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;

std::string Text(ObjectId id) { return ToString(id.owner) + "." + std::to_string(id.index); }

std::string Describe(const DirectoryAction& action) {
  struct Visitor {
    std::string operator()(const WantActor& a) { return "want " + Text(a.actor); }
    std::string operator()(const UnwantActor& a) { return "unwant " + Text(a.actor); }
    std::string operator()(const SettleActor& a) { return "settle " + Text(a.actor); }
    std::string operator()(const TellWatcher& a) {
      static const char* const kStates[] = {"", "pending", "starting", "alive", "restarting", "dead"};
      std::string text = "tell " + ToString(a.process) + ": " + Text(a.change.actor) + " is " + kStates[a.change.state];
      if (a.change.incarnation != 0) text += " #" + std::to_string(a.change.incarnation);
      if (a.change.worker) text += " on " + ToString(a.change.worker);
      if (a.open_channel) text += ", channel";
      for (const auto& [number, amount] : a.change.gpus) text += ", GPU " + std::to_string(number);
      if (!a.change.why.empty()) text += " (" + a.change.why + ")";
      if (!a.change.error.empty()) text += " [" + a.change.error + "]";
      return text;
    }
    std::string operator()(const AnswerCreator& a) {
      std::string text = "answer " + ToString(a.process) + " #" + std::to_string(a.answer.request) + ": ";
      if (!a.answer.error.empty()) return text + a.answer.error;
      return text + Text(a.answer.actor) + " " + a.answer.metadata;
    }
    std::string operator()(const AnswerList& a) {
      std::string text = "list " + ToString(a.process) + ":";
      for (const auto& [name_space, name] : a.answer.actors) text += " " + name_space + "/" + name;
      return text;
    }
    std::string operator()(const KillActorWorker& a) { return "kill " + ToString(a.worker); }
    std::string operator()(const LetWorkerLeave& a) { return "let " + ToString(a.worker) + " leave"; }
    std::string operator()(const FreeName& a) { return "free " + a.name_space + "/" + a.name; }
    std::string operator()(const RefuseSender& a) { return "refuse " + ToString(a.process) + ": " + a.why; }
  };
  return std::visit(Visitor{}, action);
}

class Transcript {
 public:
  Transcript() = default;
  explicit Transcript(ActorDirectory::Limits limits) : directory(limits) {}

  template <class Event>
  std::string operator()(const Event& event) {
    std::vector<DirectoryAction> actions;
    directory.Handle(event, actions);
    directory.CheckInvariants();
    std::string text;
    for (const auto& action : actions) {
      if (!text.empty()) text += "; ";
      text += Describe(action);
    }
    return text;
  }
  struct Options {
    int32_t max_restarts = 0;
    bool detached = false;
    std::string name;
    bool get_if_exists = false;
    uint64_t request = 0;
  };
  std::string Create(uint64_t creator, uint64_t index, const Options& options) {
    CreateActor message;
    message.request = options.request;
    message.actor = Id(creator, index);
    message.max_restarts = options.max_restarts;
    message.detached = options.detached;
    message.get_if_exists = options.get_if_exists;
    message.name = options.name;
    message.name_space = "ns";
    message.class_name = "Counter";
    message.metadata = "meta" + std::to_string(index);
    return (*this)(ActorCreated{ProcessId{creator}, message});
  }
  std::string Create(uint64_t creator, uint64_t index) { return Create(creator, index, Options()); }
  std::string Place(uint64_t creator, uint64_t index, uint64_t worker) {
    return (*this)(ActorPlaced{Id(creator, index), ProcessId{worker}, {}});
  }
  std::string Construct(uint64_t worker, uint64_t creator, uint64_t index, bool ok = true) {
    return (*this)(ActorConstructedReported{ProcessId{worker}, Id(creator, index), ok, ok ? "" : "boom", now});
  }
  std::string Watch(uint64_t process, uint64_t creator, uint64_t index, bool owner_lives = true) {
    return (*this)(ActorWatched{ProcessId{process}, Id(creator, index), owner_lives});
  }
  std::string Kill(uint64_t process, uint64_t creator, uint64_t index, bool no_restart = true) {
    return (*this)(ActorKilled{ProcessId{process}, Id(creator, index), no_restart, true});
  }
  std::string Release(uint64_t process, uint64_t creator, uint64_t index) {
    return (*this)(ActorReleased{ProcessId{process}, Id(creator, index)});
  }
  std::string End(uint64_t process, const std::string& how = "killed by signal 9 (SIGKILL)") {
    return (*this)(ProcessEnded{ProcessId{process}, static_cast<int32_t>(1000 + process), how, now});
  }
  std::string Lookup(uint64_t process, const std::string& name) {
    return (*this)(ActorLookedUp{ProcessId{process}, LookupActor{7, name, "ns"}});
  }
  // An actor that is alive on this worker.
  void Live(uint64_t creator, uint64_t index, uint64_t worker, const Options& options) {
    Create(creator, index, options);
    Place(creator, index, worker);
    Construct(worker, creator, index);
    ASSERT_EQ(directory.StateOf(Id(creator, index)), ActorState::kAlive);
  }
  void Live(uint64_t creator, uint64_t index, uint64_t worker) { Live(creator, index, worker, Options()); }
  static ObjectId Id(uint64_t creator, uint64_t index) { return ObjectId{ProcessId{creator}, index}; }

  ActorDirectory directory;
  int64_t now = 0;
};
using Options = Transcript::Options;

TEST(ActorDirectory, AnActorIsPlacedConstructedAndReleased) {
  Transcript t;
  EXPECT_EQ(t.Create(1, 5), "want 1.5");
  EXPECT_EQ(t(ActorPlaced{t.Id(1, 5), ProcessId{2}, {{3, kResourceUnit}}}),
            "tell 1: 1.5 is starting #1 on 2, channel, GPU 3");
  EXPECT_EQ(t.Construct(2, 1, 5), "settle 1.5; tell 1: 1.5 is alive #1 on 2, channel, GPU 3");
  EXPECT_EQ(t.Construct(2, 1, 5), "");  // once is enough
  EXPECT_EQ(t.Release(1, 1, 5), "let 2 leave");
  EXPECT_EQ(t.Release(1, 1, 5), "");
  EXPECT_EQ(t.End(2, "exited with code 0"),
            "tell 1: 1.5 is dead #1 (actor Counter (pid 1002) ended because no handle to it was left)");
  EXPECT_EQ(t.directory.living(), 0u);
}

TEST(ActorDirectory, WatchersAreToldAtOnceAndOfEveryChange) {
  Transcript t;
  t.Create(1, 5);
  EXPECT_EQ(t.Watch(8, 1, 5), "tell 8: 1.5 is pending");
  EXPECT_EQ(t.Place(1, 5, 2), "tell 1: 1.5 is starting #1 on 2, channel; tell 8: 1.5 is starting #1 on 2, channel");
  EXPECT_EQ(t.Watch(9, 1, 5), "tell 9: 1.5 is starting #1 on 2, channel");
  EXPECT_EQ(t.Watch(9, 1, 5), "tell 9: 1.5 is starting #1 on 2, channel");
  EXPECT_EQ(t.End(8), "");
  EXPECT_EQ(t.Construct(2, 1, 5),
            "settle 1.5; tell 1: 1.5 is alive #1 on 2, channel; tell 9: 1.5 is alive #1 on 2, channel");
  EXPECT_EQ(t.End(2),
            "tell 1: 1.5 is dead #1 (actor Counter (pid 1002) was killed by signal 9 (SIGKILL)); "
            "tell 9: 1.5 is dead #1 (actor Counter (pid 1002) was killed by signal 9 (SIGKILL))");
  EXPECT_EQ(t.Watch(9, 1, 5), "tell 9: 1.5 is dead #1 (actor Counter (pid 1002) was killed by signal 9 (SIGKILL))");
}

TEST(ActorDirectory, AFailedConstructorIsFinal) {
  Transcript t;
  t.Create(1, 5, {.max_restarts = -1, .name = "a"});
  t.Place(1, 5, 2);
  EXPECT_EQ(t.Construct(2, 1, 5, false),
            "let 2 leave; free ns/a; tell 1: 1.5 is dead #1 (the constructor of actor Counter \"a\" raised an "
            "exception) [boom]");
  EXPECT_EQ(t.End(2), "");
  EXPECT_EQ(t.Watch(9, 1, 5),
            "tell 9: 1.5 is dead #1 (the constructor of actor Counter \"a\" raised an exception) [boom]");
  EXPECT_EQ(t.Create(1, 6, {.name = "a"}), "want 1.6");
}

TEST(ActorDirectory, InAClusterTheHeadSaysWhoseTheNameIs) {
  Transcript t;
  CreateActor message;
  message.request = 3;
  message.actor = t.Id(1, 5);
  message.name = "a";
  message.class_name = "Counter";
  EXPECT_EQ(t.Watch(9, 1, 5), "");
  EXPECT_EQ(t(ActorNameRefused{{ProcessId{1}, message}, {}, "", "the name is taken"}),
            "answer 1 #3: an actor of class Counter cannot be created: the name is taken; "
            "tell 1: 1.5 is dead (an actor of class Counter cannot be created: the name is taken); "
            "tell 9: 1.5 is dead (an actor of class Counter cannot be created: the name is taken)");
  message.actor = t.Id(1, 6);
  EXPECT_EQ(t(ActorNameRefused{{ProcessId{1}, message}, t.Id(8, 2), "meta", ""}), "answer 1 #3: 8.2 meta");
  EXPECT_EQ(t.directory.living(), 0u);
  EXPECT_EQ(t(ActorNameRefused{{ProcessId{1}, message}, t.Id(8, 2), "meta", ""}),
            "refuse 1: created an actor that cannot be");
  EXPECT_EQ(t(ActorNameRefused{{ProcessId{2}, message}, {}, "", "no"}), "refuse 2: created an actor that cannot be");
}

ActorRestored Restored(uint64_t index, uint32_t incarnation, int32_t restarts_left) {
  ActorRestored restored;
  restored.message.actor = Transcript::Id(1, index);
  restored.message.name = "a" + std::to_string(index);
  restored.message.name_space = "ns";
  restored.message.class_name = "Counter";
  restored.message.metadata = "meta";
  restored.incarnation = incarnation;
  restored.restarts_left = restarts_left;
  return restored;
}

TEST(ActorDirectory, ARestoredActorThatIsFoundHasNeverBeenAway) {
  Transcript t;
  EXPECT_EQ(t(Restored(5, 3, 0)), "");
  EXPECT_EQ(t(Restored(5, 3, 0)), "");
  EXPECT_EQ(t.Watch(8, 1, 5), "") << "nothing is known yet, and nothing may have happened";
  EXPECT_EQ(t.Lookup(8, "a5"), "answer 8 #7: 1.5 meta");
  EXPECT_EQ(t.directory.Awaited(), std::vector<ObjectId>{t.Id(1, 5)});
  EXPECT_EQ(t(ActorFound{t.Id(1, 5), 3, ProcessId{2}, {}, true, 0}), "tell 8: 1.5 is alive #3 on 2, channel");
  EXPECT_EQ(t(ActorFound{t.Id(1, 5), 3, ProcessId{4}, {}, true, 0}), "kill 4") << "one lives already";
  EXPECT_EQ(t(ActorMissed{t.Id(1, 5), "was lost", 0}), "");
  const std::string dead =
      "1.5 is dead #3 (actor Counter \"a5\" (pid 1002) was killed by signal 9 (SIGKILL); it was restarted 2 times, as "
      "often as max_restarts allows)";
  EXPECT_EQ(t.End(2), "free ns/a5; tell 1: " + dead + "; tell 8: " + dead);
}

TEST(ActorDirectory, ARestoredActorThatIsMissedIsRestartedByItsRules) {
  Transcript t;
  t(Restored(5, 0, 0));  // it never had a worker
  t(Restored(6, 2, 1));
  t(Restored(7, 2, 0));
  t.Watch(8, 1, 6);
  EXPECT_EQ(t(ActorMissed{t.Id(1, 5), "was lost", 0}), "want 1.5");
  EXPECT_EQ(t(ActorMissed{t.Id(1, 6), "was lost", 0}),
            "tell 1: 1.6 is restarting #2 (actor Counter \"a6\" was lost); "
            "tell 8: 1.6 is restarting #2 (actor Counter \"a6\" was lost); want 1.6");
  EXPECT_EQ(t.Place(1, 6, 2), "tell 1: 1.6 is starting #3 on 2, channel; tell 8: 1.6 is starting #3 on 2, channel");
  EXPECT_EQ(t(ActorMissed{t.Id(1, 7), "was lost", 0}),
            "free ns/a7; unwant 1.7; tell 1: 1.7 is dead #2 (actor Counter \"a7\" was lost; it was restarted 1 time, "
            "as often as "
            "max_restarts allows)");
}

TEST(ActorDirectory, ARestoredActorOfAnotherLifeOrThatWasKilledIsNotTakenBack) {
  Transcript t;
  t(Restored(5, 3, 0));
  EXPECT_EQ(t(ActorFound{t.Id(1, 5), 2, ProcessId{2}, {}, true, 0}), "kill 2");
  EXPECT_EQ(t.Place(1, 5, 6), "let 6 leave") << "it may still live elsewhere";
  EXPECT_EQ(t.Kill(8, 1, 5), "free ns/a5; tell 1: 1.5 is dead #3 (actor Counter \"a5\" was killed on request)");
  EXPECT_EQ(t(ActorFound{t.Id(1, 5), 3, ProcessId{2}, {}, true, 0}), "kill 2");
}

TEST(ActorDirectory, AnActorThatCannotBeConstructedSaysWhy) {
  Transcript t;
  t.Create(1, 5, {.name = "a"});
  EXPECT_EQ(t(ActorKilled{ProcessId{1}, t.Id(1, 5), true, true, "cannot be constructed: no", "boom"}),
            "free ns/a; unwant 1.5; tell 1: 1.5 is dead (actor Counter \"a\" cannot be constructed: no) [boom]");
  // Its worker may be there by then.
  t.Create(1, 6, {});
  t.Place(1, 6, 2);
  EXPECT_EQ(t(ActorKilled{ProcessId{1}, t.Id(1, 6), true, true, "cannot be constructed: no", "boom"}), "kill 2");
  EXPECT_EQ(t.End(2), "tell 1: 1.6 is dead #1 (actor Counter (pid 1002) cannot be constructed: no) [boom]");
}

TEST(ActorDirectory, WhatTheSchedulerRefusesIsDead) {
  Transcript t;
  t.Create(1, 5);
  EXPECT_EQ(t(ActorRefused{t.Id(1, 5), "no GPUs"}),
            "unwant 1.5; tell 1: 1.5 is dead (actor Counter cannot be placed: no GPUs)");
  std::vector<DirectoryAction> actions;
  t.directory.Handle(ActorWatched{ProcessId{9}, t.Id(1, 5), true}, actions);
  EXPECT_EQ(std::get<TellWatcher>(actions.at(0)).change.refused, 1);
}

TEST(ActorDirectory, ACrashedActorIsRestartedAsOftenAsAllowed) {
  Transcript t;
  t.Live(1, 5, 2, {.max_restarts = 2});
  EXPECT_EQ(t.End(2),
            "tell 1: 1.5 is restarting #1 (actor Counter (pid 1002) was killed by signal 9 (SIGKILL)); "
            "want 1.5");
  EXPECT_EQ(t.Watch(9, 1, 5), "tell 9: 1.5 is restarting #1");
  t.Place(1, 5, 3);
  t.Construct(3, 1, 5);
  // The second one comes quickly after the first, so there is a pause.
  EXPECT_EQ(t.End(3, "exited with code 3"),
            "tell 1: 1.5 is restarting #2 (actor Counter (pid 1003) exited with code 3); "
            "tell 9: 1.5 is restarting #2 (actor Counter (pid 1003) exited with code 3)");
  EXPECT_EQ(t.directory.next_wakeup_ns(), 100 * kMs);
  EXPECT_EQ(t(DirectoryTicked{99 * kMs}), "");
  EXPECT_EQ(t(DirectoryTicked{100 * kMs}), "want 1.5");
  EXPECT_EQ(t.directory.next_wakeup_ns(), INT64_MAX);
  EXPECT_EQ(t.Place(1, 5, 4), "tell 1: 1.5 is starting #3 on 4, channel; tell 9: 1.5 is starting #3 on 4, channel");
  EXPECT_EQ(t.End(9), "");
  EXPECT_EQ(t.End(4),
            "tell 1: 1.5 is dead #3 (actor Counter (pid 1004) was killed by signal 9 (SIGKILL); it was "
            "restarted 2 times, as often as max_restarts allows)");
}

TEST(ActorDirectory, PausesGrowWithQuickDeathsAndAreForgottenAfterALongLife) {
  Transcript t;
  t.Live(1, 5, 2, {.max_restarts = -1});
  uint64_t worker = 2;
  for (int64_t deaths = 1; deaths <= 60; ++deaths) {
    t.End(worker);
    int64_t pause = std::min<int64_t>(5000, 100 * (deaths - 1)) * kMs;
    EXPECT_EQ(t.directory.next_wakeup_ns(), pause == 0 ? INT64_MAX : t.now + pause) << deaths;
    t.now += pause;
    t(DirectoryTicked{t.now});
    ++worker;
    t.Place(1, 5, worker);
    if (deaths % 2 == 0) t.Construct(worker, 1, 5);  // also those that die in the constructor
  }
  t.now += 10'000 * kMs;
  EXPECT_NE(t.End(worker).find("; want 1.5"), std::string::npos);
}

TEST(ActorDirectory, AKillEndsItAndFreesTheNameAtOnce) {
  Transcript t;
  t.Live(1, 5, 2, {.max_restarts = 5, .name = "a"});
  EXPECT_EQ(t.Kill(9, 1, 5), "free ns/a; kill 2");
  EXPECT_EQ(t.Kill(9, 1, 5), "kill 2");
  EXPECT_EQ(t.Create(1, 6, {.name = "a"}), "want 1.6");
  EXPECT_EQ(t.End(2), "tell 1: 1.5 is dead #1 (actor Counter \"a\" (pid 1002) was killed on request)");
  EXPECT_EQ(t.Lookup(1, "a"), "answer 1 #7: 1.6 meta6");
}

TEST(ActorDirectory, AKillThatAllowsRestartsIsACrash) {
  Transcript t;
  t.Live(1, 5, 2, {.max_restarts = 1, .name = "a"});
  EXPECT_EQ(t.Kill(1, 1, 5, false), "kill 2");
  EXPECT_EQ(t.Lookup(1, "a"), "answer 1 #7: 1.5 meta5");
  EXPECT_EQ(t.End(2), "tell 1: 1.5 is restarting #1 (actor Counter \"a\" (pid 1002) was killed on request); want 1.5");
  EXPECT_EQ(t.Kill(1, 1, 5, false), "");  // it restarts already
  EXPECT_EQ(t.Kill(1, 1, 5),
            "free ns/a; unwant 1.5; tell 1: 1.5 is dead #1 (actor Counter \"a\" was killed on request)");
}

TEST(ActorDirectory, WithoutAWorkerAnActorEndsAtOnce) {
  Transcript t;
  t.Create(1, 5);
  EXPECT_EQ(t.Release(1, 1, 5),
            "unwant 1.5; tell 1: 1.5 is dead (actor Counter ended because no handle to it was left)");
  t.Create(1, 6);
  EXPECT_EQ(t.Kill(1, 1, 6), "unwant 1.6; tell 1: 1.6 is dead (actor Counter was killed on request)");
  // During the pause before a restart the scheduler knows nothing of it.
  t.Live(1, 7, 2, {.max_restarts = 5});
  t.End(2);
  t.Place(1, 7, 3);
  t.End(3);
  EXPECT_NE(t.directory.next_wakeup_ns(), INT64_MAX);
  EXPECT_EQ(t.Release(1, 1, 7), "tell 1: 1.7 is dead #2 (actor Counter ended because no handle to it was left)");
  EXPECT_EQ(t.directory.next_wakeup_ns(), INT64_MAX);
}

TEST(ActorDirectory, ADeferredActorWaitsForItsCreatorsWord) {
  Transcript t;
  CreateActor message;
  message.deferred = 1;
  for (uint64_t index : {5, 6}) {
    message.actor = t.Id(1, index);
    EXPECT_EQ(t(ActorCreated{ProcessId{1}, message}), "");
  }
  EXPECT_EQ(t(ActorArgumentsCame{ProcessId{2}, t.Id(1, 5)}), "refuse 2: spoke for an actor that it did not create");
  EXPECT_EQ(t(ActorArgumentsCame{ProcessId{1}, t.Id(1, 5)}), "want 1.5");
  EXPECT_EQ(t(ActorArgumentsCame{ProcessId{1}, t.Id(1, 5)}), "");
  EXPECT_EQ(t.Kill(1, 1, 6), "tell 1: 1.6 is dead (actor without a class was killed on request)");
  EXPECT_EQ(t(ActorArgumentsCame{ProcessId{1}, t.Id(1, 6)}), "");
}

TEST(ActorDirectory, AWorkerThatComesTooLateIsLetGo) {
  Transcript t;
  t.Create(1, 5);
  t.Kill(1, 1, 5);
  EXPECT_EQ(t.Place(1, 5, 2), "let 2 leave");
  EXPECT_EQ(t.End(2), "");
}

TEST(ActorDirectory, AnActorThatExitsIsNotRestarted) {
  Transcript t;
  t.Live(1, 5, 2, {.max_restarts = -1, .name = "a"});
  EXPECT_EQ(t(ActorExitingReported{ProcessId{2}, t.Id(1, 5)}), "free ns/a");
  EXPECT_NE(t.Lookup(1, "a").find("there is no living actor named \"a\""), std::string::npos);
  EXPECT_EQ(t.End(2, "exited with code 0"),
            "tell 1: 1.5 is dead #1 (actor Counter \"a\" (pid 1002) ended itself (exit_actor))");
}

TEST(ActorDirectory, ActorsEndWithTheirCreatorUnlessDetached) {
  Transcript t;
  t.Live(4, 5, 2);
  t.Live(4, 6, 3, {.max_restarts = 5, .detached = true, .name = "d"});
  t.Create(4, 7);
  t.Create(4, 8, {.detached = true});
  for (uint64_t index = 5; index <= 8; ++index) t.Watch(1, 4, index);
  EXPECT_EQ(t.End(4, "exited with code 1"),
            "kill 2; "
            "unwant 4.7; tell 1: 4.7 is dead (actor Counter was ended because its creator, process 4 (pid 1004), "
            "exited with code 1); "
            "unwant 4.8; tell 1: 4.8 is dead (actor Counter was ended because its creator, process 4 (pid 1004), "
            "exited with code 1)");
  EXPECT_EQ(t.End(2),
            "tell 1: 4.5 is dead #1 (actor Counter (pid 1002) was ended because its creator, process 4 "
            "(pid 1004), exited with code 1)");
  EXPECT_EQ(t.Lookup(1, "d"), "answer 1 #7: 4.6 meta6");
  EXPECT_EQ(t.Watch(1, 4, 6, false), "tell 1: 4.6 is alive #1 on 3, channel");
  EXPECT_EQ(t.End(3),
            "free ns/d; tell 1: 4.6 is dead #1 (actor Counter \"d\" (pid 1003) was killed by signal 9 (SIGKILL); it "
            "cannot be restarted because its creator has ended)");
}

TEST(ActorDirectory, AKeptActorIsRestartedWithoutItsCreator) {
  Transcript t;
  t.Live(4, 5, 2, {.max_restarts = 2, .detached = true});
  t.Watch(1, 4, 5);
  EXPECT_EQ(t(ActorKept{ProcessId{1}, t.Id(4, 5)}), "");
  EXPECT_EQ(t.End(4), "");  // it is alive
  EXPECT_EQ(t.End(2),
            "tell 1: 4.5 is restarting #1 (actor Counter (pid 1002) was killed by signal 9 (SIGKILL)); want 4.5");
  std::vector<DirectoryAction> actions;
  t.directory.Handle(ActorPlaced{t.Id(4, 5), ProcessId{3}, {}}, actions);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<TellWatcher>(actions[0]).change.construct, 1);
  t.Construct(3, 4, 5);
  EXPECT_EQ(t.Watch(9, 4, 5, false), "tell 9: 4.5 is alive #2 on 3, channel");
}

TEST(ActorDirectory, WithACreatorTheKeeperDoesNotConstruct) {
  Transcript t;
  t.Create(4, 5, {.max_restarts = 2, .detached = true});
  t.Watch(1, 4, 5);
  t(ActorKept{ProcessId{1}, t.Id(4, 5)});
  std::vector<DirectoryAction> actions;
  t.directory.Handle(ActorPlaced{t.Id(4, 5), ProcessId{3}, {}}, actions);
  ASSERT_EQ(actions.size(), 2u);
  for (const auto& action : actions) {
    const auto& tell = std::get<TellWatcher>(action);
    EXPECT_EQ(tell.change.construct, tell.process == ProcessId{4} ? 1 : 0);
  }
  // Its creator dies before it is alive: another worker, and the keeper constructs.
  EXPECT_EQ(t.End(4), "kill 3");
  EXPECT_EQ(t.End(3),
            "tell 1: 4.5 is restarting #1 (actor Counter (pid 1003) was killed by signal 9 (SIGKILL)); want 4.5");
  EXPECT_EQ(t.End(1), "unwant 4.5");
  EXPECT_EQ(t.directory.living(), 0u);
}

TEST(ActorDirectory, ADetachedActorIgnoresItsRelease) {
  Transcript t;
  t.Live(1, 5, 2, {.detached = true, .name = "d"});
  EXPECT_EQ(t.Release(1, 1, 5), "");
  EXPECT_EQ(t.Lookup(9, "d"), "answer 9 #7: 1.5 meta5");
}

TEST(ActorDirectory, AnActorThatIsTheCreatorOfOthersTakesThemAlong) {
  Transcript t;
  t.Live(1, 5, 2);
  t.Live(2, 1, 3);
  EXPECT_EQ(t.End(2), "tell 1: 1.5 is dead #1 (actor Counter (pid 1002) was killed by signal 9 (SIGKILL)); kill 3");
  EXPECT_EQ(t.End(3), "");
  EXPECT_EQ(t.directory.living(), 0u);
}

TEST(ActorDirectory, NamesAreUniqueAmongTheLiving) {
  Transcript t;
  EXPECT_EQ(t.Create(1, 5, {.name = "a", .request = 1}), "answer 1 #1: 1.5 meta5; want 1.5");
  std::string taken = t.Create(2, 1, {.name = "a", .request = 2});
  EXPECT_NE(taken.find("answer 2 #2: an actor of class Counter cannot be created: the name \"a\" is taken in namespace "
                       "\"ns\" by a living actor Counter"),
            std::string::npos)
      << taken;
  EXPECT_NE(taken.find("tell 2: 2.1 is dead"), std::string::npos) << taken;
  EXPECT_EQ(t.Create(2, 2, {.name = "a", .get_if_exists = true, .request = 3}), "answer 2 #3: 1.5 meta5");
  EXPECT_EQ(t.Release(2, 2, 2), "");  // of the handle that was not needed
  EXPECT_EQ(t.Create(2, 3, {.name = "b", .get_if_exists = true, .request = 4}), "answer 2 #4: 2.3 meta3; want 2.3");
  EXPECT_EQ(t(ActorsListed{ProcessId{9}, ListActors{1, 0, "ns"}}), "list 9: ns/a ns/b");
  EXPECT_EQ(t(ActorsListed{ProcessId{9}, ListActors{1, 0, "other"}}), "list 9:");
  EXPECT_EQ(t(ActorsListed{ProcessId{9}, ListActors{1, 1, ""}}), "list 9: ns/a ns/b");
  t.Kill(1, 1, 5);
  EXPECT_EQ(t(ActorsListed{ProcessId{9}, ListActors{1, 1, ""}}), "list 9: ns/b");
}

TEST(ActorDirectory, OnlyWhoMaySpeaksForAnActor) {
  Transcript t;
  EXPECT_EQ(t.directory.living(), 0u);
  CreateActor others;
  others.actor = t.Id(1, 5);
  EXPECT_EQ(t(ActorCreated{ProcessId{2}, others}), "refuse 2: created an actor that would be another process's");
  t.Live(1, 5, 2);
  EXPECT_EQ(t.Create(1, 5), "refuse 1: created an actor that cannot be");
  EXPECT_EQ(t.Create(1, 6, {.max_restarts = -2}), "refuse 1: created an actor that cannot be");
  EXPECT_EQ(t.Release(3, 1, 5), "refuse 3: released an actor that it did not create");
  EXPECT_EQ(t.Construct(3, 1, 5), "refuse 3: spoke for an actor that it does not run");
  EXPECT_EQ(t(ActorExitingReported{ProcessId{1}, t.Id(1, 5)}), "refuse 1: spoke for an actor that it does not run");
  EXPECT_EQ(t.Construct(3, 1, 77), "refuse 3: spoke for an actor that it does not run");
  t.End(2);
  EXPECT_EQ(t.Create(1, 5), "refuse 1: created an actor that cannot be");  // an id is used once
}

TEST(ActorDirectory, WhatIsTooLargeIsRefusedWithAReason) {
  Transcript t(ActorDirectory::Limits{.actors = 2, .metadata_bytes = 2 << 20});
  EXPECT_NE(t.Create(1, 1, {.name = std::string(1025, 'n'), .request = 1}).find("longer than 1,024 bytes"),
            std::string::npos);
  CreateActor large;
  large.actor = t.Id(1, 2);
  large.metadata = std::string((1 << 20) + 1, 'm');
  EXPECT_NE(t(ActorCreated{ProcessId{1}, large}).find("larger than 1 MB"), std::string::npos);
  large.actor = t.Id(1, 3);
  large.metadata.resize(1 << 20);
  EXPECT_EQ(t(ActorCreated{ProcessId{1}, large}), "want 1.3");
  t.Create(1, 4);
  EXPECT_NE(t.Create(1, 5).find("tell 1: 1.5 is dead (an actor of class Counter cannot be created: this session has 2 "
                                "actors already"),
            std::string::npos);
  EXPECT_EQ(t.directory.living(), 2u);
}

TEST(ActorDirectory, AQuestionMayComeBeforeTheCreation) {
  Transcript t;
  EXPECT_EQ(t.Watch(8, 1, 5), "");
  EXPECT_EQ(t.Watch(9, 1, 5), "");
  t.End(9);
  EXPECT_EQ(t.Create(1, 5), "want 1.5; tell 8: 1.5 is pending");
  EXPECT_EQ(t.Watch(8, 1, 6), "");
  EXPECT_EQ(t.Kill(8, 1, 6), "");
  EXPECT_EQ(t.Create(1, 6),
            "want 1.6; tell 8: 1.6 is pending; "
            "unwant 1.6; tell 1: 1.6 is dead (actor Counter was killed on request); "
            "tell 8: 1.6 is dead (actor Counter was killed on request)");
  EXPECT_EQ(t.Watch(8, 1, 7), "");
  std::string end = t.End(1);
  EXPECT_NE(end.find("tell 8: 1.7 is dead (no such actor: its creator ended before it was created)"), std::string::npos)
      << end;
}

TEST(ActorDirectory, TheDeadAreForgottenInTheEnd) {
  Transcript t(ActorDirectory::Limits{.remembered_dead = 10, .early = 2});
  for (uint64_t index = 1; index <= 30; ++index) {
    t.Create(1, index);
    t.Kill(1, 1, index);
  }
  EXPECT_EQ(t.directory.remembered(), 10u);
  EXPECT_EQ(t.Watch(8, 1, 30), "tell 8: 1.30 is dead (actor Counter was killed on request)");
  EXPECT_NE(t.Watch(8, 1, 3).find("tell 8: 1.3 is dead (no such actor"), std::string::npos);
  EXPECT_NE(t.Watch(8, 6, 1, false).find("tell 8: 6.1 is dead (no such actor"), std::string::npos);
  // Ids that never come cannot fill the memory.
  EXPECT_EQ(t.Watch(8, 1, 1001), "");
  EXPECT_EQ(t.Watch(8, 1, 1002), "");
  EXPECT_NE(t.Watch(8, 1, 1003).find("tell 8: 1.1003 is dead (no such actor"), std::string::npos);
}

// Processes, a scheduler and watchers that do random but possible things. Whatever happens: the tables agree, a watcher
// hears of states in a possible order, and in the end of every actor's death.
class RandomSession {
 public:
  explicit RandomSession(uint64_t seed)
      : random_(seed), directory_(ActorDirectory::Limits{.actors = 12, .remembered_dead = 20, .early = 1000}) {
    processes_ = {1, 2, 3};  // the first only watches, to the end
  }

  void Step() {
    now_ += static_cast<int64_t>(random_.Below(200)) * kMs;
    Do(DirectoryTicked{now_});
    uint64_t process = Any(processes_);
    ObjectId actor{ProcessId{std::max<uint64_t>(2, Any(processes_))}, 1 + random_.Below(next_index_ + 2)};
    switch (random_.Below(11)) {
      case 0:
      case 1: {
        if (process == 1) break;
        CreateActor message;
        message.actor = ObjectId{ProcessId{process}, ++next_index_};
        message.max_restarts = static_cast<int32_t>(random_.Below(4)) - 1;
        message.detached = random_.Chance(20);
        message.deferred = random_.Chance(20);
        message.get_if_exists = random_.Chance(50);
        if (random_.Chance(40)) message.name = "name" + std::to_string(random_.Below(3));
        message.metadata = std::string(random_.Below(100), 'm');
        Do(ActorCreated{ProcessId{process}, message});
        break;
      }
      case 2:
        if (!wanted_.empty() && processes_.size() < 20) {
          ObjectId placed = wanted_.begin()->first;
          wanted_.erase(wanted_.begin());
          uint64_t worker = ++next_process_;
          processes_.insert(worker);
          Do(ActorPlaced{placed, ProcessId{worker}, {}});
        }
        break;
      case 3:
        if (!running_.empty()) {
          auto [worker, runs] = *running_.begin();
          Do(ActorConstructedReported{worker, runs, random_.Chance(80), "boom", now_});
        }
        break;
      case 4:
        Do(ActorKilled{ProcessId{process}, actor, random_.Chance(50), processes_.contains(actor.owner.value)});
        break;
      case 5:
        actor.owner = ProcessId{process};
        Do(ActorReleased{ProcessId{process}, actor});
        break;
      case 6:
        actor.owner = ProcessId{process};
        Do(ActorArgumentsCame{ProcessId{process}, actor});
        break;
      case 7:
        if (process > 3 || random_.Chance(5)) End(process);
        break;
      case 8:
        Do(ActorWatched{ProcessId{process}, actor, processes_.contains(actor.owner.value)});
        if (processes_.contains(process)) watched_.emplace(ProcessId{process}, actor);
        break;
      case 10:
        Do(ActorKept{ProcessId{1}, actor});
        break;
      case 9:
        if (!running_.empty()) Do(ActorExitingReported{running_.begin()->first, running_.begin()->second});
        break;
    }
  }
  void Finish() {
    while (processes_.size() > 1) End(*processes_.rbegin());
    // What process 1 keeps waits to be placed again.
    for (const ActorInfo& info : directory_.Describe()) {
      if (info.state == static_cast<uint8_t>(ActorState::kDead)) continue;
      EXPECT_NE(info.detached, 0);
      Do(ActorKilled{ProcessId{1}, info.actor, true, false});
    }
    EXPECT_EQ(directory_.living(), 0u);
    EXPECT_EQ(directory_.next_wakeup_ns(), INT64_MAX);
    for (const auto& [process, actor] : watched_) {
      if (process.value != 1 || told_dead_.contains({process, actor})) continue;
      ADD_FAILURE() << "process " << ToString(process) << " never heard of the end of " << Text(actor);
    }
  }

 private:
  uint64_t Any(const std::set<uint64_t>& set) {
    auto entry = set.begin();
    std::advance(entry, static_cast<long>(random_.Below(set.size())));
    return *entry;
  }
  void End(uint64_t process) {
    if (process == 1) return;
    processes_.erase(process);
    running_.erase(ProcessId{process});
    std::erase_if(wanted_, [&](const auto& entry) { return entry.second.value == process; });
    Do(ProcessEnded{ProcessId{process}, 1, "killed by signal 9 (SIGKILL)", now_});
  }
  template <class Event>
  void Do(const Event& event) {
    std::vector<DirectoryAction> actions;
    directory_.Handle(event, actions);
    directory_.CheckInvariants();
    for (const auto& action : actions) {
      if (auto* want = std::get_if<WantActor>(&action)) {
        EXPECT_TRUE(wanted_.emplace(want->actor, want->by).second) << "wanted twice";
        EXPECT_TRUE(processes_.contains(want->by.value)) << "nobody could construct it";
      } else if (auto* unwant = std::get_if<UnwantActor>(&action)) {
        wanted_.erase(unwant->actor);
      } else if (auto* leave = std::get_if<LetWorkerLeave>(&action)) {
        EXPECT_TRUE(processes_.contains(leave->worker.value));
      } else if (auto* tell = std::get_if<TellWatcher>(&action)) {
        const auto& change = tell->change;
        EXPECT_TRUE(processes_.contains(tell->process.value)) << "the dead are told nothing";
        bool runs = change.state == 2 || change.state == 3;
        EXPECT_EQ(tell->open_channel, runs);
        EXPECT_EQ(static_cast<bool>(change.worker), runs);
        EXPECT_EQ(change.why.empty(), change.state != 5 && (change.state != 4 || change.why.empty()));
        auto& incarnation = incarnations_[{tell->process, change.actor}];
        // Who asks again after the end may hear only that there is no such actor.
        bool again = told_dead_.contains({tell->process, change.actor});
        EXPECT_TRUE(again ? change.state == 5 : change.incarnation >= incarnation) << "incarnations only grow";
        incarnation = std::max(incarnation, change.incarnation);
        if (change.state == 2) running_[change.worker] = change.actor;
        if (change.state == 5) told_dead_.emplace(tell->process, change.actor);
      } else if (std::holds_alternative<RefuseSender>(action)) {
        ADD_FAILURE() << "nobody overstepped: " << Describe(action);
      }
    }
  }

  Random random_;
  ActorDirectory directory_;
  int64_t now_ = 0;
  uint64_t next_index_ = 0;
  uint64_t next_process_ = 3;
  std::set<uint64_t> processes_;
  std::map<ObjectId, ProcessId> wanted_;   // with who will construct it
  std::map<ProcessId, ObjectId> running_;  // workers
  std::set<std::pair<ProcessId, ObjectId>> watched_, told_dead_;
  std::map<std::pair<ProcessId, ObjectId>, uint32_t> incarnations_;
};

TEST(ActorDirectory, RandomSessionsKeepTheTablesInOrder) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomSession session(seed);
    for (int i = 0; i < 300; ++i) session.Step();
    session.Finish();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace weft::core
