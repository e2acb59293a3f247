#include "transport/ring_channel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace weft::core {
namespace {

// Two processes' worth of doorbells and one channel between them.
struct Pair {
  Pair() {
    auto first_page = CreateDoorbellPage();
    auto second_page = CreateDoorbellPage();
    auto memory = CreateChannelMemory();
    first_bell = std::move(*Doorbell::Open(first_page->get()));
    second_bell = std::move(*Doorbell::Open(second_page->get()));
    first = std::move(*RingChannel::Open(memory->get(), true, *PeerDoorbell::Open(second_page->get()), 7));
    second = std::move(*RingChannel::Open(memory->get(), false, *PeerDoorbell::Open(first_page->get()), 1999));
  }
  std::unique_ptr<Doorbell> first_bell, second_bell;
  std::unique_ptr<RingChannel> first, second;
};

bool Send(RingChannel* channel, const std::string& bytes, bool revocable = false, Ticket* ticket = nullptr) {
  uint8_t* room = channel->BeginSend(static_cast<uint32_t>(bytes.size()));
  if (room == nullptr) return false;
  memcpy(room, bytes.data(), bytes.size());
  const Ticket sent = channel->CommitSend(3, revocable, static_cast<uint32_t>(bytes.size()));
  if (ticket != nullptr) *ticket = sent;
  return true;
}

TEST(RingChannelTest, NotifyNamesTheSlotOnce) {
  Pair pair;
  ASSERT_TRUE(Send(pair.first.get(), "task"));
  pair.first->Notify(Audience::kExecutor);
  pair.first->Notify(Audience::kExecutor);
  ASSERT_TRUE(Send(pair.second.get(), "reply"));
  pair.second->Notify(Audience::kAnyone);

  std::vector<uint32_t> slots;
  const auto note = [&](uint32_t slot) { slots.push_back(slot); };
  pair.second_bell->TakeRung(Audience::kAnyone, note);
  EXPECT_TRUE(slots.empty()) << "a task is not for everyone";
  pair.second_bell->TakeRung(Audience::kExecutor, note);
  pair.first_bell->TakeRung(Audience::kAnyone, note);
  EXPECT_EQ(slots, (std::vector<uint32_t>{7, 1999}));
  EXPECT_FALSE(pair.first_bell->AnyRung());
  EXPECT_FALSE(pair.second_bell->AnyRung());
}

TEST(RingChannelTest, RefusesForeignMemory) {
  auto page = CreateDoorbellPage();
  auto memory = CreateChannelMemory();
  EXPECT_FALSE(RingChannel::Open(page->get(), true, *PeerDoorbell::Open(page->get()), 0).ok());
  EXPECT_FALSE(PeerDoorbell::Open(memory->get()).ok());
  EXPECT_FALSE(RingChannel::Open(memory->get(), true, *PeerDoorbell::Open(page->get()), kDoorbellSlots).ok());
  EXPECT_FALSE(Doorbell::Open(0).ok());
}

TEST(RingChannelTest, GrowsUnderLoadAndTrims) {
  Pair pair;
  const std::string bytes(1000, 'x');
  int sent = 0;
  while (Send(pair.first.get(), bytes)) ++sent;
  EXPECT_GE(sent, 1000) << "a megabyte should hold about 1030 of these";
  EXPECT_EQ(pair.first->send_window_bytes(), kRingDataBytes);
  Frame frame;
  for (int i = 0; i < sent; ++i) {
    ASSERT_TRUE(pair.second->Peek(&frame));
    ASSERT_EQ(frame.bytes, bytes);
    pair.second->Pop();
  }
  ASSERT_FALSE(pair.second->Peek(&frame));
  pair.first->Trim();
  EXPECT_EQ(pair.first->send_window_bytes(), kRingFirstWindowBytes);
  EXPECT_FALSE(pair.second->Peek(&frame));
  ASSERT_TRUE(Send(pair.first.get(), "again"));
  ASSERT_TRUE(pair.second->Peek(&frame));
  EXPECT_EQ(frame.bytes, "again");
  EXPECT_FALSE(pair.second->broken());
}

// A slow consumer of a ring that has wrapped must not keep it small.
TEST(RingChannelTest, GrowsAfterWrapping) {
  Pair pair;
  const std::string bytes(200, 'y');
  Frame frame;
  int next = 0;
  for (int i = 0; i < 25; ++i) {
    ASSERT_TRUE(Send(pair.first.get(), bytes + std::to_string(i)));
    ASSERT_TRUE(pair.second->Peek(&frame));
    ASSERT_EQ(frame.bytes, bytes + std::to_string(next++));
    pair.second->Pop();
  }
  EXPECT_EQ(pair.first->send_window_bytes(), kRingFirstWindowBytes) << "a consumer that keeps up needs one page";
  int last = 25;
  while (Send(pair.first.get(), bytes + std::to_string(last))) ++last;
  EXPECT_GT(last, 4000);
  for (; next < last; ++next) {
    ASSERT_TRUE(pair.second->Peek(&frame));
    ASSERT_EQ(frame.bytes, bytes + std::to_string(next));
    pair.second->Pop();
  }
}

}  // namespace
}  // namespace weft::core
