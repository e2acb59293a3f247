#include "scheduling/local_scheduler.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>

#include "base/random.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;

ResourceAmounts Cpus(double count) {
  if (count == 0) return {};
  return {{"CPU", static_cast<int64_t>(count * kResourceUnit)}};
}

std::string Describe(const SchedulerAction& action) {
  struct Visitor {
    std::string operator()(const GrantLease& a) {
      return "grant " + std::to_string(a.lease.value) + ": worker " + ToString(a.worker) + " to " +
             ToString(a.process) + Gpus(a.gpus);
    }
    std::string operator()(const RecallLease& a) {
      return "recall " + std::to_string(a.lease.value) + " from " + ToString(a.process);
    }
    std::string operator()(const RefuseLeases& a) { return "refuse " + ToString(a.process) + ": " + a.why; }
    std::string operator()(const WantWorkers& a) { return "want " + std::to_string(a.count); }
    std::string operator()(const SetDemand& a) { return a.on ? "demand on" : "demand off"; }
    std::string operator()(const KillWorker& a) { return "kill " + ToString(a.worker); }
    std::string operator()(const GrantActor& a) {
      return "actor " + std::to_string(a.actor.index) + " on worker " + ToString(a.worker) + Gpus(a.gpus);
    }
    std::string operator()(const RefuseActor& a) {
      return "refuse actor " + std::to_string(a.actor.index) + ": " + a.why;
    }
    static std::string Gpus(const AssignedGpus& gpus) {
      std::string text;
      for (const auto& [number, amount] : gpus) {
        text.append(text.empty() ? " GPU " : ",").append(std::to_string(number));
        if (amount != kResourceUnit) text.append("(").append(FormatAmount(amount)).append(")");
      }
      return text;
    }
  };
  return std::visit(Visitor{}, action);
}

// Feeds events and gives back what they caused, as text. Repeated statements of how many workers are wanted are noise
// in most transcripts and left out unless asked for.
class Transcript {
 public:
  explicit Transcript(ResourceAmounts resources) : scheduler(LocalScheduler::Config{std::move(resources)}) {}

  template <class Event>
  std::string operator()(const Event& event) {
    std::vector<SchedulerAction> actions;
    scheduler.Handle(event, actions);
    scheduler.CheckInvariants();
    // The caller's answer to SetDemand. Workers that a transcript says are blocked, it reports itself.
    scheduler.Handle(BlockedFlagsRead{}, actions);
    scheduler.CheckInvariants();
    std::string text;
    for (const auto& action : actions) {
      if (!show_wants && std::holds_alternative<WantWorkers>(action)) continue;
      if (!text.empty()) text += "; ";
      text += Describe(action);
    }
    return text;
  }
  std::string Driver(uint64_t id) { return (*this)(ProcessJoined{ProcessId{id}, false}); }
  std::string Worker(uint64_t id) { return (*this)(ProcessJoined{ProcessId{id}, true}); }
  std::string Request(uint64_t process, double cpus, uint32_t count, uint32_t depth = 0) {
    return (*this)(LeasesRequested{ProcessId{process}, Cpus(cpus), count, depth});
  }
  std::string Return(uint64_t process, uint64_t lease) {
    return (*this)(LeaseReturned{ProcessId{process}, LeaseId{lease}});
  }
  // An actor of this creator that needs `place` CPUs for its constructor and `hold` from then on.
  std::string Actor(uint64_t creator, uint64_t index, double place, double hold = 0, uint32_t depth = 0) {
    return (*this)(ActorWanted{Id(creator, index), ProcessId{creator}, Cpus(place), Cpus(hold), depth});
  }
  std::string Settle(uint64_t creator, uint64_t index) { return (*this)(ActorSettled{Id(creator, index)}); }
  static ObjectId Id(uint64_t creator, uint64_t index) { return ObjectId{ProcessId{creator}, index}; }
  std::string Block(uint64_t worker) { return (*this)(WorkerBlocked{ProcessId{worker}}); }
  std::string Unblock(uint64_t worker) { return (*this)(WorkerUnblocked{ProcessId{worker}}); }
  std::string Lose(uint64_t process) { return (*this)(ProcessLost{ProcessId{process}}); }
  std::string Time(int64_t ms) { return (*this)(TimePassed{ms * kMs}); }

  LocalScheduler scheduler;
  bool show_wants = false;
};

TEST(LocalScheduler, EachJobHasWorkersOfItsOwnAndTheResourcesAreCommon) {
  Transcript t({{"CPU", kResourceUnit}});
  constexpr ProcessId kFirst{1}, kSecond{2};
  auto kinds = [&](std::vector<SchedulerAction> actions) {
    std::string text;
    for (const auto& action : actions) {
      if (auto* want = std::get_if<WantWorkers>(&action)) {
        text += std::to_string(want->count) + " of " + std::to_string(want->kind.job.value) + "; ";
      } else if (auto* grant = std::get_if<GrantLease>(&action)) {
        text += "grant " + std::to_string(grant->worker.value) + " to " + std::to_string(grant->process.value) + "; ";
      }
    }
    return text;
  };
  auto handle = [&](const auto& event) {
    std::vector<SchedulerAction> actions;
    t.scheduler.Handle(event, actions);
    t.scheduler.CheckInvariants();
    return kinds(std::move(actions));
  };
  handle(ProcessJoined{kFirst, false, {kFirst}});
  handle(ProcessJoined{kSecond, false, {kSecond}});
  handle(ProcessJoined{ProcessId{3}, true, {kFirst}});
  // The idle worker is the first job's: the second gets one of its own, and the CPU with it.
  EXPECT_EQ(handle(LeasesRequested{kSecond, {{"CPU", kResourceUnit}}, 1}), "1 of 2; ");
  EXPECT_EQ(handle(ProcessJoined{ProcessId{4}, true, {kSecond}}), "grant 4 to 2; 0 of 2; ");
  EXPECT_EQ(handle(LeasesRequested{kFirst, {{"CPU", kResourceUnit}}, 1}), "");
  EXPECT_EQ(handle(ProcessLost{kSecond}), "");  // its worker runs on until it is dead
  EXPECT_EQ(handle(ProcessLost{ProcessId{4}}), "grant 3 to 1; ");
}

TEST(LocalScheduler, GrantsWhatFitsAndAsksForWorkersItCouldUse) {
  Transcript t(Cpus(2));
  t.show_wants = true;
  t.Driver(1);
  EXPECT_EQ(t.Request(1, 1, 5), "want 2; demand on");
  EXPECT_EQ(t.Worker(2), "grant 1: worker 2 to 1; want 1");
  EXPECT_EQ(t.Worker(3), "grant 2: worker 3 to 1; want 0");
  EXPECT_EQ(t.Worker(4), "want 0");
  EXPECT_EQ(t.Return(1, 1), "grant 3: worker 2 to 1");
  EXPECT_EQ(t.Request(1, 1, 0), "demand off");
  EXPECT_EQ(t.Return(1, 3), "");
  EXPECT_EQ(t.Return(1, 2), "");
  EXPECT_EQ(t.scheduler.free().Of("CPU"), 2 * kResourceUnit);
}

