// Which C++ values can be passed, returned and put, and their bytes (the same as Python's, docs/formats.md).
//
//   in C++                                          in Python
//   bool, integers, float, double, enums            bool, int, float, int
//   std::string, u8string, filesystem::path         str (bytes if it is not UTF-8)
//   std::vector<std::byte>                          bytes
//   std::vector, array, list, deque, forward_list   list; vectors of numbers beyond 64 elements are arrays
//   std::set, unordered_set                         set if of numbers or strings, else list
//   std::multiset, unordered_multiset               list
//   std::map, unordered_map                         dict
//   std::multimap, unordered_multimap               list of pairs
//   std::pair, tuple, structs (aggregates)          tuple
//   std::optional, unique_ptr, shared_ptr           None or the value; two pointers to one value arrive as two values
//   std::monostate, nullopt_t, nullptr_t            None
//   std::variant                                    the value, if the alternatives are None, bool, one integer, one
//                                                   floating-point type and std::string, or some of these; else the
//                                                   tuple (index, value)
//   std::chrono durations and time points           the count, in the type's own unit
//   std::complex                                    tuple of two floats
//   std::bitset                                     str of 0 and 1
//   weft::Ref<T>                                    a reference
//   weft::Array<T> (array.h)                        a NumPy array; not inside other values
//
// Containers and pointers are recognised by their interface, so those of other libraries that look like the standard
// ones work too. Structs have up to 32 fields, no base classes and no C arrays (std::array instead). Types that can
// only be moved are values like others.
//
// A type of your own names its fields, in one function beside or inside it that serves both directions:
//   friend auto weft_fields(Account& a) { return std::tie(a.owner_, a.cents_); }
// On arrival it is made by its default constructor and assignment or, if it has none, by its constructor from the
// fields. A derived class needs a function of its own. For full control specialise weft::Codec<T> with
//   static void Encode(Encoder& out, const T& value);   // usually Codec<U>::Encode of something simpler
//   static T Decode(Decoder& in);
#pragma once

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
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

namespace detail {

// A type that names its fields.
template <class T>
concept SaysFields = requires(T& value) { weft_fields(value); };
template <class T>
using SaidFields = decltype(weft_fields(std::declval<T&>()));

template <class T, class Tuple>
inline constexpr bool kIsMadeFrom = false;
template <class T, class... F>
inline constexpr bool kIsMadeFrom<T, std::tuple<F...>> = std::is_constructible_v<T, std::remove_cvref_t<F>...>;

template <class T>
inline constexpr bool kIsArrayType = false;  // weft::Array, which is no part of other values

// A std::mutex, a std::atomic, or a type that contains one: it cannot be moved.
template <class T>
inline constexpr bool kStays =
    std::is_object_v<T> && !std::is_array_v<T> && !std::is_abstract_v<T> && !std::is_move_constructible_v<T>;

// The Codec of a struct without one of its own.
template <class T>
constexpr bool CheckStruct() {
  static_assert(!std::is_pointer_v<T>,
                "weft: a pointer means nothing in another process: pass the value, a std::string or a weft::Array");
  static_assert(!std::is_array_v<T>, "weft: a C array has no form that travels: use a std::array");
  static_assert(!std::is_same_v<T, long double>, "weft: long double has no form that other languages read");
  static_assert(!kIsArrayType<T>,
                "weft: an Array is a value of its own and no part of another one: pass it by itself, or a "
                "weft::Ref<weft::Array<T>> inside");
  static_assert(!kStays<T>,
                "weft: this type can be neither copied nor moved (it is, or has, a std::mutex, a std::atomic or the "
                "like), so it has no form that travels: leave that member out, or keep it inside of an actor");
  constexpr bool named =
      std::is_pointer_v<T> || std::is_array_v<T> || std::is_same_v<T, long double> || kIsArrayType<T> || kStays<T>;
  constexpr bool aggregate = std::is_aggregate_v<T> && !named;
  static_assert(named || aggregate,
                "weft: this type is neither a number, a string, a standard container nor an aggregate struct; give it "
                "a function weft_fields or specialise weft::Codec for it (weft/value.h)");
  if constexpr (aggregate) {
    constexpr bool based = HasBase<T>();
    static_assert(!based, "weft: a struct with a base class cannot be taken apart; give it a function weft_fields");
    if constexpr (!based) {
      constexpr size_t count = CountFields<T>();
      constexpr bool arrays = HasCArray<T>();
      static_assert(!arrays, "weft: a struct with a C array cannot be taken apart; use a std::array");
      static_assert(arrays || count <= kMaxFields,
                    "weft: a struct of more than 32 fields cannot be taken apart; give it a function weft_fields");
      constexpr bool counted = arrays || count > 0 || std::is_empty_v<T>;
      static_assert(counted, "weft: the fields of this struct cannot be told apart; give it a function weft_fields");
      constexpr bool received = std::is_default_constructible_v<T> || std::is_move_assignable_v<T>;
      static_assert(received,
                    "weft: a struct with references, or with constants that have no default, cannot be received");
      return !arrays && counted && count <= kMaxFields && received;
    }
  }
  return false;
}

template <class Tuple>
void EncodeFields(Encoder& out, const Tuple& fields) {
  out.Count(Tag::kTuple, std::tuple_size_v<Tuple>);
  std::apply([&](const auto&... field) { (Codec<std::remove_cvref_t<decltype(field)>>::Encode(out, field), ...); },
             fields);
}

// Makes a T from its fields, in the order in which they come.
template <class T, class Tuple>
struct FieldReader;
template <class T, class... F>
struct FieldReader<T, std::tuple<F...>> {
  static T Read(Decoder& in) { return T{Codec<std::remove_cvref_t<F>>::Decode(in)...}; }
};

inline void ExpectItems(Decoder& in, const char* wanted, size_t count) {
  ExpectSequence(in, wanted);
  if (size_t found = in.Count(); found != count) ThrowWrongLength(count, found);
}

}  // namespace detail

