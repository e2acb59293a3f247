#include "wire/placement.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace weft::core {
namespace {

constexpr size_t kMaxLabelBytes = 100;
constexpr size_t kNodeIdDigits = 32;
constexpr std::string_view kHex = "0123456789abcdef";
constexpr std::string_view kSpread = "spread", kNode = "node:", kSoftNode = "node~:", kNear = "near:";

bool HasOnly(std::string_view text, std::string_view besides) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           besides.find(c) != besides.npos;
  });
}

std::vector<std::string> Split(std::string_view text, char by) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t at = text.find(by);
    parts.emplace_back(text.substr(0, at));
    if (at == text.npos) return parts;
    text.remove_prefix(at + 1);
  }
}

bool DecodeCondition(std::string_view text, LabelCondition& condition) {
  const size_t equals = text.find('=');
  if (equals == text.npos) {
    condition.test = text.starts_with('!') ? LabelTest::kAbsent : LabelTest::kExists;
    condition.key = text.substr(text.starts_with('!') ? 1 : 0);
    return WhyNoLabel(condition.key, "").empty();
  }
  const bool negated = equals > 0 && text[equals - 1] == '!';
  condition.test = negated ? LabelTest::kNotIn : LabelTest::kIn;
  condition.key = text.substr(0, equals - (negated ? 1 : 0));
  condition.values = Split(text.substr(equals + 1), ',');
  return std::all_of(condition.values.begin(), condition.values.end(),
                     [&](const std::string& value) { return WhyNoLabel(condition.key, value).empty(); });
}

}  // namespace

std::string EncodePlacement(const Placement& placement) {
  std::string name = "~";
  if (!placement.node.empty()) {
    name += std::string(placement.soft ? kSoftNode : kNode) + placement.node;
  } else if (placement.spread) {
    name += kSpread;
  } else if (placement.near) {
    name += std::string(kNear) + std::to_string(placement.near.value);
  }
  for (const LabelCondition& condition : placement.labels) {
    name += &condition == &placement.labels.front() ? '?' : '&';
    if (condition.test == LabelTest::kAbsent) name += '!';
    name += condition.key;
    if (condition.test == LabelTest::kExists || condition.test == LabelTest::kAbsent) continue;
    name += condition.test == LabelTest::kIn ? "=" : "!=";
    for (const std::string& value : condition.values) name += (&value == &condition.values.front() ? "" : ",") + value;
  }
  return name.size() > 1 ? name : "";
}

bool DecodePlacement(std::string_view name, Placement* placement) {
  if (!IsPlacement(name) || name.size() > kMaxPlacementBytes) return false;
  *placement = {};
  name.remove_prefix(1);
  const size_t question = name.find('?');
  std::string_view strategy = name.substr(0, question);
  if (strategy == kSpread) {
    placement->spread = true;
  } else if (strategy.starts_with(kNear)) {
    const std::string_view digits = strategy.substr(kNear.size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), placement->near.value);
    if (error != std::errc() || end != digits.data() + digits.size() || !placement->near) return false;
  } else if (!strategy.empty()) {
    placement->soft = strategy.starts_with(kSoftNode);
    if (!placement->soft && !strategy.starts_with(kNode)) return false;
    placement->node = strategy.substr(placement->soft ? kSoftNode.size() : kNode.size());
    if (placement->node.size() != kNodeIdDigits || placement->node.find_first_not_of(kHex) != std::string::npos) {
      return false;
    }
  }
  if (question == name.npos) return !strategy.empty();
  for (const std::string& part : Split(name.substr(question + 1), '&')) {
    if (!DecodeCondition(part, placement->labels.emplace_back())) return false;
  }
  return true;
}

void AddPlacement(ResourceAmounts& shape, const Placement& placement) {
  if (std::string name = EncodePlacement(placement); !name.empty()) shape.emplace_back(std::move(name), 1);
  std::sort(shape.begin(), shape.end());
}

std::string_view PlacementOf(const ResourceAmounts& shape) {
  for (const auto& [name, amount] : shape) {
    if (IsPlacement(name)) return name;
  }
  return {};
}