TEST(LocalScheduler, RefusesWhatCanNeverBe) {
  Transcript t({{"CPU", 2 * kResourceUnit}, {"gpu", kResourceUnit / 2}});
  t.Driver(1);
  EXPECT_EQ(t.Request(1, 64, 1),
            "refuse 1: the task asks for 64 CPU, but this session has only 2 in all (it has 2 CPU, 0.5 gpu); "
            "ask for less, or start it with more (num_cpus of init)");
  EXPECT_EQ(t(LeasesRequested{ProcessId{1}, {{"tpu", kResourceUnit}}, 1, 0}),
            "refuse 1: the task asks for 1 tpu, but this session has none (it has 2 CPU, 0.5 gpu); "
            "ask for less, or start it with more (resources of init)");
}

TEST(LocalScheduler, TellsUsersOfTheirOwnResourcesAlone) {
  Transcript t({{"CPU", 2 * kResourceUnit}, {std::string(kPythonWorker), int64_t{1} << 40}});
  t.Driver(1);
  EXPECT_EQ(t.Request(1, 64, 1),
            "refuse 1: the task asks for 64 CPU, but this session has only 2 in all (it has 2 CPU); "
            "ask for less, or start it with more (num_cpus of init)");
}

TEST(LocalScheduler, LeasesAreRecalledUntilLentCpusAreNoLongerUsedTwice) {
  Transcript t(Cpus(1));
  t.Driver(1);
  t.Worker(2);
  t.Worker(3);
  t.Request(1, 1, 2);
  EXPECT_EQ(t.Block(2), "grant 2: worker 3 to 1; demand off");
  t.Request(1, 1, 5);  // it never runs out of work, so nobody else asks for the lease
  EXPECT_EQ(t.Time(10), "");
  EXPECT_EQ(t.Unblock(2), "");
  EXPECT_EQ(t.scheduler.free().Of(kCpu), -kResourceUnit);
  EXPECT_EQ(t.scheduler.next_wakeup_ns(), 15 * kMs);
  EXPECT_EQ(t.Time(15), "recall 2 from 1");
  EXPECT_EQ(t.Return(1, 2), "");
  EXPECT_EQ(t.scheduler.free().Of(kCpu), 0);
  EXPECT_EQ(t.Time(1000), "");
}

TEST(LocalScheduler, ATaskThatSoonWaitsAgainCostsNoLease) {
  Transcript t(Cpus(1));
  t.Driver(1);
  t.Worker(2);
  t.Worker(3);
  t.Request(1, 1, 1);
  t.Request(2, 1, 1, 1);
  EXPECT_EQ(t.Block(2), "grant 2: worker 3 to 2; demand off");
  EXPECT_EQ(t.Time(10), "");
  EXPECT_EQ(t.Unblock(2), "");
  EXPECT_EQ(t.Time(14), "");
  // It waits again, and says so only if asked: demand makes the daemon look at the flags.
  std::vector<SchedulerAction> actions;
  t.scheduler.Handle(TimePassed{15 * kMs}, actions);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(Describe(actions[0]), "demand on");
  EXPECT_EQ(t.Block(2), "demand off");
  EXPECT_EQ(t.Time(1000), "");
}

TEST(LocalScheduler, AnotherLeaseIsRecalledIfTheFirstStaysBehindALongTask) {
  Transcript t(Cpus(1));
  t.Driver(1);
  for (uint64_t worker : {2, 3, 4}) t.Worker(worker);
  t.Request(1, 1, 3);
  t.Block(2);
  EXPECT_EQ(t.Block(3), "grant 3: worker 4 to 1; demand off");
  EXPECT_EQ(t.Unblock(2), "");
  EXPECT_EQ(t.Time(5), "demand on; recall 3 from 1");
  EXPECT_EQ(t.Time(54), "");
  EXPECT_EQ(t.Time(55), "recall 1 from 1");  // the other one lends, and comes back by itself
  EXPECT_EQ(t.Return(1, 1), "demand off");
}

TEST(LocalScheduler, NoMoreTasksThatWaitForMemoryLendThanThereAreCpus) {
  Transcript t(Cpus(2));
  t.Driver(1);
  for (uint64_t worker = 2; worker < 8; ++worker) t.Worker(worker);
  EXPECT_EQ(t.Request(1, 1, 9), "grant 1: worker 2 to 1; grant 2: worker 3 to 1; demand on");
  EXPECT_EQ(t(WorkerBlocked{ProcessId{2}, true}), "grant 3: worker 4 to 1");
  EXPECT_EQ(t(WorkerBlocked{ProcessId{3}, true}), "grant 4: worker 5 to 1");
  EXPECT_EQ(t(WorkerBlocked{ProcessId{4}, true}), "");
  EXPECT_FALSE(t.scheduler.IsLending(ProcessId{4}));
  // If what was lent went to tasks that wait for memory too, nobody could empty the store.
  EXPECT_EQ(t(WorkerBlocked{ProcessId{4}, true, true}), "grant 5: worker 6 to 1");
  EXPECT_EQ(t.Unblock(4), "");
  EXPECT_EQ(t.Return(1, 5), "");
  EXPECT_EQ(t.Unblock(2), "");
  EXPECT_EQ(t(WorkerBlocked{ProcessId{4}, true}), "");  // lends what is owed
  EXPECT_TRUE(t.scheduler.IsLending(ProcessId{4}));
  EXPECT_EQ(t.Block(5), "grant 6: worker 6 to 1");  // a task in get is not counted among them
}

TEST(LocalScheduler, ActorsThatHoldNoCpuTakeNoPlaceAmongThoseThatLendForMemory) {
  Transcript t(Cpus(1));
  t.Driver(1);
  for (uint64_t worker = 2; worker < 8; ++worker) t.Worker(worker);
  for (uint64_t actor = 1; actor <= 2; ++actor) {
    t.Actor(1, actor, 1, 0);
    t.Settle(1, actor);
    t(WorkerBlocked{ProcessId{actor + 1}, true});
  }
  EXPECT_EQ(t.Request(1, 1, 2), "grant 3: worker 4 to 1; demand on");
  EXPECT_EQ(t(WorkerBlocked{ProcessId{4}, true}), "grant 4: worker 5 to 1; demand off");
}

