// expect: an optional of something that may itself be None
#include <weft/weft.h>

auto ref = weft::put(std::optional<std::optional<int>>());
