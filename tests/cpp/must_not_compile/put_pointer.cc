// expect: a pointer means nothing in another process
#include <weft/weft.h>

int number = 1;
auto ref = weft::put(&number);
