// A library that is a driver: its workers are `weft worker` with this library.
#include <weft/weft.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "where.h"

namespace {

std::vector<std::string> files() { return files_of_this_process(); }

}  // namespace

extern "C" [[gnu::visibility("default")]] void travel(const char* address, const char* resource, const char* library) {
  auto session = weft::init({.address = address, .log_to_driver = false, .libraries = {library}});
  try {
    auto there = weft::remote<files>.with({.num_cpus = 0, .resources = {{resource, 0.1}}});
    for (const std::string& file : weft::get(there(), std::chrono::seconds(40))) std::printf("file %s\n", file.c_str());
  } catch (const std::exception& error) {
    std::printf("error %s\n", error.what());
  }
}
