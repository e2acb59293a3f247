// References, values and waiting, for the templates in include/weft.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "api_cpp/cpp_runner.h"
#include "api_cpp/state.h"
#include "base/clock.h"
#include "weft/context.h"
#include "weft/detail/encoder.h"
#include "weft/errors.h"
#include "weft/value.h"
#include "wire/value_format.h"

namespace weft::detail {
namespace {

using core::ArrayHead;

std::span<Object* const> Span(ObjectList& list) { return {list.data(), list.size()}; }

bool IsUtf8(const uint8_t* at, const uint8_t* end) {
  while (at != end) {
    uint8_t lead = *at++;
    if (lead < 0x80) continue;
    int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead < 0xc2 || lead > 0xf4 || end - at < more) return false;
    // The second byte decides about overlong forms, surrogates and what lies beyond Unicode.
    uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (*at < low || *at > high) return false;
    for (int i = 1; i < more; ++i) {
      if ((at[i] & 0xc0) != 0x80) return false;
    }
    at += more;
  }
  return true;
}

// The text that describes a struct; numbers have none.
std::string_view LayoutOf(const char* type) { return *type == '{' ? std::string_view(type) : std::string_view(); }

uint64_t DataOffset(const char* type, const Shape& shape) {
  return ArrayHead::DataOffset(shape.dimensions, LayoutOf(type).size());
}

// Everything before the data.
std::string ArrayHeader(const char* type, const Shape& shape) {
  std::string_view layout = LayoutOf(type);
  std::string bytes(DataOffset(type, shape), 0);
  ArrayHead head;
  head.dimensions = static_cast<uint8_t>(shape.dimensions);
  char* to = bytes.data() + sizeof head;
  for (uint32_t i = 0; i < shape.dimensions; ++i, to += 8) {
    uint64_t length = shape.lengths[i];
    std::memcpy(to, &length, sizeof length);
  }
  if (layout.empty()) {
    std::strncpy(head.type, type, sizeof head.type - 1);
  } else {
    head.flags |= ArrayHead::kLayout;
    std::string item_size(layout.substr(layout.rfind('}') + 1));
    std::strncpy(head.type, ("|V" + item_size).c_str(), sizeof head.type - 1);
    auto size = static_cast<uint32_t>(layout.size());
    std::memcpy(to, &size, sizeof size);
    std::memcpy(to + sizeof size, layout.data(), size);
  }
  std::memcpy(bytes.data(), &head, sizeof head);
  return bytes;
}

// A layout without the names of the fields, which C++ does not know.
std::string WithoutNames(std::string_view layout) {
  std::string text;
  size_t begin = 0;  // of what may be a name
  for (char c : layout) {
    if (c == '=') {
      text.resize(begin);
    } else {
      text.push_back(c);
      if (c == '{' || c == ',') begin = text.size();
    }
  }
  return text;
}

int64_t Deadline(int64_t timeout_ns) {
  if (timeout_ns <= 0) return timeout_ns;
  int64_t now = core::NowNs();
  return timeout_ns > INT64_MAX - now ? -1 : now + timeout_ns;
}

}  // namespace

// ---- encoder

void Encoder::Grow(size_t needed) {
  size_t size = this->size();
  size_t capacity = std::max<size_t>(2 * static_cast<size_t>(end_ - begin_), size + needed);
  auto* larger = static_cast<uint8_t*>(std::malloc(capacity));
  if (!larger) throw std::bad_alloc();
  std::memcpy(larger, begin_, size);
  if (begin_ != small_) std::free(begin_);
  begin_ = larger;
  at_ = begin_ + size;
  end_ = begin_ + capacity;
}

void Encoder::DropOwned(Object* object) noexcept {
  Using session;
  if (SessionState* state = session.get()) state->runtime->DropReference(object);
}

void Encoder::Text(std::string_view text) {
  auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  Count(IsUtf8(bytes, bytes + text.size()) ? Tag::kString : Tag::kBytes, text.size());
  Raw(text.data(), text.size());
}

// ---- references

void AddReference(Object* object, uint32_t epoch) noexcept {
  Using session;
  SessionState* state = session.get();
  if (state && state->epoch == epoch) Runtime::AddReference(object);
}

