#include "transport/handshake.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"

namespace weft::core {
namespace {

using Role = Handshake::Role;
using State = Handshake::State;

const char kToken[] = "0123456789abcdef0123456789abcdef";

Sha256Bytes Nonce(uint64_t seed) {
  Random random(seed);
  Sha256Bytes nonce;
  for (uint8_t& byte : nonce) byte = static_cast<uint8_t>(random.Next());
  return nonce;
}

HandshakeSettings Settings() { return {kToken, "blue", 7, ""}; }

Handshake Dialler(const HandshakeSettings& settings = Settings(), uint64_t seed = 1, std::string hello = "I dial") {
  return Handshake(Role::kDialler, settings, Nonce(seed), std::move(hello), "listener:1");
}
Handshake Listener(const HandshakeSettings& settings = Settings(), uint64_t seed = 2, std::string hello = "I listen") {
  return Handshake(Role::kListener, settings, Nonce(seed), std::move(hello), "dialler:2");
}

// Feeds what it wants, in parts of at most `part` bytes. Gives back what it did not want.
std::string Feed(Handshake* to, std::string_view bytes, size_t part = SIZE_MAX) {
  while (!bytes.empty() && to->wanted() > 0) {
    const size_t size = std::min({bytes.size(), to->wanted(), part});
    to->Feed(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return std::string(bytes);
}

struct Conversation {
  std::string from_dialler;  // all that was said
  std::string from_listener;
};

// Until nobody has anything to say.
Conversation Converse(Handshake* dialler, Handshake* listener, size_t part = SIZE_MAX) {
  Conversation all;
  std::string to_listener, to_dialler;
  for (int i = 0; i < 20; ++i) {
    const std::string a = dialler->TakeOutput();
    const std::string b = listener->TakeOutput();
    all.from_dialler += a;
    all.from_listener += b;
    to_listener = Feed(listener, to_listener + a, part);
    to_dialler = Feed(dialler, to_dialler + b, part);
  }
  return all;
}

std::string Message(uint32_t kind, uint32_t version, std::string_view body, std::optional<uint32_t> size = {}) {
  ByteWriter writer;
  writer.Raw("weftlink");
  writer.Fixed(version);
  writer.Fixed(kind);
  writer.Fixed(size.value_or(static_cast<uint32_t>(body.size())));
  writer.Raw(body);
  return writer.Take();
}

// Cut into messages.
std::vector<std::string> Split(std::string_view bytes) {
  std::vector<std::string> messages;
  while (!bytes.empty()) {
    uint32_t size;
    memcpy(&size, bytes.data() + 16, sizeof size);
    messages.emplace_back(bytes.substr(0, 20 + size));
    bytes.remove_prefix(20 + size);
  }
  return messages;
}

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(HandshakeTest, BothAgree) {
  for (const size_t part : {size_t{1}, size_t{3}, size_t{20}, size_t{100'000}}) {
    Handshake dialler = Dialler();
    Handshake listener = Listener();
    const Conversation all = Converse(&dialler, &listener, part);
    ASSERT_EQ(dialler.state(), State::kDone) << part;
    ASSERT_EQ(listener.state(), State::kDone) << part;
    EXPECT_EQ(dialler.peer_hello(), "I listen");
    EXPECT_EQ(listener.peer_hello(), "I dial");
    EXPECT_EQ(dialler.peer_cluster_id(), "blue");
    EXPECT_EQ(dialler.wanted(), 0u);
    EXPECT_EQ(listener.wanted(), 0u);
    EXPECT_FALSE(Has(all.from_dialler + all.from_listener, kToken)) << "the token never travels";
    EXPECT_EQ(Split(all.from_dialler).size(), 3u);
    EXPECT_EQ(Split(all.from_listener).size(), 2u);
  }
}

TEST(HandshakeTest, TakesNothingBeyondItsOwnBytes) {
  Handshake dialler = Dialler();
  Handshake listener = Listener();
  Feed(&listener, dialler.TakeOutput());
  Feed(&dialler, listener.TakeOutput());
  EXPECT_EQ(Feed(&listener, dialler.TakeOutput() + "what comes next"), "what comes next");
  EXPECT_EQ(Feed(&dialler, listener.TakeOutput() + "is not ours"), "is not ours");
  EXPECT_EQ(dialler.state(), State::kDone);
  EXPECT_EQ(listener.state(), State::kDone);
}

TEST(HandshakeTest, HellosOfAnySize) {
  for (const size_t size : {size_t{0}, size_t{1}, Handshake::kMaxHelloBytes}) {
    Handshake dialler = Dialler(Settings(), 1, std::string(size, 'd'));
    Handshake listener = Listener(Settings(), 2, std::string(size, '\0'));
    Converse(&dialler, &listener);
    ASSERT_EQ(dialler.state(), State::kDone);
    EXPECT_EQ(dialler.peer_hello(), std::string(size, '\0'));
    EXPECT_EQ(listener.peer_hello(), std::string(size, 'd'));
  }
}

TEST(HandshakeTest, JoiningWithoutKnowingTheCluster) {
  HandshakeSettings joining = Settings();
  joining.cluster_id = "";
  Handshake dialler = Dialler(joining);
  Handshake listener = Listener();
  Converse(&dialler, &listener);
  EXPECT_EQ(dialler.state(), State::kDone);
  EXPECT_EQ(listener.state(), State::kDone);
  EXPECT_EQ(dialler.peer_cluster_id(), "blue");
}

TEST(HandshakeTest, WrongToken) {
  for (const char* other : {"x", "0123456789abcdef0123456789abcdeF", "0123456789abcdef0123456789abcdef0"}) {
    HandshakeSettings settings = Settings();
    settings.token = other;
    for (const bool dialler_is_wrong : {false, true}) {
      Handshake dialler = Dialler(dialler_is_wrong ? settings : Settings());
      Handshake listener = Listener(dialler_is_wrong ? Settings() : settings);
      const Conversation all = Converse(&dialler, &listener);
      for (const Handshake* side : {&dialler, &listener}) {
        ASSERT_EQ(side->state(), State::kRefused);
        EXPECT_EQ(side->refusal(), RefusalKind::kWrongToken);
        EXPECT_TRUE(Has(side->error().message, "AuthenticationError")) << side->error().message;
        EXPECT_TRUE(Has(side->error().message, "--token-file"));
        EXPECT_TRUE(Has(side->error().message, "weft start --head"));
        EXPECT_FALSE(Has(side->error().message, kToken));
        EXPECT_EQ(side->peer_hello(), "");
      }
      EXPECT_FALSE(Has(all.from_dialler, "I dial")) << "hellos are for those who have proved themselves";
      EXPECT_FALSE(Has(all.from_listener, "I listen"));
    }
  }
}

// Somebody who does not have the token, and does not care that we have not proved ourselves to him.
TEST(HandshakeTest, MadeUpProof) {
  Random random(3);
  for (int i = 0; i < 1000; ++i) {
    Handshake dialler = Dialler();
    Handshake listener = Listener();
    Feed(&listener, dialler.TakeOutput());
    listener.TakeOutput();
    std::string proof(32, '\0');
    if (i > 0) {
      for (char& c : proof) c = static_cast<char>(random.Next());
    }
    Feed(&listener, Message(3, 7, proof) + Message(4, 7, "I am it" + proof));
    ASSERT_EQ(listener.state(), State::kRefused);
    ASSERT_EQ(listener.refusal(), RefusalKind::kWrongToken);
    ASSERT_EQ(listener.peer_hello(), "");
  }
}

TEST(HandshakeTest, WrongCluster) {
  HandshakeSettings green = Settings();
  green.cluster_id = "green";
  Handshake dialler = Dialler(green);
  Handshake listener = Listener();
  Converse(&dialler, &listener);
  for (const Handshake* side : {&dialler, &listener}) {
    ASSERT_EQ(side->state(), State::kRefused);
    EXPECT_EQ(side->refusal(), RefusalKind::kWrongCluster);
    EXPECT_TRUE(Has(side->error().message, "'green'")) << side->error().message;
    EXPECT_TRUE(Has(side->error().message, "'blue'"));
  }
  EXPECT_TRUE(Has(dialler.error().message, "it belongs to the cluster 'blue' and we belong to 'green'"));
  EXPECT_TRUE(Has(listener.error().message, "it belongs to the cluster 'green' and we belong to 'blue'"));
}

TEST(HandshakeTest, NamesOfClustersAreShownHarmlessly) {
  HandshakeSettings evil = Settings();
  evil.cluster_id = "\x1b[2J\nevil";
  Handshake dialler = Dialler(evil);
  Handshake listener = Listener();
  Converse(&dialler, &listener);
  EXPECT_TRUE(Has(listener.error().message, "'?[2J?evil'")) << listener.error().message;
}

TEST(HandshakeTest, WrongVersion) {
  for (const uint32_t other : {0u, 6u, 8u, 0xffffffffu}) {
    HandshakeSettings settings = Settings();
    settings.version = other;
    Handshake dialler = Dialler(settings);
    Handshake listener = Listener();
    Converse(&dialler, &listener);
    EXPECT_TRUE(
        Has(listener.error().message, "version " + std::to_string(other) + " of the protocol and we speak version 7"))
        << listener.error().message;
    EXPECT_TRUE(
        Has(dialler.error().message, "version 7 of the protocol and we speak version " + std::to_string(other)));
    for (const Handshake* side : {&dialler, &listener}) {
      EXPECT_EQ(side->state(), State::kRefused);
      EXPECT_EQ(side->refusal(), RefusalKind::kWrongVersion);
    }
  }
}

TEST(HandshakeTest, NotWeftAtAll) {
  struct Case {
    std::string bytes;
    RefusalKind kind;
    const char* says;
  };
  const Case cases[] = {
      {"GET / HTTP/1.1\r\nHost: evil\r\n\r\n", RefusalKind::kHttp, "HTTP"},
      {"POST /x HTTP/1.0\r\n", RefusalKind::kHttp, "HTTP"},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", RefusalKind::kHttp, "HTTP"},
      {"HTTP/1.1 400 Bad Request\r\n", RefusalKind::kHttp, "HTTP"},
      {std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(100, 'x'), RefusalKind::kTls,
       "TLS"},
      {std::string("\x15\x03\x03\x00\x02\x02\x28", 7) + std::string(20, 'x'), RefusalKind::kTls, "TLS"},
      {"SSH-2.0-OpenSSH_9.2p1 Debian\r\n", RefusalKind::kNotWeft, "not weft's protocol"},
      {"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n", RefusalKind::kNotWeft, "not weft's protocol"},
      {"weft!!!!and so on and so forth", RefusalKind::kNotWeft, "not weft's protocol"},
      {std::string(100, '\0'), RefusalKind::kNotWeft, "not weft's protocol"},
      {std::string(100, '\xff'), RefusalKind::kNotWeft, "not weft's protocol"},
  };
  for (const Case& each : cases) {
    for (const size_t part : {size_t{1}, size_t{1000}}) {
      for (const Role role : {Role::kDialler, Role::kListener}) {
        Handshake side = role == Role::kDialler ? Dialler() : Listener();
        side.TakeOutput();
        Feed(&side, each.bytes, part);
        ASSERT_EQ(side.state(), State::kRefused) << each.bytes;
        EXPECT_EQ(side.refusal(), each.kind) << each.bytes;
        EXPECT_TRUE(Has(side.error().message, each.says)) << side.error().message;
        const std::string answer = side.TakeOutput();
        if (role == Role::kDialler || each.kind == RefusalKind::kNotWeft) {
          EXPECT_EQ(answer, "") << "strangers are told nothing";
        } else if (each.kind == RefusalKind::kHttp) {
          EXPECT_EQ(answer.rfind("HTTP/1.1 400 Bad Request\r\n", 0), 0u);
          EXPECT_TRUE(Has(answer, "\r\n\r\nThis port is for weft's own protocol"));
        } else {
          EXPECT_EQ(answer, EncodeRefusal(RefusalKind::kTlsNotWanted, 7));
        }
      }
    }
  }
}

TEST(HandshakeTest, PlainMeetsTls) {
  Handshake dialler = Dialler();
  dialler.TakeOutput();
  Feed(&dialler, EncodeRefusal(RefusalKind::kTlsWanted, 7));
  EXPECT_EQ(dialler.refusal(), RefusalKind::kTlsWanted);
  EXPECT_TRUE(Has(dialler.error().message, "--tls")) << dialler.error().message;
}

TEST(HandshakeTest, ToItself) {
  Handshake dialler = Dialler();
  Feed(&dialler, dialler.TakeOutput());
  EXPECT_EQ(dialler.state(), State::kRefused);
  EXPECT_EQ(dialler.refusal(), RefusalKind::kMalformed);
  EXPECT_TRUE(Has(dialler.error().message, "nobody listens")) << dialler.error().message;
}

TEST(HandshakeTest, TooSlowClosedDropped) {
  Handshake slow = Listener();
  slow.TimedOut(1'500'000'000);
  EXPECT_EQ(slow.refusal(), RefusalKind::kTooSlow);
  EXPECT_EQ(slow.error().kind, ErrorKind::kTimeout);
  EXPECT_TRUE(Has(slow.error().message, "1500 ms"));
  EXPECT_EQ(slow.TakeOutput(), "");
  Handshake closed = Listener();
  closed.PeerClosed("reset");
  EXPECT_EQ(closed.refusal(), RefusalKind::kClosed);
  EXPECT_EQ(closed.error().kind, ErrorKind::kGone);
  Handshake dropped = Listener();
  dropped.DroppedForOthers();
  EXPECT_EQ(dropped.refusal(), RefusalKind::kBusy);
  Handshake dialler = Dialler();
  dialler.TakeOutput();
  Feed(&dialler, dropped.TakeOutput());
  EXPECT_EQ(dialler.refusal(), RefusalKind::kBusy);
  EXPECT_EQ(dialler.error().kind, ErrorKind::kFull);
  // A decision stands.
  slow.PeerClosed("");
  slow.DroppedForOthers();
  EXPECT_EQ(slow.refusal(), RefusalKind::kTooSlow);
}

// Everything that is announced is checked before anything is allocated for it.
TEST(HandshakeTest, ImpossibleSizes) {
  for (const uint32_t size : {0u, 1u, 35u, 101u, 4096u, 65569u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
    Handshake listener = Listener();
    Feed(&listener, Message(1, 7, "", size));
    ASSERT_EQ(listener.state(), State::kRefused) << size;
    EXPECT_EQ(listener.refusal(), RefusalKind::kMalformed);
    EXPECT_TRUE(Has(listener.error().message, "announced a message of " + std::to_string(size) + " bytes"));
  }
  for (const uint32_t size : {0u, 31u, 33u, 65568u}) {
    Handshake dialler = Dialler();
    Handshake listener = Listener();
    Feed(&listener, dialler.TakeOutput());
    Feed(&listener, Message(3, 7, "", size));
    EXPECT_EQ(listener.refusal(), RefusalKind::kMalformed) << size;
  }
  // A hello of 64 kB and a byte, from somebody who has the token.
  Handshake dialler = Dialler();
  Handshake listener = Listener();
  Feed(&listener, dialler.TakeOutput());
  Feed(&dialler, listener.TakeOutput());
  Feed(&listener, Split(dialler.TakeOutput())[0] + Message(4, 7, "", 65536 + 33));
  EXPECT_EQ(listener.refusal(), RefusalKind::kMalformed);
  // Before a peer has proved itself, it cannot make us wait for more than a few bytes.
  Handshake fresh = Listener();
  Feed(&fresh, Message(1, 7, "", 100));
  EXPECT_EQ(fresh.wanted(), 100u);
}

TEST(HandshakeTest, InnerLengths) {
  const std::string nonce(32, 'n');
  for (const uint32_t length : {0u, 3u, 5u, 64u, 0x7fffffffu, 0xffffffffu}) {
    ByteWriter body;
    body.Raw(nonce);
    body.Fixed(length);
    body.Raw("blue");
    Handshake listener = Listener();
    Feed(&listener, Message(1, 7, body.view()));
    EXPECT_EQ(listener.refusal(), RefusalKind::kMalformed) << length;
  }
}

TEST(HandshakeTest, OutOfTurn) {
  Handshake dialler = Dialler();
  Handshake other = Listener();
  const Conversation all = Converse(&dialler, &other);
  std::vector<std::string> messages = Split(all.from_dialler + all.from_listener);
  ASSERT_EQ(messages.size(), 5u);
  for (const std::string& message : messages) {
    Handshake listener = Listener(Settings(), 9);
    Feed(&listener, message);
    EXPECT_EQ(listener.state() == State::kRunning, message == messages[0]);
    EXPECT_EQ(listener.peer_hello(), "");
  }
  for (const uint32_t kind : {0u, 7u, 255u, 256u + 1u, 0xffffffffu}) {
    Handshake listener = Listener();
    Feed(&listener, Message(kind, 7, std::string(40, '\0')));
    EXPECT_EQ(listener.refusal(), RefusalKind::kMalformed) << kind;
  }
}

// What was recorded of one conversation is of no use in another.
TEST(HandshakeTest, Replayed) {
  Handshake dialler = Dialler(Settings(), 1);
  Handshake listener = Listener(Settings(), 2);
  const Conversation recorded = Converse(&dialler, &listener);
  ASSERT_EQ(listener.state(), State::kDone);
  for (uint64_t seed = 3; seed < 103; ++seed) {
    Handshake next_listener = Listener(Settings(), seed);
    Feed(&next_listener, recorded.from_dialler);
    ASSERT_EQ(next_listener.state(), State::kRefused);
    ASSERT_EQ(next_listener.refusal(), RefusalKind::kWrongToken);
    Handshake next_dialler = Dialler(Settings(), seed);
    Feed(&next_dialler, recorded.from_listener);
    ASSERT_EQ(next_dialler.state(), State::kRefused);
    ASSERT_EQ(next_dialler.refusal(), RefusalKind::kWrongToken);
  }
}

// Somebody without the token uses one member against another: what a listener proves cannot be shown to a listener as
// a dialler's proof, and the reverse.
TEST(HandshakeTest, Reflected) {
  Handshake victim = Listener(Settings(), 2);
  Handshake dialler = Dialler(Settings(), 1);
  const std::string opening = dialler.TakeOutput();
  Feed(&victim, opening);
  const std::string challenge = victim.TakeOutput();
  const std::string proof = challenge.substr(challenge.size() - 32);
  Feed(&victim, Message(3, 7, proof));
  EXPECT_EQ(victim.refusal(), RefusalKind::kWrongToken);
  // The whole message back at its sender is out of turn.
  Handshake again = Listener(Settings(), 2);
  Feed(&again, opening);
  again.TakeOutput();
  Feed(&again, challenge);
  EXPECT_EQ(again.refusal(), RefusalKind::kMalformed);
  // The attacker opens with the victim's own nonce, taken from a second connection.
  Handshake first = Listener(Settings(), 5);
  Handshake second = Listener(Settings(), 6);
  Feed(&first, opening);
  const std::string nonce_of_first = first.TakeOutput().substr(20, 32);
  ByteWriter body;
  body.Raw(nonce_of_first);
  body.Bytes("blue");
  Feed(&second, Message(1, 7, body.view()));
  const std::string from_second = second.TakeOutput();
  Feed(&first, Message(3, 7, from_second.substr(from_second.size() - 32)));
  EXPECT_EQ(first.refusal(), RefusalKind::kWrongToken);
}

// Through somebody who carries the bytes from one TLS connection to another.
TEST(HandshakeTest, CarriedFromOneConnectionToAnother) {
  HandshakeSettings one = Settings();
  HandshakeSettings two = Settings();
  one.binding = "connection 1";
  two.binding = "connection 2";
  Handshake dialler = Dialler(one);
  Handshake listener = Listener(two);
  Converse(&dialler, &listener);
  EXPECT_EQ(dialler.refusal(), RefusalKind::kWrongToken);
  EXPECT_EQ(listener.refusal(), RefusalKind::kWrongToken);
  Handshake good_dialler = Dialler(one);
  Handshake good_listener = Listener(one);
  Converse(&good_dialler, &good_listener);
  EXPECT_EQ(good_dialler.state(), State::kDone);
}

TEST(HandshakeTest, Truncated) {
  Handshake dialler = Dialler();
  Handshake listener = Listener();
  const Conversation all = Converse(&dialler, &listener);
  for (size_t size = 0; size < all.from_listener.size(); ++size) {
    Handshake side = Dialler();
    side.TakeOutput();
    Feed(&side, all.from_listener.substr(0, size));
    ASSERT_EQ(side.state(), State::kRunning) << size;
    ASSERT_GT(side.wanted(), 0u);
    side.PeerClosed("");
    ASSERT_EQ(side.refusal(), RefusalKind::kClosed);
    ASSERT_EQ(side.peer_hello(), "");
  }
  for (size_t size = 0; size < all.from_dialler.size(); ++size) {
    Handshake side = Listener();
    Feed(&side, all.from_dialler.substr(0, size));
    ASSERT_EQ(side.state(), State::kRunning) << size;
  }
}

// Each bit of the conversation, changed on the way: never are both satisfied, and never is a hello taken that was not
// said.
TEST(HandshakeTest, EveryBitFlipped) {
  for (const bool to_listener : {false, true}) {
    size_t bytes = 0;
    {
      Handshake dialler = Dialler();
      Handshake listener = Listener();
      const Conversation all = Converse(&dialler, &listener);
      bytes = to_listener ? all.from_dialler.size() : all.from_listener.size();
    }
    for (size_t bit = 0; bit < bytes * 8; ++bit) {
      Handshake dialler = Dialler();
      Handshake listener = Listener();
      size_t position = 0;
      std::string rest_to_listener, rest_to_dialler;
      for (int i = 0; i < 6; ++i) {
        std::string a = dialler.TakeOutput();
        std::string b = listener.TakeOutput();
        std::string& changed = to_listener ? a : b;
        if (bit / 8 >= position && bit / 8 < position + changed.size()) {
          changed[bit / 8 - position] = static_cast<char>(changed[bit / 8 - position] ^ (1 << (bit % 8)));
        }
        position += changed.size();
        rest_to_listener = Feed(&listener, rest_to_listener + a);
        rest_to_dialler = Feed(&dialler, rest_to_dialler + b);
      }
      // The last message is the listener's; it cannot learn that it did not arrive.
      ASSERT_NE(to_listener ? listener.state() : dialler.state(), State::kDone) << "bit " << bit;
      ASSERT_NE(dialler.state(), State::kDone) << "bit " << bit;
      for (const Handshake* side : {&dialler, &listener}) {
        ASSERT_TRUE(side->peer_hello().empty() || side->peer_hello() == "I dial");
        if (side->state() == State::kRefused) {
          ASSERT_FALSE(side->error().message.empty());
        }
      }
    }
  }
}

// Nonsense of every sort: never accepted, never a crash, never more wanted than announced limits allow.
TEST(HandshakeTest, RandomBytes) {
  for (uint64_t seed = 1; seed <= 5000; ++seed) {
    Random random(seed);
    const Role role = random.Chance(50) ? Role::kDialler : Role::kListener;
    Handshake side = role == Role::kDialler ? Dialler(Settings(), seed) : Listener(Settings(), seed);
    Handshake good_dialler = Dialler();
    Handshake good_listener = Listener();
    const Conversation good = Converse(&good_dialler, &good_listener);
    const std::vector<std::string> parts = Split(good.from_dialler + good.from_listener);
    std::string bytes;
    while (bytes.size() < 400) {
      switch (random.Below(4)) {
        case 0:
          for (uint64_t i = random.Below(60); i > 0; --i) bytes += static_cast<char>(random.Next());
          break;
        case 1:
          bytes += parts[random.Below(parts.size())];
          break;
        case 2: {
          std::string part = parts[random.Below(parts.size())];
          part[random.Below(part.size())] = static_cast<char>(random.Next());
          bytes += part.substr(0, 1 + random.Below(part.size()));
          break;
        }
        default: {
          std::string body(random.Below(120), static_cast<char>(random.Next()));
          bytes += Message(static_cast<uint32_t>(random.Below(8)), 7, body);
        }
      }
    }
    std::string_view rest = bytes;
    while (!rest.empty() && side.wanted() > 0) {
      ASSERT_LE(side.wanted(), 200u) << "seed " << seed;
      const size_t size = std::min({rest.size(), side.wanted(), size_t{1} + random.Below(40)});
      side.Feed(rest.substr(0, size));
      rest.remove_prefix(size);
    }
    ASSERT_NE(side.state(), State::kDone) << "seed " << seed;
    ASSERT_EQ(side.peer_hello(), "");
    ASSERT_LE(side.TakeOutput().size(), 500u);
  }
}

}  // namespace
}  // namespace weft::core
