// The hot frames: a task on its way to a worker, and its reply. Fixed layouts, written straight into the channel.
//
// A frame is input to the process that reads it: readers check every length against the frame's end and return false
// for anything that does not fit exactly. docs/formats.md has the tables.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "wire/ids.h"

namespace weft::core {

enum class FrameType : uint8_t {
  kDefine = 1,  // a task template, before its first task on this channel
  kTask = 2,    // revocable
  kReply = 3,
  kLease = 4,  // the resources behind the tasks that follow, at the beginning of a lease
};

// Values up to this size travel inside frames; larger ones go to the store.
inline constexpr uint32_t kMaxInlineBytes = 16 * 1024;
// The bytes of all values in one frame together; beyond it they go to the store as well.
inline constexpr uint32_t kMaxInlineBytesPerFrame = 96 * 1024;
// Stored arguments up to the first size travel inside a task to a worker on another node, as long as the whole frame
// stays within the second; that node asks for larger ones when the task has come.
inline constexpr uint32_t kMaxPushedBytes = 128 * 1024;
inline constexpr uint32_t kMaxPushedBytesPerFrame = 192 * 1024;

// Where a task finds the value of a reference among its arguments.
enum class DependencyKind : uint8_t {
  kInline = 1,
  kStored = 2,
  kEarlier = 3,  // the result of a task that this worker was given before this one
};

struct TaskHead {
  uint64_t task = 0;  // the submitter's handle
  uint32_t template_number = 0;
  uint32_t arguments_size = 0;
  uint32_t num_returns = 0;
  uint32_t num_dependencies = 0;
  uint32_t num_borrowed = 0;  // references for which the worker is registered as a borrower
  uint32_t attempt = 0;
  uint32_t depth = 0;
  uint32_t may_spin = 0;  // 1: cores are free, so the worker may wait awake for a moment after this task
};

struct DependencyHead {
  ObjectId id;
  uint32_t kind = 0;  // DependencyKind
  uint32_t size = 0;  // of the bytes that follow: the value, a Location, or nothing
};

struct ReplyHead {
  uint64_t task = 0;
  uint32_t kind = 0;  // ReplyKind
  uint32_t num_values = 0;
  uint32_t error_size = 0;
  uint32_t num_given_back = 0;  // registrations for the submitter's own objects that the worker gives back
  uint32_t num_retained = 0;    // results of earlier tasks that the worker still uses
  uint32_t run_ns = 0;          // how long the body ran; at most what fits into 32 bits
};

struct ValueHead {
  uint32_t kind = 0;  // ValueKind
  uint32_t num_contained = 0;
  uint32_t size = 0;
  uint32_t reserved = 0;
};

struct GivenBack {
  uint64_t index = 0;
  uint64_t count = 0;
};

// Writes into memory that is large enough.
class FrameWriter {
 public:
  explicit FrameWriter(uint8_t* to) : begin_(to), to_(to) {}
  template <class T>
  void Put(const T& value) {
    std::memcpy(to_, &value, sizeof value);
    to_ += sizeof value;
  }
  void PutBytes(std::string_view bytes) {
    if (!bytes.empty()) std::memcpy(to_, bytes.data(), bytes.size());
    to_ += bytes.size();
  }
  uint32_t size() const { return static_cast<uint32_t>(to_ - begin_); }

 private:
  uint8_t* begin_;
  uint8_t* to_;
};

}  // namespace weft::core
