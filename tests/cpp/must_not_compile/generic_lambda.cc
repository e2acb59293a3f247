// expect: must be a function, a member function or a lambda
#include <weft/weft.h>

inline constexpr auto twice = [](auto x) { return 2 * x; };
auto ref = weft::remote<twice>(7);
