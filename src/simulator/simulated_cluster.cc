#include "simulator/simulated_cluster.h"

#include <algorithm>

#include "simulator/cluster_simulation.h"
#include "simulator/simulated_daemon.h"
#include "simulator/simulated_process.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr size_t kMostMachines = 5;

size_t DrawMachines(World& world) { return 2 + world.random.Below(kMostMachines - 1); }

}  // namespace

SimulatedCluster::SimulatedCluster(World& world) : network(world, kMostMachines), world_(world) {
  const size_t count = DrawMachines(world);
  const size_t with_driver = world.random.Chance(25) ? 0 : 1 + world.random.Below(count - 1);
  for (size_t i = 0; i < count; ++i) {
    auto machine = std::make_unique<SimulatedMachine>();
    machine->number = i;
    // Every shape has a place on every machine, if need be with what waiting tasks lend; but for GPUs.
    machine->cpus = static_cast<uint32_t>(2 + world.random.Below(3));
    machine->gpus = i + 1 == count || world.random.Chance(20) ? 1 : 0;
    machine->has_driver = i == with_driver;
    machine->clock_offset_ns = static_cast<int64_t>(world.random.Below(1'000'000) * kMs);
    machine->drift_ppm = static_cast<int64_t>(world.random.Below(40'000)) - 20'000;
    machines.push_back(std::move(machine));
  }
  network.crash = [this](size_t number) {
    SimulatedMachine& machine = *machines[number];
    if (world_.faulty() && (!machine.has_driver || world_.random.Chance(10))) Kill(machine, world_.random.Chance(50));
  };
  for (uint64_t i = world.calm ? 0 : world.random.Below(7); i > 0; --i) {
    const auto& kinds = ClusterMessages();
    SimulatedNetwork::Planned plan;
    plan.kind = kinds[world.random.Below(kinds.size())].first;
    plan.fault = static_cast<NetworkFault>(world.random.Below(static_cast<uint64_t>(NetworkFault::kCount)));
    plan.after = static_cast<uint32_t>(world.random.Below(world.random.Chance(60) ? 4 : 60));
    // The rare ones need a plan most.
    const size_t kRare[] = {NodeMessage(NodeRefused{}).index(), NodeMessage(NodeVanished{}).index(),
                            NodeMessage(ChannelBroken{}).index(), NodeMessage(BeatConfirmed{}).index()};
    if (world.random.Chance(40)) {
      plan.kind = kRare[world.random.Below(std::size(kRare))];
      plan.after = static_cast<uint32_t>(world.random.Below(2));
    }
    network.planned.push_back(plan);
  }
}

void SimulatedCluster::Start() {
  for (auto& machine : machines)
    StartAgain(*machine, machine->number == 0 ? 0 : static_cast<int64_t>(world_.random.Below(20 * kMs)));
  ScheduleFaults();
}

void SimulatedCluster::StartAgain(SimulatedMachine& machine, int64_t delay_ns) {
  world_.queue.At(world_.now() + delay_ns, [this, &machine] {
    if (machine.life()) return;
    network.SetPower(machine.number, true);
    const bool head = machine.number == 0;
    machine.lives.push_back(std::make_unique<SimulatedNode>(world_, machine, head, head ? 1 : machine.next_port++));
    machine.lives.back()->Start();
  });
}

void SimulatedCluster::Kill(SimulatedMachine& machine, bool power) {
  SimulatedNode* life = machine.life();
  if (!life) return;
  world_.Note(power ? "power fails" : "daemon is killed", machine.number, life->self().value);
  world_.node_coverage.Did(power ? "a machine lost its power" : "a daemon was killed");
  if (power) network.SetPower(machine.number, false);
  if (machine.number == 0) {
    world_.node_coverage.Did("the head died");
    // It may take what it was last told was written with it, if the control store loses that, too.
    if (world_.options.cluster_loses_writes && world_.random.Chance(30)) storage->LoseLast(1 + world_.random.Below(3));
  }
  life->End();
  StartAgain(machine,
             kMs + static_cast<int64_t>(world_.random.Below(world_.random.Chance(50) ? 200 * kMs : 2'500 * kMs)));
}

size_t SimulatedCluster::AnyMachine() { return world_.random.Below(machines.size()); }

// ---- faults -------------------------------------------------------------------------------------------------------

void SimulatedCluster::ScheduleFaults() {
  if (world_.calm) return;
  Random& random = world_.random;
  auto any_time = [&random] { return static_cast<int64_t>(random.Below(random.Chance(50) ? 100 * kMs : 3'000 * kMs)); };
  // Shorter and longer than a lease.
  auto duration = [&random] {
    return static_cast<int64_t>(random.Below(random.Chance(50)   ? 100 * kMs
                                             : random.Chance(50) ? 900 * kMs
                                                                 : 3'000 * kMs));
  };
  for (uint64_t i = random.Below(4); i > 0; --i) {
    world_.queue.At(any_time(), [=, this] {
      if (!world_.faulty()) return;
      SimulatedMachine& machine = *machines[AnyMachine()];
      // The program itself should mostly live to see its end.
      if (machine.has_driver && !world_.random.Chance(10)) return;
      Kill(machine, world_.random.Chance(50));
    });
  }
  for (uint64_t i = random.Below(4); i > 0; --i) {
    world_.queue.At(any_time(), [=, this] {
      const size_t machine = AnyMachine();
      if (!world_.faulty() || (machines[machine]->has_driver && !world_.random.Chance(30))) return;
      world_.Note("machine pauses", machine);
      world_.node_coverage.Did("a machine stood still");
      network.Pause(machine, world_.now() + duration());
    });
  }
  for (uint64_t i = random.Below(4); i > 0; --i) {
    world_.queue.At(any_time(), [=, this] {
      if (!world_.faulty()) return;
      const size_t a = AnyMachine(), b = world_.random.Chance(40) ? 0 : AnyMachine();
      const int64_t until = world_.now() + duration();
      world_.Note("cut", a, b);
      if (machines[a]->has_driver && b == 0 && world_.random.Chance(60)) return;
      network.Cut(a, b, until);
      if (world_.random.Chance(60)) return world_.node_coverage.Did("one direction was cut");
      network.Cut(b, a, until);
      world_.node_coverage.Did("two machines were cut off from each other");
    });
  }
  if (random.Chance(30)) {
    world_.queue.At(any_time(), [=, this] {
      if (!world_.faulty()) return;
      const uint64_t sides = world_.random.Next();
      const int64_t until = world_.now() + duration();
      world_.Note("partition", sides & 31);
      world_.node_coverage.Did("the cluster was divided");
      for (size_t a = 0; a < machines.size(); ++a) {
        for (size_t b = 0; b < machines.size(); ++b) {
          if ((sides >> a & 1) != (sides >> b & 1)) network.Cut(a, b, until);
        }
      }
    });
  }
  for (uint64_t i = random.Below(3); i > 0; --i) {
    // A node that loses its link to the head, and only that.
    world_.queue.At(any_time(), [=, this] {
      const size_t machine = AnyMachine();
      if (!world_.faulty() || machine == 0 || (machines[machine]->has_driver && !world_.random.Chance(30))) return;
      world_.Note("cut off", machine);
      world_.node_coverage.Did("a node was cut off from the head alone");
      const int64_t until = world_.now() + 50 * kMs + duration();
      network.ResetAll(machine, 0);
      // After the news of it has come.
      world_.queue.At(world_.now() + 9 * kMs, [=, this] {
        network.Cut(machine, 0, until);
        network.Cut(0, machine, until);
      });
    });
  }
  for (uint64_t i = random.Below(12); i > 0; --i) {
    world_.queue.At(any_time(), [this] {
      if (world_.faulty()) network.ResetSome();
    });
  }
  if (random.Chance(40)) {
    world_.queue.At(any_time(), [=, this] {
      if (!world_.faulty()) return;
      storage->away = true;
      world_.queue.At(world_.now() + duration(), [this] { storage->away = false; });
    });
  }
}

// What holds the network and machines up ends by itself soon.
void SimulatedCluster::Heal() { storage->away = false; }

// ---- truth --------------------------------------------------------------------------------------------------------

int64_t SimulatedCluster::PausedUntil(ProcessId process) const {
  SimulatedDaemon* daemon = world_.DaemonOf(process);
  return daemon ? network.PausedUntil(daemon->machine()) : 0;
}

void SimulatedCluster::Trouble(size_t machine, int64_t until_ns) {
  int64_t& until = trouble_until_ns_[machine];
  until = std::max(until, until_ns);
}

void SimulatedCluster::NumberGiven(NodeNumber node, size_t machine) {
  if (!given_.emplace(node, machine).second)
    world_.Fail("the number " + std::to_string(node.value) + " was given to two nodes");
  // Else a head that comes after this one gives the number away once more.
  const auto records = storage->Read();
  const bool written = std::any_of(records.begin(), records.end(), [node](const StoredRecord& record) {
    const auto known = Decode<NodeRecord>(record);
    return known && known->number == node.value;
  });
  if (!written && !IsDeclaredDead(node) && !world_.options.cluster_loses_writes) {
    world_.Fail("node " + std::to_string(node.value) + " has its number before the control store does");
  }
}

// From now on others act upon it.
void SimulatedCluster::DeclaredDead(NodeNumber node) {
  declared_dead_.insert(node);
  // The head's own absence is nobody's fault.
  if (auto given = given_.find(node); given != given_.end() && given->second != 0 && !expelled_.contains(node)) {
    const int64_t trouble = trouble_until_ns_.contains(given->second) ? trouble_until_ns_.at(given->second) : 0;
    if (trouble + 4 * kLeaseNs < world_.now() || trouble == 0) {
      world_.Fail("node " + std::to_string(node.value) + " was declared dead, though nothing kept it from being heard");
    }
  }
  for (auto& [id, process] : world_.processes) {
    if (NodeOf(id) != node || !process->alive) continue;
    process->buried = true;
    process->DoomLeased(true);
    world_.node_coverage.Did("a process was taken for dead with its node");
  }
}

void SimulatedCluster::CheckMayRun(const SimulatedProcess& process) {
  if (!process.busy() || !IsDeclaredDead(NodeOf(process.id))) return;
  SimulatedDaemon* daemon = world_.DaemonOf(process.id);
  if (daemon == nullptr || !daemon->CouldRunElsewhere(process.id)) return;
  world_.Fail("process " + std::to_string(process.id.value) + " runs on, though its node was declared dead");
}

bool SimulatedCluster::Settled() const {
  for (const auto& machine : machines) {
    if (!machine->life() || !machine->life()->self()) return false;
  }
  return true;
}

void SimulatedCluster::CheckRest() {
  for (const auto& machine : machines) {
    if (!machine->life() || !machine->life()->self()) {
      world_.Fail("at rest, machine " + std::to_string(machine->number) + " is no node");
    }
    machine->life()->CheckRest();
  }
}

std::string SimulatedCluster::Describe() const {
  std::string text;
  for (const auto& machine : machines) {
    if (machine->life()) text += machine->life()->Describe();
  }
  return text;
}

}  // namespace weft::core
