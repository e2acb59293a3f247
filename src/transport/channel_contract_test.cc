// What every Channel must do, run against each implementation.
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "os/socket.h"
#include "os/tcp.h"
#include "transport/ring_channel.h"
#include "transport/stream_channel.h"

namespace weft::core {
namespace {

// Two ends in one process, with whatever moves bytes between them.
class Link {
 public:
  virtual ~Link() = default;
  virtual Channel* first() = 0;
  virtual Channel* second() = 0;
  virtual void Pump() = 0;
  virtual void KillSecond() = 0;
  // After the peer's death: whether "did not claim" is known of frames that had left.
  virtual bool knows_the_dead() const = 0;
};

class RingLink : public Link {
 public:
  RingLink() {
    auto page = CreateDoorbellPage();
    auto bell = *PeerDoorbell::Open(page->get());
    auto memory = CreateChannelMemory();
    first_ = std::move(*RingChannel::Open(memory->get(), true, bell, 0));
    second_ = std::move(*RingChannel::Open(memory->get(), false, bell, 1));
  }
  Channel* first() override { return first_.get(); }
  Channel* second() override { return second_.get(); }
  void Pump() override {}
  void KillSecond() override { second_.reset(); }
  bool knows_the_dead() const override { return true; }

 private:
  std::unique_ptr<RingChannel> first_, second_;
};

class StreamLink : public Link {
 public:
  StreamLink() {
    auto pair = std::move(*StreamSocketPair(Blocking::kNo));
    first_ = std::make_unique<StreamChannel>(std::move(pair.first));
    second_ = std::make_unique<StreamChannel>(std::move(pair.second));
  }
  Channel* first() override { return first_.get(); }
  Channel* second() override { return second_.get(); }
  void Pump() override {
    first_->Flush();
    if (second_) {
      second_->Fill();
      second_->Flush();
    }
    first_->Fill();
  }
  void KillSecond() override {
    second_.reset();
    first_->Fill();
  }
  bool knows_the_dead() const override { return false; }

