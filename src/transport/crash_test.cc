// Kills one side of a channel at every step of its work and asks the survivor to go on.
//
// The victim is a forked process that maps the channel anew and exits, without any clean-up, when it comes to the
// chosen step for the chosen time. The survivor is told of the death as the node daemon would tell it: by a WakeAll.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "transport/ring_channel.h"
#include "transport/test_patience.h"

namespace weft::core {
namespace {

constexpr int kReachedTheStep = 7;
constexpr int kFrames = 400;

struct CrashSteps {
  static inline int step = -1;
  static inline int countdown = 0;
  static void At(int at) {
    if (at == step && --countdown == 0) _exit(kReachedTheStep);
  }
};

// What the victim says about itself, in memory that outlives it.
struct Diary {
  std::atomic<int> committed;
  std::atomic<uint8_t> executed[kFrames];
  std::atomic<uint8_t> revoked[kFrames];
};

template <class T>
T* MapDiary(int fd, Mapping* mapping) {
  *mapping = std::move(*Mapping::Map(fd, 4096, Mapping::Access::kReadWrite));
  return reinterpret_cast<T*>(mapping->data());
}

uint32_t SizeOf(int number) { return 8 + static_cast<uint32_t>(number * 37 % 900); }

bool Produce(RingProducer* ring, int number, bool revocable, Ticket* ticket = nullptr) {
  const uint32_t size = SizeOf(number);
  uint8_t* room = ring->Begin(size);
  if (room == nullptr) return false;
  memset(room, number, size);
  memcpy(room, &number, sizeof number);
  const Ticket sent = ring->Commit<CrashSteps>(1, revocable, size);
  if (ticket != nullptr) *ticket = sent;
  return true;
}

int NumberIn(const Frame& frame) {
  int number;
  memcpy(&number, frame.bytes.data(), sizeof number);
  EXPECT_EQ(frame.bytes.size(), SizeOf(number));
  for (size_t i = sizeof number; i < frame.bytes.size(); ++i) {
    if (frame.bytes[i] != static_cast<char>(number)) {
      ADD_FAILURE() << "corrupt byte in frame " << number;
      break;
    }
  }
  return number;
}

class CrashTest : public testing::Test {
 protected:
  CrashTest()
      : channel_fd_(std::move(*CreateChannelMemory())),
        bell_fd_(std::move(*CreateDoorbellPage())),
        diary_fd_(std::move(*CreateMemfd("diary", 4096))),
        memory_(*RingChannel::MapMemory(channel_fd_.get())),
        bell_(std::move(*Doorbell::Open(bell_fd_.get()))),
        daemon_(*PeerDoorbell::Open(bell_fd_.get())) {
    diary_ = MapDiary<Diary>(diary_fd_.get(), &diary_memory_);
  }

  static RingControl* ControlOf(const Mapping& memory) {
    return &reinterpret_cast<ChannelPage*>(memory.data())->rings[0];
  }
  static uint8_t* DataOf(const Mapping& memory) { return memory.data() + ChannelPage::kBytes; }

  // Runs `life` in a process that dies at the step. The parent's mappings do not exist there, hence the new ones.
  template <class Life>
  void StartVictim(int step, int occurrence, Life life) {
    fflush(stdout);  // or a sanitizer prints it again when the victim exits
    victim_ = fork();
    if (victim_ == 0) {
      CrashSteps::step = step;
      CrashSteps::countdown = occurrence;
      auto memory = RingChannel::MapMemory(channel_fd_.get());
      auto bell = PeerDoorbell::Open(bell_fd_.get());
      Mapping diary_memory;
      auto* diary = MapDiary<Diary>(diary_fd_.get(), &diary_memory);
      life(**memory, bell->get(), diary);
      _exit(0);
    }
    ASSERT_GT(victim_, 0);
  }
  // What the node daemon does about a death.
  void AwaitDeath() {
    int status = 0;
    ASSERT_EQ(waitpid(victim_, &status, 0), victim_);
    ASSERT_TRUE(WIFEXITED(status)) << status;
    reached_ = WEXITSTATUS(status) == kReachedTheStep;
    ASSERT_TRUE(reached_ || WEXITSTATUS(status) == 0) << status;
    dead_.store(true);
    daemon_->WakeAll();
  }

