// Calls Python functions and actors from C++. Prints what it saw, one line each; the test compares.
#include <weft/python.h>
#include <weft/weft.h>

#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace {

// Also from inside a C++ task, which runs in a C++ worker.
int from_a_task(int x) { return weft::get(weft::python::function<int>("calls", "plus")(x, 1)); }

// Python hands us a handle of its actor.
int through_handle(weft::python::Actor counter) { return weft::get(counter.call<int>("increment", 5)); }

void say(const char* name, const std::string& text) { std::printf("%s: %s\n", name, text.c_str()); }

}  // namespace

int main() {
  auto session = weft::init({.num_cpus = 2, .name_space = "here"});
  using weft::python::function;

  say("plus", std::to_string(weft::get(function<int>("calls", "plus")(1, 2))));
  auto seven = function<int>("calls", "plus")(3, 4);
  say("ref", std::to_string(weft::get(function<int>("calls", "plus")(seven, seven))));
  auto words = weft::get(function<std::vector<std::string>>("calls", "words")("many words in a text"));
  say("words", std::to_string(words.size()) + " " + words.back());
  auto numbers = weft::get(function<std::vector<int>>("calls", "numbers")(5000));
  say("numbers", std::to_string(std::accumulate(numbers.begin(), numbers.end(), 0)));
  auto table = weft::get(function<std::map<std::string, double>>("calls", "table")());
  say("table", std::to_string(table.at("b")));
  auto [quotient, rest] = function<weft::Returns<int, int>>("builtins", "divmod")(17, 5);
  say("divmod", std::to_string(weft::get(quotient)) + " " + std::to_string(weft::get(rest)));

  auto array = weft::empty<double>(1'000'000);
  std::iota(array.begin(), array.end(), 0.0);
  auto stored = weft::put(std::move(array));
  say("sum", std::to_string(weft::get(function<double>("calls", "total")(stored))));
  auto doubled = weft::get(function<weft::Array<double>>("calls", "doubled")(stored));
  say("doubled", std::to_string(doubled[999'999]));

  try {
    weft::get(function<int>("calls", "fails")("on purpose"));
  } catch (const weft::TaskError& error) {
    say("error", error.type_name() + " | " + error.message() +
                     (error.stack().find("raise KeyError") != std::string::npos ? " | with its traceback" : ""));
  }
  for (auto [module, name] : {std::pair("calls", "absent"), std::pair("no_such_module", "f")}) {
    auto result = weft::try_get(function<int>(module, name)());
    say("absent", result ? "?" : result.error_message());
  }
  auto wrong = weft::try_get(function<int>("calls", "words")("a b"));
  try {
    (void)wrong.value();
  } catch (const weft::ValueTypeError& error) {
    say("type", error.what());
  } catch (const weft::WeftError& error) {
    say("type", error.what());
  }
  say("task", std::to_string(weft::get(weft::remote<from_a_task>(41))));

  auto counter = weft::python::actor("calls", "Counter", {.name = "counter"})(10);
  say("actor", std::to_string(weft::get(counter.call<int>("increment", 2))));
  auto found = weft::python::get_actor("counter");
  say("found", std::to_string(weft::get(found.call<int>("increment", 1))));
  say("handle", std::to_string(weft::get(weft::remote<through_handle>(counter))));
  say("nested", std::to_string(weft::get(function<int>("calls", "uses_counter")(counter))));
  auto loop = weft::python::actor("calls", "Loop")();
  auto late = loop.call<std::string>("wait_for_go");
  weft::get(loop.call<void>("go"));
  say("asyncio", weft::get(late));
  auto missing = weft::try_get(counter.call<int>("decrement"));
  say("missing", missing.error_message());
  weft::kill(counter);
  auto dead = weft::try_get(found.call<int>("increment", 1));
  say("killed", dead.error_name());
}
