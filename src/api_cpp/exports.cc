#include "api_cpp/exports.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "api_cpp/identity.h"
#include "weft/errors.h"

namespace weft::detail {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<const ExportList*> lists;
};
// Libraries add themselves while they are loaded, also before main begins.
Registry& TheRegistry() {
  static auto* registry = new Registry();
  return *registry;
}

std::string Place(const Export& item) {
  std::string text(item.file);
  return text.append(":").append(std::to_string(item.line));
}

void RefuseNamesakes(const LoadedLibrary& library) {
  std::map<std::pair<std::string, std::string>, const Export*> seen;
  for (const Export* item : library.exports) {
    auto [known, fresh] = seen.try_emplace({item->class_name, item->name}, item);
    if (fresh) continue;
    throw WeftError("the library " + library.path + " exports the name '" +
                    (item->class_name.empty() ? "" : item->class_name + ".") + item->name + "' twice: at " +
                    Place(*known->second) + " and at " + Place(*item) + "; rename one of them");
  }
}

}  // namespace

std::string FileOf(const void* place) {
  Dl_info info;
  if (::dladdr(place, &info) == 0 || !info.dli_fname) return "";
  char absolute[PATH_MAX];
  return ::realpath(info.dli_fname, absolute) ? absolute : info.dli_fname;
}

void AddExports(const ExportList* list) noexcept {
  Registry& registry = TheRegistry();
  std::lock_guard lock(registry.mutex);
  registry.lists.push_back(list);
}

void RemoveExports(const ExportList* list) noexcept {
  Registry& registry = TheRegistry();
  std::lock_guard lock(registry.mutex);
  std::erase(registry.lists, list);
}

LoadedLibrary LoadTaskLibrary(const std::string& path, const std::string& open_as) {
  LoadedLibrary library;
  char absolute[PATH_MAX];
  if (!::realpath(path.c_str(), absolute)) {
    throw WeftError("there is no library of tasks at " + path + ": " + std::strerror(errno));
  }
  library.path = absolute;
  // Local: two libraries may have functions of the same name. Never unloaded: functions of it may be called any time.
  if (!::dlopen(open_as.empty() ? absolute : open_as.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
    const char* why = ::dlerror();
    throw WeftError("the library of tasks " + library.path + " cannot be loaded: " + (why ? why : "unknown reason"));
  }
  Registry& registry = TheRegistry();
  std::vector<const ExportList*> lists;
  {
    std::lock_guard lock(registry.mutex);
    lists = registry.lists;
  }
  for (const ExportList* list : lists) {
    if (FileOf(list->place) != library.path) continue;
    if (library.text.empty()) library.text = list->text;
    library.build = BuildOf(list->place);
    for (const Export& item : list->exports) library.exports.push_back(&item);
  }
  if (library.exports.empty()) {
    throw WeftError("the library " + library.path +
                    " exports nothing: it needs a static weft::Library (weft/library.h) that names its functions, and "
                    "must be linked with weft::weft");
  }
  RefuseNamesakes(library);
  return library;
}

FunctionRecord* FindMethod(const std::type_info& type, std::string_view name) {
  Registry& registry = TheRegistry();
  std::lock_guard lock(registry.mutex);
  // Two builds of one library, under two paths, have classes that are equal by name: the one itself goes first.
  FunctionRecord* found = nullptr;
  for (const ExportList* list : registry.lists) {
    for (const Export& item : list->exports) {
      if (item.record->kind != FunctionRecord::kMethod || item.name != name) continue;
      if (item.record->type == &type) return item.record;
      if (!found && *item.record->type == type) found = item.record;
    }
  }
  return found;
}

ExportedClass FindExportedClass(const std::type_info& type) {
  Registry& registry = TheRegistry();
  std::lock_guard lock(registry.mutex);
  // As above.
  const ExportList* list_found = nullptr;
  const Export* found = nullptr;
  for (const ExportList* list : registry.lists) {
    for (const Export& item : list->exports) {
      if (item.record->kind != FunctionRecord::kConstructor || *item.record->type != type) continue;
      if (found && item.record->type != &type) continue;
      found = &item;
      list_found = list;
    }
  }
  ExportedClass exported;
  if (!found) return exported;
  exported.file = FileOf(list_found->place);
  exported.name = found->name;
  for (const Export& item : list_found->exports) {
    if (item.record->kind == FunctionRecord::kMethod && item.class_name == found->name) {
      exported.methods.push_back(&item);
    }
  }
  return exported;
}

}  // namespace weft::detail
