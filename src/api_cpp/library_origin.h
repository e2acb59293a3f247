// Functions of libraries on other machines: what identifies them there, and how a library is loaded that may not be
// there.
//
// A body (wire/library_body.h) is made once for each library that this process has loaded. In a cluster a worker asks
// its daemon where the files are before it loads them, since they may be in the daemon's cache. It passes on the body
// that it got, with the path on the machine that the library comes from.
//
// Any thread.
#pragma once

#include <string>

#include "api_cpp/exports.h"
#include "runtime/runtime.h"

namespace weft::detail {

// The body of a function as it travels: empty if it lies in the program itself, which every worker has.
std::string BodyOf(const FunctionRecord& function);
// The body of a library's functions.
std::string BodyOf(const LoadedLibrary& library);

// The library that a body names. Throws WeftError if it cannot be loaded; VersionMismatchError if there are only other
// builds of it; RuntimeEnvSetupError if it is not available, or not usable, on this node.
LoadedLibrary LoadLibraryOf(core::Runtime& runtime, const std::string& body, core::ProcessId submitter,
                            const core::Runtime::GiveUp& give_up = {});

}  // namespace weft::detail
