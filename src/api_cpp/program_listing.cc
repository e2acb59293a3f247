#include "api_cpp/program_listing.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "api_cpp/identity.h"
#include "os/elf.h"
#include "os/fd.h"
#include "os/sha256.h"

namespace weft::detail {
namespace {

using core::ProgramFile;
using core::ProgramRole;

struct Listed {
  ProgramFile file;  // without an identity until Identify
  std::string build_id;
  std::vector<std::string> needed;
};

// What loads programs of this library: the name of musl's C library says that it is for none of glibc's.
constexpr std::string_view kMusl = "libc.musl-";

std::string SumOf(int fd) {
  core::Sha256 sum;
  std::vector<uint8_t> buffer(1 << 20);
  for (off_t at = 0;;) {
    const ssize_t size = ::pread(fd, buffer.data(), buffer.size(), at);
    if (size < 0) return "";
    if (size == 0) return "sha256:" + core::Hexadecimal(sum.Finish());
    sum.Add({buffer.data(), static_cast<size_t>(size)});
    at += size;
  }
}

std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

core::UniqueFd Open(const std::string& path) {
  return core::UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

// `loaded_as`: the build id that it has in memory, where that is known; the file may be another one by now.
std::optional<Listed> List(const std::string& path, ProgramRole role, const std::string& loaded_as = {}) {
  core::UniqueFd fd = Open(path);
  struct stat info{};
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  Listed listed;
  ProgramFile& file = listed.file;
  file.role = static_cast<uint8_t>(role);
  file.path = path;
  file.size = static_cast<uint64_t>(info.st_size);
  file.name = NameOf(path);
  listed.build_id = loaded_as;
  auto elf = core::ReadElf(fd.get());
  if (elf) {
    file.bits = elf->bits;
    file.machine = elf->machine;
    file.fixed_paths = elf->fixed_paths ? 1 : 0;
    file.glibc = elf->glibc;
    if (role == ProgramRole::kProgram) file.interpreter = elf->interpreter;
    const bool has_name = !elf->soname.empty() && elf->soname.find('/') == std::string::npos;
    if (role != ProgramRole::kProgram && has_name) file.name = elf->soname;
    if (listed.build_id.empty()) listed.build_id = elf->build_id;
    listed.needed = std::move(elf->needed);
    for (const std::string& name : listed.needed) {
      if (name.starts_with(kMusl)) file.interpreter = "/lib/ld-" + name.substr(5);  // "/lib/ld-musl-x86_64.so.1"
    }
  }
  return listed;
}

// Reads the whole file if it has no build id. False if that cannot be.
bool Identify(Listed& listed) {
  ProgramFile& file = listed.file;
  file.identity = core::BuildIdentity(listed.build_id);
  if (!file.identity.empty()) return true;
  core::UniqueFd fd = Open(file.path);
  if (fd) file.identity = SumOf(fd.get());
  return !file.identity.empty();
}

std::string RealPath(const std::string& path) {
  char absolute[PATH_MAX];
  return ::realpath(path.c_str(), absolute) ? absolute : path;
}

// What this process has loaded beside the system's own and `seen`, not identified yet.
std::vector<Listed> ListLoaded(std::set<std::string>& seen) {
  std::vector<Listed> loaded;
  for (const LoadedModule& module : LoadedLibraries()) {
    const std::string path = RealPath(module.path);
    if (IsSystemLibrary(path) || !seen.insert(path).second) continue;
    auto library = List(path, ProgramRole::kLibrary, module.build_id);
    if (!library) continue;
    // Never the C library itself, wherever it lies: it must fit the machine's loader.
    if (library->file.name.starts_with("ld-") || library->file.name == "libc.so.6") continue;
    loaded.push_back(std::move(*library));
  }
  return loaded;
}

// Libraries by the names that they are needed by.
class Needed {
 public:
  explicit Needed(std::vector<Listed> loaded) {
    for (Listed& library : loaded) by_name_.try_emplace(library.file.name, std::move(library));
  }
  // Takes out what these names need, each after what it needs itself. Circles, which the loader allows, end somewhere.
  void Take(const std::vector<std::string>& names, std::vector<Listed>& to) {
    for (const std::string& name : names) {
      auto taken = by_name_.extract(name);
      if (taken.empty()) continue;
      Take(taken.mapped().needed, to);
      to.push_back(std::move(taken.mapped()));
    }
  }

 private:
  std::map<std::string, Listed> by_name_;
};

}  // namespace

bool IsSystemLibrary(const std::string& path) {
  std::string_view rest = path;
  if (rest.starts_with("/usr/")) rest.remove_prefix(4);
  if (!rest.starts_with("/lib")) return false;
  rest.remove_prefix(4);
  const std::string_view kind = rest.substr(0, rest.find('/'));
  return kind.empty() || kind == "64" || kind == "32" || kind == "x32";
}

std::vector<ProgramFile> ListProgramFiles(const std::vector<std::string>& command,
                                          const std::vector<std::string>& libraries) {
  std::vector<Listed> all;
  auto program = List(command[0], ProgramRole::kProgram);
  if (!program || !Identify(*program)) return {};
  std::set<std::string> seen{command[0]}, wanted;
  all.push_back(std::move(*program));
  for (size_t i = 2; !libraries.empty() && i < command.size(); ++i) {
    if (!seen.insert(command[i]).second) continue;
    if (auto library = List(command[i], ProgramRole::kTaskLibrary)) {
      wanted.insert(library->needed.begin(), library->needed.end());
      all.push_back(std::move(*library));
    }
  }

  std::vector<Listed> loaded = ListLoaded(seen);
  // The program itself loads its libraries again. `weft worker` loads what its libraries need, and this process may
  // have loaded many others that workers do not need.
  for (bool more = true; more;) {
    more = false;
    for (Listed& library : loaded) {
      if (library.file.path.empty() || (!libraries.empty() && !wanted.contains(library.file.name))) continue;
      wanted.insert(library.needed.begin(), library.needed.end());
      all.push_back(std::exchange(library, {}));
      more = true;
    }
  }
  std::vector<ProgramFile> files;
  for (Listed& listed : all) {
    if (Identify(listed)) files.push_back(std::move(listed.file));
  }
  return files;
}

std::vector<ProgramFile> ListLibraryFiles(const std::string& path) {
  std::string build_id;
  for (const LoadedModule& module : LoadedLibraries()) {
    if (RealPath(module.path) == path) build_id = module.build_id;
  }
  auto library = List(path, ProgramRole::kTaskLibrary, build_id);
  if (!path.starts_with("/") || !library || !Identify(*library)) return {};
  std::set<std::string> seen{path};
  Needed needed(ListLoaded(seen));
  std::vector<Listed> all, own;
  // What every worker has loaded: libweft.so, in which this function lies, and what that needs.
  Dl_info info;
  if (::dladdr(reinterpret_cast<const void*>(&IsSystemLibrary), &info) != 0 && info.dli_fname) {
    if (auto weft = List(RealPath(info.dli_fname), ProgramRole::kLibrary)) needed.Take({weft->file.name}, own);
  }
  needed.Take(library->needed, all);
  std::vector<ProgramFile> files{std::move(library->file)};
  for (Listed& listed : all) {
    if (!Identify(listed)) return {};
    files.push_back(std::move(listed.file));
  }
  return files;
}

}  // namespace weft::detail
