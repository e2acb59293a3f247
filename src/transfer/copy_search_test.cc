#include "transfer/copy_search.h"

#include <gtest/gtest.h>

#include <string>

namespace weft::core {
namespace {

constexpr Location kObject{{uint64_t{9} << 32 | 1}, 64, 1000, 5};
constexpr Location kOnlyItsName{kObject.segment, 0, 0, kObject.generation};
constexpr Location kOther{{uint64_t{9} << 32 | 1}, 128, 1000, 6};
constexpr ProcessId kOne{11}, kTwo{12};
constexpr NodeNumber kA{2}, kB{3}, kC{4};

class Transcript {
 public:
  template <class Event>
  std::string Feed(const Event& event) {
    std::vector<SearchAction> actions;
    search.Handle(event, actions);
    std::string text;
    for (const SearchAction& action : actions) {
      if (!text.empty()) text += "; ";
      if (const auto* ask = std::get_if<AskHolder>(&action)) {
        text += "ask " + std::to_string(ask->node.value);
        EXPECT_TRUE(ask->object == kObject || ask->object == kOther);
      } else {
        const auto& end = std::get<EndSearch>(action);
        EXPECT_TRUE(end.object == kObject || end.object == kOther) << "whole, whatever the answer named";
        text += end.holder ? "found at " + std::to_string(end.holder.value) : "not found";
        for (const auto& [process, request] : end.seekers) {
          text += " for " + std::to_string(process.value) + "#" + std::to_string(request);
        }
        if (end.for_pull) text += " for the pull";
      }
    }
    return text;
  }
  std::string Want(ProcessId process, uint64_t request, const Location& object = kObject) {
    return Feed(CopySought{process, request, object, {kA, kB, kC}});
  }
  std::string HasNothing(NodeNumber node) { return Feed(HolderAnswered{kOnlyItsName, node, false, true}); }

  CopySearch search;
};

TEST(CopySearch, TheFirstThatHasAllOfItEndsItForAll) {
  Transcript t;
  EXPECT_EQ(t.Want(kOne, 1), "ask 2; ask 3; ask 4");
  EXPECT_EQ(t.Want(kTwo, 1), "") << "they are asked once";
  EXPECT_EQ(t.Want({}, 0), "");
  EXPECT_EQ(t.HasNothing(kA), "");
  EXPECT_EQ(t.Feed(HolderAnswered{kObject, kC, true, false}), "found at 4 for 11#1 for 12#1 for the pull");
  EXPECT_EQ(t.Feed(HolderAnswered{kObject, kB, true, false}), "") << "too late";
  EXPECT_EQ(t.search.size(), 0u);
}

TEST(CopySearch, ItIsNotFoundWhenNobodyIsLeftToAnswer) {
  Transcript t;
  t.Want(kOne, 1);
  EXPECT_EQ(t.HasNothing(kA), "");
  EXPECT_EQ(t.HasNothing(kA), "") << "said twice";
  EXPECT_EQ(t.Feed(AskedNodeLost{kB}), "");
  EXPECT_EQ(t.HasNothing(kC), "not found for 11#1");
  EXPECT_EQ(t.Feed(CopySought{kOne, 2, kObject, {}}), "not found for 11#2") << "there is nobody else";
  EXPECT_EQ(t.search.size(), 0u);
}

TEST(CopySearch, WhoHasPartOfItIsWaitedForAndTellsMoreLater) {
  Transcript t;
  t.Want(kOne, 1);
  EXPECT_EQ(t.Feed(HolderAnswered{kObject, kA, false, false}), "");
  EXPECT_EQ(t.HasNothing(kB) + t.HasNothing(kC), "");
  EXPECT_EQ(t.Feed(HolderAnswered{kObject, kA, true, false}), "found at 2 for 11#1");
  t.Want(kOne, 2);
  t.Feed(HolderAnswered{kObject, kA, false, false});
  EXPECT_EQ(t.HasNothing(kB) + t.HasNothing(kC), "");
  EXPECT_EQ(t.HasNothing(kA), "not found for 11#2") << "it has given up";
}

TEST(CopySearch, WhoWasNotAskedIsNotHeard) {
  Transcript t;
  t.Want(kOne, 1);
  EXPECT_EQ(t.Feed(HolderAnswered{kObject, NodeNumber{8}, true, false}), "");
  EXPECT_EQ(t.Feed(HolderAnswered{kOther, kA, true, false}), "") << "of another object";
}

TEST(CopySearch, ItEndsWithThoseWhoWantItAndWithTime) {
  Transcript t;
  t.Want(kOne, 1);
  t.Want(kTwo, 7);
  EXPECT_EQ(t.Feed(SeekerLeft{kOne, 1}), "");
  EXPECT_EQ(t.Feed(SeekerDied{kTwo}), "not found") << "nobody hears it";
  t.Want(kOne, 2);
  t.Want({}, 0);
  EXPECT_EQ(t.Feed(SeekerDied{kOne}), "") << "the pull goes on";
  EXPECT_EQ(t.Want(kTwo, 8, kOther), "ask 2; ask 3; ask 4");
  EXPECT_EQ(t.Feed(SearchTimedOut{kObject}), "not found for the pull");
  EXPECT_EQ(t.Feed(AskedNodeLost{kA}) + t.Feed(AskedNodeLost{kB}), "");
  EXPECT_EQ(t.Feed(AskedNodeLost{kC}), "not found for 12#8");
  EXPECT_EQ(t.search.size(), 0u);
}

}  // namespace
}  // namespace weft::core
