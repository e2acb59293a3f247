// Seals the records of the control store from which code is run (functions, what actors are made of, how workers are
// started), so that an attacker who can only write to the store cannot plant code in the cluster.
//
// The seal is HMAC-SHA256 over cluster, table, key and body, with a secret that is derived from the cluster's token. It
// does not hide the body, and it does not prevent an older record from being put back under its own key.
#pragma once

#include <string>
#include <string_view>

#include "control_store/control_store.h"
#include "os/hmac.h"

namespace weft::core {

inline constexpr size_t kSealBytes = sizeof(Sha256Bytes);

class RecordSealer {
 public:
  // The secret is derived from the token, for this use alone: a seal says nothing about other uses of the token.
  RecordSealer(std::string_view token, std::string_view cluster_id);
  ~RecordSealer();  // wipes the secret
  RecordSealer(const RecordSealer&) = delete;
  RecordSealer& operator=(const RecordSealer&) = delete;

  std::string Seal(Table table, std::string_view key, std::string_view body) const;  // the record's value
  // Every record of the batch that is put.
  void SealAll(WriteBatch& batch) const;
  // kCorrupt if the value is not what this cluster has sealed under this key.
  StoreResult<std::string> Open(Table table, std::string_view key, std::string_view value) const;

 private:
  Sha256Bytes Sign(Table table, std::string_view key, std::string_view body) const;

  Sha256Bytes secret_;
};

}  // namespace weft::core
