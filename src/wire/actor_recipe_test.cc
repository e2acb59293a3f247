#include "wire/actor_recipe.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "wire/task_frame.h"

namespace weft::core {
namespace {

ActorRecipe Example() {
  return {.key = {1, 2},
          .function_name = "Counter",
          .body = "the class",
          .name = "Counter.__init__",
          .actor_options = "options",
          .shape = {{"CPU", kResourceUnit}},
          .depth = 3,
          .arguments = "arguments",
          .dependencies = {"first", ""}};
}

TEST(ActorRecipe, ComesBackAsItWas) {
  const std::string bytes = EncodeRecipe(Example());
  ActorRecipe back;
  ASSERT_TRUE(DecodeRecipe(bytes, &back));
  EXPECT_EQ(back.key, Example().key);
  EXPECT_EQ(back.body, "the class");
  EXPECT_EQ(back.shape, Example().shape);
  EXPECT_EQ(back.dependencies, Example().dependencies);
  EXPECT_EQ(EncodeRecipe(back), bytes);
}

TEST(ActorRecipe, WhatIsCutOrTooLongIsRefused) {
  const std::string bytes = EncodeRecipe(Example());
  ActorRecipe back;
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(DecodeRecipe(bytes.substr(0, size), &back)) << size;
  EXPECT_FALSE(DecodeRecipe(bytes + "x", &back));
}

TEST(ActorRecipe, TheTaskHasItsArgumentsByValue) {
  const RecipeFrames frames = FramesOf(Example(), {ProcessId{7}, 9}, 2, {{1, kResourceUnit}});
  ByteReader in(frames.task);
  const auto head = in.Fixed<TaskHead>();
  EXPECT_EQ(head.num_dependencies, 2u);
  EXPECT_EQ(head.num_returns, 0u);
  EXPECT_EQ(head.attempt, 1u);
  EXPECT_EQ(head.depth, 3u);
  for (const char* value : {"first", ""}) {
    const auto dependency = in.Fixed<DependencyHead>();
    EXPECT_EQ(dependency.kind, static_cast<uint32_t>(DependencyKind::kInline));
    EXPECT_EQ(in.Raw(dependency.size), value);
  }
  EXPECT_EQ(in.Raw(head.arguments_size), "arguments");
  EXPECT_TRUE(in.ok() && in.AtEnd());
  EXPECT_NE(frames.define.find("the class"), std::string::npos);
  EXPECT_NE(frames.lease.find("CPU"), std::string::npos);
}

}  // namespace
}  // namespace weft::core
