// Several nodes on one machine, for tests of programs that will run on a cluster. Include it separately.
//
//   weft::testing::Cluster cluster({.num_cpus = 2});
//   auto node = cluster.add_node({.num_cpus = 1, .resources = {{"lamp", 1}}});
//   auto session = weft::init({.address = cluster.address()});
//   ...
//   cluster.kill_node(node);
//
// The nodes are real: each has its node daemon and its workers, and they talk over TCP on 127.0.0.1. Nothing is left
// behind, on disk or in memory, even if the program that made the cluster is killed: its nodes end when it ends.
// End the session before the cluster: declare it after.
//
// Any thread, one at a time. Failures throw WeftError, wrong arguments std::invalid_argument.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::testing {

struct NodeOptions {  // as of `weft start`
  int num_cpus = 1;
  int num_gpus = 0;
  std::vector<std::pair<std::string, double>> resources = {};
  std::vector<std::pair<std::string, std::string>> labels = {};
  uint64_t object_store_memory = 0;  // bytes; 0: as for any node
  std::string name = {};             // default: node-1, node-2, ...
};

// One node of a Cluster. Copies mean the same node.
class Node {
 public:
  const std::string& name() const;
  int pid() const;  // of its node daemon
  bool is_head() const;
  bool alive() const;       // whether its daemon runs
  std::string log() const;  // of its daemon

 private:
  friend class Cluster;
  struct State;
  explicit Node(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

class Cluster {
 public:
  // In a worker process this call serves tasks and does not return, as weft::init does.
  explicit Cluster(const NodeOptions& head = {});
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  const std::string& address() const;  // for InitOptions::address
  Node head() const;
  std::vector<Node> nodes() const;  // those that run, the head first

  // Starts a node, and returns when it belongs to the cluster.
  Node add_node(const NodeOptions& options = {});
  // Kills its daemon (SIGKILL), as if its machine had lost power; its workers end too. The others notice within a
  // second: wait_for_nodes waits for that.
  void kill_node(const Node& node);
  // Ends it normally, as `weft stop` does.
  void remove_node(const Node& node);
  // Waits until the head counts so many living nodes; by default the running ones. Throws WeftError after the timeout.
  void wait_for_nodes(std::optional<size_t> count = std::nullopt,
                      std::chrono::nanoseconds timeout = std::chrono::seconds(10));
  // Ends all nodes and all that they have started. Returns when they are gone; does nothing the second time.
  void shutdown() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft::testing
