// `weft start` and `weft stop`: cluster nodes on this machine.
#pragma once

#include <string>

#include "base/result.h"
#include "log/log.h"

namespace weft::core {

// Arguments after the command. Return the exit code: 0 done, 1 failed, 2 wrong usage.
int StartNode(int count, char** arguments);
int StopNodes(int count, char** arguments);

// Where logs go: a directory of ours that other users cannot enter.
Result<std::string> LogFolder();
// `source` is the option or variable that the error names if there is no such level.
Result<LogLevel> ReadLogLevel(const std::string& source, const std::string& name);

}  // namespace weft::core