template <class T>
struct Codec {
  using NobodyWroteOne = void;

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
    } else if constexpr (detail::SaysFields<T>) {
      detail::EncodeFields(out, weft_fields(const_cast<T&>(value)));  // which are only read
    } else if constexpr (detail::CheckStruct<T>()) {
      detail::EncodeFields(out, detail::Fields(value));
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
    } else if constexpr (detail::SaysFields<T>) {
      using Tuple = detail::SaidFields<T>;
      constexpr bool by_assignment = std::is_default_constructible_v<T>;
      constexpr bool possible = by_assignment || detail::kIsMadeFrom<T, Tuple>;
      static_assert(!detail::kStays<T>,
                    "weft: a type with weft_fields that can be neither copied nor moved (it has a std::mutex, a "
                    "std::atomic or the like) cannot be received");
      static_assert(possible,
                    "weft: a type with weft_fields needs a default constructor or one that takes the fields, to be "
                    "received");
      if constexpr (!possible || detail::kStays<T>) {
        std::abort();  // does not compile
      } else {
        return detail::ReadShared(in, [&] {
          detail::ExpectItems(in, "a struct", std::tuple_size_v<Tuple>);
          if constexpr (by_assignment) {
            T value{};
            std::apply(
                [&](auto&... field) { ((field = Codec<std::remove_cvref_t<decltype(field)>>::Decode(in)), ...); },
                weft_fields(value));
            return value;
          } else {
            return detail::FieldReader<T, Tuple>::Read(in);
          }
        });
      }
    } else if constexpr (!detail::CheckStruct<T>()) {
      std::abort();  // does not compile
    } else {
      using Tuple = decltype(detail::Fields(std::declval<T&>()));
      return detail::ReadShared(in, [&] {
        detail::ExpectItems(in, "a struct", std::tuple_size_v<Tuple>);
        return detail::FieldReader<T, Tuple>::Read(in);
      });
    }
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

template <>
struct Codec<std::u8string> {
  static void Encode(Encoder& out, const std::u8string& value) {
    out.Text({reinterpret_cast<const char*>(value.data()), value.size()});
  }
  static std::u8string Decode(Decoder& in) {
    std::string text = Codec<std::string>::Decode(in);
    return std::u8string(text.begin(), text.end());
  }
};

