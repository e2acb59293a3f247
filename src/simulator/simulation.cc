#include "simulator/simulation.h"

#include "simulator/simulated_daemon.h"
#include "simulator/simulated_process.h"
#include "simulator/world.h"

namespace weft::core {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kFaultyForNs = 20 * kSecond;
// Long against everything that a process waits for on purpose: idle leases, idle workers, failed starts.
constexpr int64_t kRestWithinNs = 200 * kSecond;
constexpr uint64_t kMostEvents = 3'000'000;

void Run(World& world) {
  world.daemons.at(NodeNumber{})->OpenSession();
  SimulatedProcess& driver = *world.Find(world.driver);
  driver.StartDriver();
  world.ScheduleFaults();
  while (!world.queue.empty()) {
    if (world.queue.executed() > kMostEvents) world.Fail("it does not come to rest");
    if (!world.healed && world.now() > kFaultyForNs) world.Heal();
    if (world.healed && world.now() > world.healed_ns + kRestWithinNs) {
      world.Fail(driver.driver_done() ? "not at rest long after the end" : "the driver still waits long after healing");
    }
    world.queue.RunNext();
    if (driver.driver_done() && !world.closing) {
      world.closing = true;
      for (auto& [id, process] : world.processes) process->ForgetGlobals();
    }
  }
  if (!driver.driver_done()) world.Fail("nothing happens any more, and the driver still waits");
  // What is meant to outlive its handles is ended as users must, and so are actors that keep each other.
  driver.KillActors(world.CheckActorsAtRest());
  while (!world.queue.empty()) {
    if (world.now() > world.healed_ns + 2 * kRestWithinNs) world.Fail("not at rest long after the actors' end");
    world.queue.RunNext();
  }
  world.CheckRest();
}

}  // namespace

SimulationResult RunSimulation(const SimulationOptions& options) {
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
  return result;
}

}  // namespace weft::core
