#include "api_cpp/identity.h"

#include <elf.h>
#include <link.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

namespace weft::detail {
namespace {

// Filled before main begins, and by libraries that are loaded later. Constant-initialised, so it is there first.
constinit std::atomic<FunctionRecord*> g_functions{nullptr};

struct Module {
  uintptr_t base = 0;
  std::string id;  // build id, or a hash instead of it
};

uint64_t Mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  return x ^ (x >> 32);
}

// Two independent streams over the same bytes. Not against forgers: build ids are hashes already.
core::FunctionKey Hash(const std::string& bytes) {
  uint64_t high = 0x9e3779b97f4a7c15ull, low = 0xc2b2ae3d27d4eb4full;
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<size_t>(8, bytes.size() - i));
    high = Mix(high ^ word) + i;
    low = Mix(low + word * 0x9fb21c651e98df25ull) ^ high;
  }
  return {Mix(high ^ bytes.size()), Mix(low)};
}

// For executables linked without a build id: the file's content.
std::string HashOfFile(const char* path) {
  std::FILE* file = std::fopen(path, "rb");
  if (!file) return std::string("unreadable:") + path;
  std::string state;
  static char buffer[1 << 16];
  for (size_t size; (size = std::fread(buffer, 1, sizeof buffer, file)) > 0;) {
    core::FunctionKey key = Hash(state + std::string(buffer, size));
    state.assign(reinterpret_cast<const char*>(&key), sizeof key);
  }
  std::fclose(file);
  return "file:" + state;
}

// The bytes of the build id; empty if it has none.
std::string BuildIdIn(const dl_phdr_info& info) {
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const auto& header = info.dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    const char* at = reinterpret_cast<const char*>(info.dlpi_addr + header.p_vaddr);
    const char* end = at + header.p_memsz;
    while (static_cast<size_t>(end - at) >= sizeof(ElfW(Nhdr))) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const char* name = at + sizeof note;
      const char* content = name + (note.n_namesz + 3) / 4 * 4;
      const char* next = content + (note.n_descsz + 3) / 4 * 4;
      if (next > end || next < at) break;
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
        return std::string(content, note.n_descsz);
      }
      at = next;
    }
  }
  return "";
}

std::string BuildId(const dl_phdr_info& info) {
  if (std::string id = BuildIdIn(info); !id.empty()) return "build:" + id;
  bool executable = info.dlpi_name == nullptr || info.dlpi_name[0] == '\0';
  return HashOfFile(executable ? "/proc/self/exe" : info.dlpi_name);
}

struct Search {
  uintptr_t address;
  Module found;
};

int Visit(dl_phdr_info* info, size_t, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    if (header.p_type != PT_LOAD || search.address < begin || search.address >= begin + header.p_memsz) continue;
    search.found = {info->dlpi_addr, BuildId(*info)};
    return 1;
  }
  return 0;
}

Module ModuleOf(const void* place) {
  Search search{reinterpret_cast<uintptr_t>(place), {}};
  static std::mutex mutex;  // of HashOfFile's buffer
  std::lock_guard lock(mutex);
  dl_iterate_phdr(Visit, &search);
  return search.found;
}

}  // namespace

FunctionRecord::FunctionRecord(Kind kind, const std::type_info* type, Prepare prepare, Run run, Destroy destroy,
                               size_t storage_size, size_t storage_alignment, uint32_t num_parameters,
                               uint32_t num_returns, bool repeatable, std::string_view name) noexcept
    : kind(kind),
      repeatable(repeatable),
      type(type),
      prepare(prepare),
      run(run),
      destroy(destroy),
      storage_size(storage_size),
      storage_alignment(storage_alignment),
      num_parameters(num_parameters),
      num_returns(num_returns),
      name(name),
      next(g_functions.load(std::memory_order_relaxed)) {
  while (!g_functions.compare_exchange_weak(next, this, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

core::FunctionKey HashOf(const std::string& bytes) { return Hash(bytes); }

std::string BuildOf(const void* place) {
  std::string id = ModuleOf(place).id;
  std::string text;
  for (size_t at = id.find(':') + 1; at < id.size(); ++at) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(id[at]));
    text += digits;
  }
  return text;
}

std::vector<LoadedModule> LoadedLibraries() {
  std::vector<LoadedModule> found;
  auto visit = [](dl_phdr_info* info, size_t, void* list) {
    // The executable has no name, and the kernel's own library no path.
    if (info->dlpi_name != nullptr && info->dlpi_name[0] == '/') {
      static_cast<std::vector<LoadedModule>*>(list)->push_back({info->dlpi_name, BuildIdIn(*info)});
    }
    return 0;
  };
  dl_iterate_phdr(visit, &found);
  return found;
}

core::FunctionKey KeyOf(const FunctionRecord& function) {
  // The record is data, which no linker merges; the code of two functions may become one.
  Module module = ModuleOf(&function);
  uint64_t offset = reinterpret_cast<uintptr_t>(&function) - module.base;
  return Hash(module.id + std::string(reinterpret_cast<const char*>(&offset), sizeof offset));
}

FunctionRecord* FindFunction(const core::FunctionKey& key) {
  static auto* known = new std::unordered_map<core::FunctionKey, FunctionRecord*>();
  static FunctionRecord* until = nullptr;  // this one and those behind it are known
  FunctionRecord* newest = g_functions.load(std::memory_order_acquire);
  for (FunctionRecord* function = newest; function != until; function = function->next) {
    (*known)[KeyOf(*function)] = function;
  }
  until = newest;
  auto found = known->find(key);
  return found == known->end() ? nullptr : found->second;
}

}  // namespace weft::detail
