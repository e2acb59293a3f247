// expect: return a std::string, not a view of one
#include <weft/weft.h>

std::string_view name();
auto ref = weft::remote<name>();
