// SHA-256, piece by piece: names files by their content, and checks whether a copy is whole.
//
// Any thread, one object each. Needs no library, so that libweft.so has it too; secrets are OpenSSL's (os/hmac.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace weft::core {

class Sha256 {
 public:
  Sha256();
  void Add(std::span<const uint8_t> bytes);
  void Add(std::string_view bytes) { Add({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}); }
  // The sum of all added bytes. Nothing may be added afterwards.
  std::array<uint8_t, 32> Finish();

 private:
  void Block(const uint8_t* bytes);

  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> rest_;  // the bytes that do not fill a block yet
  uint64_t size_ = 0;             // added in all
};

// Two lower-case digits per byte.
std::string Hexadecimal(std::span<const uint8_t> bytes);

}  // namespace weft::core
