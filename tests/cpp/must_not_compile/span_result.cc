// expect: return a weft::Array or a std::vector, not a view of one
#include <weft/weft.h>

std::span<const int> values();
auto ref = weft::remote<values>();