 private:
  std::unique_ptr<StreamChannel> first_, second_;
};

class TcpLink : public Link {
 public:
  TcpLink() {
    auto listener = ListenTcp("127.0.0.1", 0);
    auto dialled = BeginConnectTcp(*LocalTcpAddress(listener->get()));
    pollfd wait{listener->get(), POLLIN, 0};
    ::poll(&wait, 1, 10'000);
    int error = 0;
    first_ = std::make_unique<StreamChannel>(std::move(*dialled));
    second_ = std::make_unique<StreamChannel>(AcceptTcp(listener->get(), &error));
  }
  Channel* first() override { return first_.get(); }
  Channel* second() override { return second_.get(); }
  void Pump() override {
    Move(first_.get(), second_.get());
    Move(second_.get(), first_.get());
  }
  void KillSecond() override {
    second_.reset();
    // The end arrives in its own time.
    pollfd wait{first_->fd(), POLLIN, 0};
    while (first_->Fill()) ::poll(&wait, 1, 10'000);
  }
  bool knows_the_dead() const override { return false; }

 private:
  static tcp_info Info(const StreamChannel& channel) {
    tcp_info info{};
    socklen_t size = sizeof info;
    EXPECT_EQ(::getsockopt(channel.fd(), IPPROTO_TCP, TCP_INFO, &info, &size), 0);
    return info;
  }
  // Unlike a pair, TCP may still carry what was sent: until the kernels agree that everything has arrived.
  static void Move(StreamChannel* from, StreamChannel* to) {
    if (from == nullptr) return;
    for (;;) {
      from->Flush();
      if (to == nullptr) return;
      to->Fill();
      if (to->broken() || from->gone() || to->gone()) return;
      const tcp_info sent = Info(*from);
      const bool left = !from->wants_flush() && sent.tcpi_notsent_bytes == 0;
      if (left && sent.tcpi_bytes_sent - sent.tcpi_bytes_retrans == Info(*to).tcpi_bytes_received) break;
    }
    to->Fill();
  }

  std::unique_ptr<StreamChannel> first_, second_;
};

struct Implementation {
  const char* name;
  std::unique_ptr<Link> (*make)();
};

class ChannelContractTest : public testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override { link_ = GetParam().make(); }

  static bool Send(Channel* channel, const std::string& bytes, uint8_t type = 1, bool revocable = false,
                   Ticket* ticket = nullptr) {
    uint8_t* room = channel->BeginSend(static_cast<uint32_t>(bytes.size()));
    if (room == nullptr) return false;
    memcpy(room, bytes.data(), bytes.size());
    const Ticket sent = channel->CommitSend(type, revocable, static_cast<uint32_t>(bytes.size()));
    if (ticket != nullptr) *ticket = sent;
    return true;
  }
  static Ticket SendRevocable(Channel* channel, const std::string& bytes) {
    Ticket ticket;
    EXPECT_TRUE(Send(channel, bytes, 1, true, &ticket));
    return ticket;
  }
  std::string Receive(Channel* channel) {
    link_->Pump();
    Frame frame;
    if (!channel->Peek(&frame)) return "<nothing>";
    std::string bytes(frame.bytes);
    channel->Pop();
    return bytes;
  }
  RevokeOutcome Settle(Ticket ticket) {
    RevokeOutcome outcome = first()->Revoke(ticket);
    for (int i = 0; outcome == RevokeOutcome::kPending && i < 1000; ++i) {
      link_->Pump();
      Ticket answered;
      if (first()->NextRevokeOutcome(&answered, &outcome)) {
        EXPECT_EQ(answered.sequence, ticket.sequence);
      }
    }
    return outcome;
  }
  Channel* first() { return link_->first(); }
  Channel* second() { return link_->second(); }

  std::unique_ptr<Link> link_;
};

TEST_P(ChannelContractTest, KeepsOrderTypeAndBytes) {
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Send(first(), std::string(i, 'a' + i % 26), static_cast<uint8_t>(i)));
  link_->Pump();
  Frame frame;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(second()->Peek(&frame)) << i;
    EXPECT_EQ(frame.type, i);
    EXPECT_FALSE(frame.revocable);
    EXPECT_EQ(frame.bytes, std::string(i, 'a' + i % 26));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(frame.bytes.data()) % 8, 0u);
    second()->Pop();
  }
  EXPECT_FALSE(second()->Peek(&frame)) << "each frame arrives once";
}

TEST_P(ChannelContractTest, PeekShowsTheSameFrameUntilPop) {
  ASSERT_TRUE(Send(first(), "one"));
  ASSERT_TRUE(Send(first(), "two"));
  link_->Pump();
  Frame frame;
  ASSERT_TRUE(second()->Peek(&frame));
  link_->Pump();
  EXPECT_EQ(frame.bytes, "one");
  ASSERT_TRUE(second()->Peek(&frame));
  EXPECT_EQ(frame.bytes, "one");
  second()->Pop();
  ASSERT_TRUE(second()->Peek(&frame));
  EXPECT_EQ(frame.bytes, "two");
}

TEST_P(ChannelContractTest, NothingIsSentBeforeCommit) {
  ASSERT_NE(first()->BeginSend(100), nullptr);
  link_->Pump();
  Frame frame;
  EXPECT_FALSE(second()->Peek(&frame));
  ASSERT_TRUE(Send(first(), "begun again"));  // forgets the first
  EXPECT_EQ(Receive(second()), "begun again");
  EXPECT_EQ(Receive(second()), "<nothing>");
}

TEST_P(ChannelContractTest, CommitsLessThanBegun) {
  uint8_t* room = first()->BeginSend(1000);
  ASSERT_NE(room, nullptr);
  memcpy(room, "short", 5);
  first()->CommitSend(1, false, 5);
  ASSERT_TRUE(Send(first(), "next"));
  EXPECT_EQ(Receive(second()), "short");
  EXPECT_EQ(Receive(second()), "next");
}

TEST_P(ChannelContractTest, EmptyFrames) {
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(Send(first(), "", static_cast<uint8_t>(i)));
  link_->Pump();
  Frame frame;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(second()->Peek(&frame));
    ASSERT_EQ(frame.bytes.size(), 0u);
    ASSERT_EQ(frame.type, static_cast<uint8_t>(i));
    second()->Pop();
  }
  EXPECT_FALSE(second()->Peek(&frame));
}

