// Stream sockets: pairs, bytes, and descriptors that travel with bytes (unix sockets only).
//
// The first two functions block and are for setting up; the Try functions never block and are for event loops. No
// call raises SIGPIPE. Received descriptors are close-on-exec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "os/fd.h"

namespace weft::core {

// More descriptors in one message than weft needs; the kernel's own limit is 253.
inline constexpr size_t kMaxFdsPerMessage = 32;

enum class Blocking : uint8_t { kYes, kNo };

// Two connected unix stream sockets, close-on-exec.
Result<std::pair<UniqueFd, UniqueFd>> StreamSocketPair(Blocking blocking = Blocking::kYes);

// Two connected TCP sockets of the loopback interface, non-blocking, without delay, close-on-exec.
Result<std::pair<UniqueFd, UniqueFd>> LoopbackTcpPair();

Status SetNonblocking(int fd, bool nonblocking);

// Sends all bytes, and the descriptors with the first of them. At least one byte must be sent.
Status SendWithFds(int socket, std::string_view bytes, std::span<const int> fds);

// Receives at least one byte and at most `size`, and appends the descriptors that came with them. 0 means that the
// peer has closed.
Result<size_t> RecvWithFds(int socket, uint8_t* buffer, size_t size, std::vector<UniqueFd>* fds);

struct IoOutcome {
  enum Kind : uint8_t { kDone, kWouldBlock, kClosed };
  Kind kind = kDone;
  size_t bytes = 0;  // moved, if kDone
  int error = 0;     // why it is kClosed; 0 if the peer closed normally
};

// One attempt to move bytes; part of them may have been moved. Any error other than "not now" is reported as kClosed:
// the remedy is the same, to drop the connection. If part was sent, all descriptors were.
IoOutcome TrySend(int socket, std::span<const uint8_t> bytes);
IoOutcome TrySendWithFds(int socket, std::span<const uint8_t> bytes, std::span<const int> fds);
IoOutcome TryRecv(int socket, uint8_t* buffer, size_t size);
IoOutcome TryRecvWithFds(int socket, uint8_t* buffer, size_t size, std::vector<UniqueFd>* fds);

}  // namespace weft::core
