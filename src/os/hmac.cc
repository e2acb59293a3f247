#include "os/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/check.h"

namespace weft::core {

Sha256Bytes HmacSha256(std::string_view key, std::string_view data) {
  Sha256Bytes out;
  unsigned int size = 0;
  // A null key would mean "the key of last time" to OpenSSL.
  const char* key_bytes = key.empty() ? "" : key.data();
  const unsigned char* done =
      ::HMAC(EVP_sha256(), key_bytes, static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(data.data()),
             data.size(), out.data(), &size);
  WEFT_CHECK(done != nullptr && size == out.size(), "OpenSSL computes HMAC-SHA256");
  return out;
}

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace weft::core
