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

}  // namespace weft::core
