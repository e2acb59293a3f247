// remote<f>(args...): runs f as a task in a worker process and returns at once with a Ref to its result.
//
//   int plus(int a, int b);
//   Ref<int> s = remote<plus>(1, 2);
//   Ref<int> t = remote<plus>.with({.num_cpus = 2, .max_retries = 0})(s, 3);
//
// f is a function, a static member function or a lambda without captures (in a constexpr variable); of several
// overloads name one by a cast. A member function is called on an actor: remote<&Counter::increment>(counter, 2). An
// argument is anything that converts to the parameter, or a Ref to it: the task then starts when the value is there. A
// parameter of type Ref<T> asks for the reference itself. A parameter of type std::span<const T> or Array<const T>
// reads the array in place. A Returns<A, B> gives a Ref for each; void gives a Ref<void>.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "weft/ref.h"

namespace weft {

// Several results, each an object of its own (a std::tuple is one object).
template <class... T>
struct Returns : std::tuple<T...> {
  using std::tuple<T...>::tuple;
};

// Where tasks and actors run, beyond their resources.
struct Default {};  // on the submitter's node while it has room
struct Spread {};   // in turn: each on the node that was chosen least recently
struct NodeAffinity {
  std::string node_id;  // NodeInfo::id or Context::node_id
  bool soft = false;    // another node if that one has gone or is too small; otherwise UnschedulableError
};
using SchedulingStrategy = std::variant<Default, Spread, NodeAffinity>;
// What the labels of the node must be: {{"zone", "eu"}, {"disk", "in(ssd,nvme)"}, {"gpu", "!a100"}, {"rack", "*"}}.
using LabelSelector = std::vector<std::pair<std::string, std::string>>;

struct TaskOptions {
  std::optional<double> num_cpus = std::nullopt;  // 1 unless set; may be a fraction
  double num_gpus = 0;
  double memory = 0;                                           // bytes, for scheduling
  std::vector<std::pair<std::string, double>> resources = {};  // your own, as declared in init
  std::optional<int> max_retries = std::nullopt;  // after a crash of the worker; 3 unless set; -1: no limit
  bool retry_exceptions = false;                  // also retry if the function throws
  std::string name = {};                          // for messages; the function's unless set
  SchedulingStrategy scheduling_strategy = Default{};
  LabelSelector label_selector = {};
};

// Options of one call of an actor's method; unset ones are as in the actor's options.
struct CallOptions {
  std::optional<int> max_task_retries = std::nullopt;   // after a crash of the actor, if it restarts; -1: no limit
  std::optional<bool> retry_exceptions = std::nullopt;  // also retry if the method throws
  std::string concurrency_group = {};
  std::string name = {};  // for messages; the method's unless set
};

template <auto F>
struct Remote;
template <class T>
class Actor;

namespace detail {

// ---- what a function looks like

template <class F>
struct SignatureOf;
template <class R, class... P>
struct SignatureOf<R (*)(P...)> {
  using Result = R;
  using Parameters = std::tuple<P...>;  // a list of types only
  static constexpr size_t kCount = sizeof...(P);
};
template <class R, class... P>
struct SignatureOf<R (*)(P...) noexcept> : SignatureOf<R (*)(P...)> {};
template <class R, class C, class... P>
struct SignatureOf<R (C::*)(P...)> : SignatureOf<R (*)(P...)> {
  using Class = C;
};
template <class R, class C, class... P>
struct SignatureOf<R (C::*)(P...) const> : SignatureOf<R (C::*)(P...)> {};
template <class R, class C, class... P>
struct SignatureOf<R (C::*)(P...) noexcept> : SignatureOf<R (C::*)(P...)> {};
template <class R, class C, class... P>
struct SignatureOf<R (C::*)(P...) const noexcept> : SignatureOf<R (C::*)(P...)> {};
template <class R, class C, class... P>
struct SignatureOf<R (C::*)(P...) &> : SignatureOf<R (C::*)(P...)> {};
template <class R, class C, class... P>
struct SignatureOf<R (C::*)(P...) const&> : SignatureOf<R (C::*)(P...)> {};

// A lambda without captures becomes a function pointer.
template <auto F>
constexpr auto FunctionPointer() {
  return +F;
}
template <class P>
inline constexpr bool kIsFunctionPointer = std::is_pointer_v<P> && std::is_function_v<std::remove_pointer_t<P>>;
template <auto F>
constexpr bool IsFunction() {
  if constexpr (requires { +F; }) {
    return kIsFunctionPointer<decltype(+F)>;
  } else {
    return false;
  }
}

// The same, in a way that the compiler cannot inline: the function stays a function, with a line in the stack of an
// exception.
template <auto F>
auto OpaquePointer() {
  auto* pointer = FunctionPointer<F>();
  asm("" : "+r"(pointer));
  return pointer;
}

template <auto F>
using Signature = SignatureOf<decltype(FunctionPointer<F>())>;

// The template parameter's text after `mark` in __PRETTY_FUNCTION__.
constexpr std::string_view NameIn(std::string_view text, std::string_view mark) {
  size_t begin = text.find(mark);
  if (begin == std::string_view::npos) return text;
  text.remove_prefix(begin + mark.size());
  if (text.starts_with("& ")) text.remove_prefix(2);
  if (text.starts_with("&")) text.remove_prefix(1);
  size_t depth = 0, end = 0;
  for (; end < text.size(); ++end) {
    char c = text[end];
    if (c == '<' || c == '(' || c == '[' || c == '{') ++depth;
    if (depth == 0 && (c == ']' || c == ';')) break;
    if (c == '>' || c == ')' || c == ']' || c == '}') --depth;
  }
  return text.substr(0, end);
}
// "plus" or "{anonymous}::plus", for messages.
template <auto F>
constexpr std::string_view FunctionName() {
  return NameIn(__PRETTY_FUNCTION__, "F = ");
}
template <class T>
constexpr std::string_view TypeName() {
  return NameIn(__PRETTY_FUNCTION__, "T = ");
}

// ---- parameters: what is kept of one between decoding and the call

template <class T>
inline constexpr bool kIsRef = false;
template <class T>
inline constexpr bool kIsRef<Ref<T>> = true;

template <class P>
struct Parameter {
  using Value = std::remove_cvref_t<P>;  // the type that travels
  using Kept = Value;
  static P Pass(Kept& kept) {
    if constexpr (std::is_lvalue_reference_v<P>) {
      return kept;
    } else {
      return std::move(kept);
    }
  }
};
template <class T>
struct Parameter<std::span<const T>> {
  using Value = std::span<const T>;
  using Kept = Array<const T>;
  static std::span<const T> Pass(Kept& kept) { return kept; }
};
template <>
struct Parameter<std::string_view> {
  using Value = std::string;
  using Kept = std::string;
  static std::string_view Pass(Kept& kept) { return kept; }
};
// Views by reference are views too.
template <class T>
struct Parameter<const std::span<const T>&> : Parameter<std::span<const T>> {};
template <class T>
struct Parameter<std::span<const T>&&> : Parameter<std::span<const T>> {};
template <>
struct Parameter<const std::string_view&> : Parameter<std::string_view> {};
template <>
struct Parameter<std::string_view&&> : Parameter<std::string_view> {};

template <class T>
inline constexpr bool kIsSpan = false;
template <class T, size_t N>
inline constexpr bool kIsSpan<std::span<T, N>> = true;
template <class T>
inline constexpr bool kIsReadableSpan = false;
template <class T>
inline constexpr bool kIsReadableSpan<std::span<const T>> = true;

template <class P>
constexpr bool CheckParameter() {
  using V = std::remove_cvref_t<P>;
  constexpr bool writes = std::is_lvalue_reference_v<P> && !std::is_const_v<std::remove_reference_t<P>>;
  static_assert(!writes,
                "weft::remote<f>: f takes a parameter by non-const reference, but a task works on its own copy and the "
                "caller would see no change: take it by value or const& and return the result");
  static_assert(!std::is_pointer_v<V>,
                "weft::remote<f>: f takes a pointer, which means nothing in another process: take a value, a "
                "std::string or a std::span<const T>");
  static_assert(!kIsRoom<V>,
                "weft::remote<f>: f takes an Array<T>, but arrays arrive read-only: take an Array<const T> "
                "or a std::span<const T>");
  constexpr bool other_span = kIsSpan<V> && !kIsReadableSpan<V>;
  static_assert(
      !other_span,
      "weft::remote<f>: f takes a span that is written to or of fixed length, but arrays arrive read-only and "
      "of any length: take a std::span<const T>");
  static_assert(!kStays<V>,
                "weft::remote<f>: f takes a parameter that can be neither copied nor moved (it is, or has, a "
                "std::mutex, a std::atomic or the like), so it cannot be sent to another process: take a struct "
                "without it");
  return !writes && !std::is_pointer_v<V> && !kIsRoom<V> && !other_span && !kStays<V>;
}

// ---- arguments

// Whether a Ref<Given> may stand for a parameter whose value is Wanted.
template <class Given, class Wanted>
inline constexpr bool kRefFits =
    std::is_same_v<Given, Wanted> ||
    (std::is_arithmetic_v<Given> && std::is_arithmetic_v<Wanted> &&
     std::is_same_v<Given, bool> == std::is_same_v<Wanted, bool> &&
     (std::is_floating_point_v<Wanted> || std::is_integral_v<Given>)) ||
    (kIsRow<Given> && std::is_same_v<typename RowOf<Given>::Element, typename RowOf<Wanted>::Element>);

template <class A, class P>
constexpr bool ArgumentFits() {
  using Given = std::remove_cvref_t<A>;
  using Wanted = typename Parameter<P>::Value;
  if constexpr (kIsRef<Wanted>) {
    return std::is_same_v<Given, Wanted>;
  } else if constexpr (kIsRef<Given>) {
    return kRefFits<typename Given::value_type, Wanted>;
  } else if constexpr (kIsArray<Wanted>) {
    return std::is_same_v<typename RowOf<Given>::Element, typename RowOf<Wanted>::Element> ||
           std::is_convertible_v<A, Wanted>;
  } else {
    return std::is_convertible_v<A, Wanted>;
  }
}

// Instantiated for each argument of each call; its name is what the compiler shows.
template <size_t ArgumentNumber, class Given, class Parameter>
struct CheckedArgument {
  static constexpr bool kToBeMoved = std::is_lvalue_reference_v<Given> &&
                                     std::is_same_v<std::remove_cvref_t<Given>, std::remove_cvref_t<Parameter>> &&
                                     !std::is_copy_constructible_v<std::remove_cvref_t<Given>>;
  static_assert(!kToBeMoved,
                "weft::remote<f>(...): this argument can only be moved, so give it with std::move (see "
                "CheckedArgument<number of the argument, its type, the parameter's type> above)");
  static_assert(kToBeMoved || ArgumentFits<Given, Parameter>(),
                "weft::remote<f>(...): this argument does not convert to the parameter's type, nor is it a Ref to that "
                "type (see CheckedArgument<number of the argument, its type, the parameter's type> above)");
  static constexpr bool value = ArgumentFits<Given, Parameter>();
};

template <class P, class A>
void EncodeArgument(Encoder& out, A&& argument) {
  using Given = std::remove_cvref_t<A>;
  using Wanted = typename Parameter<P>::Value;
  if constexpr (kIsRef<Given> && !kIsRef<Wanted>) {
    out.Dependency(RefAccess::Checked(argument), false);
  } else if constexpr (std::is_arithmetic_v<Wanted> || std::is_enum_v<Wanted> || kIsRef<Wanted>) {
    Codec<Wanted>::Encode(out, argument);
  } else if constexpr (kIsArray<Wanted> && kIsRow<Given>) {
    if constexpr (!kIsArray<Given>) {
      if (argument.size() <= kMaxListItems) return Codec<Given>::Encode(out, argument);
    }
    out.Dependency(PutValue(std::forward<A>(argument)), true);
  } else if constexpr (!std::is_same_v<Given, Wanted>) {
    EncodeArgument<P>(out, static_cast<Wanted>(std::forward<A>(argument)));
  } else {
    core::Object* object = nullptr;
    if (AsArray(argument, [&](const auto&... array) { object = PutArray(array...); }))
      return out.Dependency(object, true);
    if constexpr (!kIsArray<Wanted>) {
      size_t before = out.size(), contained_before = out.contained.size();
      Codec<Wanted>::Encode(out, argument);
      if (out.size() - before > kMaxInlineBytes || out.size() > kMaxInlineBytesPerFrame) [[unlikely]] {
        // Too large for a frame: an object of its own.
        out.Truncate(before);
        out.contained.Truncate(contained_before);
        out.Dependency(PutValue(argument), true);
      }
    }
  }
}

// A parameter for one of several calls with the same arguments.
template <class P>
decltype(auto) PassCopy(typename Parameter<P>::Kept& kept) {
  if constexpr (std::is_rvalue_reference_v<P> || !std::is_same_v<typename Parameter<P>::Kept, std::remove_cvref_t<P>>) {
    return Parameter<P>::Pass(kept);
  } else {
    return static_cast<P>(kept);
  }
}

// ---- what the worker calls: a function, a method (actor.h) or a constructor (actor.h)

template <auto F>
struct FunctionBody {
  using Result = std::remove_cv_t<typename Signature<F>::Result>;
  using Parameters = typename Signature<F>::Parameters;
  static constexpr FunctionRecord::Kind kKind = FunctionRecord::kFunction;
  static constexpr const std::type_info* Type() { return nullptr; }
  static constexpr std::string_view Name() { return FunctionName<F>(); }
  template <class... P>
  static decltype(auto) Invoke(Instance&, P&&... parameters) {
    return OpaquePointer<F>()(std::forward<P>(parameters)...);
  }
};

template <class Body, class Indices>
struct Trampoline;

template <class Body, size_t... I>
struct Trampoline<Body, std::index_sequence<I...>> {
  template <size_t N>
  using P = std::tuple_element_t<N, typename Body::Parameters>;
  using Kept = std::tuple<typename Parameter<P<I>>::Kept...>;
  static constexpr bool kRepeatable = Body::kKind == FunctionRecord::kMethod &&
                                      (CanCopy<typename Parameter<P<I>>::Kept>() && ... && true) &&
                                      !(std::is_rvalue_reference_v<P<I>> || ... || false);

