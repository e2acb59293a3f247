// Actors: an object in a process of its own, whose methods are called from anywhere and run one after another.
//
//   struct Counter {
//     explicit Counter(int start);
//     int increment(int by);
//   };
//   Actor<Counter> c = actor<Counter>(10);                        // at once; the constructor runs in its process
//   Actor<Counter> d = actor<Counter>.with({.name = "d", .max_restarts = 3})(0);
//   Ref<int> n = c.call<&Counter::increment>(2);                  // remote<&Counter::increment>(c, 2) is the same
//
// Calls of one caller run in the order in which they were made. A handle is a value: it can be copied, passed to tasks
// and other actors, returned and put. The actor ends when the last handle is gone and the calls have run, unless it is
// detached; then its destructor runs.
//
// A constructor's arguments keep their types: numbers, strings, containers. A Ref<T> among them arrives as its value if
// the class can be made from that, otherwise as the reference itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/remote.h"

namespace weft {

struct ActorOptions {
  std::optional<double> num_cpus = std::nullopt;  // held for life; unless set, 1 to find a place and then none
  double num_gpus = 0;
  double memory = 0;                                           // bytes, for scheduling
  std::vector<std::pair<std::string, double>> resources = {};  // your own, as declared in init
  int max_restarts = 0;           // after a crash; the constructor runs again; -1: no limit
  int max_task_retries = 0;       // of calls that a crash interrupted, if the actor restarts; -1: no limit
  bool retry_exceptions = false;  // also retry calls that throw
  int max_concurrency = 1;        // calls at once, each on a thread of its own
  std::vector<std::pair<std::string, int>> concurrency_groups = {};  // calls at once in each (CallOptions)
  int max_pending_calls = -1;                                        // of one process; -1: any number
  std::string name = {};                                             // for get_actor
  std::optional<std::string> name_space = std::nullopt;              // of the name; the session's unless set
  bool detached = false;                                             // lives until it is killed, even without handles
  bool get_if_exists = false;                                        // an actor of that name instead of a new one
  bool allow_out_of_order_execution = false;  // a call that waits for its arguments lets later ones pass
  SchedulingStrategy scheduling_strategy = Default{};
  LabelSelector label_selector = {};
};

template <class T>
class Actor;

namespace detail {

template <class T, auto F>
struct MethodBody {
  using Result = std::remove_cv_t<typename SignatureOf<decltype(F)>::Result>;
  using Parameters = typename SignatureOf<decltype(F)>::Parameters;
  static constexpr FunctionRecord::Kind kKind = FunctionRecord::kMethod;
  static constexpr const std::type_info* Type() { return &typeid(T); }
  static constexpr std::string_view Name() { return FunctionName<F>(); }
  template <class... P>
  static decltype(auto) Invoke(Instance& instance, P&&... parameters) {
    auto method = F;
    asm("" : "+m"(method));  // as OpaquePointer
    return (static_cast<T*>(instance.object)->*method)(std::forward<P>(parameters)...);
  }
};

template <class T, class... P>
constexpr bool CanMake() {
  return std::is_constructible_v<T, P...> || requires { T{std::declval<P>()...}; };
}

template <class T, class... P>
struct ConstructorBody {
  using Result = void;
  using Parameters = std::tuple<P...>;
  static constexpr FunctionRecord::Kind kKind = FunctionRecord::kConstructor;
  static constexpr const std::type_info* Type() { return &typeid(T); }
  static constexpr std::string_view Name() { return TypeName<T>(); }
  template <class... G>
  static void Invoke(Instance& instance, G&&... given) {
    if constexpr (std::is_constructible_v<T, G...>) {
      instance.object = new T(std::forward<G>(given)...);
    } else {
      instance.object = new T{std::forward<G>(given)...};
    }
    instance.type = &typeid(T);
    instance.destroy = [](void* object) { delete static_cast<T*>(object); };
  }
};

// The type as which an argument of a constructor arrives.
template <class A>
struct Arriving {
  using Type = A;
};
template <>
struct Arriving<const char*> {
  using Type = std::string;
};
template <>
struct Arriving<char*> {
  using Type = std::string;
};
template <>
struct Arriving<std::string_view> {
  using Type = std::string;
};
template <class T>
struct Arriving<Array<T>> {
  using Type = Array<const T>;
};
template <class T>
struct Arriving<Array<const T>> {
  using Type = Array<const T>;
};
template <class T, size_t N>
struct Arriving<std::span<T, N>> {
  using Type = std::span<const T>;
};
template <class T>
struct ArrivingValue : Arriving<T> {};
template <class T>
struct ArrivingValue<Ref<T>> : Arriving<T> {};

template <class T, class... A>
constexpr auto ChooseConstructor() {
  if constexpr (CanMake<T, typename ArrivingValue<std::decay_t<A>>::Type...>()) {
    return std::type_identity<ConstructorBody<T, typename ArrivingValue<std::decay_t<A>>::Type...>>{};
  } else if constexpr (CanMake<T, typename Arriving<std::decay_t<A>>::Type...>()) {
    return std::type_identity<ConstructorBody<T, typename Arriving<std::decay_t<A>>::Type...>>{};
  } else {
    return std::type_identity<void>{};
  }
}

struct ActorAccess {
  template <class T>
  static Actor<T> Make(const FoundActor& found, uint32_t epoch) {
    Actor<T> actor;
    actor.object_ = found.handle;
    actor.info_ = found.info;
    actor.epoch_ = epoch;
    return actor;
  }
  template <class T>
  static core::Object* Checked(const Actor<T>& actor) {
    CheckEpoch(actor.object_, actor.epoch_);
    return actor.object_;
  }
  template <class T>
  static const ActorInfo* info(const Actor<T>& actor) {
    return actor.info_;
  }
};

template <class T, class... A>
Actor<T> MakeActor(const ActorOptions& options, A&&... arguments);

}  // namespace detail

// A handle of an actor.
template <class T>
class Actor {
 public:
  Actor() = default;  // names nothing
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

