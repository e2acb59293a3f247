// The fields of an aggregate, without a word from its author: how many there are, and all of them as references.
//
// Up to 16 fields. Not for structs with base classes or C arrays (use std::array): their braces cannot be counted.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <tuple>
#include <type_traits>
#include <utility>

namespace weft::detail {

inline constexpr size_t kMaxFields = 16;

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

// A tuple of references to the fields.
template <class T>
constexpr auto Fields(T& value) {
  constexpr size_t n = CountFields<std::remove_const_t<T>>();
  static_assert(n <= kMaxFields, "weft: a struct of more than 16 fields cannot be taken apart; specialise weft::Codec");
  if constexpr (n == 0) {
    return std::tie();
  } else if constexpr (n == 1) {
    auto& [a] = value;
    return std::tie(a);
  } else if constexpr (n == 2) {
    auto& [a, b] = value;
    return std::tie(a, b);
  } else if constexpr (n == 3) {
    auto& [a, b, c] = value;
    return std::tie(a, b, c);
  } else if constexpr (n == 4) {
    auto& [a, b, c, d] = value;
    return std::tie(a, b, c, d);
  } else if constexpr (n == 5) {
    auto& [a, b, c, d, e] = value;
    return std::tie(a, b, c, d, e);
  } else if constexpr (n == 6) {
    auto& [a, b, c, d, e, f] = value;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (n == 7) {
    auto& [a, b, c, d, e, f, g] = value;
    return std::tie(a, b, c, d, e, f, g);
  } else if constexpr (n == 8) {
    auto& [a, b, c, d, e, f, g, h] = value;
    return std::tie(a, b, c, d, e, f, g, h);
  } else if constexpr (n == 9) {
    auto& [a, b, c, d, e, f, g, h, i] = value;
    return std::tie(a, b, c, d, e, f, g, h, i);
  } else if constexpr (n == 10) {
    auto& [a, b, c, d, e, f, g, h, i, j] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (n == 11) {
    auto& [a, b, c, d, e, f, g, h, i, j, k] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k);
  } else if constexpr (n == 12) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l);
  } else if constexpr (n == 13) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m);
  } else if constexpr (n == 14) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  } else if constexpr (n == 15) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
  } else if constexpr (n == 16) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
  }
}

}  // namespace weft::detail
