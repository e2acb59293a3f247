// `weft start` and `weft stop`: cluster nodes on this machine.
#pragma once

namespace weft::core {

// Arguments after the command. Return the exit code: 0 done, 1 failed, 2 wrong usage.
int StartNode(int count, char** arguments);
int StopNodes(int count, char** arguments);

}  // namespace weft::core
