// Asking a session from outside, or from within: what its node daemon and processes tell an observer.
//
// Any thread; blocks. Over the abstract socket of the session's node daemon, of the same user only
// (docs/decisions/0007-observers.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "os/fd.h"
#include "wire/messages.h"
#include "wire/state_report.h"

namespace weft::core {

inline constexpr int64_t kPatienceNs =
    5'000'000'000;  // the daemon answers in microseconds, unless the machine is swamped

struct Observation {
  struct Process {
    ProcessInfo info;
    UniqueFd log;
  };
  std::optional<NodeInfo> node;
  std::vector<Process> processes;
  std::vector<NodeListed> nodes;  // kObserveNodes
  std::vector<ActorInfo> actors;
  std::vector<WorkerOutput> output;
  std::vector<std::pair<ProcessId, ProcessReport>> reports;
  bool complete = false;  // every process has answered
  std::string error;
};

// The socket of the session's node daemon, not blocking. Fails if nobody listens, or another user.
Result<UniqueFd> ConnectToSession(uint32_t uid, int pid);
// `what`: which of kObserve...; `limit` of rows from each process.
Observation Ask(uint32_t uid, int pid, uint32_t what, uint32_t limit, int64_t deadline_ns);

}  // namespace weft::core
