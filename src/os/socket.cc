#include "os/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <string>

#include "base/check.h"

namespace weft::core {
namespace {

Error SystemError(const char* what, int code) {
  return Error{ErrorKind::kUnavailable, std::string(what) + ": " + strerror(code)};
}

Error PeerGone(int code) {
  return Error{ErrorKind::kGone,
               std::string("the peer has closed the socket") + (code != 0 ? std::string(": ") + strerror(code) : "")};
}

IoOutcome Failed(int code) {
  if (code == EAGAIN || code == EWOULDBLOCK) return {IoOutcome::kWouldBlock, 0, 0};
  return {IoOutcome::kClosed, 0, code};
}

// The control buffer must be aligned like the header that stands at its start.
struct alignas(cmsghdr) FdControl {
  char bytes[CMSG_SPACE(kMaxFdsPerMessage * sizeof(int))];
};

IoOutcome SendMessage(int socket, std::span<const uint8_t> bytes, std::span<const int> fds, int flags) {
  WEFT_CHECK(fds.size() <= kMaxFdsPerMessage, "too many descriptors for one message");
  WEFT_CHECK(!bytes.empty() || fds.empty(), "descriptors need a byte to travel with");
  iovec part{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  FdControl control;
  if (!fds.empty()) {
    memset(&control, 0, sizeof control);
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  for (;;) {
    const ssize_t sent = ::sendmsg(socket, &message, flags | MSG_NOSIGNAL);
    if (sent >= 0) return {IoOutcome::kDone, static_cast<size_t>(sent), 0};
    if (errno != EINTR) return Failed(errno);
  }
}

IoOutcome RecvMessage(int socket, uint8_t* buffer, size_t size, std::vector<UniqueFd>* fds, int flags) {
  iovec part{buffer, size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  FdControl control;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  ssize_t received;
  do {
    received = ::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return Failed(errno);
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      fds->emplace_back(fd);
    }
  }
  // Descriptors were cut off: more than any of our messages has, or we are out of descriptors. The stream can no
  // longer be understood.
  if ((message.msg_flags & MSG_CTRUNC) != 0) return {IoOutcome::kClosed, 0, EMFILE};
  if (received == 0) return {IoOutcome::kClosed, 0, 0};
  return {IoOutcome::kDone, static_cast<size_t>(received), 0};
}

}  // namespace

Result<std::pair<UniqueFd, UniqueFd>> StreamSocketPair(Blocking blocking) {
  int fds[2];
  const int type = SOCK_STREAM | SOCK_CLOEXEC | (blocking == Blocking::kNo ? SOCK_NONBLOCK : 0);
  if (::socketpair(AF_UNIX, type, 0, fds) != 0) return SystemError("cannot create a socket pair", errno);
  return std::pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

Result<std::pair<UniqueFd, UniqueFd>> LoopbackTcpPair() {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* at = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  if (!listener || ::bind(listener.get(), at, size) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), at, &size) != 0) {
    return SystemError("cannot listen on the loopback interface", errno);
  }
  UniqueFd first(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!first || ::connect(first.get(), at, size) != 0) return SystemError("cannot connect to ourselves", errno);
  // Another process may have been faster: the accepted connection must be the one that we made.
  sockaddr_in own{}, other{};
  socklen_t own_size = sizeof own, other_size = sizeof other;
  ::getsockname(first.get(), reinterpret_cast<sockaddr*>(&own), &own_size);
  UniqueFd second(
      ::accept4(listener.get(), reinterpret_cast<sockaddr*>(&other), &other_size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!second || own.sin_port != other.sin_port) return SystemError("cannot accept our own connection", errno);
  const int on = 1;
  for (const UniqueFd* socket : {&first, &second}) {
    ::setsockopt(socket->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  if (auto status = SetNonblocking(first.get(), true); !status.ok()) return status.error();
  return std::pair(std::move(first), std::move(second));
}

Status SetNonblocking(int fd, bool nonblocking) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return SystemError("cannot read the flags of a descriptor", errno);
  const int wanted = nonblocking ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
  if (wanted != flags && ::fcntl(fd, F_SETFL, wanted) != 0) return SystemError("cannot change a descriptor", errno);
  return Status();
}

Status SendWithFds(int socket, std::string_view bytes, std::span<const int> fds) {
  std::span<const uint8_t> rest(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  do {
    const IoOutcome outcome = SendMessage(socket, rest, fds, 0);
    if (outcome.kind == IoOutcome::kWouldBlock) return Error{ErrorKind::kTimeout, "the socket's buffer is full"};
    if (outcome.kind == IoOutcome::kClosed) return PeerGone(outcome.error);
    rest = rest.subspan(outcome.bytes);
    fds = {};
  } while (!rest.empty());
  return Status();
}

Result<size_t> RecvWithFds(int socket, uint8_t* buffer, size_t size, std::vector<UniqueFd>* fds) {
  const IoOutcome outcome = RecvMessage(socket, buffer, size, fds, 0);
  if (outcome.kind == IoOutcome::kWouldBlock) return Error{ErrorKind::kTimeout, "nothing has arrived"};
  if (outcome.kind == IoOutcome::kDone) return outcome.bytes;
  if (outcome.error != 0) return PeerGone(outcome.error);
  return size_t{0};
}

IoOutcome TrySend(int socket, std::span<const uint8_t> bytes) { return SendMessage(socket, bytes, {}, MSG_DONTWAIT); }

IoOutcome TrySendWithFds(int socket, std::span<const uint8_t> bytes, std::span<const int> fds) {
  return SendMessage(socket, bytes, fds, MSG_DONTWAIT);
}

IoOutcome TryRecv(int socket, uint8_t* buffer, size_t size) {
  for (;;) {
    const ssize_t received = ::recv(socket, buffer, size, MSG_DONTWAIT);
    if (received > 0) return {IoOutcome::kDone, static_cast<size_t>(received), 0};
    if (received == 0) return {IoOutcome::kClosed, 0, 0};
    if (errno != EINTR) return Failed(errno);
  }
}

IoOutcome TryRecvWithFds(int socket, uint8_t* buffer, size_t size, std::vector<UniqueFd>* fds) {
  return RecvMessage(socket, buffer, size, fds, MSG_DONTWAIT);
}

}  // namespace weft::core
