// The result of a call that can fail: a value, or an error that names its remedy.
//
// Error kinds are few and say what the caller can do; the message says what happened, to what and where.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace weft::core {

enum class ErrorKind {
  kInvalid,      // the caller's argument is wrong: correct the call
  kFull,         // a limit was reached: wait, free something, or raise the limit
  kGone,         // the peer or the thing asked for no longer exists: do without it
  kTimeout,      // not yet: try again
  kUnavailable,  // the system refused (descriptor limit, memory, permission): correct the environment
};

struct Error {
  ErrorKind kind;
  std::string message;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}      // NOLINT: a value is a result
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: so is an error
  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  T& value() {
    WEFT_CHECK(ok(), "value() of a failed Result");
    return *value_;
  }
  const T& value() const {
    WEFT_CHECK(ok(), "value() of a failed Result");
    return *value_;
  }
  T& operator*() { return value(); }
  T* operator->() { return &value(); }
  const Error& error() const { return error_; }

 private:
  std::optional<T> value_;
  Error error_{};
};

// A Result without a value.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)), failed_(true) {}  // NOLINT
  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return error_; }

 private:
  Error error_{};
  bool failed_ = false;
};

}  // namespace weft::core
