// expect: f returns what can be neither copied nor moved
#include <weft/weft.h>

#include <atomic>

struct Count {
  std::atomic<int> value = 0;
};
Count make();
auto ref = weft::remote<make>();
