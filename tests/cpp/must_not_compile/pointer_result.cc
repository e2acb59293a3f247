// expect: returns a reference or a pointer
#include <weft/weft.h>

const char* name();
auto ref = weft::remote<name>();
