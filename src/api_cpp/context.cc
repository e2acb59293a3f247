#include "weft/context.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "api_cpp/cpp_runner.h"
#include "base/clock.h"
#include "os/abstract_socket.h"
#include "os/futex.h"
#include "os/socket.h"
#include "transport/message_stream.h"
#include "wire/messages.h"

namespace weft {
namespace {

std::string Hex(const char* format, uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, format, static_cast<unsigned long long>(number));
  return text;
}

// Asks the node daemon as any observer does: what it has and what of it is free.
core::NodeInfo AskNode() {
  constexpr int64_t kPatienceNs = 5'000'000'000;  // it answers in microseconds, unless the machine is swamped
  auto fail = [](const std::string& why) -> core::NodeInfo {
    throw WeftError("the node daemon cannot be asked for its resources: " + why);
  };
  const int64_t deadline_ns = core::NowNs() + kPatienceNs;
  const uid_t uid = ::geteuid();
  auto socket = core::ConnectAbstract(core::ObserverSocketName(uid, detail::NeedSession().runtime->node_pid()));
  if (!socket) return fail(socket.error().message);
  // Anybody can listen under any abstract name: ask the kernel who does.
  if (auto listener = core::PeerUid(socket->get()); !listener || *listener != uid) {
    return fail("another user listens in its place");
  }
  if (auto status = core::SetNonblocking(socket->get(), true); !status.ok()) return fail(status.error().message);
  core::MessageStream stream(std::move(*socket));
  stream.Queue(core::Observe{.what = 0, .limit = 0});
  for (;;) {
    if (!stream.Flush()) return fail("it has closed the connection");
    while (auto received = stream.Next()) {
      if (auto* node = std::get_if<core::NodeInfo>(&received->message)) return std::move(*node);
    }
    if (stream.state() != core::MessageStream::State::kOpen) return fail("it has closed the connection");
    if (stream.Receive()) continue;
    const int64_t left_ms = (deadline_ns - core::NowNs()) / 1'000'000;
    if (left_ms <= 0) return fail("it did not answer in time");
    pollfd wait{stream.fd(), static_cast<short>(stream.queued_bytes() > 0 ? POLLIN | POLLOUT : POLLIN), 0};
    ::poll(&wait, 1, static_cast<int>(std::min<int64_t>(left_ms, 1000)));
  }
}

std::map<std::string, double> Amounts(const core::ResourceAmounts& amounts) {
  std::map<std::string, double> result;
  for (const auto& [name, amount] : amounts) {
    if (amount > 0) result[name] = static_cast<double>(amount) / core::kResourceUnit;
  }
  return result;
}

}  // namespace

std::map<std::string, double> cluster_resources() { return Amounts(AskNode().total); }

std::map<std::string, double> available_resources() { return Amounts(AskNode().available); }

Context context() {
  detail::SessionState& state = detail::NeedSession();
  const core::Welcome& welcome = state.runtime->welcome();
  Context result;
  result.job_id = Hex("%08llx", welcome.driver.value);
  result.node_id = Hex("%016llx", welcome.session) + Hex("%016llx", 1);
  result.worker_id = Hex("%016llx", welcome.process.value);
  result.is_worker = detail::g_runner != nullptr;
  result.name_space = state.name_space;
  const detail::CppCall* call = detail::CppRunner::Current();
  if (!call) return result;
  result.task_id = core::ToString(core::ObjectId{call->submitter, call->task});
  result.task_name = call->what->name;
  result.attempt = static_cast<int>(call->attempt);
  const core::AssignedLease& lease = detail::g_runner->executor()->lease();
  for (const auto& [name, amount] : lease.resources) {
    result.resources[name] = static_cast<double>(amount) / core::kResourceUnit;
  }
  for (const auto& [number, amount] : lease.gpus) result.gpu_ids.push_back(static_cast<int>(number));
  if (lease.actor) {
    result.actor_id = core::ToString(lease.actor);
    result.actor_name = detail::g_runner->actor_name();
    result.was_reconstructed = lease.incarnation > 1;
  }
  return result;
}

namespace this_task {

bool is_cancelled() noexcept {
  const detail::CppCall* call = detail::CppRunner::Current();
  return call && call->is_cancelled();
}

void check_cancelled() {
  if (is_cancelled()) throw detail::Cancelled("this task was cancelled");
}

void sleep_for(std::chrono::nanoseconds duration) {
  const int64_t until = core::NowNs() + duration.count();
  detail::CppCall* call = detail::CppRunner::Current();
  std::atomic<uint32_t> nothing{0};
  do {
    std::atomic<uint32_t>& word = call ? call->cancelled : nothing;
    uint32_t seen = word.load();
    check_cancelled();
    core::FutexWait(&word, seen, until);
  } while (core::NowNs() < until);
  check_cancelled();
}

}  // namespace this_task
}  // namespace weft
