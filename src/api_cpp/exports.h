// The libraries of tasks that this process has loaded, and what they export by name (weft/library.h).
//
// Any thread. Names are for other languages; functions themselves are known by identity.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "weft/detail/bridge.h"
#include "weft/library.h"
#include "wire/ids.h"

namespace weft::detail {

struct LoadedLibrary {
  std::string path;   // absolute
  std::string build;  // BuildOf it
  std::string text;
  std::vector<const Export*> exports;
};

// Loads it, or finds it loaded. Throws a WeftError that says what is wrong: no such file, no library of tasks, linked
// against another weft, a name twice. `open_as`: another name of the same file, for debuggers and stacks.
LoadedLibrary LoadTaskLibrary(const std::string& path, const std::string& open_as = {});
// The file that contains this address: the executable, or a library.
std::string FileOf(const void* place);

// The exported method of a class; nullptr if there is none.
FunctionRecord* FindMethod(const std::type_info& type, std::string_view name);
// A class that other languages know.
struct ExportedClass {
  std::string file;  // of the library; empty: it is not exported
  std::string name;
  std::vector<const Export*> methods;
};
ExportedClass FindExportedClass(const std::type_info& type);

}  // namespace weft::detail
