// Labels of nodes, and the conditions that tasks and actors may set on them. Plain data; scheduling/labels.h compares
// them.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace weft::core {

using NodeLabels = std::vector<std::pair<std::string, std::string>>;  // sorted by key, no key twice

enum class LabelTest : uint8_t {
  kIn = 0,      // the node has the key with one of the values; "equals" has one value
  kNotIn = 1,   // it has the key with none of them, or no such key
  kExists = 2,  // it has the key
  kAbsent = 3,  // it has no such key
};

struct LabelCondition {
  std::string key;
  LabelTest test = LabelTest::kIn;
  std::vector<std::string> values;
  auto operator<=>(const LabelCondition&) const = default;
};

using LabelSelector = std::vector<LabelCondition>;  // all of them must hold

}  // namespace weft::core
