#include "object_store/memory_budget.h"

#include <gtest/gtest.h>

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

TEST(MemoryBudgetTest, OthersAreAskedToTrimAndTheWaiterGetsWhatTheyRelease) {
  MemoryBudget budget({.capacity_bytes = 100});
  Do(budget, MemoryBudget::Reserved{kA, 1, 60, 0});
  Do(budget, MemoryBudget::Reserved{kB, 1, 30, 0});
  EXPECT_EQ(Do(budget, MemoryBudget::Reserved{kB, 2, 40, 0}), Actions{(MemoryBudget::AskTrim{kA, 30})});
  EXPECT_EQ(Do(budget, MemoryBudget::Released{kA, 29, 1}), Actions{});
  EXPECT_EQ(Do(budget, MemoryBudget::Released{kA, 1, 1}), Actions{(MemoryBudget::Grant{kB, 2, 40})});
}

}  // namespace
}  // namespace weft::core
