// expect: must be a function, a member function or a lambda
#include <weft/weft.h>

inline constexpr int seven = 7;
auto ref = weft::remote<seven>();
