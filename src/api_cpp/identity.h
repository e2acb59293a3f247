// Identifies the function that a worker is asked to run: the build id of its executable or library, and its place in
// there.
//
// Different builds have different build ids, so a worker of another build finds nothing instead of calling the wrong
// function. Names do not matter: static functions of different files never collide.
#pragma once

#include <string>
#include <vector>

#include "weft/detail/bridge.h"
#include "wire/ids.h"

namespace weft::detail {

core::FunctionKey HashOf(const std::string& bytes);
core::FunctionKey KeyOf(const FunctionRecord& function);
// The build of the executable or library that contains this address, for messages: its build id in hexadecimal.
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
