// expect: returns a reference or a pointer
#include <weft/weft.h>

weft::Returns<int, const char*> both();
auto ref = weft::remote<both>();
