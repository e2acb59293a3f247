// How much a line of a daemon's log matters. Pure code names it to whoever writes the log (src/log).
#pragma once

#include <cstdint>

namespace weft::core {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

}  // namespace weft::core
