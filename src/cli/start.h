// `weft start` and `weft stop`: lasting nodes on this machine.
#pragma once

namespace weft::core {

// Arguments after the command. Return the exit code: 0 done, 1 it could not be done, 2 wrong usage.
int StartNode(int count, char** arguments);
int StopNodes(int count, char** arguments);

}  // namespace weft::core
