// Accepts links from other node daemons: a listening socket, and the connections that have not authenticated yet.
//
// On the daemon's EventLoop, one thread; the owner calls Tick when NextDeadline has come, and does not destroy the
// listener in a callback. Strangers cannot lock other nodes out: at most max_pending connections are unauthenticated at
// a time, and the oldest is dropped for the next. Each has a deadline (LinkSettings::handshake_timeout_ns) and costs a
// few kilobytes at most.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "os/event_loop.h"
#include "os/fd.h"
#include "transport/link.h"

namespace weft::core {

class LinkListener {
 public:
  class AcceptHandler {
   public:
    // Authenticated: yours from here on. Call link->set_handler (or ReleaseSocket) before you return, or drop it.
    virtual void LinkAccepted(std::unique_ptr<Link> link, std::string_view peer_hello) = 0;
    // A peer was refused. Strangers on the network can cause thousands of these: limit what you log.
    virtual void LinkRefused(const std::string& /*peer_address*/, RefusalKind, const Error& /*why*/) {}

   protected:
    ~AcceptHandler() = default;
  };

  static constexpr size_t kMaxPending = 256;

  // An empty host is every address of this machine; port 0 picks one.
  static Result<std::unique_ptr<LinkListener>> Listen(EventLoop& loop, const std::string& host, uint16_t port,
                                                      const LinkSettings& settings, std::string hello,
                                                      AcceptHandler& handler, size_t max_pending = kMaxPending);
  ~LinkListener();
  LinkListener(const LinkListener&) = delete;
  LinkListener& operator=(const LinkListener&) = delete;

  uint16_t port() const { return address_.port(); }
  const TcpAddress& address() const { return address_; }
  // For connections that come from now on.
  void set_hello(std::string hello) { hello_ = std::move(hello); }
  size_t pending() const { return pending_.size(); }

  int64_t NextDeadline() const;
  void Tick(int64_t now_ns);

 private:
  friend class Link;
  LinkListener(EventLoop& loop, UniqueFd socket, const LinkSettings& settings, std::string hello,
               AcceptHandler& handler, size_t max_pending);

  void AcceptAll();
  bool DropOldest();
  // From a pending link, in one of its events.
  void LinkAuthenticated(Link* link, std::string_view peer_hello);
  void LinkFailed(Link* link, const Error& why);  // it may linger from now on
  void LinkEnded(Link* link);                     // nothing is left to do

  EventLoop& loop_;
  UniqueFd socket_;
  const LinkSettings settings_;
  std::string hello_;
  AcceptHandler& handler_;
  const size_t max_pending_;
  TcpAddress address_;
  EventLoop::WatchId watch_ = 0;
  int64_t accept_again_ns_ = INT64_MAX;       // while descriptors have run out
  std::list<std::unique_ptr<Link>> pending_;  // the oldest first; the lingering among them
};

}  // namespace weft::core
