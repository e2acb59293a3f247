#include "api_cpp/symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

namespace weft::detail {
namespace {

using Header = ElfW(Ehdr);
using Section = ElfW(Shdr);
using Symbol = ElfW(Sym);

// A file that is mapped for reading. All offsets in it are checked against its size before they are used.
class File {
 public:
  explicit File(const char* path) noexcept {
    int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    struct stat status;
    if (::fstat(fd, &status) == 0 && status.st_size > 0) {
      void* data = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
      if (data != MAP_FAILED) {
        data_ = static_cast<const char*>(data);
        size_ = static_cast<size_t>(status.st_size);
      }
    }
    ::close(fd);
  }
  ~File() {
    if (data_) ::munmap(const_cast<char*>(data_), size_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool Has(uint64_t offset, uint64_t size) const noexcept { return offset <= size_ && size <= size_ - offset; }
  template <class T>
  bool Read(uint64_t offset, T& to) const noexcept {
    if (!Has(offset, sizeof to)) return false;
    std::memcpy(&to, data_ + offset, sizeof to);
    return true;
  }
  // The text at `offset`, which ends before `end`; nullptr if it does not.
  const char* Text(uint64_t offset, uint64_t end) const noexcept {
    if (offset >= end || end > size_ || !std::memchr(data_ + offset, 0, end - offset)) return nullptr;
    return data_ + offset;
  }

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

// Calls use(address, size, name) for each function in the file's larger table of symbols.
template <class Use>
void ForEachFunction(const File& file, Use use) noexcept {
  Header header;
  if (!file.Read(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != (sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32) ||
      header.e_shentsize != sizeof(Section)) {
    return;
  }
  Section table{};
  for (uint32_t i = 0; i < header.e_shnum; ++i) {
    Section section;
    if (!file.Read(header.e_shoff + uint64_t{i} * sizeof section, section)) return;
    if (section.sh_type == SHT_SYMTAB || (section.sh_type == SHT_DYNSYM && table.sh_type != SHT_SYMTAB)) {
      table = section;
    }
  }
  Section names;
  if (table.sh_type == SHT_NULL || !file.Has(table.sh_offset, table.sh_size) || table.sh_link >= header.e_shnum ||
      !file.Read(header.e_shoff + uint64_t{table.sh_link} * sizeof names, names) ||
      !file.Has(names.sh_offset, names.sh_size)) {
    return;
  }
  for (uint64_t i = 0; i < table.sh_size / sizeof(Symbol); ++i) {
    Symbol symbol;
    if (!file.Read(table.sh_offset + i * sizeof symbol, symbol)) return;
    if ((symbol.st_info & 0xf) != STT_FUNC || symbol.st_shndx == SHN_UNDEF || symbol.st_name >= names.sh_size) continue;
    const char* name = file.Text(names.sh_offset + symbol.st_name, names.sh_offset + names.sh_size);
    if (name && *name) use(symbol.st_value, symbol.st_size, name);
  }
}

// The loaded file that an address lies in.
struct Module {
  uintptr_t address = 0;
  uintptr_t base = 0;
  char path[1024] = {};
};
int FindModule(dl_phdr_info* info, size_t, void* to) {
  auto& module = *static_cast<Module*>(to);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (part.p_type != PT_LOAD || module.address < begin || module.address - begin >= part.p_memsz) continue;
    module.base = info->dlpi_addr;
    std::strncpy(module.path, info->dlpi_name, sizeof module.path - 1);
    if (!*module.path) {  // the program itself
      ssize_t size = ::readlink("/proc/self/exe", module.path, sizeof module.path - 1);
      module.path[size > 0 ? size : 0] = 0;
    }
    return 1;
  }
  return 0;
}

const char* FileName(const char* path) noexcept {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

// What one file says, in the order of addresses.
struct Table {
  struct Entry {
    uint64_t address, size;
    const char* name;
  };
  explicit Table(const char* path) : file(path) {
    ForEachFunction(
        file, [&](uint64_t address, uint64_t size, const char* name) { entries.push_back({address, size, name}); });
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.address < b.address; });
  }
  const char* Find(uint64_t address) const {
    auto after = std::upper_bound(entries.begin(), entries.end(), address,
                                  [](uint64_t wanted, const Entry& entry) { return wanted < entry.address; });
    if (after == entries.begin()) return nullptr;
    const Entry& entry = *std::prev(after);
    return address - entry.address < std::max<uint64_t>(entry.size, 1) ? entry.name : nullptr;
  }
  File file;
  std::vector<Entry> entries;
};

const Table& TableOf(const char* path) {
  static std::mutex mutex;
  static auto* tables = new std::map<std::string, std::unique_ptr<Table>>();  // lives until the end
  std::lock_guard lock(mutex);
  auto& table = (*tables)[path];
  if (!table) table = std::make_unique<Table>(path);
  return *table;
}

// ---- without allocations

struct Line {
  char text[512];
  size_t size = 0;
  void Add(const char* more, size_t count) noexcept {
    count = std::min(count, sizeof text - size);
    std::memcpy(text + size, more, count);
    size += count;
  }
  void Add(const char* more) noexcept { Add(more, std::strlen(more)); }
  void AddHex(uint64_t number) noexcept {
    char digits[16];
    size_t count = 0;
    do {
      digits[count++] = "0123456789abcdef"[number % 16];
      number /= 16;
    } while (number != 0);
    while (count > 0) Add(&digits[--count], 1);
  }
  void AddName(const char* name) noexcept;
};

// "_ZN12_GLOBAL__N_13RunEi" as "(anonymous namespace)::Run": identifiers only, as far as they go.
void Line::AddName(const char* name) noexcept {
  const char* at = name;
  if (std::strncmp(at, "_Z", 2) != 0) return Add(name);
  at += 2;
  if (*at == 'N') ++at;
  while (*at == 'K' || *at == 'L') ++at;
  bool any = false;
  while (*at >= '1' && *at <= '9') {
    size_t length = 0;
    while (*at >= '0' && *at <= '9' && length < 1000) length = length * 10 + static_cast<size_t>(*at++ - '0');
    if (::strnlen(at, length) < length) break;
    if (any) Add("::");
    any = true;
    if (length == 12 && std::memcmp(at, "_GLOBAL__N_1", 12) == 0) {
      Add("(anonymous namespace)");
    } else {
      Add(at, length);
    }
    at += length;
    while (*at == 'L') ++at;
  }
  if (!any) Add(name);
}

}  // namespace

std::string Demangled(const char* name) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  std::string result = status == 0 && text ? text.get() : name;
  if (size_t clone = result.find(" [clone "); clone != std::string::npos)
    result.resize(clone);  // the compiler's copies
  return result;
}

Frame DescribeAddress(uintptr_t address) {
  Module module{.address = address};
  if (!::dl_iterate_phdr(FindModule, &module)) return {"", "unknown code"};
  Line place;
  place.Add(FileName(module.path));
  place.Add("+0x");
  place.AddHex(address - module.base);
  const char* name = TableOf(module.path).Find(address - module.base);
  return {name ? Demangled(name) : "", std::string(place.text, place.size)};
}

bool WriteFrame(int fd, uintptr_t address) noexcept {
  Module module{.address = address};
  Line line;
  line.Add("    at ");
  if (!::dl_iterate_phdr(FindModule, &module)) {
    line.Add("unknown code\n");
  } else {
    {
      File file(module.path);
      const char* found = nullptr;
      uint64_t wanted = address - module.base;
      ForEachFunction(file, [&](uint64_t begin, uint64_t size, const char* name) {
        if (wanted >= begin && wanted - begin < size) found = name;
      });
      constexpr const char* kOwn[] = {"_ZN4weft6detail10Trampoline", "_ZN4weft6detail10ThrowPoint",
                                      "_ZN4weft6detail9CppRunner"};
      for (const char* own : kOwn) {
        if (found && std::strncmp(found, own, std::strlen(own)) == 0) return false;
      }
      line.AddName(found ? found : "?");
    }
    line.Add(" (");
    line.Add(FileName(module.path));
    line.Add("+0x");
    line.AddHex(address - module.base);
    line.Add(")\n");
  }
  [[maybe_unused]] ssize_t written = ::write(fd, line.text, line.size);
  return true;
}

}  // namespace weft::detail
