#include "object_store/memory_budget.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"

namespace weft::core {
namespace {

using Actions = std::vector<MemoryBudget::Action>;
constexpr int64_t kSecond = 1'000'000'000;
const ProcessId kA{1}, kB{2}, kC{3};

template <class Event>
Actions Do(MemoryBudget& budget, Event event) {
  Actions out;
  budget.Handle(event, out);
  budget.CheckInvariants();
  return out;
}

TEST(MemoryBudgetTest, WhatFitsIsGrantedAtOnce) {
  MemoryBudget budget({.capacity_bytes = 100});
  EXPECT_EQ(Do(budget, MemoryBudget::Reserved{kA, 1, 100, 0}), Actions{(MemoryBudget::Grant{kA, 1, 100})});
  EXPECT_EQ(budget.used_bytes(), 100u);
  EXPECT_EQ(budget.NextTickNs(), std::nullopt);
}

TEST(MemoryBudgetTest, MoreThanTheCapacityIsRefusedAtOnceNamingBoth) {
  MemoryBudget budget({.capacity_bytes = 100'000'000});
  Actions out = Do(budget, MemoryBudget::Reserved{kA, 1, 100'000'001, 0});
  ASSERT_EQ(out.size(), 1u);
  const auto& why = std::get<MemoryBudget::Refuse>(out[0]).why;
  EXPECT_NE(why.find("100000001"), std::string::npos) << why;
  EXPECT_NE(why.find("100000000"), std::string::npos) << why;
  EXPECT_NE(why.find("object_store_memory"), std::string::npos) << why;
}

TEST(MemoryBudgetTest, AbsurdNumbersAreRefusedOrClamped) {
  MemoryBudget budget({.capacity_bytes = 100});
  EXPECT_TRUE(
      std::holds_alternative<MemoryBudget::Refuse>(Do(budget, MemoryBudget::Reserved{kA, 1, UINT64_MAX, 0}).at(0)));
  Do(budget, MemoryBudget::Reserved{kA, 2, 50, 0});
  Do(budget, MemoryBudget::Released{kA, UINT64_MAX, 0});
  Do(budget, MemoryBudget::Released{kC, 7, 0});
  Do(budget, MemoryBudget::DeadFreed{kC, 7, 0});
  EXPECT_EQ(budget.used_bytes(), 0u);
}

TEST(MemoryBudgetTest, OthersAreAskedToTrimAndTheWaiterGetsWhatTheyRelease) {
  MemoryBudget budget({.capacity_bytes = 100});
  Do(budget, MemoryBudget::Reserved{kA, 1, 60, 0});
  Do(budget, MemoryBudget::Reserved{kB, 1, 30, 0});
  EXPECT_EQ(Do(budget, MemoryBudget::Reserved{kB, 2, 40, 0}), Actions{(MemoryBudget::AskTrim{kA, 30})});
  EXPECT_EQ(Do(budget, MemoryBudget::Released{kA, 29, 1}), Actions{});
  EXPECT_EQ(Do(budget, MemoryBudget::Released{kA, 1, 1}), Actions{(MemoryBudget::Grant{kB, 2, 40})});
}

TEST(MemoryBudgetTest, OthersAreAskedAgainUntilTheRequestIsRefused) {
  MemoryBudget budget({.capacity_bytes = 100'000'000, .wait_ns = 5 * kSecond, .ask_again_ns = kSecond});
  Do(budget, MemoryBudget::Reserved{kA, 1, 90'000'000, 0});
  Do(budget, MemoryBudget::Reserved{kB, 1, 20'000'000, 0});
  EXPECT_EQ(budget.NextTickNs(), kSecond);
  EXPECT_EQ(Do(budget, MemoryBudget::Ticked{kSecond - 1}), Actions{});
  EXPECT_EQ(Do(budget, MemoryBudget::Ticked{kSecond}), Actions{(MemoryBudget::AskTrim{kA, 10'000'000})});
  Actions out = Do(budget, MemoryBudget::Ticked{5 * kSecond});
  ASSERT_EQ(out.size(), 1u);
  const auto& refusal = std::get<MemoryBudget::Refuse>(out[0]);
  EXPECT_EQ(refusal.request, 1u);
  EXPECT_EQ(refusal.why,
            "the object store is full: 20 MB were needed, but 90 MB of 100 MB are in use by 1 process and nothing was "
            "freed within 5 s; drop references to objects that are no longer needed, or raise object_store_memory in "
            "init");
  EXPECT_EQ(budget.NextTickNs(), std::nullopt);
}

TEST(MemoryBudgetTest, ASmallRequestDoesNotOvertakeALargeOne) {
  MemoryBudget budget({.capacity_bytes = 100});
  Do(budget, MemoryBudget::Reserved{kA, 1, 50, 0});
  Do(budget, MemoryBudget::Reserved{kB, 1, 80, 0});
  EXPECT_EQ(Do(budget, MemoryBudget::Reserved{kC, 1, 10, 1}), Actions{});
  EXPECT_EQ(budget.Admit(ProcessId{9}, 1), 0u);
  // 80 and 10 fit after this release, in the order in which they came.
  EXPECT_EQ(Do(budget, MemoryBudget::Released{kA, 40, 2}),
            (Actions{MemoryBudget::Grant{kB, 1, 80}, MemoryBudget::Grant{kC, 1, 10}}));
}

TEST(MemoryBudgetTest, WhenTheFirstIsRefusedTheNextThatFitsIsGranted) {
  MemoryBudget budget({.capacity_bytes = 100, .wait_ns = 5 * kSecond});
  Do(budget, MemoryBudget::Reserved{kA, 1, 50, 0});
  Do(budget, MemoryBudget::Reserved{kB, 1, 80, 0});
  Do(budget, MemoryBudget::Reserved{kC, 1, 10, kSecond});
  Actions out = Do(budget, MemoryBudget::Ticked{5 * kSecond});
  ASSERT_EQ(out.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<MemoryBudget::Refuse>(out[0]));
  EXPECT_EQ(out[1], MemoryBudget::Action(MemoryBudget::Grant{kC, 1, 10}));
}

TEST(MemoryBudgetTest, ADeathFreesAllButWhatSurvives) {
  MemoryBudget budget({.capacity_bytes = 100});
  Do(budget, MemoryBudget::Reserved{kA, 1, 90, 0});
  Do(budget, MemoryBudget::Reserved{kA, 2, 90, 0});
  Do(budget, MemoryBudget::Reserved{kB, 1, 60, 0});
  EXPECT_EQ(Do(budget, MemoryBudget::Died{kA, 50, 0}), Actions{});
  EXPECT_EQ(budget.used_bytes(), 50u);
  EXPECT_EQ(Do(budget, MemoryBudget::DeadFreed{kA, 10, 0}), Actions{(MemoryBudget::Grant{kB, 1, 60})});
  Do(budget, MemoryBudget::DeadFreed{kA, 100, 0});
  EXPECT_EQ(budget.used_bytes(), 60u);
}

TEST(MemoryBudgetTest, TheMessageNamesObjectsOfDeadProcesses) {
  MemoryBudget budget({.capacity_bytes = 100'000'000});
  Do(budget, MemoryBudget::Died{kA, 90'000'000, 0});
  Do(budget, MemoryBudget::Reserved{kB, 1, 20'000'000, 0});
  Actions out = Do(budget, MemoryBudget::Ticked{6 * kSecond});
  ASSERT_EQ(out.size(), 1u);
  EXPECT_NE(std::get<MemoryBudget::Refuse>(out[0]).why.find("90 MB of it by objects of 1 that ended"),
            std::string::npos);
}

// Processes reserve, release, trim and die at random; every request of a living one ends exactly once, and in time.
TEST(MemoryBudgetTest, EveryRequestEndsExactlyOnce) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    MemoryBudget budget({.capacity_bytes = 1000, .wait_ns = 5 * kSecond});
    struct Open {
      uint64_t bytes;
      int64_t since_ns;
    };
    std::map<std::pair<ProcessId, uint64_t>, Open> open;
    std::map<ProcessId, uint64_t> held, dead;
    uint64_t next_process = 1, next_request = 1;
    std::vector<ProcessId> alive{{next_process++}};
    int64_t now = 0;
    auto perform = [&](const Actions& actions) {
      uint64_t last_granted = 0;
      for (const auto& action : actions) {
        if (auto* grant = std::get_if<MemoryBudget::Grant>(&action)) {
          ASSERT_EQ(open.erase({grant->process, grant->request}), 1u);
          EXPECT_GT(grant->request, last_granted) << "served out of order";
          last_granted = grant->request;
          held[grant->process] += grant->bytes;
        } else if (auto* refuse = std::get_if<MemoryBudget::Refuse>(&action)) {
          auto it = open.find({refuse->process, refuse->request});
          ASSERT_NE(it, open.end());
          EXPECT_TRUE(it->second.bytes > 1000 || now >= it->second.since_ns + 5 * kSecond) << "refused too early";
          EXPECT_FALSE(refuse->why.empty());
          open.erase(it);
        } else {
          EXPECT_GT(held[std::get<MemoryBudget::AskTrim>(action).process], 0u) << "asked one that has nothing";
        }
      }
      uint64_t sum = 0;
      for (auto& [process, bytes] : held) sum += bytes;
      EXPECT_LE(sum, 1000u);
      for (auto& [process, bytes] : dead) sum += bytes;
      EXPECT_EQ(sum, budget.used_bytes());
    };
    for (int step = 0; step < 400 && !testing::Test::HasFailure(); ++step) {
      now += static_cast<int64_t>(random.Below(kSecond / 2));
      ProcessId who = alive[random.Below(alive.size())];
      switch (random.Below(8)) {
        case 0:
          alive.push_back({next_process++});
          held[alive.back()] += budget.Admit(alive.back(), random.Below(20));
          break;
        case 1:
          if (alive.size() > 1) {
            std::erase(alive, who);
            uint64_t survives = held[who] == 0 ? 0 : random.Below(held[who]);
            held.erase(who);
            if (survives > 0) dead[who] = survives;
            std::erase_if(open, [&](auto& item) { return item.first.first == who; });
            perform(Do(budget, MemoryBudget::Died{who, survives, now}));
          }
          break;
        case 2:
        case 3: {
          uint64_t request = next_request++, bytes = random.Below(random.Chance(10) ? 1300 : 400);
          open[{who, request}] = {bytes, now};
          perform(Do(budget, MemoryBudget::Reserved{who, request, bytes, now}));
          break;
        }
        case 4:
        case 5: {
          uint64_t bytes = random.Below(held[who] + 1);
          held[who] -= bytes;
          perform(Do(budget, MemoryBudget::Released{who, bytes, now}));
          break;
        }
        case 6:
          if (!dead.empty()) {
            auto it = dead.begin();
            ProcessId whose = it->first;
            uint64_t bytes = 1 + random.Below(it->second);
            it->second -= bytes;
            if (it->second == 0) dead.erase(it);
            perform(Do(budget, MemoryBudget::DeadFreed{whose, bytes, now}));
          }
          break;
        default:
          perform(Do(budget, MemoryBudget::Ticked{now}));
      }
      EXPECT_EQ(budget.waiting_count(), open.size());
      EXPECT_EQ(budget.NextTickNs().has_value(), !open.empty());
    }
    now += 10 * kSecond;
    perform(Do(budget, MemoryBudget::Ticked{now}));
    EXPECT_TRUE(open.empty());
  }
}

}  // namespace
}  // namespace weft::core
