#include "events/event_log.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <random>
#include <thread>

namespace weft::core {
namespace {

struct Log {
  UniqueFd fd;
  EventLog log;
  explicit Log(uint64_t process = 7) {
    auto made = CreateEventLog(ProcessId{process});
    EXPECT_TRUE(made.ok()) << made.error().message;
    fd = std::move(*made);
    EXPECT_TRUE(log.Open(fd.get()).ok());
  }
  EventLogCopy Read() {
    auto copy = ReadEventLog(fd.get());
    EXPECT_TRUE(copy.ok()) << copy.error().message;
    return *copy;
  }
};

uint64_t TouchedBytes(int fd) {
  struct stat status;
  EXPECT_EQ(::fstat(fd, &status), 0);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

TEST(EventLogTest, WhatRanIsReadBackWithItsTimes) {
  Log log;
  uint32_t name = log.log.NameId("square");
  int64_t before = NowNs();
  auto running = log.log.Begin(ProcessId{1}, 11, 12, name, 2);
  log.log.End(running, EventOutcome::kError);
  int64_t after = NowNs();
  EventLogCopy copy = log.Read();
  EXPECT_EQ(copy.process, ProcessId{7});
  ASSERT_EQ(copy.events.size(), 1u);
  const RecordedEvent& event = copy.events[0];
  EXPECT_EQ(event.kind, EventKind::kRan);
  EXPECT_EQ(event.outcome, EventOutcome::kError);
  EXPECT_EQ(event.process, 1u);
  EXPECT_EQ(event.task, 11u);
  EXPECT_EQ(event.object, 12u);
  EXPECT_EQ(event.attempt, 2u);
  EXPECT_EQ(copy.names[event.name], "square");
  // Ticks and clock are two readings; a microsecond is more than they can differ on a clock that agrees with itself.
  EXPECT_GE(event.begin_ns, before - 1000);
  EXPECT_LE(event.end_ns, after + 1000);
  EXPECT_LE(event.begin_ns, event.end_ns);
}

TEST(EventLogTest, WhatRunsNowIsSeenAndEachHasItsLane) {
  Log log;
  auto first = log.log.Begin(ProcessId{1}, 1, 0, log.log.NameId("a"), 0);
  auto second = log.log.Begin(ProcessId{1}, 2, 0, log.log.NameId("b"), 0);
  EventLogCopy copy = log.Read();
  ASSERT_EQ(copy.running.size(), 2u);
  EXPECT_EQ(copy.running[0].task, 1u);
  EXPECT_EQ(copy.running[1].task, 2u);
  EXPECT_EQ(copy.names[copy.running[1].name], "b");
  EXPECT_TRUE(copy.events.empty());
  log.log.End(first, EventOutcome::kOk);
  copy = log.Read();
  ASSERT_EQ(copy.running.size(), 1u);
  EXPECT_EQ(copy.running[0].task, 2u);
  auto third = log.log.Begin(ProcessId{1}, 3, 0, 0, 0);
  EXPECT_EQ(third.lane, 0u) << "a freed lane is used again";
  log.log.End(second, EventOutcome::kOk);
  log.log.End(third, EventOutcome::kOk);
  EXPECT_TRUE(log.Read().running.empty());
  EXPECT_EQ(log.Read().events.size(), 3u);
}

TEST(EventLogTest, MoreThanTheLanesAreStillRecordedAtTheirEnd) {
  Log log;
  std::vector<EventLog::Running> running;
  for (uint64_t i = 0; i < kEventLanes + 5; ++i) running.push_back(log.log.Begin(ProcessId{1}, i + 1, 0, 0, 0));
  EXPECT_EQ(log.Read().running.size(), kEventLanes);
  for (auto& each : running) log.log.End(each, EventOutcome::kOk);
  EXPECT_EQ(log.Read().events.size(), kEventLanes + 5);
  EXPECT_EQ(log.log.Begin(ProcessId{1}, 1, 0, 0, 0).lane, 0u);
}

TEST(EventLogTest, SubmissionsAndDependencies) {
  Log log;
  log.log.Submitted(5, 6, log.log.NameId("f"));
  log.log.Depends(5, ObjectId{ProcessId{3}, 99});
  log.log.Returns(5, 8);
  EventLogCopy copy = log.Read();
  ASSERT_EQ(copy.events.size(), 3u);
  EXPECT_EQ(copy.events[0].kind, EventKind::kSubmitted);
  EXPECT_GT(copy.events[0].begin_ns, 0);
  EXPECT_EQ(copy.events[1].kind, EventKind::kDepends);
  EXPECT_EQ(copy.events[1].process, 3u);
  EXPECT_EQ(copy.events[1].object, 99u);
  EXPECT_EQ(copy.events[2].kind, EventKind::kReturns);
  EXPECT_EQ(copy.events[2].object, 8u);
}

TEST(EventLogTest, TheOldestAreOverwritten) {
  Log log;
  for (uint64_t i = 0; i < kEventRecords + 100; ++i) log.log.Submitted(i, 0, 0);
  EventLogCopy copy = log.Read();
  EXPECT_EQ(copy.overwritten, 100u);
  ASSERT_EQ(copy.events.size(), kEventRecords);
  EXPECT_EQ(copy.events.front().task, 100u);
  EXPECT_EQ(copy.events.back().task, kEventRecords + 99u);
}

TEST(EventLogTest, NamesAreKeptOnceAndWithinTheirRoom) {
  Log log;
  EXPECT_EQ(log.log.NameId("f"), log.log.NameId("f"));
  EXPECT_NE(log.log.NameId("f"), log.log.NameId("g"));
  EXPECT_EQ(log.log.NameId(""), 0u);
  log.log.Submitted(1, 0, log.log.NameId(std::string(100'000, 'x')));
  EXPECT_EQ(log.Read().names.begin()->second.size(), 512u);
  uint32_t last = 1;
  for (int i = 0; i < 10'000; ++i)
    last = log.log.NameId("a function with a rather long name, number " + std::to_string(i));
  EXPECT_EQ(last, 0u) << "no more room, and no harm";
  log.log.Submitted(1, 0, log.log.NameId("f"));
  EXPECT_EQ(log.Read().events.size(), 2u);
}

TEST(EventLogTest, SwitchedOffItDoesNothing) {
  EventLog log;
  EXPECT_FALSE(log.on());
  EXPECT_EQ(log.NameId("f"), 0u);
  log.End(log.Begin(ProcessId{1}, 1, 1, 0, 0), EventOutcome::kOk);
  log.Submitted(1, 1, 0);
  log.Depends(1, ObjectId{ProcessId{1}, 1});
}

TEST(EventLogTest, AnIdleProcessPaysOnePage) {
  Log log;
  EXPECT_TRUE(IsUnusedEventLog(log.fd.get()));
  EXPECT_LE(TouchedBytes(log.fd.get()), 4096u);
  log.log.End(log.log.Begin(ProcessId{1}, 1, 0, log.log.NameId("f"), 0), EventOutcome::kOk);
  EXPECT_LE(TouchedBytes(log.fd.get()), 3 * 4096u);
  EXPECT_FALSE(IsUnusedEventLog(log.fd.get()));
}

TEST(EventLogTest, TheRecentFunctionIsNamedIfItIsTheOnlyOne) {
  Log log;
  const int64_t begin = NowNs();
  EXPECT_EQ(RecentFunction(log.fd.get(), begin), "");
  auto first = log.log.Begin(ProcessId{1}, 1, 0, log.log.NameId("f"), 0);
  EXPECT_EQ(RecentFunction(log.fd.get(), begin), "f") << "it runs";
  log.log.End(first, EventOutcome::kOk);
  EXPECT_EQ(RecentFunction(log.fd.get(), begin), "f") << "it has just ended";
  EXPECT_EQ(RecentFunction(log.fd.get(), NowNs() + 1'000'000), "f") << "long ago, but nobody else has run since";
  log.log.Submitted(3, 0, log.log.NameId("h"));
  EXPECT_EQ(RecentFunction(log.fd.get(), begin), "f") << "a submission prints nothing";
  auto second = log.log.Begin(ProcessId{1}, 2, 0, log.log.NameId("g"), 0);
  EXPECT_EQ(RecentFunction(log.fd.get(), begin), "") << "either may have printed";
  EXPECT_EQ(RecentFunction(log.fd.get(), NowNs() + 1'000'000), "g");
  log.log.End(second, EventOutcome::kOk);
  // At the edge of the ring it looks at few, but at the right ones.
  for (uint64_t i = 0; i < 2 * kEventRecords + 40; ++i) {
    const int64_t before = NowNs() - 100'000;  // its clock is the processor's, and a little off
    log.log.End(log.log.Begin(ProcessId{1}, i, 0, log.log.NameId("k"), 0), EventOutcome::kOk);
    if (i > kEventRecords - 40 && i < kEventRecords + 40) {
      ASSERT_EQ(RecentFunction(log.fd.get(), before), "k") << i;
    }
  }
}

TEST(EventLogTest, OutlivesAProcessKilledWhileItWrites) {
  Log log;
  pid_t child = ::fork();
  if (child == 0) {
    EventLog own;
    if (!own.Open(log.fd.get()).ok()) ::_exit(1);
    for (uint64_t i = 0;; ++i) own.End(own.Begin(ProcessId{1}, i, i, 0, 0), EventOutcome::kOk);
  }
  while (log.Read().overwritten < 1000) std::this_thread::yield();
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EventLogCopy copy = log.Read();
  EXPECT_GE(copy.events.size(), kEventRecords - 1);
  for (const RecordedEvent& event : copy.events) EXPECT_EQ(event.task, event.object);
}

// Several writers and a reader at once: what is read is whole. Run under ThreadSanitizer as well.
TEST(EventLogTest, AReaderNeverSeesHalfARecord) {
  Log log;
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (uint64_t w = 1; w <= 2; ++w) {
    writers.emplace_back([&, w] {
      for (uint64_t i = 1; !stop.load(std::memory_order_relaxed); ++i) {
        auto running = log.log.Begin(ProcessId{w}, i, i * 3, 0, 0);
        log.log.End(running, EventOutcome::kOk);
      }
    });
  }
  int64_t until = NowNs() + 300'000'000;
  size_t seen = 0;
  while (NowNs() < until || seen == 0) {
    EventLogCopy copy = log.Read();
    for (const auto* list : {&copy.events, &copy.running}) {
      for (const RecordedEvent& event : *list) {
        ASSERT_EQ(event.object, event.task * 3);
        ASSERT_TRUE(event.process == 1 || event.process == 2);
        ++seen;
      }
    }
  }
  stop = true;
  for (auto& writer : writers) writer.join();
}

TEST(EventLogTest, RandomMemoryIsReadWithoutHarm) {
  std::mt19937_64 random(42);
  for (int round = 0; round < 20; ++round) {
    Log log;
    auto mapping = Mapping::Map(log.fd.get(), sizeof(EventLogMemory), Mapping::Access::kReadWrite);
    ASSERT_TRUE(mapping.ok());
    auto* words = reinterpret_cast<uint64_t*>(mapping->data());
    for (size_t i = 2; i < sizeof(EventLogMemory) / 8; i += 1 + random() % 64) words[i] = random() >> (random() % 64);
    [[maybe_unused]] auto ignored = ReadEventLog(log.fd.get());
    RecentFunction(log.fd.get(), 0);
    // And with sequences that look right.
    auto* memory = reinterpret_cast<EventLogMemory*>(mapping->data());
    memory->head.store(kEventRecords);
    for (uint64_t i = 0; i < kEventRecords; ++i) memory->cells[i].sequence.store(i + 1);
    auto copy = ReadEventLog(log.fd.get());
    ASSERT_TRUE(copy.ok());
    for (const RecordedEvent& event : copy->events) {
      EXPECT_LE(event.outcome, EventOutcome::kHandedBack);
      if (event.end_ns != 0) {
        EXPECT_LE(event.begin_ns, event.end_ns);
      }
    }
  }
}

TEST(EventLogTest, OtherMemoryIsRefused) {
  auto small = CreateMemfd("test", 4096);
  EXPECT_FALSE(ReadEventLog(small->get()).ok());
  auto other = CreateMemfd("test", sizeof(EventLogMemory));
  EXPECT_FALSE(ReadEventLog(other->get()).ok());
  EventLog log;
  EXPECT_FALSE(log.Open(other->get()).ok());
}

}  // namespace
}  // namespace weft::core
