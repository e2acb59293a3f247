// Runtime: what it tells observers of the session about its tasks and objects.
#include <unistd.h>

#include <algorithm>

#include "os/abstract_socket.h"
#include "runtime/runtime.h"
#include "wire/state_report.h"

namespace weft::core {
namespace {

// Of the arguments that a task waits for: enough to see the reason.
constexpr size_t kMaxWaitsFor = 8;
// A report must fit into one message, whatever the names are.
constexpr size_t kMaxNameBytes = 128;

}  // namespace

int Runtime::node_pid() const {
  if (daemon_pid_ > 0) return daemon_pid_;
  // The daemon made a worker's socket pair, and accepted a driver that joined a cluster node. The pair to a daemon of
  // our own, which has ended by now, was made by this process.
  auto pid = PeerPid(socket_.get());
  return pid && *pid != ::getpid() ? *pid : 0;
}

std::string Runtime::ReportState(uint32_t limit) {
  ProcessReport report;
  report.all_tasks = owner_->live_tasks();
  report.all_objects = owner_->live_objects();
  owner_->ForEachTask([&](Task* task) {
    if (report.tasks.size() >= limit) return;
    TaskReport& row = report.tasks.emplace_back();
    row.task = task->handle;
    row.object = task->first_return ? task->first_return->id.index : 0;
    row.state = static_cast<uint8_t>(task->state);
    row.attempt = task->attempt;
    if (task->worker >= 0) row.worker = owner_->workers()[static_cast<size_t>(task->worker)].process;
    row.name = task->what->name.substr(0, kMaxNameBytes);
    for (uint32_t i = 0; i < task->num_dependencies && row.waits_for.size() < kMaxWaitsFor; ++i) {
      if (!task->dependencies[i]->resolved()) row.waits_for.push_back(task->dependencies[i]->id);
    }
  });
  owner_->ForEachObject([&](Object* object) {
    if (report.objects.size() >= limit) return;
    ObjectReport& row = report.objects.emplace_back();
    row.id = object->id;
    row.kind = static_cast<uint8_t>(object->value.kind());
    if (object->value.kind() == ValueKind::kStored) {
      row.size = object->value.location().size;
      row.segment = object->value.location().segment.value;
    } else if (object->resolved()) {
      row.size = object->value.bytes().size();
    }
    row.local_references = object->local_references.load(std::memory_order_relaxed);
    row.holds = object->holds;
    row.borrowers = object->borrowers ? static_cast<uint32_t>(object->borrowers->size()) : 0;
    row.borrowed = object->borrowed ? 1 : 0;
  });
  return EncodeReport(report);
}

}  // namespace weft::core
