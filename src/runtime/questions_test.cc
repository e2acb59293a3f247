#include "runtime/questions.h"

#include <gtest/gtest.h>

#include "runtime/owner.h"

namespace weft::core {
namespace {

TEST(Questions, AnAnswerIsKeptUntilItsAskerTakesIt) {
  Questions questions;
  const uint64_t first = questions.Begin(), second = questions.Begin();
  EXPECT_NE(first, second);
  EXPECT_FALSE(questions.IsAnswered(first));
  EXPECT_EQ(questions.Answered(second, LibraryAnswer{.error = "no"}), std::nullopt);
  EXPECT_FALSE(questions.IsAnswered(first));
  ASSERT_TRUE(questions.IsAnswered(second));
  const Message answer = questions.Take(second);
  EXPECT_EQ(std::get<LibraryAnswer>(answer).error, "no");
  EXPECT_FALSE(questions.IsAnswered(second));
}

TEST(Questions, AnAnswerThatNobodyAwaitsIsNotKept) {
  Questions questions;
  Object handle;
  const uint64_t actor = questions.Begin(), list = questions.Begin();
  questions.GiveUp(actor, &handle);
  questions.GiveUp(list, nullptr);
  EXPECT_EQ(questions.Answered(actor, ActorAnswer{}), std::optional<Object*>(&handle));
  EXPECT_EQ(questions.Answered(list, ActorList{}), std::optional<Object*>(nullptr));
  EXPECT_FALSE(questions.IsAnswered(actor));
  EXPECT_FALSE(questions.IsAnswered(list));
}

}  // namespace
}  // namespace weft::core
