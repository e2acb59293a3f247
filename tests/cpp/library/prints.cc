// A driver whose tasks print, one after the other in one worker: 240 lines on each stream, each with its function's
// name first.
#include <weft/weft.h>

#include <cstdio>
#include <iostream>
#include <vector>

void with_stdio(int i) {
  std::printf("with_stdio %d\n", i);
  std::fprintf(stderr, "with_stdio %d\n", i);
}
void with_streams(int i) {
  std::cout << "with_streams " << i << '\n' << std::flush;
  std::cerr << "with_streams " << i << '\n';
}

int main() {
  weft::serve_if_worker();
  auto session = weft::init({.num_cpus = 1});
  for (int i = 0; i < 20; ++i) {
    weft::get(weft::remote<with_stdio>(i));
    weft::get(weft::remote<with_streams>(i));
  }
  std::vector<weft::Ref<void>> all;
  for (int i = 0; i < 100; ++i) {
    all.push_back(weft::remote<with_stdio>(i));
    all.push_back(weft::remote<with_streams>(i));
  }
  for (auto& one : all) weft::get(one);
}