  UniqueFd channel_fd_, bell_fd_, diary_fd_;
  std::shared_ptr<Mapping> memory_;
  std::unique_ptr<Doorbell> bell_;
  std::shared_ptr<PeerDoorbell> daemon_;
  Mapping diary_memory_;
  Diary* diary_ = nullptr;
  pid_t victim_ = -1;
  std::atomic<bool> dead_ = false;
  bool reached_ = false;
};

struct Death {
  int step;
  int occurrence;
};

// The producer dies while committing or ringing; the consumer, which sleeps when it has nothing to do, gets everything
// that was committed and nothing else, and does not sleep for ever.
class ProducerCrashTest : public CrashTest, public testing::WithParamInterface<Death> {};

TEST_P(ProducerCrashTest, ConsumerDrainsAndWakes) {
  const auto [step, occurrence] = GetParam();
  StartVictim(step, occurrence, [](const Mapping& memory, PeerDoorbell* bell, Diary* diary) {
    RingProducer ring(ControlOf(memory), DataOf(memory));
    for (int i = 0; i < kFrames; ++i) {
      while (!Produce(&ring, i, false)) {
      }
      diary->committed.store(i + 1);
      bell->Ring<CrashSteps>(33, Audience::kAnyone);
    }
  });
  std::thread daemon([this] { AwaitDeath(); });
  RingConsumer ring(ControlOf(*memory_), DataOf(*memory_));
  int received = 0;
  Frame frame;
  for (;;) {
    const bool dead = dead_.load();  // before draining: what the dead had committed is there by now
    bell_->TakeRung(Audience::kAnyone, [](uint32_t slot) { EXPECT_EQ(slot, 33u); });
    while (ring.Peek(&frame)) {
      EXPECT_EQ(NumberIn(frame), received);
      ++received;
      ring.Pop();
    }
    if (dead) break;
    if (!WaitAsWaiter(bell_.get(), WaiterState::kAsleepInGet, [&] { return dead_.load(); })) break;
  }
  daemon.join();
  EXPECT_FALSE(ring.broken());
  const int committed = diary_->committed.load();
  EXPECT_GE(received, committed);
  EXPECT_LE(received, committed + 1);
  // Whether the victim comes to the later steps, and how often, depends on when the survivor takes bits and sleeps.
  if (step <= 20 || (occurrence == 1 && step != 23 && step != 24 && step != 25)) {
    EXPECT_TRUE(reached_);
  }
}

// The same with the background thread as the sleeper.
TEST_P(ProducerCrashTest, BackgroundDrainsAndWakes) {
  const auto [step, occurrence] = GetParam();
  StartVictim(step, occurrence, [](const Mapping& memory, PeerDoorbell* bell, Diary* diary) {
    RingProducer ring(ControlOf(memory), DataOf(memory));
    for (int i = 0; i < kFrames; ++i) {
      while (!Produce(&ring, i, false)) {
      }
      diary->committed.store(i + 1);
      bell->Ring<CrashSteps>(33, Audience::kAnyone);
    }
  });
  std::thread daemon([this] { AwaitDeath(); });
  RingConsumer ring(ControlOf(*memory_), DataOf(*memory_));
  int received = 0;
  Frame frame;
  for (;;) {
    const bool dead = dead_.load();
    bell_->TakeRung(Audience::kAnyone, [](uint32_t) {});
    while (ring.Peek(&frame)) {
      EXPECT_EQ(NumberIn(frame), received);
      ++received;
      ring.Pop();
    }
    if (dead) break;
    if (bell_->ArmBackground()) continue;
    if (!WaitAsBackground(bell_.get())) break;
  }
  daemon.join();
  EXPECT_FALSE(ring.broken());
  EXPECT_GE(received, diary_->committed.load());
  EXPECT_LE(received, diary_->committed.load() + 1);
}

std::vector<Death> Deaths(std::vector<int> steps) {
  std::vector<Death> deaths;
  for (int step : steps) {
    for (int occurrence : {1, 2, 60}) deaths.push_back({step, occurrence});
  }
  return deaths;
}
std::string DeathName(const testing::TestParamInfo<Death>& info) {
  return "Step" + std::to_string(info.param.step) + "Time" + std::to_string(info.param.occurrence);
}

INSTANTIATE_TEST_SUITE_P(Commit, ProducerCrashTest, testing::ValuesIn(Deaths({0, 1, 2, 3, 4})), DeathName);
INSTANTIATE_TEST_SUITE_P(Ring, ProducerCrashTest,
                         testing::Values(Death{20, 1}, Death{20, 60}, Death{21, 1}, Death{21, 2}, Death{22, 1},
                                         Death{22, 2}, Death{23, 1}, Death{23, 2}, Death{24, 1}, Death{24, 2},
                                         Death{25, 1}, Death{25, 2}, Death{26, 1}),
                         DeathName);

// The deterministic core of the above: the one state in which nobody but the daemon can help. The producer has marked
// the sleeper as awake and dies before it asks the kernel to wake it.
TEST_F(CrashTest, DeathBetweenMarkingAwakeAndWaking) {
  bool woken = false;
  std::thread sleeper([&] { woken = WaitAsWaiter(bell_.get(), WaiterState::kAsleepInGet); });
  const int64_t deadline = NowNs() + kPatienceNs;
  while (daemon_->waiter_state() != WaiterState::kAsleepInGet && NowNs() < deadline) std::this_thread::yield();
  StartVictim(23, 1, [](const Mapping&, PeerDoorbell* bell, Diary*) { bell->Ring<CrashSteps>(1, Audience::kAnyone); });
  AwaitDeath();
  EXPECT_TRUE(reached_);
  sleeper.join();
  EXPECT_TRUE(woken);
}

// The same for the background thread, which has one step more: it is disarmed, then signalled, then woken.
TEST_F(CrashTest, DeathWhileWakingTheBackground) {
  auto memory = std::move(*Mapping::Map(bell_fd_.get(), kDoorbellPageBytes, Mapping::Access::kReadWrite));
  auto* page = reinterpret_cast<DoorbellPage*>(memory.data());
  for (int step : {24, 25}) {
    bool woken = false;
    std::thread sleeper([&] { woken = WaitAsBackground(bell_.get()); });
    const int64_t deadline = NowNs() + kPatienceNs;
    while (page->background_signal.load() != DoorbellPage::kAsleep && NowNs() < deadline) std::this_thread::yield();
    EXPECT_FALSE(bell_->ArmBackground());
    StartVictim(step, 1,
                [](const Mapping&, PeerDoorbell* bell, Diary*) { bell->Ring<CrashSteps>(1, Audience::kAnyone); });
    AwaitDeath();
    EXPECT_TRUE(reached_);
    sleeper.join();
    EXPECT_TRUE(woken);
    bell_->TakeRung(Audience::kAnyone, [](uint32_t) {});
  }
}

// The consumer dies while claiming or popping; the producer revokes what is left. A frame whose execution began is
// claimed, and a revoked one was never begun.
class ConsumerCrashTest : public CrashTest, public testing::WithParamInterface<Death> {};

TEST_P(ConsumerCrashTest, ProducerRevokesTheRest) {
  const auto [step, occurrence] = GetParam();
  CrashSteps::step = -1;
  RingProducer ring(ControlOf(*memory_), DataOf(*memory_));
  std::vector<Ticket> tickets(kFrames);
  for (int i = 0; i < kFrames; ++i) ASSERT_TRUE(Produce(&ring, i, true, &tickets[i]));
  for (int i = 0; i < kFrames; i += 5) ASSERT_EQ(ring.Revoke(tickets[i]), RevokeOutcome::kRevoked);

  StartVictim(step, occurrence, [](const Mapping& memory, PeerDoorbell*, Diary* diary) {
    RingConsumer consumer(ControlOf(memory), DataOf(memory));
    Frame frame;
    while (consumer.Peek<CrashSteps>(&frame)) {
      int number;
      memcpy(&number, frame.bytes.data(), sizeof number);
      if (number == kFrames - 1) return;
      if (consumer.Claim<CrashSteps>()) diary->executed[number].store(1);
      consumer.Pop<CrashSteps>();
    }
  });
  AwaitDeath();
  EXPECT_TRUE(reached_);
  int claimed = 0, executed = 0;
  for (int i = 0; i < kFrames; ++i) {
    executed += diary_->executed[i].load();
    if (i % 5 == 0) {
      EXPECT_EQ(diary_->executed[i].load(), 0) << "revoked before the victim lived";
      continue;
    }
    const RevokeOutcome outcome = ring.Revoke(tickets[i]);
    ASSERT_NE(outcome, RevokeOutcome::kPending);
    if (outcome == RevokeOutcome::kClaimed) ++claimed;
    if (diary_->executed[i].load() == 1) {
      EXPECT_EQ(outcome, RevokeOutcome::kClaimed) << i;
    }
  }
  EXPECT_GE(claimed, executed);
  EXPECT_LE(claimed, executed + 1) << "at most the one it died in";
  // The survivor can go on writing until the ring is full, and is then told so.
  int more = 0;
  while (Produce(&ring, more % kFrames, false) && more < 100'000) ++more;
  EXPECT_LT(more, 100'000);
  ring.Trim();
  EXPECT_FALSE(ring.broken());
}

INSTANTIATE_TEST_SUITE_P(All, ConsumerCrashTest, testing::ValuesIn(Deaths({10, 11, 12, 13, 14})), DeathName);

// The producer dies in the middle of taking frames back; the consumer executes those that were not.
class RevokerCrashTest : public CrashTest, public testing::WithParamInterface<Death> {};

TEST_P(RevokerCrashTest, ConsumerExecutesTheRest) {
  const auto [step, occurrence] = GetParam();
  StartVictim(step, occurrence, [](const Mapping& memory, PeerDoorbell*, Diary* diary) {
    RingProducer ring(ControlOf(memory), DataOf(memory));
    std::vector<Ticket> tickets(kFrames);
    for (int i = 0; i < kFrames; ++i) {
      if (!Produce(&ring, i, true, &tickets[i])) _exit(1);
    }
    for (int i = kFrames - 1; i >= 0; --i) {
      if (ring.Revoke<CrashSteps>(tickets[i]) == RevokeOutcome::kRevoked) diary->revoked[i].store(1);
    }
  });
  AwaitDeath();
  EXPECT_TRUE(reached_);
  RingConsumer consumer(ControlOf(*memory_), DataOf(*memory_));
  Frame frame;
  int next = 0;
  while (consumer.Peek(&frame)) {
    EXPECT_EQ(NumberIn(frame), next) << "the newest were revoked, the others are all there";
    EXPECT_EQ(diary_->revoked[next].load(), 0);
    EXPECT_TRUE(consumer.Claim());
    consumer.Pop();
    ++next;
  }
  EXPECT_FALSE(consumer.broken());
  int revoked = 0;
  for (const auto& each : diary_->revoked) revoked += each.load();
  EXPECT_GE(next + revoked, kFrames - 1);
  EXPECT_LE(next + revoked, kFrames);
}

INSTANTIATE_TEST_SUITE_P(All, RevokerCrashTest, testing::ValuesIn(Deaths({5, 6})), DeathName);

}  // namespace
}  // namespace weft::core
