// expect: takes a parameter by non-const reference
#include <weft/weft.h>

void fill(std::vector<int>& values);
auto ref = weft::remote<fill>(std::vector<int>{});