  template <auto F, class... A>
  auto call(A&&... arguments) const {
    return detail::CallOnActor<F>(nullptr, *this, std::forward<A>(arguments)...);
  }

 private:
  friend struct detail::ActorAccess;
  core::Object* object_ = nullptr;
  const detail::ActorInfo* info_ = nullptr;
  uint32_t epoch_ = 0;
};

// A handle inside a value stays a handle.
template <class T>
struct Codec<Actor<T>> {
  static void Encode(Encoder& out, const Actor<T>& actor) {
    out.Handle(detail::ActorAccess::Checked(actor), detail::BytesOf(detail::ActorAccess::info(actor)));
  }
  static Actor<T> Decode(Decoder& in) {
    detail::Tag tag = in.NextTag();
    if (tag != detail::Tag::kHandle) detail::ThrowNotOfType("an actor's handle", static_cast<int>(tag));
    auto owner = in.Fixed<uint64_t>();
    auto index = in.Fixed<uint64_t>();
    std::string_view bytes = in.Raw(in.Fixed<uint32_t>());
    const detail::ActorInfo* info = detail::FindInfo(bytes, detail::TypeName<T>());
    return detail::ActorAccess::Make<T>({detail::FindReference(owner, index), info}, detail::CurrentEpoch());
  }
};

namespace detail {

template <auto F, class T, class... A>
auto CallOnActor(const CallOptions* options, const Actor<T>& actor, A&&... arguments) {
  if constexpr (!kIsMethod<F>) {
    static_assert(kNever<Remote<F>>, "weft: Actor<T>::call<f>: f must be a member function of T, as in &T::method");
    return Ref<void>();
  } else {
    constexpr bool fits = std::is_base_of_v<typename SignatureOf<decltype(F)>::Class, T>;
    static_assert(fits, "weft: this is a member function of another class than the actor's");
    if constexpr (fits) {
      return CheckedCall<MethodBody<T, F>>(
          [&](FunctionRecord& record, Encoder& encoder, core::Object** objects) {
            SubmitCall(record, ActorAccess::Checked(actor), ActorAccess::info(actor), options, encoder, objects);
          },
          std::forward<A>(arguments)...);
    } else {
      return Ref<void>();
    }
  }
}

template <class Body, class T, class... A, size_t... I>
Actor<T> Create(const ActorOptions& options, std::index_sequence<I...>, A&&... arguments) {
  Using session;
  uint32_t epoch = session.epoch();
  Encoder encoder;
  encoder.Fixed(uint32_t{sizeof...(A)});
  encoder.Fixed(uint32_t{0});
  (EncodeArgument<std::tuple_element_t<I, typename Body::Parameters>>(encoder, std::forward<A>(arguments)), ...);
  return ActorAccess::Make<T>(CreateActor(Registered<Body>::record, TypeName<T>(), options, encoder), epoch);
}

template <class T, class... A>
Actor<T> MakeActor(const ActorOptions& options, A&&... arguments) {
  static_assert(std::is_class_v<T> && std::is_same_v<T, std::remove_cvref_t<T>>,
                "weft::actor<T>: T must be a class or struct");
  static_assert(!std::is_abstract_v<T>, "weft::actor<T>: T is abstract: it has pure virtual functions");
  constexpr bool sent = !(kStays<std::remove_cvref_t<A>> || ...);
  static_assert(sent,
                "weft::actor<T>(...): an argument can be neither copied nor moved (it is, or has, a std::mutex, a "
                "std::atomic or the like), so it cannot be sent to the actor's process: let the actor make its own");
  using Body = typename decltype(ChooseConstructor<T, A...>())::type;
  static_assert(!std::is_void_v<Body>,
                "weft::actor<T>(...): T has no constructor that takes these arguments, nor the values of the Refs "
                "among them");
  if constexpr (std::is_void_v<Body> || std::is_abstract_v<T> || !sent) {
    return {};
  } else {
    return Create<Body, T>(options, std::index_sequence_for<A...>{}, std::forward<A>(arguments)...);
  }
}

template <class T>
class MakerWith {
 public:
  explicit MakerWith(ActorOptions options) : options_(std::move(options)) {}
  template <class... A>
  Actor<T> operator()(A&&... arguments) const {
    return MakeActor<T>(options_, std::forward<A>(arguments)...);
  }

