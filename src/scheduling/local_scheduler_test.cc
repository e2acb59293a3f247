#include "scheduling/local_scheduler.h"

#include <gtest/gtest.h>

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
  std::string Wish(uint64_t process, double cpus, uint32_t count, uint32_t depth = 0) {
    return (*this)(LeasesRequested{ProcessId{process}, Cpus(cpus), count, depth});
  }
  std::string Return(uint64_t process, uint64_t lease) {
    return (*this)(LeaseReturned{ProcessId{process}, LeaseId{lease}});
  }
  std::string Block(uint64_t worker) { return (*this)(WorkerBlocked{ProcessId{worker}}); }
  std::string Unblock(uint64_t worker) { return (*this)(WorkerUnblocked{ProcessId{worker}}); }
  std::string Lose(uint64_t process) { return (*this)(ProcessLost{ProcessId{process}}); }
  std::string Time(int64_t ms) { return (*this)(TimePassed{ms * kMs}); }

  LocalScheduler scheduler;
  bool show_wants = false;
};

TEST(LocalScheduler, GrantsWhatFitsAndAsksForWorkersItCouldUse) {
  Transcript t(Cpus(2));
  t.show_wants = true;
  t.Driver(1);
  EXPECT_EQ(t.Wish(1, 1, 5), "want 2; demand on");
  EXPECT_EQ(t.Worker(2), "grant 1: worker 2 to 1; want 1");
  EXPECT_EQ(t.Worker(3), "grant 2: worker 3 to 1; want 0");
  EXPECT_EQ(t.Worker(4), "want 0");
  EXPECT_EQ(t.Return(1, 1), "grant 3: worker 2 to 1");
  EXPECT_EQ(t.Wish(1, 1, 0), "demand off");
  EXPECT_EQ(t.Return(1, 3), "");
  EXPECT_EQ(t.Return(1, 2), "");
  EXPECT_EQ(t.scheduler.free().Of("CPU"), 2 * kResourceUnit);
}

TEST(LocalScheduler, RefusesWhatCanNeverBe) {
  Transcript t({{"CPU", 2 * kResourceUnit}, {"gpu", kResourceUnit / 2}});
  t.Driver(1);
  EXPECT_EQ(t.Wish(1, 64, 1),
            "refuse 1: the task asks for 64 CPU, but this session has only 2 in all (it has 2 CPU, 0.5 gpu); "
            "ask for less, or start it with more: weft.init(num_cpus=...)");
  EXPECT_EQ(t(LeasesRequested{ProcessId{1}, {{"tpu", kResourceUnit}}, 1, 0}),
            "refuse 1: the task asks for 1 tpu, but this session has none (it has 2 CPU, 0.5 gpu); "
            "ask for less, or start it with more: weft.init(resources={...})");
}

TEST(LocalScheduler, ABlockedWorkerLendsItsCpuAndTakesItBack) {
  Transcript t(Cpus(1));
  t.Driver(1);
  t.Worker(2);
  t.Worker(3);
  t.Worker(4);
  EXPECT_EQ(t.Wish(1, 1, 1), "grant 1: worker 2 to 1");
  // The task on worker 2 has a child. It cannot run beside its parent, until the parent waits for it.
  EXPECT_EQ(t.Wish(2, 1, 1, 1), "demand on; recall 1 from 1");
  EXPECT_EQ(t.Block(2), "grant 2: worker 3 to 2; demand off");
  EXPECT_EQ(t.scheduler.free().Of("CPU"), 0);
  // The parent resumes while the child's lease is still held: over-committed by what was lent, and nothing is granted.
  EXPECT_EQ(t.Unblock(2), "");
  EXPECT_EQ(t.scheduler.free().Of("CPU"), -kResourceUnit);
  EXPECT_EQ(t.Wish(1, 1, 1), "demand on");
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
  EXPECT_EQ(t.Wish(2, 1, 1, 1), "grant 2: worker 3 to 2");
}

