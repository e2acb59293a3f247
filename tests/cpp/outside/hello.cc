// Prints what it computed, one line each; the test compares.
#include <unistd.h>
#include <weft/weft.h>

#include <cstdio>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "steps.h"

namespace {

int step(int x) { return x + 1; }
double sum(std::span<const double> values) {
  double total = 0;
  for (double value : values) total += value;
  return total;
}
std::string greet(const std::string& name) { return "hello " + name; }
int fail(int x) { throw std::out_of_range("no " + std::to_string(x)); }
// The process that started this worker: which `weft` it is.
std::string starter() { return std::filesystem::read_symlink("/proc/" + std::to_string(getppid()) + "/exe").string(); }

}  // namespace

int main() {
  auto session = weft::init({.num_cpus = 2});
  std::printf("version %s\n", std::string(weft::version).c_str());
  std::printf("%s\n", weft::get(weft::remote<greet>("outside")).c_str());
  std::printf("step %d, of the library %d\n", weft::get(weft::remote<step>(1)), weft::get(library_step(1)));
  std::printf("triple %d, of the library %d\n", weft::get(weft::remote<triple>(1)), weft::get(library_triple(2)));
  std::printf("sum %g\n", weft::get(weft::remote<sum>(std::vector<double>(100'000, 0.5))));
  try {
    weft::get(weft::remote<fail>(7));
  } catch (const weft::TaskError& error) {
    std::printf("caught %s of %s: %s\n", error.type_name().c_str(), error.function_name().c_str(),
                error.message().c_str());
  }
  std::printf("started by %s\n", weft::get(weft::remote<starter>()).c_str());
}
