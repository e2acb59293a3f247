#include "transport/link_listener.h"

#include <errno.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "os/tcp.h"

namespace weft::core {
namespace {

// How long connections wait in the kernel's queue while descriptors have run out.
constexpr int64_t kPauseNs = 100'000'000;
// Accepted per event, so that a flood does not keep the loop from its work.
constexpr int kAcceptsPerEvent = 64;

}  // namespace

Result<std::unique_ptr<LinkListener>> LinkListener::Listen(EventLoop& loop, const std::string& host, uint16_t port,
                                                           const LinkSettings& settings, std::string hello,
                                                           AcceptHandler& handler, size_t max_pending) {
  if (settings.token.empty()) return Error{ErrorKind::kInvalid, "a link needs the cluster's token, and it is empty"};
  if (settings.cluster_id.empty() || settings.cluster_id.size() > Handshake::kMaxClusterIdBytes) {
    return Error{ErrorKind::kInvalid, "the id of a cluster that listens has 1 to 64 bytes"};
  }
  if (hello.size() > Handshake::kMaxHelloBytes) return Error{ErrorKind::kInvalid, "a hello has at most 64 kB"};
  auto socket = ListenTcp(host, port);
  if (!socket) return socket.error();
  auto address = LocalTcpAddress(socket->get());
  if (!address) return address.error();
  std::unique_ptr<LinkListener> listener(new LinkListener(loop, std::move(*socket), settings, std::move(hello), handler,
                                                          std::max<size_t>(max_pending, 1)));
  listener->address_ = *address;
  auto watch = loop.Add(listener->socket_.get(), EPOLLIN, [self = listener.get()](uint32_t) { self->AcceptAll(); });
  if (!watch) return watch.error();
  listener->watch_ = *watch;
  return listener;
}

LinkListener::LinkListener(EventLoop& loop, UniqueFd socket, const LinkSettings& settings, std::string hello,
                           AcceptHandler& handler, size_t max_pending)
    : loop_(loop),
      socket_(std::move(socket)),
      settings_(settings),
      hello_(std::move(hello)),
      handler_(handler),
      max_pending_(max_pending) {}

LinkListener::~LinkListener() { loop_.Remove(watch_); }

void LinkListener::AcceptAll() {
  for (int i = 0; i < kAcceptsPerEvent; ++i) {
    int error = 0;
    UniqueFd fd = AcceptTcp(socket_.get(), &error);
    if (!fd) {
      if (error == EAGAIN || error == EWOULDBLOCK) return;
      if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
        // Strangers make room first. If there are none, the loop must not turn on a queue that it cannot empty.
        if (DropOldest()) continue;
        loop_.Modify(watch_, 0);
        accept_again_ns_ = NowNs() + kPauseNs;
        return;
      }
      continue;  // that one was gone before we came
    }
    while (pending_.size() >= max_pending_ && DropOldest()) {
    }
    const auto peer = PeerTcpAddress(fd.get());
    if (!peer) continue;
    auto link = Link::Accept(loop_, std::move(fd), peer.value().ToText(), settings_, hello_, *this);
    if (link != nullptr) pending_.push_back(std::move(link));
  }
}

bool LinkListener::DropOldest() {
  if (pending_.empty()) return false;
  const std::unique_ptr<Link> oldest = std::move(pending_.front());
  pending_.pop_front();
  // One that lingers has been told of already.
  if (oldest->state_ == Link::State::kHandshake) {
    oldest->handshake_->DroppedForOthers();
    oldest->QueueRaw(oldest->handshake_->TakeOutput());
    oldest->Flush();
    handler_.LinkRefused(oldest->peer_address_, RefusalKind::kBusy, oldest->handshake_->error());
  } else if (oldest->state_ == Link::State::kTls) {
    handler_.LinkRefused(oldest->peer_address_, RefusalKind::kBusy,
                         Error{ErrorKind::kFull, "no link with " + oldest->peer_address_ +
                                                     ": too many connections had not finished the handshake; this was "
                                                     "the oldest"});
  }
  return true;
}

void LinkListener::LinkAuthenticated(Link* link, std::string_view peer_hello) {
  const auto found =
      std::find_if(pending_.begin(), pending_.end(), [&](const auto& each) { return each.get() == link; });
  WEFT_CHECK(found != pending_.end(), "a link that is accepted was pending");
  std::unique_ptr<Link> accepted = std::move(*found);
  pending_.erase(found);
  handler_.LinkAccepted(std::move(accepted), peer_hello);
}

void LinkListener::LinkFailed(Link* link, const Error& why) {
  handler_.LinkRefused(link->peer_address_, link->refusal_, why);
}

void LinkListener::LinkEnded(Link* link) {
  const auto found =
      std::find_if(pending_.begin(), pending_.end(), [&](const auto& each) { return each.get() == link; });
  if (found != pending_.end()) pending_.erase(found);
}

int64_t LinkListener::NextDeadline() const {
  int64_t next = accept_again_ns_;
  for (const auto& link : pending_) next = std::min(next, link->NextDeadline());
  return next;
}

void LinkListener::Tick(int64_t now_ns) {
  if (now_ns >= accept_again_ns_) {
    accept_again_ns_ = INT64_MAX;
    loop_.Modify(watch_, EPOLLIN);
  }
  // A link may leave the list in its Tick, but no other does.
  for (auto each = pending_.begin(); each != pending_.end();) {
    Link* link = (each++)->get();
    link->Tick(now_ns);
  }
}

}  // namespace weft::core
