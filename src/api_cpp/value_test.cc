// Values to bytes and back, without a session.
#include "weft/value.h"

#include <gtest/gtest.h>

#include <bitset>
#include <complex>
#include <deque>
#include <filesystem>
#include <forward_list>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "weft/errors.h"
#include "weft/weft.h"

namespace {

using weft::Codec;
using weft::Decoder;
using weft::Encoder;

template <class T>
std::string Bytes(const T& value) {
  Encoder out;
  Codec<T>::Encode(out, value);
  return std::string(reinterpret_cast<const char*>(out.data()), out.size());
}

template <class T>
T FromBytes(std::string_view bytes) {
  auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  Decoder in(data, data + bytes.size());
  T value = Codec<T>::Decode(in);
  EXPECT_TRUE(in.AtEnd());
  return value;
}

template <class T>
void ExpectRoundTrip(const T& value) {
  EXPECT_EQ(FromBytes<T>(Bytes(value)), value);
}

template <class T>
std::string RefusedWith(std::string_view bytes) {
  try {
    FromBytes<T>(bytes);
  } catch (const weft::ValueTypeError& error) {
    return error.what();
  }
  return "";
}

enum class Colour : uint8_t { kRed = 1, kBlue = 200 };

struct Point {
  double x = 0, y = 0;
  bool operator==(const Point&) const = default;
};
struct Shape {
  std::string name;
  std::vector<Point> points;
  std::optional<int> layer;
  std::map<std::string, std::pair<int, bool>> tags;
  Colour colour = Colour::kRed;
  std::array<int, 3> rgb{};
  bool operator==(const Shape&) const = default;
};
struct Empty {
  bool operator==(const Empty&) const = default;
};
struct Sixteen {
  int a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p;
  bool operator==(const Sixteen&) const = default;
};
struct OptionalFirst {
  std::optional<std::string> text;
  std::optional<int> number;
  std::unordered_map<int, std::vector<int>> table;
  std::tuple<int, float> pair;
  bool operator==(const OptionalFirst&) const = default;
};

struct ThirtyTwo {
  int a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, c0, c1, c2, c3, c4, c5, c6, c7,
      c8, c9, d0;
  std::string d1;
  bool operator==(const ThirtyTwo&) const = default;
};

// Says its fields.
class Account {
 public:
  Account() = default;
  Account(std::string owner, int64_t cents) : owner_(std::move(owner)), cents_(cents) {}
  bool operator==(const Account&) const = default;
  friend auto weft_fields(Account& a) { return std::tie(a.owner_, a.cents_); }

 private:
  std::string owner_;
  int64_t cents_ = 0;
};
// Says its fields, and can only be made from them.
class Interval {
 public:
  Interval(int low, int high) : low_(low), high_(high) {
    if (low > high) throw std::invalid_argument("upside down");
  }
  bool operator==(const Interval&) const = default;
  friend auto weft_fields(Interval& i) { return std::tie(i.low_, i.high_); }

 private:
  int low_, high_;
};
struct Base {
  int id = 0;
  bool operator==(const Base&) const = default;
};
// A base class is no obstacle for a type that says its fields; the function may stand beside the type.
struct Derived : Base {
  std::string text;
  bool operator==(const Derived&) const = default;
};
auto weft_fields(Derived& d) { return std::tie(d.id, d.text); }
// Aggregates that cannot be made without values, or cannot be changed.
struct Given {
  Interval interval;
  int number;
  bool operator==(const Given&) const = default;
};
struct Fixed {
  const int number = 0;
  bool operator==(const Fixed&) const = default;
};
struct Chain {
  int value = 0;
  std::unique_ptr<Chain> next;
};
struct Loop {
  std::shared_ptr<Loop> next;
};
struct Owner {
  std::string name;
  std::unique_ptr<Point> point;
  std::vector<std::unique_ptr<int>> numbers;
};

// A type that needs one function each way.
class Celsius {
 public:
  Celsius() = default;
  explicit Celsius(double degrees) : degrees_(degrees) {}
  double degrees() const { return degrees_; }

 private:
  double degrees_ = 0;
};

}  // namespace

template <>
struct weft::Codec<Celsius> {
  static void Encode(Encoder& out, const Celsius& value) { Codec<double>::Encode(out, value.degrees()); }
  static Celsius Decode(Decoder& in) { return Celsius(Codec<double>::Decode(in)); }
};