  template <size_t N>
  static auto Take(Decoder& in, const Arguments& arguments) {
    using Value = typename Parameter<P<N>>::Value;
    if (in.PeekTag() == Tag::kDependency) {
      in.NextTag();
      return DecodeWhole<Value>(arguments.Dependency(in.Fixed<uint32_t>()));
    }
    return DecodeItem<Value>(in);
  }

  static void Prepare(void* storage, [[maybe_unused]] const Arguments& arguments, const uint8_t* begin,
                      const uint8_t* end) {
    [[maybe_unused]] Decoder in(begin, end);
    ::new (storage) Kept{Take<I>(in, arguments)...};  // braces evaluate from left to right
  }

  static void Run(void* storage, Instance& instance, Returning& out, [[maybe_unused]] bool again) {
    [[maybe_unused]] auto& kept = *static_cast<Kept*>(storage);
    if constexpr (kRepeatable) {
      if (again)
        return Conclude(
            out, [&]() -> decltype(auto) { return Body::Invoke(instance, PassCopy<P<I>>(std::get<I>(kept))...); });
    }
    Conclude(out,
             [&]() -> decltype(auto) { return Body::Invoke(instance, Parameter<P<I>>::Pass(std::get<I>(kept))...); });
  }

  static void Destroy(void* storage) noexcept { static_cast<Kept*>(storage)->~Kept(); }
  static constexpr FunctionRecord::Destroy Destroyer() {
    return std::is_trivially_destructible_v<Kept> ? nullptr : &Destroy;
  }

