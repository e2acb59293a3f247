#include "node/lease_router.h"

#include <gtest/gtest.h>

#include "wire/placement.h"

namespace weft::core {
namespace {

constexpr ProcessId kProcess{7};
const ResourceAmounts kShape{{"gpu", 10'000}};

class LeaseRouterTest : public ::testing::Test {
 protected:
  std::vector<LeaseRequest> Tell(uint32_t count) {
    std::vector<LocalScheduler::UnmetRequest> wanted;
    if (count > 0) wanted.push_back({kProcess, kShape, count, 0});
    return router_.ToTell(wanted, false, [](ProcessId) { return true; }, [](ProcessId) { return ProcessId{1}; });
  }

  LeaseRouter router_{{.node_id = NodeIdText(1, {2}), .node = {2}, .in_cluster = true}};
};

TEST_F(LeaseRouterTest, WhatIsOnTheWayIsNotRequestedAgain) {
  auto told = Tell(3);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].count, 3u);
  EXPECT_TRUE(Tell(3).empty());
  router_.Assigned(1, 2);
  told = Tell(3);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].count, 1u);
  EXPECT_EQ(told[0].assigned_heard, 2);
}

TEST_F(LeaseRouterTest, WhatIsNoLongerNeededIsWithdrawn) {
  Tell(1);
  auto told = Tell(0);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].withdrawn, 1);
  EXPECT_EQ(router_.size(), 0u);
}

// The lease came over the link of its node while that of the head was slow, and there was no connection to its worker:
// it is still wanted when the head's word comes at last.
TEST_F(LeaseRouterTest, ALeaseThatComesBeforeTheHeadsWordDoesNotSilenceTheRequest) {
  Tell(1);
  router_.Arrived({kProcess, kShape});
  auto told = Tell(1);
  // One besides that of which the head's word is still to come.
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].count, 2u);
  EXPECT_EQ(told[0].assigned_heard, 0);
  router_.Assigned(1, 1);
  told = Tell(1);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].count, 1u);
  EXPECT_EQ(told[0].assigned_heard, 1);
}

TEST_F(LeaseRouterTest, WhatTheHeadTakesBackIsRequestedAgain) {
  Tell(1);
  router_.Assigned(1, 1);
  EXPECT_EQ(Tell(1).at(0).count, 0u);
  router_.Assigned(1, -1);
  EXPECT_EQ(Tell(1).at(0).count, 1u);
}

TEST_F(LeaseRouterTest, WhatMayHaveBeenLostWithANodeIsRequestedAgain) {
  Tell(1);
  router_.Assigned(1, 1);
  Tell(1);
  router_.NodeIsGone();
  const auto told = Tell(1);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].request, 1u);
  EXPECT_EQ(told[0].withdrawn, 1);
  EXPECT_EQ(told[1].request, 2u);
  EXPECT_EQ(told[1].count, 1u);
  EXPECT_EQ(told[1].assigned_heard, 0);
  router_.NodeIsGone();
  EXPECT_TRUE(Tell(1).empty());  // nothing was on its way
}

// Its node could not start a worker. What is needed later is requested, and not awaited from there.
TEST_F(LeaseRouterTest, WhatItsNodeHasRefusedIsNotOnTheWay) {
  Tell(3);
  router_.Assigned(1, 2);
  EXPECT_EQ(Tell(3).at(0).count, 1u);
  router_.Arrived({kProcess, kShape}, 2);
  const auto told = Tell(3);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].count, 3u);
  EXPECT_EQ(told[0].assigned_heard, 2);
}

TEST_F(LeaseRouterTest, ANewHeadHearsAllAgain) {
  Tell(2);
  router_.Assigned(1, 2);
  router_.HeadForgot();
  auto told = Tell(2);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].request, 2u);
  EXPECT_EQ(told[0].count, 2u);
}

// ---- places

ResourceAmounts Placed(const Placement& placement) {
  ResourceAmounts shape = kShape;
  AddPlacement(shape, placement);
  return shape;
}

TEST_F(LeaseRouterTest, WhatMustBeSpreadOrIsForAnotherNodeGoesToTheHeadAtOnce) {
  const Placement here{.node = NodeIdText(1, {2})}, there{.node = NodeIdText(1, {3})};
  EXPECT_TRUE(router_.MayServe(Placed(here)));
  EXPECT_FALSE(router_.MayServe(Placed(there)));
  EXPECT_FALSE(router_.MayServe(Placed({.spread = true})));
  EXPECT_TRUE(router_.MayServe(Placed({.near = {2}})));
  EXPECT_FALSE(router_.MayServe(Placed({.near = {3}})));
  EXPECT_FALSE(router_.Ask({kProcess, Placed(here)}, 2, 0));
  EXPECT_TRUE(router_.Ask({kProcess, Placed(there)}, 2, 5));
  auto told = Tell(0);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].count, 2u);
  EXPECT_EQ(told[0].depth, 5u);
  EXPECT_EQ(told[0].shape, Placed(there));
}

TEST_F(LeaseRouterTest, WhatOnlyTheHeadMayServeEndsWithItsLastGrant) {
  const LeaseRouter::Key key{kProcess, Placed({.spread = true})};
  router_.Ask(key, 2, 0);
  Tell(0);
  EXPECT_FALSE(router_.Granted(key));  // the local scheduler has not heard of it
  router_.Arrived(key);
  EXPECT_FALSE(router_.Granted(key));
  router_.Arrived(key);
  const auto told = Tell(0);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].withdrawn, 1);
  EXPECT_TRUE(router_.Granted({kProcess, kShape}));  // this one it has
}

TEST_F(LeaseRouterTest, WhatTheHeadRefusesForEverIsForgotten) {
  const LeaseRouter::Key key{kProcess, Placed({.spread = true})};
  router_.Ask(key, 1, 0);
  const uint64_t request = Tell(0).at(0).request;
  EXPECT_EQ(router_.Refused(request, false), key);
  EXPECT_EQ(router_.Refused(request, true), key);
  EXPECT_EQ(router_.Refused(request, true), std::nullopt);
  EXPECT_TRUE(Tell(0).empty());
}

TEST(LeaseRouterOfAPrivateSession, SaysWhyAPlacementCannotBeHad) {
  const LeaseRouter router({.node_id = NodeIdText(1, {1}), .node = {1}});
  EXPECT_EQ(router.WhyMisplaced(Placed({.spread = true})), "");
  EXPECT_EQ(router.WhyMisplaced(Placed({.node = NodeIdText(1, {1})})), "");
  EXPECT_EQ(router.WhyMisplaced(Placed({.node = NodeIdText(1, {2}), .soft = true})), "");
  EXPECT_NE(router.WhyMisplaced(Placed({.node = NodeIdText(1, {2})})), "");
}

}  // namespace
}  // namespace weft::core
