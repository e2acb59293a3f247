// The files that workers of this driver are made of, so that other nodes can tell whether they have them, and ask for
// them if not.
//
// Called by weft::init when it joins a cluster. Reads a few tables of each file, and only files without a build id as
// a whole. What belongs to the system (/lib, /usr/lib) is not listed: that every machine has its own.
#pragma once

#include <string>
#include <vector>

#include "wire/messages.h"

namespace weft::detail {

// `command` starts a worker; if it is given `libraries`, those are among its words. A file that cannot be read is left
// out, and other nodes then start what they find at its path.
std::vector<core::ProgramFile> ListProgramFiles(const std::vector<std::string>& command,
                                                const std::vector<std::string>& libraries);

// Whether it lies where only the system's own libraries are.
bool IsSystemLibrary(const std::string& path);

}  // namespace weft::detail
