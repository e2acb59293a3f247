// How the fields of a message become bytes and come back: little-endian, strings and lists with a uint32 count before
// them. Each kind of message lists its fields once, in a function Fields(visitor, message), for both directions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/bytes.h"

namespace weft::core {

struct FieldWriter {
  ByteWriter& out;
  template <class... T>
  void operator()(T&... fields) {
    (One(fields), ...);
  }
  void One(const std::string& s) { out.Bytes(s); }
  template <class A, class B>
  void One(const std::pair<A, B>& p) {
    One(p.first);
    One(p.second);
  }
  template <class T>
  void One(const std::vector<T>& list) {
    out.Fixed(static_cast<uint32_t>(list.size()));
    for (const auto& item : list) One(item);
  }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void One(const T& value) {
    out.Fixed(value);
  }
  template <class T>  // a struct that has its own Fields
    requires(std::is_class_v<T> && !std::is_trivially_copyable_v<T>)
  void One(const T& value) {
    Fields(*this, const_cast<T&>(value));
  }
};

struct FieldReader {
  ByteReader& in;
  template <class... T>
  void operator()(T&... fields) {
    (One(fields), ...);
  }
  void One(std::string& s) { s = in.Bytes(); }
  template <class A, class B>
  void One(std::pair<A, B>& p) {
    One(p.first);
    One(p.second);
  }
  template <class T>
  void One(std::vector<T>& list) {
    auto count = in.Fixed<uint32_t>();
    // Every item takes at least four bytes on the wire, so a larger count is wrong: refused before allocating.
    if (count > in.remaining() / 4) return in.Fail();
    // Items may be larger in memory than on the wire, so allocate only for items that really come.
    list.reserve(std::min<size_t>(count, 256));
    for (uint32_t i = 0; i < count && in.ok(); ++i) One(list.emplace_back());
  }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void One(T& value) {
    value = in.Fixed<T>();
  }
  template <class T>  // a struct that has its own Fields
    requires(std::is_class_v<T> && !std::is_trivially_copyable_v<T>)
  void One(T& value) {
    Fields(*this, value);
  }
};

// One byte for the alternative, then its fields.
template <class Variant>
std::string EncodeVariant(const Variant& message) {
  ByteWriter out;
  out.Fixed(static_cast<uint8_t>(message.index()));
  std::visit(
      [&](auto& m) {
        using M = std::decay_t<decltype(m)>;
        if constexpr (!std::is_same_v<M, std::monostate>) {
          FieldWriter writer{out};
          Fields(writer, const_cast<M&>(m));  // Fields names the fields for both directions; writing leaves them alone
        }
      },
      message);
  return out.Take();
}

template <class Variant, size_t I = 1>
Variant DecodeVariantAs(size_t type, ByteReader& in) {
  if constexpr (I >= std::variant_size_v<Variant>) {
    return {};
  } else {
    if (type != I) return DecodeVariantAs<Variant, I + 1>(type, in);
    std::variant_alternative_t<I, Variant> message;
    FieldReader reader{in};
    Fields(reader, message);
    if (!in.ok() || !in.AtEnd()) return {};
    return message;
  }
}

// monostate if the bytes are not exactly one message.
template <class Variant>
Variant DecodeVariant(std::string_view bytes) {
  ByteReader in(bytes);
  auto type = in.Fixed<uint8_t>();
  return DecodeVariantAs<Variant>(type, in);
}

}  // namespace weft::core
