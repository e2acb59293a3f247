#include "transfer/checksum.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "base/random.h"

namespace weft::core {
namespace {

TEST(Checksum, DiffersForWhatGoesWrong) {
  Random random(1);
  for (size_t size : {1, 7, 8, 9, 63, 64, 65, 100, 1000, 4096}) {
    std::vector<uint8_t> bytes(size);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Below(256));
    const uint64_t right = Checksum(bytes);
    EXPECT_EQ(Checksum(bytes), right);
    std::set<uint64_t> seen{right};
    for (size_t bit = 0; bit < size * 8; bit += 1 + size / 16) {
      bytes[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
      EXPECT_TRUE(seen.insert(Checksum(bytes)).second) << "bit " << bit << " of " << size;
      bytes[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    }
    for (size_t at = 8; at < size; at += 8) {
      if (bytes[at] == bytes[at - 8]) continue;
      std::swap(bytes[at], bytes[at - 8]);
      EXPECT_TRUE(seen.insert(Checksum(bytes)).second) << "exchanged " << at << " of " << size;
      std::swap(bytes[at], bytes[at - 8]);
    }
    bytes.pop_back();
    EXPECT_NE(Checksum(bytes), right) << "cut off";
  }
}

TEST(Checksum, DoesNotDependOnWhereTheBytesLie) {
  std::vector<uint8_t> bytes(300);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * i);
  const uint64_t right = Checksum({bytes.data(), 200});
  std::vector<uint8_t> moved(3);
  moved.insert(moved.end(), bytes.begin(), bytes.begin() + 200);
  EXPECT_EQ(Checksum({moved.data() + 3, 200}), right);
  // Zeros count: a page that was never written must not look like a shorter one.
  EXPECT_NE(Checksum(std::vector<uint8_t>(64)), Checksum(std::vector<uint8_t>(128)));
}

}  // namespace
}  // namespace weft::core
