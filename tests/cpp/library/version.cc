// One library, built twice from sources that differ: WEFT_TEST_VERSION is 1 or 2. The names are the same, and so is the
// place of each function, so only the builds tell them apart.
#include <weft/library.h>
#include <weft/weft.h>

#include <cstdint>

namespace versions {  // not anonymous: the linker sees the same names in both

int64_t version() { return WEFT_TEST_VERSION; }
int64_t scaled(int64_t x) { return x * WEFT_TEST_VERSION; }

class Versioned {
 public:
  explicit Versioned(int64_t start) : value_(start) {}
  int64_t version() const { return WEFT_TEST_VERSION; }
  int64_t add(int64_t by) { return value_ += WEFT_TEST_VERSION * by; }

 private:
#if WEFT_TEST_VERSION == 2
  int64_t before_[4] = {};  // another layout
#endif
  int64_t value_;
};

const weft::Library library =
    weft::Library("Built twice.")
        .function<version>("version")
        .function<scaled>("scaled")
        .actor<Versioned, int64_t>("Versioned", weft::methods<&Versioned::version, &Versioned::add>("version", "add"));

}  // namespace versions
