// What a resource of the user's may be called, and how many of them may be asked for or offered at a time. Front ends
// and commands refuse what the node daemon would: it closes the connection of a process that asks for what cannot be
// (IsValidShape, which leaves room for resources of weft's own).
#pragma once

#include <cstddef>

namespace weft::core {

inline constexpr size_t kMaxOwnResources = 50;
inline constexpr size_t kMaxResourceNameBytes = 256;

}  // namespace weft::core
