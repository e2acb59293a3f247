#include "control_store/sealed_function.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/bytes.h"
#include "base/check.h"

namespace weft::core {
namespace {

constexpr uint8_t kVersion = 1;

std::array<unsigned char, 32> Hmac(const void* key, size_t key_size, std::string_view text) {
  std::array<unsigned char, 32> digest{};
  unsigned int size = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), key, static_cast<int>(key_size), reinterpret_cast<const unsigned char*>(text.data()),
           text.size(), digest.data(), &size);
  WEFT_CHECK(made != nullptr && size == digest.size(), "HMAC-SHA256 is computed");
  return digest;
}

}  // namespace

FunctionSealer::FunctionSealer(std::string_view token, std::string_view cluster_id) {
  ByteWriter use;
  use.Bytes("weft function bodies 1");
  use.Bytes(cluster_id);
  secret_ = Hmac(token.data(), token.size(), use.view());
}

FunctionSealer::~FunctionSealer() { OPENSSL_cleanse(secret_.data(), secret_.size()); }

std::array<unsigned char, kSealBytes> FunctionSealer::Sign(FunctionKey key, std::string_view body) const {
  ByteWriter text;
  text.Fixed(kVersion);
  text.Fixed(key.high);
  text.Fixed(key.low);
  text.Raw(body);
  return Hmac(secret_.data(), secret_.size(), text.view());
}

std::string FunctionSealer::Seal(FunctionKey key, std::string_view body) const {
  auto seal = Sign(key, body);
  ByteWriter out;
  out.Fixed(kVersion);
  out.Raw({reinterpret_cast<const char*>(seal.data()), seal.size()});
  out.Raw(body);
  return out.Take();
}

StoreResult<std::string> FunctionSealer::Open(FunctionKey key, std::string_view record) const {
  ByteReader in(record);
  const auto version = in.Fixed<uint8_t>();
  const std::string_view seal = in.Raw(kSealBytes);
  const std::string_view body = in.Raw(in.remaining());
  if (!in.ok() || version != kVersion) {
    return StoreStatus(StoreCode::kCorrupt, "a function in the control store is no record of this version of weft");
  }
  auto expected = Sign(key, body);
  if (CRYPTO_memcmp(expected.data(), seal.data(), kSealBytes) != 0) {  // in constant time
    return StoreStatus(StoreCode::kCorrupt,
                       "a function in the control store does not carry this cluster's seal: it was edited, or written "
                       "with another token");
  }
  return std::string(body);
}

}  // namespace weft::core
