#include "os/sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace weft::core {
namespace {

std::string Of(std::string_view text) {
  Sha256 sum;
  sum.Add(text);
  return Hexadecimal(sum.Finish());
}

TEST(Sha256, KnownSums) {  // the examples of FIPS 180-4
  EXPECT_EQ(Of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Of(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PartsMakeTheSameSumAsTheWhole) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (size_t size = 0; size <= text.size(); size += 1 + size / 40) {
    const std::string_view whole(text.data(), size);
    for (size_t step : {1, 3, 55, 56, 63, 64, 65, 128}) {
      Sha256 sum;
      for (size_t at = 0; at < size; at += step) sum.Add(whole.substr(at, step));
      ASSERT_EQ(Hexadecimal(sum.Finish()), Of(whole)) << size << " bytes by " << step;
    }
  }
}

}  // namespace
}  // namespace weft::core
