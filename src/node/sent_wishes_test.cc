#include "node/sent_wishes.h"

#include <gtest/gtest.h>

namespace weft::core {
namespace {

constexpr ProcessId kProcess{7};
const ResourceAmounts kShape{{"gpu", 10'000}};

class SentWishesTest : public ::testing::Test {
 protected:
  std::vector<WishSent> Tell(uint32_t count) {
    std::vector<LocalScheduler::UnmetWish> wanted;
    if (count > 0) wanted.push_back({kProcess, kShape, count, 0});
    return wishes_.Tell(wanted, [](ProcessId) { return ProcessId{1}; });
  }

  uint64_t next_ = 1;
  SentWishes wishes_{&next_};
};

TEST_F(SentWishesTest, WhatIsOnTheWayIsNotWishedForAgain) {
  auto told = Tell(3);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].count, 3u);
  EXPECT_TRUE(Tell(3).empty());
  wishes_.Placed(1, 2);
  told = Tell(3);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].count, 1u);
  EXPECT_EQ(told[0].placed_heard, 2);
}

TEST_F(SentWishesTest, WhatIsWantedNoMoreIsWithdrawn) {
  Tell(1);
  auto told = Tell(0);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].withdrawn, 1);
  EXPECT_EQ(wishes_.size(), 0u);
}

// The lease came over the link of its node while that of the head was slow, and there was no connection to its worker:
// it is still wanted when the head's word comes at last.
TEST_F(SentWishesTest, ALeaseThatComesBeforeTheHeadsWordDoesNotSilenceTheWish) {
  Tell(1);
  wishes_.Arrived(kProcess, kShape);
  auto told = Tell(1);
  // One besides that of which the head's word is still to come.
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].count, 2u);
  EXPECT_EQ(told[0].placed_heard, 0);
  wishes_.Placed(1, 1);
  told = Tell(1);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].count, 1u);
  EXPECT_EQ(told[0].placed_heard, 1);
}

TEST_F(SentWishesTest, WhatTheHeadTakesBackIsWishedForAgain) {
  Tell(1);
  wishes_.Placed(1, 1);
  EXPECT_EQ(Tell(1).at(0).count, 0u);
  wishes_.Placed(1, -1);
  EXPECT_EQ(Tell(1).at(0).count, 1u);
}

TEST_F(SentWishesTest, WhatMayHaveBeenLostWithANodeIsWishedForAnew) {
  Tell(1);
  wishes_.Placed(1, 1);
  Tell(1);
  wishes_.WishAnew();
  const auto told = Tell(1);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].wish, 1u);
  EXPECT_EQ(told[0].withdrawn, 1);
  EXPECT_EQ(told[1].wish, 2u);
  EXPECT_EQ(told[1].count, 1u);
  EXPECT_EQ(told[1].placed_heard, 0);
  wishes_.WishAnew();
  EXPECT_TRUE(Tell(1).empty());  // nothing was on its way
}

// Its node could not start a worker. What is wanted later is wished for, and not awaited from there.
TEST_F(SentWishesTest, WhatItsNodeHasRefusedIsNotOnTheWay) {
  Tell(3);
  wishes_.Placed(1, 2);
  EXPECT_EQ(Tell(3).at(0).count, 1u);
  wishes_.Arrived(kProcess, kShape, 2);
  const auto told = Tell(3);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].count, 3u);
  EXPECT_EQ(told[0].placed_heard, 2);
}

TEST_F(SentWishesTest, ANewHeadHearsAllAnew) {
  Tell(2);
  wishes_.Placed(1, 2);
  wishes_.ForgetAll();
  auto told = Tell(2);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].wish, 2u);
  EXPECT_EQ(told[0].count, 2u);
}

}  // namespace
}  // namespace weft::core
