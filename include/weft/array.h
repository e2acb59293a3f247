// Arrays of numbers or plain structs in shared memory: written once in place, then read by every process without a
// copy.
//
//   Array<float> x = empty<float>(n);            // room in the store, to be filled; or empty<float>({rows, columns})
//   Ref<Array<float>> ref = put(std::move(x));   // no copy
//   Array<const float> view = get(ref);          // the same memory, read-only; keeps the object as long as it lives
//   view[i], view(row, column), view.shape()
//
// Array<T> can be moved; Array<const T> can be copied, which shares the memory. Both convert to std::span.
//
// Elements are integers, float, double, bool, std::byte, std::complex, and structs (aggregates) of these, of each other
// and of std::array. A struct is a structured NumPy array with the fields f0, f1, ...; one that comes from Python may
// have other names, but its types, offsets and size must be those of the struct here. Arrays that lie column by column
// (Fortran's order) are copied into rows when they are read. Python's bytes are read as std::span<const std::byte>.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/detail/bridge.h"
#include "weft/value.h"

namespace weft {

template <class T>
class Array;

namespace detail {

template <class T>
inline constexpr bool kIsArrayType<Array<T>> = true;

template <class T>
inline constexpr bool kIsNumber =
    (std::is_integral_v<T> && !kIsCharacter<T>) || std::is_same_v<T, float> || std::is_same_v<T, double>;

template <class T>
constexpr bool IsElement(bool inside);

template <class Tuple>
inline constexpr bool kAreElements = false;
template <class... F>
inline constexpr bool kAreElements<std::tuple<F...>> = (IsElement<std::remove_cvref_t<F>>(true) && ...);

template <class T>
struct StdArrayOf {
  using Item = void;
};
template <class T, size_t N>
struct StdArrayOf<std::array<T, N>> {
  using Item = T;
  static constexpr size_t kCount = N;
};

template <class T>
constexpr bool IsElement(bool inside) {
  if constexpr (kIsNumber<T> || std::is_same_v<T, std::byte> || ComplexLike<T>) {
    return true;
  } else if constexpr (std::is_enum_v<T>) {
    return inside;
  } else if constexpr (!std::is_void_v<typename StdArrayOf<T>::Item>) {
    return inside && StdArrayOf<T>::kCount > 0 && IsElement<typename StdArrayOf<T>::Item>(true);
  } else if constexpr (std::is_class_v<T> && std::is_trivially_copyable_v<T> && std::is_aggregate_v<T> &&
                       std::is_default_constructible_v<T> && !SaysFields<T> &&
                       requires { typename Codec<T>::NobodyWroteOne; }) {
    if constexpr (!HasBase<T>() && CountFields<T>() > 0 && CountFields<T>() <= kMaxFields) {
      if constexpr (!HasCArray<T>()) {
        return kAreElements<decltype(Fields(std::declval<T&>()))>;
      }
    }
  }
  return false;
}
template <class T>
inline constexpr bool kIsElement = IsElement<T>(false);

// Whether a value can be copied; std::is_copy_constructible does not say so for containers of uncopyable elements.
template <class T, class... Seen>
constexpr bool CanCopy();
template <class Tuple, class... Seen>
struct CanCopyEach {
  static constexpr bool Check() { return true; }
};
template <template <class...> class C, class... T, class... Seen>
struct CanCopyEach<C<T...>, Seen...> {
  static constexpr bool Check() { return (CanCopy<std::remove_cvref_t<T>, Seen...>() && ... && true); }
};
template <class T, class... Seen>
constexpr bool CanCopy() {
  if constexpr ((std::is_same_v<T, Seen> || ...) || std::is_void_v<T> || PointerLike<T>) {
    return std::is_void_v<T> || std::is_copy_constructible_v<T>;
  } else if constexpr (!std::is_copy_constructible_v<T>) {
    return false;
  } else if constexpr (Container<T>) {
    return CanCopy<std::remove_cv_t<typename T::value_type>, T, Seen...>();
  } else if constexpr (SaysFields<T>) {
    return CanCopyEach<SaidFields<T>, T, Seen...>::Check();
  } else if constexpr (std::is_class_v<T> && std::is_aggregate_v<T> &&
                       requires { typename Codec<T>::NobodyWroteOne; }) {
    // Structs that cannot be taken apart are refused elsewhere, with a reason.
    if constexpr (HasBase<T>()) {
      return false;
    } else if constexpr (HasCArray<T>() || CountFields<T>() > kMaxFields) {
      return false;
    } else {
      return CanCopyEach<decltype(Fields(std::declval<T&>())), T, Seen...>::Check();
    }
  } else {
    return CanCopyEach<T, T, Seen...>::Check();  // std::tuple, pair, optional, variant
  }
}

// The type as NumPy writes it; a struct as {name=type@offset,...}size.
template <class T>
std::string DescribeElement() {
  if constexpr (std::is_enum_v<T>) {
    return DescribeElement<std::underlying_type_t<T>>();
  } else if constexpr (std::is_same_v<T, bool>) {
    return "|b1";
  } else if constexpr (kIsNumber<T>) {
    constexpr char kind = std::is_floating_point_v<T> ? 'f' : std::is_signed_v<T> ? 'i' : 'u';
    return {sizeof(T) == 1 ? '|' : '<', kind, static_cast<char>('0' + sizeof(T))};
  } else if constexpr (ComplexLike<T>) {
    return sizeof(T) == 8 ? "<c8" : "<c16";
  } else if constexpr (!std::is_void_v<typename StdArrayOf<T>::Item>) {
    return DescribeElement<typename StdArrayOf<T>::Item>() + "*" + std::to_string(StdArrayOf<T>::kCount);
  } else {
    alignas(T) unsigned char bytes[sizeof(T)] = {};
    T& value = *std::launder(reinterpret_cast<T*>(bytes));  // only for where its fields are
    std::string text = "{";
    size_t number = 0;
    auto add = [&](const auto& field) {
      auto place = reinterpret_cast<const unsigned char*>(&field) - bytes;
      text.append(number == 0 ? "f" : ",f").append(std::to_string(number)).append("=");
      text.append(DescribeElement<std::remove_cvref_t<decltype(field)>>()).append("@").append(std::to_string(place));
      ++number;
    };
    std::apply([&](const auto&... field) { (add(field), ...); }, Fields(value));
    return text + "}" + std::to_string(sizeof(T));
  }
}
template <class T>
const char* ElementType() {
  static_assert(kIsElement<T>,
                "weft: the elements of an array are integers, float, double, bool, std::byte, std::complex or structs "
                "of these");
  static const std::string text = DescribeElement<T>();
  return text.c_str();
}

inline Shape RowShape(size_t size) { return {1, {size}}; }

// The common part of Array<T> and Array<const T>: a counted block and a place in it.
template <class T>
class ArrayBase {
 public:
  using value_type = std::remove_const_t<T>;
  using element_type = T;
  using iterator = T*;

