// Tells one leader from another that happens to have the same epoch, after a store lost its last writes.
#pragma once

#include <string>

namespace weft::core {

std::string NewHolderId();  // 32 random hexadecimal digits

}  // namespace weft::core
