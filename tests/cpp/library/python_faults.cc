// Python workers of a C++ session, and their zygote, are killed. Prints what the program saw, one line each; the test
// compares. argv[1]: a folder for marks.
#include <signal.h>
#include <unistd.h>
#include <weft/python.h>
#include <weft/weft.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace {

using weft::python::function;

std::string g_folder;

void say(const char* name, const std::string& text) {
  std::printf("%s: %s\n", name, text.c_str());
  std::fflush(stdout);
}

// The pid that the Python function `hold` has written there.
int held(const std::string& mark) {
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  while (std::chrono::steady_clock::now() < deadline) {
    int pid = 0;
    if (std::ifstream(mark) >> pid) return pid;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  say("no pid in", mark);
  std::exit(1);
}

std::string outcome(const weft::Ref<std::string>& ref) {
  auto result = weft::try_get(ref, std::chrono::seconds(60));
  return result ? *result : result.error_name() + " " + result.error_message();
}

// The zygote that lives now. Workers of one that died have the node daemon as parent; another worker has this one.
int zygote() {
  static std::vector<weft::python::Actor> kept;
  for (int i = 0; i < 10; ++i) {
    kept.push_back(weft::python::actor("calls", "Counter")(0));
    int parent = weft::get(kept.back().call<int>("parent"));
    std::ifstream file("/proc/" + std::to_string(parent) + "/cmdline");
    std::string command(std::istreambuf_iterator<char>(file), {});
    if (command.find("weft._cpp_zygote") != std::string::npos) return parent;
  }
  say("zygote", "not found");
  std::exit(1);
}

std::string in_a_task(std::string mark) {
  return outcome(function<std::string>("calls", "hold", {.max_retries = 0})(mark));
}

}  // namespace

int main(int, char** argv) {
  weft::serve_if_worker();
  g_folder = std::string(argv[1]) + "/";
  auto session = weft::init({.num_cpus = 2});

  // A worker, in the middle of a call.
  auto once = function<std::string>("calls", "hold", {.max_retries = 0})(g_folder + "once");
  ::kill(held(g_folder + "once"), SIGKILL);
  say("worker", outcome(once));
  auto again = function<std::string>("calls", "hold", {.max_retries = 1})(g_folder + "again");
  ::kill(held(g_folder + "again"), SIGKILL);
  say("retried", outcome(again));
  auto nested = weft::remote<in_a_task>(g_folder + "nested");  // called by a task in a C++ worker
  ::kill(held(g_folder + "nested"), SIGKILL);
  say("nested", outcome(nested));

  // Actors.
  auto mortal = weft::python::actor("calls", "Counter")(1);
  ::kill(weft::get(mortal.call<int>("pid")), SIGKILL);
  auto dead = weft::try_get(mortal.call<int>("increment", 1));
  say("actor", dead ? "lives" : dead.error_name());
  auto restarted = weft::python::actor("calls", "Counter", {.max_restarts = 1, .max_task_retries = 2})(5);
  int first = weft::get(restarted.call<int>("pid"));
  ::kill(first, SIGKILL);
  say("restarted", std::to_string(weft::get(restarted.call<int>("increment", 1))));
  say("elsewhere", weft::get(restarted.call<int>("pid")) != first ? "yes" : "no");

  // The zygote: what runs goes on, and what needs another worker gets one.
  int first_zygote = zygote();
  auto survivor = function<std::string>("calls", "hold", {.max_retries = 0})(g_folder + "survivor");
  held(g_folder + "survivor");
  ::kill(first_zygote, SIGKILL);
  std::ofstream(g_folder + "survivor.go") << "go";
  say("survivor", outcome(survivor));
  auto born_later = weft::python::actor("calls", "Counter")(7);
  say("later", std::to_string(weft::get(born_later.call<int>("increment", 1))));
  int second_zygote = zygote();
  say("another zygote", second_zygote != first_zygote ? "yes" : "no");

  // Both at once, in the middle of a call that is tried again.
  auto both = function<std::string>("calls", "hold", {.max_retries = 2})(g_folder + "both");
  int running = held(g_folder + "both");
  ::kill(second_zygote, SIGKILL);
  ::kill(running, SIGKILL);
  say("both", outcome(both));
  say("cpp", outcome(weft::remote<in_a_task>(g_folder + "both")));
}
