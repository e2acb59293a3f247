// Which function a worker is asked for: the build id of the executable or library it lies in, and its place in there.
//
// Two builds that differ have different build ids, so a worker of another build finds nothing instead of calling the
// wrong function. Names play no part: static functions of different files never collide.
#pragma once

#include <string>
#include <vector>

#include "weft/detail/bridge.h"
#include "wire/ids.h"

namespace weft::detail {

core::FunctionKey HashOf(const std::string& bytes);
core::FunctionKey KeyOf(const FunctionRecord& function);
// The build of the executable or library that this lies in, as text for people: its build id in hexadecimal.
std::string BuildOf(const void* place);
// The libraries that this process has loaded by path.
struct LoadedModule {
  std::string path;
  std::string build_id;  // its bytes; empty: it has none
};
std::vector<LoadedModule> LoadedLibraries();
// The function of this program with that key; nullptr if there is none. Main thread of a worker.
FunctionRecord* FindFunction(const core::FunctionKey& key);

}  // namespace weft::detail