void DropReference(Object* object, uint32_t epoch) noexcept {
  Using session;
  SessionState* state = session.get();
  if (state && state->epoch == epoch && !Runtime::forked()) state->runtime->DropReference(object);
}

uint32_t CurrentEpoch() {
  Using session;
  return session.need().epoch;
}

std::pair<uint64_t, uint64_t> IdOf(Object* object) noexcept { return {object->id.owner.value, object->id.index}; }

Object* FindReference(uint64_t owner, uint64_t index) {
  Using session;
  Object* object = session.need().runtime->FindReference({{owner}, index});
  if (!object) throw ObjectLostError("a value refers to an object that no longer exists");
  return object;
}

void CheckEpoch(Object* object, uint32_t epoch) {
  if (!object) throw std::invalid_argument("weft: this Ref names nothing (it was default-constructed or moved from)");
  Using session;
  SessionState& state = session.need();
  if (state.epoch != epoch) throw WeftError("this Ref belongs to a session that has ended");
}

bool IsResolved(Object* object) noexcept { return object->settled(); }

bool IsReady(Object* object, bool to_look) noexcept { return object->ready(to_look); }

// ---- blocks

struct Block {
  enum Kind : uint8_t { kRoom, kPin, kPlain, kGiven } kind = kPlain;
  std::atomic<uint32_t> count{1};
  uint32_t epoch = 0;
  core::StoreRoom room;
  Object* object = nullptr;
  void* plain = nullptr;
};

Block* NewRoom(size_t bytes, const char* type, const Shape& shape, void** data) {
  Using session;
  SessionState& state = session.need();
  auto block = std::make_unique<Block>();
  uint64_t offset = DataOffset(type, shape);
  block->room = AllocateOrThrow(state, offset + bytes, {}, core::Populate::kNow);
  block->kind = Block::kRoom;
  block->epoch = state.epoch;
  g_blocks.fetch_add(1);
  *data = block->room.data + offset;
  return block.release();
}

Block* NewPlain(size_t bytes, void** data) {
  auto block = std::make_unique<Block>();
  block->plain = std::aligned_alloc(64, core::AlignUp(std::max<size_t>(bytes, 1), 64));
  if (!block->plain) throw std::bad_alloc();
  *data = block->plain;
  return block.release();
}

Block* PinObject(Object* object) {
  auto block = std::make_unique<Block>();
  block->kind = Block::kPin;
  block->object = object;
  block->epoch = CurrentEpoch();
  Runtime::AddReference(object);
  g_blocks.fetch_add(1);
  return block.release();
}

void RetainBlock(Block* block) noexcept { block->count.fetch_add(1, std::memory_order_relaxed); }

