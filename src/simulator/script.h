// What a simulated task is and does, drawn from its number alone, so that every attempt of it does the same and returns
// the same. A body is a sequence of steps; which references a step uses is up to SimulatedProcess.
#pragma once

#include <cstdint>
#include <string>

#include "base/random.h"
#include "wire/messages.h"

namespace weft::core {

// A number derived from another, for the n-th thing that belongs to it.
uint64_t DerivedNumber(uint64_t number, uint64_t n);

enum class Ending : uint8_t {
  kReturn,
  kRaise,
  kRaiseEarly,  // raises an exception that asks for a retry until its attempt `succeeds_at`
};

struct TaskSpec {
  uint64_t number = 0;
  uint32_t depth = 0;  // of nesting; 1 for a task of the driver
  ResourceAmounts shape;
  uint32_t num_returns = 1;
  int32_t max_retries = 3;
  Ending ending = Ending::kReturn;
  uint32_t succeeds_at = 0;
  uint32_t steps = 0;
  bool unsendable = false;  // its frame is larger than a channel takes
  bool satisfiable = true;
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
  bool long_pause = false;  // in the middle of the driver's program, so that workers leave
};
Workload DrawWorkload(Random& random);
TaskSpec DrawTask(uint64_t number, uint32_t depth, const Workload& workload);

enum class Step : uint8_t { kSubmit, kPut, kGet, kDrop, kKeep, kForget, kCompute };
Step DrawStep(Random& random, bool driver);

// The i-th return value of a task, as bytes; what it contains is added by who makes it.
std::string ValueBytes(uint64_t number, uint32_t i);
bool IsStored(uint64_t number, uint32_t i, const Workload& workload);

}  // namespace weft::core
