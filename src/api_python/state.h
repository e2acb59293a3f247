// What the extension keeps for the whole interpreter: the runtime of the present session and the Python functions it
// calls. Guarded by the GIL.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/runtime.h"

namespace weft::python {

using core::Object;
using core::ObjectId;
using core::Runtime;

// A new reference that is released with its holder.
class Owned {
 public:
  Owned() = default;
  explicit Owned(PyObject* object) : object_(object) {}
  Owned(Owned&& other) noexcept : object_(other.Release()) {}
  Owned& operator=(Owned&& other) noexcept {
    PyObject* old = object_;
    object_ = other.Release();
    Py_XDECREF(old);
    return *this;
  }
  ~Owned() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* Release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

extern Runtime* g_runtime;  // nullptr while no session is open
extern uint32_t g_epoch;    // counts sessions: references of an earlier one are known by it
extern uint64_t g_views;    // buffers that use shared memory

// A call that releases the GIL while it uses the runtime, which another thread may shut down meanwhile.
struct Inside {
  explicit Inside(Runtime* r) : runtime(r) { ++runtime->users; }
  ~Inside() { --runtime->users; }
  Runtime* runtime;
};

// The runtime; starts a session with defaults if there is none. nullptr with an exception set if that fails, or in a
// forked child.
Runtime* NeedRuntime();

// Python functions of the weft package, looked up once.
PyObject* Callback(const char* module, const char* name);  // borrowed; nullptr with an exception set

// Raises the exception that an object ended in.
void RaiseTaskError(std::string_view payload);
void RaiseSystemError(std::string_view name_and_message);
void RaiseCoreError(const core::Error& error);
// Runs Python's handlers of signals that came while waiting for the daemon, without the GIL; true if one raised.
bool Interrupted();

// Waits outside the GIL; false with an exception set on timeout, interruption by a signal handler that raises, or the
// session's end. `timeout_text` describes what was waited for.
int64_t DeadlineOf(PyObject* timeout, bool* ok);

}  // namespace weft::python
