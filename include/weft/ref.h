// Ref<T>: names a value that is there, or will be when its task has run. Small, copied freely; the value lives as long
// as any Ref to it, in any process. Also put, get, try_get and wait. All may be called on any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "weft/array.h"
#include "weft/detail/session_use.h"
#include "weft/errors.h"

namespace weft {

template <class T>
class Ref;

namespace detail {

struct RefAccess {
  template <class T>
  static Ref<T> Make(core::Object* object, uint32_t epoch) {  // takes over one reference
    Ref<T> ref;
    ref.object_ = object;
    ref.epoch_ = epoch;
    return ref;
  }
  template <class T>
  static core::Object* object(const Ref<T>& ref) {
    return ref.object_;
  }
  template <class T>
  static uint32_t epoch(const Ref<T>& ref) {
    return ref.epoch_;
  }
  // Of the present session, or throws.
  template <class T>
  static core::Object* Checked(const Ref<T>& ref) {
    CheckEpoch(ref.object_, ref.epoch_);
    return ref.object_;
  }
};

}  // namespace detail

template <class T>
class Ref {
 public:
  using value_type = T;

  Ref() = default;  // names nothing
  Ref(const Ref& other) noexcept : object_(other.object_), epoch_(other.epoch_) {
    if (object_) detail::AddReference(object_, epoch_);
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)), epoch_(other.epoch_) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    std::swap(epoch_, other.epoch_);
    return *this;
  }
  ~Ref() {
    if (object_) detail::DropReference(object_, epoch_);
  }
  explicit operator bool() const noexcept { return object_ != nullptr; }
  // Whether get would return at once.
  bool ready() const {
    detail::Using session;
    return detail::IsResolved(detail::RefAccess::Checked(*this));
  }
  friend bool operator==(const Ref& a, const Ref& b) noexcept { return a.object_ == b.object_ && a.epoch_ == b.epoch_; }

 private:
  friend struct detail::RefAccess;
  core::Object* object_ = nullptr;
  uint32_t epoch_ = 0;
};

// A reference inside a value stays a reference.
template <class T>
struct Codec<Ref<T>> {
  static void Encode(Encoder& out, const Ref<T>& ref) { out.Reference(detail::RefAccess::Checked(ref)); }
  static Ref<T> Decode(Decoder& in) {
    detail::Tag tag = in.NextTag();
    if (tag == detail::Tag::kTuple || tag == detail::Tag::kList) {
      // Like Python passes a reference that must not become its value: alone in a list.
      if (size_t found = in.Count(); found != 1) detail::ThrowWrongLength(1, found);
      tag = in.NextTag();
    }
    bool again = tag == detail::Tag::kAgain;  // Python's handles have identity, ours have not
    if (tag != detail::Tag::kReference && !again) detail::ThrowNotOfType("a reference", static_cast<int>(tag));
    auto owner = in.Fixed<uint64_t>();
    auto index = in.Fixed<uint64_t>();
    if (again) in.Fixed<uint32_t>();
    return detail::RefAccess::Make<T>(detail::FindReference(owner, index), detail::CurrentEpoch());
  }
};

// The result of try_get: the value, or why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  using Stored = std::conditional_t<std::is_void_v<T>, std::monostate, T>;
  Result(Stored value) : value_(std::move(value)) {}                 // NOLINT: a value is a result
  Result(detail::Failure failure) : failure_(std::move(failure)) {}  // NOLINT: so is a failure
  bool has_value() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return has_value(); }
  Stored& value() & {
    if (!value_) detail::Throw(failure_);
    return *value_;
  }
  Stored&& value() && {
    if (!value_) detail::Throw(failure_);
    return std::move(*value_);
  }
  Stored& operator*() { return value(); }
  Stored* operator->() { return &value(); }
  bool timed_out() const noexcept { return failure_.name == "GetTimeoutError"; }
  const std::string& error_name() const noexcept { return failure_.name; }  // as in errors.h; "" if there is a value
  const std::string& error_message() const noexcept { return failure_.message; }

 private:
  std::optional<Stored> value_;
  detail::Failure failure_;
};

// Stores a value. An Array<T> that is moved in is not copied.
template <class V>
auto put(V&& value) {
  detail::Using session;
  using T = std::remove_cvref_t<V>;
  if constexpr (std::is_convertible_v<T, const char*>) {
    return detail::RefAccess::Make<std::string>(detail::PutValue(std::string(value)), session.epoch());
  } else {
    return detail::RefAccess::Make<T>(detail::PutValue(std::forward<V>(value)), session.epoch());
  }
}

// The value, as soon as it is there. Throws what the task threw (TaskError), or why there will be no value.
template <class T>
detail::Decoded<T> get(const Ref<T>& ref) {
  detail::Using session;
  detail::ValueSource source;
  detail::FetchOrThrow(detail::RefAccess::object(ref), detail::RefAccess::epoch(ref), source);
  if constexpr (!std::is_void_v<T>) return detail::DecodeWhole<T>(source);
}

