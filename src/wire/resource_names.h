// Valid names of a user's resources, and how many of them may be asked for or offered at a time. Front ends and
// commands refuse what the node daemon would refuse: it closes the connection of a process that asks for an invalid
// shape (IsValidShape, which leaves room for weft's own resources).
#pragma once

#include <cstddef>

namespace weft::core {

inline constexpr size_t kMaxOwnResources = 50;
inline constexpr size_t kMaxResourceNameBytes = 256;

}  // namespace weft::core