TEST(LocalScheduler, ABlockedWorkerLendsItsCpuAndTakesItBack) {
  Transcript t(Cpus(1));
  t.Driver(1);
  t.Worker(2);
  t.Worker(3);
  t.Worker(4);
  EXPECT_EQ(t.Request(1, 1, 1), "grant 1: worker 2 to 1");
  // The task on worker 2 has a child. It cannot run beside its parent, until the parent waits for it.
  EXPECT_EQ(t.Request(2, 1, 1, 1), "demand on; recall 1 from 1");
  EXPECT_EQ(t.Block(2), "grant 2: worker 3 to 2; demand off");
  EXPECT_EQ(t.scheduler.free().Of("CPU"), 0);
  // The parent resumes while the child's lease is still held: over-committed by what was lent, and nothing is granted.
  EXPECT_EQ(t.Unblock(2), "");
  EXPECT_EQ(t.scheduler.free().Of("CPU"), -kResourceUnit);
  EXPECT_EQ(t.Request(1, 1, 1), "demand on");
  EXPECT_EQ(t.Return(2, 2), "");
  EXPECT_EQ(t.Return(1, 1), "grant 3: worker 2 to 1; demand off");
}

TEST(LocalScheduler, NothingIsRecalledBeforeTheFlagsWereRead) {
  LocalScheduler scheduler(LocalScheduler::Config{Cpus(1)});
  std::vector<SchedulerAction> actions;
  scheduler.Handle(ProcessJoined{ProcessId{1}, false}, actions);
  for (uint64_t worker = 2; worker <= 3; ++worker) scheduler.Handle(ProcessJoined{ProcessId{worker}, true}, actions);
  scheduler.Handle(LeasesRequested{ProcessId{1}, Cpus(1), 1, 0}, actions);
  actions.clear();
  scheduler.Handle(LeasesRequested{ProcessId{2}, Cpus(1), 1, 1}, actions);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(Describe(actions[0]), "demand on");
  actions.clear();
  scheduler.Handle(WorkerBlocked{ProcessId{2}}, actions);
  scheduler.Handle(BlockedFlagsRead{}, actions);
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(Describe(actions[0]), "grant 2: worker 3 to 2");
  EXPECT_EQ(Describe(actions[1]), "demand off");
}

TEST(LocalScheduler, OnlyCpusAreLent) {
  Transcript t({{"CPU", kResourceUnit}, {"gpu", kResourceUnit}});
  ResourceAmounts both = {{"CPU", kResourceUnit}, {"gpu", kResourceUnit}};
  t.Driver(1);
  t.Worker(2);
  t.Worker(3);
  EXPECT_EQ(t(LeasesRequested{ProcessId{1}, both, 2, 0}), "grant 1: worker 2 to 1; demand on");
  EXPECT_EQ(t.Block(2), "");
  EXPECT_EQ(t.Request(2, 1, 1, 1), "grant 2: worker 3 to 2");
}

TEST(LocalScheduler, DeeperRequestsGoFirst) {
  Transcript t(Cpus(1));
  t.Driver(1);
  t.Worker(2);
  t.Worker(3);
  EXPECT_EQ(t.Request(1, 1, 10), "grant 1: worker 2 to 1; demand on");
  EXPECT_EQ(t.Request(2, 1, 1, 1), "recall 1 from 1");
  EXPECT_EQ(t.Block(2), "grant 2: worker 3 to 2");
}

TEST(LocalScheduler, RecallsFromTheRichestUntilBothHaveTheSame) {
  Transcript t(Cpus(4));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 6; ++worker) t.Worker(worker);
  t.Request(1, 1, 100);
  ASSERT_EQ(t.scheduler.lease_count(), 4u);
  EXPECT_EQ(t.Request(6, 1, 100), "recall 4 from 1; recall 3 from 1");
  EXPECT_EQ(t.Return(1, 4), "grant 5: worker 5 to 6");
  EXPECT_EQ(t.Return(1, 3), "grant 6: worker 4 to 6");
  // Now they are even: nobody is asked for more.
  EXPECT_EQ(t.Time(1000), "");
}

TEST(LocalScheduler, TakesTurnsOnOneCpu) {
  Transcript t(Cpus(1));
  t.Driver(1);
  t.Worker(2);
  t.Worker(3);
  t.Time(1000);
  t.Request(1, 1, 10);
  EXPECT_EQ(t.Request(3, 1, 10), "");  // an equal waits for its turn
  ASSERT_EQ(t.scheduler.next_wakeup_ns(), 1020 * kMs);
  EXPECT_EQ(t.Time(1019), "");
  EXPECT_EQ(t.Time(1020), "recall 1 from 1");
  EXPECT_EQ(t.Return(1, 1), "grant 2: worker 2 to 3");
  EXPECT_EQ(t.Time(1040), "recall 2 from 3");
  EXPECT_EQ(t.Return(3, 2), "grant 3: worker 2 to 1");
}

TEST(LocalScheduler, RecallsAnotherLeaseWhenTheFirstSitsBehindALongTask) {
  Transcript t(Cpus(3));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 5; ++worker) t.Worker(worker);
  t.Request(1, 1, 100);
  EXPECT_EQ(t.Request(5, 1, 1), "recall 3 from 1");
  EXPECT_EQ(t.Time(49), "");
  EXPECT_EQ(t.Time(50), "recall 2 from 1");
  EXPECT_EQ(t.Return(1, 2), "grant 4: worker 3 to 5");
}

TEST(LocalScheduler, ALargeRequestIsNotStarvedBySmallOnes) {
  Transcript t(Cpus(2));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 4; ++worker) t.Worker(worker);
  t.Request(1, 1, 1000);
  t.Request(4, 2, 1);
  // One small lease is returned at a time; without a limit the next small one would always take its place.
  std::set<uint64_t> held = {1, 2};
  uint64_t latest = 2;
  bool served = false;
  for (int i = 0; i < 50 && !served; ++i) {
    ASSERT_FALSE(held.empty());
    uint64_t lease = *held.begin();
    held.erase(held.begin());
    std::string text = t.Return(1, lease);
    if (text.find("to 4") != std::string::npos) served = true;
    if (text.find("to 1") != std::string::npos) held.insert(++latest);
  }
  EXPECT_TRUE(served);
}

TEST(LocalScheduler, NothingIsKeptFreeForARequestThatBlockedTasksPrevent) {
  // Worker 2 holds x and waits for a child that needs a CPU. Keeping the CPU free for somebody who needs x as well
  // would be a deadlock.
  Transcript t({{"CPU", kResourceUnit}, {"x", kResourceUnit}});
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 4; ++worker) t.Worker(worker);
  EXPECT_EQ(t(LeasesRequested{ProcessId{1}, {{"x", kResourceUnit}}, 1, 1}), "grant 1: worker 2 to 1");
  t(LeasesRequested{ProcessId{1}, {{"CPU", kResourceUnit}, {"x", kResourceUnit}}, 1, 1});
  t.Block(2);
  for (uint64_t lease = 2; lease < 30; ++lease) {
    ASSERT_EQ(t.Request(2, 1, 1, 1), "grant " + std::to_string(lease) + ": worker 3 to 2");
    t.Return(2, lease);
  }
}