namespace {

TEST(Value, NumbersRoundTrip) {
  for (int value : {0, 1, -1, 127, 128, -128, -129, INT32_MAX, INT32_MIN}) ExpectRoundTrip(value);
  for (int64_t value : {INT64_MAX, INT64_MIN}) ExpectRoundTrip(value);
  for (uint64_t value : {uint64_t{0}, uint64_t{INT64_MAX}, UINT64_MAX}) ExpectRoundTrip(value);
  ExpectRoundTrip(uint8_t{255});
  ExpectRoundTrip(int8_t{-128});
  ExpectRoundTrip('x');
  ExpectRoundTrip(true);
  ExpectRoundTrip(false);
  ExpectRoundTrip(1.5f);
  ExpectRoundTrip(-1e300);
  ExpectRoundTrip(Colour::kBlue);
}

TEST(Value, BytesAreThoseThatPythonWrites) {
  EXPECT_EQ(Bytes(7), std::string("\x03\x07", 2));
  EXPECT_EQ(Bytes(-2), std::string("\x03\xfe", 2));
  EXPECT_EQ(Bytes(300), std::string("\x04\x2c\x01\0\0\0\0\0\0", 9));
  EXPECT_EQ(Bytes(true), std::string("\x02", 1));
  EXPECT_EQ(Bytes(std::string("hi")), std::string("\x07\x02\0\0\0hi", 7));
  EXPECT_EQ(Bytes(std::vector<int>{1, 2}), std::string("\x0a\x02\0\0\0\x03\x01\x03\x02", 9));
  EXPECT_EQ(Bytes(std::pair<int, bool>{1, false}), std::string("\x09\x02\0\0\0\x03\x01\x01", 8));
  EXPECT_EQ(Bytes(std::map<int, int>{{1, 2}}), std::string("\x0b\x01\0\0\0\x03\x01\x03\x02", 9));
  EXPECT_EQ(Bytes(std::optional<int>()), std::string("\0", 1));
}

TEST(Value, TextThatIsNotUtf8TravelsAsBytes) {
  EXPECT_EQ(Bytes(std::string("\xc3\xa9"))[0], 7);
  for (const char* text : {"\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\x80"}) {
    EXPECT_EQ(Bytes(std::string(text))[0], 8) << text;
    ExpectRoundTrip(std::string(text));
  }
  ExpectRoundTrip(std::string("with\0zero", 9));
  ExpectRoundTrip(std::string(100'000, 'x'));
}

TEST(Value, ContainersRoundTrip) {
  ExpectRoundTrip(std::vector<std::string>{"a", "", "c"});
  ExpectRoundTrip(std::vector<bool>{true, false});
  ExpectRoundTrip(std::vector<std::vector<int>>{{}, {1}, {2, 3}});
  ExpectRoundTrip(std::unordered_map<std::string, std::vector<double>>{{"a", {1, 2}}, {"b", {}}});
  ExpectRoundTrip(std::set<int>{3, 1});
  ExpectRoundTrip(std::unordered_set<std::string>{"x", "y"});
  ExpectRoundTrip(std::tuple<int, std::string, double>{1, "a", 2.5});
  ExpectRoundTrip(std::tuple<>());
  ExpectRoundTrip(std::optional<std::vector<int>>(std::vector<int>{1}));
  ExpectRoundTrip(std::array<float, 3>{1, 2, 3});
}

TEST(Value, StructsNeedNoWordFromTheirAuthor) {
  ExpectRoundTrip(Empty{});
  ExpectRoundTrip(Point{1, 2});
  ExpectRoundTrip(Shape{"s", {{1, 2}, {3, 4}}, 5, {{"t", {1, true}}}, Colour::kBlue, {1, 2, 3}});
  ExpectRoundTrip(Sixteen{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
  ExpectRoundTrip(OptionalFirst{"x", std::nullopt, {{1, {2}}}, {3, 4.5f}});
  static_assert(weft::detail::CountFields<Shape>() == 6);
  static_assert(weft::detail::CountFields<OptionalFirst>() == 4);
}

TEST(Value, OneFunctionEachWayTeachesAType) {
  EXPECT_EQ(FromBytes<Celsius>(Bytes(Celsius(36.6))).degrees(), 36.6);
  EXPECT_EQ(FromBytes<std::vector<Celsius>>(Bytes(std::vector<Celsius>{Celsius(1)}))[0].degrees(), 1);
}

TEST(Value, IntegersBecomeFloatsButNothingIsCutOff) {
  EXPECT_EQ(FromBytes<double>(Bytes(7)), 7.0);
  EXPECT_THROW(FromBytes<int8_t>(Bytes(128)), weft::ValueTypeError);
  EXPECT_THROW(FromBytes<int>(Bytes(int64_t{1} << 40)), weft::ValueTypeError);
  EXPECT_THROW(FromBytes<uint64_t>(Bytes(-1)), weft::ValueTypeError);
  EXPECT_THROW(FromBytes<int64_t>(Bytes(UINT64_MAX)), weft::ValueTypeError);
  EXPECT_THROW(FromBytes<int>(Bytes(1.5)), weft::ValueTypeError);
}

TEST(Value, WrongTypesAreNamed) {
  try {
    FromBytes<int>(Bytes(std::string("x")));
    FAIL();
  } catch (const weft::ValueTypeError& error) {
    EXPECT_STREQ(error.what(), "the value is a string, but an integer was asked for");
  }
  EXPECT_THROW((FromBytes<std::pair<int, int>>(Bytes(std::vector<int>{1}))), weft::ValueTypeError);
  EXPECT_THROW(FromBytes<bool>(Bytes(1)), weft::ValueTypeError);
}

TEST(Value, WhatPythonRepeatsIsReadAgain) {
  // ["ab", same as 1, ("ab" again)]: the list is number 0, the string number 1.
  std::string bytes("\x0a\x03\0\0\0\x07\x02\0\0\0ab\x0c\x01\0\0\0\x0c\x01\0\0\0", 22);
  EXPECT_EQ(FromBytes<std::vector<std::string>>(bytes), (std::vector<std::string>{"ab", "ab", "ab"}));
}

TEST(Value, IntegersOfPythonThatFitNowhereAreOutOfRange) {
  // 2**64 and -2**63 - 1, as Python writes them.
  for (const auto& bytes : {std::string("\x05\x09\0\0\0\0\0\0\0\0\0\0\0\x01", 14),
                            std::string("\x05\x09\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f\xff", 14)}) {
    EXPECT_THROW(FromBytes<uint64_t>(bytes), weft::ValueTypeError);
    EXPECT_THROW(FromBytes<int64_t>(bytes), weft::ValueTypeError);
  }
}

TEST(Value, SetsOfPythonAreNamed) {
  for (const auto& bytes : {std::string("\x11\0\0\0\0", 5), std::string("\x12\0\0\0\0", 5)}) {
    try {
      FromBytes<std::vector<int>>(bytes);
      FAIL();
    } catch (const weft::ValueTypeError& error) {
      EXPECT_NE(std::string(error.what()).find("a set"), std::string::npos) << error.what();
    }
  }
}

TEST(Value, AReferenceThatPythonRepeatsIsReadWhole) {
  // Without a session there is no object to be found, but the bytes must fit exactly.
  std::string bytes("\x10", 1);
  bytes.append(16, 1);
  EXPECT_THROW(FromBytes<weft::Ref<int>>(bytes + std::string(3, 0)), weft::ValueTypeError);
}

struct Node {
  std::vector<Node> children;
};

TEST(Value, BytesThatAreNoValueAreRefused) {
  std::string whole = Bytes(Shape{"s", {{1, 2}}, 5, {{"t", {1, true}}}, Colour::kBlue, {1, 2, 3}});
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(FromBytes<Shape>(std::string_view(whole).substr(0, size)), weft::ValueTypeError) << size;
  }
  // A count far beyond what follows must not be believed.
  EXPECT_THROW(FromBytes<std::vector<int>>(std::string("\x0a\xff\xff\xff\xff\x03\x01", 7)), weft::ValueTypeError);
  // A list that contains itself.
  EXPECT_THROW(FromBytes<Node>(std::string("\x09\x01\0\0\0\x0a\x01\0\0\0\x0c\0\0\0\0", 15)), weft::ValueTypeError);
}

TEST(Value, EveryContainerRoundTrips) {
  ExpectRoundTrip(std::list<std::string>{"a", "b"});
  ExpectRoundTrip(std::deque<int>{1, 2, 3});
  ExpectRoundTrip(std::forward_list<int>{1, 2, 3});
  ExpectRoundTrip(std::forward_list<int>{});
  ExpectRoundTrip(std::multiset<int>{1, 1, 2});
  ExpectRoundTrip(std::unordered_multiset<int>{1, 1, 2});
  ExpectRoundTrip(std::multimap<int, std::string>{{1, "a"}, {1, "b"}});
  ExpectRoundTrip(std::unordered_multimap<int, std::string>{{1, "a"}, {1, "b"}, {2, ""}});
  ExpectRoundTrip(std::map<std::string, int, std::greater<>>{{"a", 1}, {"b", 2}});
  ExpectRoundTrip(std::set<std::vector<int>>{{1}, {2, 3}});
  ExpectRoundTrip(std::array<std::string, 2>{"a", "b"});
  ExpectRoundTrip(std::array<Interval, 2>{Interval(1, 2), Interval(3, 4)});
  ExpectRoundTrip(std::array<int, 0>{});
  std::array<int, 100> many{};
  many[99] = 1;
  ExpectRoundTrip(many);
}

TEST(Value, SetsOfPythonAreSetsHere) {
  EXPECT_EQ(Bytes(std::set<int>{1}), std::string("\x11\x01\0\0\0\x03\x01", 7));
  EXPECT_EQ(Bytes(std::unordered_set<std::string>{})[0], 0x11);
  EXPECT_EQ(Bytes(std::multiset<int>{1})[0], 0x0a);
  EXPECT_EQ(Bytes(std::set<std::vector<int>>{{1}})[0], 0x0a);  // lists have no place in a set of Python's
  for (char tag : {'\x09', '\x0a', '\x11', '\x12'}) {
    std::string bytes = tag + std::string("\x02\0\0\0\x03\x01\x03\x02", 8);
    EXPECT_EQ(FromBytes<std::set<int>>(bytes), (std::set<int>{1, 2}));
  }
  EXPECT_NE(RefusedWith<std::set<int>>(Bytes(7)), "");
}

TEST(Value, OtherStandardTypesRoundTrip) {
  using namespace std::chrono_literals;  // NOLINT
  ExpectRoundTrip(std::monostate());
  EXPECT_EQ(Bytes(std::nullopt), std::string(1, 0));
  EXPECT_EQ(FromBytes<std::nullptr_t>(Bytes(nullptr)), nullptr);
  ExpectRoundTrip(std::byte{200});
  EXPECT_EQ(Bytes(std::vector<std::byte>{std::byte{1}, std::byte{255}}), std::string("\x08\x02\0\0\0\x01\xff", 7));
  ExpectRoundTrip(std::vector<std::byte>{std::byte{1}, std::byte{255}});
  ExpectRoundTrip(std::vector<std::byte>{});
  ExpectRoundTrip(std::bitset<100>("1011"));
  EXPECT_NE(RefusedWith<std::bitset<4>>(Bytes(std::string("10110"))), "");
  EXPECT_NE(RefusedWith<std::bitset<4>>(Bytes(std::string("10x1"))), "");
  ExpectRoundTrip(std::complex<double>(1, -2));
  ExpectRoundTrip(std::vector<std::complex<float>>{{1, 2}, {3, 4}});
  ExpectRoundTrip(std::chrono::nanoseconds(INT64_MAX));
  ExpectRoundTrip(std::chrono::duration<double>(1.5));
  ExpectRoundTrip(std::chrono::system_clock::now());
  EXPECT_EQ(Bytes(5ms), Bytes(5));
  ExpectRoundTrip(std::filesystem::path("/a/b c"));
  EXPECT_EQ(Bytes(std::filesystem::path("/a")), Bytes(std::string("/a")));
  EXPECT_TRUE(FromBytes<std::u8string>(Bytes(std::u8string(u8"\u00e9"))) == u8"\u00e9");
}

TEST(Value, PointersAreNoneOrTheirValue) {
  EXPECT_EQ(FromBytes<std::unique_ptr<int>>(Bytes(std::unique_ptr<int>())), nullptr);
  EXPECT_EQ(*FromBytes<std::unique_ptr<int>>(Bytes(std::make_unique<int>(7))), 7);
  EXPECT_EQ(*FromBytes<std::shared_ptr<const std::string>>(Bytes(std::make_shared<const std::string>("x"))), "x");
  EXPECT_EQ(Bytes(std::make_unique<int>(7)), Bytes(7));
  Owner owner{"o", std::make_unique<Point>(Point{1, 2}), {}};
  owner.numbers.push_back(std::make_unique<int>(3));
  owner.numbers.push_back(nullptr);
  Owner back = FromBytes<Owner>(Bytes(owner));
  EXPECT_EQ(back.name, "o");
  EXPECT_EQ(*back.point, (Point{1, 2}));
  EXPECT_EQ(*back.numbers.at(0), 3);
  EXPECT_EQ(back.numbers.at(1), nullptr);
  // Two pointers to one value arrive as two values.
  auto shared = std::make_shared<int>(1);
  auto two = FromBytes<std::vector<std::shared_ptr<int>>>(Bytes(std::vector{shared, shared}));
  EXPECT_NE(two[0], two[1]);
}

TEST(Value, ChainsOfPointersEndAndCirclesAreRefused) {
  Chain chain;
  Chain* last = &chain;
  for (int i = 1; i < 900; ++i) {
    last->next = std::make_unique<Chain>(Chain{i, nullptr});
    last = last->next.get();
  }
  Chain back = FromBytes<Chain>(Bytes(chain));
  int length = 0;
  for (Chain* at = &back; at; at = at->next.get()) EXPECT_EQ(at->value, length++);
  EXPECT_EQ(length, 900);
  auto loop = std::make_shared<Loop>();
  loop->next = loop;
  EXPECT_THROW(Bytes(loop), weft::ValueTypeError);
  loop->next.reset();
  // So are bytes that would go deeper than the stack.
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += std::string("\x09\x01\0\0\0", 5);
  EXPECT_THROW(FromBytes<Loop>(deep + std::string(1, 0)), weft::ValueTypeError);
}

TEST(Value, VariantsComeBackAsTheirAlternative) {
  // Told apart by what they are: the plain value.
  using Plain = std::variant<std::monostate, bool, int, double, std::string>;
  for (const Plain& value : {Plain(), Plain(true), Plain(7), Plain(7.0), Plain("text")}) ExpectRoundTrip(value);
  EXPECT_EQ(Bytes(Plain(7)), Bytes(7));
  EXPECT_EQ(FromBytes<Plain>(Bytes(int64_t{7})).index(), 2u);
  EXPECT_EQ((std::get<double>(FromBytes<std::variant<std::string, double>>(Bytes(7)))), 7.0);
  EXPECT_NE((RefusedWith<std::variant<std::string, double>>(Bytes(true))), "");
  // Others with the number of the alternative.
  using Alike = std::variant<int, long, std::vector<int>, std::tuple<int>, Account, std::unique_ptr<int>>;
  EXPECT_EQ(Bytes(Alike(std::in_place_index<1>, 7)), Bytes(std::tuple{1, 7}));
  ExpectRoundTrip(Alike(std::in_place_index<0>, 1));
  ExpectRoundTrip(Alike(std::in_place_index<1>, 1));
  ExpectRoundTrip(Alike(std::vector<int>{1}));
  ExpectRoundTrip(Alike(std::tuple{1}));
  ExpectRoundTrip(Alike(Account("a", 1)));
  EXPECT_EQ(*std::get<5>(FromBytes<Alike>(Bytes(Alike(std::make_unique<int>(3))))), 3);
  ExpectRoundTrip(std::variant<int, int>(std::in_place_index<1>, 5));
  EXPECT_NE(RefusedWith<Alike>(Bytes(std::tuple{6, 7})), "");
  EXPECT_NE(RefusedWith<Alike>(Bytes(std::tuple{-1, 7})), "");
  EXPECT_NE(RefusedWith<Alike>(Bytes(7)), "");
}

TEST(Value, OneFunctionSaysTheFields) {
  ExpectRoundTrip(Account("Ada", 12));
  EXPECT_EQ(Bytes(Account("Ada", 12)), Bytes(std::tuple{std::string("Ada"), 12}));
  ExpectRoundTrip(Interval(1, 2));
  EXPECT_THROW(FromBytes<Interval>(Bytes(std::tuple{2, 1})), std::invalid_argument);
  ExpectRoundTrip(Derived{{7}, "x"});
  ExpectRoundTrip(std::map<std::string, std::vector<Account>>{{"a", {Account("b", 1), {}}}});
}

TEST(Value, StructsOfEveryKind) {
  ThirtyTwo many{};
  many.a0 = 1;
  many.d0 = 31;
  many.d1 = "last";
  ExpectRoundTrip(many);
  ExpectRoundTrip(Given{Interval(1, 2), 3});
  ExpectRoundTrip(Fixed{3});
  static_assert(weft::detail::CountFields<ThirtyTwo>() == 32);
  struct WithArray {
    int before;
    char name[16];
    double after;
  };
  static_assert(weft::detail::HasCArray<WithArray>());
  static_assert(!weft::detail::HasCArray<Shape>());
  static_assert(!weft::detail::HasCArray<OptionalFirst>());
  static_assert(!weft::detail::HasCArray<Owner>());
  static_assert(weft::detail::HasBase<Derived>());
  static_assert(!weft::detail::HasBase<Shape>());
  static_assert(!weft::detail::HasBase<Empty>());
}

}  // namespace
