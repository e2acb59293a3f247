#include "api_python/observe.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "events/event_log.h"
#include "os/abstract_socket.h"
#include "runtime/observation.h"
#include "wire/messages.h"
#include "wire/placement.h"
#include "wire/state_report.h"

namespace weft::python {
namespace {

namespace nb = nanobind;

nb::object Id(core::ObjectId id) {
  if (!id) return nb::none();
  return Text(core::ToString(id));
}

nb::dict Amounts(const core::ResourceAmounts& amounts) {
  nb::dict result;
  for (const auto& [name, amount] : amounts) {
    result[Text(name)] = static_cast<double>(amount) / static_cast<double>(core::kResourceUnit);
  }
  return result;
}

nb::dict Listed(const core::NodeListed& node) {
  nb::dict row;
  row["node_id"] = Text(core::NodeIdText(node.session, node.node));
  row["alive"] = node.alive != 0;
  row["head"] = node.head != 0;
  row["own"] = node.own != 0;
  row["name"] = Text(node.name);
  row["address"] = Text(node.address);
  row["total"] = Amounts(node.total);
  row["available"] = Amounts(node.available);
  nb::dict labels;
  for (const auto& [key, value] : node.labels) labels[Text(key)] = Text(value);
  row["labels"] = labels;
  row["why"] = Text(node.why);
  return row;
}

// (kind, process, task, object, name, attempt, outcome, lane, begin, end)
nb::object Row(const core::RecordedEvent& event) {
  return nb::make_tuple(static_cast<int>(event.kind), event.process, event.task, event.object, event.name,
                        event.attempt, static_cast<int>(event.outcome), event.lane, event.begin_ns, event.end_ns);
}

nb::object Log(int fd) {
  auto copy = core::ReadEventLog(fd);
  if (!copy) return nb::none();
  nb::list events, running;
  for (const auto& event : copy->events) events.append(Row(event));
  for (const auto& event : copy->running) running.append(Row(event));
  nb::dict names;
  for (const auto& [id, name] : copy->names) names[nb::int_(id)] = Text(name);
  nb::dict log;
  log["events"] = events;
  log["running"] = running;
  log["names"] = names;
  log["overwritten"] = copy->overwritten;
  return log;
}

nb::dict Report(core::ProcessId process, const core::ProcessReport& report) {
  nb::list tasks, objects;
  for (const auto& task : report.tasks) {
    nb::list waits_for;
    for (core::ObjectId id : task.waits_for) waits_for.append(Id(id));
    tasks.append(nb::make_tuple(task.task, task.object, static_cast<int>(task.state), task.attempt, task.worker.value,
                                Text(task.name), waits_for));
  }
  for (const auto& object : report.objects) {
    objects.append(nb::make_tuple(Id(object.id), object.id.owner.value, static_cast<int>(object.kind), object.size,
                                  object.local_references, object.holds, object.borrowers, object.borrowed != 0,
                                  object.segment));
  }
  nb::dict result;
  result["process"] = process.value;
  result["all_tasks"] = report.all_tasks;
  result["all_objects"] = report.all_objects;
  result["tasks"] = tasks;
  result["objects"] = objects;
  return result;
}

nb::dict Answer(const core::Observation& seen) {
  nb::dict result;
  result["complete"] = seen.complete;
  if (seen.node) {
    nb::dict node;
    node["daemon_pid"] = seen.node->daemon_pid;
    node["driver_pid"] = seen.node->driver_pid;
    node["total"] = Amounts(seen.node->total);
    node["available"] = Amounts(seen.node->available);
    node["store_bytes"] = seen.node->store_bytes;
    node["store_used_bytes"] = seen.node->store_used_bytes;
    node["started_ns"] = seen.node->started_ns;
    node["working_directory"] = Text(seen.node->working_directory);
    result["node"] = node;
  } else {
    result["node"] = nb::none();
  }
  nb::list nodes;
  for (const auto& listed : seen.nodes) nodes.append(Listed(listed));
  result["nodes"] = nodes;
  nb::list processes, actors, output, reports;
  for (const auto& process : seen.processes) {
    nb::dict row;
    row["process"] = process.info.process.value;
    row["pid"] = process.info.pid;
    row["role"] = static_cast<int>(process.info.role);
    row["stage"] = static_cast<int>(process.info.stage);
    row["store_bytes"] = process.info.store_bytes;
    row["actor"] = Text(process.info.actor);
    row["how"] = Text(process.info.how);
    row["log"] = process.log ? Log(process.log.get()) : nb::none();
    processes.append(row);
  }
  for (const auto& actor : seen.actors) {
    nb::dict row;
    row["actor"] = Id(actor.actor);
    row["owner"] = actor.actor.owner.value;
    row["state"] = static_cast<int>(actor.state);
    row["incarnation"] = actor.incarnation;
    row["worker"] = actor.worker.value;
    row["detached"] = actor.detached != 0;
    row["restarts_left"] = actor.restarts_left;
    row["class_name"] = Text(actor.class_name);
    row["name"] = Text(actor.name);
    row["namespace"] = Text(actor.name_space);
    row["why"] = Text(actor.why);
    actors.append(row);
  }
  for (const auto& text : seen.output) {
    output.append(nb::make_tuple(text.worker.value, text.pid, text.is_stderr != 0, Text(text.text)));
  }
  for (const auto& [process, report] : seen.reports) reports.append(Report(process, report));
  result["processes"] = processes;
  result["actors"] = actors;
  result["output"] = output;
  result["reports"] = reports;
  return result;
}

nb::dict Observe(uint32_t uid, int pid, uint32_t what, uint32_t limit, double patience) {
  core::Observation seen;
  {
    nb::gil_scoped_release release;
    seen = core::Ask({uid, pid}, what, limit, static_cast<int64_t>(patience * 1e9));
  }
  if (!seen.error.empty()) throw nb::value_error(seen.error.c_str());
  return Answer(seen);
}

// Asks all of them at the same time. For each: its answer, or a text that says why it is silent, or None if it has
// ended.
nb::list ObserveAll(uint32_t uid, const std::vector<int>& pids, uint32_t what, uint32_t limit) {
  std::vector<core::SessionName> sessions;
  for (int pid : pids) sessions.push_back({uid, pid});
  std::vector<core::Observation> observations;
  {
    nb::gil_scoped_release release;
    observations = core::AskAll(sessions, what, limit, core::kAnswerNs);
  }
  nb::list results;
  for (const core::Observation& seen : observations) {
    if (seen.silent) {
      results.append(Text(seen.error));
    } else if (!seen.error.empty()) {
      results.append(nb::none());
    } else {
      results.append(Answer(seen));
    }
  }
  return results;
}

// The nodes that this process's own session has.
nb::list SessionNodes() {
  Runtime* runtime = NeedRuntime();
  if (!runtime) throw nb::python_error();
  const int pid = runtime->node_pid();
  core::Observation seen;
  {
    nb::gil_scoped_release release;
    seen = core::Ask({::geteuid(), pid}, core::kObserveNodes, 0, core::kPatienceNs);
  }
  if (!seen.node) {
    RaiseSystemError("WeftError\nthe node daemon cannot be asked for its resources: " + seen.error);
    throw nb::python_error();
  }
  nb::list nodes;
  for (const auto& listed : seen.nodes) nodes.append(Listed(listed));
  return nodes;
}

}  // namespace

nb::object Text(std::string_view text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

void DefineObserve(nb::module_& m) {
  m.def("observe", &Observe, nb::arg("uid"), nb::arg("pid"), nb::arg("what"), nb::arg("limit"), nb::arg("patience"));
  m.def("observe_all", &ObserveAll, nb::arg("uid"), nb::arg("pids"), nb::arg("what"), nb::arg("limit"));
  m.def("find_sessions", &core::FindObserverSockets, nb::arg("uid"));
  m.def("nodes", &SessionNodes);
  m.def("node_pid", [] { return g_runtime ? g_runtime->node_pid() : 0; });
}

}  // namespace weft::python
