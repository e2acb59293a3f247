#include "os/elf.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <span>

#include "os/sha256.h"

namespace weft::core {
namespace {

// No real file comes near these; they bound what a false one can make us read.
constexpr size_t kMaxSegments = 1024;
constexpr size_t kMaxNoteBytes = 64 << 10;
constexpr size_t kMaxDynamicBytes = 256 << 10;
constexpr size_t kMaxNameBytes = 4096;
constexpr size_t kMaxNeeded = 1024;
constexpr size_t kMaxVersions = 8192;
// A build id of fewer bytes is no hash of anything.
constexpr size_t kMinBuildIdBytes = 8;
constexpr size_t kMaxBuildIdBytes = 64;

Error Damaged(const char* what) { return {ErrorKind::kInvalid, std::string("it is no whole ELF file: ") + what}; }

class Reader {
 public:
  Reader(uint64_t size, const ReadAt& read_at) : size_(size), read_at_(read_at) {}

  bool Bytes(uint64_t offset, void* to, size_t size) const {
    return offset <= size_ && size <= size_ - offset && (size == 0 || read_at_(offset, to, size));
  }
  template <class T>
  bool Struct(uint64_t offset, T* to) const {
    return Bytes(offset, to, sizeof *to);
  }
  // Up to its zero byte, which must lie before `end`.
  std::optional<std::string> Name(uint64_t offset, uint64_t end) const {
    end = std::min(end, size_);
    if (offset >= end) return std::nullopt;
    std::string text(static_cast<size_t>(std::min<uint64_t>(end - offset, kMaxNameBytes)), '\0');
    if (!Bytes(offset, text.data(), text.size())) return std::nullopt;
    const size_t zero = text.find('\0');
    if (zero == std::string::npos) return std::nullopt;
    text.resize(zero);
    return text;
  }

