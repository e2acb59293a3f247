// Bare limit of "tasks async": ints through a ring in shared memory to a Python function in another process.
//
// A plain shared library that drivers/bare_driver.py loads with ctypes. The calling side is C++ (no Python object per
// call), the serving side makes an int, calls the function, and takes the int out of its result: what no system that
// runs Python functions in another process can avoid, and nothing else.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <chrono>

#include "ring.h"

extern "C" {

__attribute__((visibility("default"))) void* ring_create() { return weft::bench::CreateRingPair(); }

// Serves until ring_close, in the forked process, with the GIL held.
__attribute__((visibility("default"))) void ring_serve(void* memory, PyObject* function) {
  weft::bench::Serve(*static_cast<weft::bench::RingPair*>(memory), [function](int64_t value) -> int64_t {
    PyObject* argument = PyLong_FromLongLong(value);
    PyObject* result = PyObject_CallOneArg(function, argument);
    Py_DECREF(argument);
    if (result == nullptr) {
      PyErr_Clear();
      return -1;
    }
    int64_t answer = PyLong_AsLongLong(result);
    Py_DECREF(result);
    return answer;
  });
}

// Seconds for one round of `count` calls, or -1 if an answer was wrong.
__attribute__((visibility("default"))) double ring_round(void* memory, long count) {
  auto begin = std::chrono::steady_clock::now();
  if (!weft::bench::Round(*static_cast<weft::bench::RingPair*>(memory), count)) return -1;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

__attribute__((visibility("default"))) void ring_close(void* memory) {
  static_cast<weft::bench::RingPair*>(memory)->closed.store(1, std::memory_order_release);
}

}  // extern "C"
