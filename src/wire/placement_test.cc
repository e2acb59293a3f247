#include "wire/placement.h"

#include <gtest/gtest.h>

namespace weft::core {
namespace {

const std::string kNode(32, 'a');

TEST(Placement, ComesBackAsItWas) {
  const LabelSelector labels{{"disk", LabelTest::kIn, {"ssd", "nvme"}},
                             {"gpu", LabelTest::kNotIn, {"a100"}},
                             {"rack", LabelTest::kExists, {}},
                             {"old", LabelTest::kAbsent, {}},
                             {"empty", LabelTest::kIn, {""}}};
  const std::pair<Placement, std::string> all[] = {
      {{.spread = true}, "~spread"},
      {{.node = kNode}, "~node:" + kNode},
      {{.node = kNode, .soft = true}, "~node~:" + kNode},
      {{.near = NodeNumber{12}}, "~near:12"},
      {{.labels = labels}, "~?disk=ssd,nvme&gpu!=a100&rack&!old&empty="},
      {{.spread = true, .labels = {{"zone", LabelTest::kIn, {"eu"}}}}, "~spread?zone=eu"},
  };
  for (const auto& [placement, name] : all) {
    EXPECT_EQ(EncodePlacement(placement), name);
    Placement decoded;
    ASSERT_TRUE(DecodePlacement(name, &decoded)) << name;
    EXPECT_EQ(decoded, placement) << name;
    EXPECT_EQ(EncodePlacement(decoded), name);
  }
  EXPECT_EQ(EncodePlacement({}), "");
}

TEST(Placement, WhatCannotBeIsRefused) {
  Placement ignored;
  for (const std::string name : {"",       "CPU",     "~",       "~?",       "~spread?", "~nowhere",         "~node:12",
                                 "~node:", "~?=x",    "~?a=b c", "~?a&&b",   "~?!",      "~spread?zone=eu&", "~spreadx",
                                 "~near:", "~near:0", "~near:x", "~near:1x", "~near:-1", "~near:4294967296"}) {
    EXPECT_FALSE(DecodePlacement(name, &ignored)) << name;
  }
  EXPECT_FALSE(DecodePlacement("~node:" + std::string(32, 'A'), &ignored));
  EXPECT_FALSE(DecodePlacement("~?" + std::string(kMaxPlacementBytes, 'a'), &ignored));
}

TEST(Placement, IsOneEntryOfAShape) {
  ResourceAmounts shape{{"CPU", 10'000}, {"\xc3\xa4", 1}};
  EXPECT_EQ(PlacementOf(shape), "");
  const ResourceAmounts before = shape;
  AddPlacement(shape, {.spread = true});
  EXPECT_EQ(PlacementOf(shape), "~spread");
  EXPECT_EQ(WithoutPlacement(shape), before);
  EXPECT_TRUE(std::is_sorted(shape.begin(), shape.end()));
  AddPlacement(shape, {});
  EXPECT_EQ(shape.size(), 3u);
}

TEST(Placement, ConditionsAsUsersWriteThem) {
  auto parse = [](std::string text) { return *ParseLabelCondition("k", std::move(text)); };
  EXPECT_EQ(parse("eu"), (LabelCondition{"k", LabelTest::kIn, {"eu"}}));
  EXPECT_EQ(parse("!eu"), (LabelCondition{"k", LabelTest::kNotIn, {"eu"}}));
  EXPECT_EQ(parse("in(a, b)"), (LabelCondition{"k", LabelTest::kIn, {"a", "b"}}));
  EXPECT_EQ(parse("!in(a,b)"), (LabelCondition{"k", LabelTest::kNotIn, {"a", "b"}}));
  EXPECT_EQ(parse("*"), (LabelCondition{"k", LabelTest::kExists, {}}));
  EXPECT_EQ(parse("!*"), (LabelCondition{"k", LabelTest::kAbsent, {}}));
  EXPECT_FALSE(ParseLabelCondition("k", "a b").ok());
  EXPECT_FALSE(ParseLabelCondition("", "a").ok());
  EXPECT_FALSE(ParseLabelCondition("a b", "*").ok());
}

TEST(Placement, NodesAreNamedByClusterAndNumber) {
  const std::string id = NodeIdText(0x1234, NodeNumber{7});
  EXPECT_EQ(id, "00000000000012340000000000000007");
  EXPECT_EQ(NumberOfNodeId(0x1234, id), NodeNumber{7});
  EXPECT_EQ(NumberOfNodeId(0x1235, id), NodeNumber{});
  EXPECT_EQ(NumberOfNodeId(0x1234, "7"), NodeNumber{});
  EXPECT_EQ(FormatPlacement("~node:" + id), "on node 7");
  EXPECT_EQ(FormatPlacement("~spread?zone=eu"), "spread over the nodes, on a node with zone=eu");
}

}  // namespace
}  // namespace weft::core
