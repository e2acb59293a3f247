#include "scheduling/resources.h"

namespace weft::core {
namespace {

// 2^48 units are 28 billion of anything; 16,000 such amounts can be summed without overflow.
constexpr int64_t kMaxAmount = int64_t{1} << 48;
constexpr size_t kMaxNames = 64;
constexpr size_t kMaxNameBytes = 256;

}  // namespace

bool IsValidShape(const ResourceAmounts& shape) {
  if (shape.size() > kMaxNames) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    const auto& [name, amount] = shape[i];
    if (name.empty() || name.size() > kMaxNameBytes) return false;
    if (amount <= 0 || amount > kMaxAmount) return false;
    if (i > 0 && shape[i - 1].first >= name) return false;
  }
  return true;
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
    if (!text.empty()) text += ", ";
    text += FormatAmount(amount) + " " + name;
  }
  return text.empty() ? "nothing" : text;
}

bool ResourceLedger::Fits(const ResourceAmounts& shape) const {
  for (const auto& [name, amount] : shape) {
    if (Of(name) < amount) return false;
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
  auto found = amounts_.find(name);
  if (found == amounts_.end()) found = amounts_.emplace(std::string(name), 0).first;
  found->second += by;
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
