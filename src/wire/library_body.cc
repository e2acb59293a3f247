#include "wire/library_body.h"

namespace weft::core {

std::string EncodeLibraryBody(const LibraryBody& body) {
  std::string bytes(kLibraryMark);
  bytes.append(body.build).append("\n").append(body.path);
  if (body.files.empty() || body.files.size() > kMaxLibraryFiles) return bytes;
  const std::string files = EncodeFiles(body.files);
  if (bytes.size() + 1 + files.size() > kMaxLibraryBodyBytes) return bytes;
  bytes.push_back('\0');
  return bytes.append(files);
}

bool DecodeLibraryBody(std::string_view bytes, LibraryBody* body) {
  if (!IsLibraryBody(bytes)) return false;
  bytes.remove_prefix(kLibraryMark.size());
  const size_t line = bytes.find('\n');
  if (line == std::string_view::npos) return false;
  body->build = bytes.substr(0, line);
  bytes.remove_prefix(line + 1);
  const size_t end = bytes.find('\0');
  body->path = bytes.substr(0, end);
  body->files.clear();
  return end == std::string_view::npos || DecodeFiles(bytes.substr(end + 1), &body->files);
}

}  // namespace weft::core