namespace detail {

template <class T>
auto ReadValue(const Ref<T>& ref) {
  Using session;
  ValueSource source;
  ReadOrThrow(RefAccess::object(ref), source);
  if constexpr (std::is_void_v<T>) {
    return std::monostate{};
  } else {
    return DecodeWhole<T>(source);
  }
}

template <class T>
std::vector<core::Object*> ObjectsOf(const std::vector<Ref<T>>& refs) {
  std::vector<core::Object*> objects;
  objects.reserve(refs.size());
  for (const auto& ref : refs) objects.push_back(RefAccess::Checked(ref));
  return objects;
}

inline int64_t TimeoutNs(const std::optional<std::chrono::nanoseconds>& timeout) {
  if (!timeout) return -1;
  if (timeout->count() < 0) throw std::invalid_argument("weft: a timeout must not be negative");
  return timeout->count();
}

}  // namespace detail

// All values, in the order of the references.
template <class T>
auto get(const std::vector<Ref<T>>& refs) {
  detail::Using session;
  auto objects = detail::ObjectsOf(refs);
  if (!objects.empty()) detail::WaitForAll(objects.data(), objects.size(), -1);
  if constexpr (std::is_void_v<T>) {
    for (const auto& ref : refs) detail::ReadValue(ref);
  } else {
    std::vector<detail::Decoded<T>> values;
    values.reserve(refs.size());
    for (const auto& ref : refs) values.push_back(detail::ReadValue(ref));
    return values;
  }
}

// A tuple of the values.
template <class A, class B, class... More>
auto get(const Ref<A>& a, const Ref<B>& b, const Ref<More>&... more) {
  detail::Using session;
  core::Object* objects[] = {detail::RefAccess::Checked(a), detail::RefAccess::Checked(b),
                             detail::RefAccess::Checked(more)...};
  detail::WaitForAll(objects, 2 + sizeof...(More), -1);
  return std::tuple{detail::ReadValue(a), detail::ReadValue(b), detail::ReadValue(more)...};
}

// Like get, but throws GetTimeoutError if the value is not there in time. The task goes on.
template <class T>
detail::Decoded<T> get(const Ref<T>& ref, std::chrono::nanoseconds timeout) {
  detail::Using session;
  core::Object* object = detail::RefAccess::Checked(ref);
  int64_t timeout_ns = detail::TimeoutNs(timeout);
  if (!detail::WaitForAll(&object, 1, timeout_ns)) detail::ThrowTimeout(&object, 1, timeout_ns);
  if constexpr (std::is_void_v<T>) {
    detail::ReadValue(ref);
  } else {
    return detail::ReadValue(ref);
  }
}

template <class T>
auto get(const std::vector<Ref<T>>& refs, std::chrono::nanoseconds timeout) {
  detail::Using session;
  auto objects = detail::ObjectsOf(refs);
  int64_t timeout_ns = detail::TimeoutNs(timeout);
  if (!objects.empty() && !detail::WaitForAll(objects.data(), objects.size(), timeout_ns)) {
    detail::ThrowTimeout(objects.data(), objects.size(), timeout_ns);
  }
  return get(refs);
}

namespace detail {

// Of one that is resolved.
template <class T>
Result<Decoded<T>> TryRead(const Ref<T>& ref) {
  Using session;
  ValueSource source;
  Failure failure;
  if (!Read(RefAccess::object(ref), source, failure)) return failure;
  if constexpr (std::is_void_v<T>) {
    return std::monostate{};
  } else {
    try {
      return DecodeWhole<T>(source);
    } catch (const ValueTypeError& error) {
      return Failure{.name = "ValueTypeError", .message = error.what()};
    }
  }
}

}  // namespace detail

// The value or the failure, without an exception. A timeout is a failure too (timed_out()).
template <class T>
Result<detail::Decoded<T>> try_get(const Ref<T>& ref, std::optional<std::chrono::nanoseconds> timeout = std::nullopt) {
  detail::Using session;
  core::Object* object = detail::RefAccess::Checked(ref);
  if (!detail::WaitForAll(&object, 1, detail::TimeoutNs(timeout))) {
    return detail::Failure{.name = "GetTimeoutError", .message = "the value was not there in time; its task goes on"};
  }
  return detail::TryRead(ref);
}

struct WaitOptions {
  size_t num_returns = 1;
  std::optional<std::chrono::nanoseconds> timeout = std::nullopt;
  bool fetch_local = true;  // false: a value on another node counts as well, and is left there
};
template <class T>
struct WaitResult {
  std::vector<Ref<T>> ready, rest;
};

// Waits until num_returns of them have ended (in a value or in an error) or the time is up. At most num_returns count
// as ready; both lists keep the order.
template <class T>
WaitResult<T> wait(const std::vector<Ref<T>>& refs, const WaitOptions& options = {}) {
  auto objects = detail::ObjectsOf(refs);
  detail::WaitForSome(objects.data(), objects.size(), options.num_returns, detail::TimeoutNs(options.timeout),
                      options.fetch_local);
  WaitResult<T> result;
  for (size_t i = 0; i < refs.size(); ++i) {
    bool ready = result.ready.size() < options.num_returns && detail::IsReady(objects[i], options.fetch_local);
    (ready ? result.ready : result.rest).push_back(refs[i]);
  }
  return result;
}

}  // namespace weft
