// Python functions and classes from C++, by module and name. Included apart from weft.h.
//
//   auto norm = weft::python::function<double>("numpy.linalg", "norm");
//   Ref<double> n = norm(array_ref);                          // an array arrives as a NumPy array, without a copy
//   auto c = weft::python::actor("counters", "Counter")(10);
//   Ref<int> v = c.call<int>("increment", 2);
//
// They run in Python workers, which start when they are first needed: `python3` (or InitOptions::python, or
// WEFT_PYTHON) must have weft installed. Modules are found from the driver's working directory and PYTHONPATH. Results
// arrive as the requested C++ type, or get throws ValueTypeError; exceptions arrive as TaskError with Python's
// traceback in stack(). A Ref among the arguments arrives as its value.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "weft/actor.h"

namespace weft {
namespace python {
class Actor;
}

namespace detail {

// A Python function with its options, bound in each session when it is first called.
struct PythonTarget;
std::shared_ptr<PythonTarget> NewPythonFunction(std::string module, std::string name, uint32_t num_returns,
                                                TaskOptions options);
void SubmitPython(PythonTarget& target, Encoder& arguments, core::Object** returns);
FoundActor CreatePythonActor(const std::string& module, const std::string& name, const ActorOptions& options,
                             Encoder& arguments);
FoundActor LookupPythonActor(const std::string& name, const std::string* name_space);
const ActorInfo* InternAnyInfo(std::string_view bytes);
void SubmitPythonCall(core::Object* handle, const ActorInfo* info, std::string_view method, uint32_t num_returns,
                      const CallOptions& options, Encoder& arguments, core::Object** returns);

template <class... A>
void EncodePython(Encoder& out, A&&... arguments) {
  out.Fixed(uint32_t{sizeof...(A)});
  out.Fixed(uint32_t{0});
  (EncodeArgument<typename ArrivingValue<std::decay_t<A>>::Type>(out, std::forward<A>(arguments)), ...);
}

struct PythonAccess;

}  // namespace detail

namespace python {

// R is the type that it returns; weft::Returns<A, B> if it returns two values, each an object of its own.
template <class R>
class Function {
 public:
  Function(std::string module, std::string name, TaskOptions options = {})
      : target_(detail::NewPythonFunction(std::move(module), std::move(name), detail::ResultOf<R>::kCount,
                                          std::move(options))) {}
  template <class... A>
  typename detail::ResultOf<R>::Type operator()(A&&... arguments) const {
    detail::Using session;
    uint32_t epoch = session.epoch();
    Encoder encoder;
    detail::EncodePython(encoder, std::forward<A>(arguments)...);
    core::Object* objects[detail::ResultOf<R>::kCount];
    detail::SubmitPython(*target_, encoder, objects);
    return detail::ResultOf<R>::Make(objects, epoch);
  }

 private:
  std::shared_ptr<detail::PythonTarget> target_;
};

template <class R>
Function<R> function(std::string module, std::string name, TaskOptions options = {}) {
  return Function<R>(std::move(module), std::move(name), std::move(options));
}

// A handle of a Python actor, even of one that Python has made, passed as an argument or found by name.
class Actor {
 public:
  Actor() = default;
  Actor(const Actor& other) noexcept : object_(other.object_), info_(other.info_), epoch_(other.epoch_) {
    if (object_) detail::AddReference(object_, epoch_);
  }
  Actor(Actor&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)), info_(other.info_), epoch_(other.epoch_) {}
  Actor& operator=(Actor other) noexcept {
    std::swap(object_, other.object_);
    std::swap(info_, other.info_);
    std::swap(epoch_, other.epoch_);
    return *this;
  }
  ~Actor() {
    if (object_) detail::DropReference(object_, epoch_);
  }
  explicit operator bool() const noexcept { return object_ != nullptr; }
  friend bool operator==(const Actor& a, const Actor& b) noexcept {
    return a.object_ == b.object_ && a.epoch_ == b.epoch_;
  }