 private:
  template <class Invoke>
  static void Conclude(Returning& out, Invoke invoke) {
    if constexpr (std::is_void_v<typename Body::Result>) {
      invoke();
      Encoder nothing;
      nothing.Byte(kNativeFormat);
      nothing.Put(Tag::kNone);
      ReturnNative(out, nothing);
    } else {
      auto result = invoke();
      ReturnAll(out, result);
    }
  }
  template <class R>
  static void ReturnAll(Returning& out, R& result) {
    ReturnValue(out, result);
  }
  template <class... T>
  static void ReturnAll(Returning& out, Returns<T...>& result) {
    std::apply([&](auto&... item) { (ReturnValue(out, item), ...); }, static_cast<std::tuple<T...>&>(result));
  }
};

// ---- results

template <class R>
constexpr bool CheckResult() {
  constexpr bool view = std::is_same_v<R, std::string_view>;
  constexpr bool span = kIsSpan<R>;
  static_assert(!std::is_reference_v<R> && !std::is_pointer_v<R>,
                "weft::remote<f>: f returns a reference or a pointer, which means nothing in another process");
  static_assert(!view, "weft::remote<f>: return a std::string, not a view of one");
  static_assert(!span, "weft::remote<f>: return a weft::Array or a std::vector, not a view of one");
  static_assert(!kStays<R>,
                "weft::remote<f>: f returns what can be neither copied nor moved (it is, or has, a std::mutex, a "
                "std::atomic or the like), so it cannot be sent to another process: return a struct without it");
  return !std::is_reference_v<R> && !std::is_pointer_v<R> && !view && !span && !kStays<R>;
}
template <class R>
struct EachResult {
  static constexpr bool Check() { return CheckResult<R>(); }
};
template <class... T>
struct EachResult<Returns<T...>> {
  static constexpr bool Check() { return (CheckResult<T>() && ... && true); }
};

template <class R>
struct ResultOf {
  using Type = Ref<R>;
  static constexpr uint32_t kCount = 1;
  static Type Make(core::Object** objects, uint32_t epoch) { return RefAccess::Make<R>(objects[0], epoch); }
};
template <class... T>
struct ResultOf<Returns<T...>> {
  static_assert(sizeof...(T) > 0, "weft::Returns needs at least one type; for none return void");
  using Type = std::tuple<Ref<T>...>;
  static constexpr uint32_t kCount = sizeof...(T);
  static Type Make(core::Object** objects, uint32_t epoch) {
    return MakeEach(objects, epoch, std::index_sequence_for<T...>{});
  }

