// How the languages of one session tell each other apart.
#pragma once

#include <string_view>

#include "wire/ids.h"

namespace weft::core {

// Not a resource: a shape that names it (with any amount) asks for a Python worker in the job of a C++ program.
inline constexpr std::string_view kPythonWorker = "worker:guest";

// How the body of a C++ function begins that lies in a library (wire/library_body.h).
inline constexpr std::string_view kLibraryMark = "\1c++ library\n";
// The body of a Python function or class that is found by name: this, then the module, a newline and the name.
inline constexpr std::string_view kImportMark = "\2python import\n";
// Calls of a Python actor name a method, not a function: this key says that the caller reads native values only.
inline constexpr FunctionKey kNativeCall{0, 1};

// How what callers know of an actor begins, and what its process is told: a C++ class, or a Python class that C++
// named. (What Python made itself is a pickle.)
inline constexpr char kCppActor = 1;
inline constexpr char kImportedActor = 2;

}  // namespace weft::core
