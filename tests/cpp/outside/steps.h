// What the library of tasks offers, and a function that both it and the program use as a task.
#pragma once

#include <weft/weft.h>

inline int triple(int x) { return 3 * x; }

[[gnu::visibility("default")]] weft::Ref<int> library_step(int x);
[[gnu::visibility("default")]] weft::Ref<int> library_triple(int x);
