#include "api_python/outside_inquiry.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <poll.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api_python/observe.h"
#include "base/clock.h"
#include "runtime/observation.h"
#include "runtime/wait_graph.h"
#include "transport/message_stream.h"
#include "wire/peer_message.h"

namespace weft::python {
namespace {

namespace nb = nanobind;

// As in runtime_explain.cc: a process that has not answered by then is stopped or overloaded.
constexpr int64_t kMaxTraversalNs = 2'000'000'000;

struct Explanation {
  core::ObjectId object;    // of what was asked for
  core::ProcessId process;  // that waits, if a wait was
  int pid = 0;
  std::string task;  // whose body waits; empty: some other thread
  double seconds = 0;
  bool known = true;  // by its owner
  bool stuck = false;
  std::string text;
};

class OutsideInquiry {
 public:
  explicit OutsideInquiry(core::UniqueFd socket) : stream_(std::move(socket)) {}

  // The living processes; the first question of a connection.
  bool Open() {
    stream_.Queue(core::Observe{.what = 0, .limit = 0});
    opened_ = false;
    return Receive(core::NowNs() + core::kAnswerNs, [&] { return opened_; });
  }

  bool open() const { return stream_.state() == core::MessageStream::State::kOpen; }

  Explanation ExplainObject(core::ObjectId id) {
    core::WaitGraph graph(id);
    Explanation result{.object = id, .known = true, .text = {}};
    asked_for_ = id;
    asked_for_is_known_ = false;
    Run(graph, result);
    result.known = asked_for_is_known_;
    asked_for_ = {};
    return result;
  }

  // Threads that have waited at least so long, in one process or (0) in all.
  std::vector<Explanation> ExplainWaits(core::ProcessId only, double min_seconds) {
    processes_.clear();
    ++number_;
    open_ = 0;
    for (core::ProcessId process : living_) {
      if (!only || only == process) AskWhy({process, 0});
    }
    Receive(core::NowNs() + kMaxTraversalNs, [&] { return open_ == 0; });
    std::vector<Explanation> results;
    const std::vector<core::ProcessFact> processes = std::move(processes_);
    processes_.clear();
    // A process that did not answer now is not waited for again in each traversal.
    std::set<core::ProcessId> answered;
    for (const core::ProcessFact& process : processes) answered.insert(process.process);
    if (!only) living_ = std::move(answered);
    for (const core::ProcessFact& process : processes) {
      for (const core::WaitFact& wait : process.waits) {
        const double seconds = static_cast<double>(wait.for_ns) / 1e9;
        if (seconds < min_seconds) continue;
        Explanation& result = results.emplace_back();
        result.process = process.process;
        result.pid = process.pid;
        result.seconds = seconds;
        if (wait.execution != 0) result.task = wait.name;
        core::WaitGraph graph(process.process, wait, true);
        Run(graph, result);
      }
    }
    return results;
  }

 private:
  void AskWhy(core::ObjectId id) {
    core::RouteTo message{.to = id.owner, .payload = {}};
    core::EncodePeerMessage({.kind = core::PeerMessageKind::kAskWhy, .id = id, .count = number_}, message.payload);
    stream_.Queue(message);
    ++open_;
  }

  // One traversal, and a second if the first finds a deadlock: only facts that are seen twice count.
  void Run(core::WaitGraph& first, Explanation& result) {
    Traverse(first);
    core::WaitVerdict verdict = first.Judge(nullptr);
    if (verdict.kind != core::WaitVerdict::Kind::kStuck) {
      result.text = first.Text();
      result.stuck = verdict.kind == core::WaitVerdict::Kind::kUnschedulable;
      return;
    }
    core::WaitGraph second = first.Again();
    Traverse(second);
    core::WaitVerdict again = second.Judge(&verdict.proof);
    result.text = second.Text();
    result.stuck = again.kind == core::WaitVerdict::Kind::kStuck;
    if (result.stuck) result.text += "\nthis can never end: " + again.chain;
  }

  void Traverse(core::WaitGraph& graph) {
    graph_ = &graph;
    ++number_;
    open_ = 0;
    AskAll();
    Receive(core::NowNs() + kMaxTraversalNs, [&] { return open_ == 0; });
    graph_ = nullptr;
  }

  void AskAll() {
    core::WaitQuestion question;
    while (graph_->NextQuestion(&question)) {
      if (question.kind == core::WaitQuestion::Kind::kShape) {
        stream_.Queue(core::AskShape{.request = number_, .shape = question.shape});
        ++open_;
      } else if (living_.contains(question.object.owner)) {
        AskWhy(question.object);
      }
    }
  }

  template <typename Done>
  bool Receive(int64_t deadline_ns, Done done) {
    for (;;) {
      if (!stream_.Flush()) return false;
      while (auto received = stream_.Next()) Handle(received->message);
      if (done()) return true;
      if (stream_.queued_bytes() > 0 && !stream_.Flush()) return false;
      if (stream_.state() != core::MessageStream::State::kOpen) return false;
      if (stream_.Receive()) continue;
      int64_t left_ms = (deadline_ns - core::NowNs()) / 1'000'000;
      if (left_ms <= 0) return false;
      pollfd wait{stream_.fd(), static_cast<short>(stream_.queued_bytes() > 0 ? POLLIN | POLLOUT : POLLIN), 0};
      ::poll(&wait, 1, static_cast<int>(std::min<int64_t>(left_ms, 1000)));
    }
  }

