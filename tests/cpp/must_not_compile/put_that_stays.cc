// expect: this type can be neither copied nor moved
#include <weft/weft.h>

#include <mutex>

struct Guarded {
  std::mutex mutex;
  int value = 0;
};
Guarded guarded;
auto ref = weft::put(guarded);