void ReleaseBlock(Block* block) noexcept {
  if (block->count.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (block->kind == Block::kRoom) {
    Using session;
    SessionState* state = session.get();
    if (state && state->epoch == block->epoch && !Runtime::forked()) state->runtime->Abandon(block->room);
  } else if (block->kind == Block::kPin) {
    DropReference(block->object, block->epoch);
  } else {
    std::free(block->plain);
  }
  if (block->kind == Block::kRoom || block->kind == Block::kPin) g_blocks.fetch_sub(1);
  delete block;
}

bool TakeRoom(SessionState& state, Block* block, const char* type, const Shape& shape, core::StoreRoom& room) {
  if (!block || block->kind != Block::kRoom || block->epoch != state.epoch) return false;
  std::string head = ArrayHeader(type, shape);
  std::memcpy(block->room.data, head.data(), head.size());
  room = block->room;
  block->kind = Block::kGiven;
  g_blocks.fetch_sub(1);
  return true;
}

// ---- values into the store

core::StoreRoom AllocateOrThrow(SessionState& state, uint64_t size, core::ObjectId id, core::Populate populate) {
  for (;;) {
    auto room = state.runtime->Allocate(size, id, populate);
    if (room) return *room;
    if (room.error().kind == core::ErrorKind::kTimeout) continue;  // a signal was handled meanwhile
    if (state.runtime->stopped()) ThrowSessionEnded(*state.runtime);
    ThrowCoreError(room.error());
  }
}

namespace {

void FillOrThrow(SessionState& state, const core::StoreRoom& room, uint64_t offset, const void* bytes, size_t size) {
  auto status = state.runtime->Fill(room, offset, bytes, size);
  if (status.ok()) return;
  state.runtime->Abandon(room);
  ThrowCoreError(status.error());
}

}  // namespace

core::StoreRoom StoreBytes(SessionState& state, const void* bytes, size_t size, core::ObjectId id) {
  core::StoreRoom room = AllocateOrThrow(state, size, id, core::Populate::kWhileCopying);
  FillOrThrow(state, room, 0, bytes, size);
  return room;
}

core::StoreRoom StoreArray(SessionState& state, const char* type, size_t item_size, const void* data, size_t count,
                           const Shape& shape, core::ObjectId id, std::string& bytes) {
  uint64_t data_size = item_size * count;
  std::string head = ArrayHeader(type, shape);
  if (head.size() + data_size <= kMaxInlineBytes) {
    bytes = std::move(head);
    if (data_size > 0) bytes.append(static_cast<const char*>(data), data_size);
    return {};
  }
  core::StoreRoom room = AllocateOrThrow(state, head.size() + data_size, id, core::Populate::kWhileCopying);
  FillOrThrow(state, room, 0, head.data(), head.size());
  FillOrThrow(state, room, head.size(), data, data_size);
  return room;
}

Object* PutNative(Encoder& value) {
  Using session;
  SessionState& state = session.need();
  if (value.size() <= kMaxInlineBytes) {
    return state.runtime->PutInline({reinterpret_cast<const char*>(value.data()), value.size()}, Span(value.contained));
  }
  return state.runtime->PutStored(StoreBytes(state, value.data(), value.size(), {}), Span(value.contained));
}

Object* PutArray(const char* type, size_t item_size, const void* data, size_t count, const Shape& shape) {
  Using session;
  SessionState& state = session.need();
  std::string bytes;
  core::StoreRoom room = StoreArray(state, type, item_size, data, count, shape, {}, bytes);
  return room.data ? state.runtime->PutStored(room, {}) : state.runtime->PutInline(bytes, {});
}

Object* PutRoom(Block* block, const char* type, const Shape& shape) {
  Using session;
  SessionState& state = session.need();
  core::StoreRoom room;
  if (!TakeRoom(state, block, type, shape, room)) return nullptr;
  return state.runtime->PutStored(room, {});
}

// ---- reading

ArrayView ReadArrayHead(const ValueSource& source, const char* type, size_t item_size) {
  ArrayHead head;
  if (source.size < sizeof head) ThrowMalformed();
  std::memcpy(&head, source.data, sizeof head);
  head.type[sizeof head.type - 1] = 0;
  uint64_t at = sizeof head + 8 * uint64_t{head.dimensions};
  std::string_view layout;
  if (head.flags & ArrayHead::kLayout) {
    uint32_t size;
    if (source.size < at + sizeof size) ThrowMalformed();
    std::memcpy(&size, source.data + at, sizeof size);
    if (size == 0 || source.size - at - sizeof size < size) ThrowMalformed();
    layout = {reinterpret_cast<const char*>(source.data + at + sizeof size), size};
  }
  uint64_t offset = ArrayHead::DataOffset(head.dimensions, layout.size());
  if (offset > source.size || std::strlen(head.type) < 3) ThrowMalformed();
  // Names are shown but do not count.
  bool same = layout.empty() ? std::strcmp(head.type, type) == 0 : WithoutNames(layout) == WithoutNames(LayoutOf(type));
  if (!same) ThrowWrongArray(type, layout.empty() ? head.type : layout);
  if (head.dimensions > kMaxDimensions) {
    throw ValueTypeError("the value is an array of " + std::to_string(head.dimensions) + " dimensions, but C++ reads " +
                         std::to_string(kMaxDimensions) + " at most");
  }
  ArrayView view{source.data + offset, 1, {head.dimensions, {}}, (head.flags & ArrayHead::kColumns) != 0};
  for (uint32_t i = 0; i < head.dimensions; ++i) {
    uint64_t length;
    std::memcpy(&length, source.data + sizeof head + 8 * i, 8);
    view.shape.lengths[i] = length;
    if (__builtin_mul_overflow(view.count, length, &view.count)) ThrowMalformed();
  }
  if (view.count > (source.size - offset) / item_size) ThrowMalformed();
  view.columns = view.columns && head.dimensions > 1;
  return view;
}

void CopyRows(const ArrayView& array, size_t item_size, void* to) {
  if (array.count == 0) return;
  if (!array.columns) {
    std::memcpy(to, array.data, array.count * item_size);
    return;
  }
  auto* out = static_cast<uint8_t*>(to);
  size_t index[kMaxDimensions] = {};
  for (size_t n = 0; n < array.count; ++n, out += item_size) {
    size_t place = 0, step = 1;
    for (uint32_t i = 0; i < array.shape.dimensions; ++i) {
      place += index[i] * step;
      step *= array.shape.lengths[i];
    }
    std::memcpy(out, array.data + place * item_size, item_size);
    for (uint32_t i = array.shape.dimensions; i-- > 0;) {
      if (++index[i] < array.shape.lengths[i]) break;
      index[i] = 0;
    }
  }
}

namespace {

// How an object failed, from its bytes.
Failure DescribeFailure(core::ValueKind kind, std::string_view bytes) {
  if (kind == core::ValueKind::kSystemError) {
    size_t end = std::min(bytes.find('\n'), bytes.size());
    // After a NUL: the packed exception of user code that led to it, such as that of an actor's constructor.
    size_t text_end = std::min(bytes.find('\0', end), bytes.size());
    Failure failure{.name = std::string(bytes.substr(0, end)),
                    .message = std::string(end < text_end ? bytes.substr(end + 1, text_end - end - 1) : "")};
    if (text_end < bytes.size()) {
      Failure cause = DescribeFailure(core::ValueKind::kTaskError, bytes.substr(text_end + 1));
      failure.message.append(". The exception: ").append(cause.type_name).append(": ").append(cause.message);
      if (!cause.stack.empty()) failure.message.append("\n").append(cause.stack);
    }
    return failure;
  }
  Failure failure{.name = "TaskError"};
  try {
    auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    if (bytes.empty() || data[0] != kNativeFormat) ThrowMalformed();
    Decoder in(data + 1, data + bytes.size());
    ExpectSequence(in, "an error");
    if (in.Count() < 6) ThrowMalformed();  // more fields are for the language that it came from
    failure.type_name = Codec<std::string>::Decode(in);
    failure.message = Codec<std::string>::Decode(in);
    failure.function_name = Codec<std::string>::Decode(in);
    failure.pid = Codec<int>::Decode(in);
    failure.stack = Codec<std::string>::Decode(in);
    failure.bases = Codec<std::vector<std::string>>::Decode(in);
  } catch (const ValueTypeError&) {
    failure.type_name = "an exception";
    failure.message = "its description cannot be read here";
  }
  return failure;
}

}  // namespace

bool Read(Object* object, ValueSource& source, Failure& failure) {
  core::ValueKind kind = object->value.kind();
  if (kind == core::ValueKind::kInline) [[likely]] {
    std::string_view bytes = object->value.bytes();
    source = {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), false, nullptr};
    return true;
  }
  Using session;
  SessionState& state = session.need();
  for (;;) {
    auto view = state.runtime->Read(object);
    if (!view) {
      if (view.error().kind == core::ErrorKind::kTimeout) continue;
      if (state.runtime->stopped()) ThrowSessionEnded(*state.runtime);
      failure = {.name = "ObjectLostError", .message = view.error().message};
      return false;
    }
    if (view->kind == core::ValueKind::kStored || view->kind == core::ValueKind::kInline) {
      const bool stored = view->kind == core::ValueKind::kStored;  // or was, when it was read before
      source = {reinterpret_cast<const uint8_t*>(view->bytes.data()), view->bytes.size(), stored,
                stored ? object : nullptr};
      return true;
    }
    failure = DescribeFailure(view->kind, view->bytes);
    return false;
  }
}

