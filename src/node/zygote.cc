#include "node/zygote.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os/socket.h"

namespace weft::core {
namespace {

constexpr size_t kKeptOutputBytes = 4096;  // a traceback's end

}  // namespace

Result<std::unique_ptr<Zygote>> Zygote::Start(ChildProgram program) {
  int pair[2], pipe[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return Error{ErrorKind::kUnavailable, std::string("cannot create a socket pair: ") + strerror(errno)};
  }
  auto zygote = std::make_unique<Zygote>();
  zygote->socket_ = UniqueFd(pair[0]);
  UniqueFd theirs(pair[1]);
  if (::pipe2(pipe, O_CLOEXEC) != 0) {
    return Error{ErrorKind::kUnavailable, std::string("cannot create a pipe: ") + strerror(errno)};
  }
  zygote->output_ = UniqueFd(pipe[0]);
  UniqueFd write_end(pipe[1]);
  if (Status status = SetNonblocking(zygote->socket_.get(), true); !status) return status.error();
  if (Status status = SetNonblocking(zygote->output_.get(), true); !status) return status.error();
  program.descriptors = {{theirs.get(), 3}, {write_end.get(), 1}, {write_end.get(), 2}};
  auto pid = StartProgram(program);
  if (!pid) return pid.error();
  zygote->pid_ = *pid;
  return zygote;
}

void Zygote::RequestFork(ProcessId worker, SharedFd socket, SharedFd standard_output, SharedFd standard_error) {
  requests_.push_back({worker, {std::move(socket), std::move(standard_output), std::move(standard_error)}});
}

bool Zygote::Flush() {
  while (!requests_.empty() && !closed_) {
    const auto& request = requests_.front();
    uint8_t packet[9] = {'F'};
    memcpy(packet + 1, &request.worker.value, 8);
    int fds[3] = {request.fds[0]->get(), request.fds[1]->get(), request.fds[2]->get()};
    IoOutcome outcome = TrySendWithFds(fd(), packet, fds);
    if (outcome.kind == IoOutcome::kWouldBlock) return true;
    // A zygote that is gone shows by the end of its socket; its requests fail by the end of theirs.
    requests_.pop_front();
  }
  return false;
}

std::optional<ZygoteEvent> Zygote::Next() {
  while (!closed_) {
    uint8_t packet[4096];
    ssize_t size = ::recv(fd(), packet, sizeof packet, MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
    if (size <= 0) {
      closed_ = true;
      requests_.clear();
      return std::nullopt;
    }
    ByteReader reader(std::string_view(reinterpret_cast<char*>(packet), static_cast<size_t>(size)));
    auto type = reader.Fixed<uint8_t>();
    if (type == 'W')
      return ZygoteWarning{std::string(reinterpret_cast<char*>(packet) + 1, static_cast<size_t>(size) - 1)};
    std::optional<ZygoteEvent> event;
    if (type == 'R') {
      event = ZygoteReady{reader.Fixed<int32_t>()};
    } else if (type == 'F') {
      auto worker = reader.Fixed<uint64_t>();
      event = WorkerForked{ProcessId{worker}, reader.Fixed<int32_t>()};
    } else if (type == 'X') {
      auto pid = reader.Fixed<int32_t>();
      event = WorkerExited{pid, reader.Fixed<int32_t>()};
    }
    if (event && reader.ok() && reader.AtEnd()) return event;
  }
  return std::nullopt;
}

bool Zygote::ReadOutput() {
  char buffer[4096];
  for (;;) {
    ssize_t size = ::read(output_.get(), buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (size == 0) return false;
    last_output_.append(buffer, static_cast<size_t>(size));
    if (last_output_.size() > kKeptOutputBytes) last_output_.erase(0, last_output_.size() - kKeptOutputBytes);
  }
}

}  // namespace weft::core
