// Whether a node's labels are what a selector asks for. Pure.
#pragma once

#include <string>

#include "wire/labels.h"

namespace weft::core {

bool Matches(const LabelSelector& selector, const NodeLabels& labels);

// "zone=eu, disk in (ssd, nvme), gpu!=a100, rack exists"
std::string FormatSelector(const LabelSelector& selector);

}  // namespace weft::core