  template <class R, class... A>
  typename detail::ResultOf<R>::Type call(std::string_view method, A&&... arguments) const {
    return call_with<R>({}, method, std::forward<A>(arguments)...);
  }
  template <class R, class... A>
  typename detail::ResultOf<R>::Type call_with(const CallOptions& options, std::string_view method,
                                               A&&... arguments) const {
    detail::CheckEpoch(object_, epoch_);
    Encoder encoder;
    detail::EncodePython(encoder, std::forward<A>(arguments)...);
    core::Object* objects[detail::ResultOf<R>::kCount];
    detail::SubmitPythonCall(object_, info_, method, detail::ResultOf<R>::kCount, options, encoder, objects);
    return detail::ResultOf<R>::Make(objects, epoch_);
  }

 private:
  friend struct detail::PythonAccess;
  core::Object* object_ = nullptr;
  const detail::ActorInfo* info_ = nullptr;
  uint32_t epoch_ = 0;
};

}  // namespace python

namespace detail {

struct PythonAccess {
  static python::Actor Make(const FoundActor& found, uint32_t epoch) {
    python::Actor actor;
    actor.object_ = found.handle;
    actor.info_ = found.info;
    actor.epoch_ = epoch;
    return actor;
  }
  static core::Object* Checked(const python::Actor& actor) {
    CheckEpoch(actor.object_, actor.epoch_);
    return actor.object_;
  }
  static const ActorInfo* info(const python::Actor& actor) { return actor.info_; }
};

}  // namespace detail

namespace python {

// Makes actors of a class: actor("module", "Class")(arguments...).
class Class {
 public:
  Class(std::string module, std::string name, ActorOptions options)
      : module_(std::move(module)), name_(std::move(name)), options_(std::move(options)) {}
  template <class... A>
  Actor operator()(A&&... arguments) const {
    detail::Using session;
    uint32_t epoch = session.epoch();
    Encoder encoder;
    detail::EncodePython(encoder, std::forward<A>(arguments)...);
    return detail::PythonAccess::Make(detail::CreatePythonActor(module_, name_, options_, encoder), epoch);
  }

 private:
  std::string module_, name_;
  ActorOptions options_;
};

inline Class actor(std::string module, std::string name, ActorOptions options = {}) {
  return Class(std::move(module), std::move(name), std::move(options));
}

inline Actor get_actor(const std::string& name) {
  detail::Using session;
  uint32_t epoch = session.epoch();
  return detail::PythonAccess::Make(detail::LookupPythonActor(name, nullptr), epoch);
}
inline Actor get_actor(const std::string& name, const std::string& name_space) {
  detail::Using session;
  uint32_t epoch = session.epoch();
  return detail::PythonAccess::Make(detail::LookupPythonActor(name, &name_space), epoch);
}

}  // namespace python

inline void kill(const python::Actor& actor, const KillOptions& options = {}) {
  detail::KillActor(detail::PythonAccess::Checked(actor), options.no_restart);
}

template <>
struct Codec<python::Actor> {
  static void Encode(Encoder& out, const python::Actor& actor) {
    out.Handle(detail::PythonAccess::Checked(actor), detail::BytesOf(detail::PythonAccess::info(actor)));
  }
  static python::Actor Decode(Decoder& in) {
    detail::Tag tag = in.NextTag();
    if (tag != detail::Tag::kHandle) detail::ThrowNotOfType("an actor's handle", static_cast<int>(tag));
    auto owner = in.Fixed<uint64_t>();
    auto index = in.Fixed<uint64_t>();
    std::string_view bytes = in.Raw(in.Fixed<uint32_t>());
    const detail::ActorInfo* info = detail::InternAnyInfo(bytes);
    return detail::PythonAccess::Make({detail::FindReference(owner, index), info}, detail::CurrentEpoch());
  }
};

}  // namespace weft
