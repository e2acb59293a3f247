// The cluster's token: 256 random bits as 64 hexadecimal digits, in a file that nobody but its owner can read.
//
// Made by the head at its first start, read by every node. It is passed on as the name of the file, never on a command
// line, in the environment or in a log. Files are checked through their descriptor, so nobody can swap them in between.
#pragma once

#include <string>

#include "base/result.h"

namespace weft::core {

// A fresh token, of no file.
std::string MakeToken();

// Makes sure that a directory exists, is a real one (no symlink), ours, and closed to others (0700). Its parent must
// exist.
Status EnsurePrivateDirectory(const std::string& path);

// Writes a fresh token into a new file of mode 0600, whole or not at all, and gives it back. The directory is made if
// it is missing, and must be private as above. An existing file is never overwritten (kInvalid).
Result<std::string> CreateTokenFile(const std::string& path);

// kGone if there is no such file. Refused are symlinks, files of somebody else, files that group or others can read or
// write, and what cannot be a token (32 to 1024 printable characters on one line). The directory may be any.
Result<std::string> ReadTokenFile(const std::string& path);

// From a descriptor that somebody has handed over, to its end; `name` is what errors call it.
Result<std::string> ReadToken(int fd, const std::string& name);

// Reads it, or makes it if it is missing; of several that do so at once all get the same.
Result<std::string> ReadOrCreateTokenFile(const std::string& path);

}  // namespace weft::core
