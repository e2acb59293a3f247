// How the languages of one session tell each other apart.
#pragma once

#include <string_view>

#include "wire/ids.h"

namespace weft::core {

// Not a resource: a shape that names it (with any amount) asks for a Python worker in the job of a C++ program.
inline constexpr std::string_view kPythonWorker = "worker:guest";

// How the body of a C++ function in a library begins (wire/library_body.h).
inline constexpr std::string_view kLibraryMark = "\1c++ library\n";
// The body of a Python function or class that is found by name: this, then the module, a newline and the name.
inline constexpr std::string_view kImportMark = "\2python import\n";
// Calls of a Python actor name a method, not a function: this key says that the caller reads native values only.
inline constexpr FunctionKey kNativeCall{0, 1};

// The first byte of an actor's metadata for callers and for its worker: a C++ class, or a Python class that C++ named.
// (Python's own metadata is a pickle.)
inline constexpr char kCppActor = 1;
inline constexpr char kImportedActor = 2;

}  // namespace weft::core