TEST(LocalScheduler, NobodyLeasesItself) {
  Transcript t(Cpus(1));
  t.show_wants = true;
  t.Driver(1);
  t.Worker(2);
  EXPECT_EQ(t.Request(2, 1, 1), "want 1");
  EXPECT_EQ(t.Worker(3), "grant 1: worker 3 to 2; want 0");
}

TEST(LocalScheduler, AWorkerOfADeadSubmitterIsKilledAndItsResourcesFollow) {
  Transcript t(Cpus(2));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 4; ++worker) t.Worker(worker);
  t.Request(1, 1, 1);
  EXPECT_EQ(t.Request(2, 1, 1, 1), "grant 2: worker 3 to 2");
  EXPECT_EQ(t.Lose(2), "kill 3");
  EXPECT_EQ(t.scheduler.free().Of("CPU"), kResourceUnit);  // worker 3 may still run
  EXPECT_EQ(t.Lose(3), "");
  EXPECT_EQ(t.scheduler.free().Of("CPU"), 2 * kResourceUnit);
}

TEST(LocalScheduler, PrefersAWorkerThatTheSubmitterKnows) {
  Transcript t(Cpus(2));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 4; ++worker) t.Worker(worker);
  EXPECT_EQ(t.Request(1, 1, 1), "grant 1: worker 2 to 1");
  EXPECT_EQ(t.Request(4, 1, 1), "grant 2: worker 3 to 4");
  t.Return(1, 1);
  t.Return(4, 2);
  EXPECT_EQ(t.Request(4, 1, 1), "grant 3: worker 3 to 4");
}

TEST(LocalScheduler, ShapesWithoutCpusAreBoundedByTheNumberOfWorkers) {
  Transcript t(Cpus(1));
  t.show_wants = true;
  t.Driver(1);
  EXPECT_EQ(t.Request(1, 0, 100), "want 16");
  EXPECT_EQ(t.scheduler.demand(), false);
}

TEST(LocalScheduler, GivingUpTellsEverybodyWhoseRequestIsForgotten) {
  Transcript t(Cpus(2));
  t.Driver(1);
  t.Worker(2);
  t.Request(1, 1, 2);
  EXPECT_EQ(t(StartingGivenUp{"no python"}), "refuse 1: no python");
}

