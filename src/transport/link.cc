#include "transport/link.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "os/entropy.h"
#include "os/socket.h"
#include "transport/link_listener.h"

namespace weft::core {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
// What one event may read before others get their turn; the loop reports the rest again.
constexpr size_t kReadBudget = 1 << 20;
// Small messages share a piece of the queue up to this size.
constexpr size_t kPieceBytes = 64 * 1024;
constexpr uint32_t kChunkBit = 1u << 31;
// How long and how much of what a refused peer still sends is read, so that the end of the connection does not overtake
// the reason (a reset would).
constexpr int64_t kLingerNs = 1'000'000'000;
constexpr size_t kLingerBytes = 256 * 1024;
// Encrypted bytes that wait for the socket.
constexpr size_t kMaxCipherBytes = 256 * 1024;
// Decrypted bytes that wait for a process.
constexpr size_t kMaxRelayBytes = 256 * 1024;
constexpr size_t kMagicBytes = 8;

std::string HowItEnded(const IoOutcome& outcome) {
  return outcome.error == 0 ? "closed by the peer" : strerror(outcome.error);
}

Status CheckSettings(const LinkSettings& settings, const std::string& hello) {
  if (settings.token.empty()) return Error{ErrorKind::kInvalid, "a link needs the cluster's token, and it is empty"};
  if (settings.cluster_id.size() > Handshake::kMaxClusterIdBytes) {
    return Error{ErrorKind::kInvalid, "a cluster id has at most 64 bytes"};
  }
  if (hello.size() > Handshake::kMaxHelloBytes) return Error{ErrorKind::kInvalid, "a hello has at most 64 kB"};
  if (settings.max_message_bytes >= kChunkBit) return Error{ErrorKind::kInvalid, "messages of 2 GB are too large"};
  return Status();
}

std::string Little(uint32_t value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); }

}  // namespace

Result<std::unique_ptr<Link>> Link::Dial(EventLoop& loop, const std::string& host, uint16_t port,
                                         const LinkSettings& settings, std::string hello, Handler& handler) {
  auto addresses = ResolveTcp(host, port);
  if (!addresses) return addresses.error();
  return Dial(loop, std::move(*addresses), settings, std::move(hello), handler);
}

Result<std::unique_ptr<Link>> Link::Dial(EventLoop& loop, std::vector<TcpAddress> addresses,
                                         const LinkSettings& settings, std::string hello, Handler& handler) {
  if (const Status valid = CheckSettings(settings, hello); !valid) return valid.error();
  if (addresses.empty()) return Error{ErrorKind::kInvalid, "there is no address to dial"};
  std::unique_ptr<Link> link(new Link(loop, settings, std::move(hello), &handler, nullptr));
  std::reverse(addresses.begin(), addresses.end());
  link->to_try_ = std::move(addresses);
  if (const Status begun = link->ConnectNext(); !begun) return begun.error();
  return link;
}

std::unique_ptr<Link> Link::Accept(EventLoop& loop, UniqueFd socket, std::string peer_address,
                                   const LinkSettings& settings, std::string hello, LinkListener& listener) {
  std::unique_ptr<Link> link(new Link(loop, settings, std::move(hello), nullptr, &listener));
  link->socket_ = std::move(socket);
  link->peer_address_ = std::move(peer_address);
  if (!link->Watch()) return nullptr;
  link->BeginHandshake();
  link->UpdateWatch();
  return link;
}

Link::Link(EventLoop& loop, const LinkSettings& settings, std::string hello, Handler* handler, LinkListener* listener)
    : loop_(loop), settings_(settings), hello_(std::move(hello)), handler_(handler), listener_(listener) {
  deadline_ns_ = NowNs() + settings_.handshake_timeout_ns;
}

Link::~Link() {
  *destroyed_ = true;
  Release();
}

std::string Link::local_address() const {
  const auto address = LocalTcpAddress(socket_.get());
  return address ? address.value().ToText() : "";
}

// Connecting.

Status Link::ConnectNext() {
  Error last{ErrorKind::kUnavailable, "there is no address to connect to"};
  while (!to_try_.empty()) {
    const TcpAddress address = to_try_.back();
    to_try_.pop_back();
    peer_address_ = address.ToText();
    auto socket = BeginConnectTcp(address);
    if (!socket) {
      last = socket.error();
      continue;
    }
    Release();
    socket_ = std::move(*socket);
    return Watch();
  }
  return last;
}

