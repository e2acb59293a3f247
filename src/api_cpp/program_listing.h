// Lists the files that workers of this driver, or a library of tasks, are made of, so that other nodes can tell whether
// they have them, and ask for them if not.
//
// Called by weft::init when it joins a cluster, and when a library of tasks is loaded. Reads a few tables of each file,
// and only files without a build id as a whole. Files of the system (/lib, /usr/lib) are not listed: every machine has
// its own.
#pragma once

#include <string>
#include <vector>

#include "wire/messages.h"

namespace weft::detail {

// `command` starts a worker; if it is given `libraries`, those are among its words. A file that cannot be read is left
// out, and other nodes then start the file that they find at its path.
std::vector<core::ProgramFile> ListProgramFiles(const std::vector<std::string>& command,
                                                const std::vector<std::string>& libraries);

// A library of tasks that this process has loaded from this absolute path, and after it what it needs, each after what
// it needs itself: so that they can be loaded from the second to the last, and then the first. Without libweft.so and
// what that needs, which every worker has loaded before. Empty if the file cannot be read.
std::vector<core::ProgramFile> ListLibraryFiles(const std::string& path);

// Whether it is in a folder for the system's own libraries.
bool IsSystemLibrary(const std::string& path);

}  // namespace weft::detail
