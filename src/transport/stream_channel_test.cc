#include "transport/stream_channel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/random.h"
#include "os/socket.h"

namespace weft::core {
namespace {

struct Raw {
  Raw() {
    auto pair = std::move(*StreamSocketPair(Blocking::kNo));
    channel = std::make_unique<StreamChannel>(std::move(pair.first));
    peer = std::move(pair.second);
  }
  void Write(const StreamHeader& header, const std::string& payload = "") {
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    ASSERT_TRUE(SendWithFds(peer.get(), bytes + payload, {}).ok());
  }
  std::unique_ptr<StreamChannel> channel;
  UniqueFd peer;
};

TEST(StreamChannelTest, ImpossibleHeadersBreakIt) {
  const StreamHeader bad[] = {
      {StreamChannel::kMaxFrame + 1, 0, StreamHeader::kPlain, 0, 0},
      {0x80000000u, 0, StreamHeader::kPlain, 0, 0},
      {0xffffffffu, 0, StreamHeader::kVoid, 0, 0},
      {0, 1, StreamHeader::kPlain, 0, 0},    // not the next sequence
      {0, 0, StreamHeader::kPlain, 0, 1},    // reserved bits
      {0, 0, 7, 0, 0},                       // unknown kind
      {0, 0, StreamHeader::kRevoke, 0, 0},   // of a frame that never came
      {4, 0, StreamHeader::kRevoke, 0, 0},   // with a payload
      {0, 0, StreamHeader::kRevoked, 0, 0},  // an answer without a question
      {0, 0, StreamHeader::kClaimed, 0, 0},
      {0, 1, StreamHeader::kCredit, 0, 0},  // for nothing that was sent
  };
  for (const StreamHeader& header : bad) {
    Raw raw;
    raw.Write(header);
    EXPECT_FALSE(raw.channel->Fill());
    EXPECT_TRUE(raw.channel->broken()) << static_cast<int>(header.kind) << " " << header.sequence;
    Frame frame;
    EXPECT_FALSE(raw.channel->Peek(&frame));
    EXPECT_EQ(raw.channel->BeginSend(1), nullptr);
  }
}

TEST(StreamChannelTest, RevokeOfAPlainFrameBreaksIt) {
  Raw raw;
  raw.Write({0, 0, StreamHeader::kPlain, 0, 0});
  raw.Write({0, 0, StreamHeader::kRevoke, 0, 0});
  EXPECT_FALSE(raw.channel->Fill());
  EXPECT_TRUE(raw.channel->broken());
}

TEST(StreamChannelTest, MoreThanTheWindowBreaksIt) {
  Raw raw;
  const std::string payload(StreamChannel::kMaxFrame, 'x');
  for (uint32_t i = 0; i < 4 && !raw.channel->broken(); ++i) {
    std::string bytes(sizeof(StreamHeader), 0);
    const StreamHeader header{StreamChannel::kMaxFrame, i, StreamHeader::kPlain, 0, 0};
    memcpy(bytes.data(), &header, sizeof header);
    bytes += payload;
    std::span<const uint8_t> rest(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    while (!rest.empty() && !raw.channel->broken()) {
      const IoOutcome outcome = TrySend(raw.peer.get(), rest);
      if (outcome.kind == IoOutcome::kDone) rest = rest.subspan(outcome.bytes);
      raw.channel->Fill();
    }
    EXPECT_EQ(raw.channel->broken(), i == 3) << i;
  }
  EXPECT_TRUE(raw.channel->broken());
}

TEST(StreamChannelTest, FloodOfRequestsBreaksItInsteadOfFillingMemory) {
  Raw raw;
  raw.Write({0, 0, StreamHeader::kRevocable, 0, 0});
  ASSERT_TRUE(raw.channel->Fill());
  const StreamHeader request{0, 0, StreamHeader::kRevoke, 0, 0};
  for (int i = 0; i < 1'000'000 && !raw.channel->broken(); ++i) {
    raw.Write(request);
    if (i % 50 == 0) {
      raw.channel->Fill();
      raw.channel->Flush();
    }
  }
  EXPECT_TRUE(raw.channel->broken());
}

TEST(StreamChannelTest, HeadersAndPayloadsMaySplitAnywhere) {
  Raw raw;
  std::string stream;
  for (uint32_t i = 0; i < 50; ++i) {
    const StreamHeader header{i, i, StreamHeader::kPlain, static_cast<uint8_t>(i), 0};
    stream.append(reinterpret_cast<const char*>(&header), sizeof header);
    stream.append(i, static_cast<char>(i));
  }
  Random random(3);
  uint32_t next = 0;
  for (size_t at = 0; at < stream.size();) {
    const size_t part = std::min<size_t>(1 + random.Below(9), stream.size() - at);
    ASSERT_TRUE(SendWithFds(raw.peer.get(), std::string_view(stream).substr(at, part), {}).ok());
    at += part;
    ASSERT_TRUE(raw.channel->Fill());
    Frame frame;
    while (raw.channel->Peek(&frame)) {
      ASSERT_EQ(frame.bytes, std::string(next, static_cast<char>(next)));
      raw.channel->Pop();
      ++next;
    }
  }
  EXPECT_EQ(next, 50u);
}

TEST(StreamChannelTest, RandomBytesNeverCrash) {
  Random random(17);
  for (int round = 0; round < 300; ++round) {
    Raw raw;
    std::string bytes;
    for (int i = 0; i < 40; ++i) {
      StreamHeader header{static_cast<uint32_t>(random.Below(20)), static_cast<uint32_t>(random.Below(6)),
                          static_cast<uint8_t>(random.Below(8)), 1, 0};
      if (random.Chance(5)) header.size = static_cast<uint32_t>(random.Next());
      bytes.append(reinterpret_cast<const char*>(&header), sizeof header);
      bytes.append(random.Below(20), 'z');
    }
    ASSERT_TRUE(SendWithFds(raw.peer.get(), bytes, {}).ok());
    raw.channel->Fill();
    Frame frame;
    while (raw.channel->Peek(&frame)) {
      raw.channel->Claim();
      raw.channel->Pop();
    }
  }
}

TEST(StreamChannelTest, TruncatedFrameNeverShows) {
  Raw raw;
  raw.Write({10, 0, StreamHeader::kPlain, 0, 0}, "12345");
  raw.peer.Reset();
  EXPECT_FALSE(raw.channel->Fill());
  Frame frame;
  EXPECT_FALSE(raw.channel->Peek(&frame));
  EXPECT_FALSE(raw.channel->broken());
  EXPECT_TRUE(raw.channel->gone());
}

}  // namespace
}  // namespace weft::core
