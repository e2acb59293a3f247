#include "api_cpp/program_listing.h"

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

#include "api_cpp/identity.h"
#include "os/elf.h"
#include "os/fd.h"
#include "os/sha256.h"

namespace weft::detail {
namespace {

using core::ProgramFile;
using core::ProgramRole;

struct Listed {
  ProgramFile file;
  std::vector<std::string> needed;
};

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

// `loaded_as`: the build id that it has in memory, where that is known; the file may be another one by now.
std::optional<Listed> List(const std::string& path, ProgramRole role, const std::string& loaded_as = {}) {
  core::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info{};
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  Listed listed;
  ProgramFile& file = listed.file;
  file.role = static_cast<uint8_t>(role);
  file.path = path;
  file.size = static_cast<uint64_t>(info.st_size);
  file.name = NameOf(path);
  std::string build_id = loaded_as;
  auto elf = core::ReadElf(fd.get());
  if (elf) {
    file.bits = elf->bits;
    file.machine = elf->machine;
    file.fixed_paths = elf->fixed_paths ? 1 : 0;
    file.glibc = elf->glibc;
    if (role == ProgramRole::kProgram) file.interpreter = elf->interpreter;
    if (role != ProgramRole::kProgram && !elf->soname.empty()) file.name = elf->soname;
    if (build_id.empty()) build_id = elf->build_id;
    listed.needed = std::move(elf->needed);
  }
  file.identity = core::BuildIdentity(build_id);
  if (file.identity.empty()) file.identity = SumOf(fd.get());
  if (file.identity.empty()) return std::nullopt;
  return listed;
}

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
  if (!program) return {};
  std::set<std::string> seen{command[0]}, wanted;
  all.push_back(std::move(*program));
  for (size_t i = 2; !libraries.empty() && i < command.size(); ++i) {
    if (!seen.insert(command[i]).second) continue;
    if (auto library = List(command[i], ProgramRole::kTaskLibrary)) {
      wanted.insert(library->needed.begin(), library->needed.end());
      all.push_back(std::move(*library));
    }
  }

  std::vector<Listed> loaded;
  for (const LoadedModule& module : LoadedLibraries()) {
    char absolute[PATH_MAX];
    const std::string path = ::realpath(module.path.c_str(), absolute) ? absolute : module.path;
    if (IsSystemLibrary(path) || !seen.insert(path).second) continue;
    auto library = List(path, ProgramRole::kLibrary, module.build_id);
    if (!library) continue;
    // Never the C library itself, wherever it lies: it must fit the machine's loader.
    if (library->file.name.starts_with("ld-") || library->file.name == "libc.so.6") continue;
    loaded.push_back(std::move(*library));
  }
  // The program itself loads again what it has loaded. `weft worker` loads what its libraries need, and this process
  // may have loaded much that is nobody's business.
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
  for (Listed& listed : all) files.push_back(std::move(listed.file));
  return files;
}

}  // namespace weft::detail
