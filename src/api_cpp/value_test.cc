// Values to bytes and back, without a session.
#include "weft/value.h"

#include <gtest/gtest.h>

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

}  // namespace
