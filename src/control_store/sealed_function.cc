#include "control_store/sealed_function.h"

#include <string.h>

#include "base/bytes.h"

namespace weft::core {
namespace {

constexpr uint8_t kVersion = 1;

std::string_view View(const Sha256Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace

FunctionSealer::FunctionSealer(std::string_view token, std::string_view cluster_id) {
  ByteWriter use;
  use.Bytes("weft function bodies 1");
  use.Bytes(cluster_id);
  secret_ = HmacSha256(token, use.view());
}

FunctionSealer::~FunctionSealer() { explicit_bzero(secret_.data(), secret_.size()); }

Sha256Bytes FunctionSealer::Sign(FunctionKey key, std::string_view body) const {
  ByteWriter text;
  text.Fixed(kVersion);
  text.Fixed(key.high);
  text.Fixed(key.low);
  text.Raw(body);
  return HmacSha256(View(secret_), text.view());
}

std::string FunctionSealer::Seal(FunctionKey key, std::string_view body) const {
  const Sha256Bytes seal = Sign(key, body);
  ByteWriter out;
  out.Fixed(kVersion);
  out.Raw(View(seal));
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
  if (!EqualInConstantTime(View(Sign(key, body)), seal)) {
    return StoreStatus(StoreCode::kCorrupt,
                       "a function in the control store does not carry this cluster's seal: it was edited, or written "
                       "with another token");
  }
  return std::string(body);
}

}  // namespace weft::core