Status Link::Watch() {
  auto watch = loop_.Add(socket_.get(), state_ == State::kConnecting ? EPOLLOUT : EPOLLIN,
                         [this](uint32_t events) { HandleEvents(events); });
  if (!watch) return watch.error();
  watch_ = *watch;
  return Status();
}

void Link::UpdateWatch() {
  if (watch_ == 0 && relay_watch_ == 0) return;
  uint32_t events = 0;
  const bool to_send = !all_sent() || send_failed_;
  switch (state_) {
    case State::kConnecting:
      events = EPOLLOUT;
      break;
    case State::kOpen:
      if (!paused_ && stash_.empty()) events |= EPOLLIN;
      // An owner that was told that the queue is full is told when it no longer is, even if nothing is left to send.
      if (((to_send || was_full_) && !corked_) || send_failed_) events |= EPOLLOUT;
      break;
    case State::kRelaying:
      if (to_process_.size() < kMaxRelayBytes) events |= EPOLLIN;
      if (to_send) events |= EPOLLOUT;
      if (relay_watch_ != 0) {
        loop_.Modify(relay_watch_, (to_send ? 0u : EPOLLIN) | (to_process_.empty() ? 0u : EPOLLOUT));
      }
      break;
    case State::kClosing:
      events = EPOLLIN;
      if (to_send || !shut_down_) events |= EPOLLOUT;
      break;
    default:
      events = EPOLLIN;
      if (to_send) events |= EPOLLOUT;
  }
  if (watch_ != 0) loop_.Modify(watch_, events);
}

void Link::HandleEvents(uint32_t events) {
  const std::shared_ptr<const bool> destroyed = destroyed_;
  switch (state_) {
    case State::kConnecting:
      FinishConnecting();
      break;
    case State::kTls:
      DriveTls();
      break;
    case State::kHandshake:
      DriveHandshake();
      break;
    case State::kOpen:
      if ((events & EPOLLOUT) != 0 && !corked_) Flush();
      // An end of both directions is reported even while we are paused, and again and again.
      if ((events & (EPOLLERR | EPOLLHUP)) != 0 || send_failed_) paused_ = false;
      if (!send_failed_ && was_full_ && queued_bytes_ <= settings_.max_queued_bytes / 2) {
        was_full_ = false;
        handler_->LinkDrained(*this);
        if (*destroyed) return;
      }
      if (state_ == State::kOpen && ReadMessages() && send_failed_) {
        Fail(Error{ErrorKind::kGone, "the link with " + peer_address_ + " ended: nothing more can be sent"});
      }
      if (*destroyed) return;
      break;
    case State::kClosing:
      DriveClosing();
      break;
    case State::kRelaying:
      Relay((events & (EPOLLERR | EPOLLHUP)) != 0, false);
      break;
    case State::kLingering:
      Linger();
      break;
    case State::kClosed:
      break;
  }
  if (*destroyed) return;
  UpdateWatch();
}

void Link::FinishConnecting() {
  const int error = ConnectOutcome(socket_.get());
  if (error == 0) {
    BeginHandshake();
    if (state_ == State::kTls) return DriveTls();
    return DriveHandshake();
  }
  const std::string failed_address = peer_address_;
  if (!to_try_.empty() && ConnectNext()) return;
  nobody_listens_ = error == ECONNREFUSED;
  refusal_ = RefusalKind::kClosed;
  Fail(Error{ErrorKind::kGone,
             "cannot connect to " + failed_address + ": " + strerror(error) +
                 (error == ECONNREFUSED ? "; nothing listens there: is weft started, at this port?" : "")});
}

// Authenticating.

void Link::BeginHandshake() {
  if (settings_.tls != nullptr && tls_ == nullptr) {
    tls_ = std::make_unique<TlsSession>(settings_.tls, listener_ == nullptr);
    state_ = State::kTls;
    return;
  }
  HandshakeSettings settings{settings_.token, settings_.cluster_id, settings_.version, ""};
  if (tls_ != nullptr) settings.binding = tls_->Binding();
  Sha256Bytes nonce;
  FillWithEntropy(nonce);
  handshake_ =
      std::make_unique<Handshake>(listener_ == nullptr ? Handshake::Role::kDialler : Handshake::Role::kListener,
                                  std::move(settings), nonce, std::move(hello_), peer_address_);
  state_ = State::kHandshake;
}

