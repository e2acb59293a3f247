#include "transport/handshake.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace weft::core {
namespace {

constexpr std::string_view kMagic = "weftlink";
constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = std::tuple_size_v<Sha256Bytes>;
// Enough to tell HTTP, TLS and ssh from each other.
constexpr size_t kTellingBytes = 4;

std::string Head(uint8_t kind, uint32_t version, uint32_t body_bytes) {
  ByteWriter writer;
  writer.Raw(kMagic);
  writer.Fixed(version);
  writer.Fixed(static_cast<uint32_t>(kind));
  writer.Fixed(body_bytes);
  return writer.Take();
}

// Names of clusters come from peers; a terminal or a log shows them.
std::string Printable(std::string_view text) {
  std::string out;
  for (const char c : text) out += c >= ' ' && c <= '~' ? c : '?';
  return out;
}

}  // namespace

RefusalKind ClassifyFirstBytes(std::string_view bytes) {
  const size_t known = std::min(bytes.size(), kMagic.size());
  if (bytes.substr(0, known) == kMagic.substr(0, known)) return RefusalKind::kNone;
  // A record of TLS: handshake or alert, then the major version, which has been 3 since SSL 3.
  if (bytes[0] == 0x16 || bytes[0] == 0x15) {
    if (bytes.size() < 2) return RefusalKind::kNone;
    if (bytes[1] == 0x03) return RefusalKind::kTls;
  }
  if (bytes.size() < kTellingBytes) return RefusalKind::kNone;
  static constexpr std::string_view kHttpStarts[] = {"GET ", "HEAD", "POST", "PUT ", "DELE", "CONN",
                                                     "OPTI", "TRAC", "PATC", "PRI ", "HTTP"};
  const std::string_view start = bytes.substr(0, kTellingBytes);
  for (const std::string_view http : kHttpStarts) {
    if (start == http) return RefusalKind::kHttp;
  }
  return RefusalKind::kNotWeft;
}

std::string EncodeRefusal(RefusalKind kind, uint32_t version) {
  ByteWriter body;
  body.Fixed(static_cast<uint8_t>(kind));
  body.Bytes({});
  return Head(6, version, static_cast<uint32_t>(body.size())) + body.view();
}

std::string HttpAnswer() {
  const std::string text = "This port is for weft's own protocol, not for HTTP.\n";
  return "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: " +
         std::to_string(text.size()) + "\r\n\r\n" + text;
}

Handshake::Handshake(Role role, HandshakeSettings settings, const Sha256Bytes& nonce, std::string hello,
                     std::string peer)
    : role_(role),
      settings_(std::move(settings)),
      nonce_(reinterpret_cast<const char*>(nonce.data()), nonce.size()),
      hello_(std::move(hello)),
      peer_(std::move(peer)),
      expected_(role == Role::kDialler ? Kind::kChallenge : Kind::kOpening) {
  WEFT_CHECK(!settings_.token.empty(), "a handshake has a token");
  WEFT_CHECK(settings_.cluster_id.size() <= kMaxClusterIdBytes, "a cluster id is short");
  WEFT_CHECK(hello_.size() <= kMaxHelloBytes, "a hello has at most 64 kB");
  if (role_ == Role::kDialler) {
    ByteWriter fields;
    fields.Raw(nonce_);
    fields.Bytes(settings_.cluster_id);
    Say(Kind::kOpening, fields.view());
  }
}

size_t Handshake::wanted() const {
  if (state_ != State::kRunning) return 0;
  return (input_.size() < kHeadBytes ? kHeadBytes : kHeadBytes + body_bytes_) - input_.size();
}

void Handshake::Feed(std::string_view bytes) {
  WEFT_CHECK(bytes.size() <= wanted(), "a handshake is fed what it wants and no more");
  if (bytes.empty()) return;
  input_ += bytes;
  if (!heard_) {
    HandleFirstBytes();
    if (state_ != State::kRunning) return;
  }
  if (input_.size() == kHeadBytes && body_bytes_ == 0 && !HandleHead()) return;
  if (input_.size() < kHeadBytes + body_bytes_) return;
  HandleMessage();
  input_.clear();
  body_bytes_ = 0;
}

void Handshake::HandleFirstBytes() {
  const RefusalKind kind = ClassifyFirstBytes(input_);
  switch (kind) {
    case RefusalKind::kNone:
      return;
    case RefusalKind::kHttp:
      Refuse(kind,
             role_ == Role::kListener ? "it speaks HTTP: a browser or a health check at the port of weft's own protocol"
                                      : "it speaks HTTP: that is a web server's port, not that of a weft node",
             false);
      if (role_ == Role::kListener) output_ += HttpAnswer();
      return;
    case RefusalKind::kTls:
      Refuse(kind, "it speaks TLS and we do not: start all nodes of a cluster with the same --tls options, or none",
             false);
      if (role_ == Role::kListener) output_ += EncodeRefusal(RefusalKind::kTlsNotWanted, settings_.version);
      return;
    default:
      Refuse(RefusalKind::kNotWeft, "what it says is not weft's protocol: check the address and the port", false);
  }
}