void ReadOrThrow(Object* object, ValueSource& source) {
  if (object->value.kind() == core::ValueKind::kInline) [[likely]] {
    std::string_view bytes = object->value.bytes();
    source = {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), false, nullptr};
    return;
  }
  Failure failure;
  if (!Read(object, source, failure)) Throw(failure);
}

void FetchOrThrow(Object* object, uint32_t epoch, ValueSource& source) {
  CheckEpoch(object, epoch);
  if (!object->here()) WaitForAll(&object, 1, -1);
  ReadOrThrow(object, source);
}

// ---- waiting

bool WaitForAll(Object* const* objects, size_t count, int64_t timeout_ns) {
  Using session;
  SessionState& state = session.need();
  if (std::all_of(objects, objects + count, [](Object* object) { return object->here(); })) return true;
  int64_t deadline = Deadline(timeout_ns);
  core::WaitReport report;
  if (const CppCall* call = CppRunner::Current()) {
    report.cancelled = &call->cancelled;
    report.cancelled_before = call->cancelled.load();
  }
  this_task::check_cancelled();
  for (;;) {
    switch (state.runtime->WaitForAll({objects, count}, deadline, &report, true)) {
      case core::WaitOutcome::kReady:
        return true;
      case core::WaitOutcome::kFailed: {
        ValueSource source;
        Failure failure;
        for (size_t i = 0; i < count; ++i) {
          if (objects[i]->failed() && !Read(objects[i], source, failure)) Throw(failure);
        }
        continue;  // it is being made again
      }
      case core::WaitOutcome::kTimedOut:
        return false;
      case core::WaitOutcome::kInterrupted:
        this_task::check_cancelled();
        continue;
      case core::WaitOutcome::kNotice:
        std::fprintf(stderr, "weft: a long wait: %s\n", report.text.c_str());
        continue;
      case core::WaitOutcome::kStuck:
        Throw(DescribeFailure(core::ValueKind::kSystemError, report.text));
      case core::WaitOutcome::kStopped:
        ThrowSessionEnded(*state.runtime);
    }
  }
}

