// Arithmetic on amounts of resources, in units of 1/10,000 (wire/messages.h), so that it is exact.
//
// A shape is what one lease needs. It comes from another process: IsValidShape before anything else is done with it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "wire/languages.h"
#include "wire/messages.h"

namespace weft::core {

inline constexpr std::string_view kCpu = "CPU";
inline constexpr std::string_view kGpu = "GPU";  // these have numbers: scheduling/free_resources.h

// Sorted by name, no name twice, at most one placement (wire/placement.h), every amount above zero and far below where
// sums could overflow.
bool IsValidShape(const ResourceAmounts& shape);

// Of each resource the larger amount.
ResourceAmounts LargerOf(const ResourceAmounts& a, const ResourceAmounts& b);

// The amount of one resource in a shape; 0 if it is not named.
int64_t AmountOf(const ResourceAmounts& shape, std::string_view name);

inline bool WantsPythonWorker(const ResourceAmounts& shape) { return AmountOf(shape, kPythonWorker) > 0; }

// "2", "0.5", "0.0001".
std::string FormatAmount(int64_t amount);
// "2 CPU, 1 gpu"; "nothing" for an empty shape. For users: without what is no resource of theirs (kPythonWorker).
std::string FormatShape(const ResourceAmounts& shape);

// How much there is of each resource at one moment; placements in shapes are passed over. Values may go below zero:
// CPUs that were lent and are in use again.
class ResourceLedger {
 public:
  ResourceLedger() = default;
  explicit ResourceLedger(const ResourceAmounts& amounts) { Add(amounts); }

  bool Fits(const ResourceAmounts& shape) const;
  void Add(const ResourceAmounts& shape);
  void Subtract(const ResourceAmounts& shape);
  void Adjust(std::string_view name, int64_t by);
  int64_t Of(std::string_view name) const;
  const std::map<std::string, int64_t, std::less<>>& amounts() const { return amounts_; }
  bool operator==(const ResourceLedger& other) const;  // a resource that is not named counts as zero

 private:
  std::map<std::string, int64_t, std::less<>> amounts_;
};

}  // namespace weft::core
