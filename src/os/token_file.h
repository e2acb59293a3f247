// The cluster's token: 256 random bits as 64 hexadecimal digits, in a file that only its owner can read.
//
// The head makes it at its first start, and every node reads it. Programs pass on the name of the file, never the token
// on a command line, in the environment or in a log. Files are checked through their descriptor, so they cannot be
// swapped in between.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace weft::core {

// A fresh token, of no file.
std::string MakeToken();

// Makes sure that a directory exists, is a real one (no symlink), ours, and closed to others (0700). Its parent must
// exist.
Status EnsurePrivateDirectory(const std::string& path);

// Writes a fresh token into a new file of mode 0600, whole or not at all, and returns it. The directory is made if
// it is missing, and must be private as above. An existing file is never overwritten (kInvalid).
Result<std::string> CreateTokenFile(const std::string& path);

// kGone if there is no such file. Refuses symlinks, files of other users, files that group or others can read or write,
// and anything that is not a token (32 to 1024 printable characters on one line). Any directory will do.
Result<std::string> ReadTokenFile(const std::string& path);

// Reads a given descriptor to its end; errors call it `name`.
Result<std::string> ReadToken(int fd, const std::string& name);
// The same for other secrets of one line; messages call it `what`.
Result<std::string> ReadSecretFile(const std::string& path, const std::string& what, size_t min_chars);

// Reads it, or makes it if it is missing; several callers at once all get the same token.
Result<std::string> ReadOrCreateTokenFile(const std::string& path);

}  // namespace weft::core
