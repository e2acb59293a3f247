// Arrays of numbers in shared memory: written once in place, then looked at by every process without a copy.
//
//   Array<float> x = empty<float>(n);      // room in the store, to be filled
//   Ref<Array<float>> ref = put(std::move(x));   // no copy
//   Array<const float> view = get(ref);    // the same memory, read-only; keeps the object as long as it lives
//
// Array<T> can be moved; Array<const T> can be copied, which shares the memory. Both convert to std::span.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
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
inline constexpr bool kIsElement =
    (std::is_integral_v<T> && !kIsCharacter<T>) || std::is_same_v<T, float> || std::is_same_v<T, double>;

// The element type as NumPy writes it.
template <class T>
constexpr const char* ElementType() {
  static_assert(kIsElement<T>, "weft: the elements of an array are integers, float, double or bool");
  if constexpr (std::is_same_v<T, bool>) return "|b1";
  if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 4 ? "<f4" : "<f8";
  if constexpr (std::is_signed_v<T>)
    return sizeof(T) == 1 ? "|i1" : sizeof(T) == 2 ? "<i2" : sizeof(T) == 4 ? "<i4" : "<i8";
  return sizeof(T) == 1 ? "|u1" : sizeof(T) == 2 ? "<u2" : sizeof(T) == 4 ? "<u4" : "<u8";
}

// What Array<T> and Array<const T> share: a counted block and a place in it.
template <class T>
class ArrayBase {
 public:
  using value_type = std::remove_const_t<T>;
  using element_type = T;
  using iterator = T*;

  size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }

 protected:
  friend struct ArrayAccess;
  ArrayBase() = default;
  ArrayBase(Block* block, T* data, size_t size) : block_(block), data_(data), size_(size) {}
  ArrayBase(ArrayBase&& other) noexcept
      : block_(std::exchange(other.block_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  void Swap(ArrayBase& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  ~ArrayBase() {
    if (block_) ReleaseBlock(block_);
  }
  Block* block_ = nullptr;
  T* data_ = nullptr;
  size_t size_ = 0;
};

struct ArrayAccess {
  template <class T>
  static Array<T> Make(Block* block, T* data, size_t size) {
    return Array<T>(block, data, size);
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

// A view that keeps what it looks at.
template <class T>
class Array<const T> : public detail::ArrayBase<const T> {
 public:
  Array() = default;
  Array(const Array& other) : detail::ArrayBase<const T>(other.block_, other.data_, other.size_) {
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

// Room for `count` elements in the store. Not initialised.
template <class T>
Array<T> empty(size_t count) {
  static_assert(detail::kIsElement<T>, "weft: the elements of an array are integers, float, double or bool");
  if (count > SIZE_MAX / 2 / sizeof(T)) throw std::bad_alloc();
  void* data;
  detail::Block* block = detail::NewRoom(count * sizeof(T), &data);
  return detail::ArrayAccess::Make<T>(block, static_cast<T*>(data), count);
}

namespace detail {

// Types whose values are rows of numbers: they are passed to each other's parameters, and large ones as arrays.
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

// Up to this length a vector of numbers is a list, for Python as for us; beyond it, an array.
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

// Calls use(type, item_size, data, count) if the value goes as an array.
template <class T, class Use>
bool AsArray(const T& value, Use use) {
  if constexpr (kIsRow<T>) {
    using Element = typename RowOf<T>::Element;
    if (kIsArray<T> || value.size() > kMaxListItems) {
      use(ElementType<Element>(), sizeof(Element), static_cast<const void*>(value.data()), value.size());
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
    if (core::Object* object = PutRoom(ArrayAccess::block(room), ElementType<typename T::value_type>(), room.size())) {
      return object;
    }
    return PutArray(ElementType<typename T::value_type>(), sizeof(typename T::value_type), room.data(), room.size());
  } else {
    core::Object* object = nullptr;
    if (AsArray(value, [&](auto... array) { object = PutArray(array...); })) return object;
    Encoder encoder;
    EncodeWhole(encoder, value);
    return PutNative(encoder);
  }
}

template <class T>
void ReturnValue(Returning& out, T&& value) {
  using V = std::remove_cvref_t<T>;
  if constexpr (kIsRoom<V>) {
    if (ReturnRoom(out, ArrayAccess::block(value), ElementType<typename V::value_type>(), value.size())) return;
  }
  if (AsArray(value, [&](auto... array) { ReturnArray(out, array...); })) return;
  Encoder encoder;
  EncodeWhole(encoder, value);
  ReturnNative(out, encoder);
}

template <class T>
Array<const T> CopyToArray(const T* from, size_t count) {
  void* data;
  Block* block = NewPlain(count * sizeof(T), &data);
  if (count > 0) std::memcpy(data, from, count * sizeof(T));
  return ArrayAccess::Make<const T>(block, static_cast<const T*>(data), count);
}

template <class T>
ArrayView ReadArrayOf(const ValueSource& source) {
  ArrayView view = ReadArrayHead(source);
  if (std::strcmp(view.type, ElementType<T>()) != 0) ThrowWrongArray(ElementType<T>(), view.type);
  return view;
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
    return DecodeItem<T>(in);
  }
  if constexpr (kIsRow<T>) {
    if (source.data[0] == kArrayFormat) {
      using Element = typename RowOf<T>::Element;
      ArrayView view = ReadArrayOf<Element>(source);
      auto* data = reinterpret_cast<const Element*>(view.data);
      if constexpr (!kIsArray<T>) {
        T value(view.count);
        if (view.count > 0) std::memcpy(value.data(), view.data, view.count * sizeof(Element));
        return value;
      } else if (source.stored) {
        return ArrayAccess::Make<const Element>(PinObject(source.object), data, view.count);
      } else {
        void* copy;
        Block* block = NewPlain(view.count * sizeof(Element), &copy);
        if (view.count > 0) std::memcpy(copy, view.data, view.count * sizeof(Element));
        return ArrayAccess::Make<const Element>(block, static_cast<const Element*>(copy), view.count);
      }
    }
  }
  ThrowWrongFormat(source.data[0]);
}

}  // namespace detail
}  // namespace weft
