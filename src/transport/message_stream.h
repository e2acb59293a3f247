// The control messages of wire/messages.h over a unix stream socket, with the descriptors that come along.
//
// A message on the wire: uint32 size of what follows, uint8 type, uint8 count of descriptors, the fields. Used by the
// node daemon for every process, and by a process for its daemon. Never blocks: the caller waits for readiness.
// One thread at a time.
//
// The peer is not trusted. Sizes are checked before anything is buffered, a message that does not decode, or comes with
// more or fewer descriptors than it says, breaks the stream for good, and unused descriptors are closed.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "os/fd.h"
#include "wire/messages.h"

namespace weft::core {

// A descriptor that several queued messages may carry; closed when the last of them is sent and the keeper lets go.
using SharedFd = std::shared_ptr<const UniqueFd>;
inline SharedFd ShareFd(UniqueFd fd) { return std::make_shared<const UniqueFd>(std::move(fd)); }

struct ReceivedMessage {
  Message message;
  std::vector<UniqueFd> fds;
};

class MessageStream {
 public:
  enum class State : uint8_t {
    kOpen,
    kClosed,  // the peer has closed, or the socket failed; what arrived before can still be taken
    kBroken,  // the peer sent what no correct peer sends; why() says what
  };

  explicit MessageStream(UniqueFd socket) : socket_(std::move(socket)) {}
  MessageStream(MessageStream&&) = default;
  MessageStream& operator=(MessageStream&&) = default;

  int fd() const { return socket_.get(); }
  State state() const { return state_; }
  const std::string& why() const { return why_; }

  // Takes at most one buffer of bytes from the socket. False if there are none now, or will never be any (state()).
  bool Receive();
  // The next whole message of the received bytes.
  std::optional<ReceivedMessage> Next();

  // Appends a message to the queue. Flush sends as much as the socket takes; false once it can never send again.
  void Queue(const Message& message, std::vector<SharedFd> fds = {});
  bool Flush();
  size_t queued_bytes() const { return queued_bytes_; }

 private:
  struct Outgoing {
    std::string bytes;
    size_t sent = 0;
    std::vector<SharedFd> fds;  // until the first byte is sent
  };

  void Break(std::string why);

  UniqueFd socket_;
  State state_ = State::kOpen;
  std::string why_;
  std::string incoming_;
  size_t consumed_ = 0;  // of incoming_
  std::deque<UniqueFd> incoming_fds_;
  std::deque<Outgoing> outgoing_;
  size_t queued_bytes_ = 0;
};

}  // namespace weft::core