namespace detail {

// ---- types that are recognised by their interface

template <class T>
concept Container = !SaysFields<T> && !requires(T& c) { c.c_str(); } && requires(T& c) {
  typename T::value_type;
  c.begin() != c.end();
  c.clear();
};
template <class T>
concept Keyed = Container<T> && requires { typename T::key_type; };
template <class T>
concept Mapping = Keyed<T> && requires { typename T::mapped_type; };
template <class T>
concept UniqueMapping = Mapping<T> && requires(T& c, typename T::key_type k, typename T::mapped_type v) {
  c.insert_or_assign(std::move(k), std::move(v));
};
template <class T>
concept SetLike = Keyed<T> && !Mapping<T>;
template <class T>
concept Appendable =
    Container<T> && !Keyed<T> && requires(T& c, typename T::value_type v) { c.push_back(std::move(v)); };
template <class T>
concept Forward = Container<T> && !Keyed<T> && !Appendable<T> &&
                  requires(T& c, typename T::value_type v) { c.insert_after(c.before_begin(), std::move(v)); };
template <class T>
concept PointerLike = !SaysFields<T> && requires(T& p, typename T::element_type* raw) {
  { p.get() } -> std::same_as<typename T::element_type*>;
  p.reset(raw);
};
template <class T>
concept ComplexLike = !SaysFields<T> && std::is_trivially_copyable_v<T> && requires(const T& z) {
  requires std::is_same_v<typename T::value_type, float> || std::is_same_v<typename T::value_type, double>;
  { z.real() } -> std::same_as<typename T::value_type>;
  { z.imag() } -> std::same_as<typename T::value_type>;
  requires sizeof(T) == 2 * sizeof(typename T::value_type);
};
template <class T>
concept BitsetLike = !SaysFields<T> && requires(const T& bits) {
  { bits.to_string() } -> std::same_as<std::string>;
  { bits.to_ullong() } -> std::same_as<unsigned long long>;
};
template <class T>
concept PathLike = !SaysFields<T> && requires(const T& path) {
  { path.native() } -> std::same_as<const std::string&>;
  { path.lexically_normal() } -> std::same_as<T>;
};

// Types that Python can put into a set, as far as this header knows.
template <class T>
inline constexpr bool kIsScalar =
    (std::is_arithmetic_v<T> && !kIsCharacter<T>) || std::is_enum_v<T> || std::is_same_v<T, std::string>;

template <class C>
void EncodeItems(Encoder& out, Tag tag, const C& items) {
  if constexpr (requires { items.size(); }) {
    out.Count(tag, items.size());
  } else {
    out.Count(tag, static_cast<size_t>(std::distance(items.begin(), items.end())));
  }
  for (const typename C::value_type& item : items) Codec<typename C::value_type>::Encode(out, item);
}

// Reads a container: `add(container)` reads one item.
template <class C, class Add>
C DecodeItems(Decoder& in, Add add) {
  return ReadShared(in, [&] {
    ExpectSequence(in, "a list");
    C value;
    for (uint32_t i = in.Count(); i > 0; --i) add(value);
    return value;
  });
}

}  // namespace detail

template <detail::Appendable T>
struct Codec<T> {
  static void Encode(Encoder& out, const T& value) { detail::EncodeItems(out, detail::Tag::kList, value); }
  static T Decode(Decoder& in) {
    return detail::DecodeItems<T>(in, [&](T& value) { value.push_back(Codec<typename T::value_type>::Decode(in)); });
  }
};

template <detail::Forward T>
struct Codec<T> {
  static void Encode(Encoder& out, const T& value) { detail::EncodeItems(out, detail::Tag::kList, value); }
  static T Decode(Decoder& in) {
    typename T::iterator last{};
    return detail::DecodeItems<T>(in, [&](T& value) {
      bool first = value.begin() == value.end();
      last = value.insert_after(first ? value.before_begin() : last, Codec<typename T::value_type>::Decode(in));
    });
  }
};

template <detail::SetLike T>
struct Codec<T> {
  static constexpr bool kUnique =
      !std::same_as<decltype(std::declval<T&>().insert(std::declval<typename T::key_type>())), typename T::iterator>;
  static void Encode(Encoder& out, const T& value) {
    constexpr bool set = kUnique && detail::kIsScalar<typename T::key_type>;
    detail::EncodeItems(out, set ? detail::Tag::kSet : detail::Tag::kList, value);
  }
  static T Decode(Decoder& in) {
    return detail::ReadShared(in, [&] {
      detail::Tag tag = in.NextTag();
      if (tag != detail::Tag::kSet && tag != detail::Tag::kFrozenSet && tag != detail::Tag::kList &&
          tag != detail::Tag::kTuple) {
        detail::ThrowNotOfType("a set", static_cast<int>(tag));
      }
      T value;
      for (uint32_t i = in.Count(); i > 0; --i) value.insert(Codec<typename T::key_type>::Decode(in));
      return value;
    });
  }
};

template <detail::Mapping T>
struct Codec<T> {
  using Pair = std::pair<typename T::key_type, typename T::mapped_type>;
  static void Encode(Encoder& out, const T& value) {
    constexpr bool unique = detail::UniqueMapping<T>;
    out.Count(unique ? detail::Tag::kDict : detail::Tag::kList, value.size());
    for (const auto& [key, item] : value) {
      if (!unique) out.Count(detail::Tag::kTuple, 2);
      Codec<typename T::key_type>::Encode(out, key);
      Codec<typename T::mapped_type>::Encode(out, item);
    }
  }
  static T Decode(Decoder& in) {
    if constexpr (detail::UniqueMapping<T>) {
      return detail::ReadShared(in, [&] {
        detail::Tag tag = in.NextTag();
        if (tag != detail::Tag::kDict) detail::ThrowNotOfType("a map", static_cast<int>(tag));
        T value;
        for (uint32_t i = in.Count(); i > 0; --i) {
          auto key = Codec<typename T::key_type>::Decode(in);
          value.insert_or_assign(std::move(key), Codec<typename T::mapped_type>::Decode(in));
        }
        return value;
      });
    } else {
      return detail::DecodeItems<T>(in, [&](T& value) { value.insert(Codec<Pair>::Decode(in)); });
    }
  }
};

