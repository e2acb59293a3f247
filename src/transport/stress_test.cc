// Rings and doorbells with both ends as threads of one process, on one mapping, so that TSan sees all of it. A wait
// that runs into its deadline has lost a wake-up.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "transport/ring_channel.h"
#include "transport/test_patience.h"

namespace weft::core {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kScale = 1;  // an instrumented step costs about ten times as much
#else
constexpr uint64_t kScale = 10;
#endif

struct Process {
  Process() {
    auto fd = CreateDoorbellPage();
    auto memory =
        std::make_shared<Mapping>(std::move(*Mapping::Map(fd->get(), kDoorbellPageBytes, Mapping::Access::kReadWrite)));
    bell = std::make_unique<Doorbell>(memory);
    peer = std::make_shared<PeerDoorbell>(memory);
  }
  std::unique_ptr<Doorbell> bell;
  std::shared_ptr<PeerDoorbell> peer;
};

struct Wire {
  Wire(Process& first_process, uint32_t first_slot, Process& second_process, uint32_t second_slot) {
    auto fd = CreateChannelMemory();
    auto memory = *RingChannel::MapMemory(fd->get());
    first = std::make_unique<RingChannel>(memory, true, second_process.peer, second_slot);
    second = std::make_unique<RingChannel>(memory, false, first_process.peer, first_slot);
  }
  std::unique_ptr<RingChannel> first, second;
};

bool TrySend(RingChannel* channel, uint64_t number, uint32_t size, bool revocable = false, Ticket* ticket = nullptr) {
  size = std::max<uint32_t>(size, 8);
  uint8_t* room = channel->BeginSend(size);
  if (room == nullptr) return false;
  memset(room, static_cast<int>(number), size);
  memcpy(room, &number, sizeof number);
  const Ticket sent = channel->CommitSend(1, revocable, size);
  if (ticket != nullptr) *ticket = sent;
  return true;
}

uint64_t NumberOf(const Frame& frame) {
  uint64_t number;
  memcpy(&number, frame.bytes.data(), sizeof number);
  if (frame.bytes.size() > 8) {
    EXPECT_EQ(frame.bytes.back(), static_cast<char>(number));
  }
  return number;
}

// One direction at full speed, the consumer sleeping whenever it has caught up.
TEST(StressTest, MillionsOfFrames) {
  const uint64_t frames = 200'000 * kScale;
  Process sender, receiver;
  Wire wire(sender, 0, receiver, 77);
  std::thread producer([&] {
    Random random(1);
    for (uint64_t i = 0; i < frames; ++i) {
      while (!TrySend(wire.first.get(), i, static_cast<uint32_t>(random.Below(200)))) std::this_thread::yield();
      if (random.Chance(30) || i + 1 == frames) wire.first->Notify(Audience::kExecutor);
      if (random.Below(5000) == 0) {
        wire.first->Notify(Audience::kExecutor);
        wire.first->Trim();
      }
    }
  });
  uint64_t next = 0;
  Frame frame;
  while (next < frames) {
    receiver.bell->TakeRung(Audience::kExecutor, [](uint32_t slot) { EXPECT_EQ(slot, 77u); });
    while (wire.second->Peek(&frame)) {
      ASSERT_EQ(NumberOf(frame), next);
      ++next;
      wire.second->Pop();
    }
    ASSERT_FALSE(wire.second->broken());
    if (next == frames) break;
    // Full or not, what is in the ring was announced, or will be.
    if (!WaitAsWaiter(receiver.bell.get(), WaiterState::kAsleepIdle)) break;
  }
  producer.join();
}

// Many peers that each wait for the answer before they ask again: one lost wake-up on either side stops the exchange.
TEST(StressTest, PingPongWithManyPeers) {
  constexpr int kPeers = 3;
  const uint64_t rounds = 2'000 * kScale;
  Process server;
  std::vector<std::unique_ptr<Process>> clients;
  std::vector<std::unique_ptr<Wire>> wires;
  for (int i = 0; i < kPeers; ++i) {
    clients.push_back(std::make_unique<Process>());
    wires.push_back(std::make_unique<Wire>(*clients[i], 5, server, static_cast<uint32_t>(i * 700)));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kPeers; ++i) {
    threads.emplace_back([&, i] {
      RingChannel* channel = wires[i]->first.get();
      Doorbell* bell = clients[i]->bell.get();
      for (uint64_t round = 0; round < rounds; ++round) {
        ASSERT_TRUE(TrySend(channel, round, 100));
        channel->Notify(Audience::kExecutor);
        Frame frame;
        while (!channel->Peek(&frame)) {
          bell->TakeRung(Audience::kAnyone, [](uint32_t) {});
          if (channel->Peek(&frame)) break;
          ASSERT_TRUE(WaitAsWaiter(bell, WaiterState::kAsleepInGet));
        }
        ASSERT_EQ(NumberOf(frame), round);
        channel->Pop();
      }
    });
  }
  uint64_t served = 0;
  while (served < rounds * kPeers) {
    server.bell->TakeRung(Audience::kExecutor, [&](uint32_t slot) {
      RingChannel* channel = wires[slot / 700]->second.get();
      Frame frame;
      while (channel->Peek(&frame)) {
        EXPECT_TRUE(TrySend(channel, NumberOf(frame), 50));
        channel->Pop();
        ++served;
      }
      channel->Notify(Audience::kAnyone);
    });
    if (served == rounds * kPeers) break;
    if (!WaitAsWaiter(server.bell.get(), WaiterState::kAsleepIdle)) break;
  }
  for (auto& thread : threads) thread.join();
}

// Replies must be taken by somebody at all times: by a user's thread inside a weft call, or by the background thread
// that it arms when it leaves. The replies ask for the next request, so a lost one stops everything.
TEST(StressTest, BackgroundTakesOverWhenTheUserLeaves) {
  const uint64_t rounds = 3'000 * kScale;
  Process owner, worker;
  Wire wire(owner, 3, worker, 4);
  std::mutex mutex;  // as the runtime: one guarded state
  uint64_t taken = 0;
  uint64_t taken_by_background = 0;
  bool inside = false;
  const auto drain_locked = [&] {
    bool any = false;
    owner.bell->TakeRung(Audience::kAnyone, [](uint32_t) {});
    Frame frame;
    while (wire.first->Peek(&frame)) {
      EXPECT_EQ(NumberOf(frame), taken);
      wire.first->Pop();
      any = true;
      if (++taken < rounds) {
        EXPECT_TRUE(TrySend(wire.first.get(), taken, 20));
        wire.first->Notify(Audience::kExecutor);
      }
    }
    return any;
  };
  std::atomic<bool> finished = false;
  std::thread background([&] {
    while (!finished.load()) {
      {
        std::lock_guard lock(mutex);
        const uint64_t before = taken;
        drain_locked();
        taken_by_background += taken - before;
        if (taken == rounds) {
          finished.store(true);
          break;
        }
        if (!inside && owner.bell->ArmBackground()) {
          owner.bell->DisarmBackground();
          continue;
        }
      }
      if (!WaitAsBackground(owner.bell.get())) finished.store(true);
    }
    owner.bell->WakeWaiter();
  });
  std::thread other([&] {
    uint64_t next = 0;
    while (next < rounds) {
      worker.bell->TakeRung(Audience::kExecutor, [](uint32_t) {});
      Frame frame;
      while (wire.second->Peek(&frame)) {
        EXPECT_EQ(NumberOf(frame), next);
        wire.second->Pop();
        ASSERT_TRUE(TrySend(wire.second.get(), next, 30));
        wire.second->Notify(Audience::kAnyone);
        ++next;
      }
      if (next == rounds) break;
      if (!WaitAsWaiter(worker.bell.get(), WaiterState::kAsleepIdle)) break;
    }
  });
  {
    std::lock_guard lock(mutex);
    ASSERT_TRUE(TrySend(wire.first.get(), 0, 20));
    wire.first->Notify(Audience::kExecutor);
  }
  Random random(9);
  while (!finished.load()) {  // the user: in and out of `get`
    {
      std::lock_guard lock(mutex);
      inside = true;
      owner.bell->DisarmBackground();
      drain_locked();
      if (taken == rounds) finished.store(true);
    }
    const uint64_t visits = random.Below(4);
    for (uint64_t i = 0; i < visits && !finished.load(); ++i) {
      const auto over = [&] { return finished.load(); };
      if (random.Chance(50)) {  // a get with a short timeout
        owner.bell->SleepAsWaiter(WaiterState::kAsleepInGet, NowNs() + 20'000, over);
      } else if (!WaitAsWaiter(owner.bell.get(), WaiterState::kAsleepInGet, over)) {
        finished.store(true);
      }
      std::lock_guard lock(mutex);
      drain_locked();
      if (taken == rounds) finished.store(true);
    }
    {
      std::lock_guard lock(mutex);
      inside = false;
      if (owner.bell->ArmBackground()) owner.bell->WakeBackground();
    }
    for (uint64_t i = random.Below(200); i > 0; --i) std::this_thread::yield();  // the user's own work
  }
  owner.bell->WakeBackground();
  background.join();
  other.join();
  EXPECT_EQ(taken, rounds);
  EXPECT_GT(taken_by_background, 0u);
}

// Each ticket has exactly one outcome, and a frame is executed iff it was claimed.
TEST(StressTest, RevokeRacesClaim) {
  const uint64_t frames = 20'000 * kScale;
  Process sender, receiver;
  Wire wire(sender, 0, receiver, 1);
  std::vector<uint8_t> executed(frames, 0), revoked(frames, 0);
  std::thread producer([&] {
    Random random(4);
    std::vector<Ticket> tickets(frames);
    uint64_t asked_up_to = 0;
    for (uint64_t i = 0; i < frames; ++i) {
      while (!TrySend(wire.first.get(), i, static_cast<uint32_t>(random.Below(100)), true, &tickets[i])) {
        std::this_thread::yield();
      }
      wire.first->Notify(Audience::kExecutor);
      if (random.Chance(3)) std::this_thread::yield();
      // Now and then everything that may still be queued is taken back, newest first as a submitter would.
      if (random.Chance(10)) {
        for (uint64_t j = i + 1; j-- > asked_up_to;) {
          if (random.Chance(70) && wire.first->Revoke(tickets[j]) == RevokeOutcome::kRevoked) revoked[j] = 1;
        }
        asked_up_to = i + 1;
      }
    }
    while (!TrySend(wire.first.get(), frames, 8)) std::this_thread::yield();
    wire.first->Notify(Audience::kExecutor);
  });
  bool ended = false;
  Random random(6);
  while (!ended) {
    receiver.bell->TakeRung(Audience::kExecutor, [](uint32_t) {});
    Frame frame;
    while (wire.second->Peek(&frame)) {
      const uint64_t number = NumberOf(frame);
      if (random.Chance(3)) std::this_thread::yield();  // let the other side in between Peek and Claim
      if (number == frames) {
        ended = true;
      } else if (wire.second->Claim()) {
        ++executed[number];
      }
      wire.second->Pop();
    }
    if (ended) break;
    if (!WaitAsWaiter(receiver.bell.get(), WaiterState::kAsleepIdle)) break;
  }
  producer.join();
  uint64_t taken_back = 0;
  for (uint64_t i = 0; i < frames; ++i) {
    ASSERT_EQ(executed[i] + revoked[i], 1) << i;
    taken_back += revoked[i];
  }
  EXPECT_GT(taken_back, 0u);
  EXPECT_LT(taken_back, frames);
}

// Sender and receiver of one side are different threads, on both sides.
TEST(StressTest, FourThreadsOnOneChannel) {
  const uint64_t frames = 30'000 * kScale;
  Process a, b;
  Wire wire(a, 0, b, 1);
  const auto send = [&](RingChannel* channel) {
    for (uint64_t i = 0; i < frames; ++i) {
      while (!TrySend(channel, i, static_cast<uint32_t>(i % 90))) std::this_thread::yield();
      if (i % 7 == 0 || i + 1 == frames) channel->Notify(Audience::kAnyone);
      ASSERT_FALSE(channel->broken());
    }
  };
  const auto receive = [&](RingChannel* channel, Doorbell* bell) {
    Frame frame;
    for (uint64_t next = 0; next < frames;) {
      bell->TakeRung(Audience::kAnyone, [](uint32_t) {});
      while (channel->Peek(&frame)) {
        ASSERT_EQ(NumberOf(frame), next++);
        channel->Pop();
      }
      ASSERT_FALSE(channel->broken());
      if (next == frames) break;
      ASSERT_TRUE(WaitAsWaiter(bell, WaiterState::kAsleepInGet));
    }
  };
  std::thread threads[] = {std::thread([&] { send(wire.first.get()); }), std::thread([&] { send(wire.second.get()); }),
                           std::thread([&] { receive(wire.first.get(), a.bell.get()); }),
                           std::thread([&] { receive(wire.second.get(), b.bell.get()); })};
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace weft::core
