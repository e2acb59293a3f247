#include "transport/stream_poller.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/random.h"
#include "os/socket.h"
#include "transport/shared_stream.h"
#include "transport/stream_channel.h"
#include "transport/test_patience.h"

namespace weft::core {
namespace {

// The caller and the threads it makes share one processor, so that they find each other in the middle of things.
class OneProcessor {
 public:
  OneProcessor() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~OneProcessor() { sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_;
};

TEST(StreamPoller, AWaiterThatReadsTheSocketsHearsEveryWakeUp) {
  OneProcessor one;
  auto page = CreateDoorbellPage();
  ASSERT_TRUE(page.ok());
  auto bell = Doorbell::Open(page->get());
  ASSERT_TRUE(bell.ok());
  Doorbell& waiter_bell = **bell;
  auto poller = StreamPoller::Start(waiter_bell.memory());
  ASSERT_TRUE(poller.ok());
  auto sockets = StreamSocketPair(Blocking::kNo);
  ASSERT_TRUE(sockets.ok());
  auto stream = std::make_shared<SharedStream>(std::move(sockets->first), **poller, 0, Audience::kExecutor);
  ASSERT_TRUE((*poller)->Add(stream).ok());
  StreamChannel peer(std::move(sockets->second));

  constexpr uint32_t kRounds = 5000;
  std::atomic<uint32_t> said{0}, heard{0};
  std::atomic<bool> lost{false};
  Random random(1);
  std::thread waiter([&] {
    while (heard.load() < kRounds && !lost.load()) {
      const int64_t deadline_ns = NowNs() + kPatienceNs;
      (*poller)->SleepAsWaiter(waiter_bell, WaiterState::kAsleepIdle, deadline_ns,
                               [&] { return said.load() != heard.load(); });
      Frame frame;
      while (stream->Peek(&frame)) stream->Pop();
      waiter_bell.TakeRung(Audience::kExecutor, [](uint32_t) {});
      if (said.load() == heard.load()) continue;
      if (NowNs() >= deadline_ns) lost.store(true);
      heard.store(said.load());
    }
  });
  while (waiter_bell.waiter_word().load() == 0) std::this_thread::yield();
  for (uint32_t round = 1; round <= kRounds && !lost.load(); ++round) {
    // A frame has the poller wake the waiter, after which it leaves the sockets to it.
    if (round % 8 == 1) {
      ASSERT_NE(peer.BeginSend(1), nullptr);
      peer.CommitSend(1, false, 1);
      peer.Flush();
    }
    // Every other time about as late as it takes the poller to believe that the waiter stays, otherwise at once.
    if (round % 2 == 0) {
      const int64_t late_ns = static_cast<int64_t>(random.Below(StreamPoller::kTickNs / 5));
      const int64_t until_ns = NowNs() + StreamPoller::kTickNs * 19 / 20 + late_ns;
      while (NowNs() < until_ns) {
      }
    }
    said.store(round);
    waiter_bell.WakeWaiter();
    while (heard.load() != round && !lost.load()) std::this_thread::yield();
  }
  waiter.join();
  EXPECT_FALSE(lost.load()) << "the waiter slept through round " << said.load();
  (*poller)->Stop();
}

}  // namespace
}  // namespace weft::core
