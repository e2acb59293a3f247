// expect: lambda
#include <weft/weft.h>

inline constexpr auto add = [more = 1](int x) { return x + more; };
auto ref = weft::remote<add>(7);
