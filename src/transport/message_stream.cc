#include "transport/message_stream.h"

#include <cstring>
#include <span>

#include "base/check.h"
#include "os/socket.h"

namespace weft::core {
namespace {

constexpr size_t kReceiveBytes = 64 << 10;
constexpr size_t kHeaderBytes = 6;
// Small messages are joined up to this size, so that a burst costs few system calls.
constexpr size_t kJoinBytes = 32 << 10;
// No message of ours has more than two; what is beyond a few messages' worth was not sent by us.
constexpr size_t kMaxWaitingFds = 64;

}  // namespace

void MessageStream::Break(std::string why) {
  state_ = State::kBroken;
  why_ = std::move(why);
  incoming_.clear();
  incoming_.shrink_to_fit();
  consumed_ = 0;
  incoming_fds_.clear();
}

bool MessageStream::Receive() {
  if (state_ != State::kOpen) return false;
  uint8_t buffer[kReceiveBytes];
  std::vector<UniqueFd> fds;
  IoOutcome outcome = TryRecvWithFds(fd(), buffer, sizeof buffer, &fds);
  if (outcome.kind == IoOutcome::kWouldBlock) return false;
  if (outcome.kind == IoOutcome::kClosed) {
    state_ = State::kClosed;
    if (outcome.error != 0) why_ = strerror(outcome.error);
    return false;
  }
  if (consumed_ == incoming_.size()) {
    incoming_.clear();
    consumed_ = 0;
  } else if (consumed_ > kReceiveBytes) {
    incoming_.erase(0, consumed_);
    consumed_ = 0;
  }
  incoming_.append(reinterpret_cast<const char*>(buffer), outcome.bytes);
  for (auto& fd : fds) incoming_fds_.push_back(std::move(fd));
  if (incoming_fds_.size() > kMaxWaitingFds) {
    Break("sent descriptors that belong to no message");
    return false;
  }
  return true;
}

std::optional<ReceivedMessage> MessageStream::Next() {
  if (state_ == State::kBroken) return std::nullopt;
  std::string_view rest = std::string_view(incoming_).substr(consumed_);
  if (rest.size() < kHeaderBytes) {
    if (rest.empty() && !incoming_fds_.empty()) Break("sent descriptors that belong to no message");
    return std::nullopt;
  }
  uint32_t size;
  std::memcpy(&size, rest.data(), sizeof size);
  if (size < 2 || size > kMaxMessageBytes) {
    Break("sent a message of " + std::to_string(size) + " bytes");
    return std::nullopt;
  }
  if (rest.size() < sizeof size + size) return std::nullopt;
  auto type = static_cast<uint8_t>(rest[4]);
  auto fd_count = static_cast<uint8_t>(rest[5]);
  // Decode wants the type and the fields next to each other: the type takes the place of the descriptor count.
  incoming_[consumed_ + 5] = static_cast<char>(type);
  ReceivedMessage received{Decode(std::string_view(incoming_).substr(consumed_ + 5, size - 1)), {}};
  consumed_ += sizeof size + size;
  if (std::holds_alternative<std::monostate>(received.message)) {
    Break("sent a message of type " + std::to_string(type) + " that cannot be decoded");
    return std::nullopt;
  }
  if (fd_count > incoming_fds_.size()) {
    Break("announced descriptors that did not come");
    return std::nullopt;
  }
  for (; fd_count > 0; --fd_count) {
    received.fds.push_back(std::move(incoming_fds_.front()));
    incoming_fds_.pop_front();
  }
  return received;
}

void MessageStream::Queue(const Message& message, std::vector<SharedFd> fds) {
  if (state_ != State::kOpen) return;
  WEFT_CHECK(fds.size() <= kMaxFdsPerMessage, "too many descriptors for one message");
  std::string encoded = Encode(message);
  auto size = static_cast<uint32_t>(encoded.size() + 1);
  WEFT_CHECK(size <= kMaxMessageBytes, "a message of ours is too long");
  char header[kHeaderBytes];
  std::memcpy(header, &size, sizeof size);
  header[4] = encoded[0];
  header[5] = static_cast<char>(fds.size());
  bool join = fds.empty() && !outgoing_.empty() && outgoing_.back().bytes.size() < kJoinBytes;
  if (!join) outgoing_.emplace_back();
  auto& last = outgoing_.back();
  last.bytes.append(header, sizeof header);
  last.bytes.append(encoded, 1);
  if (!fds.empty()) last.fds = std::move(fds);
  queued_bytes_ += sizeof header + encoded.size() - 1;
}

bool MessageStream::Flush() {
  while (!outgoing_.empty()) {
    if (state_ != State::kOpen) return false;
    auto& first = outgoing_.front();
    std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(first.bytes.data()) + first.sent,
                                   first.bytes.size() - first.sent);
    int fds[kMaxFdsPerMessage];
    size_t fd_count = 0;
    for (const auto& fd : first.fds) fds[fd_count++] = fd->get();
    IoOutcome outcome = TrySendWithFds(fd(), bytes, std::span<const int>(fds, fd_count));
    if (outcome.kind == IoOutcome::kWouldBlock) return true;
    if (outcome.kind == IoOutcome::kClosed) {
      // What the peer had sent before it went is still to be read: the state changes when reading says so.
      outgoing_.clear();
      queued_bytes_ = 0;
      return false;
    }
    first.fds.clear();
    first.sent += outcome.bytes;
    queued_bytes_ -= outcome.bytes;
    if (first.sent == first.bytes.size()) outgoing_.pop_front();
  }
  return true;
}

}  // namespace weft::core
