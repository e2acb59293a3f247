#include "api_cpp/library_origin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "api_cpp/identity.h"
#include "api_cpp/program_listing.h"
#include "weft/errors.h"
#include "wire/library_body.h"

namespace weft::detail {
namespace {

// A copy may be dropped for lack of room between the daemon's answer and our opening it.
constexpr int kAttempts = 3;

struct Origins {
  std::mutex mutex;
  std::map<std::string, std::string> bodies;    // by file
  std::map<std::string, LoadedLibrary> loaded;  // by body
  std::map<std::string, std::string> needed;    // by name, as the loader knows it: the identity
};
Origins& TheOrigins() {
  static auto* origins = new Origins();
  return *origins;
}

std::string BodyOf(const std::string& file, const std::string& build) {
  Origins& origins = TheOrigins();
  {
    std::lock_guard lock(origins.mutex);
    if (auto known = origins.bodies.find(file); known != origins.bodies.end()) return known->second;
  }
  std::string body = core::EncodeLibraryBody({build, file, ListLibraryFiles(file)});
  std::lock_guard lock(origins.mutex);
  return origins.bodies.try_emplace(file, std::move(body)).first->second;
}

// Loads what the library needs before the loader looks for it: it finds loaded libraries by name, wherever they lie.
void LoadNeeded(const core::LibraryBody& library, const std::vector<std::string>& paths) {
  Origins& origins = TheOrigins();
  for (size_t i = 1; i < paths.size(); ++i) {
    const core::ProgramFile& file = library.files[i];
    {
      std::lock_guard lock(origins.mutex);
      auto [known, fresh] = origins.needed.try_emplace(file.name, file.identity);
      if (!fresh && known->second != file.identity) {
        throw VersionMismatchError("the library " + library.path + " needs " + file.path +
                                   ", and this worker has loaded another build of " + file.name +
                                   " for another library; use both with the same build of it");
      }
      if (!fresh) continue;
    }
    if (::dlopen(file.name.c_str(), RTLD_NOW | RTLD_NOLOAD)) continue;  // this process has its own
    if (::dlopen(paths[i].c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) continue;
    const char* why = ::dlerror();
    std::string text = "the library " + file.path + ", which " + library.path +
                       " needs, cannot be loaded: " + (why ? why : "unknown reason");
    std::lock_guard lock(origins.mutex);
    origins.needed.erase(file.name);
    throw RuntimeEnvSetupError(text);
  }
}

}  // namespace

std::string BodyOf(const FunctionRecord& function) {
  std::string file = FileOf(&function);
  char own[PATH_MAX];
  if (file.empty() || (::realpath("/proc/self/exe", own) && file == own)) return "";
  return BodyOf(file, BuildOf(&function));
}

std::string BodyOf(const LoadedLibrary& library) { return BodyOf(library.path, library.build); }

LoadedLibrary LoadLibraryOf(core::Runtime& runtime, const std::string& body, core::ProcessId submitter,
                            const core::Runtime::GiveUp& give_up) {
  core::LibraryBody library;
  if (!core::DecodeLibraryBody(body, &library)) throw WeftError("what describes a library of tasks makes no sense");
  if (!runtime.in_cluster() || library.files.empty()) return LoadTaskLibrary(library.path);
  Origins& origins = TheOrigins();
  {
    std::lock_guard lock(origins.mutex);
    if (auto known = origins.loaded.find(body); known != origins.loaded.end()) return known->second;
  }
  for (int attempt = 1;; ++attempt) {
    auto found = runtime.FindLibrary(library.files, submitter, give_up);
    if (!found && found.error().kind == core::ErrorKind::kInvalid) {
      const std::string& text = found.error().message;
      const size_t line = text.find('\n');
      if (text.starts_with("VersionMismatchError\n")) throw VersionMismatchError(text.substr(line + 1));
      throw RuntimeEnvSetupError(text.substr(line == std::string::npos ? 0 : line + 1));
    }
    if (!found) throw WeftError(found.error().message);
    const std::vector<std::string>& paths = *found;
    if (paths.empty()) return LoadTaskLibrary(library.path);
    if (paths.size() != library.files.size())
      throw WeftError("the node daemon has found other files than it was asked");
    const bool there =
        std::all_of(paths.begin(), paths.end(), [](const auto& path) { return ::access(path.c_str(), R_OK) == 0; });
    if (!there && attempt < kAttempts) continue;
    LoadNeeded(library, paths);
    const bool is_copy = paths[0] != library.path;
    LoadedLibrary loaded;
    try {
      loaded = LoadTaskLibrary(paths[0], is_copy ? paths[0] : "");
    } catch (const WeftError& error) {
      throw RuntimeEnvSetupError(error.what());
    }
    const std::string file = std::exchange(loaded.path, library.path);
    std::lock_guard lock(origins.mutex);
    // Under both names: when the copy is dropped, its link leads nowhere.
    for (const std::string& name : {file, paths[0]}) origins.bodies.try_emplace(name, body);
    return origins.loaded.try_emplace(body, std::move(loaded)).first->second;
  }
}

}  // namespace weft::detail
