// Names the steps of the lock-free code, so that a test can kill a process between any two of them.
//
// Functions that change shared memory take a Steps type and call Steps::At(n) between their stores. In production it
// is Uninterrupted and compiles to nothing; crash_test.cc passes one that exits the process at a chosen step.
#pragma once

namespace weft::core {

struct Uninterrupted {
  static constexpr void At(int) {}
};

}  // namespace weft::core