 private:
  template <size_t... I>
  static Type MakeEach(core::Object** objects, uint32_t epoch, std::index_sequence<I...>) {
    return Type{RefAccess::Make<T>(objects[I], epoch)...};
  }
};

// The entry in the program's table. Its address is its identity, so functions of the same name in different files are
// different functions. Hidden, so that each library and executable has its own entry for a function of a header:
// otherwise the order of loading would decide which of them has it.
template <class Body>
struct [[gnu::visibility("hidden")]] Registered {
  using Code = Trampoline<Body, std::make_index_sequence<std::tuple_size_v<typename Body::Parameters>>>;
  inline static FunctionRecord record{Body::kKind,
                                      Body::Type(),
                                      &Code::Prepare,
                                      &Code::Run,
                                      Code::Destroyer(),
                                      sizeof(typename Code::Kept),
                                      alignof(typename Code::Kept),
                                      std::tuple_size_v<typename Body::Parameters>,
                                      ResultOf<typename Body::Result>::kCount,
                                      Code::kRepeatable,
                                      Body::Name()};
};

// Checks the arguments of a call, encodes them, and gives them to submit(record, encoder, objects).
template <class Body, size_t... I, class Submission, class... A>
auto Call(std::index_sequence<I...>, Submission submit, A&&... arguments) {
  using Parameters = typename Body::Parameters;
  using Result = ResultOf<typename Body::Result>;
  constexpr bool possible =
      (CheckParameter<std::tuple_element_t<I, Parameters>>() && ... && EachResult<typename Body::Result>::Check());
  if constexpr (!possible) {
    return Ref<void>();
  } else if constexpr ((CheckedArgument<I + 1, A, std::tuple_element_t<I, Parameters>>::value && ... && true)) {
    Using session;
    uint32_t epoch = session.epoch();
    Encoder encoder;
    encoder.Fixed(uint32_t{sizeof...(A)});
    encoder.Fixed(uint32_t{0});  // C++ has no keyword arguments
    (EncodeArgument<std::tuple_element_t<I, Parameters>>(encoder, std::forward<A>(arguments)), ...);
    core::Object* objects[Result::kCount];
    submit(Registered<Body>::record, encoder, objects);
    return Result::Make(objects, epoch);
  } else {
    return typename Result::Type{};
  }
}

template <class Body, class Submission, class... A>
auto CheckedCall(Submission submit, A&&... arguments) {
  constexpr bool fits = sizeof...(A) == std::tuple_size_v<typename Body::Parameters>;
  static_assert(fits,
                "weft::remote<f>(...): wrong number of arguments (default arguments are not known here: give "
                "all)");
  if constexpr (fits) {
    return Call<Body>(std::index_sequence_for<A...>{}, submit, std::forward<A>(arguments)...);
  } else {
    return Ref<void>();
  }
}

template <class T>
inline constexpr bool kIsActor = false;
template <class T>
inline constexpr bool kIsActor<Actor<T>> = true;
template <class... A>
inline constexpr bool kBeginsWithActor = false;
template <class First, class... More>
inline constexpr bool kBeginsWithActor<First, More...> = kIsActor<std::remove_cvref_t<First>>;

// A member function, on an actor: actor.h.
template <auto F, class T, class... A>
auto CallOnActor(const CallOptions* options, const Actor<T>& actor, A&&... arguments);

template <auto F, class... A>
auto CallMethod(const CallOptions* options, A&&... arguments) {
  static_assert(kBeginsWithActor<A...>,
                "weft::remote<&T::method>(...): the first argument must be a weft::Actor<T>, the actor that is called");
  if constexpr (kBeginsWithActor<A...>) {
    return CallOnActor<F>(options, std::forward<A>(arguments)...);
  } else {
    return Ref<void>();
  }
}

template <auto F>
inline constexpr bool kIsMethod = std::is_member_function_pointer_v<decltype(F)>;

template <auto F, class... A>
auto CallFunction(const TaskOptions* options, A&&... arguments) {
  if constexpr (!IsFunction<F>()) {
    static_assert(kNever<Remote<F>>,
                  "weft::remote<f>: f must be a function, a member function or a lambda "
                  "without captures and without auto parameters");
    return Ref<void>();
  } else {
    return CheckedCall<FunctionBody<F>>(
        [options](FunctionRecord& record, Encoder& encoder, core::Object** objects) {
          if (options) {
            Submit(Bind(record, *options), encoder, objects);
          } else {
            Submit(record, encoder, objects);
          }
        },
        std::forward<A>(arguments)...);
  }
}

template <auto F>
using OptionsOf = std::conditional_t<kIsMethod<F>, CallOptions, TaskOptions>;

}  // namespace detail

// A function with options of its own.
template <auto F>
class RemoteWith {
 public:
  explicit RemoteWith(detail::OptionsOf<F> options) : options_(std::move(options)) {}
  template <class... A>
  auto operator()(A&&... arguments) const {
    if constexpr (detail::kIsMethod<F>) {
      return detail::CallMethod<F>(&options_, std::forward<A>(arguments)...);
    } else {
      return detail::CallFunction<F>(&options_, std::forward<A>(arguments)...);
    }
  }

 private:
  detail::OptionsOf<F> options_;
};

template <auto F>
struct Remote {
  template <class... A>
  auto operator()(A&&... arguments) const {
    if constexpr (detail::kIsMethod<F>) {
      return detail::CallMethod<F>(nullptr, std::forward<A>(arguments)...);
    } else {
      return detail::CallFunction<F>(nullptr, std::forward<A>(arguments)...);
    }
  }
  RemoteWith<F> with(detail::OptionsOf<F> options) const { return RemoteWith<F>(std::move(options)); }
};

template <auto F>
inline constexpr Remote<F> remote{};

}  // namespace weft
