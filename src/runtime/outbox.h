// What a process is about to send to its daemon. Pure: messages in, the same messages out, in the order in which the
// daemon must take them.
//
// Called with the lock of the Runtime, and by the simulator's process; any() on any thread. Routed messages go first: a
// borrower must be registered before the lease of the worker concerned is returned. If the process dies in between,
// the registration dies with it and is forgotten; after the return nothing would take it back. Freed objects go last.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "os/fd.h"
#include "wire/ids.h"
#include "wire/messages.h"
#include "wire/peer_message.h"

namespace weft::core {

class Outbox {
 public:
  using Entry = std::pair<Message, std::vector<UniqueFd>>;

  void Send(Message message, std::vector<UniqueFd> fds = {});
  void Route(ProcessId to, const PeerMessage& message);
  void Free(const Location& location);
  void EndHold(ObjectId orphan);

  // Something waits to be sent. Relaxed: the thread that put it there sees it.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // Before Take: f(to, payload) may change what is routed.
  template <class F>
  void ForEachRouted(F&& f) {
    for (auto& [to, payload] : routed_) f(to, payload);
  }
  std::vector<Entry> Take();

  // Messages to one process travel together up to this size: fewer wake-ups, and no frame that fills the socket.
  size_t gather_bytes = 64 * 1024;

 private:
  std::vector<Entry> messages_;
  std::vector<std::pair<ProcessId, std::string>> routed_;
  std::vector<Location> freed_;
  std::atomic<bool> any_{false};
};

}  // namespace weft::core
