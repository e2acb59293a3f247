// What functions may look like to be tasks, and how their parameters and results pass.
#include <gtest/gtest.h>

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <variant>

#include "weft/weft.h"

namespace shop {

struct Item {
  std::string name = "nothing";
  int count = 1;
};
int Count(const Item& item) { return item.count; }
namespace inner {
inline int Twice(int x) noexcept { return 2 * x; }
}  // namespace inner

}  // namespace shop

namespace {

int Half(int x) { return x / 2; }
double Half(double x) { return x / 2; }
template <class T, int N>
T Times(T x) {
  return x * N;
}
int ByConstValue(const int x) { return x; }
std::string ByReference(const std::string& a, std::string&& b, const std::string c) { return a + b + c; }  // NOLINT
size_t ViewsByReference(const std::string_view& text, const std::span<const double>& values) {
  return text.size() + values.size();
}
const std::string ConstResult() { return "seven"; }  // NOLINT

std::unique_ptr<int> Increment(std::unique_ptr<int> x) {
  if (x) ++*x;
  return x;
}
int Look(const std::unique_ptr<int>& x) { return x ? *x : -1; }
int Take(std::unique_ptr<int>&& x) { return *std::move(x); }
struct Tree {
  int value = 0;
  std::vector<std::unique_ptr<Tree>> children;
};
Tree Grow(Tree tree) {
  tree.children.push_back(std::make_unique<Tree>(Tree{tree.value + 1, {}}));
  return tree;
}
weft::Returns<std::unique_ptr<int>, Tree> Both() { return {std::make_unique<int>(1), Tree{2, {}}}; }

using Shape = std::variant<int, shop::Item, std::vector<double>>;
Shape Next(const Shape& shape) { return shape.index() == 0 ? Shape(shop::Item{"x", 2}) : Shape(std::vector{1.5}); }
std::shared_ptr<const std::string> Shared(std::shared_ptr<const std::string> text) { return text; }
std::deque<std::list<int>> Nested(std::multimap<int, int> pairs) {
  std::deque<std::list<int>> all;
  for (auto [key, value] : pairs) all.push_back({key, value});
  return all;
}

// Can only be moved, and only made from its field.
class Handle {
 public:
  explicit Handle(int number) : number_(number) {}
  Handle(Handle&&) = default;
  Handle& operator=(Handle&&) = default;
  int number() const { return number_; }
  friend auto weft_fields(Handle& handle) { return std::tie(handle.number_); }

 private:
  int number_;
};
Handle Pass(Handle handle) { return handle; }

class Parameters : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { session_ = new weft::Session(weft::init({.num_cpus = 2, .log_to_driver = false})); }
  static void TearDownTestSuite() {
    delete session_;
    session_ = nullptr;
  }
  static weft::Session* session_;
};
weft::Session* Parameters::session_ = nullptr;

TEST_F(Parameters, FunctionsOfEveryKind) {
  EXPECT_EQ(weft::get(weft::remote<static_cast<int (*)(int)>(Half)>(7)), 3);
  EXPECT_EQ(weft::get(weft::remote<static_cast<double (*)(double)>(Half)>(7)), 3.5);
  EXPECT_EQ(weft::get((weft::remote<Times<int, 3>>(7))), 21);
  EXPECT_EQ(weft::get((weft::remote<Times<double, 2>>(1.5))), 3.0);
  EXPECT_EQ(weft::get(weft::remote<shop::Count>(shop::Item{})), 1);
  EXPECT_EQ(weft::get(weft::remote<shop::inner::Twice>(4)), 8);
  EXPECT_EQ(weft::get(weft::remote<ByConstValue>(4)), 4);
  EXPECT_EQ(weft::get(weft::remote<ConstResult>()), "seven");
  EXPECT_EQ(weft::get(weft::remote<ByReference>("a", "b", std::string("c"))), "abc");
  EXPECT_EQ(weft::get(weft::remote<ViewsByReference>("abc", std::vector<double>(1000))), 1003u);
  EXPECT_EQ(weft::get(weft::remote<ViewsByReference>(weft::put("abc"), weft::put(std::vector<double>(5)))), 8u);
}

TEST_F(Parameters, TypesThatCanOnlyBeMoved) {
  auto one = weft::remote<Increment>(std::make_unique<int>(1));
  EXPECT_EQ(*weft::get(one), 2);
  EXPECT_EQ(*weft::get(weft::remote<Increment>(weft::remote<Increment>(one))), 4);
  EXPECT_EQ(weft::get(weft::remote<Increment>(nullptr)), nullptr);
  EXPECT_EQ(weft::get(weft::remote<Look>(std::make_unique<int>(5))), 5);
  EXPECT_EQ(weft::get(weft::remote<Look>(nullptr)), -1);
  EXPECT_EQ(weft::get(weft::remote<Take>(std::make_unique<int>(5))), 5);
  Tree tree{1, {}};
  tree = weft::get(weft::remote<Grow>(weft::remote<Grow>(std::move(tree))));
  ASSERT_EQ(tree.children.size(), 2u);
  EXPECT_EQ(tree.children[1]->value, 2);
  EXPECT_EQ(*weft::get(weft::put(std::make_unique<int>(3))), 3);
  auto [pointer, grown] = weft::remote<Both>();
  EXPECT_EQ(*weft::get(pointer), 1);
  EXPECT_EQ(weft::get(grown).value, 2);
  EXPECT_EQ(weft::get(weft::remote<Pass>(Handle(7))).number(), 7);
  EXPECT_EQ(weft::try_get(weft::remote<Pass>(Handle(8))).value().number(), 8);
  EXPECT_EQ(weft::get(std::vector{weft::remote<Pass>(Handle(9))})[0].number(), 9);
}

TEST_F(Parameters, ValuesOfManyShapes) {
  auto second = weft::remote<Next>(1);
  EXPECT_EQ(std::get<shop::Item>(weft::get(second)).count, 2);
  EXPECT_EQ(std::get<2>(weft::get(weft::remote<Next>(second))), std::vector{1.5});
  EXPECT_EQ(*weft::get(weft::remote<Shared>(std::make_shared<const std::string>("x"))), "x");
  EXPECT_EQ(weft::get(weft::remote<Nested>(std::multimap<int, int>{{1, 2}, {1, 3}})),
            (std::deque<std::list<int>>{{1, 2}, {1, 3}}));
}

}  // namespace