// False if that was the end.
bool Handshake::HandleHead() {
  ByteReader reader(input_);
  const std::string_view magic = reader.Raw(kMagic.size());
  const uint32_t version = reader.Fixed<uint32_t>();
  const uint32_t kind = reader.Fixed<uint32_t>();
  const uint32_t size = reader.Fixed<uint32_t>();
  if (magic != kMagic) {
    Refuse(RefusalKind::kMalformed, "it sent a message that does not begin as one");
    return false;
  }
  heard_ = true;
  const bool is_refusal = kind == static_cast<uint32_t>(Kind::kRefusal);
  if (version != settings_.version) {
    // A Refusal has to be understood in any version; but this is what it will say.
    Refuse(RefusalKind::kWrongVersion,
           "it speaks version " + std::to_string(version) + " of the protocol and we speak version " +
               std::to_string(settings_.version) + ": install the same weft on all nodes",
           !is_refusal);
    return false;
  }
  size_t min = 0;
  size_t max = 0;
  if (is_refusal) {
    min = 1 + 4;
    max = min + kMaxClusterIdBytes;
  } else if (kind == static_cast<uint32_t>(expected_)) {
    switch (expected_) {
      case Kind::kOpening:
        min = kNonceBytes + 4;
        max = min + kMaxClusterIdBytes;
        break;
      case Kind::kChallenge:
        min = kNonceBytes + 4 + kProofBytes;
        max = min + kMaxClusterIdBytes;
        break;
      case Kind::kProof:
        min = max = kProofBytes;
        break;
      default:
        min = kProofBytes;
        max = min + kMaxHelloBytes;
    }
  } else {
    const bool to_itself = kind == static_cast<uint32_t>(Kind::kOpening);
    Refuse(RefusalKind::kMalformed,
           to_itself ? "it dials as well: nobody listens at that address" : "it sent a message out of turn");
    return false;
  }
  if (size < min || size > max) {
    Refuse(RefusalKind::kMalformed, "it announced a message of " + std::to_string(size) + " bytes where " +
                                        std::to_string(min) + " to " + std::to_string(max) + " are possible");
    return false;
  }
  body_bytes_ = size;
  return true;
}

void Handshake::HandleMessage() {
  ByteReader head(std::string_view(input_).substr(kMagic.size() + sizeof(uint32_t)));
  if (head.Fixed<uint32_t>() == static_cast<uint32_t>(Kind::kRefusal)) return TakeRefusal();
  const std::string_view body = std::string_view(input_).substr(kHeadBytes);
  ByteReader reader(body);
  switch (expected_) {
    case Kind::kOpening:
    case Kind::kChallenge: {
      reader.Raw(kNonceBytes);
      const std::string_view cluster = reader.Bytes();
      const size_t rest = expected_ == Kind::kChallenge ? kProofBytes : 0;
      if (!reader.ok() || reader.remaining() != rest) {
        return Refuse(RefusalKind::kMalformed, "it sent a message that is not exactly its fields");
      }
      peer_cluster_id_ = cluster;
      // Only a dialler may not know yet which cluster it joins.
      const bool unknown = role_ == Role::kDialler ? settings_.cluster_id.empty() : peer_cluster_id_.empty();
      if (!unknown && peer_cluster_id_ != settings_.cluster_id) {
        return Refuse(RefusalKind::kWrongCluster, "it belongs to the cluster '" + Printable(peer_cluster_id_) +
                                                      "' and we belong to '" + settings_.cluster_id + "'");
      }
      if (expected_ == Kind::kOpening) {
        transcript_ += input_;
        ByteWriter fields;
        fields.Raw(nonce_);
        fields.Bytes(settings_.cluster_id);
        Say(Kind::kChallenge, fields.view());
        expected_ = Kind::kProof;
      } else {
        if (!CheckProof()) return;
        transcript_ += input_;
        Say(Kind::kProof, {});
        Say(Kind::kDiallerHello, hello_);
        expected_ = Kind::kListenerHello;
      }
      return;
    }
    case Kind::kProof:
      if (!CheckProof()) return;
      transcript_ += input_;
      expected_ = Kind::kDiallerHello;
      return;
    default:  // one of the hellos
      if (!CheckProof()) return;
      peer_hello_ = body.substr(0, body.size() - kProofBytes);
      transcript_ += input_;
      if (role_ == Role::kListener) Say(Kind::kListenerHello, hello_);
      state_ = State::kDone;
      transcript_ = {};
      hello_ = {};
  }
}