TEST(LocalScheduler, NothingIsRecalledFromADeeperRequestThatWouldGetItBack) {
  Transcript t(Cpus(1));
  t.Driver(1);
  t.Worker(2);
  t.Worker(3);
  LeasesRequested deeper{ProcessId{2}, {{"CPU", kResourceUnit}}, 2, 1};
  EXPECT_EQ(t(deeper), "grant 1: worker 3 to 2; demand on");
  EXPECT_EQ(t.Request(1, 1, 1), "");
  EXPECT_EQ(t(TimePassed{1'000'000'000}), "");
}

TEST(LocalScheduler, GivingUpRefusesThoseWhoHaveNothing) {
  Transcript t(Cpus(2));
  t.Driver(1);
  t.Request(1, 1, 3);
  EXPECT_EQ(t(StartingGivenUp{"no python"}), "refuse 1: no python; demand off");
  EXPECT_EQ(t.Worker(2), "");
}

// ---- actors -----------------------------------------------------------------------------------------------------

TEST(LocalScheduler, AnActorTakesAWorkerForGoodAndHoldsLessOnceItIsSettled) {
  Transcript t(Cpus(2));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 4; ++worker) t.Worker(worker);
  EXPECT_EQ(t.Actor(1, 7, 2, 0.5), "actor 7 on worker 2");
  EXPECT_EQ(t.scheduler.free().Of("CPU"), 0);
  EXPECT_EQ(t.Request(1, 1, 2), "demand on");
  EXPECT_EQ(t.Time(1000), "");  // nobody recalls an actor
  EXPECT_EQ(t.Settle(1, 7), "grant 2: worker 3 to 1");
  EXPECT_EQ(t.scheduler.free().Of("CPU"), kResourceUnit / 2);
  EXPECT_EQ(t.Settle(1, 7), "");
  EXPECT_TRUE(t.scheduler.HasActor(ProcessId{2}));
  EXPECT_EQ(t.Return(1, 1), "");  // a lease that is an actor's cannot be returned
  EXPECT_EQ(t.Lose(2), "grant 3: worker 4 to 1; demand off");
  EXPECT_EQ(t.scheduler.actor_count(), 0u);
}

TEST(LocalScheduler, ActorsOfAHeldJobGetNoWorkersAndTasksDo) {
  Transcript t(Cpus(2));
  t.show_wants = true;
  EXPECT_EQ(t(ActorsHeld{ProcessId{}, true}), "");
  t.Driver(1);
  EXPECT_EQ(t.Actor(1, 7, 1), "");
  EXPECT_EQ(t.Actor(1, 8, 1), "");
  EXPECT_EQ(t.Request(1, 1, 1), "want 1");
  EXPECT_EQ(t.Worker(2), "grant 1: worker 2 to 1; want 0");
  EXPECT_EQ(t(ActorUnwanted{t.Id(1, 8)}), "");
  EXPECT_EQ(t(ActorsHeld{ProcessId{}, false}), "want 1");
  EXPECT_EQ(t.Worker(3), "actor 7 on worker 3; want 0");
}

TEST(LocalScheduler, AWorkerThatIsRetiredWhileItIsLeasedGetsNoOtherLease) {
  Transcript t(Cpus(1));
  t.Driver(1);
  t.Worker(2);
  EXPECT_EQ(t.Request(1, 1, 1), "grant 1: worker 2 to 1");
  EXPECT_EQ(t(WorkerRetired{ProcessId{2}}), "");
  EXPECT_TRUE(t.scheduler.IsLeased(ProcessId{2}));
  EXPECT_EQ(t.Request(1, 1, 1), "demand on");
  EXPECT_EQ(t.Return(1, 1), "demand off");
  EXPECT_EQ(t.Worker(3), "grant 2: worker 3 to 1");
}

TEST(LocalScheduler, AnActorMayHoldMoreThanItIsPlacedWith) {
  Transcript t({{"CPU", kResourceUnit}, {"x", 2 * kResourceUnit}});
  t.Driver(1);
  t.Worker(2);
  t.Worker(3);
  ResourceAmounts one_x = {{"x", kResourceUnit}}, two_x = {{"x", 2 * kResourceUnit}};
  EXPECT_EQ(t(ActorWanted{t.Id(1, 7), ProcessId{1}, {{"CPU", kResourceUnit}}, two_x, 0}), "actor 7 on worker 2");
  // What it will hold is set aside from the beginning.
  EXPECT_EQ(t(LeasesRequested{ProcessId{1}, one_x, 1, 0}), "demand on");
  EXPECT_EQ(t.Settle(1, 7), "");
  EXPECT_EQ(t.scheduler.free().Of("CPU"), kResourceUnit);
  EXPECT_EQ(t.scheduler.free().Of("x"), 0);
}

TEST(LocalScheduler, InAClusterActorsThatLackResourcesAreToldApart) {
  Transcript t({{"CPU", kResourceUnit}});
  LocalScheduler::Config config{{{"CPU", kResourceUnit}}};
  config.in_cluster = true;
  t.scheduler = LocalScheduler(config);
  auto unmet = [&] {
    std::string text;
    for (const auto& actor : t.scheduler.UnmetActors()) {
      EXPECT_TRUE(t.scheduler.IsUnmet(actor.actor));
      text += std::to_string(actor.actor.index) + " ";
    }
    return text;
  };
  t.Driver(1);
  EXPECT_EQ(t.Actor(1, 7, 2), "") << "a node that is large enough may join";
  EXPECT_EQ(unmet(), "7 ");
  t.Actor(1, 8, 1, 1);
  EXPECT_EQ(unmet(), "7 ") << "it lacks a worker only";
  EXPECT_FALSE(t.scheduler.IsUnmet(t.Id(1, 8)));
  t.Actor(1, 9, 1, 1);
  EXPECT_EQ(unmet(), "9 7 ");
  const uint64_t before = t.scheduler.decisions();
  EXPECT_EQ(t.Worker(2), "actor 8 on worker 2");
  EXPECT_GT(t.scheduler.decisions(), before);
  EXPECT_EQ(unmet(), "9 7 ");
  EXPECT_TRUE(t.scheduler.HasWorkerOf(t.Id(1, 8)));

  // Another node has it.
  t(ActorUnwanted{t.Id(1, 9)});
  EXPECT_EQ(unmet(), "7 ");
  EXPECT_FALSE(t.scheduler.IsUnmet(t.Id(1, 9)));
  t.Lose(2);
  EXPECT_FALSE(t.scheduler.HasWorkerOf(t.Id(1, 8)));
  t.Lose(1);
  EXPECT_EQ(unmet(), "");
}

TEST(LocalScheduler, AnActorThatCanNeverBePlacedIsRefused) {
  Transcript t(Cpus(2));
  t.Driver(1);
  EXPECT_EQ(
      t.Actor(1, 7, 3),
      "refuse actor 7: the actor asks for 3 CPU, but this session has only 2 in all (it has 2 CPU); ask for less, "
      "or start it with more (num_cpus of init)");
  EXPECT_EQ(
      t(ActorWanted{t.Id(1, 8), ProcessId{1}, {}, {{"GPU", kResourceUnit}}, 0}),
      "refuse actor 8: the actor asks for 1 GPU, but this session has none (it has 2 CPU); ask for less, or start "
      "it with more (num_gpus of init)");
  t.Actor(1, 9, 1);
  EXPECT_EQ(t(StartingGivenUp{"no python"}), "refuse actor 9: no python");
}

TEST(LocalScheduler, AThousandActorsLiveOnTwoCpus) {
  Transcript t(Cpus(2));
  t.Driver(1);
  std::set<uint64_t> waiting;
  for (uint64_t index = 1; index <= 500; ++index) {
    t.Actor(1, index, 1);         // needs a CPU for its constructor
    t.Actor(1, 1000 + index, 0);  // needs none
  }
  size_t placed = 0;
  uint64_t worker = 2;
  for (; placed < 1000 && worker < 3000; ++worker) {
    std::vector<SchedulerAction> actions;
    t.scheduler.Handle(ProcessJoined{ProcessId{worker}, true}, actions);
    for (size_t i = 0; i < actions.size(); ++i) {
      if (auto* want = std::get_if<WantWorkers>(&actions[i])) {
        EXPECT_LE(want->count, t.scheduler.max_unblocked_workers());
      }
      auto* grant = std::get_if<GrantActor>(&actions[i]);
      if (grant == nullptr) continue;
      ++placed;
      t.scheduler.Handle(ActorSettled{ObjectId{grant->actor}}, actions);
    }
  }
  t.scheduler.CheckInvariants();
  EXPECT_EQ(placed, 1000u);
  EXPECT_EQ(worker, 1002u);  // one each
  EXPECT_EQ(t.Request(1, 1, 2), "");
  EXPECT_EQ(t.Worker(5000), "grant 1001: worker 5000 to 1");
}

TEST(LocalScheduler, AWorkerThatIsLetGoKeepsNoCpu) {
  Transcript t({{"CPU", 2 * kResourceUnit}, {"seat", kResourceUnit}});
  t.Driver(1);
  t.Worker(2);
  t.Worker(3);
  ResourceAmounts holds{{"CPU", kResourceUnit}, {"seat", kResourceUnit}};
  t(ActorWanted{t.Id(1, 1), ProcessId{1}, holds, holds, 0});
  EXPECT_EQ(t.Settle(1, 1), "");
  t.Actor(1, 2, 1);  // whose constructor never ran
  EXPECT_EQ(t.scheduler.free().Of("CPU"), 0);
  t(WorkerLetGo{ProcessId{2}});
  EXPECT_EQ(t.scheduler.free().Of("CPU"), kResourceUnit);
  EXPECT_EQ(t.scheduler.free().Of("seat"), 0);
  t(WorkerLetGo{ProcessId{3}});
  t(WorkerLetGo{ProcessId{3}});
  EXPECT_EQ(t.scheduler.free().Of("CPU"), 2 * kResourceUnit);
  t.Lose(2);
  t.Lose(3);
  EXPECT_EQ(t.scheduler.free().Of("CPU"), 2 * kResourceUnit);
  EXPECT_EQ(t.scheduler.free().Of("seat"), kResourceUnit);
}

TEST(LocalScheduler, WorkersAreAskedForBeforeTheConstructorsThatRunHaveEnded) {
  Transcript t(Cpus(2));
  t.show_wants = true;
  t.Driver(1);
  for (uint64_t index = 1; index <= 9; ++index) t.Actor(1, index, 1);
  t.Actor(1, 10, 1, 1);
  // Two of them have CPUs; the others need one only for a moment, and workers take a while to start.
  std::string text = t.Worker(2);
  EXPECT_NE(text.find("actor 1 on worker 2; want 9"), std::string::npos) << text;
}

TEST(LocalScheduler, ActorsThatKeepTheirCpusGetNoWorkersInAdvance) {
  Transcript t(Cpus(1));
  t.show_wants = true;
  t.Driver(1);
  EXPECT_EQ(t.Actor(1, 1, 1, 1), "want 1");
  EXPECT_EQ(t.Actor(1, 2, 1, 1), "demand on");
  EXPECT_EQ(t.Worker(2), "actor 1 on worker 2; want 0");
}

TEST(LocalScheduler, AnActorRequestRecallsLeases) {
  Transcript t(Cpus(2));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 4; ++worker) t.Worker(worker);
  t.Request(1, 1, 100);
  EXPECT_EQ(t.Actor(1, 7, 1), "recall 2 from 1");
  EXPECT_EQ(t.Return(1, 2), "actor 7 on worker 3");
  // The stream of tasks and the actors take turns: each settled actor is no longer held against its creator.
  EXPECT_EQ(t.Settle(1, 7), "grant 4: worker 4 to 1");
  t.Worker(5);
  EXPECT_EQ(t.Actor(1, 8, 1, 1), "recall 4 from 1");
  EXPECT_EQ(t.Return(1, 4), "actor 8 on worker 4");
}

TEST(LocalScheduler, ABlockedActorLendsItsCpusAlsoWhileItSettles) {
  Transcript t(Cpus(2));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 5; ++worker) t.Worker(worker);
  EXPECT_EQ(t.Actor(1, 7, 2, 1), "actor 7 on worker 2");
  EXPECT_EQ(t.Request(2, 1, 1, 1), "demand on");
  EXPECT_EQ(t.Block(2), "grant 2: worker 3 to 2; demand off");
  EXPECT_EQ(t.Settle(1, 7), "");
  EXPECT_EQ(t.scheduler.free().Of("CPU"), kResourceUnit);  // of two, one is held by the child, the actor's is lent
  t.Unblock(2);
  EXPECT_EQ(t.scheduler.free().Of("CPU"), 0);
}