 private:
  const uint64_t size_;
  const ReadAt& read_at_;
};

// Where in the file an address lies, and where the part of the file that it lies in ends.
std::optional<std::pair<uint64_t, uint64_t>> Place(const std::vector<Elf64_Phdr>& loaded, uint64_t address) {
  for (const Elf64_Phdr& part : loaded) {
    if (address < part.p_vaddr || address - part.p_vaddr >= part.p_filesz) continue;
    const uint64_t offset = part.p_offset + (address - part.p_vaddr);
    const uint64_t end = part.p_offset + part.p_filesz;
    if (offset < part.p_offset || end < offset) return std::nullopt;
    return std::pair{offset, end};
  }
  return std::nullopt;
}

void ReadNotes(const std::string& notes, uint64_t alignment, ElfFile& file) {
  const size_t align = alignment == 8 ? 8 : 4;
  auto padded = [align](uint64_t size) { return (size + align - 1) / align * align; };
  size_t at = 0;
  while (notes.size() - at >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr note;
    std::memcpy(&note, notes.data() + at, sizeof note);
    at += sizeof note;
    const uint64_t name = padded(note.n_namesz), content = padded(note.n_descsz);
    if (name > notes.size() - at || note.n_descsz > notes.size() - at - name) return;
    const std::string_view title(notes.data() + at, note.n_namesz);
    if (note.n_type == NT_GNU_BUILD_ID && title == std::string_view("GNU", 4) && note.n_descsz <= kMaxBuildIdBytes) {
      file.build_id.assign(notes.data() + at + name, note.n_descsz);
      return;
    }
    at += static_cast<size_t>(std::min<uint64_t>(name + content, notes.size() - at));
  }
}

struct Dynamic {
  uint64_t names = 0, names_size = 0, soname = 0, versions = 0, version_count = 0;
  std::vector<uint64_t> needed;
  bool has_soname = false, rpath = false, runpath = false;
};

Result<Dynamic> ReadDynamic(const Reader& in, const Elf64_Phdr& part) {
  Dynamic found;
  std::string bytes(static_cast<size_t>(std::min<uint64_t>(part.p_filesz, kMaxDynamicBytes)), '\0');
  if (!in.Bytes(part.p_offset, bytes.data(), bytes.size())) return Damaged("its dynamic section lies outside");
  for (size_t at = 0; bytes.size() - at >= sizeof(Elf64_Dyn); at += sizeof(Elf64_Dyn)) {
    Elf64_Dyn entry;
    std::memcpy(&entry, bytes.data() + at, sizeof entry);
    const uint64_t value = entry.d_un.d_val;
    switch (entry.d_tag) {
      case DT_NULL:
        return found;
      case DT_STRTAB:
        found.names = value;
        break;
      case DT_STRSZ:
        found.names_size = value;
        break;
      case DT_SONAME:
        found.soname = value;
        found.has_soname = true;
        break;
      case DT_NEEDED:
        if (found.needed.size() == kMaxNeeded) return Damaged("it needs too many libraries");
        found.needed.push_back(value);
        break;
      case DT_RPATH:
        found.rpath = true;
        break;
      case DT_RUNPATH:
        found.runpath = true;
        break;
      case DT_VERNEED:
        found.versions = value;
        break;
      case DT_VERNEEDNUM:
        found.version_count = value;
        break;
      default:
        break;
    }
  }
  return found;
}

Status ReadVersions(const Reader& in, const Dynamic& dynamic, const std::vector<Elf64_Phdr>& loaded,
                    const std::function<std::optional<std::string>(uint64_t)>& name_at, ElfFile& file) {
  if (dynamic.version_count == 0) return {};
  auto place = Place(loaded, dynamic.versions);
  if (!place) return Damaged("its version table lies outside");
  uint64_t at = place->first;
  size_t seen = 0;
  for (uint64_t i = 0; i < dynamic.version_count; ++i) {
    Elf64_Verneed library;
    if (++seen > kMaxVersions || !in.Struct(at, &library)) return Damaged("its version table is not whole");
    uint64_t aux_at = at + library.vn_aux;
    for (uint16_t k = 0; k < library.vn_cnt; ++k) {
      Elf64_Vernaux version;
      if (++seen > kMaxVersions || !in.Struct(aux_at, &version)) return Damaged("its version table is not whole");
      auto name = name_at(version.vna_name);
      if (!name) return Damaged("a version has no name");
      if (name->starts_with("GLIBC_")) file.glibc = std::max(file.glibc, ParseGlibc(name->substr(6)));
      if (version.vna_next == 0) break;
      aux_at += version.vna_next;
    }
    if (library.vn_next == 0) break;
    at += library.vn_next;
  }
  return {};
}

}  // namespace

Result<ElfFile> ReadElf(uint64_t file_size, const ReadAt& read_at) {
  Reader in(file_size, read_at);
  uint8_t ident[EI_NIDENT];
  if (!in.Bytes(0, ident, sizeof ident) || std::memcmp(ident, ELFMAG, SELFMAG) != 0) {
    return Error{ErrorKind::kInvalid, "it is no ELF file"};
  }
  ElfFile file;
  file.bits = ident[EI_CLASS] == ELFCLASS64 ? 64 : ident[EI_CLASS] == ELFCLASS32 ? 32 : 0;
  uint8_t machine[2];  // at the same place in both classes
  if (file.bits == 0 || !in.Bytes(offsetof(Elf64_Ehdr, e_machine), machine, 2)) return Damaged("its head is cut off");
  const bool little = ident[EI_DATA] == ELFDATA2LSB;
  file.machine = static_cast<uint16_t>(little ? machine[0] | machine[1] << 8 : machine[1] | machine[0] << 8);
  if (file.bits != 64 || !little) return file;

  Elf64_Ehdr head;
  if (!in.Struct(0, &head)) return Damaged("its head is cut off");
  if (head.e_phnum > kMaxSegments || (head.e_phnum > 0 && head.e_phentsize != sizeof(Elf64_Phdr))) {
    return Damaged("its segments cannot be read");
  }
  std::vector<Elf64_Phdr> parts(head.e_phnum);
  if (!in.Bytes(head.e_phoff, parts.data(), parts.size() * sizeof(Elf64_Phdr))) {
    return Damaged("its segments lie outside");
  }
  std::vector<Elf64_Phdr> loaded;
  const Elf64_Phdr* dynamic_part = nullptr;
  for (const Elf64_Phdr& part : parts) {
    if (part.p_type == PT_LOAD) loaded.push_back(part);
    if (part.p_type == PT_DYNAMIC) dynamic_part = &part;
    if (part.p_type == PT_INTERP) {
      auto name = in.Name(part.p_offset, part.p_offset + std::min<uint64_t>(part.p_filesz, kMaxNameBytes));
      if (!name) return Damaged("its interpreter has no name");
      file.interpreter = *name;
    }
    if (part.p_type == PT_NOTE && file.build_id.empty() && part.p_filesz <= kMaxNoteBytes) {
      std::string notes(static_cast<size_t>(part.p_filesz), '\0');
      if (!in.Bytes(part.p_offset, notes.data(), notes.size())) return Damaged("its notes lie outside");
      ReadNotes(notes, part.p_align, file);
    }
  }
  if (dynamic_part == nullptr) return file;

  auto dynamic = ReadDynamic(in, *dynamic_part);
  if (!dynamic) return dynamic.error();
  if (!dynamic->has_soname && dynamic->needed.empty() && dynamic->version_count == 0) return file;
  auto names = Place(loaded, dynamic->names);
  if (!names || names->first > file_size) return Damaged("its names lie outside");
  const uint64_t names_end = std::min(names->second, names->first + std::min(dynamic->names_size, file_size));
  std::function<std::optional<std::string>(uint64_t)> name_at = [&](uint64_t offset) -> std::optional<std::string> {
    if (offset >= names_end - names->first) return std::nullopt;
    return in.Name(names->first + offset, names_end);
  };
  if (dynamic->has_soname) {
    auto name = name_at(dynamic->soname);
    if (!name) return Damaged("its soname lies outside");
    file.soname = *name;
  }
  for (uint64_t at : dynamic->needed) {
    auto name = name_at(at);
    if (!name) return Damaged("the name of a library lies outside");
    file.fixed_paths |= name->find('/') != std::string::npos;
    file.needed.push_back(*name);
  }
  file.fixed_paths |= dynamic->rpath && !dynamic->runpath;
  if (Status status = ReadVersions(in, *dynamic, loaded, name_at, file); !status) return status.error();
  return file;
}

Result<ElfFile> ReadElf(int fd) {
  struct stat info{};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return Error{ErrorKind::kInvalid, "it is no file"};
  return ReadElf(static_cast<uint64_t>(info.st_size), [fd](uint64_t offset, void* to, size_t size) {
    for (size_t done = 0; done < size;) {
      const ssize_t part = ::pread(fd, static_cast<char*>(to) + done, size - done, static_cast<off_t>(offset + done));
      if (part < 0 && errno == EINTR) continue;
      if (part <= 0) return false;
      done += static_cast<size_t>(part);
    }
    return true;
  });
}

std::string BuildIdentity(std::string_view build_id) {
  if (build_id.size() < kMinBuildIdBytes || build_id.size() > kMaxBuildIdBytes) return "";
  return "build:" + Hexadecimal({reinterpret_cast<const uint8_t*>(build_id.data()), build_id.size()});
}

bool IsIdentity(std::string_view identity) {
  const bool build = identity.starts_with("build:");
  if (!build && !identity.starts_with("sha256:")) return false;
  identity.remove_prefix(identity.find(':') + 1);
  if (build ? identity.size() < 2 * kMinBuildIdBytes || identity.size() > 2 * kMaxBuildIdBytes
            : identity.size() != 64) {
    return false;
  }
  return identity.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string DescribeMachine(uint16_t machine, uint8_t bits) {
  std::string name;
  switch (machine) {
    case EM_X86_64:
      name = "x86-64";
      break;
    case EM_AARCH64:
      name = "AArch64";
      break;
    case EM_386:
      name = "x86";
      break;
    case EM_ARM:
      name = "ARM";
      break;
    case EM_RISCV:
      name = "RISC-V";
      break;
    case EM_PPC64:
      name = "PowerPC";
      break;
    case EM_S390:
      name = "s390";
      break;
    default:
      name = "machine " + std::to_string(machine);
  }
  return name + " (" + std::to_string(bits) + " bit)";
}

std::string DescribeGlibc(uint32_t version) {
  return std::to_string(version >> 16) + "." + std::to_string(version & 0xffff);
}

uint32_t ParseGlibc(std::string_view version) {
  uint16_t major = 0, minor = 0;
  const char* end = version.data() + version.size();
  auto [dot, wrong] = std::from_chars(version.data(), end, major);
  if (wrong != std::errc() || dot == end || *dot != '.') return 0;
  if (std::from_chars(dot + 1, end, minor).ec != std::errc()) return 0;
  return uint32_t{major} << 16 | minor;
}

}  // namespace weft::core
