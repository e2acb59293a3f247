#include "scheduling/labels.h"

#include <algorithm>

namespace weft::core {

bool Matches(const LabelSelector& selector, const NodeLabels& labels) {
  return std::all_of(selector.begin(), selector.end(), [&](const LabelCondition& condition) {
    auto found = std::find_if(labels.begin(), labels.end(), [&](const auto& l) { return l.first == condition.key; });
    bool has = found != labels.end();
    bool named =
        has && std::find(condition.values.begin(), condition.values.end(), found->second) != condition.values.end();
    switch (condition.test) {
      case LabelTest::kIn:
        return named;
      case LabelTest::kNotIn:
        return !named;
      case LabelTest::kExists:
        return has;
      case LabelTest::kAbsent:
        return !has;
    }
    return false;  // a test that we do not know is never met
  });
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

}  // namespace weft::core
