#include "api_cpp/cpp_runner.h"

#include <cxxabi.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <typeinfo>

#include "api_cpp/identity.h"
#include "weft/errors.h"
#include "weft/value.h"

namespace weft::detail {
namespace {

std::string Demangled(const char* name) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  return status == 0 && text ? std::string(text.get()) : std::string(name);
}

std::string PackError(const std::string& type, const std::string& message, const std::string& function, int pid) {
  Encoder out;
  out.Byte(kNativeFormat);
  Codec<std::tuple<std::string, std::string, std::string, int>>::Encode(out, {type, message, function, pid});
  return std::string(reinterpret_cast<const char*>(out.data()), out.size());
}

// The exception that is being handled, as it travels. One that a nested task threw goes on as it is.
std::string PackCurrentException(const std::string& function) {
  try {
    throw;
  } catch (const TaskError& error) {
    return PackError(error.type_name(), error.message(), error.function_name(), error.pid());
  } catch (const std::exception& error) {
    return PackError(Demangled(typeid(error).name()), error.what(), function, getpid());
  } catch (const std::string& text) {
    return PackError("std::string", text, function, getpid());
  } catch (const char* text) {
    return PackError("const char*", text, function, getpid());
  } catch (...) {
    std::type_info* type = abi::__cxa_current_exception_type();
    return PackError(type ? Demangled(type->name()) : "an unknown type", "it has no message", function, getpid());
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
        failed_ = PackError("weft::VersionMismatchError",
                            "this worker's program has no such function: it was built from other sources than the "
                            "program that called it, or the function lies in a library that is not loaded here",
                            what_->function_name, getpid());
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
    failed_ = PackCurrentException(what_->name);
  }
}

void CppRunner::Run(const std::vector<core::ObjectId>& returns, core::TaskOutcome& outcome) {
  if (!failed_.empty()) return Fail(outcome, std::move(failed_));
  try {
    Returning out{state_, returns, outcome};
    function_->run(storage_, out);
  } catch (...) {
    Fail(outcome, PackCurrentException(what_->name));
    return;
  }
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
