// weft::testing::Cluster: starts nodes with `weft start` and watches over them. python/weft/testing.py is its twin.
#include "weft/testing.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "api_cpp/state.h"
#include "base/clock.h"
#include "os/entropy.h"
#include "os/fd.h"
#include "runtime/observation.h"
#include "weft/errors.h"
#include "weft/session.h"

extern char** environ;

namespace weft::testing {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kStartNs = 30 * kSecondNs;  // a machine may be very busy
constexpr int64_t kEndNs = 10 * kSecondNs;

core::UniqueFd Memory(const char* name) {
  core::UniqueFd fd(::memfd_create(name, MFD_CLOEXEC));
  if (!fd) throw WeftError(std::string("weft::testing: no memory for a node's log: ") + strerror(errno));
  return fd;
}

std::string TextOf(int fd) {
  struct stat info{};
  if (::fstat(fd, &info) != 0) return "";
  std::string text(static_cast<size_t>(info.st_size), '\0');
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return text;
}

std::string MakeSecret() {
  uint8_t bytes[32];
  core::FillWithEntropy(bytes);
  std::string text;
  for (uint8_t byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

// Whether the process behind a pidfd has ended, or does so by then.
bool Ended(int pidfd, int64_t deadline_ns) {
  for (;;) {
    const int64_t left = std::max<int64_t>(0, deadline_ns - core::NowNs()) / 1'000'000;
    pollfd wait{pidfd, POLLIN, 0};
    const int ready = ::poll(&wait, 1, static_cast<int>(std::min<int64_t>(left, 1000)));
    if (ready > 0) return true;
    if (left == 0) return false;
  }
}

void Signal(int pidfd, int number) { ::syscall(SYS_pidfd_send_signal, pidfd, number, nullptr, 0); }

// The text after `"key": ` in what `weft start --json` says, up to what ends it.
std::string Said(const std::string& json, const std::string& key) {
  const std::string before = "\"" + key + "\": ";
  size_t at = json.find(before);
  if (at == std::string::npos) return "";
  at += before.size();
  if (json[at] == '"') ++at;
  return json.substr(at, json.find_first_of("\",}", at) - at);
}

}  // namespace

struct Node::State {
  std::string name;
  int pid = 0;
  bool head = false;
  core::UniqueFd process;  // a pidfd, so that its number cannot come to mean another process
  core::UniqueFd log;
};

const std::string& Node::name() const { return state_->name; }
int Node::pid() const { return state_->pid; }
bool Node::is_head() const { return state_->head; }
bool Node::alive() const { return !Ended(state_->process.get(), 0); }
std::string Node::log() const { return TextOf(state_->log.get()); }

struct Cluster::State {
  std::string program;
  std::string address;
  std::string token;
  std::vector<Node> nodes;
  int made = 0;
  pid_t owner = 0;

  void Check(const Node& node) const {
    if (std::none_of(nodes.begin(), nodes.end(), [&](const Node& mine) { return mine.state_ == node.state_; })) {
      throw std::invalid_argument("weft::testing::Cluster: the node is not one of this cluster");
    }
  }
};

Cluster::Cluster(const NodeOptions& head) {
  serve_if_worker();
  state_ = std::make_unique<State>();
  state_->program = detail::ProgramPath();
  state_->token = MakeSecret();
  state_->owner = ::getpid();
  add_node(head);
}

Cluster::~Cluster() { shutdown(); }

const std::string& Cluster::address() const { return state_->address; }

Node Cluster::head() const {
  if (state_->nodes.empty()) throw WeftError("weft::testing::Cluster: it has been shut down");
  return state_->nodes.front();
}

std::vector<Node> Cluster::nodes() const {
  std::vector<Node> running;
  for (const Node& node : state_->nodes) {
    if (node.alive()) running.push_back(node);
  }
  return running;
}

Node Cluster::add_node(const NodeOptions& options) {
  if (!state_->address.empty() && state_->nodes.empty()) {
    throw WeftError("weft::testing::Cluster: it has been shut down; make another one");
  }
  const bool head = state_->nodes.empty();
  auto node = std::make_shared<Node::State>();
  node->name = options.name.empty() ? "node-" + std::to_string(++state_->made) : options.name;
  node->head = head;
  node->log = Memory("weft-log");

  std::vector<std::string> command{state_->program, "start", "--json", "--end-with-parent", "--name=" + node->name,
                                   "--num-cpus=" + std::to_string(options.num_cpus),
                                   "--num-gpus=" + std::to_string(options.num_gpus),
                                   // Which descriptors they are in the child.
                                   "--token-fd=3", "--log-fd=4"};
  if (head) {
    command.insert(command.end(), {"--head", "--port=0"});
  } else {
    command.push_back("--address=" + state_->address);
  }
  for (const auto& [name, amount] : options.resources) {
    char text[64];
    std::snprintf(text, sizeof text, "%.4f", amount);
    command.push_back("--resource=" + name + "=" + text);
  }
  std::string labels;
  for (const auto& [key, value] : options.labels) labels += (labels.empty() ? "" : ",") + key + "=" + value;
  if (!labels.empty()) command.push_back("--labels=" + labels);
  if (options.object_store_memory != 0) {
    command.push_back("--object-store-memory=" + std::to_string(options.object_store_memory));
  }

  core::UniqueFd token = Memory("weft-token"), out = Memory("weft-start"), errors = Memory("weft-start");
  if (::pwrite(token.get(), state_->token.data(), state_->token.size(), 0) !=
      static_cast<ssize_t>(state_->token.size())) {
    throw WeftError("weft::testing::Cluster: no memory for its token");
  }
  // First to numbers that none of the targets has.
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  core::UniqueFd kept[4];
  const int sources[4] = {out.get(), errors.get(), token.get(), node->log.get()};
  for (int i = 0; i < 4; ++i) {
    kept[i] = core::UniqueFd(::fcntl(sources[i], F_DUPFD_CLOEXEC, 5));
    ::posix_spawn_file_actions_adddup2(&actions, kept[i].get(), i + 1);
  }
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, state_->program.c_str(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw WeftError("weft::testing::Cluster: cannot run " + state_->program + ": " + strerror(failed));
  core::UniqueFd starting(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  const bool in_time = starting && Ended(starting.get(), core::NowNs() + kStartNs);
  if (!in_time) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!in_time) throw WeftError("weft::testing::Cluster: the node '" + node->name + "' did not start in 30 s");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    std::string why = TextOf(errors.get());
    why = why.substr(0, why.find("\nusage: "));
    while (!why.empty() && why.back() == '\n') why.pop_back();
    const std::string text = "weft::testing::Cluster: the node '" + node->name + "' cannot be started: " + why;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2) throw std::invalid_argument(text);
    throw WeftError(text);
  }
  const std::string said = TextOf(out.get());
  node->pid = std::atoi(Said(said, "pid").c_str());
  node->process = core::UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, node->pid, 0)));
  if (!node->process) {
    throw WeftError("weft::testing::Cluster: the node '" + node->name + "' has ended: " + TextOf(node->log.get()));
  }
  state_->address = Said(said, "address");
  state_->nodes.push_back(Node(std::move(node)));
  return state_->nodes.back();
}

