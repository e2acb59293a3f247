// The body of a C++ function that lies in a library, as it travels: which build of which library, and the files that a
// node needs which does not have it.
//
// Bytes: kLibraryMark, the build in hexadecimal, a newline, the path, and if files are listed a zero byte and the list
// (EncodeFiles). Made where the library is loaded, read by workers and by whoever is to share the files. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "wire/languages.h"
#include "wire/messages.h"

namespace weft::core {

// A body travels inside one frame of a channel, beside little else.
inline constexpr size_t kMaxLibraryBodyBytes = 128 * 1024;
// No library needs so many others that are not the system's.
inline constexpr size_t kMaxLibraryFiles = 512;

struct LibraryBody {
  std::string build;               // for people
  std::string path;                // on the node of whoever loaded it
  std::vector<ProgramFile> files;  // ShareLibrary::files; empty: not known
};

inline bool IsLibraryBody(std::string_view body) { return body.starts_with(kLibraryMark); }
// Without the files if they would be too much.
std::string EncodeLibraryBody(const LibraryBody& body);
bool DecodeLibraryBody(std::string_view bytes, LibraryBody* body);

}  // namespace weft::core
