#include "api_cpp/cpp_runner.h"

#include <cxxabi.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <typeinfo>

#include "api_cpp/identity.h"
#include "api_cpp/stack.h"
#include "api_cpp/symbols.h"
#include "weft/errors.h"
#include "weft/value.h"

namespace weft::detail {
namespace {

// An error must arrive also when the store is full, so it travels inside a frame.
constexpr size_t kMaxText = 20'000;

std::string Shortened(std::string text) {
  if (text.size() <= kMaxText) return text;
  size_t half = kMaxText / 2;
  return text.substr(0, half) + "\n... " + std::to_string(text.size() - 2 * half) + " bytes left out ...\n" +
         text.substr(text.size() - half);
}

std::string PackError(const TaskError& error) {
  Encoder out;
  out.Byte(kNativeFormat);
  out.Count(Tag::kTuple, 8);
  out.Text(error.type_name());
  out.Text(Shortened(error.message()));
  out.Text(error.function_name());
  out.Integer(error.pid());
  out.Text(Shortened(error.stack()));
  Codec<std::vector<std::string>>::Encode(out, error.bases());
  out.Put(Tag::kNone);  // no exception of Python's
  out.Text("it is an exception of C++");
  return std::string(reinterpret_cast<const char*>(out.data()), out.size());
}

// The public classes above a class, nearest first.
void AddBases(const std::type_info& type, std::vector<std::string>& to) {
  if (to.size() > 32) return;
  if (auto* single = dynamic_cast<const abi::__si_class_type_info*>(&type)) {
    to.push_back(Demangled(single->__base_type->name()));
    AddBases(*single->__base_type, to);
  } else if (auto* several = dynamic_cast<const abi::__vmi_class_type_info*>(&type)) {
    for (unsigned i = 0; i < several->__base_count; ++i) {
      const abi::__base_class_type_info& base = several->__base_info[i];
      if (!base.__is_public_p()) continue;
      to.push_back(Demangled(base.__base_type->name()));
      AddBases(*base.__base_type, to);
    }
  }
}

// What std::throw_with_nested put below an exception, a line each.
void AddCauses(const std::exception& error, std::string& to, int depth = 0) {
  auto* nested = dynamic_cast<const std::nested_exception*>(&error);
  if (!nested || !nested->nested_ptr()) return;
  try {
    nested->rethrow_nested();
  } catch (const std::exception& cause) {
    to.append(to.empty() ? "" : "\n").append("caused by ").append(Demangled(typeid(cause).name())).append(": ");
    to.append(cause.what());
    if (depth < 8) AddCauses(cause, to, depth + 1);
  } catch (...) {
    std::type_info* type = abi::__cxa_current_exception_type();
    to.append(to.empty() ? "" : "\n").append("caused by ").append(type ? Demangled(type->name()) : "something unknown");
  }
}

// The exception that is being handled, as it travels.
std::string PackCurrentException(const std::string& function, std::string stack) {
  const std::type_info* type = abi::__cxa_current_exception_type();
  std::string name = type ? Demangled(type->name()) : "an unknown type";
  std::vector<std::string> bases;
  if (type) AddBases(*type, bases);
  auto pack = [&](std::string message) {
    return PackError(TaskError(std::move(name), std::move(message), function, getpid(), std::move(stack), bases));
  };
  try {
    throw;
  } catch (const TaskError& error) {
    // One that a nested task threw goes on as it is, and says which way it came.
    std::string way = error.stack();
    way.append(way.empty() ? "" : "\n").append("which came through task '").append(function).append("' (in process ");
    way.append(std::to_string(getpid())).append(")");
    if (!stack.empty()) way.append("\n").append(stack);
    return PackError(
        TaskError(error.type_name(), error.message(), error.function_name(), error.pid(), way, error.bases()));
  } catch (const std::exception& error) {
    AddCauses(error, stack);
    return pack(error.what());
  } catch (const std::string& text) {
    return pack(text);
  } catch (const char* text) {
    return pack(text ? text : "(null)");
  } catch (int number) {
    return pack(std::to_string(number));
  } catch (...) {
    return pack("it has no message");
  }
}

}  // namespace

ValueSource Arguments::Dependency(uint32_t number) const {
  if (number >= call->dependencies.size()) ThrowMalformed();
  const core::TaskArgument& argument = call->dependencies[number];
  return {reinterpret_cast<const uint8_t*>(argument.bytes.data()), argument.bytes.size(), argument.stored,
          argument.object};
}

void* CppRunner::StorageFor(const FunctionRecord& function) {
  if (function.storage_size <= sizeof small_ && function.storage_alignment <= 64) return small_;
  size_t alignment = std::max<size_t>(function.storage_alignment, 64);
  large_.reset(std::aligned_alloc(alignment, (function.storage_size + alignment - 1) / alignment * alignment));
  if (!large_) throw std::bad_alloc();
  return large_.get();
}

void CppRunner::Prepare(const core::TaskCall& call) {
  what_ = call.what;
  failed_.clear();
  function_ = static_cast<FunctionRecord*>(call.what->front_end);
  try {
    if (!function_) {
      function_ = FindFunction(call.what->key);
      if (!function_) {
        failed_ =
            PackError(TaskError("weft::VersionMismatchError",
                                "this worker's program has no such function: it was built from other sources than the "
                                "program that called it, or the function lies in a library that is not loaded here",
                                what_->function_name, getpid()));
        return;
      }
      call.what->front_end = function_;
    }
    auto* bytes = reinterpret_cast<const uint8_t*>(call.arguments.data());
    // Counts of positional and keyword arguments come first; the function's type knows them.
    if (call.arguments.size() < 8) ThrowMalformed();
    storage_ = StorageFor(*function_);
    function_->prepare(storage_, Arguments{&call}, bytes + 8, bytes + call.arguments.size());
  } catch (...) {
    failed_ = PackCurrentException(what_->name, "");
  }
}

void CppRunner::Run(const std::vector<core::ObjectId>& returns, core::TaskOutcome& outcome) {
  if (!failed_.empty()) return Fail(outcome, std::move(failed_));
  SetRunningTask(what_->name.c_str());
  try {
    Returning out{state_, returns, outcome};
    WithThrowStack([&] { function_->run(storage_, out); });
  } catch (...) {
    Fail(outcome, PackCurrentException(what_->name, ThrowStack()));
  }
  SetRunningTask(nullptr);
}

void CppRunner::Fail(core::TaskOutcome& outcome, std::string error) {
  for (core::TaskReturn& value : outcome.values) {
    if (value.room.data) state_.runtime->Abandon(value.room);
    for (Object* object : value.contained) state_.runtime->DropReference(object);
  }
  outcome.values.clear();
  outcome.kind = what_->retry_exceptions.empty() ? core::ReplyKind::kTaskError : core::ReplyKind::kRetryableError;
  outcome.error = std::move(error);
}

// ---- results

void ReturnNative(Returning& out, Encoder& value) {
  size_t index = out.outcome.values.size();
  core::TaskReturn& result = out.outcome.values.emplace_back();
  // Many small values would not fit into one frame.
  if (value.size() > kMaxInlineBytes || out.inline_bytes + value.size() > kMaxInlineBytesPerFrame) [[unlikely]] {
    result.room = StoreBytes(out.state, value.data(), value.size(), out.ids[index]);
  } else {
    result.bytes.assign(reinterpret_cast<const char*>(value.data()), value.size());
    out.inline_bytes += value.size();
  }
  for (size_t i = 0; i < value.contained.size(); ++i) {
    Runtime::AddReference(value.contained.data()[i]);
    result.contained.push_back(value.contained.data()[i]);
  }
}

void ReturnArray(Returning& out, const char* type, size_t item_size, const void* data, size_t count) {
  size_t index = out.outcome.values.size();
  core::TaskReturn& result = out.outcome.values.emplace_back();
  result.room = StoreArray(out.state, type, item_size, data, count, out.ids[index], result.bytes);
  if (result.room.data) return;
  out.inline_bytes += result.bytes.size();
  if (out.inline_bytes > kMaxInlineBytesPerFrame) {
    result.room = StoreBytes(out.state, result.bytes.data(), result.bytes.size(), out.ids[index]);
    result.bytes.clear();
  }
}

bool ReturnRoom(Returning& out, Block* block, const char* type, size_t count) {
  core::StoreRoom room;
  if (!TakeRoom(out.state, block, type, count, room)) return false;
  out.outcome.values.emplace_back().room = room;
  return true;
}

}  // namespace weft::detail
