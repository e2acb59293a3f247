// Knows nothing of weft; if it were started again as a worker, it would refuse.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc != 2 || std::getenv("WEFT_WORKER_FD")) return 3;
  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library) return std::fprintf(stderr, "%s\n", dlerror()), 4;
  auto sum = reinterpret_cast<int (*)(const char*, int)>(dlsym(library, "sum_of_triples"));
  std::printf("sum %d\n", sum(argv[1], 100));
}
