// Links over real loopback TCP, plain and with TLS, both ends on one loop.
#include "transport/link.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "os/entropy.h"
#include "os/socket.h"
#include "os/tcp.h"
#include "transport/link_listener.h"
#include "transport/stream_channel.h"
#include "transport/test_certificates.h"
#include "transport/test_links.h"

namespace weft::core {
namespace {

using Outcome = Link::SendOutcome;

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string RandomBytes(Random* random, size_t size) {
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random->Next());
  return bytes;
}

std::span<const uint8_t> Span(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

// A stranger: a bare socket.
struct Stranger {
  explicit Stranger(uint16_t port) {
    auto made = BeginConnectTcp(ResolveTcp("127.0.0.1", port)->front());
    if (made) fd = std::move(*made);
  }
  void Say(const std::string& bytes) { (void)TrySend(fd.get(), Span(bytes)); }
  // Takes in what has come. True once the other side has ended.
  bool Listen() {
    uint8_t buffer[4096];
    for (;;) {
      const IoOutcome outcome = TryRecv(fd.get(), buffer, sizeof buffer);
      if (outcome.kind == IoOutcome::kWouldBlock) return false;
      if (outcome.kind == IoOutcome::kClosed) {
        error = outcome.error;
        return true;
      }
      heard.append(reinterpret_cast<char*>(buffer), outcome.bytes);
    }
  }
  UniqueFd fd;
  std::string heard;
  int error = 0;
};

// Somebody who has the token but then says what he likes.
struct Renegade : Stranger {
  Renegade(LinkPair* pair, std::string hello) : Stranger(pair->listener->port()) {
    Sha256Bytes nonce;
    FillWithEntropy(nonce);
    Handshake handshake(Handshake::Role::kDialler,
                        {pair->settings.token, pair->settings.cluster_id, pair->settings.version, ""}, nonce,
                        std::move(hello), "the listener");
    pair->Run([&] {
      Say(handshake.TakeOutput());
      uint8_t buffer[256];
      while (handshake.wanted() > 0) {
        const IoOutcome outcome = TryRecv(fd.get(), buffer, std::min(handshake.wanted(), sizeof buffer));
        if (outcome.kind == IoOutcome::kWouldBlock) return false;
        if (outcome.kind == IoOutcome::kClosed) return true;
        handshake.Feed(std::string_view(reinterpret_cast<char*>(buffer), outcome.bytes));
        Say(handshake.TakeOutput());
      }
      return true;
    });
    accepted = handshake.state() == Handshake::State::kDone;
  }
  bool accepted = false;
};

std::string Prefix(uint32_t value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); }

// What must hold with and without TLS.
class LinkTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam()) return;
    certificates_ = std::make_unique<TestCertificates>();
    pair_.settings.tls = *TlsContext::Load(certificates_->Issue("listener"));
    pair_.dial_settings.tls = *TlsContext::Load(certificates_->Issue("dialler"));
  }
  std::unique_ptr<TestCertificates> certificates_;
  LinkPair pair_;
};

TEST_P(LinkTest, MessagesBothWays) {
  ASSERT_TRUE(pair_.Connect()) << pair_.dialler.why;
  EXPECT_EQ(pair_.dialler.hello, "listener's hello");
  EXPECT_EQ(pair_.accepted.hello, "dialler's hello");
  EXPECT_EQ(pair_.dialler.link->peer_address(), "127.0.0.1:" + std::to_string(pair_.listener->port()));
  EXPECT_EQ(pair_.accepted.link->peer_address(), pair_.dialler.link->local_address());
  EXPECT_EQ(pair_.listener->pending(), 0u);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(pair_.dialler.link->Send("question " + std::to_string(i)), Outcome::kSent);
    ASSERT_EQ(pair_.accepted.link->Send("answer " + std::to_string(i)), Outcome::kSent);
  }
  ASSERT_TRUE(
      pair_.Run([&] { return pair_.dialler.messages.size() == 1000 && pair_.accepted.messages.size() == 1000; }));
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(pair_.dialler.messages[i], "answer " + std::to_string(i));
    ASSERT_EQ(pair_.accepted.messages[i], "question " + std::to_string(i));
  }
}

TEST_P(LinkTest, LargestMessages) {
  const size_t max = pair_.settings.max_message_bytes;
  ASSERT_TRUE(pair_.Connect()) << pair_.dialler.why;
  Link& link = *pair_.dialler.link;
  EXPECT_EQ(link.Send(std::string(max + 1, 'x')), Outcome::kTooLarge);
  EXPECT_EQ(link.Send(""), Outcome::kTooLarge);
  EXPECT_EQ(link.SendChunk("h", Span(std::string(max, 'x')), nullptr), Outcome::kTooLarge);
  EXPECT_EQ(link.SendChunk("", Span("x"), nullptr), Outcome::kTooLarge);
  EXPECT_EQ(link.SendChunk(std::string(Link::kMaxChunkHeaderBytes + 1, 'h'), Span("x"), nullptr), Outcome::kTooLarge);
  Random random(1);
  const std::string big = RandomBytes(&random, max);
  ASSERT_EQ(link.Send(big), Outcome::kSent);
  ASSERT_EQ(link.Send("small"), Outcome::kSent);
  ASSERT_EQ(link.Send(big), Outcome::kSent);
  ASSERT_TRUE(pair_.Run([&] { return pair_.accepted.messages.size() == 3 || pair_.accepted.closed; }));
  ASSERT_EQ(pair_.accepted.messages.size(), 3u);
  EXPECT_TRUE(pair_.accepted.messages[0] == big);
  EXPECT_EQ(pair_.accepted.messages[1], "small");
  EXPECT_TRUE(pair_.accepted.messages[2] == big);
  EXPECT_EQ(link.queued_bytes(), 0u);
}

