// expect: neither copied nor moved
#include <weft/weft.h>

#include <mutex>

struct Keeper {
  int keep(const std::mutex&) { return 1; }
};
std::mutex mutex;
auto keeper = weft::actor<Keeper>();
auto ref = keeper.call<&Keeper::keep>(mutex);
