#include "os/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "os/entropy.h"
#include "os/fd.h"

namespace weft::core {
namespace {

constexpr size_t kMinTokenChars = 32;
constexpr size_t kMaxTokenChars = 1024;

Error SystemError(const std::string& what, int code) {
  return Error{code == ENOENT ? ErrorKind::kGone : ErrorKind::kUnavailable, what + ": " + strerror(code)};
}

Error Refused(std::string why) { return Error{ErrorKind::kInvalid, std::move(why)}; }

std::string Hex(const uint8_t* bytes, size_t size) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

std::string Mode(mode_t mode) {
  char text[8];
  snprintf(text, sizeof text, "%04o", static_cast<unsigned>(mode & 07777));
  return text;
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Result<std::string> ReadSecret(int fd, const std::string& name, const std::string& what, size_t min_chars) {
  char buffer[kMaxTokenChars + 2];
  size_t size = 0;
  while (size < sizeof buffer) {
    const ssize_t part = ::read(fd, buffer + size, sizeof buffer - size);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) return SystemError("cannot read " + name, errno);
    if (part == 0) break;
    size += static_cast<size_t>(part);
  }
  std::string_view token(buffer, size);
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.remove_suffix(1);
  if (token.size() < min_chars || token.size() > kMaxTokenChars) {
    return Refused(name + " holds no " + what + ": it should have one line of " + std::to_string(min_chars) + " to " +
                   std::to_string(kMaxTokenChars) + " characters");
  }
  for (const char c : token) {
    // The character itself is not shown: it may be part of a secret.
    if (c <= ' ' || c > '~')
      return Refused(name + " holds no " + what + ": only printable characters without spaces may be in it");
  }
  return std::string(token);
}

}  // namespace

std::string MakeToken() {
  std::array<uint8_t, 32> bytes;
  FillWithEntropy(bytes);
  return Hex(bytes.data(), bytes.size());
}

Status EnsurePrivateDirectory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return SystemError("cannot make the directory '" + path + "'", errno);
  }
  const UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) {
    if (errno == ELOOP || errno == ENOTDIR) {
      return Refused("'" + path + "' is a symlink or a file, where weft needs a directory of its own: remove it");
    }
    return SystemError("cannot open the directory '" + path + "'", errno);
  }
  struct stat info{};
  if (::fstat(directory.get(), &info) != 0) return SystemError("cannot look at '" + path + "'", errno);
  if (info.st_uid != ::geteuid()) {
    return Refused("the directory '" + path + "' belongs to user " + std::to_string(info.st_uid) + ", not to us (" +
                   std::to_string(::geteuid()) + "): that user could read and change what is in it");
  }
  if ((info.st_mode & 077) != 0) {
    return Refused("the directory '" + path + "' has mode " + Mode(info.st_mode) +
                   ", so others can get in: chmod 700 '" + path + "'");
  }
  return Status();
}

Result<std::string> CreateTokenFile(const std::string& path) {
  const std::string folder = DirectoryOf(path);
  if (const Status is_private = EnsurePrivateDirectory(folder); !is_private) return is_private.error();
  const std::string token = MakeToken();
  // Complete under another name first, then under its own, which must not exist: no process ever reads half a token.
  std::array<uint8_t, 8> suffix;
  FillWithEntropy(suffix);
  const std::string unfinished = path + "." + Hex(suffix.data(), suffix.size());
  const UniqueFd fd(::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return SystemError("cannot write the token file '" + path + "'", errno);
  const std::string line = token + "\n";
  int failed = 0;
  if (::fchmod(fd.get(), 0600) != 0) failed = errno;  // whatever the umask is
  const ssize_t written = failed == 0 ? ::write(fd.get(), line.data(), line.size()) : 0;
  if (failed == 0 && written != static_cast<ssize_t>(line.size())) failed = written < 0 ? errno : ENOSPC;
  if (failed == 0 && ::fsync(fd.get()) != 0) failed = errno;
  if (failed == 0 && ::link(unfinished.c_str(), path.c_str()) != 0) failed = errno;
  ::unlink(unfinished.c_str());
  if (failed == EEXIST) return Refused("the token file '" + path + "' exists already");
  if (failed != 0)
    return Error{ErrorKind::kUnavailable, "cannot write the token file '" + path + "': " + strerror(failed)};
  return token;
}

Result<std::string> ReadTokenFile(const std::string& path) { return ReadSecretFile(path, "token", kMinTokenChars); }

Result<std::string> ReadSecretFile(const std::string& path, const std::string& what, size_t min_chars) {
  // Without waiting: it may turn out to be a pipe.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  const std::string name = "the " + what + " file '" + path + "'";
  if (!fd) {
    if (errno == ELOOP) return Refused(name + " is a symlink: name the file itself");
    return SystemError("cannot read " + name, errno);
  }
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return SystemError("cannot look at " + name, errno);
  if (!S_ISREG(info.st_mode)) return Refused(name + " is not a regular file");
  if (info.st_uid != ::geteuid()) {
    return Refused(name + " belongs to user " + std::to_string(info.st_uid) + ", not to us (" +
                   std::to_string(::geteuid()) + ")");
  }
  if ((info.st_mode & 077) != 0) {
    return Refused(name + " has mode " + Mode(info.st_mode) + ", so others can get at the " + what + ": chmod 600 '" +
                   path + "', and make a new one if others may have read it");
  }
  return ReadSecret(fd.get(), name, what, min_chars);
}

Result<std::string> ReadToken(int fd, const std::string& name) { return ReadSecret(fd, name, "token", kMinTokenChars); }
Result<std::string> ReadOrCreateTokenFile(const std::string& path) {
  auto token = ReadTokenFile(path);
  if (token || token.error().kind != ErrorKind::kGone) return token;
  auto made = CreateTokenFile(path);
  if (made || made.error().kind != ErrorKind::kInvalid) return made;
  // Another process was faster, or the directory is not private: reading tells which.
  token = ReadTokenFile(path);
  return token ? token : made;
}

}  // namespace weft::core
