// How many CPUs this process may use, and how many of them have nothing to do.
#pragma once

#include <string>

namespace weft::core {

// CPUs of the affinity mask, or of the control group's quota if that is less; at least 1. A quota of 1.5 CPUs counts as
// 1: no task is promised a CPU that is not there, and driver and daemons run on the rest instead of being throttled.
// The default of `num_cpus` in every language. Read at each call: a few file reads, so callers keep it.
int AllowedCpus(const std::string& root = "");

// How many threads could run at once now, including the calling one, without taking a CPU from another: the allowed
// CPUs, but no more than are idle. At least 1. A snapshot, good for the next millisecond. `allowed` is AllowedCpus().
int IdleCpus(int allowed);

}  // namespace weft::core
