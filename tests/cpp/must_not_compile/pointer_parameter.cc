// expect: takes a pointer, which means nothing in another process
#include <weft/weft.h>

int length(const char* text);
auto ref = weft::remote<length>("abc");
