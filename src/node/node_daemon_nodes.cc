// NodeDaemon: what it tells of the other nodes, and what it asks the head for processes. The head knows all nodes; the
// others ask it, and tell what they know themselves if it does not answer.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "node/node_daemon.h"

namespace weft::core {
namespace {

// How long an observer waits for the head; then it hears what this node knows.
constexpr int64_t kHeadWaitNs = 500'000'000;

std::string MachineName() {
  char name[256] = "";
  return ::gethostname(name, sizeof name - 1) == 0 && *name != '\0' ? name : "node";
}

}  // namespace

std::vector<NodeListed> NodeDaemon::OwnNodes() const {
  std::vector<NodeListed> nodes;
  if (cluster_) {
    nodes = cluster_->List();
  } else {
    nodes.push_back({.node = {1}, .session = session_, .head = 1, .own = 1, .name = MachineName()});
    nodes[0].total = core_.resources();
  }
  for (NodeListed& node : nodes) {
    if (node.own == 0) continue;
    // Of ourselves we know more than what was told last.
    node.available.clear();
    for (const auto& [name, amount] : core_.scheduler().free().amounts()) {
      if (amount > 0 && name != kPythonWorker) node.available.emplace_back(name, amount);
    }
  }
  return nodes;
}

void NodeDaemon::AskHeadForNodes(uint64_t observer, const Observe& question) {
  const uint64_t request = next_nodes_request_++;
  asked_nodes_[request] = {observer, question, NowNs() + kHeadWaitNs};
  cluster_->SendToHead(AskNodes{request});
}

void NodeDaemon::HandleNode(NodeNumber from, AskNodes& message) {
  NodesTold told{message.request, {}};
  for (const NodeListed& node : OwnNodes()) told.nodes.push_back(Encode(node));
  cluster_->Send(from, told);
}

void NodeDaemon::HandleNode(NodeNumber, NodesTold& message) {
  auto found = asked_nodes_.find(message.request);
  if (found == asked_nodes_.end()) return;
  const AskedNodes asked = found->second;
  asked_nodes_.erase(found);
  std::vector<NodeListed> nodes;
  for (const std::string& bytes : message.nodes) {
    auto decoded = Decode(bytes);
    if (auto* node = std::get_if<NodeListed>(&decoded)) {
      node->own = node->node == cluster_->self() ? 1 : 0;
      nodes.push_back(std::move(*node));
    }
  }
  AnswerObserver(asked.observer, asked.question, nodes);
}

void NodeDaemon::AnswerWithoutHead(int64_t now_ns) {
  while (!asked_nodes_.empty() && asked_nodes_.begin()->second.until_ns <= now_ns) {
    const AskedNodes asked = asked_nodes_.begin()->second;
    asked_nodes_.erase(asked_nodes_.begin());
    if (ended_) continue;
    std::vector<NodeListed> nodes = OwnNodes();
    for (NodeListed& node : nodes) {
      if (node.head != 0 && node.alive != 0) node.why = "it does not answer; this is what was known last";
    }
    AnswerObserver(asked.observer, asked.question, nodes);
  }
}

}  // namespace weft::core
