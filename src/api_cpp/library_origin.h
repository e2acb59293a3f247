// Functions of libraries on their way: what they are known by on other machines, and how such a library is loaded where
// it may not be.
//
// A body (wire/library_body.h) is made once for each library that this process has loaded. In a cluster a worker asks
// its daemon where the files are before it loads them, since they may lie in its cache; what it passes on then is the
// body that it got, with the path of the machine that the library comes from.
//
// Any thread.
#pragma once

#include <string>

#include "api_cpp/exports.h"
#include "runtime/runtime.h"

namespace weft::detail {

// The body of a function as it travels: empty if it lies in the program itself, which every worker has.
std::string BodyOf(const FunctionRecord& function);
// Of the functions of a library.
std::string BodyOf(const LoadedLibrary& library);

// The library that a body speaks of. Throws WeftError if it cannot be loaded; VersionMismatchError if there are only
// other builds of it; RuntimeEnvSetupError if it cannot be had, or not be used, on this node.
LoadedLibrary LoadLibraryOf(core::Runtime& runtime, const std::string& body, core::ProcessId submitter,
                            const core::Runtime::GiveUp& give_up = {});

}  // namespace weft::detail