void Handshake::Say(Kind kind, std::string_view fields) {
  const bool proves = kind != Kind::kOpening;
  std::string message = Head(static_cast<uint8_t>(kind), settings_.version,
                             static_cast<uint32_t>(fields.size() + (proves ? kProofBytes : 0)));
  message += fields;
  if (proves) message += ProofOf(message);
  transcript_ += message;
  output_ += message;
}

// Of a message without its proof, and of everything before it.
std::string Handshake::ProofOf(std::string_view message) const {
  ByteWriter data;
  data.Raw("weft link\n");
  data.Bytes(settings_.binding);
  data.Raw(transcript_);
  data.Raw(message);
  const Sha256Bytes proof = HmacSha256(settings_.token, data.view());
  return std::string(reinterpret_cast<const char*>(proof.data()), proof.size());
}

// Of the message that has just arrived.
bool Handshake::CheckProof() {
  const std::string_view message = input_;
  const size_t covered = message.size() - kProofBytes;
  if (EqualInConstantTime(ProofOf(message.substr(0, covered)), message.substr(covered))) return true;
  if (expected_ == Kind::kDiallerHello || expected_ == Kind::kListenerHello) {
    // It had proved itself before, so it has the token.
    Refuse(RefusalKind::kMalformed, "what it said was changed on the way");
  } else {
    Refuse(RefusalKind::kWrongToken, WrongTokenText());
  }
  return false;
}

std::string Handshake::WrongTokenText() const {
  return "AuthenticationError: it does not have our token; all nodes of a cluster need the token that `weft start "
         "--head` "
         "wrote into its token file: copy that file (mode 0600) and name it with --token-file";
}

void Handshake::TakeRefusal() {
  ByteReader reader(std::string_view(input_).substr(kHeadBytes));
  const auto kind = static_cast<RefusalKind>(reader.Fixed<uint8_t>());
  const std::string cluster = Printable(reader.Bytes());
  if (!reader.ok() || !reader.AtEnd()) {
    return Refuse(RefusalKind::kMalformed, "it sent a message that is not exactly its fields", false);
  }
  switch (kind) {
    case RefusalKind::kWrongToken:
      return Refuse(kind, WrongTokenText(), false);
    case RefusalKind::kWrongCluster:
      return Refuse(kind, "it belongs to the cluster '" + cluster + "' and we belong to '" + settings_.cluster_id + "'",
                    false);
    case RefusalKind::kTlsWanted:
      return Refuse(kind, "it wants TLS: give the --tls options that the other nodes of the cluster have", false);
    case RefusalKind::kTlsNotWanted:
      return Refuse(kind, "it does not speak TLS: start all nodes of a cluster with the same --tls options, or none",
                    false);
    case RefusalKind::kBusy:
      return Refuse(kind, "it has too many unfinished connections; try again", false);
    default:
      return Refuse(RefusalKind::kMalformed, "it did not understand us: something between the two changes what is sent",
                    false);
  }
}

void Handshake::Refuse(RefusalKind kind, std::string why, bool tell) {
  state_ = State::kRefused;
  refusal_ = kind;
  why_ = std::move(why);
  peer_hello_.clear();
  if (!tell) return;
  ByteWriter body;
  body.Fixed(static_cast<uint8_t>(kind));
  body.Bytes(kind == RefusalKind::kWrongCluster ? std::string_view(settings_.cluster_id) : std::string_view());
  output_ += Head(static_cast<uint8_t>(Kind::kRefusal), settings_.version, static_cast<uint32_t>(body.size()));
  output_ += body.view();
}

void Handshake::TimedOut(int64_t after_ns) {
  if (state_ != State::kRunning) return;
  Refuse(RefusalKind::kTooSlow,
         "it has not finished the handshake within " + std::to_string(after_ns / 1'000'000) + " ms", false);
}

void Handshake::PeerClosed(const std::string& how) {
  if (state_ != State::kRunning) return;
  Refuse(RefusalKind::kClosed, "the connection ended during the handshake" + (how.empty() ? "" : ": " + how), false);
}

void Handshake::DroppedForOthers() {
  if (state_ != State::kRunning) return;
  Refuse(RefusalKind::kBusy, "too many connections had not finished the handshake; this was the oldest");
}

Error Handshake::error() const {
  ErrorKind kind = ErrorKind::kInvalid;
  if (refusal_ == RefusalKind::kTooSlow) kind = ErrorKind::kTimeout;
  if (refusal_ == RefusalKind::kClosed) kind = ErrorKind::kGone;
  if (refusal_ == RefusalKind::kBusy) kind = ErrorKind::kFull;
  return Error{kind, "no link with " + peer_ + ": " + why_};
}

}  // namespace weft::core