TEST(LocalScheduler, ActorRequestsAreWithdrawnAndVanishWithTheirCreator) {
  Transcript t(Cpus(1));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 3; ++worker) t.Worker(worker);
  EXPECT_EQ(t.Actor(1, 7, 1, 1), "actor 7 on worker 2");
  EXPECT_EQ(t.Actor(2, 1, 1), "demand on");
  EXPECT_EQ(t.Actor(1, 8, 1), "");
  EXPECT_EQ(t.scheduler.actor_count(), 3u);
  EXPECT_EQ(t(ActorUnwanted{t.Id(1, 8)}), "");
  EXPECT_EQ(t(ActorUnwanted{t.Id(1, 7)}), "");  // it has its worker
  EXPECT_EQ(t.scheduler.actor_count(), 2u);
  // The actor's worker was the creator of the other. The living are not killed here.
  EXPECT_EQ(t.Lose(2), "demand off");
  EXPECT_EQ(t.scheduler.actor_count(), 0u);
  t.show_wants = true;
  EXPECT_EQ(t.Actor(3, 1, 1), "want 1");  // nobody is its own actor
}

TEST(LocalScheduler, TheActorsOfALostCreatorKeepTheirWorkers) {
  Transcript t(Cpus(2));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 4; ++worker) t.Worker(worker);
  t.Request(1, 1, 1);
  EXPECT_EQ(t.Actor(2, 5, 1, 0), "actor 5 on worker 3");
  EXPECT_EQ(t.Lose(2), "");
  EXPECT_EQ(t.Settle(2, 5), "");
  EXPECT_EQ(t.scheduler.free().Of("CPU"), 2 * kResourceUnit);
}

TEST(LocalScheduler, WorkersWithoutCpusThatBlockMakeRoomForTheirChildren) {
  Transcript t(Cpus(1));
  t.Driver(1);
  uint64_t worker = 2;
  for (; worker < 18; ++worker) t.Worker(worker);
  t.Request(1, 0, 16);
  t.show_wants = true;
  EXPECT_EQ(t.Request(2, 0, 1, 1), "demand on");
  EXPECT_EQ(t.Block(2), "want 1; demand off");
}

// ---- GPUs -------------------------------------------------------------------------------------------------------

TEST(LocalScheduler, GpusAreGivenByNumber) {
  Transcript t({{"CPU", kResourceUnit}, {"GPU", 3 * kResourceUnit}});
  auto gpus = [](double count) { return ResourceAmounts{{"GPU", static_cast<int64_t>(count * kResourceUnit)}}; };
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 9; ++worker) t.Worker(worker);
  EXPECT_EQ(t(LeasesRequested{ProcessId{1}, gpus(0.5), 1, 0}), "grant 1: worker 2 to 1 GPU 0(0.5)");
  EXPECT_EQ(t(LeasesRequested{ProcessId{1}, gpus(1), 1, 0}), "grant 2: worker 3 to 1 GPU 1");
  // The fullest that still has room, so that others stay whole.
  EXPECT_EQ(t(LeasesRequested{ProcessId{1}, gpus(0.25), 1, 0}), "grant 3: worker 4 to 1 GPU 0(0.25)");
  EXPECT_EQ(t(LeasesRequested{ProcessId{1}, gpus(0.3), 1, 0}), "grant 4: worker 5 to 1 GPU 2(0.3)");
  EXPECT_EQ(t(LeasesRequested{ProcessId{1}, gpus(0.25), 1, 0}), "grant 5: worker 6 to 1 GPU 0(0.25)");
  // There is more than half a GPU in sum everywhere, but two whole ones only when they are whole.
  EXPECT_EQ(t(LeasesRequested{ProcessId{1}, gpus(2), 1, 0}), "demand on; recall 5 from 1");
  EXPECT_EQ(t.Return(1, 2), "");
  EXPECT_EQ(t.Return(1, 4), "grant 6: worker 3 to 1 GPU 1,2; demand off");
  EXPECT_EQ(
      t(LeasesRequested{ProcessId{1}, gpus(1.5), 1, 0}),
      "refuse 1: the task asks for 1.5 GPU, but only less than one GPU can be a fraction; ask for a whole number");
}

TEST(LocalScheduler, AnActorKeepsItsGpus) {
  Transcript t({{"CPU", kResourceUnit}, {"GPU", 2 * kResourceUnit}});
  t.Driver(1);
  t.Worker(2);
  t.Worker(3);
  ResourceAmounts both = {{"CPU", kResourceUnit}, {"GPU", kResourceUnit}}, gpu = {{"GPU", kResourceUnit}};
  EXPECT_EQ(t(ActorWanted{t.Id(1, 1), ProcessId{1}, gpu, gpu, 0}), "actor 1 on worker 2 GPU 0");
  EXPECT_EQ(t(ActorWanted{t.Id(1, 2), ProcessId{1}, both, gpu, 0}), "actor 2 on worker 3 GPU 1");
  t.Settle(1, 2);
  t.Lose(2);
  t.Worker(4);
  EXPECT_EQ(t(LeasesRequested{ProcessId{1}, gpu, 1, 0}), "grant 3: worker 4 to 1 GPU 0");
}

TEST(LocalScheduler, TenThousandthsOfAGpuAreExact) {
  Transcript t({{"GPU", kResourceUnit}});
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 5; ++worker) t.Worker(worker);
  for (int64_t amount : {int64_t{3333}, int64_t{3333}, int64_t{3334}}) {
    EXPECT_NE(t(LeasesRequested{ProcessId{1}, {{"GPU", amount}}, 1, 0}).find("GPU 0(0.333"), std::string::npos);
  }
  EXPECT_EQ(t(LeasesRequested{ProcessId{1}, {{"GPU", 1}}, 1, 0}).find("grant"), std::string::npos);
  EXPECT_EQ(t.scheduler.free().Of("GPU"), 0);
}

