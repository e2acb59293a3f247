// Exports a name twice, which must be refused when it is loaded.
#include <weft/library.h>

namespace {

int one(int x) { return x; }
int other(int x) { return -x; }

const weft::Library twice = weft::Library().function<one>("same").function<other>("same");

}  // namespace
