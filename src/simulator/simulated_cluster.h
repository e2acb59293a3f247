// The machines of a simulated cluster, the network between them and the control store, and the faults that strike
// them. On each machine one life of a node daemon follows another (SimulatedNode); machine 0 has the head.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "control_store/simulated_store.h"
#include "simulator/simulated_network.h"
#include "simulator/simulated_node.h"
#include "simulator/world.h"

namespace weft::core {

struct SimulatedMachine {
  size_t number = 0;
  uint32_t cpus = 1, gpus = 0;
  bool has_driver = false;
  int64_t clock_offset_ns = 0;
  int64_t drift_ppm = 0;  // how much faster its clock goes
  std::vector<std::unique_ptr<SimulatedNode>> lives;
  uint64_t next_port = 2;  // nodes take a free one; 1 is the head's

  SimulatedNode* life() const { return lives.empty() || lives.back()->ended() ? nullptr : lives.back().get(); }
  int64_t Clock(int64_t ns) const { return ns + ns / 1'000'000 * drift_ppm + clock_offset_ns; }
  // When this clock will show that.
  int64_t When(int64_t clock_ns) const {
    const int64_t since = clock_ns - clock_offset_ns;
    return since - since / (1'000'000 + drift_ppm) * drift_ppm;
  }
};

class SimulatedCluster {
 public:
  static constexpr int64_t kLeaseNs = 1'000'000'000;

  explicit SimulatedCluster(World& world);

  void Start();
  void ScheduleFaults();
  void Heal();
  // A daemon on this machine has ended by itself, or was killed: another is started in a moment.
  void StartAgain(SimulatedMachine& machine, int64_t delay_ns);
  // Another node could not reach it, which is trouble of its own.
  bool Expelled(NodeNumber node) { return expelled_.insert(node).second; }
  // What the head has told others.
  void DeclaredDead(NodeNumber node);
  bool IsDeclaredDead(NodeNumber node) const { return declared_dead_.contains(node); }
  void NumberGiven(NodeNumber node, size_t machine);
  // Something keeps this machine from being heard by the head, until then.
  void Trouble(size_t machine, int64_t until_ns);
  int64_t PausedUntil(ProcessId process) const;
  // Of user code that is about to do something.
  void CheckMayRun(const SimulatedProcess& process);
  bool Settled() const;  // every machine has a node that the head knows
  void CheckRest();
  std::string Describe() const;

  SimulatedNetwork network;
  std::shared_ptr<SimulatedStorage> storage = std::make_shared<SimulatedStorage>();
  std::vector<std::unique_ptr<SimulatedMachine>> machines;
  int heads = 0;  // that have led, one after the other

 private:
  void Kill(SimulatedMachine& machine, bool power);
  size_t AnyMachine();

  World& world_;
  std::set<NodeNumber> expelled_;
  std::set<NodeNumber> declared_dead_;
  std::map<NodeNumber, size_t> given_;  // and the machine
  std::map<size_t, int64_t> trouble_until_ns_;
};

}  // namespace weft::core
