// Reading the options that Python has checked (weft._options) into what the runtime takes.
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
// Where it is wanted, if anywhere: the attribute `placement`. Added to a shape.
bool ReadPlacement(PyObject* options, core::ResourceAmounts& shape);
// In the session of a C++ program, whose own workers know no Python.
void AskForPythonWorker(Runtime* runtime, core::ResourceAmounts& shape);

// What weft._functions.export returned: (key, body, name). nullptr with an exception set.
const core::Function* InternExported(Runtime* runtime, PyObject* exported);

// None, or a list of new references. Takes over one local reference each.
PyObject* NewRefs(const std::vector<Object*>& objects);

}  // namespace weft::python
