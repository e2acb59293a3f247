// Where a lease is wanted, beyond its resources: strategy and labels.
//
// It travels as one entry of the shape, whose name begins with '~' and is no resource. So everything that is kept per
// shape (leases, requests, actors) is kept per placement too. Code that calculates with shapes skips it
// (scheduling/resources.h). docs/formats.md has the form.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "wire/labels.h"
#include "wire/messages.h"

namespace weft::core {

inline constexpr size_t kMaxPlacementBytes = 4096;

inline bool IsPlacement(std::string_view name) { return !name.empty() && name[0] == '~'; }

struct Placement {
  bool spread = false;
  std::string node;   // its id, 32 hexadecimal digits; empty: any
  bool soft = false;  // another node than `node` will do if that has gone or is too small
  NodeNumber near;    // the node with most bytes of the arguments, the first choice while it has room; 0: none
  LabelSelector labels;
  bool operator==(const Placement&) const = default;
};

// The name of the entry; empty if nothing is asked for.
std::string EncodePlacement(const Placement& placement);
// False if it is not what EncodePlacement makes.
bool DecodePlacement(std::string_view name, Placement* placement);

// Adds it to a shape that has none.
void AddPlacement(ResourceAmounts& shape, const Placement& placement);
// The entry's name; empty if the shape has none.
std::string_view PlacementOf(const ResourceAmounts& shape);
ResourceAmounts WithoutPlacement(const ResourceAmounts& shape);

// The name of a node for users: 32 hexadecimal digits.
std::string NodeIdText(uint64_t session, NodeNumber node);
// The node of the process that got this Welcome; a private session has one node, 1.
NodeNumber NodeOf(const Welcome& welcome);
// Half of a cluster's id, which is written in hexadecimal.
uint64_t SessionOf(const std::string& cluster_id);
// 0 if it is the id of a node of another session.
NodeNumber NumberOfNodeId(uint64_t session, const std::string& id);

// Why this is not a label; empty if it is one. Keys have 1 to 100 letters, digits and . _ - /, values at most 100 of
// the same but /.
std::string WhyNoLabel(const std::string& key, const std::string& value);
// What users write for one key: "eu", "!eu", "in(eu,us)", "!in(eu,us)", "*" (has the key), "!*" (has it not).
Result<LabelCondition> ParseLabelCondition(const std::string& key, std::string text);

// "zone=eu, disk in (ssd, nvme), gpu!=a100, rack exists"
std::string FormatSelector(const LabelSelector& selector);
// "spread over the nodes", "on node 2", "near node 2", "on a node with zone=eu"
std::string FormatPlacement(std::string_view name);

}  // namespace weft::core
