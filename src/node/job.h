// One driver's work on this node: how its workers are started, the zygotes that fork them, and their output. Wherever
// the driver is; a job without a process on this node does not exist here.
//
// Owned by NodeDaemon, on its loop thread. What is decided of it NodeCore knows (NodeJob).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "node/node_core.h"
#include "node/worker_output.h"
#include "node/zygote.h"
#include "os/event_loop.h"
#include "wire/messages.h"

namespace weft::core {

// A zygote of a job, once it was started, and what watches it.
struct JobZygote {
  bool warm = false;
  std::unique_ptr<Zygote> process;
  EventLoop::WatchId watch = 0;
  EventLoop::WatchId output_watch = 0;
  int64_t started_ns = 0;
};

// Whether a warm zygote, which has imported OpenSession::preload, forks the workers. While it imports, the plain one
// forks workers for tasks, and actors wait.
enum class Preload : uint8_t { kNone, kImporting, kServing };

struct Job {
  explicit Job(NodeJob& known) : core(known), driver(known.driver) {}

  NodeJob& core;           // NodeCore's
  const ProcessId driver;  // names the job
  OpenSession session;

  JobZygote plain_zygote;
  JobZygote warm_zygote{.warm = true};
  Preload preload = Preload::kNone;
  uint32_t warm_starts = 0;
  bool prestart_later = false;  // when it is known whether there is a warm zygote

  std::unique_ptr<WorkerOutputs> outputs;
  std::set<SegmentId> segments;  // of its processes, the dead ones included
  int64_t leaving_until_ns = 0;  // not 0: the driver has said goodbye, and workers may leave in order until then

  const std::vector<std::string>& ZygoteCommand() const {
    return session.python_workers != 0 ? session.worker_command : session.python_worker_command;
  }
  JobZygote& ServingZygote() { return preload == Preload::kServing ? warm_zygote : plain_zygote; }
  std::array<JobZygote*, 2> Zygotes() { return {&plain_zygote, &warm_zygote}; }
  bool ForksWorkers(bool python_of_cpp_job) const { return session.python_workers != 0 || python_of_cpp_job; }
};

}  // namespace weft::core
