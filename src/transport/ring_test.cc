// The ring against a peer that writes nonsense, and its bookkeeping of memory.
#include "transport/ring.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <string>

#include "base/random.h"
#include "transport/ring_channel.h"

namespace weft::core {
namespace {

class RingTest : public testing::Test {
 protected:
  RingTest()
      : fd_(std::move(*CreateChannelMemory())),
        memory_(*RingChannel::MapMemory(fd_.get())),
        control_(&reinterpret_cast<ChannelPage*>(memory_->data())->rings[0]),
        data_(memory_->data() + ChannelPage::kBytes),
        producer_(control_, data_),
        consumer_(control_, data_) {}

  Ticket Send(const std::string& bytes, bool revocable = false) {
    uint8_t* room = producer_.Begin(static_cast<uint32_t>(bytes.size()));
    EXPECT_NE(room, nullptr);
    memcpy(room, bytes.data(), bytes.size());
    return producer_.Commit(1, revocable, static_cast<uint32_t>(bytes.size()));
  }
  bool Breaks() {
    Frame frame;
    EXPECT_FALSE(consumer_.Peek(&frame));
    EXPECT_FALSE(consumer_.Claim());
    consumer_.Pop();
    EXPECT_FALSE(consumer_.Peek(&frame)) << "for good";
    return consumer_.broken();
  }
  FrameHeader* header(uint32_t offset) { return reinterpret_cast<FrameHeader*>(data_ + offset); }
  size_t Blocks() const {
    struct stat status;
    fstat(fd_.get(), &status);
    return static_cast<size_t>(status.st_blocks) * 512;
  }

