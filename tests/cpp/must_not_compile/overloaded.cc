// expect: overloaded
#include <weft/weft.h>

int half(int x);
double half(double x);
auto ref = weft::remote<half>(7);
