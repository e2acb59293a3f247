// The body of a C++ function in a library, as it travels: which build of which library, and the files that a node
// without it needs.
//
// Bytes: kLibraryMark, the build in hexadecimal, a newline, the path, and if files are listed a zero byte and the list
// (EncodeFiles). Made where the library is loaded; read by workers, and by processes that share the files. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "wire/languages.h"
#include "wire/messages.h"

namespace weft::core {

// A body travels inside one frame of a channel, with little else.
inline constexpr size_t kMaxLibraryBodyBytes = 128 * 1024;
// No library needs so many others beside the system's.
inline constexpr size_t kMaxLibraryFiles = 512;

struct LibraryBody {
  std::string build;               // for messages
  std::string path;                // on the node of the process that loaded it
  std::vector<ProgramFile> files;  // ShareLibrary::files; empty: not known
};

inline bool IsLibraryBody(std::string_view body) { return body.starts_with(kLibraryMark); }
// Leaves the files out if they are too many bytes.
std::string EncodeLibraryBody(const LibraryBody& body);
bool DecodeLibraryBody(std::string_view bytes, LibraryBody* body);

}  // namespace weft::core