  size_t size() const noexcept { return size_; }  // of elements, all dimensions together
  bool empty() const noexcept { return size_ == 0; }
  std::span<const size_t> shape() const noexcept { return {shape_.lengths, shape_.dimensions}; }
  size_t shape(size_t dimension) const { return shape()[dimension]; }
  // The element at an index in each dimension. Only the number of dimensions is checked.
  template <std::integral... I>
  T& operator()(I... indices) const {
    if (sizeof...(I) != shape_.dimensions) ThrowWrongIndices(shape_.dimensions, sizeof...(I));
    size_t place = 0, dimension = 0;
    ((place = place * shape_.lengths[dimension++] + static_cast<size_t>(indices)), ...);
    return data_[place];
  }

 protected:
  friend struct ArrayAccess;
  ArrayBase() = default;
  ArrayBase(Block* block, T* data, size_t size, const Shape& shape)
      : block_(block), data_(data), size_(size), shape_(shape) {}
  ArrayBase(ArrayBase&& other) noexcept
      : block_(std::exchange(other.block_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        shape_(std::exchange(other.shape_, Shape{})) {}
  void Swap(ArrayBase& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(shape_, other.shape_);
  }
  ~ArrayBase() {
    if (block_) ReleaseBlock(block_);
  }
  Block* block_ = nullptr;
  T* data_ = nullptr;
  size_t size_ = 0;
  Shape shape_;
};

struct ArrayAccess {
  template <class T>
  static Array<T> Make(Block* block, T* data, size_t size, const Shape& shape) {
    return Array<T>(block, data, size, shape);
  }
  template <class A>
  static const Shape& shape(const A& array) {
    return array.shape_;
  }
  template <class A>
  static Block* block(A& array) {
    return array.block_;
  }
};

}  // namespace detail

// Room that is being filled.
template <class T>
class Array : public detail::ArrayBase<T> {
 public:
  Array() = default;
  Array(Array&& other) noexcept : detail::ArrayBase<T>(std::move(other)) {}
  Array& operator=(Array&& other) noexcept {
    Array taken(std::move(other));
    this->Swap(taken);
    return *this;
  }
  T* data() const noexcept { return this->data_; }
  T* begin() const noexcept { return this->data_; }
  T* end() const noexcept { return this->data_ + this->size_; }
  T& operator[](size_t i) const noexcept { return this->data_[i]; }
  operator std::span<T>() const noexcept { return {this->data_, this->size_}; }
  operator std::span<const T>() const noexcept
    requires(!std::is_const_v<T>)
  {
    return {this->data_, this->size_};
  }

