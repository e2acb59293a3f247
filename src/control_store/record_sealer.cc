#include "control_store/record_sealer.h"

#include <string.h>

#include "base/bytes.h"

namespace weft::core {
namespace {

constexpr uint8_t kVersion = 1;

std::string_view View(const Sha256Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace

RecordSealer::RecordSealer(std::string_view token, std::string_view cluster_id) {
  ByteWriter use;
  use.Bytes("weft records 1");
  use.Bytes(cluster_id);
  secret_ = HmacSha256(token, use.view());
}

RecordSealer::~RecordSealer() { explicit_bzero(secret_.data(), secret_.size()); }

Sha256Bytes RecordSealer::Sign(Table table, std::string_view key, std::string_view body) const {
  ByteWriter text;
  text.Fixed(kVersion);
  text.Fixed(static_cast<uint8_t>(table));
  text.Bytes(key);
  text.Raw(body);
  return HmacSha256(View(secret_), text.view());
}

std::string RecordSealer::Seal(Table table, std::string_view key, std::string_view body) const {
  const Sha256Bytes seal = Sign(table, key, body);
  ByteWriter out;
  out.Fixed(kVersion);
  out.Raw(View(seal));
  out.Raw(body);
  return out.Take();
}

void RecordSealer::SealAll(WriteBatch& batch) const {
  for (Write& write : batch.writes) {
    if (!write.erase) write.value = Seal(write.table, write.key, write.value);
  }
}

StoreResult<std::string> RecordSealer::Open(Table table, std::string_view key, std::string_view value) const {
  ByteReader in(value);
  const auto version = in.Fixed<uint8_t>();
  const std::string_view seal = in.Raw(kSealBytes);
  const std::string_view body = in.Raw(in.remaining());
  const std::string what = std::string("a record of ") + TableName(table) + " in the control store ";
  if (!in.ok() || version != kVersion) {
    return StoreStatus(StoreCode::kCorrupt, what + "is none of this version of weft");
  }
  if (!EqualInConstantTime(View(Sign(table, key, body)), seal)) {
    return StoreStatus(StoreCode::kCorrupt,
                       what + "does not carry this cluster's seal: it was edited, or written with another token");
  }
  return std::string(body);
}

}  // namespace weft::core
