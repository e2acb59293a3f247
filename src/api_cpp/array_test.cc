// Arrays of numbers and of structs, of several dimensions, as they arrive from C++ and as Python sends them.
#include "weft/array.h"

#include <gtest/gtest.h>

#include <complex>
#include <cstring>
#include <fstream>
#include <sstream>

#include "weft/weft.h"
#include "wire/value_format.h"

namespace {

enum class Kind : uint16_t { kA, kB };
struct Particle {
  float x = 0, y = 0, z = 0;
  int id = 0;
  bool operator==(const Particle&) const = default;
};
struct Body {
  char flag = 0;
  Particle particle;
  std::array<std::array<double, 2>, 3> frame{};
  Kind kind = Kind::kA;
  std::complex<float> phase;
  bool alive = false;
};
struct Wider {
  double x, y, z;
  int id;
};
struct NotPlain {
  std::string text;
};

double Mass(std::span<const Particle> particles) {
  double sum = 0;
  for (const Particle& particle : particles) sum += particle.id;
  return sum;
}
weft::Array<Particle> MakeParticles(int count) {
  auto array = weft::empty<Particle>(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) array[static_cast<size_t>(i)] = {1, 2, 3, i};
  return array;
}
weft::Array<double> Table(int rows, int columns) {
  auto table = weft::empty<double>({static_cast<size_t>(rows), static_cast<size_t>(columns)});
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) table(i, j) = 10 * i + j;
  }
  return table;
}
double At(weft::Array<const double> table, int i, int j) { return table(i, j); }
std::vector<size_t> ShapeOf(weft::Array<const double> table) { return {table.shape().begin(), table.shape().end()}; }
size_t CountBytes(std::span<const std::byte> bytes) { return bytes.size(); }
int SumWide(std::span<const Wider> all) { return all.empty() ? 0 : all[0].id; }

class Arrays : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { session_ = new weft::Session(weft::init({.num_cpus = 2, .log_to_driver = false})); }
  static void TearDownTestSuite() {
    delete session_;
    session_ = nullptr;
  }
  static weft::Session* session_;
};
weft::Session* Arrays::session_ = nullptr;

TEST(Layouts, AreThoseOfNumPy) {
  using weft::detail::ElementType;
  EXPECT_STREQ(ElementType<double>(), "<f8");
  EXPECT_STREQ(ElementType<uint8_t>(), "|u1");
  EXPECT_STREQ(ElementType<bool>(), "|b1");
  EXPECT_STREQ(ElementType<std::byte>(), "|u1");
  EXPECT_STREQ(ElementType<std::complex<double>>(), "<c16");
  EXPECT_STREQ(ElementType<Particle>(), "{f0=<f4@0,f1=<f4@4,f2=<f4@8,f3=<i4@12}16");
  EXPECT_STREQ(
      ElementType<Body>(),
      "{f0=|i1@0,f1={f0=<f4@0,f1=<f4@4,f2=<f4@8,f3=<i4@12}16@4,f2=<f8*2*3@24,f3=<u2@72,f4=<c8@76,f5=|b1@84}88");
  static_assert(!weft::detail::kIsElement<NotPlain>);
  static_assert(!weft::detail::kIsElement<std::string>);
  static_assert(!weft::detail::kIsElement<std::tuple<int, int>>);
}