TEST_P(ChannelContractTest, LargestFrameFitsWhereverTheLastOneEnded) {
  const uint32_t max = first()->MaxFrameBytes();
  ASSERT_GE(max, 64u * 1024);
  Random random(5);
  for (int i = 0; i < 60; ++i) {
    const std::string bytes(i % 2 == 0 ? max : random.Below(max), static_cast<char>('a' + i % 26));
    ASSERT_TRUE(Send(first(), bytes)) << "an empty channel always has room, size " << bytes.size();
    std::string received = "<nothing>";
    for (int tries = 0; received == "<nothing>" && tries < 100; ++tries) received = Receive(second());
    ASSERT_TRUE(received == bytes) << i;
  }
}

TEST_P(ChannelContractTest, PushesBackAndRecovers) {
  const std::string bytes(300, 'b');
  for (int round = 0; round < 5; ++round) {
    int sent = 0;
    for (int idle = 0; idle < 50;) {  // until neither sending nor pumping gets any further
      if (Send(first(), bytes + std::to_string(sent))) {
        ++sent;
        idle = 0;
      } else {
        link_->Pump();
        ++idle;
      }
      ASSERT_LT(sent, 100'000) << "what is in flight must be bounded";
    }
    EXPECT_GT(sent, 2000) << "about a megabyte fits";
    for (int i = 0; i < sent; ++i) ASSERT_EQ(Receive(second()), bytes + std::to_string(i));
    ASSERT_EQ(Receive(second()), "<nothing>");
    if (round % 2 == 1) first()->Trim();
  }
}

TEST_P(ChannelContractTest, BothDirectionsAtOnce) {
  Random random(11);
  uint64_t sent[2] = {0, 0}, received[2] = {0, 0};
  Channel* ends[2] = {first(), second()};
  for (int step = 0; step < 30'000; ++step) {
    const int side = static_cast<int>(random.Below(2));
    if (random.Chance(55)) {
      const std::string bytes = std::to_string(sent[side]) + std::string(random.Below(200), '.');
      if (Send(ends[side], bytes)) ++sent[side];
    } else {
      link_->Pump();
      Frame frame;
      if (!ends[1 - side]->Peek(&frame)) continue;
      ASSERT_EQ(std::string(frame.bytes.substr(0, frame.bytes.find('.'))), std::to_string(received[side]));
      ends[1 - side]->Pop();
      ++received[side];
    }
  }
  EXPECT_GT(received[0], 1000u);
  EXPECT_GT(received[1], 1000u);
}

TEST_P(ChannelContractTest, RevokedBeforeItWasClaimed) {
  const Ticket ticket = SendRevocable(first(), "task");
  ASSERT_TRUE(Send(first(), "next"));
  link_->Pump();
  EXPECT_EQ(Settle(ticket), RevokeOutcome::kRevoked);
  EXPECT_EQ(Receive(second()), "next") << "a revoked frame counts as never sent";
}

TEST_P(ChannelContractTest, RevokedBeforeItLeft) {
  const Ticket ticket = SendRevocable(first(), "task");
  ASSERT_TRUE(Send(first(), "next"));
  EXPECT_EQ(Settle(ticket), RevokeOutcome::kRevoked);
  EXPECT_EQ(Receive(second()), "next");
  EXPECT_EQ(Receive(second()), "<nothing>");
}

TEST_P(ChannelContractTest, RevokedBetweenPeekAndClaim) {
  const Ticket ticket = SendRevocable(first(), "task");
  ASSERT_TRUE(Send(first(), "next"));
  link_->Pump();
  Frame frame;
  ASSERT_TRUE(second()->Peek(&frame));
  EXPECT_TRUE(frame.revocable);
  EXPECT_EQ(Settle(ticket), RevokeOutcome::kRevoked);
  EXPECT_EQ(frame.bytes, "task") << "bytes stay valid until Pop";
  EXPECT_FALSE(second()->Claim());
  EXPECT_EQ(Receive(second()), "next") << "without a Pop";

  const Ticket other = SendRevocable(first(), "task");
  ASSERT_TRUE(Send(first(), "last"));
  link_->Pump();
  ASSERT_TRUE(second()->Peek(&frame));
  EXPECT_EQ(Settle(other), RevokeOutcome::kRevoked);
  EXPECT_FALSE(second()->Claim());
  second()->Pop();
  EXPECT_EQ(Receive(second()), "last") << "with a Pop";
}

TEST_P(ChannelContractTest, RevokedAfterItWasClaimed) {
  const Ticket ticket = SendRevocable(first(), "task");
  link_->Pump();
  Frame frame;
  ASSERT_TRUE(second()->Peek(&frame));
  ASSERT_TRUE(second()->Claim());
  EXPECT_EQ(Settle(ticket), RevokeOutcome::kClaimed);
  EXPECT_EQ(frame.bytes, "task");
  second()->Pop();

  const Ticket popped = SendRevocable(first(), "task");
  link_->Pump();
  ASSERT_TRUE(second()->Peek(&frame));
  ASSERT_TRUE(second()->Claim());
  second()->Pop();
  EXPECT_EQ(Settle(popped), RevokeOutcome::kClaimed);
}

// A ticket may be kept long after its place was reused by frames whose payload looks like a queued frame.
TEST_P(ChannelContractTest, OldTicketsDoNotTouchNewFrames) {
  std::vector<Ticket> old;
  Frame frame;
  for (int i = 0; i < 40; ++i) {
    old.push_back(SendRevocable(first(), std::string(16 * (i % 5), 'o')));
    link_->Pump();
    ASSERT_TRUE(second()->Peek(&frame));
    ASSERT_TRUE(second()->Claim());
    second()->Pop();
  }
  // Every payload word is what a queued frame with an old sequence would have as its state.
  for (uint64_t sequence = 0; sequence < 40; ++sequence) {
    std::vector<uint64_t> words(400, sequence << 2);
    const std::string bytes(reinterpret_cast<char*>(words.data()), words.size() * 8);
    ASSERT_TRUE(Send(first(), bytes));
    link_->Pump();
    for (const Ticket& ticket : old) {
      if (ticket.sequence == sequence) {
        EXPECT_EQ(Settle(ticket), RevokeOutcome::kClaimed);
      }
    }
    EXPECT_TRUE(Receive(second()) == bytes);
  }
}

TEST_P(ChannelContractTest, EachTicketHasOneOutcome) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    link_ = GetParam().make();
    Random random(seed);
    struct Sent {
      Ticket ticket;
      int asked = 0, revoked = 0, claimed = 0, executed = 0;
    };
    std::deque<Sent> sent;
    std::map<uint32_t, size_t> by_sequence;
    int64_t last_executed = -1;
    const auto note = [&](size_t index, RevokeOutcome outcome) {
      if (outcome == RevokeOutcome::kRevoked) ++sent[index].revoked;
      if (outcome == RevokeOutcome::kClaimed) ++sent[index].claimed;
    };
    const auto work = [&] {
      Frame frame;
      if (!second()->Peek(&frame)) return false;
      const size_t index = std::stoul(std::string(frame.bytes.substr(0, frame.bytes.find('.'))));
      if (random.Chance(20)) link_->Pump();
      if (second()->Claim()) {
        ++sent[index].executed;
        EXPECT_LT(last_executed, static_cast<int64_t>(index)) << "in order";
        last_executed = static_cast<int64_t>(index);
      }
      second()->Pop();
      return true;
    };
    const auto take_outcomes = [&] {
      Ticket ticket;
      RevokeOutcome outcome;
      while (first()->NextRevokeOutcome(&ticket, &outcome)) note(by_sequence.at(ticket.sequence), outcome);
    };
    for (int step = 0; step < 4000; ++step) {
      switch (random.Below(5)) {
        case 0:
        case 1: {
          Ticket ticket;
          if (Send(first(), std::to_string(sent.size()) + std::string(1 + random.Below(300), '.'), 1, true, &ticket)) {
            by_sequence[ticket.sequence] = sent.size();
            sent.push_back({ticket});
          }
          break;
        }
        case 2:
          if (!sent.empty()) {
            const size_t index = sent.size() - 1 - random.Below(std::min<size_t>(sent.size(), 40));
            if (sent[index].asked++ == 0) note(index, first()->Revoke(sent[index].ticket));
          }
          break;
        case 3:
          work();
          break;
        case 4:
          if (random.Chance(30)) link_->Pump();
          take_outcomes();
      }
    }
    for (int i = 0; i < 20; ++i) {
      link_->Pump();
      take_outcomes();
      while (work()) {
      }
    }
    for (const Sent& each : sent) {
      EXPECT_EQ(each.revoked + each.claimed, each.asked > 0 ? 1 : 0) << "exactly one outcome";
      EXPECT_EQ(each.executed, each.revoked == 1 ? 0 : 1) << "executed iff not revoked";
    }
  }
}

