// A cluster in one thread from one seed: real owners, worker machines, local scheduler and worker pool, with a
// simulated network, store and user program, under virtual time, with crashes, pauses, delays, refusals and recalls.
//
// Checked while it runs: every reference ends once, with the right outcome; bodies start at most 1 + max_retries times;
// exceptions are retried only on request; nothing is freed while somebody uses it, nor twice; resources stay within
// bounds; the machines' own invariants. After the faults have ended everything resolves, and at rest nothing is left.
//
// A seed gives the same run, event for event, every time. Called by simulator_test.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/owner.h"
#include "runtime/worker_machine.h"
#include "scheduling/local_scheduler.h"
#include "simulator/coverage.h"

namespace weft::core {

struct SimulationOptions {
  uint64_t seed = 0;
  bool print_trace = false;
  // Planted bugs.
  Owner::Faults owner_faults;
  WorkerMachine::Faults worker_faults;
  LocalScheduler::Faults scheduler_faults;
};

struct SimulationResult {
  std::string failure;  // empty: every promise was kept
  uint64_t trace_hash = 0;
  uint64_t events = 0;
  uint64_t tasks = 0;
  int64_t virtual_ns = 0;
  Coverage coverage;
};

SimulationResult RunSimulation(const SimulationOptions& options);

}  // namespace weft::core
