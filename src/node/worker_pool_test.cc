#include "node/worker_pool.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;

std::string Describe(const std::vector<PoolAction>& actions) {
  struct Visitor {
    std::string operator()(const StartWorker& a) { return "start " + ToString(a.worker); }
    std::string operator()(const RetireWorker& a) { return "retire " + ToString(a.worker); }
    std::string operator()(const AbandonStart& a) { return "abandon " + ToString(a.worker); }
    std::string operator()(const GiveUpStarting& a) { return "give up: " + a.why; }
  };
  std::string text;
  for (const auto& action : actions) text += (text.empty() ? "" : "; ") + std::visit(Visitor{}, action);
  return text;
}

class Transcript {
 public:
  explicit Transcript(uint32_t prestart, uint32_t keep) : pool({.prestart = prestart, .keep = keep}, &next_number) {}
  std::string Open() {
    return Run([&](auto& out) { pool.SessionOpened(now, out); });
  }
  std::string Want(uint32_t count) {
    return Run([&](auto& out) { pool.WorkersWanted(count, now, out); });
  }
  std::string Ready(uint64_t worker, uint32_t wanted_then = 0) {
    pool.WorkerBecameReady(ProcessId{worker}, now);
    return Want(wanted_then);
  }
  std::string Renew() {
    return Run([&](auto& out) { pool.Renew(now, out); });
  }
  std::string End(uint64_t worker, const std::string& how = "exited with code 1") {
    return Run([&](auto& out) { pool.WorkerEnded(ProcessId{worker}, how, now, out); });
  }
  std::string Time(int64_t ms) {
    now = ms * kMs;
    return Run([&](auto& out) { pool.TimePassed(now, out); });
  }
  template <class Call>
  std::string Run(Call call) {
    std::vector<PoolAction> actions;
    call(actions);
    pool.CheckInvariants();
    return Describe(actions);
  }
  uint64_t next_number = 2;  // 1 is the driver
  WorkerPool pool;
  int64_t now = 0;
};

TEST(WorkerPool, OutdatedWorkersLeaveWhenTheyHaveNothingToDo) {
  Transcript t(2, 4);
  t.Open();
  t.Want(4);  // 2 to 5
  for (uint64_t worker : {2, 3, 4}) t.Ready(worker);
  t.pool.WorkerWasLeased(ProcessId{2});
  t.pool.WorkerWasTaken(ProcessId{3});
  EXPECT_EQ(t.Renew(), "retire 4");
  EXPECT_EQ(t.Renew(), "");  // it is on its way
  EXPECT_FALSE(t.pool.WorkerBecameReady(ProcessId{5}, t.now));
  EXPECT_EQ(t.Want(0), "start 6");  // beside the leased one
  EXPECT_FALSE(t.pool.WorkerWasFreed(ProcessId{2}, t.now));
  EXPECT_EQ(t.Want(0), "start 7");
  for (uint64_t worker : {2, 4, 5}) EXPECT_EQ(t.End(worker, "exited with code 0"), "");  // no failed starts
  EXPECT_EQ(t.pool.size(), 3u);  // the actor's, and two new ones
  EXPECT_TRUE(t.pool.WorkerBecameReady(ProcessId{6}, t.now));
  t.pool.WorkerWasLeased(ProcessId{6});
  EXPECT_TRUE(t.pool.WorkerWasFreed(ProcessId{6}, t.now));
}

TEST(WorkerPool, PrestartsOnceTheSessionIsOpenAndMoreWhenWanted) {
  Transcript t(2, 2);
  EXPECT_EQ(t.Open(), "start 2; start 3");
  EXPECT_EQ(t.Want(1), "");  // one of those on their way will do
  EXPECT_EQ(t.Want(3), "start 4");
  EXPECT_EQ(t.Ready(2, 2), "");
  EXPECT_EQ(t.Ready(3, 1), "");
  EXPECT_EQ(t.Ready(4, 0), "");
}

TEST(WorkerPool, ReplacesThoseThatDied) {
  Transcript t(1, 1);
  t.Open();
  t.Ready(2);
  t.pool.WorkerWasLeased(ProcessId{2});
  EXPECT_EQ(t.End(2, "killed by signal 9 (SIGKILL)"), "start 3");
}

TEST(WorkerPool, AStartThatNeverWorkedIsGivenUpSoonAndInWords) {
  Transcript t(2, 2);
  t.Open();
  t.Want(2);
  EXPECT_EQ(t.End(2, "no such file"), "");
  EXPECT_EQ(t.End(3, "no such file"), "");  // the same failure, not a second one
  EXPECT_EQ(t.Time(49), "");
  EXPECT_EQ(t.pool.next_wakeup_ns(), 50 * kMs);
  EXPECT_EQ(t.Time(50), "start 4");
  EXPECT_EQ(t.End(4, "no such file"), "give up: no worker can be started: no such file");
  EXPECT_EQ(t.pool.next_wakeup_ns(), INT64_MAX);
  // Whoever asks again hears it at once; after a while it is tried once more.
  EXPECT_EQ(t.Want(1), "give up: no worker can be started: no such file");
  t.Time(6000);
  EXPECT_EQ(t.Want(1), "start 5");
  EXPECT_EQ(t.End(5, "still none"), "give up: no worker can be started: still none");
}

