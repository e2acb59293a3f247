#include "actors/actor_names.h"

#include <gtest/gtest.h>

namespace weft::core {
namespace {

using Name = ActorNames::Name;

ObjectId Id(uint64_t index) { return {ProcessId{7}, index}; }
ActorNames::Holder HolderAt(uint32_t node, uint64_t index) { return {Id(index), NodeNumber{node}, "C", "m"}; }

TEST(ActorNames, ANameHasOneActorUntilItIsReleased) {
  ActorNames names;
  EXPECT_EQ(names.Take({"", "a"}, HolderAt(1, 1)), nullptr);
  const auto* other = names.Take({"", "a"}, HolderAt(2, 2));
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(other->actor, Id(1));
  EXPECT_EQ(other->metadata, "m");
  EXPECT_EQ(names.Take({"ns", "a"}, HolderAt(2, 2)), nullptr) << "another namespace is another name";

  names.Release({"", "a"}, Id(9));  // late word of an actor that had it before
  ASSERT_NE(names.Find({"", "a"}), nullptr);
  names.Release({"", "a"}, Id(1));
  EXPECT_EQ(names.Find({"", "a"}), nullptr);
  EXPECT_EQ(names.Take({"", "a"}, HolderAt(2, 3)), nullptr);
  EXPECT_EQ(names.Find({"", "a"})->actor, Id(3));
}

TEST(ActorNames, TheNamesOfANodeThatLeftAreFree) {
  ActorNames names;
  names.Take({"", "a"}, HolderAt(1, 1));
  names.Take({"", "b"}, HolderAt(2, 2));
  names.Take({"x", "c"}, HolderAt(2, 3));
  names.NodeLeft(NodeNumber{2});
  EXPECT_EQ(names.size(), 1u);
  EXPECT_NE(names.Find({"", "a"}), nullptr);
}

TEST(ActorNames, AreListedByNamespaceInOrder) {
  ActorNames names;
  names.Take({"", "z"}, HolderAt(1, 1));
  names.Take({"n", "b"}, HolderAt(1, 2));
  names.Take({"n", "a"}, HolderAt(2, 3));
  names.Take({"na", "a"}, HolderAt(2, 4));
  EXPECT_EQ(names.List(false, "n"), (std::vector<Name>{{"n", "a"}, {"n", "b"}}));
  EXPECT_EQ(names.List(false, "none"), std::vector<Name>{});
  EXPECT_EQ(names.List(true, "").size(), 4u);
}

TEST(ActorNames, AListIsNoLongerThanAMessage) {
  ActorNames names;
  for (uint64_t i = 0; i < 40; ++i)
    names.Take({std::string(99'000, 'n'), std::string(1'000, 'a') + std::to_string(i)}, HolderAt(1, i));
  const size_t listed = names.List(true, "").size();
  EXPECT_GT(listed, 20u);
  EXPECT_LT(listed, 40u);
}

TEST(ActorNames, WordsSayWhatToDo) {
  EXPECT_NE(NameIsTaken("", "a", CalledActor("C", "a")).find("is taken in the default namespace by a living actor C"),
            std::string::npos);
  EXPECT_NE(NameIsUnknown("n", "a").find("no living actor named \"a\" in namespace \"n\""), std::string::npos);
}

}  // namespace
}  // namespace weft::core
