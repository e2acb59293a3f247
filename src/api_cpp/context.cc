#include "weft/context.h"

#include <unistd.h>

#include <cstdio>

#include "api_cpp/cpp_runner.h"
#include "base/clock.h"
#include "os/futex.h"
#include "runtime/observation.h"
#include "weft/errors.h"
#include "wire/languages.h"
#include "wire/placement.h"

namespace weft {
namespace {

std::string Hex(const char* format, uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, format, static_cast<unsigned long long>(number));
  return text;
}

std::vector<core::NodeListed> AskNodes() {
  detail::Using session;
  detail::SessionState& state = session.need();
  core::Observation seen =
      core::Ask({::geteuid(), state.runtime->node_pid()}, core::kObserveNodes, 0, core::kPatienceNs);
  if (!seen.node) throw WeftError("the node daemon cannot be asked for its resources: " + seen.error);
  return std::move(seen.nodes);
}

std::map<std::string, double> Amounts(const core::ResourceAmounts& amounts) {
  std::map<std::string, double> result;
  for (const auto& [name, amount] : amounts) {
    if (amount > 0 && name != core::kPythonWorker && !core::IsPlacement(name))
      result[name] = static_cast<double>(amount) / core::kResourceUnit;
  }
  return result;
}

std::map<std::string, double> SumOf(core::ResourceAmounts core::NodeListed::* which) {
  std::map<std::string, int64_t> sums;
  for (const core::NodeListed& node : AskNodes()) {
    if (node.alive == 0) continue;
    for (const auto& [name, amount] : node.*which) sums[name] += amount;
  }
  return Amounts({sums.begin(), sums.end()});
}

}  // namespace

std::vector<NodeInfo> nodes() {
  std::vector<NodeInfo> result;
  for (const core::NodeListed& listed : AskNodes()) {
    NodeInfo& node = result.emplace_back();
    node.id = core::NodeIdText(listed.session, listed.node);
    node.name = listed.name;
    node.address = listed.address;
    node.alive = listed.alive != 0;
    node.is_head = listed.head != 0;
    node.labels.insert(listed.labels.begin(), listed.labels.end());
    node.death_reason = listed.why;
    if (!node.alive) continue;
    node.resources = Amounts(listed.total);
    node.available = Amounts(listed.available);
  }
  return result;
}

std::map<std::string, double> cluster_resources() { return SumOf(&core::NodeListed::total); }

std::map<std::string, double> available_resources() { return SumOf(&core::NodeListed::available); }

Context context() {
  detail::Using session;
  detail::SessionState& state = session.need();
  const core::Welcome& welcome = state.runtime->welcome();
  Context result;
  result.job_id = Hex("%08llx", welcome.driver.value);
  result.node_id = core::NodeIdText(welcome.session, core::NodeOf(welcome));
  result.worker_id = Hex("%016llx", welcome.process.value);
  result.is_worker = detail::g_runner != nullptr;
  result.name_space = state.name_space;
  const detail::CppCall* call = detail::CppRunner::Current();
  if (!call) return result;
  result.task_id = core::ToString(core::ObjectId{call->submitter, call->task});
  result.task_name = call->what->name;
  result.attempt = static_cast<int>(call->attempt);
  const core::AssignedLease& lease = detail::g_runner->executor()->lease();
  result.resources = Amounts(lease.resources);
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