// Messages and chunks of all sizes by seed, both ways at once, some held back by a cork, with a receiver that pauses.
TEST_P(LinkTest, AllSizesInOrder) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    LinkPair pair;
    pair.settings = pair_.settings;
    pair.dial_settings = pair_.dial_settings;
    pair.settings.max_queued_bytes = pair.dial_settings.max_queued_bytes = 1 << 20;
    ASSERT_TRUE(pair.Connect()) << pair.dialler.why;
    Random random(seed);
    std::vector<std::string> sent[2];  // messages, and chunks as header|payload
    std::vector<std::string> received[2];
    LinkEnd* ends[2] = {&pair.dialler, &pair.accepted};
    const auto size = [&] { return random.Chance(10) ? random.Below(300'000) : 1 + random.Below(2000); };
    const auto collect = [&] {
      for (int side = 0; side < 2; ++side) {
        LinkEnd& end = *ends[side];
        for (std::string& message : end.messages) received[side].push_back(std::move(message));
        end.messages.clear();
        for (auto& [header, payload] : end.chunks) received[side].push_back(header + "|" + payload);
        end.chunks.clear();
      }
    };
    for (int side = 0; side < 2; ++side) {  // what has come before a chunk is before it
      ends[side]->around_chunk = collect;
    }
    for (int step = 0; step < 600; ++step) {
      const int side = static_cast<int>(random.Below(2));
      Link& link = *ends[side]->link;
      if (random.Chance(5)) link.PauseReading(true);
      if (random.Chance(15)) link.PauseReading(false);
      if (random.Chance(10)) link.Cork(true);
      if (random.Chance(20)) link.Cork(false);
      if (random.Chance(70)) {
        std::string bytes = RandomBytes(&random, size());
        if (bytes.empty()) continue;
        const Outcome outcome = link.Send(bytes);
        ASSERT_TRUE(outcome == Outcome::kSent || outcome == Outcome::kFull);
        if (outcome == Outcome::kSent) sent[side].push_back(std::move(bytes));
      } else {
        const std::string header = "chunk " + std::to_string(step);
        auto payload = std::make_shared<const std::string>(RandomBytes(&random, random.Chance(10) ? 0 : size()));
        const Outcome outcome = link.SendChunk(header, Span(*payload), payload);
        ASSERT_TRUE(outcome == Outcome::kSent || outcome == Outcome::kFull);
        if (outcome == Outcome::kSent) sent[side].push_back(header + "|" + *payload);
      }
      if (random.Chance(50)) {
        int turns = 0;
        ASSERT_TRUE(pair.Run([&] { return turns++ > 0; }));
        collect();
      }
    }
    for (LinkEnd* end : ends) {
      end->link->PauseReading(false);
      end->link->Cork(false);
    }
    ASSERT_TRUE(pair.Run([&] {
      collect();
      return received[1].size() == sent[0].size() && received[0].size() == sent[1].size();
    })) << "seed "
        << seed;
    for (int side = 0; side < 2; ++side) {
      for (size_t i = 0; i < sent[side].size(); ++i) ASSERT_TRUE(sent[side][i] == received[1 - side][i]) << seed;
    }
    EXPECT_FALSE(pair.dialler.closed || pair.accepted.closed);
  }
}

