// expect: the elements of an array are integers, float, double, bool
#include <weft/weft.h>

auto array = weft::empty<std::string>(10);
