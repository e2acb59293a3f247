// The libraries of tasks that this process has loaded, and what they export by name (weft/library.h).
//
// Any thread. Names are for other languages; functions themselves are known by identity.h.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/detail/bridge.h"
#include "weft/library.h"
#include "wire/ids.h"
#include "wire/languages.h"

namespace weft::detail {

// The body of a function as it travels: empty if it lies in the program itself, which every worker has.
std::string BodyOf(const FunctionRecord& function);
std::string LibraryBody(const std::string& path, const std::string& build);
// The build and the path of such a body.
std::pair<std::string, std::string> ReadLibraryBody(std::string_view body);

struct LoadedLibrary {
  std::string path;   // absolute
  std::string build;  // BuildOf it
  std::string text;
  std::vector<const Export*> exports;
};

// Loads it, or finds it loaded. Throws WeftError that says what is wrong: no such file, no library of tasks, linked
// against another weft, a name twice.
LoadedLibrary LoadTaskLibrary(const std::string& path);

// The exported method of a class; nullptr if there is none.
FunctionRecord* FindMethod(const std::type_info& type, std::string_view name);
// The path of the library in which the class is exported, and its name there; empty if it is not.
std::pair<std::string, std::string> FindExportedClass(const std::type_info& type);

}  // namespace weft::detail