TEST(WorkerPool, AWorkerThatDiesAtBirthCountsAsAFailedStart) {
  Transcript t(1, 1);
  t.Open();
  int starts = 1;
  uint64_t worker = 2;
  bool gave_up = false;
  for (int i = 0; i < 100 && !gave_up; ++i) {
    t.Ready(worker);
    t.End(worker);
    t.Want(1);
    for (int64_t wait = 0; wait < 40 && t.pool.starting() == 0 && !t.pool.gave_up(); ++wait) {
      t.Time(t.now / kMs + 100);
    }
    gave_up = t.pool.gave_up();
    if (gave_up) break;
    ++starts;
    ++worker;
  }
  EXPECT_TRUE(gave_up);
  EXPECT_LE(starts, 7);
}

TEST(WorkerPool, AnActorsWorkerIsReplacedAndNeverRetired) {
  Transcript t(1, 1);
  EXPECT_EQ(t.Open(), "start 2");
  t.Ready(2);
  t.pool.WorkerWasTaken(ProcessId{2});
  EXPECT_EQ(t.Time(1), "start 3");  // another one is kept ready
  t.Ready(3);
  EXPECT_EQ(t.Time(60'000), "");
  EXPECT_EQ(t.pool.ready(), 1u);
  t.pool.WorkerWasFreed(ProcessId{2}, t.now);  // it is the actor's all the same
  EXPECT_EQ(t.pool.ready(), 1u);
  EXPECT_EQ(t.End(2), "");
}

TEST(WorkerPool, IdleWorkersBeyondTheCpusGo) {
  Transcript t(2, 2);
  t.Open();
  t.Want(4);
  for (uint64_t worker = 2; worker <= 5; ++worker) t.Ready(worker);
  t.pool.WorkerWasLeased(ProcessId{5});
  EXPECT_EQ(t.Time(9'999), "");
  EXPECT_EQ(t.Time(10'000), "retire 4; retire 3");  // 2 and 5 stay
  t.pool.WorkerWasFreed(ProcessId{5}, t.now);
  EXPECT_EQ(t.Time(30'000), "");
  EXPECT_EQ(t.End(4, "exited with code 0"), "");
  EXPECT_EQ(t.End(3, "exited with code 0"), "");
}

TEST(WorkerPool, AStartThatHangsIsAbandoned) {
  Transcript t(1, 1);
  t.Open();
  EXPECT_EQ(t.Time(29'999), "");
  EXPECT_EQ(t.Time(30'000), "abandon 2");
}

TEST(WorkerPool, RandomEventsKeepTheCountsAndTheBounds) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    Transcript t(static_cast<uint32_t>(random.Below(4)), 2);
    std::map<uint64_t, int> state;  // 0 starting, 1 idle, 2 leased, 3 retired
    uint32_t wanted = 0;
    auto note = [&](const std::vector<PoolAction>& actions) {
      for (const auto& action : actions) {
        if (auto* start = std::get_if<StartWorker>(&action)) {
          ASSERT_TRUE(state.emplace(start->worker.value, 0).second) << "a number was used twice";
        } else if (auto* retire = std::get_if<RetireWorker>(&action)) {
          ASSERT_EQ(state.at(retire->worker.value), 1) << "only idle workers are retired";
          state[retire->worker.value] = 3;
        }
      }
      t.pool.CheckInvariants();
    };
    std::vector<PoolAction> out;
    t.pool.SessionOpened(0, out);
    note(out);
    for (int i = 0; i < 300; ++i) {
      out.clear();
      t.now += static_cast<int64_t>(random.Below(2000)) * kMs;
      uint64_t pick =
          state.empty() ? 0 : std::next(state.begin(), static_cast<long>(random.Below(state.size())))->first;
      switch (random.Below(5)) {
        case 0:
          wanted = static_cast<uint32_t>(random.Below(5));
          t.pool.WorkersWanted(wanted, t.now, out);
          break;
        case 1:
          if (pick != 0 && state[pick] == 0) {
            state[pick] = 1;
            t.pool.WorkerBecameReady(ProcessId{pick}, t.now);
          }
          break;
        case 2:
          if (pick != 0 && state[pick] == 1) {
            state[pick] = 2;
            t.pool.WorkerWasLeased(ProcessId{pick});
          } else if (pick != 0 && state[pick] == 2) {
            state[pick] = 1;
            t.pool.WorkerWasFreed(ProcessId{pick}, t.now);
          }
          break;
        case 3:
          if (pick != 0 && random.Chance(50)) {
            state.erase(pick);
            t.pool.WorkerEnded(ProcessId{pick}, "test", t.now, out);
          }
          break;
        case 4:
          t.pool.TimePassed(t.now, out);
          break;
      }
      note(out);
      ASSERT_LE(t.pool.starting(), 8u);
    }
  }
}

}  // namespace
}  // namespace weft::core
