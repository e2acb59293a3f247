// Who is in a copy, and what the daemon hears of it.
#include "runtime/copies.h"

#include <gtest/gtest.h>

#include "runtime/owner.h"

namespace weft::core {
namespace {

class CopiesTest : public testing::Test {
 protected:
  // "fetch 1", "release 1"
  std::vector<std::string> TakeLog() { return std::exchange(log_, {}); }
  void Note(const Message& message) {
    if (auto* fetch = std::get_if<FetchObject>(&message)) log_.push_back("fetch " + std::to_string(fetch->request));
    if (auto* release = std::get_if<ReleaseObject>(&message)) {
      log_.push_back("release " + std::to_string(release->request));
    }
  }
  static Location At(uint64_t offset) {
    Location location;
    location.offset = offset;
    location.size = 100;
    return location;
  }

  std::vector<std::string> log_;
  Copies copies_{[this](Message message) { Note(message); }};
  Object object_, other_;
  Location location_;
};

using Log = std::vector<std::string>;

TEST_F(CopiesTest, AllWhoWantAnObjectShareOneCopy) {
  copies_.Use(&object_, At(0));
  copies_.Use(&other_, At(0));
  copies_.AddUser(At(0));
  EXPECT_EQ(TakeLog(), (Log{"fetch 1"}));
  EXPECT_TRUE(copies_.IsAsked(At(0)));
  const Copies::Copy* copy = copies_.Arrived(1, At(7), &location_);
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(location_, At(0));
  EXPECT_EQ(copy->objects, (std::vector<Object*>{&object_, &other_}));
  EXPECT_EQ(copies_.Find(At(0))->place, At(7));
  copies_.LetGo(&object_, At(0));
  copies_.RemoveUser(At(0));
  EXPECT_EQ(TakeLog(), Log{});
  copies_.LetGo(&other_, At(0));
  EXPECT_EQ(TakeLog(), (Log{"release 1"}));
  EXPECT_EQ(copies_.size(), 0u);
}

TEST_F(CopiesTest, AnAnswerToWhatWasReleasedIsDropped) {
  copies_.Use(&object_, At(0));
  copies_.LetGo(&object_, At(0));
  EXPECT_EQ(TakeLog(), (Log{"fetch 1", "release 1"}));
  EXPECT_EQ(copies_.Arrived(1, At(7), &location_), nullptr);
  EXPECT_FALSE(copies_.Failed(1, "gone", true).has_value());
  copies_.LetGo(&object_, At(0));  // twice
  EXPECT_EQ(TakeLog(), Log{});
}

TEST_F(CopiesTest, WhatHasFailedIsAskedForOnceMore) {
  copies_.Use(&object_, At(0));
  copies_.AddUser(At(0));  // it stays
  auto failure = copies_.Failed(1, "gone", true);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(*failure->error, "gone");
  EXPECT_TRUE(failure->node_gone);
  EXPECT_EQ(failure->objects, (std::vector<Object*>{&object_}));
  EXPECT_EQ(copies_.Find(At(0))->state, Copies::Copy::State::kFailed);
  copies_.Use(&other_, At(0));
  EXPECT_EQ(TakeLog(), (Log{"fetch 1", "fetch 2"}));
  copies_.Failed(2, "gone again", false);
  copies_.RemoveUser(At(0));
  EXPECT_EQ(TakeLog(), Log{});  // the daemon has nothing to release
  EXPECT_EQ(copies_.size(), 0u);
}

TEST_F(CopiesTest, AKeptCopyStaysUntilItFails) {
  copies_.Keep(At(0));
  copies_.Keep(At(0));
  copies_.Arrived(1, At(7), &location_);
  copies_.Use(&object_, At(0));
  copies_.LetGo(&object_, At(0));
  EXPECT_EQ(TakeLog(), (Log{"fetch 1"}));
  copies_.Unkeep(At(0));
  EXPECT_EQ(TakeLog(), (Log{"release 1"}));
}

}  // namespace
}  // namespace weft::core
