// expect: takes a pointer, which means nothing in another process
#include <weft/weft.h>

int sum(const int values[3]);
inline constexpr int values[3] = {};
auto ref = weft::remote<sum>(values);
