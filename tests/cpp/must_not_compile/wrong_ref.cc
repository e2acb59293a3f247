// expect: does not convert to the parameter's type
// expect: CheckedArgument<1
#include <weft/weft.h>

int plus(int a, int b);
auto ref = weft::remote<plus>(weft::Ref<std::string>(), 2);
