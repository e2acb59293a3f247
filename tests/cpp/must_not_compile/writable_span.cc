// expect: take a std::span<const T>
#include <weft/weft.h>

int sum(std::span<int> values);
auto ref = weft::remote<sum>(std::vector<int>{1});