ResourceAmounts WithoutPlacement(const ResourceAmounts& shape) {
  ResourceAmounts rest = shape;
  std::erase_if(rest, [](const auto& entry) { return IsPlacement(entry.first); });
  return rest;
}

std::string NodeIdText(uint64_t session, NodeNumber node) {
  char text[kNodeIdDigits + 1];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(session),
                static_cast<unsigned long long>(node.value));
  return text;
}

NodeNumber NodeOf(const Welcome& welcome) {
  return {static_cast<uint32_t>(std::max<uint64_t>(1, welcome.process.value >> 32))};
}

uint64_t SessionOf(const std::string& cluster_id) {
  return std::strtoull(cluster_id.substr(0, 16).c_str(), nullptr, 16);
}

NodeNumber NumberOfNodeId(uint64_t session, const std::string& id) {
  if (id.size() != kNodeIdDigits) return {};
  const NodeNumber node{static_cast<uint32_t>(std::strtoull(id.c_str() + kNodeIdDigits / 2, nullptr, 16))};
  return id == NodeIdText(session, node) ? node : NodeNumber{};
}

std::string WhyNoLabel(const std::string& key, const std::string& value) {
  if (key.empty() || key.size() > kMaxLabelBytes || !HasOnly(key, "._-/")) {
    return "'" + key + "' is no key: 1 to 100 letters, digits, dots, underscores, dashes and slashes";
  }
  if (value.size() > kMaxLabelBytes || !HasOnly(value, "._-")) {
    return "'" + value + "' is no value: at most 100 letters, digits, dots, underscores and dashes";
  }
  return "";
}

Result<LabelCondition> ParseLabelCondition(const std::string& key, std::string text) {
  LabelCondition condition{.key = key};
  const bool negated = text.starts_with('!');
  if (negated) text.erase(0, 1);
  if (text == "*") {
    condition.test = negated ? LabelTest::kAbsent : LabelTest::kExists;
  } else {
    condition.test = negated ? LabelTest::kNotIn : LabelTest::kIn;
    if (text.starts_with("in(") && text.ends_with(')')) {
      for (std::string value : Split(std::string_view(text).substr(3, text.size() - 4), ',')) {
        value.erase(0, value.find_first_not_of(' '));
        value.erase(value.find_last_not_of(' ') + 1);
        condition.values.push_back(std::move(value));
      }
    } else {
      condition.values.push_back(std::move(text));
    }
  }
  for (const std::string& value : condition.values.empty() ? std::vector<std::string>{""} : condition.values) {
    if (std::string why = WhyNoLabel(key, value); !why.empty()) return Error{ErrorKind::kInvalid, why};
  }
  return condition;
}

std::string FormatSelector(const LabelSelector& selector) {
  std::string text;
  for (const auto& condition : selector) {
    if (!text.empty()) text += ", ";
    text += condition.key;
    if (condition.test == LabelTest::kExists) {
      text += " exists";
    } else if (condition.test == LabelTest::kAbsent) {
      text += " does not exist";
    } else if (condition.values.size() == 1) {
      text += (condition.test == LabelTest::kIn ? "=" : "!=") + condition.values[0];
    } else {
      text += condition.test == LabelTest::kIn ? " in (" : " not in (";
      for (size_t i = 0; i < condition.values.size(); ++i) text += (i == 0 ? "" : ", ") + condition.values[i];
      text += ")";
    }
  }
  return text;
}

std::string FormatPlacement(std::string_view name) {
  Placement placement;
  if (!DecodePlacement(name, &placement)) return std::string(name);
  std::string text;
  if (!placement.node.empty()) {
    const auto number = std::strtoull(placement.node.substr(kNodeIdDigits / 2).c_str(), nullptr, 16);
    text = (placement.soft ? "if possible on node " : "on node ") + std::to_string(number);
  } else if (placement.spread) {
    text = "spread over the nodes";
  } else if (placement.near) {
    text = "near node " + std::to_string(placement.near.value);
  }
  if (!placement.labels.empty()) {
    text += std::string(text.empty() ? "" : ", ") + "on a node with " + FormatSelector(placement.labels);
  }
  return text;
}

}  // namespace weft::core