TEST(LocalScheduler, DeeperWishesGoFirst) {
  Transcript t(Cpus(1));
  t.Driver(1);
  t.Worker(2);
  t.Worker(3);
  EXPECT_EQ(t.Wish(1, 1, 10), "grant 1: worker 2 to 1; demand on");
  EXPECT_EQ(t.Wish(2, 1, 1, 1), "recall 1 from 1");
  EXPECT_EQ(t.Block(2), "grant 2: worker 3 to 2");
}

TEST(LocalScheduler, RecallsFromTheRichestUntilBothHaveTheSame) {
  Transcript t(Cpus(4));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 6; ++worker) t.Worker(worker);
  t.Wish(1, 1, 100);
  ASSERT_EQ(t.scheduler.lease_count(), 4u);
  EXPECT_EQ(t.Wish(6, 1, 100), "recall 4 from 1; recall 3 from 1");
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
  t.Wish(1, 1, 10);
  EXPECT_EQ(t.Wish(3, 1, 10), "");  // an equal waits for its turn
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
  t.Wish(1, 1, 100);
  EXPECT_EQ(t.Wish(5, 1, 1), "recall 3 from 1");
  EXPECT_EQ(t.Time(49), "");
  EXPECT_EQ(t.Time(50), "recall 2 from 1");
  EXPECT_EQ(t.Return(1, 2), "grant 4: worker 3 to 5");
}

TEST(LocalScheduler, ALargeWishIsNotStarvedBySmallOnes) {
  Transcript t(Cpus(2));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 4; ++worker) t.Worker(worker);
  t.Wish(1, 1, 1000);
  t.Wish(4, 2, 1);
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

TEST(LocalScheduler, NothingIsKeptFreeForAWishThatBlockedTasksPrevent) {
  // Worker 2 holds x and waits for a child that needs a CPU. Keeping the CPU free for somebody who needs x as well
  // would be a deadlock.
  Transcript t({{"CPU", kResourceUnit}, {"x", kResourceUnit}});
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 4; ++worker) t.Worker(worker);
  EXPECT_EQ(t(LeasesRequested{ProcessId{1}, {{"x", kResourceUnit}}, 1, 1}), "grant 1: worker 2 to 1");
  t(LeasesRequested{ProcessId{1}, {{"CPU", kResourceUnit}, {"x", kResourceUnit}}, 1, 1});
  t.Block(2);
  for (uint64_t lease = 2; lease < 30; ++lease) {
    ASSERT_EQ(t.Wish(2, 1, 1, 1), "grant " + std::to_string(lease) + ": worker 3 to 2");
    t.Return(2, lease);
  }
}

TEST(LocalScheduler, NobodyLeasesItself) {
  Transcript t(Cpus(1));
  t.show_wants = true;
  t.Driver(1);
  t.Worker(2);
  EXPECT_EQ(t.Wish(2, 1, 1), "want 1");
  EXPECT_EQ(t.Worker(3), "grant 1: worker 3 to 2; want 0");
}

TEST(LocalScheduler, AWorkerOfADeadSubmitterIsKilledAndItsResourcesFollow) {
  Transcript t(Cpus(2));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 4; ++worker) t.Worker(worker);
  t.Wish(1, 1, 1);
  EXPECT_EQ(t.Wish(2, 1, 1, 1), "grant 2: worker 3 to 2");
  EXPECT_EQ(t.Lose(2), "kill 3");
  EXPECT_EQ(t.scheduler.free().Of("CPU"), kResourceUnit);  // worker 3 may still run
  EXPECT_EQ(t.Lose(3), "");
  EXPECT_EQ(t.scheduler.free().Of("CPU"), 2 * kResourceUnit);
}

