// A library of tasks that Python's tests send to other nodes: it needs another library, and is built twice.
// WEFT_TEST_VERSION is 1 or 2.
#include <unistd.h>
#include <weft/library.h>
#include <weft/weft.h>

#include <cstdint>
#include <string>
#include <vector>

#include "where.h"

extern "C" int weigh(int things);

namespace freight {  // not anonymous: the linker sees the same names in both

int64_t version() { return WEFT_TEST_VERSION; }
int64_t weight(int64_t things) { return weigh(static_cast<int>(things)); }
std::vector<std::string> files() { return files_of_this_process(); }
// A task that has the library submits one to another node.
int64_t forwarded(int64_t things, const std::string& resource) {
  return weft::get(weft::remote<weight>.with({.num_cpus = 0, .resources = {{resource, 0.1}}})(things));
}

class Porter {
 public:
  explicit Porter(int64_t things) : things_(things) {}
  int64_t take(int64_t more) { return things_ += more; }
  int64_t weight() const { return freight::weight(things_); }
  int64_t weigh_ref(weft::Ref<int64_t> things) { return freight::weight(weft::get(things)); }
  int64_t pid() const { return getpid(); }
  std::vector<std::string> files() const { return files_of_this_process(); }

 private:
  int64_t things_;
};

const weft::Library library =
    weft::Library("Freight.")
        .function<version>("version")
        .function<weight>("weight")
        .function<files>("files")
        .function<forwarded>("forwarded")
        .actor<Porter, int64_t>(
            "Porter", weft::methods<&Porter::take, &Porter::weight, &Porter::weigh_ref, &Porter::pid, &Porter::files>(
                          "take", "weight", "weigh_ref", "pid", "files"));

}  // namespace freight
