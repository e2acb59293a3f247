// Tells two leaders apart that happen to have the same epoch, after a store lost its last writes.
#pragma once

#include <string>

namespace weft::core {

std::string NewHolderId();  // 32 random hexadecimal digits

}  // namespace weft::core
