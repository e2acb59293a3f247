#include "wire/ids.h"

#include <cinttypes>
#include <cstdio>

namespace weft::core {

std::string ToString(ProcessId id) { return std::to_string(id.value); }

std::string ToString(ObjectId id) {
  char text[40];
  std::snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, id.owner.value, id.index);
  return text;
}

}  // namespace weft::core
