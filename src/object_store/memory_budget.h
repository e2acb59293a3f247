// Decides how much of the object store's memory each process may use. Pure: events in, actions out.
//
// Called by the node daemon, on its loop thread. Actions are performed by the caller, in order. Processes reserve
// before they take pages and release after they gave them back, so the sum of reservations bounds what the store
// takes from the machine. What a dead process leaves behind (sealed objects) stays counted until it is freed.
//
// A request that fits is granted at once, unless others wait: requests are served strictly in order, so that small ones
// do not starve a large one. While a request does not fit, all other processes are asked to trim, again and again; it
// is refused after `wait_ns`. Every request ends in exactly one Grant or Refuse, unless its process died.
//
// Does not read the clock, touch memory, or know what the reservations are used for.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "wire/ids.h"

namespace weft::core {

class MemoryBudget {
 public:
  struct Options {
    uint64_t capacity_bytes = 0;
    int64_t wait_ns = 5'000'000'000;     // how long a request may wait for others to make room
    int64_t ask_again_ns = 250'000'000;  // objects are dropped meanwhile, so the others are asked again
  };

  // ---- events
  struct Reserved {  // ReserveMemory came in
    ProcessId process;
    uint64_t request = 0;
    uint64_t bytes = 0;
    int64_t now_ns = 0;
  };
  struct Released {  // ReleaseMemory came in; more than was reserved counts as all of it
    ProcessId process;
    uint64_t bytes = 0;
    int64_t now_ns = 0;
  };
  struct Died {  // the process is gone; so many bytes of sealed objects outlive it
    ProcessId process;
    uint64_t surviving_bytes = 0;
    int64_t now_ns = 0;
  };
  struct DeadFreed {  // so many bytes of a dead process's objects were given back to the system
    ProcessId process;
    uint64_t bytes = 0;
    int64_t now_ns = 0;
  };
  struct Ticked {
    int64_t now_ns = 0;
  };

  // ---- actions
  struct Grant {
    ProcessId process;
    uint64_t request = 0;
    uint64_t bytes = 0;
    bool operator==(const Grant&) const = default;
  };
  struct Refuse {
    ProcessId process;
    uint64_t request = 0;
    std::string why;  // for the user: what happened and what to do
    bool operator==(const Refuse&) const = default;
  };
  struct AskTrim {
    ProcessId process;
    uint64_t bytes = 0;
    bool operator==(const AskTrim&) const = default;
  };
  using Action = std::variant<Grant, Refuse, AskTrim>;

  explicit MemoryBudget(Options options) : options_(options) {}

  // A process joined. Returns what it gets without asking: `wanted_bytes`, or 0 if that does not fit or others wait.
  uint64_t Admit(ProcessId process, uint64_t wanted_bytes);

  void Handle(const Reserved& event, std::vector<Action>& out);
  void Handle(const Released& event, std::vector<Action>& out);
  void Handle(const Died& event, std::vector<Action>& out);
  void Handle(const DeadFreed& event, std::vector<Action>& out);
  void Handle(const Ticked& event, std::vector<Action>& out);

  // When Ticked is needed next, if a request waits.
  std::optional<int64_t> NextTickNs() const;

  uint64_t capacity_bytes() const { return options_.capacity_bytes; }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t reserved_by(ProcessId process) const;  // alive or dead
  size_t waiting_count() const { return waiting_.size(); }
  void CheckInvariants() const;

 private:
  struct Waiting {
    ProcessId process;
    uint64_t request;
    uint64_t bytes;
    int64_t deadline_ns;
  };

  uint64_t FreeBytes() const;
  void GrantWhatFits(std::vector<Action>& out);
  void AskOthers(int64_t now_ns, std::vector<Action>& out);
  std::string WhyFull(const Waiting& waiting) const;

  const Options options_;
  // Ordered, so that the same events always give the same actions.
  std::map<ProcessId, uint64_t> reserved_;  // of living processes, no zeros
  std::map<ProcessId, uint64_t> dead_;      // what dead ones left, no zeros
  std::deque<Waiting> waiting_;             // in the order of arrival, hence of deadlines
  uint64_t used_bytes_ = 0;                 // sum of both maps
  int64_t asked_at_ns_ = 0;                 // valid while a request waits
};

}  // namespace weft::core
