#include "wire/state_report.h"

#include <gtest/gtest.h>

#include <random>

namespace weft::core {
namespace {

ProcessReport Example() {
  ProcessReport report;
  report.all_tasks = 7;
  report.all_objects = 9;
  report.tasks.push_back({.task = 1, .object = 2, .state = 3, .attempt = 4, .worker = {5}, .name = "f"});
  report.tasks.back().waits_for = {{{1}, 2}, {{3}, 4}};
  report.tasks.push_back({.task = 6, .object = 0, .state = 0, .attempt = 0, .worker = {}, .name = ""});
  report.objects.push_back({.id = {{1}, 2}, .kind = 2, .size = 1000, .local_references = 3, .segment = 8});
  return report;
}

TEST(StateReportTest, ComesBackAsItWas) {
  std::string bytes = EncodeReport(Example());
  ProcessReport read;
  ASSERT_TRUE(DecodeReport(bytes, read));
  EXPECT_EQ(EncodeReport(read), bytes);
  EXPECT_EQ(read.tasks.size(), 2u);
  EXPECT_EQ(read.tasks[0].waits_for[1], (ObjectId{{3}, 4}));
  EXPECT_EQ(read.objects[0].size, 1000u);
}

TEST(StateReportTest, EveryCutIsRefused) {
  std::string bytes = EncodeReport(Example());
  for (size_t size = 0; size < bytes.size(); ++size) {
    ProcessReport read;
    EXPECT_FALSE(DecodeReport(std::string_view(bytes).substr(0, size), read)) << size;
  }
  ProcessReport read;
  EXPECT_FALSE(DecodeReport(bytes + "x", read));
}

TEST(StateReportTest, ChangedBytesDoNoHarm) {
  std::mt19937 random(1);
  const std::string bytes = EncodeReport(Example());
  for (int round = 0; round < 20'000; ++round) {
    std::string changed = bytes;
    for (uint32_t i = 0; i <= random() % 4; ++i) changed[random() % changed.size()] = static_cast<char>(random());
    ProcessReport read;
    if (DecodeReport(changed, read)) {
      EXPECT_LE(read.tasks.size() + read.objects.size(), changed.size());
    }
  }
}

}  // namespace
}  // namespace weft::core