TEST(LocalScheduler, PrefersAWorkerThatTheSubmitterKnows) {
  Transcript t(Cpus(2));
  t.Driver(1);
  for (uint64_t worker = 2; worker <= 4; ++worker) t.Worker(worker);
  EXPECT_EQ(t.Wish(1, 1, 1), "grant 1: worker 2 to 1");
  EXPECT_EQ(t.Wish(4, 1, 1), "grant 2: worker 3 to 4");
  t.Return(1, 1);
  t.Return(4, 2);
  EXPECT_EQ(t.Wish(4, 1, 1), "grant 3: worker 3 to 4");
}

TEST(LocalScheduler, ShapesWithoutCpusAreBoundedByTheNumberOfWorkers) {
  Transcript t(Cpus(1));
  t.show_wants = true;
  t.Driver(1);
  EXPECT_EQ(t.Wish(1, 0, 100), "want 16");
  EXPECT_EQ(t.scheduler.demand(), false);
}

TEST(LocalScheduler, GivingUpTellsEverybodyWhoseWishIsForgotten) {
  Transcript t(Cpus(2));
  t.Driver(1);
  t.Worker(2);
  t.Wish(1, 1, 2);
  EXPECT_EQ(t(StartingGivenUp{"no python"}), "refuse 1: no python");
}

TEST(LocalScheduler, NothingIsRecalledFromADeeperWishThatWouldGetItBack) {
  Transcript t(Cpus(1));
  t.Driver(1);
  t.Worker(2);
  t.Worker(3);
  LeasesRequested deeper{ProcessId{2}, {{"CPU", kResourceUnit}}, 2, 1};
  EXPECT_EQ(t(deeper), "grant 1: worker 3 to 2; demand on");
  EXPECT_EQ(t.Wish(1, 1, 1), "");
  EXPECT_EQ(t(TimePassed{1'000'000'000}), "");
}

TEST(LocalScheduler, GivingUpRefusesThoseWhoHaveNothing) {
  Transcript t(Cpus(2));
  t.Driver(1);
  t.Wish(1, 1, 3);
  EXPECT_EQ(t(StartingGivenUp{"no python"}), "refuse 1: no python; demand off");
  EXPECT_EQ(t.Worker(2), "");
}

// A model of everybody else: sends random but possible events, and checks after each that the books balance.
class RandomSession {
 public:
  explicit RandomSession(uint64_t seed)
      : random_(seed),
        total_({{"CPU", static_cast<int64_t>(1 + random_.Below(4)) * kResourceUnit},
                {"gpu", static_cast<int64_t>(1 + random_.Below(2)) * kResourceUnit}}),
        scheduler_(LocalScheduler::Config{total_, 64}) {
    Do(ProcessJoined{ProcessId{1}, false});
    alive_.insert(1);
  }

  void Step() {
    now_ += static_cast<int64_t>(random_.Below(10)) * kMs;
    Do(TimePassed{now_});
    switch (random_.Below(10)) {
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

  // Nobody crashes any more, everybody returns what he holds when asked or done: every wish must be served.
  void Drain() {
    for (int i = 0; i < 2000; ++i) {
      now_ += 30 * kMs;
      for (uint64_t worker : std::set<uint64_t>(workers_)) Do(WorkerUnblocked{ProcessId{worker}});
      for (uint64_t worker : std::set<uint64_t>(doomed_)) Lose(worker);
      if (workers_.size() < 24 && wanted_ > 0) Join();
      if (!held_.empty()) Return(PickHeld());
      Do(TimePassed{now_});
      if (held_.empty() && wanted_ == 0 && doomed_.empty()) break;
    }
    EXPECT_TRUE(held_.empty());
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
    if (random_.Chance(20)) shape.push_back({"gpu", kResourceUnit});
    return shape;
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
        for (const auto& [lease, worker] : worker_of_) {
          EXPECT_FALSE(held_.contains(lease) && worker == grant->worker.value) << "leased twice";
        }
        held_[grant->lease.value] = grant->process.value;
        worker_of_[grant->lease.value] = grant->worker.value;
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
