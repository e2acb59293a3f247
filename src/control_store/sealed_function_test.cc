#include "control_store/sealed_function.h"

#include <gtest/gtest.h>

namespace weft::core {
namespace {

constexpr FunctionKey kKey{17, 4};

TEST(SealedFunction, ComesBack) {
  FunctionSealer sealer("token", "cluster");
  for (std::string body : {std::string(), std::string("def f(): pass"), std::string(1'000'000, '\0')}) {
    auto opened = FunctionSealer("token", "cluster").Open(kKey, sealer.Seal(kKey, body));
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    EXPECT_EQ(body, *opened);
  }
}

TEST(SealedFunction, AnyEditIsRefused) {
  FunctionSealer sealer("token", "cluster");
  const std::string record = sealer.Seal(kKey, "def f(): pass");
  for (size_t i = 0; i < record.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string edited = record;
      edited[i] = static_cast<char>(edited[i] ^ (1 << bit));
      EXPECT_EQ(StoreCode::kCorrupt, sealer.Open(kKey, edited).code()) << i;
    }
    EXPECT_EQ(StoreCode::kCorrupt, sealer.Open(kKey, record.substr(0, i)).code()) << i;
  }
  EXPECT_EQ(StoreCode::kCorrupt, sealer.Open(kKey, record + "x").code());
  EXPECT_EQ(StoreCode::kCorrupt, sealer.Open(kKey, "").code());
}

TEST(SealedFunction, IsBoundToKeyTokenAndCluster) {
  const std::string record = FunctionSealer("token", "cluster").Seal(kKey, "body");
  EXPECT_EQ(StoreCode::kCorrupt, FunctionSealer("token", "cluster").Open({17, 5}, record).code());
  EXPECT_EQ(StoreCode::kCorrupt, FunctionSealer("another", "cluster").Open(kKey, record).code());
  EXPECT_EQ(StoreCode::kCorrupt, FunctionSealer("token", "another").Open(kKey, record).code());
  EXPECT_EQ(StoreCode::kCorrupt, FunctionSealer("", "cluster").Open(kKey, record).code());
}

}  // namespace
}  // namespace weft::core
