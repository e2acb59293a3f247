// expect: an argument can be neither copied nor moved
#include <weft/weft.h>

#include <mutex>

struct Guarded {
  std::mutex mutex;
  int value = 0;
};
struct Keeper {
  explicit Keeper(const Guarded&) {}
};
Guarded guarded;
auto keeper = weft::actor<Keeper>(guarded);
