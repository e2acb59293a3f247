// Converts options that Python has checked (weft._options) for the runtime.
#pragma once

#include <string>

#include "api_python/state.h"

namespace weft::python {

// Each: false with an exception set.
bool Number(PyObject* options, const char* name, double* value);     // None: 0
bool Text(PyObject* options, const char* name, std::string* value);  // str or bytes; None: unchanged
bool Flag(PyObject* options, const char* name, bool* value);
// num_gpus, memory and resources, and the CPUs of the attribute `cpus`; sorted.
bool ReadShape(PyObject* options, const char* cpus, core::ResourceAmounts& shape);
// Adds the placement, if any, to a shape: the attribute `placement`.
bool ReadPlacement(PyObject* options, core::ResourceAmounts& shape);
// Asks for a Python worker, in the session of a C++ program.
void AskForPythonWorker(Runtime* runtime, core::ResourceAmounts& shape);

// What weft._functions.export returned: (key, body, name). nullptr with an exception set.
const core::Function* InternExported(Runtime* runtime, PyObject* exported);

// None, or a list of new references. Takes over one local reference each.
PyObject* NewRefs(const std::vector<Object*>& objects);

}  // namespace weft::python
