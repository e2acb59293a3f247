// Whether a node's labels are what a selector asks for. Pure.
#pragma once

#include "wire/labels.h"
#include "wire/placement.h"

namespace weft::core {

bool Matches(const LabelSelector& selector, const NodeLabels& labels);

}  // namespace weft::core
