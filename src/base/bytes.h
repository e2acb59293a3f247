// Bounds-checked reading and writing of little-endian bytes. Used for everything that crosses a process border
// outside the hot frames. A reader never reads past its end: once bytes are missing, ok() stays false and every
// later read returns zeros.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace weft::core {

class ByteWriter {
 public:
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void Fixed(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void Bytes(std::string_view bytes) {  // length-prefixed
    Fixed(static_cast<uint32_t>(bytes.size()));
    out_.append(bytes);
  }
  void Raw(std::string_view bytes) { out_.append(bytes); }
  size_t size() const { return out_.size(); }
  std::string Take() { return std::move(out_); }
  const std::string& view() const { return out_; }

 private:
  std::string out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}
  template <class T>
    requires std::is_trivially_copyable_v<T>
  T Fixed() {
    T value{};
    if (rest_.size() < sizeof value) {
      Fail();
      return value;
    }
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  std::string_view Bytes() { return Raw(Fixed<uint32_t>()); }
  std::string_view Raw(size_t size) {
    if (rest_.size() < size) {
      Fail();
      return {};
    }
    auto bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }
  void Fail() {
    ok_ = false;
    rest_ = {};
  }
  bool ok() const { return ok_; }
  bool AtEnd() const { return rest_.empty(); }
  size_t remaining() const { return rest_.size(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace weft::core