  void Handle(core::Message& message) {
    if (auto* process = std::get_if<core::ProcessInfo>(&message)) {
      if (process->stage != static_cast<uint8_t>(core::ProcessStage::kDead) &&
          process->stage != static_cast<uint8_t>(core::ProcessStage::kStarting)) {
        living_.insert(process->process);
      }
    } else if (std::holds_alternative<core::Observed>(message)) {
      opened_ = true;
    } else if (auto* died = std::get_if<core::ProcessDied>(&message)) {
      living_.erase(died->process);  // one such message for each question to it
      if (open_ > 0) --open_;
    } else if (auto* shape = std::get_if<core::ShapeAnswer>(&message)) {
      core::ShapeFact fact;
      if (shape->request != number_ || open_ == 0) return;
      --open_;
      if (graph_ && core::DecodeFact(shape->fact, fact)) graph_->Answer(std::move(fact));
    } else if (auto* routed = std::get_if<core::Routed>(&message)) {
      std::vector<core::PeerMessage> answers;
      if (!core::DecodePeerMessages(routed->payload, answers)) return;
      for (const core::PeerMessage& answer : answers) {
        if (answer.kind == core::PeerMessageKind::kWhy && answer.count == number_ && answer.id.owner == routed->from) {
          Answered(answer);
        }
      }
    }
    if (graph_) AskAll();
  }

  void Answered(const core::PeerMessage& answer) {
    if (open_ > 0) --open_;
    if (answer.id.index == 0) {
      core::ProcessFact fact;
      if (!core::DecodeFact(answer.bytes, fact) || fact.process != answer.id.owner) return;
      if (graph_) {
        graph_->Answer(std::move(fact));
      } else {
        processes_.push_back(std::move(fact));
      }
    } else {
      core::ObjectFact fact;
      if (!core::DecodeFact(answer.bytes, fact) || fact.id != answer.id) return;
      if (fact.id == asked_for_ && fact.state != core::ObjectState::kUnknown) asked_for_is_known_ = true;
      if (graph_) graph_->Answer(std::move(fact));
    }
  }

  core::MessageStream stream_;
  std::set<core::ProcessId> living_;
  bool opened_ = false;
  uint64_t number_ = 0;  // of the traversal; answers to an earlier one come too late
  size_t open_ = 0;      // questions that were not answered yet
  core::WaitGraph* graph_ = nullptr;
  std::vector<core::ProcessFact> processes_;
  core::ObjectId asked_for_;
  bool asked_for_is_known_ = false;
};

nb::dict Row(const Explanation& explanation) {
  nb::dict row;
  row["process"] = explanation.process.value;
  row["pid"] = explanation.pid;
  row["task"] = Text(explanation.task);
  row["seconds"] = explanation.seconds;
  row["known"] = explanation.known;
  row["stuck"] = explanation.stuck;
  row["text"] = Text(explanation.text);
  return row;
}

template <typename Do>
nb::list Inquire(uint32_t uid, int pid, Do inquire) {
  std::vector<Explanation> explanations;
  std::string error;
  {
    nb::gil_scoped_release release;
    auto socket = core::ConnectToSession({uid, pid}, core::NowNs() + core::kAnswerNs);
    if (!socket) {
      error = socket.error().kind == core::ErrorKind::kTimeout ? core::DescribeSilence(pid, core::kAnswerNs)
                                                               : socket.error().message;
    } else {
      OutsideInquiry inquiry(std::move(*socket));
      if (inquiry.Open()) {
        explanations = inquire(inquiry);
      } else if (inquiry.open()) {
        error = core::DescribeSilence(pid, core::kAnswerNs);
      } else {
        error = "the node daemon does not answer this program's questions";
      }
    }
  }
  if (!error.empty()) throw nb::value_error(error.c_str());
  nb::list rows;
  for (const Explanation& explanation : explanations) rows.append(Row(explanation));
  return rows;
}

}  // namespace

void DefineOutsideInquiry(nb::module_& m) {
  m.def(
      "explain_object",
      [](uint32_t uid, int pid, uint64_t owner, uint64_t index) {
        return Inquire(uid, pid, [&](OutsideInquiry& inquiry) {
          return std::vector<Explanation>{inquiry.ExplainObject({core::ProcessId{owner}, index})};
        });
      },
      nb::arg("uid"), nb::arg("pid"), nb::arg("owner"), nb::arg("index"));
  m.def(
      "explain_waits",
      [](uint32_t uid, int pid, uint64_t process, double min_seconds) {
        return Inquire(uid, pid, [&](OutsideInquiry& inquiry) {
          return inquiry.ExplainWaits(core::ProcessId{process}, min_seconds);
        });
      },
      nb::arg("uid"), nb::arg("pid"), nb::arg("process"), nb::arg("min_seconds"));
}

}  // namespace weft::python