 private:
  ActorOptions options_;
};

template <class T>
struct Maker {
  template <class... A>
  Actor<T> operator()(A&&... arguments) const {
    return MakeActor<T>({}, std::forward<A>(arguments)...);
  }
  MakerWith<T> with(ActorOptions options) const { return MakerWith<T>(std::move(options)); }
};

}  // namespace detail

// actor<T>(arguments...) makes an actor.
template <class T>
inline constexpr detail::Maker<T> actor{};

// The actor of that name; throws std::invalid_argument if there is none.
template <class T>
Actor<T> get_actor(const std::string& name) {
  detail::Using session;
  uint32_t epoch = session.epoch();
  return detail::ActorAccess::Make<T>(detail::LookupActor(name, nullptr, detail::TypeName<T>()), epoch);
}
template <class T>
Actor<T> get_actor(const std::string& name, const std::string& name_space) {
  detail::Using session;
  uint32_t epoch = session.epoch();
  return detail::ActorAccess::Make<T>(detail::LookupActor(name, &name_space, detail::TypeName<T>()), epoch);
}
struct NamedActor {
  std::string name, name_space;
};
// Those of the session's namespace, or all.
std::vector<NamedActor> list_named_actors(bool all_namespaces = false);

// In an actor: a handle of itself. Throws WeftError elsewhere.
template <class T>
Actor<T> current_actor() {
  detail::Using session;
  uint32_t epoch = session.epoch();
  return detail::ActorAccess::Make<T>(detail::CurrentActor(detail::TypeName<T>()), epoch);
}
// In a method: ends the actor, without a restart, after this call, which fails with ActorDiedError.
[[noreturn]] void exit_actor();

// Ends the actor at once; pending calls fail with ActorDiedError. no_restart = false: like a crash, so it may restart.
struct KillOptions {
  bool no_restart = true;
};
template <class T>
void kill(const Actor<T>& actor, const KillOptions& options = {}) {
  detail::KillActor(detail::ActorAccess::Checked(actor), options.no_restart);
}

// Cancels the task or call that makes this object: it does not begin, or is asked to end (this_task::is_cancelled;
// waits for objects end at once). get then throws TaskCancelledError. force: ends its process (tasks only).
struct CancelOptions {
  bool force = false;
  bool recursive = true;  // also cancels what it has started
};
template <class T>
void cancel(const Ref<T>& ref, const CancelOptions& options = {}) {
  detail::Cancel(detail::RefAccess::Checked(ref), options.force, options.recursive);
}

}  // namespace weft
