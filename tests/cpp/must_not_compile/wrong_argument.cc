// expect: does not convert to the parameter's type
// expect: CheckedArgument<2
#include <weft/weft.h>

int plus(int a, int b);
auto ref = weft::remote<plus>(1, std::string("2"));
