#include "runtime/observation.h"

#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/clock.h"
#include "os/abstract_socket.h"
#include "os/process_facts.h"
#include "os/socket.h"
#include "transport/message_stream.h"

namespace weft::core {
namespace {

// How often to try a daemon again that has no room for a connection.
constexpr int64_t kRetryNs = 20'000'000;

// One question to one session, and the part of its answer that has come.
class Question {
 public:
  Question(const SessionName& session, const Observe& what, int64_t patience_ns)
      : session_(session), what_(what), patience_ns_(patience_ns), deadline_ns_(NowNs() + patience_ns) {}

  // Goes on as far as it can without waiting.
  void Advance() {
    if (!stream_ && !Connect()) return;
    for (;;) {
      if (!stream_->Flush()) return Fail("the node daemon has closed the connection");
      while (auto received = stream_->Next()) Take(*received);
      if (answered_ && seen_.reports.size() >= awaited_) {
        seen_.complete = ended_ = true;
        return;
      }
      if (stream_->state() != MessageStream::State::kOpen) {
        return Fail(answered_ ? "the session has ended" : "the node daemon does not answer this program's questions");
      }
      if (!stream_->Receive()) break;
      if (!answered_) deadline_ns_ = NowNs() + patience_ns_;
    }
    if (NowNs() < deadline_ns_) return;
    if (!answered_) return FallSilent();
    ended_ = true;  // a process is stopped, or dead by now: answer without it
  }

  bool ended() const { return ended_; }
  int64_t wakeup_ns() const { return stream_ ? deadline_ns_ : std::min(deadline_ns_, NowNs() + kRetryNs); }
  pollfd interest() const {
    if (!stream_) return {-1, 0, 0};
    return {stream_->fd(), static_cast<short>(stream_->queued_bytes() > 0 ? POLLIN | POLLOUT : POLLIN), 0};
  }
  Observation& seen() { return seen_; }

 private:
  bool Connect() {
    auto socket = ConnectToSession(session_, 0);
    if (socket) {
      stream_ = std::make_unique<MessageStream>(std::move(*socket));
      stream_->Queue(what_);
      return true;
    }
    if (socket.error().kind != ErrorKind::kTimeout) {
      Fail(socket.error().message);
    } else if (NowNs() >= deadline_ns_) {
      FallSilent();
    }
    return false;
  }

  void Take(ReceivedMessage& received) {
    auto& message = received.message;
    if (auto* node = std::get_if<NodeInfo>(&message)) {
      seen_.node = std::move(*node);
    } else if (auto* process = std::get_if<ProcessInfo>(&message)) {
      seen_.processes.push_back({std::move(*process), {}});
      if (!received.fds.empty()) seen_.processes.back().log = std::move(received.fds[0]);
    } else if (auto* listed = std::get_if<NodeListed>(&message)) {
      seen_.nodes.push_back(std::move(*listed));
    } else if (auto* actor = std::get_if<ActorInfo>(&message)) {
      seen_.actors.push_back(std::move(*actor));
    } else if (auto* output = std::get_if<WorkerOutput>(&message)) {
      seen_.output.push_back(std::move(*output));
    } else if (auto* observed = std::get_if<Observed>(&message)) {
      answered_ = true;
      awaited_ = observed->reports;
      deadline_ns_ = NowNs() + kReportsNs;
    } else if (auto* report = std::get_if<StateReport>(&message)) {
      ProcessReport decoded;
      if (DecodeReport(report->report, decoded)) {
        seen_.reports.emplace_back(report->process, std::move(decoded));
      } else if (awaited_ > 0) {
        --awaited_;
      }
    }
  }

  void Fail(std::string why) {
    seen_.error = std::move(why);
    ended_ = true;
  }

  void FallSilent() {
    seen_.silent = true;
    Fail(DescribeSilence(session_.pid, patience_ns_));
  }

  SessionName session_;
  Observe what_;
  int64_t patience_ns_;
  int64_t deadline_ns_;  // of the daemon until it has answered, then of the processes
  std::unique_ptr<MessageStream> stream_;
  Observation seen_;
  uint32_t awaited_ = 0;
  bool answered_ = false;
  bool ended_ = false;
};

}  // namespace

Result<UniqueFd> ConnectToSession(const SessionName& session, int64_t deadline_ns) {
  auto socket = ConnectToDaemon(ObserverSocketName(session.uid, session.pid), session.uid, session.pid, deadline_ns);
  if (!socket && socket.error().kind == ErrorKind::kTimeout) return socket.error();
  if (!socket) return Error{ErrorKind::kGone, "there is no session with this daemon: " + socket.error().message};
  if (auto status = SetNonblocking(socket->get(), true); !status.ok()) return status.error();
  return std::move(*socket);
}

std::vector<Observation> AskAll(const std::vector<SessionName>& sessions, uint32_t what, uint32_t limit,
                                int64_t patience_ns) {
  std::vector<Question> questions;
  for (const SessionName& session : sessions) {
    questions.emplace_back(session, Observe{.what = what, .limit = limit}, patience_ns);
  }
  for (;;) {
    std::vector<pollfd> waits;
    int64_t wakeup_ns = INT64_MAX;
    for (Question& question : questions) {
      if (!question.ended()) question.Advance();
      if (question.ended()) continue;
      waits.push_back(question.interest());
      wakeup_ns = std::min(wakeup_ns, question.wakeup_ns());
    }
    if (waits.empty()) break;
    const int64_t left_ms = (wakeup_ns - NowNs()) / 1'000'000 + 1;
    ::poll(waits.data(), waits.size(), static_cast<int>(std::clamp<int64_t>(left_ms, 0, 1000)));
  }
  std::vector<Observation> seen;
  for (Question& question : questions) seen.push_back(std::move(question.seen()));
  return seen;
}

Observation Ask(const SessionName& session, uint32_t what, uint32_t limit, int64_t patience_ns) {
  return std::move(AskAll({session}, what, limit, patience_ns)[0]);
}

std::string DescribeSilence(int pid, int64_t waited_ns) {
  char text[200];
  std::snprintf(text, sizeof text, "the node daemon %d has not answered for %.0f s: ", pid,
                static_cast<double>(waited_ns) / 1e9);
  if (!IsStopped(pid)) return std::string(text) + "it is stuck, or the machine is swamped";
  return std::string(text) + "it is stopped (`kill -CONT " + std::to_string(pid) +
         "` lets it go on, unless a debugger has it)";
}

}  // namespace weft::core