template <detail::PointerLike T>
struct Codec<T> {
  using Target = std::remove_cv_t<typename T::element_type>;
  static_assert(!std::is_polymorphic_v<Target> || std::is_final_v<Target>,
                "weft: a pointer to a polymorphic class may point to a derived one, whose fields are not known here: "
                "use a std::variant of the classes");
  static void Encode(Encoder& out, const T& value) {
    if (!value.get()) return out.Put(detail::Tag::kNone);
    auto level = out.Descend();
    Codec<Target>::Encode(out, *value);
  }
  static T Decode(Decoder& in) {
    if (in.PeekTag() == detail::Tag::kNone) {
      in.NextTag();
      return T();
    }
    auto level = in.Descend();
    return T(new Target(Codec<Target>::Decode(in)));
  }
};

template <detail::ComplexLike T>
struct Codec<T> {
  using Part = typename T::value_type;
  static void Encode(Encoder& out, const T& value) {
    out.Count(detail::Tag::kTuple, 2);
    Codec<Part>::Encode(out, value.real());
    Codec<Part>::Encode(out, value.imag());
  }
  static T Decode(Decoder& in) {
    return detail::ReadShared(in, [&] {
      detail::ExpectItems(in, "a complex number", 2);
      return T{Codec<Part>::Decode(in), Codec<Part>::Decode(in)};
    });
  }
};

template <detail::BitsetLike T>
struct Codec<T> {
  static void Encode(Encoder& out, const T& value) { out.Text(value.to_string()); }
  static T Decode(Decoder& in) {
    std::string text = Codec<std::string>::Decode(in);
    if (text.size() != T().size()) detail::ThrowWrongLength(T().size(), text.size());
    if (text.find_first_not_of("01") != std::string::npos) detail::ThrowMalformed();
    return T(text);
  }
};

template <detail::PathLike T>
struct Codec<T> {
  static void Encode(Encoder& out, const T& value) { out.Text(value.native()); }
  static T Decode(Decoder& in) { return T(Codec<std::string>::Decode(in)); }
};

namespace detail {

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
    if constexpr (std::is_same_v<T, std::byte>) {
      out.Count(detail::Tag::kBytes, value.size());
      out.Raw(value.data(), value.size());
    } else {
      detail::EncodeItems(out, detail::Tag::kList, value);
    }
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
      detail::ExpectItems(in, "a list", N);
      return Items(in, std::make_index_sequence<N>{});
    });
  }

 private:
  template <size_t... I>
  static std::array<T, N> Items([[maybe_unused]] Decoder& in, std::index_sequence<I...>) {
    if constexpr (N > 64 && std::is_default_constructible_v<T>) {
      std::array<T, N> value{};
      for (T& item : value) item = Codec<T>::Decode(in);
      return value;
    } else {
      return {((void)I, Codec<T>::Decode(in))...};
    }
  }
};

namespace detail {

template <class T>
inline constexpr bool kMayBeNone = PointerLike<T>;
template <class T>
inline constexpr bool kMayBeNone<std::optional<T>> = true;
template <>
inline constexpr bool kMayBeNone<std::monostate> = true;
template <>
inline constexpr bool kMayBeNone<std::nullopt_t> = true;
template <>
inline constexpr bool kMayBeNone<std::nullptr_t> = true;

}  // namespace detail

