#include "api_cpp/cpp_runner.h"

#include <cxxabi.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>
#include <typeinfo>

#include "api_cpp/actor_settings.h"
#include "api_cpp/exports.h"
#include "api_cpp/identity.h"
#include "api_cpp/library_origin.h"
#include "api_cpp/stack.h"
#include "api_cpp/symbols.h"
#include "os/futex.h"
#include "weft/errors.h"
#include "weft/value.h"
#include "wire/library_body.h"

namespace weft::detail {
namespace {

// An error must arrive even when the store is full, so it travels inside a frame.
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

// The exceptions that std::throw_with_nested put below an exception, a line each.
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
    // An exception of a nested task is passed on, and says which way it came.
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

thread_local CppCall* t_call = nullptr;

void SaysItIsReady() {}

std::string InProcess(const std::string& name) { return "'" + name + "' (pid " + std::to_string(getpid()) + ")"; }

std::string CancelledText(const std::string& name) {
  return "TaskCancelledError\ntask " + InProcess(name) + " was cancelled while it ran";
}

// Whether the exception that is being handled says that something was cancelled.
bool IsCancellation() {
  try {
    throw;
  } catch (const TaskCancelledError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

CppRunner* g_runner = nullptr;

ValueSource Arguments::Dependency(uint32_t number) const {
  if (number >= call->dependencies.size()) ThrowMalformed();
  const core::TaskArgument& argument = call->dependencies[number];
  return {reinterpret_cast<const uint8_t*>(argument.bytes.data()), argument.bytes.size(), argument.stored,
          argument.object};
}

void CppRunner::DestroyInstance() {
  if (!instance_.object) return;
  instance_.destroy(instance_.object);
  instance_ = {};
}

CppCall* CppRunner::Current() { return t_call; }

FunctionRecord* CppRunner::FunctionOf(core::DefinedTemplate& what, core::ProcessId submitter) {
  if (what.front_end) return static_cast<FunctionRecord*>(what.front_end);
  FunctionRecord* function;
  if (what.kind == core::TemplateKind::kCall && what.key == core::FunctionKey{}) {
    function = MethodByName(what.method);
  } else {
    function = FindFunction(what.key);
    if (!function && core::IsLibraryBody(what.body)) {
      LoadedLibrary library = LoadLibraryOf(*state_.runtime, what.body, submitter);
      function = FindFunction(what.key);
      if (!function) {
        core::LibraryBody asked;
        core::DecodeLibraryBody(what.body, &asked);
        throw VersionMismatchError("the library at " + asked.path +
                                   " is not the one that the caller has loaded: it was rebuilt since (the caller has "
                                   "build " +
                                   asked.build + ", this worker found build " + library.build +
                                   "); start the program again");
      }
    }
    if (!function) {
      throw VersionMismatchError(
          "this worker's program has no such function: it was built from other sources than the program that called "
          "it, or the function lies in a library that is not loaded here");
    }
  }
  if (function->kind == FunctionRecord::kMethod && (!instance_.type || *function->type != *instance_.type)) {
    throw ActorError("this actor is a " + (instance_.type ? Demangled(instance_.type->name()) : "nothing yet") +
                     ", which has no method '" + what.name + "'");
  }
  what.front_end = function;
  return function;
}

// The same for calls from other languages.
FunctionRecord* CppRunner::MethodByName(const std::string& name) {
  if (name == "__weft_ready__") return &Registered<FunctionBody<SaysItIsReady>>::record;
  if (name == "__weft_terminate__") return &Registered<FunctionBody<exit_actor>>::record;
  FunctionRecord* method = instance_.type ? FindMethod(*instance_.type, name) : nullptr;
  if (method) return method;
  throw ActorError("the class " + (instance_.type ? Demangled(instance_.type->name()) : "of this actor") +
                   " exports no method '" + name + "' (weft::Library::actor names those that it does)");
}

// The function itself is not available here; inside the handler of the exception that says so.
void CppRunner::Refuse(CppCall& call, const char* error_class, const WeftError& error) {
  call.refused = call.what->kind != core::TemplateKind::kCreation;  // how a constructor failed is a user's error
  call.failed = call.refused ? std::string(error_class) + "\ntask " + InProcess(call.what->name) +
                                   " cannot be run: " + error.what()
                             : PackCurrentException(call.what->name, "");
}

void CppRunner::PrepareIn(CppCall& call, const core::TaskCall& from) {
  call.what = from.what;
  call.failed.clear();
  call.refused = false;
  call.submitter = from.submitter;
  call.task = from.first_return;
  call.execution.store(from.execution, std::memory_order_relaxed);
  call.attempt = from.attempt;
  try {
    call.function = FunctionOf(*call.what, from.submitter);
    auto* bytes = reinterpret_cast<const uint8_t*>(from.arguments.data());
    const FunctionRecord& function = *call.function;
    // Counts of positional and keyword arguments come first.
    uint32_t counts[2];
    if (from.arguments.size() < sizeof counts) ThrowMalformed();
    std::memcpy(counts, bytes, sizeof counts);
    if (counts[0] != function.num_parameters || counts[1] != 0) [[unlikely]] {
      throw ValueTypeError("'" + std::string(function.name) + "' takes " + std::to_string(function.num_parameters) +
                           " arguments, without keywords, but " + std::to_string(counts[0]) + " and " +
                           std::to_string(counts[1]) + " with keywords were given");
    }
    void* storage = call.small;
    if (function.storage_size > sizeof call.small || function.storage_alignment > 64) {
      size_t alignment = std::max<size_t>(function.storage_alignment, 64);
      call.large.reset(std::aligned_alloc(alignment, (function.storage_size + alignment - 1) / alignment * alignment));
      if (!call.large) throw std::bad_alloc();
      storage = call.large.get();
    }
    function.prepare(storage, Arguments{&from}, bytes + 8, bytes + from.arguments.size());
    call.storage = storage;
  } catch (const VersionMismatchError& error) {
    Refuse(call, "VersionMismatchError", error);
  } catch (const RuntimeEnvSetupError& error) {
    Refuse(call, "RuntimeEnvSetupError", error);
  } catch (...) {
    call.failed = PackCurrentException(call.what->name, "");
  }
}

void CppRunner::Prepare(const core::TaskCall& call) {
  if (!mode_.concurrent) [[likely]]
    return PrepareIn(main_, call);
  kept_ = std::make_unique<CppCall>();
  PrepareIn(*kept_, call);
}

void CppRunner::Invoke(CppCall& call, const std::vector<core::ObjectId>& returns, core::TaskOutcome& outcome) {
  t_call = &call;
  const core::DefinedTemplate& what = *call.what;
  SetRunningTask(what.name.c_str());
  for (;;) {
    // Calls are retried here and at once, so that no later call comes in between.
    const bool again = what.kind == core::TemplateKind::kCall && !what.retry_exceptions.empty() && call.function &&
                       call.function->repeatable &&
                       (what.max_retries < 0 || call.attempt < static_cast<uint32_t>(what.max_retries));
    ThrowPoint point;
    try {
      if (call.is_cancelled()) throw Cancelled("");
      if (!call.failed.empty()) {
        Fail(outcome, call.refused ? core::ReplyKind::kRefused : core::ReplyKind::kTaskError, std::move(call.failed));
        break;
      }
      Returning out{state_, returns, outcome};
      point.Watch([&] { call.function->run(call.storage, instance_, out, again); });
      break;
    } catch (const ActorExit&) {
      Fail(outcome, core::ReplyKind::kExited,
           "ActorDiedError\nthe actor ended itself by exit_actor() in " + InProcess(what.name));
      break;
    } catch (...) {
      // The tasks that it called were cancelled with it: that is not an error of its own.
      if (call.is_cancelled() && IsCancellation()) {
        Fail(outcome, core::ReplyKind::kCancelled, CancelledText(what.name));
        break;
      }
      std::string error = PackCurrentException(what.name, point.Stack());
      const bool retryable = !what.retry_exceptions.empty() && what.kind == core::TemplateKind::kTask;
      Fail(outcome, retryable ? core::ReplyKind::kRetryableError : core::ReplyKind::kTaskError, std::move(error));
      if (!again) break;
      ++call.attempt;
      outcome.kind = core::ReplyKind::kValues;
      outcome.error.clear();
    }
  }
  call.DropArguments();
  SetRunningTask(nullptr);
  t_call = nullptr;
}

void CppRunner::Run(const std::vector<core::ObjectId>& returns, core::TaskOutcome& outcome) {
  if (main_.what->kind == core::TemplateKind::kCreation) [[unlikely]] {
    constructing_ = true;
    try {
      TakeOptions(main_.what->actor_options);
    } catch (...) {
      main_.failed = PackCurrentException(main_.what->name, "");
    }
    Invoke(main_, returns, outcome);
    outcome.values.clear();  // a constructor returns nothing
    constructing_ = false;
    return;
  }
  Invoke(main_, returns, outcome);
}

void CppRunner::Fail(core::TaskOutcome& outcome, core::ReplyKind kind, std::string error) {
  for (core::TaskReturn& value : outcome.values) {
    if (value.room.data) state_.runtime->Abandon(value.room);
    for (Object* object : value.contained) state_.runtime->DropReference(object);
  }
  outcome.values.clear();
  outcome.kind = kind;
  outcome.error = std::move(error);
}

void CppRunner::Assigned(const core::AssignedLease& lease) {
  if (!visible_gpus_) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    visible_gpus_ = visible ? visible : "";
  }
  // If the driver may use only some devices, the numbers count among those.
  std::vector<std::string> devices;
  for (size_t at = 0; at < visible_gpus_->size();) {
    size_t end = std::min(visible_gpus_->find(',', at), visible_gpus_->size());
    if (end > at) devices.push_back(visible_gpus_->substr(at, end - at));
    at = end + 1;
  }
  std::string numbers;
  for (const auto& [number, amount] : lease.gpus) {
    if (!numbers.empty()) numbers += ',';
    numbers += number < devices.size() ? devices[number] : std::to_string(number);
  }
  ::setenv("CUDA_VISIBLE_DEVICES", numbers.c_str(), 1);
}

// ---- actors -------------------------------------------------------------------------------------------------------

void CppRunner::TakeOptions(const std::string& options) {
  Decoder in(reinterpret_cast<const uint8_t*>(options.data()),
             reinterpret_cast<const uint8_t*>(options.data()) + options.size());
  auto [limit, groups, name, info] = Codec<ActorSettings>::Decode(in);
  mode_.limit = limit;
  limit_ = limit;
  for (const auto& [group, size] : groups) {
    mode_.groups[group] = size;
    limit_ += size;
  }
  actor_name_ = std::move(name);
  info_bytes_ = std::move(info);
}

core::ActorMode CppRunner::mode() {
  std::lock_guard lock(mutex_);
  mode_.concurrent = mode_.limit > 1 || !mode_.groups.empty();
  return mode_;
}

void CppRunner::Keep(core::Execution& execution) {
  CppCall* call = kept_.release();
  execution.front_end = call;
  std::lock_guard lock(mutex_);
  running_.push_back(call);
}

void CppRunner::Start(core::Execution& execution) {
  std::lock_guard lock(mutex_);
  queue_.push_back(&execution);
  if (idle_ < queue_.size() && threads_ < limit_) {
    ++threads_;
    std::thread([this] { ServeCalls(); }).detach();
  }
  wakes_.notify_one();
}

void CppRunner::ServeCalls() {
  for (;;) {
    core::Execution* execution;
    {
      std::unique_lock lock(mutex_);
      ++idle_;
      wakes_.wait(lock, [&] { return !queue_.empty(); });
      --idle_;
      execution = queue_.front();
      queue_.pop_front();
    }
    std::unique_ptr<CppCall> call(static_cast<CppCall*>(execution->front_end));
    Runtime::SetCurrentExecution(call->execution);
    executor_->NoteBegin(*execution);
    Invoke(*call, execution->returns, execution->outcome);
    Runtime::SetCurrentExecution(0);
    {
      std::lock_guard lock(mutex_);
      std::erase(running_, call.get());
    }
    call.reset();
    execution->front_end = nullptr;
    executor_->Complete(execution, false);
  }
}

// ---- cancelling ---------------------------------------------------------------------------------------------------

void CppRunner::Interrupt(uint64_t execution) {
  auto mark = [&](CppCall& call) {
    if (call.execution.load(std::memory_order_relaxed) != execution) return;
    call.cancelled.store(static_cast<uint32_t>(execution));
    core::FutexWake(&call.cancelled);
  };
  std::lock_guard lock(mutex_);
  if (!mode_.concurrent) return mark(main_);
  for (CppCall* call : running_) mark(*call);
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

void ReturnArray(Returning& out, const char* type, size_t item_size, const void* data, size_t count,
                 const Shape& shape) {
  size_t index = out.outcome.values.size();
  core::TaskReturn& result = out.outcome.values.emplace_back();
  result.room = StoreArray(out.state, type, item_size, data, count, shape, out.ids[index], result.bytes);
  if (result.room.data) return;
  out.inline_bytes += result.bytes.size();
  if (out.inline_bytes > kMaxInlineBytesPerFrame) {
    result.room = StoreBytes(out.state, result.bytes.data(), result.bytes.size(), out.ids[index]);
    result.bytes.clear();
  }
}

bool ReturnRoom(Returning& out, Block* block, const char* type, const Shape& shape) {
  core::StoreRoom room;
  if (!TakeRoom(out.state, block, type, shape, room)) return false;
  out.outcome.values.emplace_back().room = room;
  return true;
}

}  // namespace weft::detail
