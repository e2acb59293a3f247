#include "steps.h"

// hello.cc has another function of this name.
static int step(int x) { return x + 10; }

weft::Ref<int> library_step(int x) { return weft::remote<step>(x); }
weft::Ref<int> library_triple(int x) { return weft::remote<triple>(x); }