void Link::DriveHandshake() {
  for (;;) {
    if (std::string output = handshake_->TakeOutput(); !output.empty()) QueueRaw(std::move(output));
    Flush();
    if (handshake_->state() == Handshake::State::kRefused) return EndHandshake();
    if (handshake_->state() == Handshake::State::kDone) {
      if (send_failed_) {
        refusal_ = RefusalKind::kClosed;
        return Fail(Error{ErrorKind::kGone, "no link with " + peer_address_ + ": the connection ended"});
      }
      if (queued_bytes_ == 0) EnterOpen();
      return;  // or when the rest has been sent
    }
    uint8_t buffer[4096];
    const IoOutcome outcome = ReadSome(buffer, std::min(handshake_->wanted(), sizeof buffer));
    if (outcome.kind == IoOutcome::kWouldBlock && !send_failed_) return;
    if (outcome.kind != IoOutcome::kDone) {
      handshake_->PeerClosed(tls_ != nullptr && !tls_->why().empty() ? tls_->why() : HowItEnded(outcome));
    } else {
      handshake_->Feed(std::string_view(reinterpret_cast<const char*>(buffer), outcome.bytes));
    }
  }
}

// Refused, by either side. The peer shall be able to read why, if we have told it.
void Link::EndHandshake() {
  refusal_ = handshake_->refusal();
  const Error why = handshake_->error();
  if (std::string output = handshake_->TakeOutput(); !output.empty()) QueueRaw(std::move(output));
  Flush();
  Fail(why);
}

void Link::EnterOpen() {
  state_ = State::kOpen;
  deadline_ns_ = INT64_MAX;
  last_heard_ns_ = last_said_ns_ = NowNs();
  peer_cluster_id_ = handshake_->peer_cluster_id();
  const std::unique_ptr<Handshake> done = std::move(handshake_);
  const std::shared_ptr<const bool> destroyed = destroyed_;
  if (listener_ != nullptr) {
    std::exchange(listener_, nullptr)->LinkAuthenticated(this, done->peer_hello());
    if (*destroyed || state_ != State::kOpen) return;
    WEFT_CHECK(handler_ != nullptr, "an accepted link gets a handler");
  } else {
    handler_->LinkReady(*this, done->peer_hello());
    if (*destroyed) return;
  }
  if (state_ == State::kOpen) ReadMessages();
}

// Receiving.

bool Link::ReadMessages() {
  const std::shared_ptr<const bool> destroyed = destroyed_;
  if (!stash_.empty() && !paused_) {
    const std::string stash = std::exchange(stash_, {});
    Parse(std::span(reinterpret_cast<const uint8_t*>(stash.data()), stash.size()));
    if (*destroyed) return false;
  }
  bool drained = false;
  size_t budget = kReadBudget;
  while (budget > 0 && state_ == State::kOpen && !paused_) {
    IoOutcome outcome;
    if (missing_ >= kReadBytes && target_ != nullptr) {
      // Large payloads are read straight into their place.
      outcome = ReadSome(target_, std::min(missing_, budget));
      if (outcome.kind == IoOutcome::kDone) {
        target_ += outcome.bytes;
        missing_ -= outcome.bytes;
        if (missing_ == 0) FinishPart();
      }
    } else {
      uint8_t buffer[kReadBytes];
      outcome = ReadSome(buffer, sizeof buffer);
      if (outcome.kind == IoOutcome::kDone) Parse(std::span(buffer, outcome.bytes));
    }
    if (*destroyed) return false;
    if (outcome.kind == IoOutcome::kWouldBlock) {
      drained = true;
      break;
    }
    if (outcome.kind == IoOutcome::kClosed) {
      if (state_ == State::kOpen) {
        Fail(Error{ErrorKind::kGone,
                   "the link with " + peer_address_ +
                       " ended: " + (tls_ != nullptr && !tls_->why().empty() ? tls_->why() : HowItEnded(outcome))});
      }
      return false;
    }
    budget -= std::min(budget, outcome.bytes);
  }
  if (budget != kReadBudget) last_heard_ns_ = NowNs();
  unread_ = tls_ != nullptr && !drained;
  return drained;
}

