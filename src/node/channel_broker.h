// Who shares a channel with whom, as one node sees it, and which channels with processes of other nodes are awaited or
// dialled again. Tasks and actors alike. Pure: calls in, answers out.
//
// Owned by NodeDaemon, on its loop thread, and by the simulator's daemon. A channel leads from a submitter to a worker;
// two processes may have one in each direction. Each side that lives here has a slot of its own doorbell for it.
//
// Between nodes it is the submitter's node that dials. The worker's asks it to (Want), or something has come that can
// be delivered only over that channel (Await): a grant or a change of an actor, which waits here until the channel is
// open (Opened) or cannot be had (NotReached). If changes of actors wait, one that failed is dialled again for a while:
// the other node may be short of something for a moment, or dead, which the head will say.
//
// What is open or awaited ends with its processes (Ended, EndedElsewhere). Makes no memory, dials nobody, sends
// nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "wire/ids.h"
#include "wire/messages.h"

namespace weft::core {

class ChannelBroker {
 public:
  struct Pair {
    ProcessId submitter, worker;
    auto operator<=>(const Pair&) const = default;
  };
  enum class Side : uint8_t { kSubmitter, kWorker };
  struct Slots {
    uint32_t submitter = 0;
    uint32_t worker = 0;
  };
  static constexpr int64_t kDialAgainNs = 200'000'000;
  static constexpr int64_t kReachNs = 15'000'000'000;  // from the first failure on

  explicit ChannelBroker(uint32_t num_slots) : num_slots_(num_slots) {}  // of one process

  // ---- channels that are open; the process on the side that is named lives here

  bool HasSubmitter(Pair pair) const;
  // Both live here. Nothing: a slot is missing.
  std::optional<Slots> Open(Pair pair);
  // The other side lives elsewhere, and there is a connection.
  std::optional<uint32_t> OpenOne(Pair pair, Side here);
  // For a channel between the process and its daemon, which ends with the process.
  std::optional<uint32_t> TakeSlot(ProcessId process);

  // ---- those that are awaited, from or to another node

  // The worker lives here. True: the submitter's node is to be asked to dial.
  bool Want(Pair pair);
  // The submitter lives here. True: the worker is to be dialled.
  bool Await(Pair pair);
  bool Await(Pair pair, Message message);
  bool IsAwaited(Pair pair) const { return awaited_.contains(pair); }
  // Nobody waits for it any more. Gives what was to be delivered, in the order in which it came.
  std::vector<Message> Opened(Pair pair);
  std::vector<Message> GivenUp(Pair pair) { return Opened(pair); }
  // A connection could not be had. Gives what is not to wait for another.
  std::vector<Message> NotReached(Pair pair, bool worker_is_dead, int64_t now_ns);
  // The watcher is told this change of an actor: what waits of the same actor for a channel to another worker is old.
  void Overtake(ProcessId watcher, const ActorChanged& change);
  // To be dialled again, each once.
  std::vector<Pair> Due(int64_t now_ns);
  int64_t next_dial_ns() const { return next_dial_ns_; }  // not after it is due; INT64_MAX: none

  // ---- ends

  void Ended(ProcessId process);  // which lived here
  void EndedElsewhere(ProcessId process);

 private:
  struct Ports {
    std::map<std::pair<ProcessId, Side>, uint32_t> slots;  // by the peer, and the side that this process is on
    uint32_t next_slot = 0;
    std::vector<uint32_t> freed_slots;  // the oldest first
  };
  struct Awaited {
    std::vector<Message> messages;      // to be delivered once it is open
    int64_t dial_again_ns = INT64_MAX;  // INT64_MAX: it is being dialled
    int64_t give_up_ns = 0;             // 0: it has not failed yet
  };

  void Close(ProcessId process, ProcessId peer, Side side);

  const uint32_t num_slots_;
  std::unordered_map<ProcessId, Ports> ports_;  // of those that live here
  std::set<Pair> wanted_;
  std::map<Pair, Awaited> awaited_;
  int64_t next_dial_ns_ = INT64_MAX;
};

}  // namespace weft::core
