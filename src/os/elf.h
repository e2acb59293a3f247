// What an executable or a shared library says about itself: its machine, what it needs, which build it is.
//
// Reads through a function, only the few tables that it needs. The file is input: whatever it contains, nothing is read
// outside of it, allocations stay within the limits here, and impossible contents are an error. Loads and runs nothing.
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::core {

struct ElfFile {
  uint16_t machine = 0;  // e_machine
  uint8_t bits = 0;      // 32 or 64
  // The rest is known only for 64-bit little-endian files.
  std::string build_id;             // its bytes; empty: it has none
  std::string interpreter;          // of an executable: the program that loads it
  std::string soname;               // of a library
  std::vector<std::string> needed;  // libraries, by name
  uint32_t glibc = 0;               // the newest GLIBC_x.y that it needs, x << 16 | y; 0: none
  // The file itself says where its libraries lie (DT_RPATH, names with a slash), and LD_LIBRARY_PATH comes too late.
  bool fixed_paths = false;
};

// Fills `to` with the bytes at this offset; false if there are not so many.
using ReadAt = std::function<bool(uint64_t offset, void* to, size_t size)>;
Result<ElfFile> ReadElf(uint64_t file_size, const ReadAt& read_at);
// For an open file; its position stays.
Result<ElfFile> ReadElf(int fd);

// Tells builds apart: "build:" and the build id in hexadecimal. Empty if there is no build id that surely differs
// between builds: then "sha256:" and the SHA-256 of the file is its identity.
std::string BuildIdentity(std::string_view build_id);
bool IsIdentity(std::string_view identity);

// "x86-64 (64 bit)".
std::string DescribeMachine(uint16_t machine, uint8_t bits);
// "2.36".
std::string DescribeGlibc(uint32_t version);
// Of "2.36"; 0 if it is none.
uint32_t ParseGlibc(std::string_view version);

}  // namespace weft::core
