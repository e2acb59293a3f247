// Which C++ values can be passed, returned and put, and how they look as bytes (the same as Python's, docs/formats.md).
//
//   bool, integers, float, double, enums        None, True, 7, 2.5 in Python
//   std::string                                 str (bytes if it is not UTF-8)
//   std::vector, array, set, unordered_set      list; vectors of numbers beyond 64 elements are arrays
//   std::pair, tuple, structs (aggregates)      tuple
//   std::map, unordered_map                     dict
//   std::optional                               None or the value
//   weft::Ref<T>                                a reference
//   weft::Array<T> (array.h)                    a NumPy array
//
// For another type specialise weft::Codec<T> with
//   static void Encode(Encoder& out, const T& value);   // usually Codec<U>::Encode of something simpler
//   static T Decode(Decoder& in);
#pragma once

#include <array>
#include <concepts>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "weft/detail/encoder.h"
#include "weft/detail/fields.h"

namespace weft {

using detail::Decoder;
using detail::Encoder;

template <class T>
struct Codec;

namespace detail {

template <class>
inline constexpr bool kNever = false;

// Reads an item that may be "the same as" an earlier one.
template <class Read>
auto ReadShared(Decoder& in, Read read) {
  auto place = in.Follow();
  in.Remember();
  auto value = read();
  in.Return(place);
  return value;
}

inline void ExpectSequence(Decoder& in, const char* wanted) {
  Tag tag = in.NextTag();
  if (tag != Tag::kList && tag != Tag::kTuple) ThrowNotOfType(wanted, static_cast<int>(tag));
}

template <class T>
T DecodeInteger(Decoder& in) {
  Tag tag = in.NextTag();
  if (tag == Tag::kInt8) {
    auto value = in.Fixed<int8_t>();
    if constexpr (std::is_unsigned_v<T>) {
      if (value < 0) ThrowOutOfRange("an unsigned integer");
    }
    return static_cast<T>(value);
  }
  if (tag == Tag::kInt64) {
    auto value = in.Fixed<int64_t>();
    if (!std::in_range<std::conditional_t<sizeof(T) == 1, std::conditional_t<std::is_signed_v<T>, int8_t, uint8_t>, T>>(
            value)) {
      ThrowOutOfRange("the integer type asked for");
    }
    return static_cast<T>(value);
  }
  if (tag == Tag::kBigInt) {
    auto bytes = in.Raw(in.Fixed<uint32_t>());
    uint64_t value = 0;
    if (bytes.size() != 9 || bytes[8] != 0 || sizeof(T) < 8 || std::is_signed_v<T>) {
      ThrowOutOfRange("the integer type asked for");
    }
    std::memcpy(&value, bytes.data(), 8);
    return static_cast<T>(value);
  }
  ThrowNotOfType("an integer", static_cast<int>(tag));
}

inline double DecodeFloat(Decoder& in) {
  Tag tag = in.PeekTag();
  if (tag == Tag::kInt8 || tag == Tag::kInt64) return static_cast<double>(DecodeInteger<int64_t>(in));
  in.NextTag();
  if (tag != Tag::kFloat) ThrowNotOfType("a floating-point number", static_cast<int>(tag));
  return in.Fixed<double>();
}

template <class T>
inline constexpr bool kIsCharacter = std::is_same_v<T, wchar_t> || std::is_same_v<T, char16_t> ||
                                     std::is_same_v<T, char32_t> || std::is_same_v<T, char8_t>;

}  // namespace detail

template <class T>
struct Codec {
  static void Encode(Encoder& out, const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      out.Put(value ? detail::Tag::kTrue : detail::Tag::kFalse);
    } else if constexpr (std::is_integral_v<T>) {
      if constexpr (std::is_unsigned_v<T>) {
        out.Unsigned(value);
      } else {
        out.Integer(value);
      }
    } else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      out.Item(detail::Tag::kFloat, static_cast<double>(value));
    } else if constexpr (std::is_enum_v<T>) {
      Codec<std::underlying_type_t<T>>::Encode(out, static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (Check()) {
      auto fields = detail::Fields(value);
      out.Count(detail::Tag::kTuple, std::tuple_size_v<decltype(fields)>);
      std::apply([&](const auto&... field) { (Codec<std::remove_cvref_t<decltype(field)>>::Encode(out, field), ...); },
                 fields);
    }
  }

  static T Decode(Decoder& in) {
    if constexpr (std::is_same_v<T, bool>) {
      detail::Tag tag = in.NextTag();
      if (tag != detail::Tag::kTrue && tag != detail::Tag::kFalse) {
        detail::ThrowNotOfType("a bool", static_cast<int>(tag));
      }
      return tag == detail::Tag::kTrue;
    } else if constexpr (std::is_integral_v<T>) {
      return detail::DecodeInteger<T>(in);
    } else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      return static_cast<T>(detail::DecodeFloat(in));
    } else if constexpr (std::is_enum_v<T>) {
      return static_cast<T>(Codec<std::underlying_type_t<T>>::Decode(in));
    } else if constexpr (!Check()) {
      std::abort();  // does not compile
    } else {
      return detail::ReadShared(in, [&] {
        T value{};
        auto fields = detail::Fields(value);
        detail::ExpectSequence(in, "a struct");
        constexpr size_t count = std::tuple_size_v<decltype(fields)>;
        if (size_t found = in.Count(); found != count) detail::ThrowWrongLength(count, found);
        std::apply([&](auto&... field) { ((field = Codec<std::remove_cvref_t<decltype(field)>>::Decode(in)), ...); },
                   fields);
        return value;
      });
    }
  }

