// A cluster in one thread from one seed: real owners, worker machines, wait graphs, local scheduler, actor directory
// and worker pool, with a simulated network, store and user program, under virtual time, with crashes, pauses, delays,
// refusals and recalls.
//
// Checked while it runs: every reference ends once, with the right outcome; bodies start at most 1 + max_retries times;
// exceptions are retried only on request; nothing is freed while somebody uses it, nor twice; resources stay within
// bounds; the machines' own invariants. Actors: one life at a time, restarted as often as asked and never after a kill
// for good; calls of one caller begin in their order, at most 1 + max_task_retries times, and once in an incarnation if
// they return; errors say rightly whether a call ran; names lead to the living. What is cancelled ends as cancelled, or
// with its value, and does not begin again. A wait that is said to be stuck is left alone for a while, and must not end
// by itself; and as programs wait in real circles, that these are found is what brings them to their end. After the
// faults have ended everything resolves, and at rest nothing is left.
//
// A seed gives the same run, event for event, every time. Called by simulator_test.
#pragma once

#include <cstdint>
#include <string>

#include "actors/actor_directory.h"
#include "cluster/message_flow.h"
#include "cluster/node_lease.h"
#include "head/membership.h"
#include "node/node_core.h"
#include "runtime/owner.h"
#include "runtime/worker_machine.h"
#include "scheduling/global_scheduler.h"
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
  ActorDirectory::Faults directory_faults;
  // Of a cluster (cluster_simulation.h).
  bool cluster = false;
  Membership::Faults membership_faults;
  NodeLease::Faults lease_faults;
  MessageFlow::Faults flow_faults;
  GlobalScheduler::Faults global_faults;
  LeaseRouter::Faults router_faults;
  NodeCore::Faults core_faults;
  bool cluster_loses_writes = false;            // its control store, with the head
  struct ClusterFaults {                        // planted in the glue
    bool tell_before_writing = false;           // a node is accepted before the control store knows it
    bool take_the_unheard_of_for_dead = false;  // processes of nodes that the head has not told of yet; too rare
  } cluster_faults;
  bool judge_from_one_pass = false;  // Inquiries::Faults; too rare to be among the planted bugs
};

struct SimulationResult {
  std::string failure;  // empty: every promise was kept
  uint64_t trace_hash = 0;
  uint64_t events = 0;
  uint64_t tasks = 0;
  int64_t virtual_ns = 0;
  Coverage coverage;
  NodeCoverage node_coverage;
};

SimulationResult RunSimulation(const SimulationOptions& options);

}  // namespace weft::core
