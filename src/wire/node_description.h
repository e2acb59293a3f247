// What a node says of itself when it joins a cluster, and what the others are told of it.
#pragma once

#include <string>

#include "wire/ids.h"
#include "wire/labels.h"
#include "wire/messages.h"

namespace weft::core {

struct NodeDescription {
  NodeIdentity identity;  // known to the head only
  std::string name;
  std::string address;  // where other daemons reach it
  ResourceAmounts resources;
  NodeLabels labels;
};

}  // namespace weft::core
