// HMAC-SHA256, and a comparison whose time does not reveal where two values differ.
//
// Uses OpenSSL; linked into the program `weft` only (weft_crypto), never into libweft.so.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace weft::core {

using Sha256Bytes = std::array<uint8_t, 32>;

Sha256Bytes HmacSha256(std::string_view key, std::string_view data);

// Takes the same time wherever they differ. Different sizes are unequal at once: sizes are no secret.
bool EqualInConstantTime(std::string_view a, std::string_view b);

}  // namespace weft::core
