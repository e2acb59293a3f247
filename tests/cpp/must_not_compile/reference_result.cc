// expect: returns a reference or a pointer
#include <weft/weft.h>

const std::string& name();
auto ref = weft::remote<name>();
