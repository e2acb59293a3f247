// What a simulated task is and does, drawn from its number alone, so that every attempt of it does the same and returns
// the same. A body is a sequence of steps; which references a step uses is up to SimulatedProcess.
#pragma once

#include <cstdint>
#include <string>

#include "base/random.h"
#include "runtime/owner.h"
#include "wire/messages.h"

namespace weft::core {

// A number derived from another, for the n-th thing that belongs to it.
uint64_t DerivedNumber(uint64_t number, uint64_t n);

enum class Ending : uint8_t {
  kReturn,
  kRaise,
  kRaiseEarly,  // raises an exception that asks for a retry until its attempt `succeeds_at`
  kExit,        // a call that ends its actor
};

struct TaskSpec {
  uint64_t number = 0;
  TemplateKind kind = TemplateKind::kTask;
  uint32_t depth = 0;  // of nesting; 1 for a task of the driver
  ResourceAmounts shape;
  uint32_t num_returns = 1;
  int32_t max_retries = 3;  // -1: for ever
  Ending ending = Ending::kReturn;
  uint32_t succeeds_at = 0;
  uint32_t steps = 0;
  bool unsendable = false;  // its frame is larger than a channel takes
  bool satisfiable = true;
};

struct ActorSpec {
  uint64_t number = 0;
  ResourceAmounts to_place, to_hold;
  int32_t max_restarts = 0;
  int32_t max_task_retries = 0;
  bool detached = false;
  bool get_if_exists = false;
  std::string name;  // empty: none
  TaskSpec constructor;
};

struct Workload {
  uint32_t cpus = 1;
  uint32_t gpus = 0;
  uint32_t tasks = 0;  // in all, attempts not counted
  uint32_t driver_steps = 0;
  uint32_t max_depth = 3;
  uint32_t raise_percent = 0;
  uint32_t stored_percent = 0;
  int64_t longest_compute_ns = 0;
  bool in_cluster = false;  // of several nodes: what no node has would wait for ever
  bool long_pause = false;  // in the middle of the driver's program, so that workers leave
  // A program without actors has none of what follows.
  uint32_t actors = 0;      // in all
  uint32_t holders = 0;     // of them, those that keep a CPU
  uint32_t names = 1;       // different ones
  uint32_t call_share = 0;  // in percent of the steps, as are
  uint32_t cancel_share = 0;
  uint32_t kill_share = 0;
  uint32_t timeout_percent = 0;  // of the gets
};
Workload DrawWorkload(Random& random);
// For several nodes: tasks, values that travel with messages, and waiting. No actors and no stored values yet.
Workload DrawClusterWorkload(Random& random);
TaskSpec DrawTask(uint64_t number, uint32_t depth, const Workload& workload);
TaskSpec DrawCall(uint64_t number, uint32_t depth, int32_t max_task_retries, const Workload& workload);
// `may_hold`: it may keep a CPU for as long as it lives.
ActorSpec DrawActor(uint64_t number, uint32_t depth, bool may_hold, const Workload& workload);

enum class Step : uint8_t {
  kSubmit,
  kPut,
  kGet,
  kDrop,
  kKeep,
  kForget,
  kCompute,
  kCreate,  // an actor
  kCall,
  kLookUp,
  kKill,
  kCancel,
};
Step DrawStep(Random& random, bool driver, const Workload& workload);

// The i-th return value of a task, as bytes; what it contains is added by who makes it.
std::string ValueBytes(uint64_t number, uint32_t i);
bool IsStored(uint64_t number, uint32_t i, const Workload& workload);

}  // namespace weft::core
