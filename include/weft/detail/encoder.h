// Writes and reads values in the native format of docs/formats.md: tagged items, the same bytes as Python's.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "weft/detail/bridge.h"

namespace weft::detail {

// As in wire/value_format.h.
enum class Tag : uint8_t {
  kNone = 0,
  kFalse = 1,
  kTrue = 2,
  kInt8 = 3,
  kInt64 = 4,
  kBigInt = 5,
  kFloat = 6,
  kString = 7,
  kBytes = 8,
  kTuple = 9,
  kList = 10,
  kDict = 11,
  kSame = 12,
  kDependency = 13,
  kReference = 15,
  kAgain = 16,
  kSet = 17,
  kFrozenSet = 18,
  kHandle = 19,
};
inline constexpr uint8_t kNativeFormat = 1;
inline constexpr uint8_t kArrayFormat = 3;
inline constexpr size_t kMaxInlineBytes = 16 * 1024;
inline constexpr size_t kMaxInlineBytesPerFrame = 96 * 1024;

// Counts how deeply values are nested, which pointers can make endless.
class Level {
 public:
  explicit Level(uint32_t& depth) : depth_(depth) {
    if (depth == kMaxDepth) ThrowTooDeep(kMaxDepth);
    ++depth;
  }
  ~Level() { --depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  static constexpr uint32_t kMaxDepth = 1000;  // as Python's
  uint32_t& depth_;
};

// A few pointers without an allocation.
class ObjectList {
 public:
  ObjectList() = default;
  ObjectList(const ObjectList&) = delete;
  ObjectList& operator=(const ObjectList&) = delete;
  ~ObjectList() {
    if (items_ != small_) std::free(items_);
  }
  void Add(core::Object* object) {
    if (size_ == capacity_) Grow();
    items_[size_++] = object;
  }
  core::Object** data() { return items_; }
  size_t size() const { return size_; }
  void Truncate(size_t size) { size_ = size; }

 private:
  void Grow() {
    auto* larger = static_cast<core::Object**>(std::malloc(2 * capacity_ * sizeof(core::Object*)));
    if (!larger) throw std::bad_alloc();
    std::memcpy(larger, items_, size_ * sizeof(core::Object*));
    if (items_ != small_) std::free(items_);
    items_ = larger;
    capacity_ *= 2;
  }
  core::Object* small_[6];
  core::Object** items_ = small_;
  size_t size_ = 0, capacity_ = 6;
};

class Encoder {
 public:
  Encoder() = default;
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;
  ~Encoder() {
    if (begin_ != small_) std::free(begin_);
    for (size_t i = 0; i < owned.size(); ++i) DropOwned(owned.data()[i]);
  }

  void Byte(uint8_t byte) {
    if (at_ == end_) [[unlikely]]
      Grow(1);
    *at_++ = byte;
  }
  void Put(Tag tag) { Byte(static_cast<uint8_t>(tag)); }
  template <class T>
  void Fixed(T value) {
    Raw(&value, sizeof value);
  }
  template <class T>
  void Item(Tag tag, T value) {
    if (static_cast<size_t>(end_ - at_) < 1 + sizeof value) [[unlikely]]
      Grow(1 + sizeof value);
    *at_ = static_cast<uint8_t>(tag);
    std::memcpy(at_ + 1, &value, sizeof value);
    at_ += 1 + sizeof value;
  }
  void Raw(const void* bytes, size_t size) {
    if (size == 0) return;
    if (static_cast<size_t>(end_ - at_) < size) [[unlikely]]
      Grow(size);
    std::memcpy(at_, bytes, size);
    at_ += size;
  }
  void Integer(int64_t value) {
    if (value >= -128 && value <= 127) {
      Item(Tag::kInt8, static_cast<int8_t>(value));
    } else {
      Item(Tag::kInt64, value);
    }
  }
  void Unsigned(uint64_t value) {
    if (value <= INT64_MAX) return Integer(static_cast<int64_t>(value));
    Item(Tag::kBigInt, uint32_t{9});
    Fixed(value);
    Byte(0);
  }
  void Count(Tag tag, size_t count) {
    if (count > UINT32_MAX) throw std::bad_alloc();
    Item(tag, static_cast<uint32_t>(count));
  }
  void Text(std::string_view text);  // bytes if it is not UTF-8
  void Reference(core::Object* object) {
    auto [owner, index] = IdOf(object);
    Item(Tag::kReference, owner);
    Fixed(index);
    contained.Add(object);
  }
  void Handle(core::Object* object, std::string_view info) {
    auto [owner, index] = IdOf(object);
    Item(Tag::kHandle, owner);
    Fixed(index);
    Fixed(static_cast<uint32_t>(info.size()));
    Raw(info.data(), info.size());
    contained.Add(object);
  }
  // An argument that is an object of its own. `owned`: takes over its reference and drops it after the submission.
  void Dependency(core::Object* object, bool is_owned) {
    if (is_owned) owned.Add(object);
    Item(Tag::kDependency, static_cast<uint32_t>(dependencies.size()));
    dependencies.Add(object);
  }

