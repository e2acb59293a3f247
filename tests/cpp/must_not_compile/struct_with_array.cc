// expect: an Array is a value of its own and no part of another one
#include <weft/weft.h>

struct Model {
  int layers;
  weft::Array<const float> weights;
};
int use(Model value);
auto ref = weft::remote<use>(Model{});
