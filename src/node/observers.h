// The way in for observers of a session: a unix socket with an abstract name, which is nothing on disk and gone with
// the daemon. Only programs of the same user, or root, are let in; they can ask and change nothing.
//
// Owned by NodeDaemon, on its loop thread. Knows connections; what is answered is NodeDaemon's business. Bounded: a new
// observer beyond kMaxObservers takes the place of the oldest, and one that does not read what it asked for is dropped.
// docs/decisions/0007-observers.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "os/event_loop.h"
#include "transport/message_stream.h"
#include "wire/messages.h"

namespace weft::core {

class Observers {
 public:
  // The question is an Observe, AskShape or RouteTo; of what is routed, the receiver must see that it is one.
  using Asked = std::function<void(uint64_t observer, Message& question)>;

  Observers(EventLoop& loop, Asked asked) : loop_(loop), asked_(std::move(asked)) {}
  ~Observers();
  // Listens from here on. If it fails, the session goes on without observers.
  Status Listen(const std::string& name);
  // To an observer that may be gone meanwhile: then nothing happens.
  void Send(uint64_t observer, const Message& message, std::vector<SharedFd> fds = {});
  bool Has(uint64_t observer) const { return connections_.contains(observer); }
  // What it asked cannot be: no answer is owed to it.
  void Close(uint64_t observer);

 private:
  struct Connection {
    std::unique_ptr<MessageStream> stream;
    EventLoop::WatchId watch = 0;
    bool greeted = false;
  };
  void OnConnect();
  void OnEvent(uint64_t observer);

  EventLoop& loop_;
  Asked asked_;
  UniqueFd listener_;
  EventLoop::WatchId listener_watch_ = 0;
  std::map<uint64_t, Connection> connections_;
  uint64_t next_ = 1;
};

}  // namespace weft::core