TEST_P(ChannelContractTest, RevokeStorm) {
  // More requests than a socket allows in flight, in a channel full of frames.
  std::vector<Ticket> tickets;
  for (int idle = 0; idle < 20;) {
    Ticket ticket;
    if (Send(first(), "t", 1, true, &ticket)) {
      tickets.push_back(ticket);
      idle = 0;
    } else {
      link_->Pump();
      ++idle;
    }
  }
  ASSERT_GT(tickets.size(), 10'000u);
  Frame frame;
  ASSERT_TRUE(second()->Peek(&frame));
  ASSERT_TRUE(second()->Claim());
  size_t revoked = 0, pending = 0;
  for (const Ticket& ticket : tickets) {
    const RevokeOutcome outcome = first()->Revoke(ticket);
    if (outcome == RevokeOutcome::kRevoked) ++revoked;
    if (outcome == RevokeOutcome::kPending) ++pending;
  }
  // Meanwhile the receiver is busy with the first frame and pops nothing.
  for (int i = 0; i < 10'000 && pending > 0; ++i) {
    link_->Pump();
    EXPECT_FALSE(second()->broken());
    Ticket ticket;
    RevokeOutcome outcome;
    while (first()->NextRevokeOutcome(&ticket, &outcome)) {
      --pending;
      if (outcome == RevokeOutcome::kRevoked) ++revoked;
    }
  }
  EXPECT_EQ(pending, 0u);
  EXPECT_EQ(revoked, tickets.size() - 1);
  second()->Pop();
  EXPECT_FALSE(second()->Peek(&frame));
  EXPECT_FALSE(first()->broken());
}

TEST_P(ChannelContractTest, PeerGone) {
  ASSERT_TRUE(Send(second(), "reply 1"));
  ASSERT_TRUE(Send(second(), "reply 2"));
  ASSERT_NE(second()->BeginSend(100), nullptr);  // never committed
  const Ticket claimed = SendRevocable(first(), "claimed");
  const Ticket queued = SendRevocable(first(), "queued");
  link_->Pump();
  Frame frame;
  ASSERT_TRUE(second()->Peek(&frame));
  ASSERT_TRUE(second()->Claim());
  const Ticket kept_back = SendRevocable(first(), "never left");
  link_->KillSecond();

  ASSERT_TRUE(first()->Peek(&frame));
  EXPECT_EQ(frame.bytes, "reply 1");
  first()->Pop();
  ASSERT_TRUE(first()->Peek(&frame));
  EXPECT_EQ(frame.bytes, "reply 2");
  first()->Pop();
  EXPECT_FALSE(first()->Peek(&frame));

  EXPECT_EQ(Settle(claimed), RevokeOutcome::kClaimed);
  EXPECT_EQ(Settle(queued), link_->knows_the_dead() ? RevokeOutcome::kRevoked : RevokeOutcome::kClaimed);
  EXPECT_EQ(Settle(kept_back), RevokeOutcome::kRevoked);
}

template <class T>
std::unique_ptr<Link> MakeLink() {
  return std::make_unique<T>();
}

INSTANTIATE_TEST_SUITE_P(All, ChannelContractTest,
                         testing::Values(Implementation{"Ring", &MakeLink<RingLink>},
                                         Implementation{"Stream", &MakeLink<StreamLink>},
                                         Implementation{"Tcp", &MakeLink<TcpLink>}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weft::core