TEST_F(Arrays, StructsAreElements) {
  auto ref = weft::remote<MakeParticles>(1000);
  weft::Array<const Particle> view = weft::get(ref);
  ASSERT_EQ(view.size(), 1000u);
  EXPECT_EQ(view[7], (Particle{1, 2, 3, 7}));
  EXPECT_EQ(weft::get(weft::remote<Mass>(ref)), 499'500);
  std::vector<Particle> few(3, Particle{0, 0, 0, 2}), many(100'000, Particle{0, 0, 0, 1});
  EXPECT_EQ(weft::get(weft::remote<Mass>(few)), 6);
  EXPECT_EQ(weft::get(weft::remote<Mass>(many)), 100'000);
  EXPECT_EQ(weft::get(weft::put(many)), many);
  EXPECT_EQ(weft::get(weft::put(few)), few);
}

TEST_F(Arrays, OtherLayoutsAreRefusedWithBothNamed) {
  weft::Ref<weft::Array<Particle>> ref = weft::remote<MakeParticles>(1000);
  // The same object, taken for another type, as a program of other sources would.
  weft::detail::AddReference(weft::detail::RefAccess::object(ref), weft::detail::RefAccess::epoch(ref));
  auto wrong = weft::detail::RefAccess::Make<weft::Array<Wider>>(weft::detail::RefAccess::object(ref),
                                                                 weft::detail::RefAccess::epoch(ref));
  try {
    weft::get(wrong);
    FAIL();
  } catch (const weft::ValueTypeError& error) {
    std::string text = error.what();
    EXPECT_NE(text.find("f3=<i4@12}16"), std::string::npos) << text;
    EXPECT_NE(text.find("f3=<i4@24}32"), std::string::npos) << text;
  }
  EXPECT_THROW(weft::get(weft::remote<SumWide>(wrong)), weft::TaskError);
}

TEST_F(Arrays, SeveralDimensions) {
  auto ref = weft::remote<Table>(30, 100);
  auto table = weft::get(ref);
  EXPECT_EQ(table.size(), 3000u);
  ASSERT_EQ(table.shape().size(), 2u);
  EXPECT_EQ(table.shape(0), 30u);
  EXPECT_EQ(table.shape(1), 100u);
  EXPECT_EQ(table(3, 4), 34);
  EXPECT_EQ(table[304], 34);
  EXPECT_THROW(table(1), std::invalid_argument);
  EXPECT_THROW(table(1, 2, 3), std::invalid_argument);
  EXPECT_EQ(weft::get(weft::remote<At>(ref, 29, 99)), 389);
  EXPECT_EQ(weft::get(weft::remote<ShapeOf>(ref)), (std::vector<size_t>{30, 100}));
  EXPECT_EQ(weft::get(weft::remote<ShapeOf>(table)), (std::vector<size_t>{30, 100}));  // a view passed on
  EXPECT_EQ(weft::get(weft::remote<ShapeOf>(Table(2, 3))), (std::vector<size_t>{2, 3}));
  EXPECT_EQ(weft::get(weft::remote<ShapeOf>(Table(0, 3))), (std::vector<size_t>{0, 3}));
  EXPECT_EQ(weft::get(weft::remote<ShapeOf>(weft::empty<double>(5))), (std::vector<size_t>{5}));
  EXPECT_EQ(weft::get(weft::put(weft::empty<int>({2, 2, 2, 2, 2, 2, 2, 2}))).size(), 256u);
  EXPECT_THROW(weft::empty<int>({1, 1, 1, 1, 1, 1, 1, 1, 1}), std::invalid_argument);
  EXPECT_THROW(weft::empty<int>({SIZE_MAX, 2}), std::bad_alloc);
  auto copy = table;
  weft::Array<const double> moved = std::move(table);
  EXPECT_EQ(copy(3, 4), moved(3, 4));
  EXPECT_EQ(table.shape(0), 0u);  // NOLINT: moved from, on purpose
}

TEST_F(Arrays, BytesAndComplexNumbers) {
  std::vector<std::byte> bytes(100'000, std::byte{7});
  auto ref = weft::put(bytes);
  EXPECT_EQ(weft::get(weft::remote<CountBytes>(ref)), 100'000u);
  EXPECT_EQ(weft::get(weft::remote<CountBytes>(bytes)), 100'000u);
  EXPECT_EQ(weft::get(weft::remote<CountBytes>(std::vector<std::byte>(3))), 3u);
  EXPECT_EQ(weft::get(weft::remote<CountBytes>(weft::empty<std::byte>(70'000))), 70'000u);
  EXPECT_EQ(weft::get(ref), bytes);
  auto waves = weft::empty<std::complex<double>>(10'000);
  waves[9'999] = {1, 2};
  auto back = weft::get(weft::put(std::move(waves)));
  EXPECT_EQ(back[9'999], (std::complex<double>(1, 2)));
  std::vector<std::complex<float>> many(1000, {1, 2});
  EXPECT_EQ(weft::get(weft::put(many)), many);
}

// What is mapped at an address: the file's name, number and the place in it.
std::string MappedAt(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0, offset = 0;
    char dash = 0;
    std::string rights, device, number, name;
    std::istringstream fields(line);
    fields >> std::hex >> begin >> dash >> end >> rights >> offset >> device >> number >> name;
    auto place = reinterpret_cast<uintptr_t>(address);
    if (place >= begin && place < end) return name + " " + number + " " + std::to_string(offset + place - begin);
  }
  return "";
}

TEST_F(Arrays, AreLookedAtWhereTheyLie) {
  constexpr size_t kCount = 100 << 20;
  auto room = weft::empty<std::byte>(kCount);
  std::string written = MappedAt(room.data());
  auto ref = weft::put(std::move(room));
  auto one = weft::get(ref), two = weft::get(ref);
  EXPECT_EQ(one.data(), two.data());
  EXPECT_EQ(MappedAt(one.data()), written);  // the same memory, mapped for reading
  EXPECT_EQ(one.size(), kCount);
  std::string mapped = MappedAt(one.data());
  EXPECT_NE(mapped.find("memfd"), std::string::npos) << mapped;
  // So are bytes, as Python sends them.
  auto bytes = weft::put(std::vector<std::byte>(1'000'000));
  auto view = weft::detail::DecodeWhole<std::span<const std::byte>>([&] {
    weft::detail::ValueSource source;
    weft::detail::ReadOrThrow(weft::detail::RefAccess::object(bytes), source);
    return source;
  }());
  EXPECT_EQ(view.size(), 1'000'000u);
  EXPECT_NE(MappedAt(view.data()).find("memfd"), std::string::npos);
}

// ---- arrays as bytes, as Python writes them

struct Written {
  std::string bytes;
  weft::detail::ValueSource source() const {
    return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), false, nullptr};
  }
};
template <class T>
Written Write(const char* type, std::vector<uint64_t> shape, uint8_t flags, const std::string& layout,
              const std::vector<T>& data) {
  weft::core::ArrayHead head;
  head.dimensions = static_cast<uint8_t>(shape.size());
  head.flags = flags;
  std::strcpy(head.type, type);
  Written to;
  to.bytes.assign(reinterpret_cast<const char*>(&head), sizeof head);
  to.bytes.append(reinterpret_cast<const char*>(shape.data()), 8 * shape.size());
  if (!layout.empty()) {
    auto size = static_cast<uint32_t>(layout.size());
    to.bytes.append(reinterpret_cast<const char*>(&size), sizeof size).append(layout);
  }
  to.bytes.resize(weft::core::ArrayHead::DataOffset(head.dimensions, layout.size()));
  to.bytes.append(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(T));
  return to;
}
template <class T>
std::string WhyNot(const Written& from) {
  try {
    weft::detail::DecodeWhole<weft::Array<const T>>(from.source());
  } catch (const weft::ValueTypeError& error) {
    return error.what();
  }
  return "";
}
using weft::core::ArrayHead;

TEST(ArrayBytes, ColumnsBecomeRows) {
  auto from = Write<int>("<i4", {2, 3}, ArrayHead::kColumns, "", {1, 4, 2, 5, 3, 6});
  auto array = weft::detail::DecodeWhole<weft::Array<const int>>(from.source());
  EXPECT_EQ(array(0, 0), 1);
  EXPECT_EQ(array(0, 2), 3);
  EXPECT_EQ(array(1, 0), 4);
  EXPECT_EQ(weft::detail::DecodeWhole<std::vector<int>>(from.source()), (std::vector{1, 2, 3, 4, 5, 6}));
}

TEST(ArrayBytes, NamesOfFieldsDoNotCountAndTheRestDoes) {
  std::vector<Particle> data{{1, 2, 3, 4}};
  auto read = [&](const std::string& layout) { return Write("|V16", {1}, ArrayHead::kLayout, layout, data); };
  auto from = read("{x=<f4@0,y=<f4@4,z=<f4@8,number=<i4@12}16");
  EXPECT_EQ(weft::detail::DecodeWhole<weft::Array<const Particle>>(from.source())[0], data[0]);
  for (const char* layout : {"{x=<f4@0,y=<f4@4,z=<f4@8,number=<u4@12}16", "{x=<f4@4,y=<f4@0,z=<f4@8,number=<i4@12}16",
                             "{x=<f4@0,y=<f4@4,z=<f4@8}16", "{x=<f4@0,y=<f4@4,z=<f4@8,number=<i4@12}20",
                             "{x=>f4@0,y=<f4@4,z=<f4@8,number=<i4@12}16", "{", "}", "nonsense", "{=====,,,}"}) {
    std::string text = WhyNot<Particle>(read(layout));
    EXPECT_NE(text.find(layout), std::string::npos) << text;
    EXPECT_NE(text.find("f3=<i4@12}16"), std::string::npos) << text;
  }
  EXPECT_NE(WhyNot<Particle>(Write("|V16", {1}, 0, "", data)), "");
  EXPECT_NE(WhyNot<double>(from), "");
}

TEST(ArrayBytes, WhatCannotBeReadIsRefused) {
  std::vector<double> data{1, 2, 3};
  EXPECT_NE(WhyNot<double>(Write(">f8", {3}, 0, "", data)).find("big-endian"), std::string::npos);
  EXPECT_NE(WhyNot<double>(Write("<f8", {1, 1, 1, 1, 1, 1, 1, 1, 3}, 0, "", data)).find("9 dimensions"),
            std::string::npos);
  EXPECT_NE(WhyNot<double>(Write("<f8", {4}, 0, "", data)), "");
  EXPECT_NE(WhyNot<double>(Write("<f8", {UINT64_MAX, UINT64_MAX}, 0, "", data)), "");
  Written whole =
      Write("|V16", {1}, ArrayHead::kLayout, "{f0=<f4@0,f1=<f4@4,f2=<f4@8,f3=<i4@12}16", std::vector<Particle>(1));
  for (size_t size = 0; size < whole.bytes.size(); ++size) {
    EXPECT_NE(WhyNot<Particle>({whole.bytes.substr(0, size)}), "") << size;
  }
  EXPECT_EQ(WhyNot<double>(Write("<f8", {0, 3}, 0, "", std::vector<double>{})), "");
  EXPECT_EQ(WhyNot<double>(Write("<f8", {}, 0, "", std::vector<double>{1})), "");  // a number as an array
}

}  // namespace