 private:
  static constexpr bool Check() {
    static_assert(!std::is_pointer_v<T>,
                  "weft: a pointer means nothing in another process: pass the value, a std::string or a weft::Array");
    static_assert(!std::is_same_v<T, long double>, "weft: long double has no form that other languages read");
    static_assert(std::is_pointer_v<T> || std::is_same_v<T, long double> || std::is_aggregate_v<T>,
                  "weft: this type is neither a number, a string, a standard container nor an aggregate struct; "
                  "specialise weft::Codec for it");
    static_assert(!std::is_aggregate_v<T> || std::is_default_constructible_v<T>,
                  "weft: a struct must be default-constructible to be received");
    return std::is_aggregate_v<T> && std::is_default_constructible_v<T>;
  }
};

template <>
struct Codec<std::string> {
  static void Encode(Encoder& out, const std::string& value) { out.Text(value); }
  static std::string Decode(Decoder& in) {
    return detail::ReadShared(in, [&] {
      detail::Tag tag = in.NextTag();
      if (tag != detail::Tag::kString && tag != detail::Tag::kBytes) {
        detail::ThrowNotOfType("a string", static_cast<int>(tag));
      }
      return std::string(in.Raw(in.Fixed<uint32_t>()));
    });
  }
};

namespace detail {

template <class Container>
void EncodeItems(Encoder& out, Tag tag, const Container& items) {
  out.Count(tag, items.size());
  for (const auto& item : items) Codec<typename Container::value_type>::Encode(out, item);
}

template <class Set>
struct SetCodec {
  static void Encode(Encoder& out, const Set& value) { EncodeItems(out, Tag::kList, value); }
  static Set Decode(Decoder& in) {
    return ReadShared(in, [&] {
      ExpectSequence(in, "a list");
      Set value;
      for (uint32_t i = in.Count(); i > 0; --i) value.insert(Codec<typename Set::key_type>::Decode(in));
      return value;
    });
  }
};

template <class Map>
struct MapCodec {
  static void Encode(Encoder& out, const Map& value) {
    out.Count(Tag::kDict, value.size());
    for (const auto& [key, item] : value) {
      Codec<typename Map::key_type>::Encode(out, key);
      Codec<typename Map::mapped_type>::Encode(out, item);
    }
  }
  static Map Decode(Decoder& in) {
    return ReadShared(in, [&] {
      Tag tag = in.NextTag();
      if (tag != Tag::kDict) ThrowNotOfType("a map", static_cast<int>(tag));
      Map value;
      for (uint32_t i = in.Count(); i > 0; --i) {
        auto key = Codec<typename Map::key_type>::Decode(in);
        value.insert_or_assign(std::move(key), Codec<typename Map::mapped_type>::Decode(in));
      }
      return value;
    });
  }
};

template <class Tuple>
struct TupleCodec {
  static void Encode(Encoder& out, const Tuple& value) {
    out.Count(Tag::kTuple, std::tuple_size_v<Tuple>);
    std::apply([&](const auto&... item) { (Codec<std::remove_cvref_t<decltype(item)>>::Encode(out, item), ...); },
               value);
  }
  static Tuple Decode(Decoder& in) {
    return ReadShared(in, [&] {
      ExpectSequence(in, "a tuple");
      if (size_t found = in.Count(); found != std::tuple_size_v<Tuple>) {
        ThrowWrongLength(std::tuple_size_v<Tuple>, found);
      }
      return Items(in, std::make_index_sequence<std::tuple_size_v<Tuple>>{});
    });
  }