  UniqueFd fd_;
  std::shared_ptr<Mapping> memory_;
  RingControl* control_;
  uint8_t* data_;
  RingProducer producer_;
  RingConsumer consumer_;
};

TEST_F(RingTest, ImpossibleHeads) {
  for (uint64_t head : {RingPosition::Make(0, 8), RingPosition::Make(0, kRingDataBytes + 16),
                        RingPosition::Make(0, (1u << 24) - 16), RingPosition::Make(4, 0), ~uint64_t{0}}) {
    control_->head.store(head);
    RingConsumer consumer(control_, data_);
    Frame frame;
    EXPECT_FALSE(consumer.Peek(&frame));
    EXPECT_TRUE(consumer.broken()) << head;
  }
}

TEST_F(RingTest, HeadThatGoesBack) {
  Send("one");
  Send("two");
  Frame frame;
  ASSERT_TRUE(consumer_.Peek(&frame));
  consumer_.Pop();
  ASSERT_TRUE(consumer_.Peek(&frame));
  consumer_.Pop();
  control_->head.store(RingPosition::Make(0, 16));
  EXPECT_TRUE(Breaks());
}

TEST_F(RingTest, SizeBeyondTheFrameLimit) {
  Send("one");
  header(0)->shape = FrameHeader::ShapeWord(kMaxRingFrameBytes + 1, 1);
  EXPECT_TRUE(Breaks());
}

TEST_F(RingTest, SizeBeyondWhatWasPublished) {
  Send("one");
  header(0)->shape = FrameHeader::ShapeWord(17, 1);
  EXPECT_TRUE(Breaks());
}

TEST_F(RingTest, SizeThatWrapsAround) {
  Send("one");
  header(0)->shape = FrameHeader::ShapeWord(0xffffffffu, 1);
  EXPECT_TRUE(Breaks());
}

TEST_F(RingTest, WrongSequenceAndReservedBits) {
  Send("one");
  const uint64_t state = header(0)->state;
  header(0)->state = state + 4;
  RingConsumer other(control_, data_);
  Frame frame;
  EXPECT_FALSE(other.Peek(&frame));
  EXPECT_TRUE(other.broken());
  header(0)->state = state;
  header(0)->shape |= uint64_t{1} << 40;
  EXPECT_TRUE(Breaks());
}

TEST_F(RingTest, JumpsToNowhere) {
  for (uint64_t jump : {uint64_t{8}, uint64_t{kRingDataBytes} + 16, uint64_t{8} << 32,
                        (uint64_t{kRingDataBytes} + 16) << 32, ~uint64_t{0}}) {
    control_->jumps[0].store(jump);
    control_->head.store(RingPosition::Make(1, 32));
    RingConsumer consumer(control_, data_);
    Frame frame;
    EXPECT_FALSE(consumer.Peek(&frame));
    EXPECT_TRUE(consumer.broken()) << jump;
  }
}

TEST_F(RingTest, ImpossibleTails) {
  for (uint64_t tail :
       {RingPosition::Make(1, 0), RingPosition::Make(0, 8), RingPosition::Make(0, 1 << 20), ~uint64_t{0}}) {
    control_->head.store(0);
    control_->tail.store(0);
    RingProducer producer(control_, data_);
    ASSERT_NE(producer.Begin(3000), nullptr);
    producer.Commit(1, false, 3000);
    control_->tail.store(tail);
    EXPECT_EQ(producer.Begin(3000), nullptr);
    EXPECT_TRUE(producer.broken()) << tail;
  }
}

// Whatever the control page and the data hold, the consumer shows only bytes inside the ring and comes to an end.
TEST_F(RingTest, RandomMemory) {
  Random random(23);
  for (int round = 0; round < 20'000; ++round) {
    control_->head.store(RingPosition::Make(random.Below(6), static_cast<uint32_t>(random.Below(300)) * 8));
    for (auto& jump : control_->jumps) jump.store(random.Below(200) * 16 << 32 | random.Below(200) * 8);
    for (uint32_t offset = 0; offset < 2400; offset += 16) {
      header(offset)->state = random.Below(8) << 2 | random.Below(4);
      header(offset)->shape = random.Chance(90) ? random.Below(100) : random.Next();
    }
    RingConsumer consumer(control_, data_);
    Frame frame;
    int shown = 0;
    while (consumer.Peek(&frame)) {
      ASSERT_LT(++shown, 1000);
      const auto* bytes = reinterpret_cast<const uint8_t*>(frame.bytes.data());
      ASSERT_GE(bytes, data_);
      ASSERT_LE(bytes + frame.bytes.size(), data_ + kRingDataBytes);
      consumer.Claim();
      consumer.Pop();
    }
  }
}

TEST_F(RingTest, MemoryFollowsTheLoad) {
  Send("small");
  EXPECT_LE(Blocks(), 2u * 4096) << "control page and first page";
  Frame frame;
  // A consumer that keeps up never needs more than the first page.
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(consumer_.Peek(&frame));
    consumer_.Pop();
    Send(std::string(100, 'x'));
  }
  EXPECT_LE(Blocks(), 2u * 4096);
  for (int i = 0; i < 5000; ++i) Send(std::string(100, 'x'));
  EXPECT_GT(Blocks(), 500'000u);
  producer_.Trim();
  EXPECT_GT(Blocks(), 500'000u) << "not while something is in flight";
  while (consumer_.Peek(&frame)) consumer_.Pop();
  producer_.Trim();
  EXPECT_LE(Blocks(), 2u * 4096);
  producer_.Trim();
  Send("after");
  ASSERT_TRUE(consumer_.Peek(&frame));
  EXPECT_EQ(frame.bytes, "after");
}

// After a burst the window becomes small again by itself, so that the ring stays in the cache.
TEST_F(RingTest, WindowShrinksWhenTheConsumerKeepsUp) {
  Frame frame;
  for (int i = 0; i < 5000; ++i) Send(std::string(100, 'x'));
  while (consumer_.Peek(&frame)) consumer_.Pop();
  EXPECT_EQ(producer_.window_bytes(), kRingDataBytes);
  for (int i = 0; i < 40'000; ++i) {
    Send(std::string(100, 'x'));
    ASSERT_TRUE(consumer_.Peek(&frame));
    consumer_.Pop();
  }
  EXPECT_EQ(producer_.window_bytes(), kRingFirstWindowBytes);
}

// Random sizes, random pace, jumps forwards and backwards, trims: every frame once, in order, unchanged.
TEST_F(RingTest, RandomTraffic) {
  Random random(31);
  uint64_t sent = 0, received = 0;
  const auto size_of = [](uint64_t i) {
    Random r(i);
    return static_cast<uint32_t>(r.Chance(3) ? r.Below(kMaxRingFrameBytes + 1) : r.Below(400));
  };
  for (int step = 0; step < 200'000; ++step) {
    // Phases in which one side is faster.
    const uint64_t bias = (step / 5000) % 3 == 0 ? 70 : (step / 5000) % 3 == 1 ? 50 : 30;
    if (random.Chance(bias)) {
      const uint32_t size = size_of(sent);
      uint8_t* room = producer_.Begin(size);
      if (room == nullptr) continue;
      memset(room, static_cast<int>(sent), size);
      producer_.Commit(static_cast<uint8_t>(sent), false, size);
      ++sent;
    } else {
      Frame frame;
      if (consumer_.Peek(&frame)) {
        ASSERT_EQ(frame.bytes.size(), size_of(received));
        ASSERT_EQ(frame.type, static_cast<uint8_t>(received));
        if (!frame.bytes.empty()) {
          ASSERT_EQ(frame.bytes.front(), static_cast<char>(received));
          ASSERT_EQ(frame.bytes.back(), static_cast<char>(received));
        }
        consumer_.Pop();
        ++received;
      } else {
        ASSERT_FALSE(consumer_.broken());
        ASSERT_EQ(sent, received);
      }
      if (random.Chance(1)) producer_.Trim();
    }
  }
  EXPECT_GT(received, 50'000u);
}

}  // namespace
}  // namespace weft::core
