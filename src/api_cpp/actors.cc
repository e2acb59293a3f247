// Actors, for the templates actor<T> and Actor<T>.
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>

#include "api_cpp/actor_settings.h"
#include "api_cpp/cpp_runner.h"
#include "api_cpp/exports.h"
#include "api_cpp/identity.h"
#include "api_cpp/library_origin.h"
#include "api_cpp/submission.h"
#include "weft/actor.h"
#include "weft/errors.h"
#include "weft/python.h"
#include "wire/languages.h"

namespace weft::detail {

// In bytes: the format's byte, then the rest as a native tuple.
struct ActorInfo {
  std::string bytes;
  std::string class_name;  // as C++ writes it
  int32_t max_pending_calls = -1;
  int32_t max_task_retries = 0;
  bool retry_exceptions = false;
  bool is_python = false;  // then all but the bytes may be unknown
};

namespace {

// One for each class and set of options, so there are few.
const ActorInfo* InternInfo(std::string_view bytes) {
  static std::mutex mutex;
  static auto* known = new std::unordered_map<std::string, std::unique_ptr<ActorInfo>>();
  std::lock_guard lock(mutex);
  auto& info = (*known)[std::string(bytes)];
  if (!info) {
    auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    Decoder in(data + 1, data + bytes.size());
    auto made = std::make_unique<ActorInfo>();
    made->bytes = bytes;
    if (bytes.empty() || bytes[0] != core::kCppActor) {
      made->is_python = true;
      if (!bytes.empty() && bytes[0] == core::kImportedActor) {
        std::tie(std::ignore, made->class_name, made->max_pending_calls, made->max_task_retries,
                 made->retry_exceptions) = Codec<ImportedActorInfo>::Decode(in);
      }
      info = std::move(made);
      return info.get();
    }
    std::tie(made->class_name, made->max_pending_calls, made->max_task_retries, made->retry_exceptions, std::ignore,
             std::ignore) = Codec<ActorInfoFields>::Decode(in);
    info = std::move(made);
  }
  return info.get();
}

FoundActor Found(const Runtime::FoundActor& found, std::string_view class_name) {
  if (!found.handle) throw ActorDiedError("the actor has ended");
  try {
    return {found.handle, FindInfo(found.metadata, class_name)};
  } catch (...) {
    Using session;
    session.need().runtime->DropReference(found.handle);
    throw;
  }
}

[[noreturn]] void ThrowActorError(SessionState& state, const core::Error& error) {
  if (state.runtime->stopped()) ThrowSessionEnded(*state.runtime);
  if (error.kind == core::ErrorKind::kInvalid) throw std::invalid_argument("weft: " + error.message);
  ThrowCoreError(error);
}

std::string_view LastPart(std::string_view name) {
  size_t end = name.find('<');
  size_t colon = name.substr(0, end).rfind("::");
  return colon == std::string_view::npos ? name : name.substr(colon + 2);
}

// A method with these options, in the present session.
const core::TaskTemplate* BindCall(Runtime& runtime, const FunctionRecord& method, const ActorInfo* info,
                                   const CallOptions& options) {
  int retries = options.max_task_retries.value_or(info->max_task_retries);
  if (retries < -1) throw std::invalid_argument("weft: max_task_retries must be -1 (no limit), 0 or more");
  core::TaskTemplate what;
  what.kind = core::TemplateKind::kCall;
  auto function = runtime.InternFunction(KeyOf(method), std::string(method.name), BodyOf(method));
  if (!function) ThrowCoreError(function.error());
  what.function = *function;
  what.num_returns = method.num_returns;
  what.max_retries = retries;
  what.method = method.name;
  what.name = options.name.empty() ? std::string(method.name) : options.name;
  what.group = options.concurrency_group;
  if (options.retry_exceptions.value_or(info->retry_exceptions)) what.retry_exceptions.push_back('*');
  return runtime.InternTemplate(std::move(what), {});
}

void SubmitCallOf(SessionState& state, Object* handle, const ActorInfo* info, const core::TaskTemplate* what,
                  Encoder& arguments, Object** returns) {
  const size_t max_pending = info->max_pending_calls > 0 ? static_cast<size_t>(info->max_pending_calls) : 0;
  if (!state.runtime->SubmitCall(handle, what, {reinterpret_cast<const char*>(arguments.data()), arguments.size()},
                                 {arguments.dependencies.data(), arguments.dependencies.size()},
                                 {arguments.contained.data(), arguments.contained.size()}, max_pending, returns)) {
    throw PendingCallsLimitExceeded(std::to_string(max_pending) +
                                    " calls of this process to the actor are pending, as many as its "
                                    "max_pending_calls allows; '" +
                                    what->name +
                                    "' was not called. Wait for some of them (weft::wait) before calling again");
  }
}

const Bound* BindDefaultCall(Runtime& runtime, FunctionRecord& method, const ActorInfo* info, uint32_t epoch) {
  static std::mutex mutex;
  static auto* all = new std::deque<Bound>();  // never freed: another thread may be reading an old one
  // Actors of one class with different options may be called in turn: each is bound once.
  static auto* known = new std::map<std::pair<const FunctionRecord*, const ActorInfo*>, const Bound*>();
  std::lock_guard lock(mutex);
  const Bound*& bound = (*known)[{&method, info}];
  if (!bound || bound->epoch != epoch)
    bound = &all->emplace_back(Bound{BindCall(runtime, method, info, {}), info, epoch});
  method.bound.store(bound, std::memory_order_release);
  return bound;
}

}  // namespace

ActorMethod DescribeMethod(const Export& method) {
  std::string parameters;
  for (const std::string& kind : method.parameters) parameters += kind == "weft.ObjectRef" ? 'r' : 'v';
  return {method.name, method.record->num_returns, std::move(parameters)};
}

std::string PackActorInfo(const ActorInfoFields& content) {
  Encoder out;
  out.Byte(kNativeFormat);
  Codec<ActorInfoFields>::Encode(out, content);
  return std::string(reinterpret_cast<const char*>(out.data()), out.size());
}

std::string PackActorSettings(const ActorSettings& settings) {
  Encoder out;
  Codec<ActorSettings>::Encode(out, settings);
  return std::string(reinterpret_cast<const char*>(out.data()), out.size());
}

const ActorInfo* FindInfo(std::string_view bytes, std::string_view class_name) {
  const ActorInfo* info = InternInfo(bytes);
  if (info->is_python) throw ValueTypeError("this is a handle of a Python actor: take it as a weft::python::Actor");
  if (info->class_name != class_name) {
    throw ValueTypeError("the actor is a " + info->class_name + ", but a handle of a " + std::string(class_name) +
                         " was asked for");
  }
  return info;
}

const ActorInfo* InternAnyInfo(std::string_view bytes) { return InternInfo(bytes); }

std::string_view BytesOf(const ActorInfo* info) noexcept { return info->bytes; }

namespace {

void CheckOptions(const ActorOptions& options) {
  auto check = [](bool right, const char* text) {
    if (!right) throw std::invalid_argument(std::string("weft: ") + text);
  };
  check(options.max_restarts >= -1, "max_restarts must be -1 (no limit), 0 or more");
  check(options.max_task_retries >= -1, "max_task_retries must be -1 (no limit), 0 or more");
  check(options.max_concurrency >= 1, "max_concurrency must be at least 1");
  check(options.max_pending_calls == -1 || options.max_pending_calls >= 1,
        "max_pending_calls must be -1 (no limit), 1 or more");
  check(!options.get_if_exists || !options.name.empty(), "get_if_exists needs a name");
  for (const auto& [group, size] : options.concurrency_groups) {
    check(!group.empty() && size >= 1, "a concurrency group needs a name and room for at least 1 call");
  }
}

// `constructor`: its name, options and function; this fills in what is the same for all classes.
Runtime::FoundActor Create(SessionState& state, core::TaskTemplate constructor, const ActorOptions& options,
                           bool in_python, std::string_view class_name, const std::string& info, Encoder& arguments) {
  Runtime::ActorRequest request;
  request.to_hold =
      ShapeOf(options.num_cpus.value_or(0), options.num_gpus, options.memory, options.resources, in_python);
  request.to_place =
      ShapeOf(options.num_cpus.value_or(1), options.num_gpus, options.memory, options.resources, in_python);
  AddPlacement(request.to_place, options.scheduling_strategy, options.label_selector);
  constructor.kind = core::TemplateKind::kCreation;
  constructor.num_returns = 0;
  constructor.max_retries = 0;
  request.constructor = state.runtime->InternTemplate(std::move(constructor), request.to_hold);
  request.arguments = {reinterpret_cast<const char*>(arguments.data()), arguments.size()};
  request.dependencies = {arguments.dependencies.data(), arguments.dependencies.size()};
  request.contained = {arguments.contained.data(), arguments.contained.size()};
  request.max_restarts = options.max_restarts;
  request.detached = options.detached;
  request.get_if_exists = options.get_if_exists;
  request.out_of_order = options.allow_out_of_order_execution;
  request.name = options.name;
  request.name_space = options.name_space.value_or(state.name_space);
  request.class_name = class_name;
  request.metadata = info;
  auto made = state.runtime->CreateActor(request);
  if (!made) ThrowActorError(state, made.error());
  return *made;
}

std::vector<std::pair<std::string, uint32_t>> GroupsOf(const ActorOptions& options) {
  std::vector<std::pair<std::string, uint32_t>> groups;
  for (const auto& [group, size] : options.concurrency_groups) groups.emplace_back(group, static_cast<uint32_t>(size));
  return groups;
}

}  // namespace

FoundActor CreateActor(FunctionRecord& constructor, std::string_view class_name, const ActorOptions& options,
                       Encoder& arguments) {
  Using session;
  SessionState& state = session.need();
  CheckOptions(options);
  const ExportedClass exported = FindExportedClass(*constructor.type);
  std::vector<ActorMethod> methods;
  for (const Export* method : exported.methods) methods.push_back(DescribeMethod(*method));
  std::string bytes = PackActorInfo({std::string(class_name), options.max_pending_calls, options.max_task_retries,
                                     options.retry_exceptions, exported.name, std::move(methods)});
  const ActorInfo* info = InternInfo(bytes);
  core::TaskTemplate what;
  what.name = std::string(class_name).append("::").append(LastPart(class_name));
  what.actor_options =
      PackActorSettings({static_cast<uint32_t>(options.max_concurrency), GroupsOf(options), options.name, bytes});
  auto function = state.runtime->InternFunction(KeyOf(constructor), std::string(constructor.name), BodyOf(constructor));
  if (!function) ThrowCoreError(function.error());
  what.function = *function;
  auto made = Create(state, std::move(what), options, false, class_name, bytes, arguments);
  return made.metadata.empty() ? FoundActor{made.handle, info} : Found(made, class_name);
}

FoundActor CreatePythonActor(const std::string& module, const std::string& name, const ActorOptions& options,
                             Encoder& arguments) {
  Using session;
  SessionState& state = session.need();
  CheckOptions(options);
  Encoder info;
  info.Byte(core::kImportedActor);
  Codec<ImportedActorInfo>::Encode(
      info, {module, name, options.max_pending_calls, options.max_task_retries, options.retry_exceptions});
  std::string bytes(reinterpret_cast<const char*>(info.data()), info.size());
  Encoder settings;
  settings.Byte(core::kImportedActor);
  // 1 is left to the class: 1, or many if it has coroutines.
  const uint32_t limit = options.max_concurrency == 1 ? 0 : static_cast<uint32_t>(options.max_concurrency);
  Codec<ImportedActorSettings>::Encode(
      settings, {name, limit, GroupsOf(options), options.name, options.name_space.value_or(state.name_space)});
  core::TaskTemplate what;
  what.name = name + ".__init__";
  const auto size = static_cast<uint32_t>(settings.size());
  what.actor_options.append(reinterpret_cast<const char*>(&size), sizeof size);
  what.actor_options.append(reinterpret_cast<const char*>(settings.data()), settings.size());
  what.actor_options += bytes;
  what.function = PythonFunction(*state.runtime, module, name);
  auto made = Create(state, std::move(what), options, NeedsPythonWorker(state), name, bytes, arguments);
  return {made.handle, InternInfo(made.metadata.empty() ? bytes : made.metadata)};
}

FoundActor LookupPythonActor(const std::string& name, const std::string* name_space) {
  Using session;
  SessionState& state = session.need();
  auto found = state.runtime->LookupActor(name, name_space ? *name_space : state.name_space);
  if (!found) ThrowActorError(state, found.error());
  if (!found->handle) throw ActorDiedError("the actor has ended");
  return {found->handle, InternInfo(found->metadata)};
}

void SubmitPythonCall(Object* handle, const ActorInfo* info, std::string_view method, uint32_t num_returns,
                      const CallOptions& options, Encoder& arguments, Object** returns) {
  Using session;
  SessionState& state = session.need();
  core::TaskTemplate what;
  what.kind = core::TemplateKind::kCall;
  auto function = state.runtime->InternFunction(core::kNativeCall, "", "");
  if (!function) ThrowCoreError(function.error());
  what.function = *function;
  what.num_returns = num_returns;
  what.max_retries = options.max_task_retries.value_or(info->max_task_retries);
  what.method = method;
  what.name = !options.name.empty()      ? options.name
              : info->class_name.empty() ? std::string(method)
                                         : info->class_name + "." + std::string(method);
  what.group = options.concurrency_group;
  if (options.retry_exceptions.value_or(info->retry_exceptions)) what.retry_exceptions.push_back('*');
  SubmitCallOf(state, handle, info, state.runtime->InternTemplate(std::move(what), {}), arguments, returns);
}

FoundActor LookupActor(const std::string& name, const std::string* name_space, std::string_view class_name) {
  Using session;
  SessionState& state = session.need();
  auto found = state.runtime->LookupActor(name, name_space ? *name_space : state.name_space);
  if (!found) ThrowActorError(state, found.error());
  return Found(*found, class_name);
}

FoundActor CurrentActor(std::string_view class_name) {
  Using session;
  SessionState& state = session.need();
  if (!g_runner || !g_runner->is_actor()) throw WeftError("current_actor was asked for outside of an actor");
  return Found({state.runtime->FindReference(g_runner->executor()->lease().actor), g_runner->info_bytes()}, class_name);
}

void SubmitCall(FunctionRecord& method, Object* handle, const ActorInfo* info, const CallOptions* options,
                Encoder& arguments, Object** returns) {
  Using session;
  SessionState& state = session.need();
  const core::TaskTemplate* what;
  if (options) [[unlikely]] {
    what = BindCall(*state.runtime, method, info, *options);
  } else {
    const Bound* bound = method.bound.load(std::memory_order_acquire);
    if (!bound || bound->epoch != state.epoch || bound->info != info) [[unlikely]]
      bound = BindDefaultCall(*state.runtime, method, info, state.epoch);
    what = bound->what;
  }
  SubmitCallOf(state, handle, info, what, arguments, returns);
}

void KillActor(Object* handle, bool no_restart) {
  Using session;
  session.need().runtime->KillActor(handle, no_restart);
}

void Cancel(Object* object, bool force, bool recursive) {
  Using session;
  Runtime& runtime = *session.need().runtime;
  if (force && runtime.IsCall(object)) {
    throw std::invalid_argument(
        "weft::cancel: force is for tasks: it would end the actor with all its calls; cancel without force, or "
        "weft::kill(actor)");
  }
  runtime.Cancel(object, force, recursive);
}

}  // namespace weft::detail

namespace weft {

std::vector<NamedActor> list_named_actors(bool all_namespaces) {
  detail::Using session;
  detail::SessionState& state = session.need();
  auto found = state.runtime->ListActors(all_namespaces, state.name_space);
  if (!found) detail::ThrowActorError(state, found.error());
  std::vector<NamedActor> actors;
  for (auto& [name_space, name] : *found) actors.push_back({std::move(name), std::move(name_space)});
  return actors;
}

void exit_actor() {
  if (!detail::g_runner || !detail::g_runner->is_actor()) {
    throw WeftError("exit_actor() was called outside of an actor");
  }
  throw detail::ActorExit{};
}

}  // namespace weft
