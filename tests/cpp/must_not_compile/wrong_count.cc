// expect: wrong number of arguments
#include <weft/weft.h>

int plus(int a, int b);
auto ref = weft::remote<plus>(1);
