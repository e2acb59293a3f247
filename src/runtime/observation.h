// Asks a session, from outside or from within, what its node daemon and processes tell an observer.
//
// Any thread; blocks. Uses the abstract socket of the session's node daemon, of the same user only
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

// The daemon answers in microseconds, unless the machine is overloaded. A process waits so long for its own daemon.
inline constexpr int64_t kPatienceNs = 5'000'000'000;
// An observer waits so long for sessions that may not be in order.
inline constexpr int64_t kAnswerNs = 1'000'000'000;

// A private session, or a node of a cluster, named by its daemon.
struct SessionName {
  uint32_t uid = 0;
  int pid = 0;
};

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
  bool silent = false;    // the daemon is there, but has not answered in time; the error says so
  std::string error;
};

// A non-blocking socket to the session's node daemon. kGone if no process or another user listens; kTimeout if the
// daemon has not accepted earlier connections until the deadline.
Result<UniqueFd> ConnectToSession(const SessionName& session, int64_t deadline_ns);
// Asks all of them at the same time: `what` of kObserve..., `limit` rows from each process. A daemon gets
// `patience_ns` to answer, and then the processes that it has asked get kReportsNs together.
inline constexpr int64_t kReportsNs = 2'000'000'000;
std::vector<Observation> AskAll(const std::vector<SessionName>& sessions, uint32_t what, uint32_t limit,
                                int64_t patience_ns);
Observation Ask(const SessionName& session, uint32_t what, uint32_t limit, int64_t patience_ns);
// The message about a daemon that does not answer.
std::string DescribeSilence(int pid, int64_t waited_ns);

}  // namespace weft::core
