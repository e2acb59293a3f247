#include "scheduling/resources.h"

#include <algorithm>
#include <utility>

#include "wire/placement.h"
#include "wire/resource_names.h"

namespace weft::core {
namespace {

// 2^56 units are 7 TB of memory; 128 such amounts can be summed without overflow, and Adjust stops there.
constexpr int64_t kMaxAmount = int64_t{1} << 56;
constexpr int64_t kMaxSum = int64_t{1} << 62;
constexpr size_t kMaxNames = 64;
static_assert(kMaxOwnResources + 10 <= kMaxNames);

}  // namespace

bool IsValidShape(const ResourceAmounts& shape) {
  if (shape.size() > kMaxNames) return false;
  bool placed = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    const auto& [name, amount] = shape[i];
    if (IsPlacement(name)) {
      Placement placement;
      if (std::exchange(placed, true) || !DecodePlacement(name, &placement)) return false;
    } else if (name.empty() || name.size() > kMaxResourceNameBytes) {
      return false;
    }
    if (amount <= 0 || amount > kMaxAmount) return false;
    if (i > 0 && shape[i - 1].first >= name) return false;
  }
  return true;
}

ResourceAmounts LargerOf(const ResourceAmounts& a, const ResourceAmounts& b) {
  std::map<std::string, int64_t> larger(a.begin(), a.end());
  for (const auto& [name, amount] : b) {
    int64_t& mine = larger[name];
    mine = std::max(mine, amount);
  }
  return ResourceAmounts(larger.begin(), larger.end());
}

int64_t AmountOf(const ResourceAmounts& shape, std::string_view name) {
  for (const auto& [key, amount] : shape) {
    if (key == name) return amount;
  }
  return 0;
}

std::string FormatAmount(int64_t amount) {
  std::string sign = amount < 0 ? "-" : "";
  uint64_t magnitude = amount < 0 ? 0 - static_cast<uint64_t>(amount) : static_cast<uint64_t>(amount);
  std::string text = sign + std::to_string(magnitude / kResourceUnit);
  uint64_t rest = magnitude % kResourceUnit;
  if (rest == 0) return text;
  std::string digits = std::to_string(rest);
  digits.insert(0, 4 - digits.size(), '0');
  while (digits.back() == '0') digits.pop_back();
  return text + "." + digits;
}

std::string FormatShape(const ResourceAmounts& shape) {
  std::string text;
  for (const auto& [name, amount] : shape) {
    if (name == kPythonWorker) continue;
    if (!text.empty()) text += ", ";
    text += IsPlacement(name) ? FormatPlacement(name) : FormatAmount(amount) + " " + name;
  }
  return text.empty() ? "nothing" : text;
}

bool ResourceLedger::Fits(const ResourceAmounts& shape) const {
  for (const auto& [name, amount] : shape) {
    if (Of(name) < amount && !IsPlacement(name)) return false;
  }
  return true;
}

void ResourceLedger::Add(const ResourceAmounts& shape) {
  for (const auto& [name, amount] : shape) Adjust(name, amount);
}

void ResourceLedger::Subtract(const ResourceAmounts& shape) {
  for (const auto& [name, amount] : shape) Adjust(name, -amount);
}

void ResourceLedger::Adjust(std::string_view name, int64_t by) {
  if (IsPlacement(name)) return;
  auto found = amounts_.find(name);
  if (found == amounts_.end()) found = amounts_.emplace(std::string(name), 0).first;
  found->second = std::clamp(found->second + by, -kMaxSum, kMaxSum);
}

int64_t ResourceLedger::Of(std::string_view name) const {
  auto found = amounts_.find(name);
  return found == amounts_.end() ? 0 : found->second;
}

bool ResourceLedger::operator==(const ResourceLedger& other) const {
  for (const auto& [name, amount] : amounts_) {
    if (other.Of(name) != amount) return false;
  }
  for (const auto& [name, amount] : other.amounts_) {
    if (Of(name) != amount) return false;
  }
  return true;
}

}  // namespace weft::core
