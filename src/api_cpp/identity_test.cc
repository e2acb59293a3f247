// A second file with a function of a name that api_test.cc has too; and the keys of functions.
#include "api_cpp/identity.h"

#include <gtest/gtest.h>

#include "weft/weft.h"

static int Step(int x) { return x + 100; }

int FromTheOtherFile(int x) { return weft::get(weft::remote<Step>(x)); }

namespace weft::detail {
namespace {

int One(int x) { return x; }
int Two(int x) { return x; }  // the same code as One

TEST(Identity, EveryFunctionHasAKeyOfItsOwn) {
  FunctionRecord& one = Registered<FunctionBody<One>>::record;
  FunctionRecord& two = Registered<FunctionBody<Two>>::record;
  EXPECT_EQ(KeyOf(one), KeyOf(one));
  EXPECT_NE(KeyOf(one), KeyOf(two));
  EXPECT_EQ(FindFunction(KeyOf(one)), &one);
  EXPECT_EQ(FindFunction(KeyOf(two)), &two);
  EXPECT_EQ(FindFunction({1, 2}), nullptr);
}

TEST(Identity, FunctionsHaveTheNamesThatUsersWrote) {
  EXPECT_NE(Registered<FunctionBody<One>>::record.name.find("One"), std::string_view::npos);
  EXPECT_EQ(Registered<FunctionBody<Step>>::record.name, "Step");
}

}  // namespace
}  // namespace weft::detail
