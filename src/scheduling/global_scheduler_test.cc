#include "scheduling/global_scheduler.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/random.h"
#include "scheduling/free_resources.h"
#include "scheduling/labels.h"

namespace weft::core {
namespace {

ResourceAmounts Amounts(double cpus, double gpus = 0, double custom = 0) {
  ResourceAmounts amounts;
  auto add = [&](const char* name, double count) {
    if (count > 0) amounts.emplace_back(name, static_cast<int64_t>(count * kResourceUnit));
  };
  add("CPU", cpus);
  add("GPU", gpus);
  add("tape", custom);
  return amounts;
}

PlacementStrategy Spread() { return {PlacementStrategy::Kind::kSpread, {}, false}; }
PlacementStrategy On(uint32_t node, bool soft = false) {
  return {PlacementStrategy::Kind::kAffinity, NodeNumber{node}, soft};
}

std::string Describe(const GlobalAction& action) {
  struct Visitor {
    static std::string Name(RequestId id) {
      return std::to_string(id.requester.value) + "." + std::to_string(id.number);
    }
    std::string operator()(const PlaceWork& a) {
      return Name(a.request) + " on " + std::to_string(a.node.value) +
             (a.count == 1 ? "" : " x" + std::to_string(a.count));
    }
    std::string operator()(const UnplaceWork& a) {
      return Name(a.request) + " not on " + std::to_string(a.node.value) +
             (a.count == 1 ? "" : " x" + std::to_string(a.count));
    }
    std::string operator()(const RefuseWork& a) { return "refuse " + Name(a.request) + ": " + a.why; }
    std::string operator()(const WarnInfeasible& a) { return "warn " + Name(a.request) + ": " + a.why; }
  };
  return std::visit(Visitor{}, action);
}

class Transcript {
 public:
  template <class Event>
  std::string operator()(const Event& event) {
    std::vector<GlobalAction> actions;
    scheduler.Handle(event, actions);
    scheduler.CheckInvariants();
    std::string text;
    for (const auto& action : actions) {
      if (const auto* place = std::get_if<PlaceWork>(&action)) placed[place->node.value] = place->placement;
      text += (text.empty() ? "" : "; ") + Describe(action);
    }
    return text;
  }
  std::string Join(uint32_t node, const ResourceAmounts& total, NodeLabels labels = {}) {
    return (*this)(NodeJoined{NodeNumber{node}, total, total, {}, std::move(labels)});
  }
  // The node has seen everything that was placed on it.
  std::string Report(uint32_t node, const ResourceAmounts& available, std::vector<int64_t> gpus = {}) {
    return (*this)(NodeReported{NodeNumber{node}, placed[node], available, std::move(gpus), 0, {}});
  }
  std::string Leave(uint32_t node) { return (*this)(NodeLeft{NodeNumber{node}}); }
  WorkRequested Work(uint32_t requester, uint64_t number, const ResourceAmounts& shape, uint32_t count = 1) {
    WorkRequested event;
    event.request = {NodeNumber{requester}, number};
    event.process = ProcessId{requester * 100 + number};
    event.shape = shape;
    event.count = count;
    return event;
  }
  std::string Request(uint32_t requester, uint64_t number, const ResourceAmounts& shape, uint32_t count = 1,
                      uint32_t depth = 0, uint64_t job = 0) {
    WorkRequested event = Work(requester, number, shape, count);
    event.depth = depth;
    event.job = job;
    return (*this)(event);
  }
  std::string Request(uint32_t requester, uint64_t number, const ResourceAmounts& shape, PlacementStrategy strategy,
                      uint32_t count = 1) {
    WorkRequested event = Work(requester, number, shape, count);
    event.strategy = strategy;
    return (*this)(event);
  }
  std::string Change(uint32_t requester, uint64_t number, uint32_t count, int64_t heard = RequestChanged::kAllHeard) {
    return (*this)(RequestChanged{{NodeNumber{requester}, number}, count, heard});
  }
  std::string Withdraw(uint32_t requester, uint64_t number) {
    return (*this)(RequestWithdrawn{{NodeNumber{requester}, number}});
  }
  std::string Refuse(uint32_t node, uint32_t requester, uint64_t number, uint32_t count = 1) {
    return (*this)(PlacementRefused{NodeNumber{node}, placed[node], {NodeNumber{requester}, number}, count});
  }