void Cluster::kill_node(const Node& node) {
  state_->Check(node);
  Signal(node.state_->process.get(), SIGKILL);
  if (!Ended(node.state_->process.get(), core::NowNs() + kEndNs)) {
    throw WeftError("weft::testing::Cluster: the node '" + node.name() + "' does not end");
  }
}

void Cluster::remove_node(const Node& node) {
  state_->Check(node);
  if (node.is_head() && nodes().size() > 1) {
    throw std::invalid_argument(
        "weft::testing::Cluster: the head leads the others: remove them first, or kill_node(head()), or shutdown()");
  }
  Signal(node.state_->process.get(), SIGTERM);
  if (!Ended(node.state_->process.get(), core::NowNs() + kEndNs)) {
    throw WeftError("weft::testing::Cluster: the node '" + node.name() + "' does not end; its log:\n" + node.log());
  }
}

void Cluster::wait_for_nodes(std::optional<size_t> count, std::chrono::nanoseconds timeout) {
  const size_t wanted = count.value_or(nodes().size());
  const Node leader = head();
  const int64_t deadline = core::NowNs() + timeout.count();
  for (;;) {
    if (!leader.alive()) throw WeftError("weft::testing::Cluster: its head has ended; its log:\n" + leader.log());
    const core::Observation seen = core::Ask({::geteuid(), leader.pid()}, core::kObserveNodes, 0, core::kPatienceNs);
    const auto living = static_cast<size_t>(
        std::count_if(seen.nodes.begin(), seen.nodes.end(), [](const auto& node) { return node.alive != 0; }));
    if (living == wanted) return;
    if (core::NowNs() >= deadline) {
      throw WeftError("weft::testing::Cluster: the head counts " + std::to_string(living) + " living nodes, not " +
                      std::to_string(wanted));
    }
    timespec moment{0, 10'000'000};
    ::nanosleep(&moment, nullptr);
  }
}

void Cluster::shutdown() noexcept {
  if (!state_ || ::getpid() != state_->owner) return;  // a fork of the process that has the cluster
  for (auto node = state_->nodes.rbegin(); node != state_->nodes.rend(); ++node) {
    Signal(node->state_->process.get(), SIGTERM);
  }
  const int64_t deadline = core::NowNs() + kEndNs;
  for (const Node& node : state_->nodes) {
    if (Ended(node.state_->process.get(), deadline)) continue;
    Signal(node.state_->process.get(), SIGKILL);
    Ended(node.state_->process.get(), core::NowNs() + kEndNs);
  }
  state_->nodes.clear();
}

}  // namespace weft::testing
