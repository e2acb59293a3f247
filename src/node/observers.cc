#include "node/observers.h"

#include <unistd.h>

#include "os/abstract_socket.h"

namespace weft::core {
namespace {

// More than anybody needs at a time; each may hold a few descriptors while it is answered.
constexpr size_t kMaxObservers = 8;
// The whole answer to one question may be this large: a report is at most 4 MB, and a node has few hundred processes.
constexpr size_t kMaxQueuedBytes = 512 << 20;

}  // namespace

Observers::~Observers() {
  while (!connections_.empty()) Close(connections_.begin()->first);
  if (listener_watch_ != 0) loop_.Remove(listener_watch_);
}

Status Observers::Listen(const std::string& name) {
  auto listener = ListenAsDaemon(name);
  if (!listener) return listener.error();
  listener_ = std::move(*listener);
  auto watch = loop_.Add(listener_.get(), EPOLLIN, [this](uint32_t) { OnConnect(); });
  if (!watch) return watch.error();
  listener_watch_ = *watch;
  return {};
}

void Observers::OnConnect() {
  // One per turn: a crowd at the door does not keep the daemon from its work.
  UniqueFd socket = AcceptAbstract(listener_.get());
  if (!socket) return;
  auto uid = PeerUid(socket.get());
  if (!uid || (*uid != ::geteuid() && *uid != 0)) return;
  if (connections_.size() >= kMaxObservers) Close(connections_.begin()->first);
  uint64_t number = next_++;
  Connection connection;
  connection.stream = std::make_unique<MessageStream>(std::move(socket));
  auto watch = loop_.Add(connection.stream->fd(), EPOLLIN, [this, number](uint32_t) { OnEvent(number); });
  if (!watch) return;
  connection.watch = *watch;
  connections_[number] = std::move(connection);
}

void Observers::OnEvent(uint64_t observer) {
  auto found = connections_.find(observer);
  if (found == connections_.end()) return;
  MessageStream& stream = *found->second.stream;
  if (!stream.Flush()) return Close(observer);
  stream.Receive();
  while (auto received = stream.Next()) {
    Message& question = received->message;
    if (!received->fds.empty()) return Close(observer);
    // Whose protocol is another one asks nothing else: each connection begins with Observe.
    if (auto* observe = std::get_if<Observe>(&question)) {
      if (observe->protocol != kProtocolVersion) return Close(observer);
      found->second.greeted = true;
    } else if (!found->second.greeted ||
               !(std::holds_alternative<AskShape>(question) || std::holds_alternative<RouteTo>(question))) {
      return Close(observer);
    }
    asked_(observer, question);
    if (!Has(observer)) return;
  }
  if (stream.state() != MessageStream::State::kOpen) return Close(observer);
  loop_.Modify(found->second.watch, stream.queued_bytes() > 0 ? EPOLLIN | EPOLLOUT : uint32_t{EPOLLIN});
}

void Observers::Send(uint64_t observer, const Message& message, std::vector<SharedFd> fds) {
  auto found = connections_.find(observer);
  if (found == connections_.end()) return;
  MessageStream& stream = *found->second.stream;
  stream.Queue(message, std::move(fds));
  if (!stream.Flush() || stream.queued_bytes() > kMaxQueuedBytes) return Close(observer);
  loop_.Modify(found->second.watch, stream.queued_bytes() > 0 ? EPOLLIN | EPOLLOUT : uint32_t{EPOLLIN});
}

void Observers::Close(uint64_t observer) {
  auto found = connections_.find(observer);
  if (found == connections_.end()) return;
  loop_.Remove(found->second.watch);
  connections_.erase(found);
}

}  // namespace weft::core
