// usage: travels ADDRESS RESOURCE [wait|leave|visit]
// A driver that runs a task and an actor where the resource is, and says what they said: after a line on its input if
// it is to wait. It may also leave a detached actor there, or visit that one.
#include <weft/weft.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "where.h"

extern "C" int weigh(int things);

namespace {

struct Report {
  int version = 0;
  int weight = 0;
  int daemon = 0;
  std::vector<std::string> files;
};

Report report(int things) { return {WEFT_TEST_VERSION, weigh(things), ::getppid(), files_of_this_process()}; }

struct Counter {
  int count = 0;
  int add(int more) { return count += weigh(more); }
  int process() { return ::getpid(); }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string address = argc > 1 ? argv[1] : "", resource = argc > 2 ? argv[2] : "";
  auto session = weft::init({.address = address, .log_to_driver = false});
  const std::string mode = argc > 3 ? argv[3] : "";
  if (mode == "wait") {
    std::puts("ready");
    std::fflush(stdout);
    if (std::getchar() == EOF) return 3;
  }
  try {
    if (mode == "leave" || mode == "visit") {
      auto actor = mode == "visit" ? weft::get_actor<Counter>("traveller")
                                   : weft::actor<Counter>.with({.num_cpus = 0,
                                                                .resources = {{resource, 0.1}},
                                                                .max_restarts = 3,
                                                                .name = "traveller",
                                                                .detached = true})();
      std::printf("process %d\n", weft::get(actor.call<&Counter::process>(), std::chrono::seconds(40)));
      return 0;
    }
    auto there = weft::remote<report>.with({.num_cpus = 0, .resources = {{resource, 0.1}}});
    const Report said = weft::get(there(2), std::chrono::seconds(40));
    std::printf("version %d weight %d daemon %d\n", said.version, said.weight, said.daemon);
    for (const std::string& file : said.files) std::printf("file %s\n", file.c_str());
    auto counter = weft::actor<Counter>.with({.num_cpus = 0, .resources = {{resource, 0.1}}})();
    counter.call<&Counter::add>(1);
    std::printf("counted %d\n", weft::get(counter.call<&Counter::add>(2), std::chrono::seconds(40)));
  } catch (const std::exception& error) {
    std::printf("error %s\n", error.what());
  }
}
