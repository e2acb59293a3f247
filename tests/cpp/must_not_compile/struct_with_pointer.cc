// expect: a pointer means nothing in another process
#include <weft/weft.h>

struct Text {
  int length;
  const char* begin;
};
int use(Text value);
auto ref = weft::remote<use>(Text{});
