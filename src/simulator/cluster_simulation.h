// A cluster of several nodes in one thread from one seed: per node the real local scheduler and worker pool, the owners
// of its processes, its lease and its message flows; on the head membership and the global scheduler, with a control
// store. Between them a network that cuts, resets and delays, machines that stop, lose their power and come back as new
// nodes, clocks that differ in speed, and a head that is killed and started again.
//
// Checked besides what simulation.h says of tasks and references: a number is given to one node only; what others may
// start again does not run on a node that was declared dead; messages between nodes come once and in order, and are
// kept within bounds; after healing every machine is a node again, and the program ends; at rest no node holds a lease,
// a request or a message, and nothing stands still.
//
// A seed gives the same run every time. Called by cluster_simulator_test.
#pragma once

#include <utility>
#include <vector>

#include "simulator/simulation.h"

namespace weft::core {

SimulationResult RunClusterSimulation(SimulationOptions options);

// What a set of runs must have met.
const std::vector<std::pair<size_t, const char*>>& ClusterMessages();
const std::vector<const char*>& ClusterDeeds();

}  // namespace weft::core
