// Function bodies as they lie in the control store: sealed, so that whoever can write to the store, and not more,
// cannot plant code in the cluster.
//
// The seal is HMAC-SHA256 over cluster, key and body, with a secret that only those have who know the cluster's token.
// It does not hide the body, and it does not stop an old body from being put back under its own key: a key is the hash
// of a body, so there is no older one.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "control_store/control_store.h"
#include "wire/ids.h"

namespace weft::core {

inline constexpr size_t kSealBytes = 32;

class FunctionSealer {
 public:
  // The secret is derived from the token, for this use alone: a seal says nothing about other uses of the token.
  FunctionSealer(std::string_view token, std::string_view cluster_id);
  ~FunctionSealer();  // wipes the secret
  FunctionSealer(const FunctionSealer&) = delete;
  FunctionSealer& operator=(const FunctionSealer&) = delete;

  std::string Seal(FunctionKey key, std::string_view body) const;  // the record's value
  // kCorrupt if the record is not what this cluster has sealed under this key.
  StoreResult<std::string> Open(FunctionKey key, std::string_view record) const;

 private:
  std::array<unsigned char, kSealBytes> Sign(FunctionKey key, std::string_view body) const;

  std::array<unsigned char, 32> secret_;
};

}  // namespace weft::core
