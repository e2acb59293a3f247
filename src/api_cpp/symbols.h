// Names of functions from addresses, even of static ones: from the symbol tables of the loaded files.
//
// DescribeAddress reads each file once and remembers it; it is for errors, any thread. WriteFrame is for signal
// handlers: it allocates nothing, remembers nothing and is slow.
#pragma once

#include <cstdint>
#include <string>

namespace weft::detail {

struct Frame {
  std::string function;  // demangled; empty if unknown
  std::string place;     // "program+0x1234", as addr2line takes it
};
Frame DescribeAddress(uintptr_t address);

// "Demangled", or the name itself.
std::string Demangled(const char* name);

// Writes "    at name (file+0x1234)". Names are readable but without parameters and templates. False, and nothing
// written, for the frames with which weft calls a task.
bool WriteFrame(int fd, uintptr_t address) noexcept;

}  // namespace weft::detail
