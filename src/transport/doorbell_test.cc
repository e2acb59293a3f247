#include "transport/doorbell.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/clock.h"
#include "transport/test_patience.h"

namespace weft::core {
namespace {

class DoorbellTest : public testing::Test {
 protected:
  DoorbellTest() {
    auto fd = CreateDoorbellPage();
    // One mapping for both sides: TSan tells addresses apart, not pages.
    auto memory =
        std::make_shared<Mapping>(std::move(*Mapping::Map(fd->get(), kDoorbellPageBytes, Mapping::Access::kReadWrite)));
    bell_ = std::make_unique<Doorbell>(memory);
    peer_ = std::make_unique<PeerDoorbell>(memory);
  }
  std::vector<uint32_t> Take(Audience audience) {
    std::vector<uint32_t> slots;
    bell_->TakeRung(audience, [&](uint32_t slot) { slots.push_back(slot); });
    return slots;
  }
  void AwaitState(WaiterState state) {
    const int64_t deadline = NowNs() + kPatienceNs;
    while (peer_->waiter_state() != state && NowNs() < deadline) std::this_thread::yield();
    ASSERT_EQ(peer_->waiter_state(), state);
  }
  std::unique_ptr<Doorbell> bell_;
  std::unique_ptr<PeerDoorbell> peer_;
};

TEST_F(DoorbellTest, EverySlotInBothBitmaps) {
  for (Audience audience : {Audience::kExecutor, Audience::kAnyone}) {
    for (uint32_t slot = 0; slot < kDoorbellSlots; ++slot) {
      peer_->Ring(slot, audience);
      ASSERT_TRUE(bell_->AnyRung(audience));
      ASSERT_EQ(Take(audience), std::vector<uint32_t>{slot});
      ASSERT_FALSE(bell_->AnyRung());
    }
    for (uint32_t slot = 0; slot < kDoorbellSlots; ++slot) peer_->Ring(slot, audience);
    EXPECT_EQ(Take(audience).size(), kDoorbellSlots);
  }
}

TEST_F(DoorbellTest, DoesNotSleepWhenSomethingIsRung) {
  peer_->Ring(3, Audience::kAnyone);
  EXPECT_EQ(bell_->SleepAsWaiter(WaiterState::kAsleepInGet, kNoDeadline), SleepOutcome::kWoken);
  EXPECT_EQ(peer_->waiter_state(), WaiterState::kAwake);
  Take(Audience::kAnyone);
  EXPECT_EQ(bell_->SleepAsWaiter(WaiterState::kAsleepInGet, NowNs()), SleepOutcome::kTimedOut);
  EXPECT_EQ(bell_->SleepAsWaiter(WaiterState::kAsleepInGet, kNoDeadline, [] { return true; }), SleepOutcome::kWoken);
}

TEST_F(DoorbellTest, TasksConcernOnlyAWaiterWithoutWork) {
  peer_->Ring(3, Audience::kExecutor);
  EXPECT_EQ(bell_->SleepAsWaiter(WaiterState::kAsleepInGet, NowNs()), SleepOutcome::kTimedOut);
  EXPECT_EQ(bell_->SleepAsWaiter(WaiterState::kAsleepIdle, kNoDeadline), SleepOutcome::kWoken);
  EXPECT_EQ(bell_->SleepAsWaiter(WaiterState::kAsleepBlocked, kNoDeadline), SleepOutcome::kWoken);
  EXPECT_FALSE(bell_->ArmBackground()) << "the background thread must not spin on a task";
  Take(Audience::kExecutor);

  bool woken = false;
  std::thread waiter([&] { woken = WaitAsWaiter(bell_.get(), WaiterState::kAsleepInGet); });
  AwaitState(WaiterState::kAsleepInGet);
  peer_->Ring(3, Audience::kExecutor);
  EXPECT_EQ(peer_->waiter_state(), WaiterState::kAsleepInGet) << "not woken for a task";
  EXPECT_TRUE(bell_->background_armed());
  peer_->Ring(4, Audience::kAnyone);
  waiter.join();
  EXPECT_TRUE(woken);
  EXPECT_TRUE(bell_->background_armed()) << "the waiter was woken, so the background thread was not";
}

TEST_F(DoorbellTest, ReplyWithoutAWaiterWakesTheArmedBackgroundOnce) {
  EXPECT_FALSE(bell_->ArmBackground());
  bool woken = false;
  std::thread background([&] { woken = WaitAsBackground(bell_.get()); });
  peer_->Ring(9, Audience::kAnyone);
  background.join();
  EXPECT_TRUE(woken);
  EXPECT_FALSE(bell_->background_armed());
  peer_->Ring(10, Audience::kAnyone);
  EXPECT_EQ(bell_->SleepAsBackground(NowNs()), SleepOutcome::kTimedOut) << "unarmed, so not woken";
  EXPECT_TRUE(bell_->ArmBackground()) << "but told when arming";
}

TEST_F(DoorbellTest, SignalBeforeSleepIsRemembered) {
  bell_->WakeBackground();
  EXPECT_EQ(bell_->SleepAsBackground(kNoDeadline), SleepOutcome::kWoken);
  EXPECT_EQ(bell_->SleepAsBackground(NowNs()), SleepOutcome::kTimedOut) << "once";
}

TEST_F(DoorbellTest, WakeWaiterWakesEveryKind) {
  for (WaiterState kind : {WaiterState::kAsleepInGet, WaiterState::kAsleepIdle, WaiterState::kAsleepBlocked}) {
    bool woken = false;
    std::thread waiter([&] { woken = WaitAsWaiter(bell_.get(), kind); });
    AwaitState(kind);
    bell_->WakeWaiter();
    waiter.join();
    EXPECT_TRUE(woken);
  }
}

// A condition of the owner's own, made true by another thread, without any ring.
TEST_F(DoorbellTest, OwnConditionIsNotMissed) {
  std::atomic<int> turn = 0;
  constexpr int kTurns = 20'000;
  std::thread other([&] {
    for (int i = 0; i < kTurns; ++i) {
      while (turn.load(std::memory_order_relaxed) != 2 * i) std::this_thread::yield();
      turn.store(2 * i + 1, std::memory_order_relaxed);
      bell_->WakeWaiter();
    }
  });
  for (int i = 0; i < kTurns; ++i) {
    const auto done = [&] { return turn.load(std::memory_order_relaxed) == 2 * i + 1; };
    while (!done()) {
      ASSERT_TRUE(WaitAsWaiter(bell_.get(), WaiterState::kAsleepInGet, done));
    }
    turn.store(2 * i + 2, std::memory_order_relaxed);
  }
  other.join();
}

TEST_F(DoorbellTest, AdoptCompletesWhatADeadPredecessorBegan) {
  // As after a death between the bit and the summary.
  auto fd = CreateDoorbellPage();
  auto memory =
      std::make_shared<Mapping>(std::move(*Mapping::Map(fd->get(), kDoorbellPageBytes, Mapping::Access::kReadWrite)));
  Doorbell bell(memory);
  PeerDoorbell peer(memory);
  auto* page = reinterpret_cast<DoorbellPage*>(memory->data());
  page->rung[static_cast<int>(Audience::kAnyone)].words[2].fetch_or(1);
  EXPECT_FALSE(bell.AnyRung());
  peer.Adopt(128);
  EXPECT_TRUE(bell.AnyRung(Audience::kAnyone));
  bell.TakeRung(Audience::kAnyone, [](uint32_t slot) { EXPECT_EQ(slot, 128u); });
  peer.Adopt(128);
  EXPECT_FALSE(bell.AnyRung());
}

}  // namespace
}  // namespace weft::core
