#include "log/log_line.h"

#include <gtest/gtest.h>

#include <string>

namespace weft::core {
namespace {

constexpr int64_t kTime = 1'795'125'481'123'999'999;  // 2026-11-19 21:58:01.123999999 UTC

std::string Escaped(const std::string& text) { return EscapedForLog(text, 1000); }

TEST(LogLineTest, HasTimeLevelNodePidSubjectAndText) {
  EXPECT_EQ(LogLine(kTime, LogLevel::kWarning, "2:alpha", 4711, "link", "node 3 (beta) is silent"),
            "2026-11-19T21:58:01.123Z warning 2:alpha 4711 link: node 3 (beta) is silent\n");
  EXPECT_EQ(LogLine(0, LogLevel::kDebug, "-", 1, "node", ""), "1970-01-01T00:00:00.000Z debug - 1 node: \n");
}

TEST(LogLineTest, WhatComesFromStrangersStaysInItsLine) {
  EXPECT_EQ(Escaped("two\nlines\r\n"), "two\\nlines\\x0d\\n");
  EXPECT_EQ(Escaped(std::string("NUL\0and\x7f", 8)), "NUL\\x00and\\x7f");
  EXPECT_EQ(Escaped("\x1b[2J\x1b]0;title\a"), "\\x1b[2J\\x1b]0;title\\x07");
  EXPECT_EQ(Escaped("\xc2\x9b"
                    "2J"),
            "\\xc2\\x9b2J")
      << "the same as an escape sequence, to some terminals";
  EXPECT_EQ(Escaped("a\u2028b\u202e\u2066c\ufeff"), "a\\xe2\\x80\\xa8b\\xe2\\x80\\xae\\xe2\\x81\\xa6c\\xef\\xbb\\xbf");
  // One that writes what looks like an escape is not taken for it.
  EXPECT_EQ(Escaped("C:\\node"), "C:\\\\node");
}

TEST(LogLineTest, PeoplesNamesStayReadable) {
  for (const std::string name : {"Büro", "ノード", "узел", "🖥"}) EXPECT_EQ(Escaped(name), name);
}

TEST(LogLineTest, WhatIsNotUtf8IsShownAsBytes) {
  EXPECT_EQ(Escaped("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(Escaped("\xc0\x8a"), "\\xc0\\x8a") << "a newline in more bytes than it needs";
  EXPECT_EQ(Escaped("\xe0\x80\x8a"), "\\xe0\\x80\\x8a");
  EXPECT_EQ(Escaped("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a pair";
  EXPECT_EQ(Escaped("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(Escaped("cut\xe3\x83"), "cut\\xe3\\x83");
  EXPECT_EQ(Escaped("\xe3(("), "\\xe3((");
}

TEST(LogLineTest, ANameIsOneColumn) { EXPECT_EQ(EscapedForLog("my node", 100, false), "my\\x20node"); }

TEST(LogLineTest, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(EscapedForLog("123456789", 9), "123456789");
  EXPECT_EQ(EscapedForLog("1234567890", 9), "123456...");
  EXPECT_EQ(EscapedForLog("12345\n7890", 9), "12345...") << "no half escapes";
  EXPECT_EQ(EscapedForLog("12345ü67890", 9), "12345...") << "nor half characters";
  const std::string line = LogLine(kTime, LogLevel::kError, "1:a", 1, "node", std::string(100'000, '\x01'));
  EXPECT_LE(line.size(), kMaxLogLineBytes);
  EXPECT_GT(line.size(), kMaxLogLineBytes - 8);
  EXPECT_TRUE(line.ends_with("...\n"));
}

TEST(LogLineTest, LevelsHaveNames) {
  EXPECT_EQ(ParseLogLevel("debug"), LogLevel::kDebug);
  EXPECT_EQ(ParseLogLevel("error"), LogLevel::kError);
  EXPECT_EQ(ParseLogLevel("ERROR"), std::nullopt);
  EXPECT_EQ(ParseLogLevel(""), std::nullopt);
}

}  // namespace
}  // namespace weft::core
