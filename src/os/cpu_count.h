// How many CPUs this process may use, and how many of them have nothing to do.
#pragma once

#include <string>

namespace weft::core {

// CPUs of the affinity mask, or of the control group's quota if that is less (1.5 CPUs count as 1, so that we are not
// throttled); at least 1. Read at each call: a few file reads, so callers keep it.
int AllowedCpus(const std::string& root = "");

// How many threads could run at once now, the calling one included, without taking a CPU from another: allowed CPUs and
// no more than the machine has idle. At least 1. A snapshot, good for the next millisecond. `allowed` is AllowedCpus().
int IdleCpus(int allowed);

}  // namespace weft::core