void Link::Parse(std::span<const uint8_t> bytes) {
  const std::shared_ptr<const bool> destroyed = destroyed_;
  while (!bytes.empty() && state_ == State::kOpen) {
    if (paused_) {
      stash_.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return;
    }
    // A message that has arrived whole is shown where it lies.
    if (stage_ == Stage::kBody && body_ == nullptr && bytes.size() >= missing_) {
      const std::string_view message(reinterpret_cast<const char*>(bytes.data()), missing_);
      bytes = bytes.subspan(missing_);
      Expect(Stage::kPrefix, prefix_, sizeof prefix_);
      handler_->LinkMessage(*this, message);
      if (*destroyed) return;
      continue;
    }
    if (stage_ == Stage::kBody && body_ == nullptr) {
      body_ = std::make_unique_for_overwrite<uint8_t[]>(missing_);
      target_ = body_.get();
    }
    const size_t part = std::min(missing_, bytes.size());
    if (target_ != nullptr) {
      memcpy(target_, bytes.data(), part);
      target_ += part;
    }
    missing_ -= part;
    bytes = bytes.subspan(part);
    if (missing_ == 0) FinishPart();
    if (*destroyed) return;
  }
}

void Link::Expect(Stage stage, uint8_t* target, size_t bytes) {
  stage_ = stage;
  target_ = target;
  missing_ = bytes;
}

// What was expected is there. May end or destroy the link.
void Link::FinishPart() {
  const std::shared_ptr<const bool> destroyed = destroyed_;
  uint32_t number;
  memcpy(&number, prefix_, sizeof number);
  switch (stage_) {
    case Stage::kPrefix: {
      const bool chunk = (number & kChunkBit) != 0;
      message_bytes_ = number & ~kChunkBit;
      if (message_bytes_ > settings_.max_message_bytes) {
        return Fail(Error{ErrorKind::kInvalid, "the link with " + peer_address_ + " ended: it announced a message of " +
                                                   std::to_string(message_bytes_) + " bytes, and the limit is " +
                                                   std::to_string(settings_.max_message_bytes)});
      }
      if (chunk) {
        Expect(Stage::kChunkPrefix, prefix_, sizeof prefix_);
      } else if (message_bytes_ == 0) {
        Expect(Stage::kPrefix, prefix_, sizeof prefix_);  // a sign of life
      } else {
        Expect(Stage::kBody, nullptr, message_bytes_);
      }
      return;
    }
    case Stage::kBody: {
      const std::unique_ptr<uint8_t[]> body = std::move(body_);
      Expect(Stage::kPrefix, prefix_, sizeof prefix_);
      handler_->LinkMessage(*this, std::string_view(reinterpret_cast<const char*>(body.get()), message_bytes_));
      return;
    }
    case Stage::kChunkPrefix:
      if (number == 0 || number > kMaxChunkHeaderBytes || number + sizeof number > message_bytes_) {
        return Fail(Error{ErrorKind::kInvalid, "the link with " + peer_address_ + " ended: it announced a chunk of " +
                                                   std::to_string(message_bytes_) + " bytes with a header of " +
                                                   std::to_string(number)});
      }
      chunk_header_.resize(number);
      Expect(Stage::kChunkHeader, reinterpret_cast<uint8_t*>(chunk_header_.data()), number);
      return;
    case Stage::kChunkHeader: {
      const size_t payload = message_bytes_ - sizeof number - chunk_header_.size();
      Expect(Stage::kChunkPayload, nullptr, payload);
      uint8_t* target = handler_->LinkChunkBegan(*this, chunk_header_, payload);
      if (*destroyed || state_ != State::kOpen) return;
      target_ = target;
      if (payload > 0) return;
      [[fallthrough]];
    }
    case Stage::kChunkPayload: {
      const std::string header = std::move(chunk_header_);
      chunk_header_.clear();
      Expect(Stage::kPrefix, prefix_, sizeof prefix_);
      handler_->LinkChunkEnded(*this, header);
      return;
    }
  }
}

void Link::DiscardChunk() {
  if (stage_ == Stage::kChunkPayload) target_ = nullptr;
}

void Link::PauseReading(bool paused) {
  paused_ = paused;
  UpdateWatch();
}

// Sending.

Link::SendOutcome Link::CheckRoom(size_t message_bytes) {
  if (state_ != State::kOpen || send_failed_) return SendOutcome::kClosed;
  if (message_bytes == 0 || message_bytes > settings_.max_message_bytes) return SendOutcome::kTooLarge;
  if (queued_bytes_ > 0 && queued_bytes_ + message_bytes > settings_.max_queued_bytes) {
    was_full_ = true;
    return SendOutcome::kFull;
  }
  return SendOutcome::kSent;
}

