// expect: a struct with a base class cannot be taken apart
#include <weft/weft.h>

struct Base {
  int id;
};
struct Derived : Base {
  int number;
};
int use(Derived value);
auto ref = weft::remote<use>(Derived{});