  GlobalScheduler scheduler;
  std::map<uint32_t, uint64_t> placed;
};

TEST(GlobalScheduler, FillsTheAskingNodeThenTheLeastLoadedThenWaits) {
  Transcript t;
  t.Join(1, Amounts(2));
  t.Join(2, Amounts(2));
  t.Join(3, Amounts(4));
  EXPECT_EQ(t.Request(1, 1, Amounts(1), 10), "1.1 on 1 x2; 1.1 on 2 x2; 1.1 on 3 x4");
  EXPECT_EQ(t.scheduler.WaitingOf({NodeNumber{1}, 1}), 2);
  EXPECT_EQ(t.scheduler.WaitingByShape().at(Amounts(1)), 2);
  EXPECT_EQ(t.Report(2, {}), "");
  EXPECT_EQ(t.Report(2, Amounts(1)), "1.1 on 2");
  EXPECT_EQ(t.Report(3, Amounts(4)), "1.1 on 3");
}

TEST(GlobalScheduler, WhatWasPlacedIsNotFreeUntilAReportHasSeenIt) {
  Transcript t;
  t.Join(1, Amounts(1));
  EXPECT_EQ(t.Request(1, 1, Amounts(1)), "1.1 on 1");
  // The report was sent before the placement came: its CPU is the one that was given away.
  EXPECT_EQ(t(NodeReported{NodeNumber{1}, 0, Amounts(1), {}, 0, {}}), "");
  EXPECT_EQ(t.scheduler.FreeOf(NodeNumber{1}, "CPU"), 0);
  EXPECT_EQ(t.Request(1, 2, Amounts(1)), "");
  // This one has seen it, and has another CPU.
  EXPECT_EQ(t(NodeReported{NodeNumber{1}, 1, Amounts(1), {}, 0, {}}), "1.2 on 1");
}

TEST(GlobalScheduler, AStalePictureIsNotAskedAgainBeforeTheNextReport) {
  Transcript t;
  t.Join(1, Amounts(1));
  t.Join(2, Amounts(1));
  EXPECT_EQ(t.Request(1, 1, Amounts(1)), "1.1 on 1");
  EXPECT_EQ(t.Refuse(1, 1, 1), "1.1 not on 1; 1.1 on 2");
  EXPECT_EQ(t.Refuse(2, 1, 1), "1.1 not on 2");
  EXPECT_EQ(t.Request(1, 2, Amounts(1)), "");
  EXPECT_EQ(t(NodeReported{NodeNumber{2}, 0, Amounts(1), {}, 0, {}}), "") << "sent before the refusal";
  EXPECT_EQ(t.Report(2, Amounts(1)), "1.1 on 2");
  // The report may come first.
  EXPECT_EQ(t.Report(2, {}), "");
  EXPECT_EQ(t.Refuse(2, 1, 1), "1.1 not on 2");
  EXPECT_EQ(t.Report(2, Amounts(2)), "1.1 on 2") << "no more free than it has in all";
}

TEST(GlobalScheduler, NothingIsPlacedOnANodeThatIsSuspected) {
  Transcript t;
  t.Join(1, Amounts(1));
  t.Join(2, Amounts(2));
  EXPECT_EQ(t(NodeSuspected{NodeNumber{2}, true}), "");
  EXPECT_EQ(t.Request(1, 1, Amounts(1), 2), "1.1 on 1");
  EXPECT_EQ(t.Request(1, 2, Amounts(1), On(2)), "");
  EXPECT_EQ(t.Report(2, Amounts(2)), "");
  EXPECT_EQ(t(NodeSuspected{NodeNumber{2}, false}), "1.1 on 2; 1.2 on 2");
}

TEST(GlobalScheduler, ReportsThatMakeNoSenseDoNoHarm) {
  Transcript t;
  t.Join(1, Amounts(2, 1));
  NodeReported report{NodeNumber{1}, 1'000, {{"CPU", INT64_MIN}, {"CPU", INT64_MAX}, {"x", 5}}, {}, UINT32_MAX, {}};
  report.free_gpus.assign(1'000, INT64_MAX);
  for (int i = 0; i < 100; ++i) {
    report.queued.push_back({{{"CPU", INT64_MAX}, {"GPU", INT64_MIN}, {"y", 1}}, UINT32_MAX});
  }
  t(report);
  EXPECT_EQ(t.scheduler.FreeOf(NodeNumber{1}, "CPU"), -2 * kResourceUnit);
  EXPECT_EQ(t.Request(1, 1, Amounts(1), UINT32_MAX), "");
  EXPECT_EQ(t(PlacementRefused{NodeNumber{1}, 77, {NodeNumber{1}, 1}, UINT32_MAX}), "") << "never placed";
  EXPECT_EQ(t(NodeReported{NodeNumber{9}, 0, {}, {}, 0, {}}), "") << "of nobody";
  EXPECT_EQ(t.Report(1, Amounts(2)), "1.1 on 1 x2");
}

TEST(GlobalScheduler, QueuedWorkGoesToANodeThatJoins) {
  Transcript t;
  t.Join(1, Amounts(1));
  EXPECT_EQ(t.Request(1, 1, Amounts(1), 4), "1.1 on 1");
  EXPECT_EQ(t.Join(2, Amounts(2)), "1.1 on 2 x2");
  EXPECT_EQ(t.Join(3, Amounts(8)), "1.1 on 3");
}

TEST(GlobalScheduler, NothingWaitsBehindSomethingLarger) {
  Transcript t;
  t.Join(1, Amounts(4));
  EXPECT_EQ(t.Request(1, 1, Amounts(3)), "1.1 on 1");
  EXPECT_EQ(t.Request(1, 2, Amounts(2)), "");
  EXPECT_EQ(t.Request(1, 3, Amounts(1)), "1.3 on 1");
}

TEST(GlobalScheduler, WhatIsPassedOverTooOftenHasANodeKeptFree) {
  Transcript t;
  t.Join(1, Amounts(2));
  t.Join(2, Amounts(2));
  EXPECT_EQ(t.Request(1, 1, Amounts(1), 1000, 0, 1), "1.1 on 1 x2; 1.1 on 2 x2");
  EXPECT_EQ(t.Request(1, 2, Amounts(2), 1, 0, 2), "");
  std::string last;
  int rounds = 0;
  // A CPU here, a CPU there: never two at once, as long as each is given away at once.
  int free[3] = {0, 0, 0};
  for (; rounds < 200 && last.find("1.2") == std::string::npos; ++rounds) {
    for (int node : {1, 2}) {
      free[node] = std::min(free[node] + 1, 2);
      last = t.Report(node, Amounts(free[node]));
      if (last.find("1.1 on " + std::to_string(node)) != std::string::npos) --free[node];
      if (last.find("1.2") != std::string::npos) break;
    }
  }
  EXPECT_LT(rounds, 40);
  EXPECT_GT(rounds, 5);
  EXPECT_EQ(last.substr(0, 6), "1.2 on");
}

TEST(GlobalScheduler, DeeperWorkComesFirstThenJobsTakeTurnsThenTheEarliest) {
  Transcript t;
  t.Join(1, Amounts(1));
  t.Request(1, 1, Amounts(1), 1, 0, 7);
  t.Request(1, 2, Amounts(1), 2, 0, 7);
  t.Request(1, 3, Amounts(1), 2, 0, 7);
  t.Request(1, 4, Amounts(1), 2, 0, 8);
  t.Request(1, 5, Amounts(1), 1, 3, 7);
  std::string order;
  for (int i = 0; i < 7; ++i) order += t.Report(1, Amounts(1)) + ", ";
  EXPECT_EQ(order, "1.5 on 1, 1.4 on 1, 1.4 on 1, 1.2 on 1, 1.2 on 1, 1.3 on 1, 1.3 on 1, ");
}

// How many leases three jobs get of one CPU that becomes free 60 times; the third asks for halves of it.
std::vector<int> LeasesOfThreeJobs(bool in_order_of_arrival) {
  Transcript t;
  t.scheduler.faults.serve_in_order_of_arrival = in_order_of_arrival;
  t.Join(1, Amounts(1));
  t.Request(1, 1, Amounts(1), 1000, 0, 1);
  t.Report(1, {});
  t.Request(1, 2, Amounts(1), 100, 0, 2);
  t.Request(1, 3, Amounts(0.5), 100, 0, 3);
  std::vector<int> before, served;
  for (uint64_t request : {1, 2, 3}) before.push_back(t.scheduler.WaitingOf({NodeNumber{1}, request}));
  for (int i = 0; i < 60; ++i) t.Report(1, Amounts(1));
  for (uint64_t request : {1, 2, 3})
    served.push_back(before[request - 1] - t.scheduler.WaitingOf({NodeNumber{1}, request}));
  return served;
}

TEST(GlobalScheduler, JobsAreServedAlikeHoweverMuchTheyAskFor) {
  EXPECT_EQ(LeasesOfThreeJobs(false), (std::vector<int>{20, 20, 40}));
  EXPECT_EQ(LeasesOfThreeJobs(true), (std::vector<int>{59, 0, 2}))
      << "who is passed over has the node kept free at last";
}

TEST(GlobalScheduler, MegabytesOfArgumentsDrawWork) {
  Transcript t;
  for (uint32_t node : {1, 2, 3}) t.Join(node, Amounts(2));
  auto with_arguments = [&](uint64_t number, uint64_t on_2, uint64_t on_3) {
    WorkRequested event = t.Work(1, number, Amounts(1));
    event.argument_bytes = {{NodeNumber{2}, on_2}, {NodeNumber{3}, on_3}, {NodeNumber{99}, 1ull << 40}};
    return t(event);
  };
  EXPECT_EQ(with_arguments(1, 100, 1000), "1.1 on 1") << "a few bytes are not worth a journey";
  EXPECT_EQ(with_arguments(2, 50 << 20, 500 << 20), "1.2 on 3");
  EXPECT_EQ(with_arguments(3, 50 << 20, 500 << 20), "1.3 on 3");
  EXPECT_EQ(with_arguments(4, 50 << 20, 500 << 20), "1.4 on 2");
}

TEST(GlobalScheduler, SpreadTakesNodesInTurn) {
  Transcript t;
  t.Join(1, Amounts(2));
  t.Join(2, Amounts(64));
  t.Join(3, Amounts(2));
  EXPECT_EQ(t.Request(1, 1, Amounts(1), Spread(), 3), "1.1 on 1; 1.1 on 2; 1.1 on 3");
  EXPECT_EQ(t.Request(1, 2, Amounts(1), Spread(), 4), "1.2 on 1; 1.2 on 2 x2; 1.2 on 3");
  EXPECT_EQ(t.Join(4, Amounts(2)), "");
  EXPECT_EQ(t.Request(1, 3, Amounts(1), Spread()), "1.3 on 4");
}

TEST(GlobalScheduler, WorkWithoutResourcesIsSpreadByNumber) {
  Transcript t;
  t.Join(1, Amounts(1));
  t.Join(2, Amounts(1));
  EXPECT_EQ(t.Request(1, 1, {}, Spread(), 4), "1.1 on 1 x2; 1.1 on 2 x2");
  // It fits without end, but not all at once.
  t.Request(1, 2, {}, 1'000'000);
  EXPECT_EQ(t.scheduler.WaitingOf({NodeNumber{1}, 2}), 65'536 - 2 * 1024 + 4);
  EXPECT_EQ(t.Report(2, Amounts(1)), "1.2 on 2 x1024");
}

TEST(GlobalScheduler, HardAffinityWaitsForItsNodeAndIsRefusedWithoutIt) {
  Transcript t;
  t.Join(1, Amounts(4));
  t.Join(2, Amounts(1));
  EXPECT_EQ(t.Request(1, 1, Amounts(1), On(2), 2), "1.1 on 2");
  EXPECT_EQ(t.Report(1, Amounts(4)), "");
  EXPECT_EQ(t.Report(2, Amounts(1)), "1.1 on 2");
  t.Change(1, 1, 1);
  EXPECT_EQ(t.Request(1, 2, Amounts(2), On(2)),
            "refuse 1.2: the task may run on node 2 only, but it has only 1 CPU in all, and 2 is asked for; choose "
            "another node, or use soft affinity if any will do");
  EXPECT_EQ(t.Request(1, 3, Amounts(2), On(9)),
            "refuse 1.3: the task may run on node 9 only, but it is not in the cluster; choose another node, or use "
            "soft affinity if any will do");
  EXPECT_EQ(t.Leave(2),
            "1.1 not on 2; refuse 1.1: the task may run on node 2 only, and that node has left the cluster; use soft "
            "affinity if another node will do");
}

TEST(GlobalScheduler, SoftAffinityWaitsForItsNodeAndGoesElsewhereWithoutIt) {
  Transcript t;
  t.Join(1, Amounts(4));
  t.Join(2, Amounts(1));
  EXPECT_EQ(t.Request(1, 1, Amounts(1), On(2, true), 3), "1.1 on 2");
  EXPECT_EQ(t.Report(2, Amounts(1)), "1.1 on 2");
  EXPECT_EQ(t.Request(1, 2, Amounts(2), On(2, true)), "1.2 on 1") << "too large for it";
  EXPECT_EQ(t.Request(1, 3, Amounts(1), On(9, true)), "1.3 on 1");
  EXPECT_EQ(t.Leave(2), "1.1 not on 2; 1.1 on 1") << "one was on its way, and one waits";
  EXPECT_EQ(t.scheduler.WaitingOf({NodeNumber{1}, 1}), 1);
}

TEST(GlobalScheduler, LabelsSayWhichNodesComeIntoQuestion) {
  Transcript t;
  t.Join(1, Amounts(4), {{"zone", "eu"}});
  t.Join(2, Amounts(4), {{"disk", "ssd"}, {"zone", "us"}});
  t.Join(3, Amounts(4), {{"disk", "hdd"}, {"zone", "us"}});
  uint64_t number = 0;
  auto ask = [&](LabelSelector labels) {
    WorkRequested event = t.Work(1, ++number, Amounts(1));
    event.labels = std::move(labels);
    std::string text = t(event);
    return text.substr(text.find(' ') + 1);
  };
  EXPECT_EQ(ask({{"zone", LabelTest::kIn, {"us"}}}), "on 2");
  EXPECT_EQ(ask({{"zone", LabelTest::kIn, {"us"}}, {"disk", LabelTest::kNotIn, {"ssd"}}}), "on 3");
  EXPECT_EQ(ask({{"zone", LabelTest::kIn, {"eu", "asia"}}}), "on 1");
  EXPECT_EQ(ask({{"disk", LabelTest::kExists, {}}, {"zone", LabelTest::kNotIn, {"eu"}}}), "on 2");
  EXPECT_EQ(ask({{"disk", LabelTest::kAbsent, {}}}), "on 1");
  EXPECT_EQ(ask({{"zone", LabelTest::kIn, {"asia", "africa"}}, {"disk", LabelTest::kExists, {}}}),
            "1.6: the task asks for a node with the labels zone in (asia, africa), disk exists, but no node of the "
            "cluster has them; it waits for one that has: weft start --labels=...");
  EXPECT_EQ(t.Join(4, Amounts(1), {{"disk", "ssd"}, {"zone", "asia"}}), "1.6 on 4");
}

TEST(GlobalScheduler, WhatNoNodeCouldServeIsToldAtOnceAndWaits) {
  Transcript t;
  t.Join(1, Amounts(4));
  t.Join(2, Amounts(2, 2));
  EXPECT_EQ(t.Request(1, 1, Amounts(1, 4)),
            "warn 1.1: the task asks for 4 GPU, but no node of the cluster has more than 2 (node 2); it waits for one "
            "that has; ask for less, or start a node with more: weft start --num-gpus=...");
  EXPECT_EQ(
      t.Request(1, 2, Amounts(0, 0, 1)),
      "warn 1.2: the task asks for 1 tape, but no node of the cluster has any; it waits for one that has; ask for "
      "less, or start a node with more: weft start --resource=tape=...");
  EXPECT_EQ(t.Request(1, 3, Amounts(4, 1)),
            "warn 1.3: the task asks for 4 CPU, 1 GPU, but no node of the cluster has all of it; it waits for one that "
            "has; ask for less, or start a larger node");
  EXPECT_EQ(t.Request(1, 4, Amounts(1, 1.5)),
            "refuse 1.4: the task asks for 1.5 GPU, but only less than one GPU can be a fraction; ask for a whole "
            "number");
  EXPECT_EQ(t.Change(1, 1, 2), "") << "said once";
  EXPECT_EQ(t.Join(3, Amounts(4, 4, 1)), "1.1 on 3; 1.2 on 3");
  EXPECT_EQ(
      t.Leave(3),
      "1.1 not on 3; 1.2 not on 3; warn 1.1: the task asks for 4 GPU, but no node of the cluster has more than 2 "
      "(node 2); it waits for one that has; ask for less, or start a node with more: weft start --num-gpus=...; "
      "warn 1.2: the "
      "task asks for 1 tape, but no node of the cluster has any; it waits for one that has; ask for less, or "
      "start a node with more: weft start --resource=tape=...; warn 1.3: the task asks for 4 CPU, 1 GPU, but no node "
      "of the cluster has all of it; it waits for one that has; ask for less, or start a larger node");
}

TEST(GlobalScheduler, GpusAreWholeOrPartsOfOne) {
  Transcript t;
  t.Join(1, Amounts(8, 2));
  t.Join(2, Amounts(4));
  EXPECT_EQ(t.Request(1, 1, Amounts(0, 0.6), 2), "1.1 on 1 x2") << "one on each";
  EXPECT_EQ(t.Request(1, 2, Amounts(0, 0.5)), "") << "0.8 are left, but not on one";
  EXPECT_EQ(t.Report(1, Amounts(8, 0.8), {4'000, 4'000}), "");
  EXPECT_EQ(t.Request(2, 1, Amounts(4)), "2.1 on 2");
  EXPECT_EQ(t.Report(1, Amounts(8, 1.4), {4'000, 10'000}), "1.2 on 1");
  EXPECT_EQ(t.Request(1, 3, Amounts(0, 1)), "");
  EXPECT_EQ(t.Report(1, Amounts(8, 2)), "1.3 on 1");
}

TEST(GlobalScheduler, NodesWithGpusAreSparedForWorkThatNeedsThem) {
  Transcript t;
  t.Join(1, Amounts(1));
  t.Join(2, Amounts(8, 4));
  t.Join(3, Amounts(2));
  EXPECT_EQ(t.Request(1, 1, Amounts(1), 4), "1.1 on 1; 1.1 on 3 x2; 1.1 on 2");
}

TEST(GlobalScheduler, NodesWithWhatUsersHaveNamedAreSparedToo) {
  Transcript t;
  t.Join(1, Amounts(1));
  t.Join(2, Amounts(8, 0, 4));
  t.Join(3, Amounts(2));
  t.Join(4, Amounts(2, 1));
  EXPECT_EQ(t.Request(1, 1, Amounts(1), 4), "1.1 on 1; 1.1 on 3 x2; 1.1 on 2");
  EXPECT_EQ(t.Request(1, 2, Amounts(1, 0, 1), 4), "1.2 on 2 x4");
}

TEST(GlobalScheduler, LoadThatIsQueuedOnANodeCounts) {
  Transcript t;
  t.Join(1, Amounts(1));
  t.Join(2, Amounts(4));
  t.Join(3, Amounts(4));
  t(NodeReported{NodeNumber{2}, 0, Amounts(4), {}, 0, {{Amounts(3), 5}}});
  t.Report(1, {});
  EXPECT_EQ(t.Request(1, 1, Amounts(1), 4), "1.1 on 3 x4");
}

TEST(GlobalScheduler, AChangedRequestDoesNotCountTwiceWhatIsOnItsWay) {
  Transcript t;
  t.Join(1, Amounts(2));
  t.Join(2, Amounts(8));
  EXPECT_EQ(t.Request(1, 1, Amounts(1), 3), "1.1 on 1 x2; 1.1 on 2");
  // The requester wants five in all and has heard of nothing yet.
  EXPECT_EQ(t.Change(1, 1, 5, 0), "1.1 on 2 x2");
  EXPECT_EQ(t.Change(1, 1, 2, 3), "");
  EXPECT_EQ(t.Change(1, 1, 3, 5), "1.1 on 2 x3");
  // Two of the last were refused, and the requester has not heard that either.
  EXPECT_EQ(t.Refuse(2, 1, 1, 2), "1.1 not on 2 x2");
  EXPECT_EQ(t.Change(1, 1, 0, 8), "");
  EXPECT_EQ(t.scheduler.WaitingOf({NodeNumber{1}, 1}), 2);
  EXPECT_EQ(t.Change(1, 1, 0), "");
  EXPECT_EQ(t.Withdraw(1, 1), "1.1 not on 1 x2; 1.1 not on 2; 1.1 not on 2 x2; 1.1 not on 2");
  EXPECT_EQ(t.scheduler.request_count(), 0);
}

TEST(GlobalScheduler, ARequestEndsWithTheNodeThatAsked) {
  Transcript t;
  t.Join(1, Amounts(1));
  t.Join(2, Amounts(1));
  EXPECT_EQ(t.Request(1, 1, Amounts(1), 3), "1.1 on 1; 1.1 on 2");
  EXPECT_EQ(t.Leave(1), "1.1 not on 1; 1.1 not on 2");
  EXPECT_EQ(t.Request(1, 2, Amounts(1)), "") << "sent before it left";
  EXPECT_EQ(t.scheduler.request_count(), 0);
  EXPECT_EQ(t.Report(1, Amounts(1)), "");
  EXPECT_EQ(t.Refuse(1, 1, 1), "");
}

// A cluster around the scheduler: nodes with what they really have, messages that take their time in each direction,
// work that nodes start by themselves, tasks that end, nodes that come and go. The network keeps the order per link.
class ClusterModel {
 public:
  struct Options {
    bool local_work = true;
    bool leave = true;
  };
  ClusterModel(uint64_t seed, Options options) : random_(seed), options_(options) {}

  void Run(int steps) {
    for (int i = 0; i < 3; ++i) AddNode();
    for (int i = 0; i < steps; ++i) Step();
    // Quiet: everything that is under way arrives, running work ends, a large node joins, and all requests are served.
    options_.local_work = options_.leave = false;
    AddNode(true);
    for (auto& [number, node] : nodes_) Handle(NodeSuspected{NodeNumber{number}, false});
    for (int i = 0; i < 4000 && !Settled(); ++i) {
      bool moved = false;
      for (auto& [number, node] : nodes_) moved = DeliverToNode(number) || moved;
      for (auto& [number, node] : nodes_) moved = DeliverToHead(number) || moved;
      if (!moved) EndOne();
    }
    WEFT_CHECK(Settled(), "everybody is served in the end");
  }

  GlobalScheduler scheduler;
  int refusals = 0;
  uint64_t granted = 0;

 private:
  struct Running {
    ResourceAmounts shape;
    AssignedGpus gpus;
  };
  struct ModelNode {
    explicit ModelNode(const ResourceAmounts& total) : free(total), total(total) {}
    FreeResources free;
    ResourceAmounts total;
    NodeLabels labels;
    uint64_t seen = 0;
    std::vector<Running> running;
    std::deque<GlobalAction> to_node;
    std::deque<std::variant<NodeReported, PlacementRefused>> to_head;
    bool changed = false;
  };
  struct ModelRequest {
    WorkRequested asked;
    int64_t open = 0;  // wanted, less granted
  };

  template <class Event>
  void Handle(const Event& event) {
    std::vector<GlobalAction> actions;
    scheduler.Handle(event, actions);
    scheduler.CheckInvariants();
    for (auto& action : actions) {
      if (auto* place = std::get_if<PlaceWork>(&action)) {
        auto node = nodes_.find(place->node.value);
        WEFT_CHECK(node != nodes_.end() && requests_.contains(place->request), "placed on a node that is there");
        WEFT_CHECK(Matches(requests_.at(place->request).asked.labels, node->second.labels), "labels are kept");
        const auto& strategy = requests_.at(place->request).asked.strategy;
        WEFT_CHECK(strategy.kind != PlacementStrategy::Kind::kAffinity || strategy.soft || strategy.node == place->node,
                   "affinity is kept");
        node->second.to_node.push_back(action);
      } else if (auto* unplace = std::get_if<UnplaceWork>(&action)) {
        auto node = nodes_.find(unplace->node.value);
        if (node != nodes_.end()) node->second.to_node.push_back(action);
      } else if (auto* refuse = std::get_if<RefuseWork>(&action)) {
        WEFT_CHECK(requests_.erase(refuse->request) == 1, "refused once");
      }
    }
  }

  void AddNode(bool large = false) {
    ResourceAmounts total = large ? Amounts(8, 4, 4)
                                  : Amounts(1 + random_.Below(4), random_.Chance(30) ? 1 + random_.Below(2) : 0,
                                            random_.Chance(20) ? 1 : 0);
    uint32_t number = next_node_++;
    auto& node = nodes_.emplace(number, total).first->second;
    if (large || random_.Chance(50)) node.labels = {{"zone", large || random_.Chance(50) ? "eu" : "us"}};
    Handle(NodeJoined{NodeNumber{number}, total, total, {}, node.labels});
  }
  uint32_t AnyNode() { return std::next(nodes_.begin(), random_.Below(nodes_.size()))->first; }

  void Step() {
    switch (random_.Below(14)) {
      case 0:
        if (nodes_.size() < 8) AddNode();
        break;
      case 1:
        if (options_.leave && nodes_.size() > 1 && random_.Chance(30)) {
          uint32_t number = AnyNode();
          // What it had not granted must be placed anew; what it had granted, its requester requests anew, or not at
          // all.
          std::erase_if(requests_, [&](const auto& entry) { return entry.first.requester.value == number; });
          nodes_.erase(number);
          Handle(NodeLeft{NodeNumber{number}});
        }
        break;
      case 2:
      case 3: {
        WorkRequested request;
        request.request = {NodeNumber{AnyNode()}, next_request_++};
        request.job = random_.Below(3);
        request.depth = random_.Chance(20) ? random_.Below(3) : 0;
        request.count = 1 + random_.Below(5);
        request.shape = Amounts(random_.Below(3) * 0.5, random_.Chance(20) ? 0.5 * (1 + random_.Below(2)) : 0,
                                random_.Chance(10) ? 1 : 0);
        if (random_.Chance(20)) request.strategy = Spread();
        if (random_.Chance(20)) request.strategy = On(AnyNode(), random_.Chance(50));
        if (random_.Chance(20))
          request.labels = {{"zone", random_.Chance(50) ? LabelTest::kIn : LabelTest::kNotIn, {"eu"}}};
        if (request.labels.size() == 1 && request.labels[0].test == LabelTest::kNotIn)
          request.labels[0].values = {"asia"};
        if (random_.Chance(30)) request.argument_bytes = {{NodeNumber{AnyNode()}, random_.Below(10) << 20}};
        requests_[request.request] = {request, request.count};
        Handle(request);
        break;
      }
      case 4:
        if (!requests_.empty() && random_.Chance(30)) {
          auto request = std::next(requests_.begin(), random_.Below(requests_.size()));
          RequestId id = request->first;
          requests_.erase(request);
          Handle(RequestWithdrawn{id});
        }
        break;
      case 5:
        EndOne();
        break;
      case 9:
        Handle(NodeSuspected{NodeNumber{AnyNode()}, random_.Chance(30)});
        break;
      case 6:
        if (options_.local_work) {  // the node starts something by itself, and the head hears of it later
          auto& node = nodes_.at(AnyNode());
          ResourceAmounts shape = Amounts(1);
          if (node.free.Fits(shape)) {
            node.running.push_back({shape, node.free.Take(shape)});
            node.changed = true;
          }
        }
        break;
      default:
        if (random_.Chance(50)) {
          DeliverToNode(AnyNode());
        } else {
          DeliverToHead(AnyNode());
        }
    }
  }

  void EndOne() {
    uint32_t number = AnyNode();
    auto& node = nodes_.at(number);
    if (node.running.empty()) {
      for (auto& [other, has] : nodes_) {
        if (!has.running.empty()) number = other;
      }
    }
    auto& from = nodes_.at(number);
    if (from.running.empty()) return;
    auto which = from.running.begin() + static_cast<int64_t>(random_.Below(from.running.size()));
    from.free.Give(which->shape, which->gpus);
    from.running.erase(which);
    from.changed = true;
    Report(number);
  }

  void Report(uint32_t number) {
    auto& node = nodes_.at(number);
    if (!node.changed) return;
    node.changed = false;
    NodeReported report{NodeNumber{number}, node.seen, {}, node.free.gpus(), 0, {}};
    for (const auto& [name, amount] : node.free.amounts().amounts()) {
      if (amount > 0) report.available.emplace_back(name, amount);
    }
    report.leases = static_cast<uint32_t>(node.running.size());
    node.to_head.emplace_back(std::move(report));
  }

  bool DeliverToNode(uint32_t number) {
    auto& node = nodes_.at(number);
    if (node.to_node.empty()) {
      bool said = node.changed;
      Report(number);
      return said;
    }
    GlobalAction action = std::move(node.to_node.front());
    node.to_node.pop_front();
    if (auto* place = std::get_if<PlaceWork>(&action)) {
      node.seen = place->placement;
      node.changed = true;
      uint32_t refused = 0;
      auto request = requests_.find(place->request);
      for (uint32_t i = 0; i < place->count; ++i) {
        if (!node.free.Fits(place->shape)) {
          ++refused;
          continue;
        }
        if (request == requests_.end()) continue;  // an UnplaceWork is on its way
        node.running.push_back({place->shape, node.free.Take(place->shape)});
        --request->second.open;
        ++granted;
      }
      if (refused > 0) {
        ++refusals;
        node.to_head.emplace_back(PlacementRefused{NodeNumber{number}, place->placement, place->request, refused});
      }
      if (random_.Chance(50)) Report(number);
    }
    return true;
  }

  bool DeliverToHead(uint32_t number) {
    auto& node = nodes_.at(number);
    if (node.to_head.empty()) return false;
    auto message = std::move(node.to_head.front());
    node.to_head.pop_front();
    std::visit([&](const auto& event) { Handle(event); }, message);
    return true;
  }

  bool Settled() const {
    for (const auto& [number, node] : nodes_) {
      if (!node.to_node.empty() || !node.to_head.empty() || node.changed) return false;
    }
    for (const auto& [id, request] : requests_) {
      if (request.open > 0) return false;
    }
    return scheduler.waiting_leases() == 0;
  }

  Random random_;
  Options options_;
  std::map<uint32_t, ModelNode> nodes_;
  std::map<RequestId, ModelRequest> requests_;
  uint32_t next_node_ = 1;
  uint64_t next_request_ = 1;
};

TEST(GlobalScheduler, EverybodyIsServedWhateverHappens) {
  uint64_t granted = 0;
  int refusals = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    ClusterModel model(seed, {});
    model.Run(200);
    granted += model.granted;
    refusals += model.refusals;
  }
  EXPECT_GT(granted, 10'000);
  EXPECT_GT(refusals, 100);
}

TEST(GlobalScheduler, WithoutWorkOfTheirOwnNodesNeverRefuse) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    ClusterModel model(seed, {.local_work = false});
    model.Run(200);
    EXPECT_EQ(model.refusals, 0) << "seed " << seed;
  }
}

// A planted bug is found either as a broken invariant, which aborts, or by what the test counts.
void RunWithFault(bool GlobalScheduler::Faults::* fault) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    ClusterModel model(seed, {.local_work = false});
    model.scheduler.faults.*fault = true;
    model.Run(200);
    WEFT_CHECK(model.refusals == 0, "nodes never refuse");
  }
}

TEST(GlobalSchedulerDeathTest, PlantedBugsAreFound) {
  using Faults = GlobalScheduler::Faults;
  EXPECT_DEATH(RunWithFault(&Faults::forget_debits), "nodes never refuse|not free|everybody is served");
  EXPECT_DEATH(RunWithFault(&Faults::forget_who_waits), "nothing waits that fits");
  EXPECT_DEATH(RunWithFault(&Faults::keep_trees), "tree that is clean|waits that fits|never refuse");
  EXPECT_DEATH(RunWithFault(&Faults::lose_what_was_on_the_way), "everybody is served");
}

}  // namespace
}  // namespace weft::core