Link::SendOutcome Link::Send(std::string_view bytes) {
  if (const SendOutcome room = CheckRoom(bytes.size()); room != SendOutcome::kSent) return room;
  const bool idle = queued_bytes_ == 0;
  if (queue_.empty() || !queue_.back().payload.empty() || queue_.back().bytes.size() >= kPieceBytes) {
    queue_.emplace_back();
  }
  std::string& piece = queue_.back().bytes;
  piece += Little(static_cast<uint32_t>(bytes.size()));
  piece += bytes;
  queued_bytes_ += sizeof(uint32_t) + bytes.size();
  // If something waits already, the socket is full.
  if (idle && !corked_) Flush();
  UpdateWatch();
  return SendOutcome::kSent;
}

Link::SendOutcome Link::SendChunk(std::string_view header, std::span<const uint8_t> payload,
                                  std::shared_ptr<const void> keeper) {
  const size_t size = sizeof(uint32_t) + header.size() + payload.size();
  if (header.empty() || header.size() > kMaxChunkHeaderBytes) return SendOutcome::kTooLarge;
  if (const SendOutcome room = CheckRoom(size); room != SendOutcome::kSent) return room;
  const bool idle = queued_bytes_ == 0;
  if (queue_.empty() || !queue_.back().payload.empty()) queue_.emplace_back();
  Outgoing& piece = queue_.back();
  piece.bytes += Little(static_cast<uint32_t>(size) | kChunkBit);
  piece.bytes += Little(static_cast<uint32_t>(header.size()));
  piece.bytes += header;
  piece.payload = payload;
  piece.keeper = std::move(keeper);
  queued_bytes_ += sizeof(uint32_t) + size;
  if (idle && !corked_) Flush();
  UpdateWatch();
  return SendOutcome::kSent;
}

void Link::Cork(bool corked) {
  corked_ = corked;
  if (corked || state_ != State::kOpen) return;
  if (queued_bytes_ > 0) Flush();
  UpdateWatch();
}

void Link::QueueRaw(std::string bytes) {
  queued_bytes_ += bytes.size();
  queue_.emplace_back().bytes = std::move(bytes);
}

// Never calls back: a failure is told by the loop, which reports a socket that failed.
void Link::Flush() {
  if (send_failed_) return;
  const size_t before = queued_bytes_;
  const IoOutcome outcome = tls_ != nullptr && state_ != State::kConnecting ? FlushTls() : FlushPlain();
  if (queued_bytes_ != before && settings_.idle_timeout_ns > 0) last_said_ns_ = NowNs();
  if (outcome.kind == IoOutcome::kClosed) {
    send_failed_ = true;
    queue_.clear();
    queued_bytes_ = 0;
  }
}

