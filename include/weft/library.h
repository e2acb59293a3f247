// Functions and classes for other languages and other programs, by name: a shared library of tasks.
//
//   // tasks.cc, linked with weft::weft into libtasks.so (weft_add_task_library in CMake)
//   double norm(std::span<const double> x);
//   struct Counter { explicit Counter(int start); int increment(int by); };
//
//   static const weft::Library tasks = weft::Library("Numbers and counters.")
//       .function<norm>("norm")
//       .actor<Counter, int>("Counter", weft::methods<&Counter::increment>("increment"));
//
// Python: tasks = weft.cpp.library("libtasks.so"); tasks.norm.remote(numpy_array); tasks.Counter.remote(10).
// C++ programs that link with the library need none of this: they name the functions themselves.
//
// A name may be used once in a library; using it twice is an error when the library is loaded, which names both places.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/actor.h"

namespace weft {
namespace detail {

// The name of a type in Python's annotations.
template <class T>
std::string PythonType();

template <class T>
struct PythonTypeOf {
  static std::string Name() {
    if constexpr (std::is_void_v<T> || std::is_same_v<T, std::monostate> || std::is_same_v<T, std::nullopt_t>) {
      return "None";
    } else if constexpr (std::is_same_v<T, bool>) {
      return "bool";
    } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      return "int";
    } else if constexpr (std::is_floating_point_v<T>) {
      return "float";
    } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view>) {
      return "str";
    } else if constexpr (kIsArray<T>) {
      return "numpy.ndarray";
    } else if constexpr (requires { typename T::mapped_type; }) {
      return "dict[" + PythonType<typename T::key_type>() + ", " + PythonType<typename T::mapped_type>() + "]";
    } else if constexpr (requires {
                           typename T::value_type;
                           std::declval<T>().begin();
                         }) {
      return "list[" + PythonType<typename T::value_type>() + "]";
    } else {
      return "tuple";
    }
  }
};
template <class T>
struct PythonTypeOf<std::optional<T>> {
  static std::string Name() { return "typing.Optional[" + PythonType<T>() + "]"; }
};
template <class T>
struct PythonTypeOf<Ref<T>> {
  static std::string Name() { return "weft.ObjectRef"; }
};
template <class T>
struct PythonTypeOf<Actor<T>> {
  static std::string Name() { return "weft.ActorHandle"; }
};
template <class... T>
struct PythonTypeOf<std::tuple<T...>> {
  static std::string Name() {
    if constexpr (sizeof...(T) == 0) {
      return "tuple[()]";
    } else {
      std::string text;
      ((text += (text.empty() ? "" : ", ") + PythonType<T>()), ...);
      return "tuple[" + text + "]";
    }
  }
};
template <class A, class B>
struct PythonTypeOf<std::pair<A, B>> : PythonTypeOf<std::tuple<A, B>> {};
template <class... T>
struct PythonTypeOf<Returns<T...>> : PythonTypeOf<std::tuple<T...>> {};

template <class T>
std::string PythonType() {
  return PythonTypeOf<std::remove_cvref_t<T>>::Name();
}

// One exported function, constructor or method.
struct Export {
  FunctionRecord* record = nullptr;
  std::string name;
  std::string class_name;  // of a method: the exported name of its class
  std::vector<std::string> parameters;
  std::string result;
  const char* file = "";
  uint32_t line = 0;
};
// All exports of a library; kept until the library is unloaded.
struct ExportList {
  std::string text;
  std::vector<Export> exports;
  const void* place = nullptr;  // an address in the library
};
void AddExports(const ExportList* list) noexcept;
void RemoveExports(const ExportList* list) noexcept;

// Where a name is given. Like std::source_location, which Clang has only from version 16 on.
struct Place {
  const char* file;
  uint32_t line;
  static constexpr Place Here(const char* file = __builtin_FILE(), uint32_t line = __builtin_LINE()) {
    return {file, line};
  }
};

template <class Body, class... P>
Export Describe(std::type_identity<std::tuple<P...>>, std::string_view name, const Place& where) {
  return {&Registered<Body>::record,           std::string(name), {},        {PythonType<P>()...},
          PythonType<typename Body::Result>(), where.file,        where.line};
}
template <class Body>
Export Describe(std::string_view name, const Place& where) {
  return Describe<Body>(std::type_identity<typename Body::Parameters>{}, name, where);
}

}  // namespace detail

// The exported methods of a class, by name.
template <auto... F>
struct Methods {
  std::vector<std::string> names;
};
template <auto... F, class... Name>
Methods<F...> methods(Name... names) {
  static_assert(sizeof...(F) == sizeof...(Name), "weft::methods<&T::a, &T::b>(\"a\", \"b\"): one name for each method");
  return {{std::string(names)...}};
}

// The exports of a shared library. Make one in a static variable of the library.
class Library {
 public:
  explicit Library(std::string text = {}) { list_.text = std::move(text); }
  Library(const Library&) = delete;
  Library(Library&& other) noexcept : list_(std::move(other.list_)) {
    if (other.added_) detail::RemoveExports(&other.list_);
    other.added_ = false;
    Add();
  }
  ~Library() {
    if (added_) detail::RemoveExports(&list_);
  }

  template <auto F>
  Library&& function(std::string_view name, detail::Place where = detail::Place::Here()) && {
    static_assert(detail::IsFunction<F>(), "weft::Library::function<f>: f must be a function");
    list_.exports.push_back(detail::Describe<detail::FunctionBody<F>>(name, where));
    return std::move(*this);
  }
  // A class, with the parameters of the constructor that other languages call.
  template <class T, class... P, auto... F>
  Library&& actor(std::string_view name, const Methods<F...>& methods = Methods<>{},
                  detail::Place where = detail::Place::Here()) && {
    static_assert(detail::CanMake<T, P...>(), "weft::Library::actor<T, P...>: T has no constructor that takes P...");
    list_.exports.push_back(detail::Describe<detail::ConstructorBody<T, P...>>(name, where));
    [[maybe_unused]] size_t i = 0;
    ((list_.exports.push_back(detail::Describe<detail::MethodBody<T, F>>(methods.names[i++], where)),
      list_.exports.back().class_name = name),
     ...);
    return std::move(*this);
  }

 private:
  void Add() {
    list_.place = this;
    added_ = true;
    detail::AddExports(&list_);
  }
  detail::ExportList list_;
  bool added_ = false;
};

}  // namespace weft