  Level Descend() { return Level(depth_); }

  const uint8_t* data() const { return begin_; }
  uint8_t* data() { return begin_; }
  size_t size() const { return static_cast<size_t>(at_ - begin_); }
  void Truncate(size_t size) { at_ = begin_ + size; }

  ObjectList dependencies, owned;
  ObjectList contained;  // references inside; alive until the value is handed over

 private:
  void Grow(size_t needed);
  static void DropOwned(core::Object* object) noexcept;

  uint8_t small_[216];
  uint8_t* begin_ = small_;
  uint8_t* at_ = small_;
  uint8_t* end_ = small_ + sizeof small_;
  uint32_t depth_ = 0;
};

class Decoder {
 public:
  Decoder(const uint8_t* begin, const uint8_t* end) : begin_(begin), at_(begin), end_(end) {}

  bool AtEnd() const { return at_ == end_; }
  Tag PeekTag() {
    if (at_ == end_) ThrowMalformed();
    return static_cast<Tag>(*at_);
  }
  Tag NextTag() {
    Tag tag = PeekTag();
    ++at_;
    return tag;
  }
  template <class T>
  T Fixed() {
    T value;
    if (static_cast<size_t>(end_ - at_) < sizeof value) ThrowMalformed();
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string_view Raw(size_t size) {
    if (static_cast<size_t>(end_ - at_) < size) ThrowMalformed();
    std::string_view bytes(reinterpret_cast<const char*>(at_), size);
    at_ += size;
    return bytes;
  }
  // The count after a container's tag. Each item has at least one byte, which bounds what a caller reserves.
  uint32_t Count() {
    auto count = Fixed<uint32_t>();
    if (count > static_cast<size_t>(end_ - at_)) ThrowMalformed();
    return count;
  }
  Level Descend() { return Level(levels_); }
  // Numbers strings, bytes and containers in the order they begin; call with the position at their tag.
  void Remember() {
    if (num_seen_ < kMaxSeen && !again_) seen_[num_seen_++] = static_cast<uint32_t>(at_ - begin_);
  }
  // If the next item says "the same as an earlier one", goes there; Return comes back.
  struct Place {
    const uint8_t* at = nullptr;
    bool again = false;
  };
  Place Follow() {
    Place place{nullptr, again_};
    if (PeekTag() != Tag::kSame) return place;
    ++at_;
    auto number = Fixed<uint32_t>();
    if (number >= num_seen_ || ++depth_ > kMaxDepth) ThrowMalformed();
    place.at = at_;
    at_ = begin_ + seen_[number];
    again_ = true;
    return place;
  }
  void Return(Place place) {
    if (!place.at) return;
    --depth_;
    at_ = place.at;
    again_ = place.again;
  }

 private:
  static constexpr uint32_t kMaxSeen = 32;   // as Python's encoder
  static constexpr uint32_t kMaxDepth = 64;  // a value that names itself inside itself ends here
  const uint8_t* begin_;
  const uint8_t* at_;
  const uint8_t* end_;
  uint32_t seen_[kMaxSeen];
  uint32_t num_seen_ = 0;
  uint32_t depth_ = 0;   // of jumps
  uint32_t levels_ = 0;  // of pointers
  bool again_ = false;
};

}  // namespace weft::detail