IoOutcome Link::FlushPlain() {
  IoOutcome outcome;
  while (queued_bytes_ > 0) {
    iovec parts[32];
    size_t count = 0;
    for (const Outgoing& piece : queue_) {
      if (count + 2 > std::size(parts)) break;
      size_t skip = piece.sent;
      if (skip < piece.bytes.size()) {
        parts[count++] = {const_cast<char*>(piece.bytes.data()) + skip, piece.bytes.size() - skip};
        skip = 0;
      } else {
        skip -= piece.bytes.size();
      }
      if (skip < piece.payload.size()) {
        parts[count++] = {const_cast<uint8_t*>(piece.payload.data()) + skip, piece.payload.size() - skip};
      }
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      Advance(static_cast<size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {IoOutcome::kWouldBlock, 0, 0};
    return {IoOutcome::kClosed, 0, errno};
  }
  return outcome;
}

void Link::Advance(size_t sent) {
  queued_bytes_ -= sent;
  while (sent > 0) {
    Outgoing& piece = queue_.front();
    const size_t part = std::min(sent, piece.size() - piece.sent);
    piece.sent += part;
    sent -= part;
    if (piece.sent == piece.size()) queue_.pop_front();
  }
}

// TLS.

void Link::DriveTls() {
  for (;;) {
    Flush();
    const IoOutcome::Kind done = tls_->Establish();
    Flush();
    if (send_failed_ || done == IoOutcome::kClosed) {
      refusal_ = tls_->why().empty() ? RefusalKind::kClosed : RefusalKind::kTls;
      return Fail(Error{ErrorKind::kInvalid, "no link with " + peer_address_ + ": " +
                                                 (tls_->why().empty() ? "the connection ended" : tls_->why())});
    }
    if (done == IoOutcome::kDone) {
      BeginHandshake();
      return DriveHandshake();
    }
    const IoOutcome filled = FillTls();
    if (filled.kind == IoOutcome::kWouldBlock) return;
    if (filled.kind == IoOutcome::kClosed) {
      refusal_ = RefusalKind::kClosed;
      return Fail(Error{
          ErrorKind::kGone,
          "no link with " + peer_address_ + ": the connection ended during the TLS handshake: " + HowItEnded(filled)});
    }
    if (!peer_speaks_tls_ && !JudgeFirstBytes()) return;
  }
}

// What the peer says first tells whether it speaks TLS. If not, it is told so in what it does speak. False: that was
// all.
bool Link::JudgeFirstBytes() {
  const RefusalKind kind = ClassifyFirstBytes(first_bytes_);
  if (kind == RefusalKind::kTls) {
    peer_speaks_tls_ = true;
    tls_->Feed(std::exchange(first_bytes_, {}));
    return true;
  }
  if (kind == RefusalKind::kNone && first_bytes_.size() < kMagicBytes) return true;  // too few to tell
  tls_.reset();
  std::string why;
  if (kind == RefusalKind::kNone) {
    refusal_ = listener_ != nullptr ? RefusalKind::kTlsWanted : RefusalKind::kTlsNotWanted;
    why = "it speaks weft without TLS, and we want TLS: start all nodes of a cluster with the same --tls options";
    if (listener_ != nullptr) QueueRaw(EncodeRefusal(RefusalKind::kTlsWanted, settings_.version));
  } else if (kind == RefusalKind::kHttp) {
    refusal_ = kind;
    why = "it speaks HTTP: check the address and the port";
    if (listener_ != nullptr) QueueRaw(HttpAnswer());
  } else {
    refusal_ = RefusalKind::kNotWeft;
    why = "what it says is neither TLS nor weft's protocol: check the address and the port";
  }
  Fail(Error{ErrorKind::kInvalid, "no link with " + peer_address_ + ": " + why});
  return false;
}

// One buffer from the socket to the TLS session.
IoOutcome Link::FillTls() {
  uint8_t buffer[16 * 1024];
  const IoOutcome outcome = TryRecv(socket_.get(), buffer, sizeof buffer);
  if (outcome.kind == IoOutcome::kDone) {
    const std::string_view bytes(reinterpret_cast<const char*>(buffer), outcome.bytes);
    if (peer_speaks_tls_) {
      tls_->Feed(bytes);
    } else {
      first_bytes_ += bytes;
    }
  }
  return outcome;
}

IoOutcome Link::ReadSome(uint8_t* buffer, size_t size) {
  if (tls_ == nullptr) return TryRecv(socket_.get(), buffer, size);
  for (;;) {
    const IoOutcome outcome = tls_->Read(buffer, size);
    if (outcome.kind != IoOutcome::kWouldBlock) return outcome;
    const IoOutcome filled = FillTls();
    if (filled.kind != IoOutcome::kDone) return filled;
  }
}

IoOutcome Link::FlushTls() {
  for (;;) {
    while (state_ != State::kTls && queued_bytes_ > 0 && tls_->to_send().size() < kMaxCipherBytes) {
      const Outgoing& piece = queue_.front();
      std::span<const uint8_t> next =
          piece.sent < piece.bytes.size()
              ? std::span(reinterpret_cast<const uint8_t*>(piece.bytes.data()), piece.bytes.size()).subspan(piece.sent)
              : piece.payload.subspan(piece.sent - piece.bytes.size());
      next = next.subspan(0, std::min(next.size(), kPieceBytes));
      if (!tls_->Write(next)) return {IoOutcome::kClosed, 0, EPROTO};
      Advance(next.size());
    }
    const std::string_view cipher = tls_->to_send();
    if (cipher.empty()) return {IoOutcome::kDone, 0, 0};
    const IoOutcome outcome =
        TrySend(socket_.get(), std::span(reinterpret_cast<const uint8_t*>(cipher.data()), cipher.size()));
    if (outcome.kind != IoOutcome::kDone) return outcome;
    tls_->Sent(outcome.bytes);
  }
}

// Handing on.

Result<UniqueFd> Link::ReleaseSocket() {
  if (state_ != State::kOpen || queued_bytes_ > 0 || !stash_.empty() || stage_ != Stage::kPrefix ||
      missing_ != sizeof prefix_) {
    return Error{ErrorKind::kInvalid, "the socket of the link with " + peer_address_ +
                                          " cannot be given away: messages have been sent or received"};
  }
  if (tls_ != nullptr) {
    auto pair = StreamSocketPair(Blocking::kNo);
    if (!pair) return pair.error();
    auto watch = loop_.Add(pair->first.get(), EPOLLIN, [this](uint32_t events) {
      const std::shared_ptr<const bool> destroyed = destroyed_;
      Relay(false, (events & (EPOLLERR | EPOLLHUP)) != 0);
      if (!*destroyed) UpdateWatch();
    });
    if (!watch) return watch.error();
    relay_ = std::move(pair->first);
    relay_watch_ = *watch;
    paused_ = false;
    state_ = State::kRelaying;
    // Bytes of the channel may wait in the TLS session, where no event tells of them: the first writable socket does.
    loop_.Modify(watch_, EPOLLIN | EPOLLOUT);
    return std::move(pair->second);
  }
  loop_.Remove(std::exchange(watch_, 0));
  state_ = State::kClosed;
  return std::move(socket_);
}

// Moves what can be moved, both ways. A peer that has hung up would be reported again and again: its last bytes are
// taken in at once, and its descriptor is no longer watched.
void Link::Relay(bool wire_hung_up, bool process_hung_up) {
  PassToProcess();
  while (!wire_ended_ && (wire_hung_up || to_process_.size() < kMaxRelayBytes)) {
    uint8_t buffer[kReadBytes];
    const IoOutcome outcome = ReadSome(buffer, sizeof buffer);
    if (outcome.kind == IoOutcome::kWouldBlock) break;
    if (outcome.kind == IoOutcome::kClosed) {
      wire_ended_ = true;
      break;
    }
    if (!process_ended_) to_process_.append(reinterpret_cast<const char*>(buffer), outcome.bytes);
    PassToProcess();
  }
  Flush();
  while (!process_ended_ && !send_failed_ && (process_hung_up || all_sent())) {
    uint8_t buffer[kReadBytes];
    const IoOutcome outcome = TryRecv(relay_.get(), buffer, sizeof buffer);
    if (outcome.kind == IoOutcome::kWouldBlock) break;
    if (outcome.kind == IoOutcome::kClosed) {
      process_ended_ = true;
      break;
    }
    QueueRaw(std::string(reinterpret_cast<const char*>(buffer), outcome.bytes));
    Flush();
  }
  if (wire_ended_ || send_failed_) {
    loop_.Remove(std::exchange(watch_, 0));
    wire_ended_ = true;
    if (to_process_.empty() || process_ended_) {
      Fail(Error{ErrorKind::kGone, "the channel through " + peer_address_ + " ended at the other node"});
    }
  } else if (process_ended_) {
    loop_.Remove(std::exchange(relay_watch_, 0));
    to_process_.clear();
    if (!all_sent()) return;
    tls_->SayGoodbye();
    Flush();
    Fail(Error{ErrorKind::kGone, "the channel through " + peer_address_ + " ended at this node"});
  }
}

void Link::PassToProcess() {
  size_t sent = 0;
  while (sent < to_process_.size() && !process_ended_) {
    const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(to_process_.data()), to_process_.size());
    const IoOutcome outcome = TrySend(relay_.get(), bytes.subspan(sent));
    if (outcome.kind == IoOutcome::kWouldBlock) break;
    if (outcome.kind == IoOutcome::kClosed) process_ended_ = true;
    sent += outcome.bytes;
  }
  to_process_.erase(0, sent);
}

// Ending.

void Link::Close() {
  Release();
  state_ = State::kClosed;
}

void Link::CloseWhenSent() {
  if (state_ != State::kOpen) return;
  state_ = State::kClosing;
  corked_ = false;
  deadline_ns_ = NowNs() + settings_.handshake_timeout_ns;
  UpdateWatch();  // the loop reports a writable socket, and it goes on from there
}

// Sends the rest, says that this was all, and waits for the peer to end too: closing with unread bytes would be a
// reset, which may overtake what was sent.
void Link::DriveClosing() {
  Flush();
  bool over = send_failed_;
  if (!over && !shut_down_ && queued_bytes_ == 0) {
    if (tls_ != nullptr) {
      tls_->SayGoodbye();
      Flush();
    }
    if (all_sent()) {
      ::shutdown(socket_.get(), SHUT_WR);
      shut_down_ = true;
      deadline_ns_ = NowNs() + kLingerNs;
    }
  }
  size_t budget = kReadBudget;
  while (!over && budget > 0) {
    uint8_t buffer[16 * 1024];
    const IoOutcome outcome = TryRecv(socket_.get(), buffer, sizeof buffer);
    if (outcome.kind == IoOutcome::kWouldBlock) break;
    over = outcome.kind == IoOutcome::kClosed;
    budget -= std::min(budget, outcome.bytes);
  }
  if (over) Fail(Error{ErrorKind::kGone, "the link with " + peer_address_ + " was closed by us"});
}

void Link::Release() {
  loop_.Remove(std::exchange(watch_, 0));
  loop_.Remove(std::exchange(relay_watch_, 0));
  socket_.Reset();
  relay_.Reset();
  if (state_ != State::kConnecting) state_ = State::kClosed;
  queue_.clear();
  queued_bytes_ = 0;
}

// Over. A refused connection lingers at its listener; any other is closed. Tells the owner, which may destroy us.
void Link::Fail(Error why) {
  if (listener_ != nullptr) {
    state_ = State::kLingering;
    deadline_ns_ = NowNs() + kLingerNs;
    const std::shared_ptr<const bool> destroyed = destroyed_;
    listener_->LinkFailed(this, why);
    if (*destroyed) return;
    return Linger();
  }
  state_ = State::kClosed;
  Release();
  if (handler_ != nullptr) handler_->LinkClosed(*this, why);
}

void Link::Linger() {
  Flush();
  bool over = send_failed_ || refusal_ == RefusalKind::kClosed || refusal_ == RefusalKind::kTooSlow;
  if (!over && !shut_down_ && all_sent()) {
    shut_down_ = true;
    ::shutdown(socket_.get(), SHUT_WR);
  }
  while (!over) {
    uint8_t buffer[4096];
    const IoOutcome outcome = TryRecv(socket_.get(), buffer, sizeof buffer);
    if (outcome.kind == IoOutcome::kWouldBlock) break;
    lingered_bytes_ += outcome.bytes;
    over = outcome.kind == IoOutcome::kClosed || lingered_bytes_ > kLingerBytes;
  }
  if (over) listener_->LinkEnded(this);
}

// Time.

int64_t Link::NextDeadline() const {
  if (state_ == State::kClosed) return INT64_MAX;
  if (waits_for_turn()) return 0;
  int64_t next = deadline_ns_;
  if (state_ == State::kOpen && settings_.idle_timeout_ns > 0) {
    next = std::min({next, last_heard_ns_ + settings_.idle_timeout_ns, last_said_ns_ + settings_.idle_timeout_ns / 4});
  }
  return next;
}

void Link::Tick(int64_t now_ns) {
  if (now_ns < NextDeadline()) return;
  const std::shared_ptr<const bool> destroyed = destroyed_;
  if (now_ns >= deadline_ns_) {
    if (state_ == State::kLingering) return listener_->LinkEnded(this);
    if (state_ == State::kHandshake && handshake_->state() == Handshake::State::kRunning) {
      handshake_->TimedOut(settings_.handshake_timeout_ns);
      EndHandshake();
    } else if (state_ == State::kClosing) {
      Fail(Error{ErrorKind::kGone, "the link with " + peer_address_ + " was closed by us"});
    } else {
      refusal_ = RefusalKind::kTooSlow;
      Fail(Error{ErrorKind::kTimeout, "no link with " + peer_address_ + ": " +
                                          (state_ == State::kTls ? "TLS was not established" : "it did not answer") +
                                          " within " + std::to_string(settings_.handshake_timeout_ns / 1'000'000) +
                                          " ms"});
    }
    if (*destroyed) return;
  } else if (state_ == State::kOpen) {
    if (waits_for_turn()) ReadMessages();
    if (*destroyed) return;
    if (state_ == State::kOpen && settings_.idle_timeout_ns > 0) {
      // What has arrived and waits in the socket is a sign of life, even if we were too busy to read it.
      if (now_ns >= last_heard_ns_ + settings_.idle_timeout_ns && !paused_) ReadMessages();
      if (*destroyed) return;
      if (state_ == State::kOpen && now_ns >= last_heard_ns_ + settings_.idle_timeout_ns) {
        if (paused_) {
          last_heard_ns_ = now_ns;  // the owner does not read
        } else {
          Fail(Error{ErrorKind::kTimeout, "the link with " + peer_address_ + " ended: nothing was heard for " +
                                              std::to_string(settings_.idle_timeout_ns / 1'000'000) + " ms"});
          if (*destroyed) return;
        }
      }
    }
    if (state_ == State::kOpen && settings_.idle_timeout_ns > 0 &&
        now_ns >= last_said_ns_ + settings_.idle_timeout_ns / 4) {
      last_said_ns_ = now_ns;
      if (queued_bytes_ == 0 && !send_failed_) {
        QueueRaw(Little(0));
        Flush();
      }
    }
  }
  if (*destroyed) return;
  UpdateWatch();
}

}  // namespace weft::core