TEST(LocalScheduler, MemoryIsAResourceLikeAnyOther) {
  // 64 GB in bytes, in ten-thousandths.
  int64_t bytes = (int64_t{64} << 30) * kResourceUnit;
  Transcript t({{"CPU", 4 * kResourceUnit}, {"memory", bytes}});
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 5; ++worker) t.Worker(worker);
  EXPECT_EQ(t(LeasesRequested{ProcessId{1}, {{"memory", bytes / 2}}, 3, 0}),
            "grant 1: worker 2 to 1; grant 2: worker 3 to 1; demand on");
  std::string refused = t(LeasesRequested{ProcessId{1}, {{"memory", bytes + 1}}, 1, 0});
  EXPECT_NE(refused.find("refuse 1: the task asks for"), std::string::npos) << refused;
}

// ---- fairness ---------------------------------------------------------------------------------------------------

TEST(LocalScheduler, ALargeActorIsNotStarvedBySmallTasks) {
  Transcript t(Cpus(4));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 8; ++worker) t.Worker(worker);
  t.Request(1, 1, 1000);
  t.Actor(8, 1, 4, 0);
  std::deque<uint64_t> held = {1, 2, 3, 4};
  uint64_t latest = 4;
  bool served = false;
  for (int i = 0; i < 60 && !served; ++i) {
    ASSERT_FALSE(held.empty());
    uint64_t lease = held.front();
    held.pop_front();
    std::string text = t.Return(1, lease);
    served = text.find("actor 1 on") != std::string::npos;
    if (text.find("grant") != std::string::npos) held.push_back(++latest);
  }
  EXPECT_TRUE(served);
}

TEST(LocalScheduler, TwoSubmittersOfManyShortLeasesAlternate) {
  Transcript t(Cpus(1));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 3; ++worker) t.Worker(worker);
  t.Request(1, 1, 50);
  t.Request(3, 1, 50);
  std::map<uint64_t, int> turns;
  uint64_t holder = 1;
  for (uint64_t lease = 1; lease <= 40; ++lease) {
    ++turns[holder];
    std::string text = t.Return(holder, lease);
    holder = text.find("to 3") != std::string::npos ? 3 : 1;
  }
  EXPECT_EQ(turns[1], 20);
  EXPECT_EQ(turns[3], 20);
}

// A model of everybody else: sends random but possible events, and checks after each that the books balance.
class RandomSession {
 public:
  explicit RandomSession(uint64_t seed)
      : random_(seed),
        total_({{"CPU", static_cast<int64_t>(1 + random_.Below(4)) * kResourceUnit},
                {"GPU", static_cast<int64_t>(1 + random_.Below(3)) * kResourceUnit}}),
        scheduler_(LocalScheduler::Config{total_, 64}) {
    Do(ProcessJoined{ProcessId{1}, false});
    alive_.insert(1);
  }

  void Step() {
    now_ += static_cast<int64_t>(random_.Below(10)) * kMs;
    Do(TimePassed{now_});
    switch (random_.Below(13)) {
      case 10:
        if (actor_on_.size() < 8) WantActor();
        break;
      case 11:
        if (!unsettled_.empty()) SettleOne();
        break;
      case 12:
        if (!wanted_actors_.empty() && random_.Chance(30)) {
          ObjectId actor = AnyOf(wanted_actors_);
          wanted_actors_.erase(actor);
          Do(ActorUnwanted{actor});
        } else if (!actor_on_.empty() && random_.Chance(30)) {
          Lose(actor_on_.begin()->first);
        }
        break;
      case 0:
        if (workers_.size() < 24) Join();
        break;
      case 1:
      case 2:
        Do(LeasesRequested{Any(alive_), Shape(), static_cast<uint32_t>(random_.Below(4)),
                           static_cast<uint32_t>(random_.Below(3))});
        break;
      case 3:
      case 4:
      case 5:
        if (!held_.empty()) Return(PickHeld());
        break;
      case 6:
        if (!workers_.empty()) Do(WorkerBlocked{Any(workers_)});
        break;
      case 7:
        if (!workers_.empty()) Do(WorkerUnblocked{Any(workers_)});
        break;
      case 8:
        if (!workers_.empty() && random_.Chance(30)) Lose(Any(workers_).value);
        break;
      case 9:
        if (!workers_.empty() && random_.Chance(20)) {
          ProcessId worker = Any(workers_);
          if (scheduler_.IsIdle(worker)) Do(WorkerRetired{worker});
        }
        break;
    }
  }

  // Nobody crashes any more, everybody returns what he holds when asked or done: every request must be served.
  void Drain() {
    for (int i = 0; i < 2000; ++i) {
      now_ += 30 * kMs;
      for (uint64_t worker : std::set<uint64_t>(workers_)) Do(WorkerUnblocked{ProcessId{worker}});
      for (uint64_t worker : std::set<uint64_t>(doomed_)) Lose(worker);
      if (workers_.size() < 24 && wanted_ > 0) Join();
      if (!held_.empty()) Return(PickHeld());
      // Actors are done one after the other, so that what they hold comes back.
      if (!unsettled_.empty()) {
        SettleOne();
      } else if (!actor_on_.empty()) {
        Lose(actor_on_.begin()->first);
      }
      Do(TimePassed{now_});
      if (held_.empty() && wanted_ == 0 && doomed_.empty() && actor_on_.empty() && wanted_actors_.empty()) break;
    }
    EXPECT_TRUE(held_.empty());
    EXPECT_TRUE(wanted_actors_.empty());
    EXPECT_EQ(scheduler_.actor_count(), 0u);
    EXPECT_EQ(scheduler_.lease_count(), 0u);
    EXPECT_FALSE(scheduler_.demand());
    EXPECT_TRUE(scheduler_.free() == ResourceLedger(total_));
  }

  std::string trace() const { return trace_; }

