// expect: f takes a parameter that can be neither copied nor moved
#include <weft/weft.h>

#include <mutex>
#include <utility>

struct Guarded {
  std::mutex mutex;
  int value = 0;
};
int use(const Guarded& guarded);
Guarded guarded;
auto ref = weft::remote<use>(std::move(guarded));
