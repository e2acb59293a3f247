// A library that uses weft inside: its callers need not know. Its workers are `weft worker` with this library.
#include <weft/weft.h>

#include <string>

namespace {

int triple(int x) { return 3 * x; }
struct Adder {
  int sum = 0;
  int add(int x) { return sum += x; }
};

}  // namespace

extern "C" [[gnu::visibility("default")]] int sum_of_triples(const char* own_path, int count) {
  auto session = weft::init({.num_cpus = 2, .libraries = {own_path}});
  std::vector<weft::Ref<int>> refs;
  for (int i = 0; i < count; ++i) refs.push_back(weft::remote<triple>(i));
  auto adder = weft::actor<Adder>();
  weft::Ref<int> last;
  for (const auto& ref : refs) last = adder.call<&Adder::add>(ref);
  return weft::get(last);
}
