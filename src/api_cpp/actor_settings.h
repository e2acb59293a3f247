// What the process of a C++ actor is told of it beside its constructor (DefinedTemplate::actor_options).
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/value.h"

namespace weft::detail {

// Calls at once; the same in each concurrency group; its name; what callers know of it (ActorInfo).
using ActorSettings = std::tuple<uint32_t, std::vector<std::pair<std::string, uint32_t>>, std::string, std::string>;

}  // namespace weft::detail
