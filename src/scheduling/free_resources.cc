#include "scheduling/free_resources.h"

#include <algorithm>

#include "base/check.h"
#include "wire/placement.h"

namespace weft::core {

FreeResources::FreeResources(const ResourceAmounts& total) : amounts_(total) {
  for (int64_t left = AmountOf(total, kGpu); left > 0; left -= kResourceUnit) {
    gpus_.push_back(std::min(left, kResourceUnit));
  }
}

bool FreeResources::FitsGpus(int64_t amount) const {
  if (amount == 0) return true;
  if (amount < kResourceUnit) {
    return std::any_of(gpus_.begin(), gpus_.end(), [&](int64_t free) { return free >= amount; });
  }
  return amount % kResourceUnit == 0 &&
         std::count(gpus_.begin(), gpus_.end(), kResourceUnit) >= static_cast<int64_t>(amount / kResourceUnit);
}

bool FreeResources::Lacks(std::string_view name, int64_t amount) const {
  return !IsPlacement(name) && (amounts_.Of(name) < amount || (name == kGpu && !FitsGpus(amount)));
}

bool FreeResources::Fits(const ResourceAmounts& shape) const {
  return std::none_of(shape.begin(), shape.end(), [&](const auto& need) { return Lacks(need.first, need.second); });
}

AssignedGpus FreeResources::Take(const ResourceAmounts& shape) {
  amounts_.Subtract(shape);
  AssignedGpus taken;
  for (int64_t left = AmountOf(shape, kGpu); left > 0;) {
    int64_t part = std::min(left, kResourceUnit);
    // The fullest that has room; if none has (on paper), the emptiest.
    size_t best = gpus_.size();
    for (size_t i = 0; i < gpus_.size(); ++i) {
      if (gpus_[i] == 0) continue;
      if (best == gpus_.size()) {
        best = i;
        continue;
      }
      bool fits = gpus_[i] >= part, best_fits = gpus_[best] >= part;
      if (fits ? !best_fits || gpus_[i] < gpus_[best] : !best_fits && gpus_[i] > gpus_[best]) best = i;
    }
    if (best == gpus_.size()) break;
    int64_t got = std::min(part, gpus_[best]);
    gpus_[best] -= got;
    taken.emplace_back(static_cast<uint32_t>(best), got);
    left -= part;
  }
  return taken;
}

void FreeResources::Give(const ResourceAmounts& shape, const AssignedGpus& gpus) {
  amounts_.Add(shape);
  for (const auto& [number, amount] : gpus) {
    WEFT_CHECK(number < gpus_.size() && gpus_[number] + amount <= kResourceUnit, "a GPU is given back once");
    gpus_[number] += amount;
  }
}

void FreeResources::TakeAgain(const ResourceAmounts& shape, const AssignedGpus& gpus) {
  amounts_.Subtract(shape);
  for (const auto& [number, amount] : gpus) {
    WEFT_CHECK(number < gpus_.size() && gpus_[number] >= amount, "a GPU is taken while it is free");
    gpus_[number] -= amount;
  }
}

AssignedGpus FirstOf(const AssignedGpus& gpus, int64_t amount) {
  AssignedGpus first;
  for (const auto& [number, has] : gpus) {
    if (amount <= 0) break;
    first.emplace_back(number, std::min(has, amount));
    amount -= first.back().second;
  }
  return first;
}

}  // namespace weft::core
