#include "runtime/observation.h"

#include <poll.h>

#include <algorithm>

#include "base/clock.h"
#include "os/abstract_socket.h"
#include "os/socket.h"
#include "transport/message_stream.h"

namespace weft::core {

Result<UniqueFd> ConnectToSession(uint32_t uid, int pid) {
  auto socket = ConnectAbstract(ObserverSocketName(uid, pid));
  if (!socket) return Error{ErrorKind::kGone, "there is no session with this daemon: " + socket.error().message};
  // Anybody can listen under any abstract name: ask the kernel who does.
  auto listener = PeerUid(socket->get());
  if (!listener || *listener != uid)
    return Error{ErrorKind::kGone, "another user listens in the place of the node daemon"};
  if (auto status = SetNonblocking(socket->get(), true); !status.ok()) return status.error();
  return std::move(*socket);
}

Observation Ask(uint32_t uid, int pid, uint32_t what, uint32_t limit, int64_t deadline_ns) {
  Observation seen;
  auto fail = [&](std::string why) {
    seen.error = std::move(why);
    return std::move(seen);
  };
  auto socket = ConnectToSession(uid, pid);
  if (!socket) return fail(socket.error().message);
  MessageStream stream(std::move(*socket));
  stream.Queue(Observe{.what = what, .limit = limit});
  uint32_t awaited = 0;
  bool answered = false;
  for (;;) {
    if (!stream.Flush()) return fail("the node daemon has closed the connection");
    while (auto received = stream.Next()) {
      auto& message = received->message;
      if (auto* node = std::get_if<NodeInfo>(&message)) {
        seen.node = std::move(*node);
      } else if (auto* process = std::get_if<ProcessInfo>(&message)) {
        seen.processes.push_back({std::move(*process), {}});
        if (!received->fds.empty()) seen.processes.back().log = std::move(received->fds[0]);
      } else if (auto* listed = std::get_if<NodeListed>(&message)) {
        seen.nodes.push_back(std::move(*listed));
      } else if (auto* actor = std::get_if<ActorInfo>(&message)) {
        seen.actors.push_back(std::move(*actor));
      } else if (auto* output = std::get_if<WorkerOutput>(&message)) {
        seen.output.push_back(std::move(*output));
      } else if (auto* observed = std::get_if<Observed>(&message)) {
        answered = true;
        awaited = observed->reports;
      } else if (auto* report = std::get_if<StateReport>(&message)) {
        ProcessReport decoded;
        if (DecodeReport(report->report, decoded)) {
          seen.reports.emplace_back(report->process, std::move(decoded));
        } else if (awaited > 0) {
          --awaited;
        }
      }
    }
    if (answered && seen.reports.size() >= awaited) {
      seen.complete = true;
      return seen;
    }
    if (stream.state() != MessageStream::State::kOpen) {
      return fail(answered ? "the session has ended" : "the node daemon does not answer this program's questions");
    }
    if (stream.Receive()) continue;
    int64_t left_ms = (deadline_ns - NowNs()) / 1'000'000;
    if (left_ms <= 0) {
      if (answered) return seen;  // a process that is stopped, or dead by now: told without it
      return fail("the node daemon did not answer in time");
    }
    pollfd wait{stream.fd(), static_cast<short>(stream.queued_bytes() > 0 ? POLLIN | POLLOUT : POLLIN), 0};
    ::poll(&wait, 1, static_cast<int>(std::min<int64_t>(left_ms, 1000)));
  }
}

}  // namespace weft::core
