// expect: a struct with a C array cannot be taken apart; use a std::array
#include <weft/weft.h>

struct Name {
  int length;
  char text[16];
};
int use(Name value);
auto ref = weft::remote<use>(Name{});