bool WaitInTask(const std::atomic<bool>& done) {
  const CppCall* call = CppRunner::Current();
  Using session;
  SessionState* state = session.get();
  if (!call || !state) return false;
  uint32_t cancelled_before = call->cancelled.load();
  this_task::check_cancelled();
  for (;;) {
    auto ready = [&] { return done.load() || call->cancelled.load() != cancelled_before; };
    if (state->runtime->WaitUntilTold(ready) == core::WaitOutcome::kStopped) ThrowSessionEnded(*state->runtime);
    if (done.load()) return true;
    cancelled_before = call->cancelled.load();
    this_task::check_cancelled();
  }
}

void WakeTasks() noexcept {
  Using session;
  SessionState* state = session.get();
  if (state && g_runner) state->runtime->WakeWaiters();  // otherwise no thread runs a task
}

void WaitForSome(Object* const* objects, size_t count, size_t wanted, int64_t timeout_ns, bool to_look) {
  Using session;
  SessionState& state = session.need();
  if (wanted < 1 || wanted > count) {
    throw std::invalid_argument("weft::wait: num_returns must be between 1 and the number of references (" +
                                std::to_string(count) + "), not " + std::to_string(wanted));
  }
  std::vector<Object*> sorted(objects, objects + count);
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw std::invalid_argument("weft::wait: two of the references name the same object");
  }
  int64_t deadline = Deadline(timeout_ns);
  core::WaitReport report;
  if (const CppCall* call = CppRunner::Current()) {
    report.cancelled = &call->cancelled;
    report.cancelled_before = call->cancelled.load();
  }
  this_task::check_cancelled();
  for (;;) {
    switch (state.runtime->WaitFor({objects, count}, wanted, deadline, &report, to_look)) {
      case core::WaitOutcome::kReady:
      case core::WaitOutcome::kFailed:
      case core::WaitOutcome::kTimedOut:
        return;
      case core::WaitOutcome::kInterrupted:
        this_task::check_cancelled();
        continue;
      case core::WaitOutcome::kNotice:
        std::fprintf(stderr, "weft: a long wait: %s\n", report.text.c_str());
        continue;
      case core::WaitOutcome::kStuck:
        Throw(DescribeFailure(core::ValueKind::kSystemError, report.text));
      case core::WaitOutcome::kStopped:
        ThrowSessionEnded(*state.runtime);
    }
  }
}

}  // namespace weft::detail
