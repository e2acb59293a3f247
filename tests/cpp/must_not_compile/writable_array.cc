// expect: arrays arrive read-only
#include <weft/weft.h>

int sum(weft::Array<int> values);
auto ref = weft::remote<sum>(weft::Ref<weft::Array<int>>());