template <class T>
struct Codec<std::optional<T>> {
  static_assert(!detail::kMayBeNone<T>,
                "weft: an optional of something that may itself be None cannot be told apart when it is None");
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

namespace detail {

template <class T>
struct NoneCodec {
  static void Encode(Encoder& out, const T&) { out.Put(Tag::kNone); }
  static void Skip(Decoder& in) {
    Tag tag = in.NextTag();
    if (tag != Tag::kNone) ThrowNotOfType("None", static_cast<int>(tag));
  }
};

// Which of a few kinds, recognised by the tag alone, an item of this type is; 0: another.
template <class T>
constexpr int PlainKind() {
  if (std::is_same_v<T, std::monostate> || std::is_same_v<T, std::nullopt_t>) return 1;
  if (std::is_same_v<T, bool>) return 2;
  if ((std::is_integral_v<T> && !kIsCharacter<T>)) return 3;
  if (std::is_same_v<T, float> || std::is_same_v<T, double>) return 4;
  if (std::is_same_v<T, std::string>) return 5;
  return 0;
}
inline int PlainKind(Tag tag) {
  switch (tag) {
    case Tag::kNone:
      return 1;
    case Tag::kFalse:
    case Tag::kTrue:
      return 2;
    case Tag::kInt8:
    case Tag::kInt64:
    case Tag::kBigInt:
      return 3;
    case Tag::kFloat:
      return 4;
    case Tag::kString:
    case Tag::kBytes:
    case Tag::kSame:  // which of these only text can be
      return 5;
    default:
      return 0;
  }
}
template <class... T>
constexpr bool AllPlain() {
  int seen = 0;
  bool plain = true;
  ((plain = plain && PlainKind<T>() != 0 && !(seen >> PlainKind<T>() & 1), seen |= 1 << PlainKind<T>()), ...);
  return plain;
}

}  // namespace detail

template <>
struct Codec<std::monostate> : detail::NoneCodec<std::monostate> {
  static std::monostate Decode(Decoder& in) { return Skip(in), std::monostate(); }
};
template <>
struct Codec<std::nullopt_t> : detail::NoneCodec<std::nullopt_t> {
  static std::nullopt_t Decode(Decoder& in) { return Skip(in), std::nullopt; }
};
template <>
struct Codec<std::nullptr_t> : detail::NoneCodec<std::nullptr_t> {
  static std::nullptr_t Decode(Decoder& in) { return Skip(in), nullptr; }
};

template <class... T>
struct Codec<std::variant<T...>> {
  using Variant = std::variant<T...>;
  static constexpr bool kPlain = detail::AllPlain<T...>();

  static void Encode(Encoder& out, const Variant& value) {
    if (value.valueless_by_exception()) throw std::bad_variant_access();
    if constexpr (!kPlain) {
      out.Count(detail::Tag::kTuple, 2);
      out.Unsigned(value.index());
    }
    std::visit([&](const auto& item) { Codec<std::remove_cvref_t<decltype(item)>>::Encode(out, item); }, value);
  }

  static Variant Decode(Decoder& in) {
    if constexpr (kPlain) {
      constexpr int kinds[] = {detail::PlainKind<T>()...};
      detail::Tag tag = in.PeekTag();
      int kind = detail::PlainKind(tag);
      for (size_t pass = 0; pass < 2; ++pass) {
        for (size_t i = 0; i < sizeof...(T); ++i) {
          if (kinds[i] == kind) return kReaders[i](in);
        }
        if (kind != 3) break;
        kind = 4;  // an integer may stand for a floating-point number
      }
      detail::ThrowNotOfType("one of a variant's alternatives", static_cast<int>(tag));
    } else {
      return detail::ReadShared(in, [&] {
        detail::ExpectItems(in, "a variant: (index, value)", 2);
        auto index = detail::DecodeInteger<uint32_t>(in);
        if (index >= sizeof...(T)) detail::ThrowOutOfRange("the number of a variant's alternatives");
        return kReaders[index](in);
      });
    }
  }

 private:
  using Reader = Variant (*)(Decoder&);
  template <size_t I>
  static Variant ReadOne(Decoder& in) {
    return Variant(std::in_place_index<I>, Codec<std::variant_alternative_t<I, Variant>>::Decode(in));
  }
  template <size_t... I>
  static constexpr std::array<Reader, sizeof...(T)> Readers(std::index_sequence<I...>) {
    return {&ReadOne<I>...};
  }
  static constexpr std::array<Reader, sizeof...(T)> kReaders = Readers(std::index_sequence_for<T...>{});
};

// The count of ticks: exact, and in the unit that the type says.
template <class R, class P>
struct Codec<std::chrono::duration<R, P>> {
  using Duration = std::chrono::duration<R, P>;
  static void Encode(Encoder& out, const Duration& value) { Codec<R>::Encode(out, value.count()); }
  static Duration Decode(Decoder& in) { return Duration(Codec<R>::Decode(in)); }
};
template <class C, class D>
struct Codec<std::chrono::time_point<C, D>> {
  using Point = std::chrono::time_point<C, D>;
  static void Encode(Encoder& out, const Point& value) { Codec<D>::Encode(out, value.time_since_epoch()); }
  static Point Decode(Decoder& in) { return Point(Codec<D>::Decode(in)); }
};

}  // namespace weft