 private:
  friend struct detail::ArrayAccess;
  using detail::ArrayBase<T>::ArrayBase;
};

// A view that keeps its memory alive.
template <class T>
class Array<const T> : public detail::ArrayBase<const T> {
 public:
  Array() = default;
  Array(const Array& other) : detail::ArrayBase<const T>(other.block_, other.data_, other.size_, other.shape_) {
    if (this->block_) detail::RetainBlock(this->block_);
  }
  Array(Array&& other) noexcept : detail::ArrayBase<const T>(std::move(other)) {}
  Array& operator=(Array other) noexcept {
    this->Swap(other);
    return *this;
  }
  const T* data() const noexcept { return this->data_; }
  const T* begin() const noexcept { return this->data_; }
  const T* end() const noexcept { return this->data_ + this->size_; }
  const T& operator[](size_t i) const noexcept { return this->data_[i]; }
  operator std::span<const T>() const noexcept { return {this->data_, this->size_}; }

 private:
  friend struct detail::ArrayAccess;
  using detail::ArrayBase<const T>::ArrayBase;
};

namespace detail {

template <class T>
Array<T> Empty(const Shape& shape) {
  size_t count = 1;
  for (uint32_t i = 0; i < shape.dimensions; ++i) {
    if (__builtin_mul_overflow(count, shape.lengths[i], &count)) throw std::bad_alloc();
  }
  if (count > SIZE_MAX / 2 / sizeof(T)) throw std::bad_alloc();
  void* data;
  Block* block = NewRoom(count * sizeof(T), ElementType<T>(), shape, &data);
  return ArrayAccess::Make<T>(block, static_cast<T*>(data), count, shape);
}

}  // namespace detail

// Room for `count` elements in the store. Not initialised.
template <class T>
Array<T> empty(size_t count) {
  return detail::Empty<T>(detail::RowShape(count));
}
// Room for rows and columns, and more dimensions if there are: empty<double>({rows, columns}).
template <class T>
Array<T> empty(std::initializer_list<size_t> shape) {
  if (shape.size() == 0 || shape.size() > detail::kMaxDimensions) {
    throw std::invalid_argument("weft::empty: an array has 1 to 8 dimensions");
  }
  detail::Shape lengths{static_cast<uint32_t>(shape.size()), {}};
  size_t at = 0;
  for (size_t length : shape) lengths.lengths[at++] = length;
  return detail::Empty<T>(lengths);
}

namespace detail {

// Types whose values are rows of numbers: each can be passed to a parameter of another, and large ones go as arrays.
template <class T>
struct RowOf {
  using Element = void;
  static constexpr bool kArray = false;
};
template <class T>
  requires(kIsElement<T> && !std::is_same_v<T, bool>)
struct RowOf<std::vector<T>> {
  using Element = T;
  static constexpr bool kArray = false;
};
template <class T>
struct RowOf<Array<T>> {
  using Element = std::remove_const_t<T>;
  static constexpr bool kArray = true;
};
template <class T>
  requires kIsElement<T>
struct RowOf<std::span<const T>> {
  using Element = T;
  static constexpr bool kArray = true;
};
template <class T>
inline constexpr bool kIsRow = !std::is_void_v<typename RowOf<T>::Element>;
template <class T>
inline constexpr bool kIsArray = RowOf<T>::kArray;

// Up to this length a vector of numbers is a list, also for Python; beyond that it is an array.
inline constexpr size_t kMaxListItems = 64;

// What decoding a T gives.
template <class T>
struct DecodedType {
  using Type = T;
};
template <class T>
struct DecodedType<Array<T>> {
  using Type = Array<const T>;
};
template <class T>
struct DecodedType<Array<const T>> {
  using Type = Array<const T>;
};
template <class T>
struct DecodedType<std::span<const T>> {
  using Type = Array<const T>;
};
template <class T>
using Decoded = typename DecodedType<T>::Type;

template <class T>
inline constexpr bool kHasShape = false;
template <class T>
inline constexpr bool kHasShape<Array<T>> = true;

// Calls use(type, item_size, data, count, shape) if the value goes as an array.
template <class T, class Use>
bool AsArray(const T& value, Use use) {
  if constexpr (kIsArray<T> || (kIsRow<T> && !std::is_same_v<typename RowOf<T>::Element, std::byte>)) {
    using Element = typename RowOf<T>::Element;
    if (kIsArray<T> || value.size() > kMaxListItems) {
      Shape shape;
      if constexpr (kHasShape<T>) {
        shape = ArrayAccess::shape(value);
      } else {
        shape = RowShape(value.size());
      }
      use(ElementType<Element>(), sizeof(Element), static_cast<const void*>(value.data()), value.size(), shape);
      return true;
    }
  }
  return false;
}

template <class T>
void EncodeWhole(Encoder& out, const T& value) {
  if constexpr (!kIsArray<T>) {
    out.Byte(kNativeFormat);
    Codec<T>::Encode(out, value);
  }
}

template <class T>
inline constexpr bool kIsRoom = false;  // an Array<T> that may be handed over without a copy
template <class T>
inline constexpr bool kIsRoom<Array<T>> = !std::is_const_v<T>;

// An object with a reference for the caller.
template <class V>
core::Object* PutValue(V&& value) {
  using T = std::remove_cvref_t<V>;
  if constexpr (kIsRoom<T> && !std::is_lvalue_reference_v<V>) {
    T room(std::move(value));
    const char* type = ElementType<typename T::value_type>();
    const Shape& shape = ArrayAccess::shape(room);
    if (core::Object* object = PutRoom(ArrayAccess::block(room), type, shape)) return object;
    return PutArray(type, sizeof(typename T::value_type), room.data(), room.size(), shape);
  } else {
    core::Object* object = nullptr;
    if (AsArray(value, [&](const auto&... array) { object = PutArray(array...); })) return object;
    Encoder encoder;
    EncodeWhole(encoder, value);
    return PutNative(encoder);
  }
}

template <class T>
void ReturnValue(Returning& out, T&& value) {
  using V = std::remove_cvref_t<T>;
  if constexpr (kIsRoom<V>) {
    if (ReturnRoom(out, ArrayAccess::block(value), ElementType<typename V::value_type>(), ArrayAccess::shape(value)))
      return;
  }
  if (AsArray(value, [&](const auto&... array) { ReturnArray(out, array...); })) return;
  Encoder encoder;
  EncodeWhole(encoder, value);
  ReturnNative(out, encoder);
}

template <class T>
Array<const T> CopyToArray(const T* from, size_t count) {
  void* data;
  Block* block = NewPlain(count * sizeof(T), &data);
  if (count > 0) std::memcpy(data, from, count * sizeof(T));
  return ArrayAccess::Make<const T>(block, static_cast<const T*>(data), count, RowShape(count));
}

// One argument or result, of the native form.
template <class T>
Decoded<T> DecodeItem(Decoder& in) {
  if constexpr (kIsArray<T>) {
    using Element = typename RowOf<T>::Element;
    if constexpr (std::is_same_v<Element, bool>) {
      auto items = Codec<std::vector<uint8_t>>::Decode(in);
      return CopyToArray(reinterpret_cast<const bool*>(items.data()), items.size());
    } else {
      auto items = Codec<std::vector<Element>>::Decode(in);
      return CopyToArray(items.data(), items.size());
    }
  } else {
    return Codec<T>::Decode(in);
  }
}

template <class T>
Decoded<T> DecodeWhole(const ValueSource& source) {
  if (source.size == 0) ThrowMalformed();
  if (source.data[0] == kNativeFormat) [[likely]] {
    Decoder in(source.data + 1, source.data + source.size);
    if constexpr (std::is_same_v<Decoded<T>, Array<const std::byte>>) {
      if (source.stored && in.PeekTag() == Tag::kBytes) {  // where they lie
        in.NextTag();
        std::string_view bytes = in.Raw(in.Fixed<uint32_t>());
        return ArrayAccess::Make<const std::byte>(PinObject(source.object),
                                                  reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(),
                                                  RowShape(bytes.size()));
      }
    }
    return DecodeItem<T>(in);
  }
  if constexpr (kIsRow<T>) {
    if (source.data[0] == kArrayFormat) {
      using Element = typename RowOf<T>::Element;
      ArrayView view = ReadArrayHead(source, ElementType<Element>(), sizeof(Element));
      if constexpr (!kIsArray<T>) {
        T value(view.count);
        CopyRows(view, sizeof(Element), value.data());
        return value;
      } else if (source.stored && !view.columns) {
        return ArrayAccess::Make<const Element>(PinObject(source.object), reinterpret_cast<const Element*>(view.data),
                                                view.count, view.shape);
      } else {
        void* copy;
        Block* block = NewPlain(view.count * sizeof(Element), &copy);
        CopyRows(view, sizeof(Element), copy);
        return ArrayAccess::Make<const Element>(block, static_cast<const Element*>(copy), view.count, view.shape);
      }
    }
  }
  ThrowWrongFormat(source.data[0]);
}

}  // namespace detail
}  // namespace weft
