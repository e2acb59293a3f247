// `weft start` and `weft stop`: cluster nodes on this machine.
#pragma once

#include <string>

#include "base/result.h"
#include "log/log.h"

namespace weft::core {

// Arguments after the command. Return the exit code: 0 done, 1 failed, 2 wrong usage.
int StartNode(int count, char** arguments);
int StopNodes(int count, char** arguments);

// Where logs go: a directory of ours that nobody else can enter.
Result<std::string> LogFolder();
// `source` says who asked for the level, in the error if there is none of this name.
Result<LogLevel> ReadLogLevel(const std::string& source, const std::string& name);

}  // namespace weft::core
