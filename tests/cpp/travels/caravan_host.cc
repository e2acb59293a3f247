// usage: caravan_host CARAVAN ADDRESS RESOURCE LIBRARY
// Knows nothing of weft; if it were started again as a worker, it would refuse.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc != 5 || std::getenv("WEFT_WORKER_FD")) return 3;
  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library) return std::fprintf(stderr, "%s\n", dlerror()), 4;
  auto travel = reinterpret_cast<void (*)(const char*, const char*, const char*)>(dlsym(library, "travel"));
  travel(argv[2], argv[3], argv[4]);
}
