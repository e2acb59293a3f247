// expect: does not convert to the parameter's type
// expect: CheckedArgument<1
#include <weft/weft.h>

int keep(weft::Ref<int> ref);
auto ref = weft::remote<keep>(7);
