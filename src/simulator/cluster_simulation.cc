#include "simulator/cluster_simulation.h"

#include "simulator/simulated_cluster.h"
#include "simulator/simulated_daemon.h"
#include "simulator/simulated_process.h"
#include "simulator/world.h"

namespace weft::core {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kFaultyForNs = 20 * kSecond;
constexpr int64_t kEndWithinNs = 200 * kSecond;
// Longer than anything waits on purpose: idle leases, idle workers, failed starts.
constexpr int64_t kQuietNs = 15 * kSecond;
constexpr uint64_t kMostEvents = 5'000'000;

template <class Alternative, size_t I = 0>
constexpr size_t IndexOf() {
  if constexpr (std::is_same_v<std::variant_alternative_t<I, NodeMessage>, Alternative>) {
    return I;
  } else {
    return IndexOf<Alternative, I + 1>();
  }
}

void Run(World& world) {
  world.cluster->Start();
  world.ScheduleFaults();
  auto program_has_ended = [&] {
    SimulatedProcess* driver = world.driver ? world.Find(world.driver) : nullptr;
    return driver != nullptr && (!driver->alive || driver->driver_done());
  };
  int64_t ended_ns = -1;
  for (;;) {
    if (world.queue.executed() > kMostEvents) world.Fail("it does not come to rest");
    if (!world.healed && world.now() > kFaultyForNs) world.Heal();
    if (world.healed && world.now() > world.healed_ns + kEndWithinNs) {
      world.Fail(ended_ns < 0 ? "the driver still waits long after healing" : "not at rest long after the end");
    }
    world.queue.RunNext();
    if (ended_ns < 0 && program_has_ended()) {
      ended_ns = world.now();
      world.node_coverage.Did(world.Alive(world.driver) ? "a program ended" : "a program was lost with its node");
      world.Heal();
      world.closing = true;
      for (auto& [id, process] : world.processes) process->ForgetGlobals();
    }
    if (ended_ns >= 0 && world.now() > std::max(ended_ns, world.last_activity_ns) + kQuietNs) break;
  }
  world.CheckRest();
}

}  // namespace

const std::vector<std::pair<size_t, const char*>>& ClusterMessages() {
  static const std::vector<std::pair<size_t, const char*>> kMessages = {
      {IndexOf<NodeJoins>(), "NodeJoins"},
      {IndexOf<NodeAccepted>(), "NodeAccepted"},
      {IndexOf<NodeRefused>(), "NodeRefused"},
      {IndexOf<NodeBeat>(), "NodeBeat"},
      {IndexOf<BeatConfirmed>(), "BeatConfirmed"},
      {IndexOf<NodeAppeared>(), "NodeAppeared"},
      {IndexOf<NodeVanished>(), "NodeVanished"},
      {IndexOf<NodesListed>(), "NodesListed"},
      {IndexOf<NodeLoad>(), "NodeLoad"},
      {IndexOf<LeaseRequest>(), "LeaseRequest"},
      {IndexOf<WorkAssigned>(), "WorkAssigned"},
      {IndexOf<RequestAssigned>(), "RequestAssigned"},
      {IndexOf<JobDescribed>(), "JobDescribed"},
      {IndexOf<ForProcess>(), "ForProcess"},
      {IndexOf<FromProcess>(), "FromProcess"},
      {IndexOf<RoutedAcross>(), "RoutedAcross"},
      {IndexOf<ProcessVanished>(), "ProcessVanished"},
      {IndexOf<ChannelWanted>(), "ChannelWanted"},
      {IndexOf<FlowTaken>(), "FlowTaken"},
      {IndexOf<ChannelBroken>(), "ChannelBroken"},
  };
  return kMessages;
}

const std::vector<const char*>& ClusterDeeds() {
  static const std::vector<const char*> kDeeds = {
      "a program ended",
      "a program was lost with its node",
      "a lease was granted to another node",
      "a lease was returned because there was no connection",
      "a worker ended with its connection",
      "a node froze its work",
      "a process was frozen from its beginning",
      "a node thawed its work",
      "a node was declared dead",
      "a process was taken for dead with its node",
      "a node lost its place",
      "a suspected node came back",
      "a node met a new head",
      "a node saw that the head had ended",
      "a daemon was killed",
      "a machine lost its power",
      "a machine stood still",
      "one direction was cut",
      "two machines were cut off from each other",
      "the cluster was divided",
      "the control store was away",
      "the head died",
      "the head was started again",
  };
  return kDeeds;
}

SimulationResult RunClusterSimulation(SimulationOptions options) {
  options.cluster = true;
  World world(options);
  SimulationResult result;
  try {
    Run(world);
  } catch (const SimulationFailed& failed) {
    result.failure = failed.why;
  }
  result.trace_hash = world.trace_hash;
  result.events = world.queue.executed();
  result.tasks = world.tasks.size();
  result.virtual_ns = world.now();
  result.coverage = world.coverage;
  result.node_coverage = world.node_coverage;
  return result;
}

}  // namespace weft::core