 private:
  template <class Set>
  ProcessId Any(const Set& set) {
    auto entry = set.begin();
    std::advance(entry, static_cast<long>(random_.Below(set.size())));
    return ProcessId{*entry};
  }
  std::map<uint64_t, uint64_t>::iterator PickHeld() {
    auto entry = held_.begin();
    std::advance(entry, static_cast<long>(random_.Below(held_.size())));
    return entry;
  }
  ResourceAmounts Shape() {
    ResourceAmounts shape;
    int64_t cpu = static_cast<int64_t>(random_.Below(5)) * kResourceUnit / 2;
    if (cpu > 0) shape.push_back({"CPU", cpu});
    if (random_.Chance(20)) shape.push_back({"GPU", Gpus()});
    return shape;
  }
  int64_t Gpus() {
    static constexpr int64_t kAmounts[] = {kResourceUnit, kResourceUnit / 2, kResourceUnit / 3, 2 * kResourceUnit};
    return kAmounts[random_.Below(4)];
  }
  void WantActor() {
    ProcessId creator = Any(alive_);
    ObjectId actor{creator, ++actors_made_};
    ResourceAmounts to_place = Shape(), to_hold = random_.Chance(50) ? ResourceAmounts{} : Shape();
    wanted_actors_.insert(actor);
    Do(ActorWanted{actor, creator, to_place, to_hold, static_cast<uint32_t>(random_.Below(3))});
  }
  ObjectId AnyOf(const std::set<ObjectId>& set) {
    auto entry = set.begin();
    std::advance(entry, static_cast<long>(random_.Below(set.size())));
    return *entry;
  }
  void SettleOne() {
    ObjectId actor = AnyOf(unsettled_);
    unsettled_.erase(actor);
    Do(ActorSettled{actor});
  }
  void Join() {
    uint64_t id = next_++;
    workers_.insert(id);
    alive_.insert(id);
    Do(ProcessJoined{ProcessId{id}, true});
  }
  void Return(std::map<uint64_t, uint64_t>::iterator entry) {
    LeaseReturned event{ProcessId{entry->second}, LeaseId{entry->first}};
    worker_of_.erase(entry->first);
    held_.erase(entry);
    Do(event);
  }
  void Lose(uint64_t id) {
    workers_.erase(id);
    alive_.erase(id);
    doomed_.erase(id);
    std::erase_if(wanted_actors_, [&](ObjectId actor) { return actor.owner.value == id; });
    if (auto found = actor_on_.find(id); found != actor_on_.end()) {
      unsettled_.erase(found->second);
      actor_on_.erase(found);
    }
    std::erase_if(held_, [&](const auto& item) { return item.second == id || worker_of_[item.first] == id; });
    Do(ProcessLost{ProcessId{id}});
  }
  template <class Event>
  void Do(const Event& event) {
    std::vector<SchedulerAction> actions;
    scheduler_.Handle(event, actions);
    scheduler_.CheckInvariants();
    scheduler_.Handle(BlockedFlagsRead{}, actions);
    scheduler_.CheckInvariants();
    for (const auto& action : actions) {
      trace_ += Describe(action) + "\n";
      if (auto* grant = std::get_if<GrantLease>(&action)) {
        EXPECT_TRUE(alive_.contains(grant->process.value) && workers_.contains(grant->worker.value));
        EXPECT_FALSE(actor_on_.contains(grant->worker.value)) << "an actor's worker is its own";
        for (const auto& [lease, worker] : worker_of_) {
          EXPECT_FALSE(held_.contains(lease) && worker == grant->worker.value) << "leased twice";
        }
        held_[grant->lease.value] = grant->process.value;
        worker_of_[grant->lease.value] = grant->worker.value;
      } else if (auto* grant = std::get_if<GrantActor>(&action)) {
        EXPECT_EQ(wanted_actors_.erase(grant->actor), 1u) << "nobody wanted it";
        EXPECT_TRUE(workers_.contains(grant->worker.value));
        EXPECT_TRUE(actor_on_.emplace(grant->worker.value, grant->actor).second) << "two actors on one worker";
        unsettled_.insert(grant->actor);
      } else if (auto* refuse = std::get_if<RefuseActor>(&action)) {
        EXPECT_EQ(wanted_actors_.erase(refuse->actor), 1u);
      } else if (auto* recall = std::get_if<RecallLease>(&action)) {
        EXPECT_TRUE(held_.contains(recall->lease.value));
      } else if (auto* want = std::get_if<WantWorkers>(&action)) {
        wanted_ = want->count;
      } else if (auto* kill = std::get_if<KillWorker>(&action)) {
        doomed_.insert(kill->worker.value);
      }
    }
  }

  Random random_;
  ResourceAmounts total_;
  LocalScheduler scheduler_;
  int64_t now_ = 0;
  uint64_t next_ = 2;
  uint32_t wanted_ = 0;
  std::set<uint64_t> alive_, workers_, doomed_;
  uint64_t actors_made_ = 0;
  std::set<ObjectId> wanted_actors_, unsettled_;
  std::map<uint64_t, ObjectId> actor_on_;   // by worker
  std::map<uint64_t, uint64_t> held_;       // lease to holder
  std::map<uint64_t, uint64_t> worker_of_;  // lease to worker
  std::string trace_;
};

TEST(LocalScheduler, RandomSessionsBalanceAndEnd) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomSession session(seed);
    for (int i = 0; i < 200; ++i) session.Step();
    session.Drain();
    if (HasFailure()) return;
  }
}

TEST(LocalScheduler, TheSameSeedGivesTheSameTrace) {
  std::string traces[2];
  for (auto& trace : traces) {
    RandomSession session(42);
    for (int i = 0; i < 200; ++i) session.Step();
    trace = session.trace();
  }
  EXPECT_FALSE(traces[0].empty());
  EXPECT_EQ(traces[0], traces[1]);
}

TEST(LocalScheduler, SaysWhoHoldsWhatAShapeNeeds) {
  const ResourceAmounts total{{"CPU", 4 * kResourceUnit}, {"press", kResourceUnit}};
  const ResourceAmounts shape{{"CPU", kResourceUnit}, {"press", kResourceUnit}};
  Transcript t(total);
  t.Driver(1);
  t.Worker(2);
  t(LeasesRequested{ProcessId{1}, shape, 1, 0});
  ShapeFact fact = t.scheduler.Explain(shape);
  EXPECT_EQ(fact.total, total);
  EXPECT_EQ(fact.free, (ResourceAmounts{{"CPU", 3 * kResourceUnit}}));
  ASSERT_EQ(fact.holders.size(), 1u);
  EXPECT_EQ(fact.holders[0].worker, ProcessId{2});
  // Its CPU is not counted: it lends that when its task waits.
  EXPECT_EQ(fact.holders[0].kept, (ResourceAmounts{{"press", kResourceUnit}}));
  EXPECT_TRUE(t.scheduler.Explain(Cpus(1)).holders.empty());
}

TEST(Resources, ShapesFromOutsideAreChecked) {
  EXPECT_TRUE(IsValidShape({}));
  EXPECT_TRUE(IsValidShape({{"CPU", 1}, {"gpu", 5}}));
  EXPECT_FALSE(IsValidShape({{"gpu", 5}, {"CPU", 1}}));
  EXPECT_FALSE(IsValidShape({{"CPU", 1}, {"CPU", 1}}));
  EXPECT_FALSE(IsValidShape({{"CPU", 0}}));
  EXPECT_FALSE(IsValidShape({{"CPU", -1}}));
  EXPECT_FALSE(IsValidShape({{"CPU", INT64_MAX}}));
  EXPECT_FALSE(IsValidShape({{"", 1}}));
  EXPECT_EQ(FormatAmount(kResourceUnit / 2), "0.5");
  EXPECT_EQ(FormatAmount(1), "0.0001");
  EXPECT_EQ(FormatAmount(640'000), "64");
}

}  // namespace
}  // namespace weft::core