TEST_P(LinkTest, PushesBack) {
  pair_.dial_settings.max_queued_bytes = 1 << 20;
  ASSERT_TRUE(pair_.Connect()) << pair_.dialler.why;
  Link& link = *pair_.dialler.link;
  pair_.accepted.link->PauseReading(true);
  const std::string message(100'000, 'm');
  size_t sent = 0;
  for (int full = 0; full < 20;) {  // until the kernel has taken all that it takes
    const Outcome outcome = link.Send(message + std::to_string(sent));
    if (outcome == Outcome::kSent) {
      ++sent;
    } else {
      ASSERT_EQ(outcome, Outcome::kFull);
      ++full;
    }
    ASSERT_LE(link.queued_bytes(), size_t{1} << 20);
    ASSERT_LT(sent, 10'000u) << "what is in flight must be bounded";
    int turns = 0;
    pair_.Run([&] { return turns++ > 0; });
  }
  EXPECT_FALSE(pair_.dialler.drained);
  EXPECT_EQ(pair_.accepted.messages.size(), 0u) << "paused";
  pair_.accepted.link->PauseReading(false);
  ASSERT_TRUE(pair_.Run([&] { return pair_.dialler.drained; }));
  ASSERT_TRUE(pair_.Run([&] { return pair_.accepted.messages.size() == sent; }));
  for (size_t i = 0; i < sent; ++i) ASSERT_TRUE(pair_.accepted.messages[i] == message + std::to_string(i));
  EXPECT_EQ(link.Send("again"), Outcome::kSent);
  ASSERT_TRUE(pair_.Run([&] { return pair_.accepted.messages.size() == sent + 1; }));
}

TEST_P(LinkTest, DrainedByTakingTheCorkOut) {
  pair_.dial_settings.max_queued_bytes = 1000;
  ASSERT_TRUE(pair_.Connect()) << pair_.dialler.why;
  pair_.dialler.link->Cork(true);
  while (pair_.dialler.link->Send("message") == Outcome::kSent) {
  }
  int turns = 0;
  pair_.Run([&] { return turns++ > 3; });
  EXPECT_FALSE(pair_.dialler.drained);
  EXPECT_EQ(pair_.accepted.messages.size(), 0u);
  pair_.dialler.link->Cork(false);
  ASSERT_TRUE(pair_.Run([&] { return pair_.dialler.drained; }));
}

TEST_P(LinkTest, PayloadsAreKeptUntilTheyAreSent) {
  ASSERT_TRUE(pair_.Connect()) << pair_.dialler.why;
  auto payload = std::make_shared<std::string>(4 << 20, 'p');
  const std::weak_ptr<std::string> watch = payload;
  pair_.accepted.link->PauseReading(true);
  while (pair_.dialler.link->queued_bytes() == 0) {
    ASSERT_EQ(pair_.dialler.link->SendChunk("chunk", Span(*payload), payload), Outcome::kSent);
  }
  payload.reset();
  EXPECT_FALSE(watch.expired()) << "part of it waits";
  pair_.accepted.link->PauseReading(false);
  ASSERT_TRUE(pair_.Run([&] { return watch.expired(); }));
  // And if the link goes first.
  payload = std::make_shared<std::string>(4 << 20, 'p');
  const std::weak_ptr<std::string> other = payload;
  pair_.accepted.link->PauseReading(true);
  for (int i = 0; i < 8; ++i) {
    ASSERT_EQ(pair_.dialler.link->SendChunk("chunk", Span(*payload), payload), Outcome::kSent);
  }
  payload.reset();
  EXPECT_FALSE(other.expired());
  pair_.dialler.link.reset();
  EXPECT_TRUE(other.expired());
}

TEST_P(LinkTest, ChunksWithoutAPlaceAreDropped) {
  ASSERT_TRUE(pair_.Connect()) << pair_.dialler.why;
  pair_.accepted.refuse_chunks = true;
  const std::string payload(1 << 20, 'p');
  ASSERT_EQ(pair_.dialler.link->SendChunk("unwanted", Span(payload), nullptr), Outcome::kSent);
  ASSERT_EQ(pair_.dialler.link->Send("after"), Outcome::kSent);
  ASSERT_TRUE(pair_.Run([&] { return pair_.accepted.messages.size() == 1; }));
  ASSERT_EQ(pair_.accepted.chunks.size(), 1u);
  EXPECT_EQ(pair_.accepted.chunks[0].first, "unwanted");
}

TEST_P(LinkTest, PlaceIsTakenAwayWhileAChunkArrives) {
  ASSERT_TRUE(pair_.Connect()) << pair_.dialler.why;
  const std::string payload(8 << 20, 'p');
  ASSERT_EQ(pair_.dialler.link->SendChunk("long", Span(payload), nullptr), Outcome::kSent);
  ASSERT_TRUE(pair_.Run([&] { return !pair_.accepted.chunk.empty(); }));
  ASSERT_EQ(pair_.accepted.chunks.size(), 0u) << "more than what one event reads";
  pair_.accepted.link->DiscardChunk();
  pair_.accepted.chunk = std::string();  // under the address sanitizer, nobody writes there any more
  ASSERT_EQ(pair_.dialler.link->Send("after"), Outcome::kSent);
  ASSERT_TRUE(pair_.Run([&] { return pair_.accepted.messages.size() == 1; }));
}

TEST_P(LinkTest, PeerIsGone) {
  ASSERT_TRUE(pair_.Connect()) << pair_.dialler.why;
  ASSERT_EQ(pair_.accepted.link->Send("last words"), Outcome::kSent);
  pair_.accepted.link.reset();
  ASSERT_TRUE(pair_.Run([&] { return pair_.dialler.closed; }));
  EXPECT_EQ(pair_.dialler.messages, std::vector<std::string>{"last words"});
  EXPECT_EQ(pair_.dialler.kind, ErrorKind::kGone);
  EXPECT_EQ(pair_.dialler.link->refusal(), RefusalKind::kNone);
  EXPECT_EQ(pair_.dialler.link->Send("anybody?"), Outcome::kClosed);
  EXPECT_FALSE(pair_.dialler.link->ReleaseSocket().ok());
}

// The peer resets while we have much to send, and while we do not read.
TEST_P(LinkTest, PeerIsGoneWhileTheQueueIsFull) {
  for (const bool paused : {false, true}) {
    LinkPair pair;
    pair.settings = pair_.settings;
    pair.dial_settings = pair_.dial_settings;
    ASSERT_TRUE(pair.Connect()) << pair.dialler.why;
    pair.accepted.link->PauseReading(true);
    pair.dialler.link->PauseReading(paused);
    while (pair.dialler.link->Send(std::string(1 << 20, 'x')) == Outcome::kSent) {
    }
    pair.accepted.link.reset();  // with unread bytes: a reset
    ASSERT_TRUE(pair.Run([&] { return pair.dialler.closed; }));
    EXPECT_EQ(pair.dialler.link->queued_bytes(), 0u);
  }
}

TEST_P(LinkTest, ClosedWhenSent) {
  ASSERT_TRUE(pair_.Connect()) << pair_.dialler.why;
  // Much is on its way to who closes, and is never read; still the last message arrives.
  for (int i = 0; i < 20; ++i) ASSERT_EQ(pair_.dialler.link->Send(std::string(100'000, 'x')), Outcome::kSent);
  const std::string last(3 << 20, 'l');
  ASSERT_EQ(pair_.accepted.link->Send(last), Outcome::kSent);
  pair_.accepted.link->CloseWhenSent();
  EXPECT_EQ(pair_.accepted.link->Send("too late"), Outcome::kClosed);
  ASSERT_TRUE(pair_.Run([&] { return pair_.dialler.closed; }));
  ASSERT_EQ(pair_.dialler.messages.size(), 1u);
  EXPECT_TRUE(pair_.dialler.messages[0] == last);
  EXPECT_EQ(pair_.accepted.messages.size(), 0u);
  ASSERT_TRUE(pair_.Run([&] { return pair_.accepted.closed; }));
  EXPECT_TRUE(Has(pair_.accepted.why, "closed by us"));
}

TEST_P(LinkTest, DestroyedInCallbacks) {
  {
    LinkPair pair;
    pair.settings = pair_.settings;
    pair.dial_settings = pair_.dial_settings;
    pair.dialler.on_ready = [&](Link&) { pair.dialler.link.reset(); };
    ASSERT_TRUE(pair.Listen() && pair.Dial(&pair.dialler));
    ASSERT_TRUE(pair.Run([&] { return pair.accepted.closed; }));
  }
  {
    LinkPair pair;
    pair.settings = pair_.settings;
    pair.dial_settings = pair_.dial_settings;
    ASSERT_TRUE(pair.Connect());
    pair.accepted.on_message = [&](Link&, std::string_view) { pair.accepted.link.reset(); };
    for (int i = 0; i < 100; ++i) ASSERT_EQ(pair.dialler.link->Send("many at once"), Outcome::kSent);
    ASSERT_TRUE(pair.Run([&] { return pair.dialler.closed; }));
    EXPECT_EQ(pair.accepted.messages.size(), 1u);
  }
  {
    LinkPair pair;
    pair.settings = pair_.settings;
    pair.dial_settings = pair_.dial_settings;
    ASSERT_TRUE(pair.Connect());
    pair.accepted.on_message = [&](Link& link, std::string_view) { link.Close(); };
    for (int i = 0; i < 100; ++i) ASSERT_EQ(pair.dialler.link->Send("many at once"), Outcome::kSent);
    ASSERT_TRUE(pair.Run([&] { return pair.dialler.closed; }));
    EXPECT_EQ(pair.accepted.messages.size(), 1u);
    EXPECT_FALSE(pair.accepted.closed) << "who closes is not told";
  }
  {
    LinkPair pair;
    pair.settings = pair_.settings;
    pair.dial_settings = pair_.dial_settings;
    ASSERT_TRUE(pair.Connect());
    pair.accepted.on_closed = [&] { pair.accepted.link.reset(); };
    pair.dialler.link.reset();
    ASSERT_TRUE(pair.Run([&] { return pair.accepted.closed; }));
    EXPECT_EQ(pair.accepted.link, nullptr);
  }
}

TEST_P(LinkTest, Refusals) {
  struct Case {
    RefusalKind kind;
    std::function<void(LinkSettings*)> change;
    std::vector<std::string> says;
  };
  const Case cases[] = {
      {RefusalKind::kWrongToken,
       [](LinkSettings* s) { s->token = "another token of a fine length"; },
       {"AuthenticationError"}},
      {RefusalKind::kWrongCluster, [](LinkSettings* s) { s->cluster_id = "other"; }, {"'testing'", "'other'"}},
      {RefusalKind::kWrongVersion,
       [](LinkSettings* s) { s->version = 4711; },
       {"version 4711", "version " + std::to_string(kProtocolVersion)}},
  };
  for (const Case& each : cases) {
    LinkPair pair;
    pair.settings = pair_.settings;
    pair.dial_settings = pair_.dial_settings;
    each.change(&pair.dial_settings);
    ASSERT_FALSE(pair.Connect());
    ASSERT_TRUE(pair.Run([&] { return !pair.refused.empty(); }));
    EXPECT_TRUE(pair.dialler.closed);
    EXPECT_EQ(pair.dialler.link->refusal(), each.kind) << pair.dialler.why;
    EXPECT_EQ(pair.refused[0].kind, each.kind) << pair.refused[0].why;
    for (const std::string& part : each.says) {
      EXPECT_TRUE(Has(pair.dialler.why, part)) << pair.dialler.why;
      EXPECT_TRUE(Has(pair.refused[0].why, part)) << pair.refused[0].why;
    }
    EXPECT_FALSE(pair.accepted.ready);
    ASSERT_TRUE(pair.Run([&] { return pair.listener->pending() == 0; }));
    // The listener is none the worse.
    pair.dial_settings = pair_.dial_settings;
    pair.dialler.closed = false;
    ASSERT_TRUE(pair.Connect()) << pair.dialler.why;
  }
}

TEST_P(LinkTest, JoiningWithoutKnowingTheCluster) {
  pair_.dial_settings.cluster_id = "";
  ASSERT_TRUE(pair_.Connect()) << pair_.dialler.why;
  EXPECT_EQ(pair_.dialler.link->peer_cluster_id(), "testing");
}

// What the two daemons hand to two processes: it carries a channel from its first byte on.
TEST_P(LinkTest, BecomesAChannel) {
  for (int round = 0; round < 20; ++round) {
    LinkPair pair;
    pair.settings = pair_.settings;
    pair.dial_settings = pair_.dial_settings;
    std::unique_ptr<StreamChannel> ends[2];
    const auto release = [&](std::unique_ptr<StreamChannel>* into, const std::string& first_words) {
      return [into, first_words](Link& link) {
        auto socket = link.ReleaseSocket();
        ASSERT_TRUE(socket.ok()) << socket.error().message;
        *into = std::make_unique<StreamChannel>(std::move(*socket));
        // At once: it may reach the peer while that one still finishes its handshake.
        uint8_t* room = (*into)->BeginSend(static_cast<uint32_t>(first_words.size()));
        memcpy(room, first_words.data(), first_words.size());
        (*into)->CommitSend(1, false, static_cast<uint32_t>(first_words.size()));
        (*into)->Flush();
      };
    };
    pair.dialler.on_ready = release(&ends[0], "from the dialler");
    pair.accepted.on_ready = release(&ends[1], "from the listener");
    ASSERT_TRUE(pair.Connect()) << pair.dialler.why;
    ASSERT_TRUE(ends[0] && ends[1]);
    std::string heard[2];
    Frame frame;
    ASSERT_TRUE(pair.Run([&] {
      for (int side = 0; side < 2; ++side) {
        ends[side]->Fill();
        ends[side]->Flush();
        if (heard[side].empty() && ends[side]->Peek(&frame)) {
          heard[side] = frame.bytes;
          ends[side]->Pop();
        }
      }
      return !heard[0].empty() && !heard[1].empty();
    }));
    EXPECT_EQ(heard[0], "from the listener");
    EXPECT_EQ(heard[1], "from the dialler");
    // Much of it, in both directions.
    uint64_t sent[2] = {0, 0}, received[2] = {0, 0};
    ASSERT_TRUE(pair.Run([&] {
      for (int turn = 0; turn < 50; ++turn) {
        for (int side = 0; side < 2; ++side) {
          if (sent[side] < 100) {
            if (uint8_t* room = ends[side]->BeginSend(50'000); room != nullptr) {
              memset(room, static_cast<int>(sent[side]++), 50'000);
              ends[side]->CommitSend(1, false, 50'000);
            }
          }
          ends[side]->Flush();
          ends[side]->Fill();
          while (ends[side]->Peek(&frame)) {
            EXPECT_EQ(frame.bytes.size(), 50'000u);
            EXPECT_EQ(frame.bytes[49'999], static_cast<char>(received[side]++));
            ends[side]->Pop();
          }
        }
      }
      return received[0] == 100 && received[1] == 100;
    }));
    // The end of one process is the end of the other's channel.
    ends[round % 2].reset();
    StreamChannel& left = *ends[1 - round % 2];
    ASSERT_TRUE(pair.Run([&] { return !left.Fill(); }));
    if (GetParam()) {
      ASSERT_TRUE(pair.Run([&] { return pair.dialler.closed && pair.accepted.closed; }));
    } else {
      EXPECT_FALSE(pair.dialler.closed || pair.accepted.closed) << "given away without a word";
      EXPECT_FALSE(pair.dialler.link->ready());
    }
  }
}

// The process at one end does not read: what waits in between is bounded, and all of it arrives in the end.
TEST_P(LinkTest, ChannelWithASlowProcess) {
  UniqueFd ends[2];
  pair_.dialler.on_ready = [&](Link& link) { ends[0] = std::move(*link.ReleaseSocket()); };
  pair_.accepted.on_ready = [&](Link& link) { ends[1] = std::move(*link.ReleaseSocket()); };
  ASSERT_TRUE(pair_.Connect()) << pair_.dialler.why;
  const std::string block(64 * 1024, 'b');
  size_t sent = 0;
  for (int idle = 0; idle < 20;) {
    const IoOutcome outcome = TrySend(ends[0].get(), Span(block));
    idle = outcome.kind == IoOutcome::kDone ? 0 : idle + 1;
    sent += outcome.bytes;
    ASSERT_LT(sent, size_t{64} << 20);
    int turns = 0;
    pair_.Run([&] { return turns++ > 0; });
  }
  ends[0].Reset();  // all of it still arrives
  size_t received = 0;
  ASSERT_TRUE(pair_.Run([&] {
    std::vector<uint8_t> buffer(100'000);
    for (;;) {
      const IoOutcome outcome = TryRecv(ends[1].get(), buffer.data(), buffer.size());
      if (outcome.kind != IoOutcome::kDone) return outcome.kind == IoOutcome::kClosed;
      received += outcome.bytes;
    }
  }));
  EXPECT_EQ(received, sent);
}

TEST_P(LinkTest, SocketsInUseAreNotGivenAway) {
  ASSERT_TRUE(pair_.Connect()) << pair_.dialler.why;
  pair_.accepted.on_message = [&](Link& link, std::string_view) { link.PauseReading(true); };
  ASSERT_EQ(pair_.dialler.link->Send("one"), Outcome::kSent);
  pair_.dialler.link->Cork(true);
  ASSERT_EQ(pair_.dialler.link->Send("two"), Outcome::kSent);
  EXPECT_FALSE(pair_.dialler.link->ReleaseSocket().ok()) << "something is queued";
  ASSERT_EQ(pair_.dialler.link->Send("three"), Outcome::kSent);
  pair_.dialler.link->Cork(false);
  ASSERT_TRUE(pair_.Run([&] { return pair_.accepted.messages.size() == 1; }));
  // The second and the third may have been read with the first; they are not lost.
  for (size_t count = 2; count <= 3; ++count) {
    pair_.accepted.link->PauseReading(false);
    ASSERT_TRUE(pair_.Run([&] { return pair_.accepted.messages.size() == count; }));
  }
}

TEST_P(LinkTest, SignsOfLife) {
  // Long enough for a busy machine to let this process run in between.
  pair_.settings.idle_timeout_ns = pair_.dial_settings.idle_timeout_ns = 500'000'000;
  ASSERT_TRUE(pair_.Connect()) << pair_.dialler.why;
  const int64_t until_ns = NowNs() + 1'200'000'000;
  ASSERT_TRUE(pair_.Run([&] { return NowNs() > until_ns; }));
  EXPECT_FALSE(pair_.dialler.closed) << pair_.dialler.why;
  EXPECT_FALSE(pair_.accepted.closed) << pair_.accepted.why;
  EXPECT_EQ(pair_.accepted.messages.size(), 0u) << "they are not messages";
}

INSTANTIATE_TEST_SUITE_P(All, LinkTest, testing::Values(false, true),
                         [](const auto& info) { return std::string(info.param ? "Tls" : "Plain"); });

// The peer's kernel answers, but the peer does not: stopped, or stuck.
TEST(SilentPeerTest, IsNoticed) {
  LinkPair pair;
  pair.settings.idle_timeout_ns = 200'000'000;
  ASSERT_TRUE(pair.Listen());
  Renegade silent(&pair, "I will be silent");
  ASSERT_TRUE(silent.accepted);
  ASSERT_TRUE(pair.Run([&] { return pair.accepted.closed; }));
  EXPECT_EQ(pair.accepted.kind, ErrorKind::kTimeout);
  EXPECT_TRUE(Has(pair.accepted.why, "nothing was heard for 200 ms")) << pair.accepted.why;
}

TEST(KilledPeerTest, IsNoticedAtOnce) {
  LinkPair pair;
  ASSERT_TRUE(pair.Listen());
  const pid_t child = ::fork();
  if (child == 0) {
    LinkPair other;
    LinkEnd end;
    auto link = Link::Dial(other.loop, "127.0.0.1", pair.listener->port(), other.dial_settings, "child", end);
    if (!link) ::_exit(1);
    while (!end.closed) other.loop.Wait(INT64_MAX);
    ::_exit(0);
  }
  const bool ready = pair.Run([&] { return pair.accepted.ready; });
  while (ready && pair.accepted.link->Send(std::string(100'000, 'x')) == Outcome::kSent && NowNs() % 7 != 0) {
  }
  ::kill(child, SIGKILL);
  const int64_t killed_ns = NowNs();
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(ready);
  ASSERT_TRUE(pair.Run([&] { return pair.accepted.closed; }));
  EXPECT_LT(NowNs() - killed_ns, 1'000'000'000);
  EXPECT_EQ(pair.accepted.kind, ErrorKind::kGone);
}

TEST(StrangersTest, BrowserIsAnsweredAndNotReset) {
  LinkPair pair;
  ASSERT_TRUE(pair.Listen());
  Stranger browser(pair.listener->port());
  // More than we ever read of it, so that closing at once would be a reset.
  browser.Say("GET / HTTP/1.1\r\nHost: evil\r\nCookie: " + std::string(20'000, 'c') + "\r\n\r\n");
  ASSERT_TRUE(pair.Run([&] { return browser.Listen(); }));
  EXPECT_EQ(browser.error, 0);
  EXPECT_EQ(browser.heard, HttpAnswer());
  ASSERT_EQ(pair.refused.size(), 1u);
  EXPECT_EQ(pair.refused[0].kind, RefusalKind::kHttp);
  EXPECT_TRUE(Has(pair.refused[0].why, "HTTP")) << pair.refused[0].why;
  browser.fd.Reset();
  ASSERT_TRUE(pair.Run([&] { return pair.listener->pending() == 0; }));
}

TEST(StrangersTest, TooSlow) {
  LinkPair pair;
  pair.settings.handshake_timeout_ns = 100'000'000;
  ASSERT_TRUE(pair.Listen());
  Stranger idle(pair.listener->port());
  Stranger dribbling(pair.listener->port());
  size_t said = 0;
  ASSERT_TRUE(pair.Run([&] {
    if (said < 8) dribbling.Say(std::string("weftlink").substr(said++, 1));
    return idle.Listen() && dribbling.Listen();
  }));
  EXPECT_EQ(pair.refused.size(), 2u);
  for (const LinkPair::Refused& each : pair.refused) EXPECT_EQ(each.kind, RefusalKind::kTooSlow) << each.why;
  EXPECT_EQ(pair.listener->pending(), 0u);
}

TEST(StrangersTest, SilentListener) {
  LinkPair pair;
  pair.dial_settings.handshake_timeout_ns = 100'000'000;
  auto silent = ListenTcp("127.0.0.1", 0);
  auto made =
      Link::Dial(pair.loop, "127.0.0.1", LocalTcpAddress(silent->get())->port(), pair.dial_settings, "", pair.dialler);
  ASSERT_TRUE(made.ok());
  pair.dialler.link = std::move(*made);
  ASSERT_TRUE(pair.Run([&] { return pair.dialler.closed; }));
  EXPECT_EQ(pair.dialler.kind, ErrorKind::kTimeout);
  EXPECT_EQ(pair.dialler.link->refusal(), RefusalKind::kTooSlow);
}

// Connections that say nothing, more than the listener keeps: a real one gets in all the same.
TEST(StrangersTest, AThousandIdleConnections) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit before = limit;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 8192);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur < 2000) GTEST_SKIP() << "only " << limit.rlim_cur << " descriptors may be open";
  {
    LinkPair pair;
    ASSERT_TRUE(pair.Listen());
    std::vector<std::unique_ptr<Stranger>> idle;
    for (int i = 0; i < 1000; ++i) {
      idle.push_back(std::make_unique<Stranger>(pair.listener->port()));
      ASSERT_TRUE(idle.back()->fd.valid());
      if (i % 3 == 0) idle.back()->Say("weft");
      if (i % 100 == 0) {
        int turns = 0;
        pair.Run([&] { return turns++ > 0; });
      }
    }
    const int64_t begin_ns = NowNs();
    ASSERT_TRUE(pair.Connect()) << pair.dialler.why;
    EXPECT_LT(NowNs() - begin_ns, 5'000'000'000);
    EXPECT_LE(pair.listener->pending(), LinkListener::kMaxPending);
    EXPECT_GE(pair.refused.size(), 1000u - LinkListener::kMaxPending);
    for (const LinkPair::Refused& each : pair.refused) ASSERT_EQ(each.kind, RefusalKind::kBusy) << each.why;
    // And they go on knocking while the link works.
    for (int i = 0; i < 300; ++i) idle[static_cast<size_t>(i)] = std::make_unique<Stranger>(pair.listener->port());
    ASSERT_EQ(pair.dialler.link->Send("still here"), Outcome::kSent);
    ASSERT_TRUE(pair.Run([&] { return pair.accepted.messages.size() == 1; }));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

// Without descriptors the listener neither turns in circles nor forgets who waits.
TEST(StrangersTest, DescriptorsRunOut) {
  LinkPair pair;
  ASSERT_TRUE(pair.Listen());
  Stranger waits(pair.listener->port());
  std::vector<UniqueFd> all;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{64, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  for (;;) {
    UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd) break;
    all.push_back(std::move(fd));
  }
  rusage begin{}, end{};
  ASSERT_EQ(::getrusage(RUSAGE_SELF, &begin), 0);
  const int64_t until_ns = NowNs() + 300'000'000;
  ASSERT_TRUE(pair.Run([&] { return NowNs() > until_ns; }));
  ASSERT_EQ(::getrusage(RUSAGE_SELF, &end), 0);
  EXPECT_EQ(pair.listener->pending(), 0u);
  const auto micros = [](const rusage& usage) {
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
  };
  EXPECT_LT(micros(end) - micros(begin), 150'000) << "of 300 ms, as nothing could be done";
  all.clear();
  EXPECT_TRUE(pair.Run([&] { return pair.listener->pending() == 1; }));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

// Everything that strangers may say, by seed. The listener stays, and a real one gets in.
TEST(StrangersTest, Nonsense) {
  LinkPair pair;
  ASSERT_TRUE(pair.Listen());
  const std::string openings[] = {"",
                                  "weftlink",
                                  "weft",
                                  "GET / HTTP/1.1\r\n\r\n",
                                  std::string("\x16\x03\x01\x00\x05", 5),
                                  std::string("weftlink\x01\x00\x00\x00\x01\x00\x00\x00\x24\x00\x00\x00", 20),
                                  EncodeRefusal(RefusalKind::kWrongToken),
                                  EncodeRefusal(static_cast<RefusalKind>(200))};
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    Random random(seed);
    Stranger stranger(pair.listener->port());
    ASSERT_TRUE(stranger.fd.valid());
    std::string bytes = openings[random.Below(std::size(openings))];
    bytes += RandomBytes(&random, random.Below(300));
    while (!bytes.empty()) {
      const size_t part = 1 + random.Below(bytes.size());
      stranger.Say(bytes.substr(0, part));
      bytes.erase(0, part);
      int turns = 0;
      pair.Run([&] { return turns++ > 0; });
    }
    if (random.Chance(30)) ::shutdown(stranger.fd.get(), SHUT_WR);
  }
  ASSERT_TRUE(pair.Connect()) << pair.dialler.why;
  ASSERT_EQ(pair.dialler.link->Send("hello"), Outcome::kSent);
  ASSERT_TRUE(pair.Run([&] { return pair.accepted.messages.size() == 1; }));
  EXPECT_EQ(pair.more.size(), 0u) << "nobody else was accepted";
}

// A member that says what no correct one says loses its link, and nothing else happens.
TEST(RenegadesTest, ImpossibleMessages) {
  const uint32_t chunk = 1u << 31;
  const uint32_t max = LinkSettings{}.max_message_bytes;
  const std::string bad[] = {
      Prefix(max + 1),
      Prefix(0x7fffffff),
      Prefix(0xffffffff),
      Prefix(chunk | (max + 1)),
      Prefix(chunk) + Prefix(1),         // no room for the header
      Prefix(chunk | 4) + Prefix(0),     // no header
      Prefix(chunk | 100) + Prefix(97),  // a header longer than the chunk
      Prefix(chunk | 10'000) + Prefix(Link::kMaxChunkHeaderBytes + 1),
      Prefix(chunk | 10'000) + Prefix(0xffffffff),
  };
  for (const std::string& bytes : bad) {
    LinkPair pair;
    ASSERT_TRUE(pair.Listen());
    Renegade peer(&pair, "member");
    ASSERT_TRUE(peer.accepted);
    peer.Say(Prefix(0) + Prefix(2) + "ok" + bytes);
    ASSERT_TRUE(pair.Run([&] { return pair.accepted.closed; }));
    EXPECT_EQ(pair.accepted.kind, ErrorKind::kInvalid) << pair.accepted.why;
    EXPECT_TRUE(Has(pair.accepted.why, "announced"));
    EXPECT_EQ(pair.accepted.messages, std::vector<std::string>{"ok"});
    ASSERT_TRUE(pair.Run([&] { return peer.Listen(); }));
  }
}

TEST(RenegadesTest, TruncatedMessages) {
  const std::string whole = Prefix(5) + "hello" + Prefix((1u << 31) | 10) + Prefix(2) + "hdpl!!";
  for (size_t size = 0; size < whole.size(); ++size) {
    LinkPair pair;
    ASSERT_TRUE(pair.Listen());
    Renegade peer(&pair, "member");
    ASSERT_TRUE(peer.accepted);
    peer.Say(whole.substr(0, size));
    peer.fd.Reset();
    ASSERT_TRUE(pair.Run([&] { return pair.accepted.closed; }));
    EXPECT_EQ(pair.accepted.messages.size(), size >= 9 ? 1u : 0u);
    EXPECT_EQ(pair.accepted.chunks.size(), 0u);
  }
}

TEST(DiallingTest, NobodyThere) {
  LinkPair pair;
  auto listener = ListenTcp("127.0.0.1", 0);
  const uint16_t port = LocalTcpAddress(listener->get())->port();
  listener->Reset();
  auto made = Link::Dial(pair.loop, "127.0.0.1", port, pair.dial_settings, "", pair.dialler);
  ASSERT_TRUE(made.ok());
  pair.dialler.link = std::move(*made);
  ASSERT_TRUE(pair.Run([&] { return pair.dialler.closed; }));
  EXPECT_TRUE(Has(pair.dialler.why, "127.0.0.1:" + std::to_string(port))) << pair.dialler.why;
  EXPECT_TRUE(Has(pair.dialler.why, "is weft started"));
  EXPECT_EQ(pair.dialler.kind, ErrorKind::kGone);
}

TEST(DiallingTest, TriesAllAddresses) {
  LinkPair pair;
  ASSERT_TRUE(pair.Listen());
  auto unused = ListenTcp("127.0.0.1", 0);
  const uint16_t nobody = LocalTcpAddress(unused->get())->port();
  unused->Reset();
  std::vector<TcpAddress> addresses;
  addresses.push_back(ResolveTcp("127.0.0.1", nobody)->front());
  addresses.push_back(ResolveTcp("127.0.0.1", nobody)->front());
  addresses.push_back(ResolveTcp("127.0.0.1", pair.listener->port())->front());
  auto made = Link::Dial(pair.loop, std::move(addresses), pair.dial_settings, "hello", pair.dialler);
  ASSERT_TRUE(made.ok()) << made.error().message;
  pair.dialler.link = std::move(*made);
  ASSERT_TRUE(pair.Run([&] { return pair.dialler.ready || pair.dialler.closed; }));
  EXPECT_TRUE(pair.dialler.ready) << pair.dialler.why;
}

TEST(DiallingTest, BadSettings) {
  LinkPair pair;
  LinkSettings settings = pair.settings;
  settings.token = "";
  EXPECT_FALSE(Link::Dial(pair.loop, "127.0.0.1", 1, settings, "", pair.dialler).ok());
  EXPECT_FALSE(LinkListener::Listen(pair.loop, "127.0.0.1", 0, settings, "", pair).ok());
  settings = pair.settings;
  settings.cluster_id = std::string(65, 'c');
  EXPECT_FALSE(Link::Dial(pair.loop, "127.0.0.1", 1, settings, "", pair.dialler).ok());
  EXPECT_FALSE(LinkListener::Listen(pair.loop, "127.0.0.1", 0, settings, "", pair).ok());
  settings.cluster_id = "";
  EXPECT_FALSE(LinkListener::Listen(pair.loop, "127.0.0.1", 0, settings, "", pair).ok());
  EXPECT_FALSE(Link::Dial(pair.loop, "127.0.0.1", 1, pair.settings, std::string(65'537, 'h'), pair.dialler).ok());
}

TEST(DiallingTest, ServerThatIsNoWeft) {
  LinkPair pair;
  auto listener = ListenTcp("127.0.0.1", 0);
  auto made = Link::Dial(pair.loop, "127.0.0.1", LocalTcpAddress(listener->get())->port(), pair.dial_settings, "",
                         pair.dialler);
  ASSERT_TRUE(made.ok());
  pair.dialler.link = std::move(*made);
  UniqueFd server;
  ASSERT_TRUE(pair.Run([&] {
    int error = 0;
    if (!server) {
      server = AcceptTcp(listener->get(), &error);
      if (server) (void)TrySend(server.get(), Span("SSH-2.0-OpenSSH_9.2\r\n"));
    }
    return pair.dialler.closed;
  }));
  EXPECT_EQ(pair.dialler.link->refusal(), RefusalKind::kNotWeft);
  EXPECT_TRUE(Has(pair.dialler.why, "check the address and the port")) << pair.dialler.why;
}

}  // namespace
}  // namespace weft::core
