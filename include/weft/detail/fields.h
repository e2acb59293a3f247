// The fields of an aggregate, found without help from its author: how many there are, and references to all of them.
//
// Up to 32 fields. Not for structs with base classes or C arrays (use std::array): their braces cannot be counted.
// Such structs are recognised if their fields are numbers, so that the compiler's message can say so.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <tuple>
#include <type_traits>
#include <utility>

namespace weft::detail {

inline constexpr size_t kMaxFields = 32;

// Stands for any field's initialiser; never evaluated.
template <class Aggregate>
struct AnyField {
  template <class T>
    requires(!std::is_same_v<std::remove_cvref_t<T>, Aggregate>)
  operator T&() const& noexcept {
    std::abort();
  }
  template <class T>
    requires(!std::is_same_v<std::remove_cvref_t<T>, Aggregate>)
  operator T&&() const&& noexcept {
    std::abort();
  }
};

// Stands for a base class only.
template <class Aggregate>
struct AnyBase {
  template <class T>
    requires(std::is_base_of_v<T, Aggregate> && !std::is_same_v<T, Aggregate>)
  operator T() const noexcept {
    std::abort();
  }
};

// Stands for a number only.
struct AnyNumber {
  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  operator T() const noexcept {
    std::abort();
  }
};

template <class T, size_t... I>
constexpr bool HasFields(std::index_sequence<I...>) {
  return requires { T{((void)I, AnyField<T>{})...}; };
}

template <class T, size_t N = kMaxFields + 1>
constexpr size_t CountFields() {
  if constexpr (HasFields<T>(std::make_index_sequence<N>{})) {
    return N;
  } else if constexpr (N == 0) {
    return 0;
  } else {
    return CountFields<T, N - 1>();
  }
}

template <class T>
constexpr bool HasBase() {
  return requires { T{AnyBase<T>{}}; };
}

// Whether the field that the initialiser number `Before` reaches takes two numbers in braces, with `After` more fields
// behind it.
template <class T, size_t... Before, size_t... After>
constexpr bool TakesPair(std::index_sequence<Before...>, std::index_sequence<After...>) {
  return requires { T{((void)Before, AnyField<T>{})..., {AnyNumber{}, AnyNumber{}}, ((void)After, AnyField<T>{})...}; };
}

// A C array takes as many initialisers as it has elements, or one in braces: then fewer fit in all.
template <class T, size_t N, size_t... I>
constexpr bool HasArrayAmong(std::index_sequence<I...>) {
  return ((TakesPair<T>(std::make_index_sequence<I>{}, std::index_sequence<>{}) &&
           !TakesPair<T>(std::make_index_sequence<I>{}, std::make_index_sequence<N - I - 1>{})) ||
          ...);
}

// Whether it has a C array of numbers.
template <class T>
constexpr bool HasCArray() {
  constexpr size_t n = CountFields<T>();
  return HasArrayAmong<T, n>(std::make_index_sequence<n>{});
}

// A tuple of references to the fields.
template <class T>
constexpr auto Fields(T& value) {
  constexpr size_t n = CountFields<std::remove_const_t<T>>();
// NOLINTNEXTLINE: bindings cannot be counted otherwise
#define WEFT_FIELDS(count, ...)   \
  if constexpr (n == count) {     \
    auto& [__VA_ARGS__] = value;  \
    return std::tie(__VA_ARGS__); \
  } else
  // clang-format off
  WEFT_FIELDS(1, f0)
  WEFT_FIELDS(2, f0, f1)
  WEFT_FIELDS(3, f0, f1, f2)
  WEFT_FIELDS(4, f0, f1, f2, f3)
  WEFT_FIELDS(5, f0, f1, f2, f3, f4)
  WEFT_FIELDS(6, f0, f1, f2, f3, f4, f5)
  WEFT_FIELDS(7, f0, f1, f2, f3, f4, f5, f6)
  WEFT_FIELDS(8, f0, f1, f2, f3, f4, f5, f6, f7)
  WEFT_FIELDS(9, f0, f1, f2, f3, f4, f5, f6, f7, f8)
  WEFT_FIELDS(10, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9)
  WEFT_FIELDS(11, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10)
  WEFT_FIELDS(12, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11)
  WEFT_FIELDS(13, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12)
  WEFT_FIELDS(14, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13)
  WEFT_FIELDS(15, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14)
  WEFT_FIELDS(16, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15)
  WEFT_FIELDS(17, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16)
  WEFT_FIELDS(18, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17)
  WEFT_FIELDS(19, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18)
  WEFT_FIELDS(20, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19)
  WEFT_FIELDS(21, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20)
  WEFT_FIELDS(22, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21)
  WEFT_FIELDS(23, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22)
  WEFT_FIELDS(24, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22, f23)
  WEFT_FIELDS(25, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22, f23, f24)
  WEFT_FIELDS(26, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22, f23, f24, f25)
  WEFT_FIELDS(27, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22, f23, f24, f25, f26)
  WEFT_FIELDS(28, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22, f23, f24, f25, f26, f27)
  WEFT_FIELDS(29, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22, f23, f24, f25, f26, f27, f28)
  WEFT_FIELDS(30, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22, f23, f24, f25, f26, f27, f28, f29)
  WEFT_FIELDS(31, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22, f23, f24, f25, f26, f27, f28, f29, f30)
  WEFT_FIELDS(32, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31)
  // clang-format on
#undef WEFT_FIELDS
  return std::tie();  // none, or too many, which the caller refuses
}

}  // namespace weft::detail
