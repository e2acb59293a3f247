// From names and bytes to exceptions.
#include "weft/errors.h"

#include <algorithm>
#include <cstdio>

#include "api_cpp/state.h"
#include "api_cpp/symbols.h"
#include "weft/value.h"

namespace weft {
namespace {

std::string Describe(const std::string& type, const std::string& message, const std::string& function, int pid,
                     const std::string& stack) {
  std::string text = "task '";
  text.append(function).append("' threw ").append(type).append(": ").append(message);
  text.append(" (in process ").append(std::to_string(pid)).append(")");
  if (!stack.empty()) text.append("\n").append(stack);
  return text;
}

}  // namespace

TaskError::TaskError(std::string type_name, std::string message, std::string function_name, int pid, std::string stack,
                     std::vector<std::string> bases)
    : WeftError(Describe(type_name, message, function_name, pid, stack)),
      type_name_(std::move(type_name)),
      message_(std::move(message)),
      function_name_(std::move(function_name)),
      stack_(std::move(stack)),
      bases_(std::move(bases)),
      pid_(pid) {}

bool TaskError::is(std::string_view class_name) const noexcept {
  return type_name_ == class_name || std::find(bases_.begin(), bases_.end(), class_name) != bases_.end();
}

bool TaskError::is(const std::type_info& type) const { return is(detail::Demangled(type.name())); }

}  // namespace weft

namespace weft::detail {
namespace {

struct Thrower {
  const char* name;
  void (*raise)(const std::string& message);
};

template <class E>
[[noreturn]] void Raise(const std::string& message) {
  throw E(message);
}

constexpr Thrower kThrowers[] = {
    {"TaskCancelledError", Raise<TaskCancelledError>},
    {"WorkerCrashedError", Raise<WorkerCrashedError>},
    {"ActorError", Raise<ActorError>},
    {"ActorDiedError", Raise<ActorDiedError>},
    {"ActorUnavailableError", Raise<ActorUnavailableError>},
    {"ObjectLostError", Raise<ObjectLostError>},
    {"OwnerDiedError", Raise<OwnerDiedError>},
    {"ReconstructionFailedError", Raise<ReconstructionFailedError>},
    {"ObjectStoreFullError", Raise<ObjectStoreFullError>},
    {"OutOfDiskError", Raise<OutOfDiskError>},
    {"OutOfMemoryError", Raise<OutOfMemoryError>},
    {"NodeDiedError", Raise<NodeDiedError>},
    {"GetTimeoutError", Raise<GetTimeoutError>},
    {"UnschedulableError", Raise<UnschedulableError>},
    {"PendingCallsLimitExceeded", Raise<PendingCallsLimitExceeded>},
    {"RuntimeEnvSetupError", Raise<RuntimeEnvSetupError>},
    {"DeadlockError", Raise<DeadlockError>},
    {"AuthenticationError", Raise<AuthenticationError>},
    {"VersionMismatchError", Raise<VersionMismatchError>},
    {"ValueTypeError", Raise<ValueTypeError>},
};

const char* DescribeTag(int tag) {
  switch (static_cast<Tag>(tag)) {
    case Tag::kNone:
      return "None (the result of a void function)";
    case Tag::kFalse:
    case Tag::kTrue:
      return "a bool";
    case Tag::kInt8:
    case Tag::kInt64:
    case Tag::kBigInt:
      return "an integer";
    case Tag::kFloat:
      return "a floating-point number";
    case Tag::kString:
      return "a string";
    case Tag::kBytes:
      return "bytes";
    case Tag::kTuple:
      return "a tuple or struct";
    case Tag::kList:
      return "a list";
    case Tag::kDict:
      return "a map";
    case Tag::kReference:
    case Tag::kAgain:
      return "a reference";
    case Tag::kSet:
    case Tag::kFrozenSet:
      return "a set";
    default:
      return "something unknown";
  }
}

}  // namespace

void Throw(const Failure& failure) {
  if (failure.name == "TaskError") {
    throw TaskError(failure.type_name, failure.message, failure.function_name, failure.pid, failure.stack,
                    failure.bases);
  }
  for (const Thrower& thrower : kThrowers) {
    if (failure.name == thrower.name) thrower.raise(failure.message);
  }
  throw WeftError(failure.name == "WeftError" ? failure.message : failure.name + ": " + failure.message);
}

void ThrowCoreError(const core::Error& error) {
  switch (error.kind) {
    case core::ErrorKind::kFull:
      throw ObjectStoreFullError(error.message);
    case core::ErrorKind::kGone:
      throw ObjectLostError(error.message);
    default:
      throw WeftError(error.message);
  }
}

void ThrowSessionEnded(Runtime& runtime) {
  std::string why = runtime.why_stopped();
  throw WeftError("the session has ended (" + (why.empty() ? "it was shut down" : why) + ")");
}

void ThrowTimeout(Object* const* objects, size_t count, int64_t timeout_ns) {
  size_t pending = 0;
  for (size_t i = 0; i < count; ++i) pending += !IsResolved(objects[i]);
  char text[160];
  std::snprintf(text, sizeof text, "%zu of %zu objects were not ready after %g s; the tasks that make them go on",
                pending, count, static_cast<double>(timeout_ns) / 1e9);
  throw GetTimeoutError(text);
}

void ThrowNotOfType(const char* wanted, int tag) {
  throw ValueTypeError(std::string("the value is ") + DescribeTag(tag) + ", but " + wanted + " was asked for");
}
void ThrowOutOfRange(const char* wanted) {
  throw ValueTypeError(std::string("the value is an integer that does not fit into ") + wanted);
}
void ThrowMalformed() { throw ValueTypeError("an object's bytes are not a value"); }
void ThrowWrongFormat(uint8_t format) {
  if (format == kArrayFormat) throw ValueTypeError("the value is an array, but another type was asked for");
  if (format == 2) throw ValueTypeError("the value is a Python object that only Python can read");
  ThrowMalformed();
}
void ThrowWrongArray(std::string_view wanted, std::string_view found) {
  std::string text = "the value is an array with elements of type '";
  text.append(found).append("', but '").append(wanted).append("' was asked for");
  if (found.find('>') != std::string_view::npos) text.append(" ('>' is big-endian, which is not converted here)");
  throw ValueTypeError(text);
}
void ThrowWrongIndices(size_t wanted, size_t found) {
  throw std::invalid_argument("weft: the array has " + std::to_string(wanted) + " dimensions, but " +
                              std::to_string(found) + " indices were given");
}
void ThrowWrongLength(size_t wanted, size_t found) {
  throw ValueTypeError("the value has " + std::to_string(found) + " items, but the type asked for has " +
                       std::to_string(wanted));
}

void ThrowTooDeep(size_t limit) {
  throw ValueTypeError(
      "the value has more than " + std::to_string(limit) +
      " pointers in each other; a circle of pointers cannot be sent at all, and a long chain as a list");
}

}  // namespace weft::detail
