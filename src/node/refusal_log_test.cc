#include "node/refusal_log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace weft::core {
namespace {

using Lines = std::vector<std::string>;

constexpr int64_t kSecond = 1'000'000'000;

TEST(RefusalLogTest, AFloodOfOneKindIsCountedAndHidesNoOther) {
  RefusalLog log;
  size_t lines = 0;
  for (int i = 0; i < 1000; ++i) {
    lines += log.Refused("10.0.0.9:1", RefusalKind::kBusy, "busy", i * kSecond / 20).size();
  }
  EXPECT_EQ(lines, RefusalLog::kLinesPerMinute);
  EXPECT_EQ(log.Refused("10.0.0.2:7", RefusalKind::kWrongToken, "no token", 50 * kSecond),
            Lines{"a connection from 10.0.0.2:7 was refused: no token"});
  // A minute after its first, that kind is told of again, with how many there were meanwhile.
  EXPECT_EQ(
      log.Refused("10.0.0.9:2", RefusalKind::kBusy, "busy", 60 * kSecond),
      (Lines{"990 more connections were refused for such a reason", "a connection from 10.0.0.9:2 was refused: busy"}));
  EXPECT_EQ(log.Refused("10.0.0.9:3", RefusalKind::kBusy, "busy", 61 * kSecond),
            Lines{"a connection from 10.0.0.9:3 was refused: busy"});
}

TEST(RefusalLogTest, RareOnesAreAllTold) {
  RefusalLog log;
  for (int64_t minute = 0; minute < 50; ++minute) {
    for (uint32_t i = 0; i < RefusalLog::kLinesPerMinute; ++i) {
      EXPECT_EQ(log.Refused("a", RefusalKind::kHttp, "b", minute * 60 * kSecond + i),
                Lines{"a connection from a was refused: b"});
    }
  }
}

}  // namespace
}  // namespace weft::core
