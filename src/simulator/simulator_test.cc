// Runs the simulator over many seeds, twice over some, and with planted bugs.
//
// One seed again, with its trace:  WEFT_SIM_SEED=17 WEFT_SIM_TRACE=1 simulator_test --gtest_filter='*Seeds*'
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "simulator/simulation.h"

namespace weft::core {
namespace {

constexpr uint64_t kSeeds = 500;
// A planted bug is looked for in more of them: what is drawn changes with the programs, and some bugs need luck.
constexpr uint64_t kPlantedSeeds = 4 * kSeeds;

volatile uint64_t g_seed = 0;

// A machine's own check aborts; say which seed it was.
void SayWhichSeed(int) {
  char text[160];
  int size = std::snprintf(text, sizeof text, "the simulation failed with seed %llu; again: WEFT_SIM_SEED=%llu\n",
                           static_cast<unsigned long long>(g_seed), static_cast<unsigned long long>(g_seed));
  if (::write(2, text, static_cast<size_t>(size)) < 0) ::_exit(3);
  ::signal(SIGABRT, SIG_DFL);
  ::abort();
}

SimulationResult RunSeed(SimulationOptions options, uint64_t seed) {
  g_seed = seed;
  options.seed = seed;
  return RunSimulation(options);
}

TEST(Simulator, KeepsEveryPromiseOverAllSeeds) {
  ::signal(SIGABRT, SayWhichSeed);
  SimulationOptions options;
  options.print_trace = std::getenv("WEFT_SIM_TRACE") != nullptr;
  uint64_t first = 0, last = kSeeds;
  if (const char* seed = std::getenv("WEFT_SIM_SEED")) {
    first = std::strtoull(seed, nullptr, 10);
    last = first + 1;
  } else if (const char* seeds = std::getenv("WEFT_SIM_SEEDS")) {
    last = std::strtoull(seeds, nullptr, 10);
  }
  Coverage coverage;
  uint64_t events = 0, tasks = 0, failed = 0;
  for (uint64_t seed = first; seed < last; ++seed) {
    SimulationResult result = RunSeed(options, seed);
    coverage.Add(result.coverage);
    events += result.events;
    tasks += result.tasks;
    if (result.failure.empty()) continue;
    ADD_FAILURE() << "seed " << seed << ": " << result.failure << "again: WEFT_SIM_SEED=" << seed
                  << " WEFT_SIM_TRACE=1 simulator_test --gtest_filter='*Seeds*'";
    if (++failed == 5) break;
  }
  std::printf("%llu seeds, %llu tasks, %llu events, %llu crashes\n", static_cast<unsigned long long>(last - first),
              static_cast<unsigned long long>(tasks), static_cast<unsigned long long>(events),
              static_cast<unsigned long long>(coverage.crashes()));
  if (last - first < kSeeds) return;
  for (const std::string& missing : coverage.Missing()) ADD_FAILURE() << "the runs were blind: " << missing;
  if (std::getenv("WEFT_SIM_COVERAGE")) std::printf("%s", coverage.Table().c_str());
}

TEST(Simulator, OneSeedGivesTheSameTraceTwice) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SimulationResult once = RunSeed({}, seed), again = RunSeed({}, seed);
    EXPECT_EQ(once.trace_hash, again.trace_hash) << "seed " << seed;
    EXPECT_EQ(once.events, again.events) << "seed " << seed;
  }
}

// In a process of its own, as a machine's own check may abort it.
[[noreturn]] void FindBug(const SimulationOptions& options) {
  ::signal(SIGABRT, SayWhichSeed);
  for (uint64_t seed = 0; seed < kPlantedSeeds; ++seed) {
    SimulationResult result = RunSeed(options, seed);
    if (result.failure.empty()) continue;
    std::fprintf(stderr, "found with seed %llu: %s\n", static_cast<unsigned long long>(seed), result.failure.c_str());
    ::abort();
  }
  std::fprintf(stderr, "not found\n");
  ::_exit(0);
}

struct Planted {
  const char* name;
  void (*plant)(SimulationOptions&);
};

class PlantedBug : public ::testing::TestWithParam<Planted> {};

TEST_P(PlantedBug, IsFound) {
  SimulationOptions options;
  GetParam().plant(options);
  EXPECT_DEATH(FindBug(options), "the simulation failed with seed");
}

constexpr Planted kPlanted[] = {
    {"FreeOneBorrowerEarly", [](SimulationOptions& o) { o.owner_faults.free_one_borrower_early = true; }},
    {"RetryWithoutCounting", [](SimulationOptions& o) { o.owner_faults.retry_without_counting = true; }},
    {"ForgetHandedBack", [](SimulationOptions& o) { o.owner_faults.forget_handed_back = true; }},
    {"AcceptLateReplies", [](SimulationOptions& o) { o.owner_faults.accept_late_replies = true; }},
    {"SkipHoldOnDependency", [](SimulationOptions& o) { o.owner_faults.skip_hold_on_dependency = true; }},
    {"ForgetToReturnLease", [](SimulationOptions& o) { o.owner_faults.forget_to_return_lease = true; }},
    {"GiveBackBeforeHandingOn", [](SimulationOptions& o) { o.worker_faults.give_back_before_handing_on = true; }},
    {"ForgetToRetain", [](SimulationOptions& o) { o.worker_faults.forget_to_retain = true; }},
    {"KeepResourcesOfDeadWorkers",
     [](SimulationOptions& o) { o.scheduler_faults.keep_resources_of_dead_workers = true; }},
    {"SpareWorkersOfTheDead", [](SimulationOptions& o) { o.scheduler_faults.spare_workers_of_the_dead = true; }},
    {"KeepCpusOfWhoStays", [](SimulationOptions& o) { o.scheduler_faults.keep_cpus_of_who_stays = true; }},
    {"RequeueCallsAtTheEnd", [](SimulationOptions& o) { o.owner_faults.requeue_calls_at_the_end = true; }},
    {"ForgetCallsBehindAFailedOne",
     [](SimulationOptions& o) { o.owner_faults.forget_calls_behind_a_failed_one = true; }},
    {"SayThatCallsDidNotRun", [](SimulationOptions& o) { o.owner_faults.say_that_calls_did_not_run = true; }},
    {"KeepActorsWithoutHandles", [](SimulationOptions& o) { o.owner_faults.keep_actors_without_handles = true; }},
    {"ForgetLeaseOfCancelled", [](SimulationOptions& o) { o.owner_faults.forget_lease_of_cancelled = true; }},
    {"RetryCancelled", [](SimulationOptions& o) { o.owner_faults.retry_cancelled = true; }},
    {"RestartTheKilled", [](SimulationOptions& o) { o.directory_faults.restart_the_killed = true; }},
    {"KeepNamesOfTheDead", [](SimulationOptions& o) { o.directory_faults.keep_names_of_the_dead = true; }},
};

INSTANTIATE_TEST_SUITE_P(Simulator, PlantedBug, ::testing::ValuesIn(kPlanted),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weft::core
