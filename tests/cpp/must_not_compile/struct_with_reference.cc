// expect: a struct with references
#include <weft/weft.h>

struct Alias {
  int& target;
};
int target;
int use(Alias value);
auto ref = weft::remote<use>(Alias{target});
