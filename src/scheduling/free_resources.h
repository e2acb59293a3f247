// What a node has free at one moment: amounts of each resource, and which GPUs they are.
//
// GPUs have numbers, 0 up to the node's amount. One that is shared is shared between small requests only: a whole
// number of GPUs takes GPUs that nobody else uses, a fraction takes part of a single one, the fullest that has room.
// Values of CPUs may go below zero: CPUs that were lent and are in use again.
//
// Used by LocalScheduler for what is free and for what would be free if. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduling/resources.h"
#include "wire/messages.h"

namespace weft::core {

class FreeResources {
 public:
  explicit FreeResources(const ResourceAmounts& total);

  bool Fits(const ResourceAmounts& shape) const;
  // True if this one resource alone keeps a shape from fitting.
  bool Lacks(std::string_view name, int64_t amount) const;
  // What fits is taken exactly. What does not is taken all the same, on paper: no GPU is then given below zero.
  AssignedGpus Take(const ResourceAmounts& shape);
  // The very GPUs that were given back a moment ago, or some of them.
  void TakeAgain(const ResourceAmounts& shape, const AssignedGpus& gpus);
  void Give(const ResourceAmounts& shape, const AssignedGpus& gpus);
  void Adjust(std::string_view name, int64_t by) { amounts_.Adjust(name, by); }

  int64_t Of(std::string_view name) const { return amounts_.Of(name); }
  const ResourceLedger& amounts() const { return amounts_; }
  const std::vector<int64_t>& gpus() const { return gpus_; }

 private:
  bool FitsGpus(int64_t amount) const;

  ResourceLedger amounts_;
  std::vector<int64_t> gpus_;  // free of each, by number
};

// The first of the GPUs, up to this amount: what a holder keeps that needs less from now on.
AssignedGpus FirstOf(const AssignedGpus& gpus, int64_t amount);

}  // namespace weft::core