 private:
  template <size_t... I>
  static Tuple Items(Decoder& in, std::index_sequence<I...>) {
    return Tuple{Codec<std::tuple_element_t<I, Tuple>>::Decode(in)...};  // braces evaluate from left to right
  }
};

}  // namespace detail

template <class T>
struct Codec<std::vector<T>> {
  static void Encode(Encoder& out, const std::vector<T>& value) {
    out.Count(detail::Tag::kList, value.size());
    for (const T& item : value) Codec<T>::Encode(out, item);
  }
  static std::vector<T> Decode(Decoder& in) {
    return detail::ReadShared(in, [&] {
      std::vector<T> value;
      if constexpr (sizeof(T) == 1 && !std::is_same_v<T, bool> && (std::is_integral_v<T> || std::is_enum_v<T>)) {
        if (in.PeekTag() == detail::Tag::kBytes) {
          in.NextTag();
          auto bytes = in.Raw(in.Fixed<uint32_t>());
          value.resize(bytes.size());
          if (!bytes.empty()) std::memcpy(value.data(), bytes.data(), bytes.size());
          return value;
        }
      }
      detail::ExpectSequence(in, "a list");
      uint32_t count = in.Count();
      value.reserve(count);
      for (uint32_t i = 0; i < count; ++i) value.push_back(Codec<T>::Decode(in));
      return value;
    });
  }
};

template <class T, size_t N>
struct Codec<std::array<T, N>> {
  static void Encode(Encoder& out, const std::array<T, N>& value) {
    detail::EncodeItems(out, detail::Tag::kList, value);
  }
  static std::array<T, N> Decode(Decoder& in) {
    return detail::ReadShared(in, [&] {
      detail::ExpectSequence(in, "a list");
      if (size_t found = in.Count(); found != N) detail::ThrowWrongLength(N, found);
      std::array<T, N> value{};
      for (T& item : value) item = Codec<T>::Decode(in);
      return value;
    });
  }
};

template <class T>
struct Codec<std::optional<T>> {
  static_assert(!requires(T t) { t.has_value(); }, "weft: an optional of an optional is the same as None twice");
  static void Encode(Encoder& out, const std::optional<T>& value) {
    if (value) {
      Codec<T>::Encode(out, *value);
    } else {
      out.Put(detail::Tag::kNone);
    }
  }
  static std::optional<T> Decode(Decoder& in) {
    if (in.PeekTag() != detail::Tag::kNone) return Codec<T>::Decode(in);
    in.NextTag();
    return std::nullopt;
  }
};

template <class... T>
struct Codec<std::tuple<T...>> : detail::TupleCodec<std::tuple<T...>> {};
template <class A, class B>
struct Codec<std::pair<A, B>> : detail::TupleCodec<std::pair<A, B>> {};
template <class K, class V, class C>
struct Codec<std::map<K, V, C>> : detail::MapCodec<std::map<K, V, C>> {};
template <class K, class V, class H, class E>
struct Codec<std::unordered_map<K, V, H, E>> : detail::MapCodec<std::unordered_map<K, V, H, E>> {};
template <class K, class C>
struct Codec<std::set<K, C>> : detail::SetCodec<std::set<K, C>> {};
template <class K, class H, class E>
struct Codec<std::unordered_set<K, H, E>> : detail::SetCodec<std::unordered_set<K, H, E>> {};

}  // namespace weft
