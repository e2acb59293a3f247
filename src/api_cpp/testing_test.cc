// weft::testing::Cluster and what programs see of several nodes.
#include "weft/testing.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "weft/weft.h"

namespace {

using namespace std::chrono_literals;
using weft::testing::Cluster;

// C++ workers are children of their node daemon.
int DaemonOfWorker() { return ::getppid(); }

std::string Large() { return std::string(300'000, 'x'); }

bool Runs(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t at = text.rfind(')');
  return at != std::string::npos && text[at + 2] != 'Z';
}

TEST(TestingCluster, TasksRunOnItsNodes) {
  Cluster cluster({.num_cpus = 1});
  auto second = cluster.add_node({.num_cpus = 1, .resources = {{"lamp", 1}}, .labels = {{"zone", "eu"}}});
  auto session = weft::init({.address = cluster.address(), .log_to_driver = false});
  auto where = weft::remote<DaemonOfWorker>.with({.num_cpus = 0, .resources = {{"lamp", 1}}});
  EXPECT_EQ(weft::get(where(), 20s), second.pid());
  EXPECT_TRUE(cluster.head().is_head());
  EXPECT_EQ(second.name(), "node-2");
  EXPECT_EQ(cluster.nodes().size(), 2u);

  auto resources = weft::cluster_resources();
  EXPECT_EQ(resources["CPU"], 2);
  EXPECT_EQ(resources["lamp"], 1);
  auto nodes = weft::nodes();
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].id, weft::context().node_id);
  EXPECT_TRUE(nodes[0].is_head);
  EXPECT_EQ(nodes[0].address, cluster.address());
  EXPECT_EQ(nodes[1].name, "node-2");
  EXPECT_EQ(nodes[1].labels["zone"], "eu");
  EXPECT_TRUE(nodes[1].alive);

  cluster.kill_node(second);
  EXPECT_FALSE(second.alive());
  cluster.wait_for_nodes(1);
  nodes = weft::nodes();
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_FALSE(nodes[1].alive);
  EXPECT_NE(nodes[1].death_reason, "");
  EXPECT_EQ(weft::cluster_resources()["CPU"], 1);
  auto third = cluster.add_node({.num_cpus = 1, .resources = {{"lamp", 1}}});
  EXPECT_EQ(weft::get(where(), 20s), third.pid());
}

TEST(TestingCluster, WaitFetchesOrLeavesWhereItIs) {
  Cluster cluster({.num_cpus = 1});
  auto second = cluster.add_node({.num_cpus = 1, .resources = {{"lamp", 1}}});
  auto session = weft::init({.address = cluster.address(), .log_to_driver = false});
  auto large = weft::remote<Large>.with({.num_cpus = 0, .resources = {{"lamp", 1}}, .max_retries = 0});
  const std::vector left{large(), large()}, fetched{large(), large()};
  auto result = weft::wait(left, {.num_returns = 2, .timeout = 20s, .fetch_local = false});
  EXPECT_EQ(result.ready.size(), 2u);
  EXPECT_EQ(result.rest.size(), 0u);
  result = weft::wait(fetched, {.num_returns = 2, .timeout = 20s});
  EXPECT_EQ(result.ready.size(), 2u);
  // What was left there is lost with that node, and what was fetched is not.
  cluster.kill_node(second);
  cluster.wait_for_nodes(1);
  for (const auto& ref : fetched) EXPECT_EQ(weft::get(ref, 20s).size(), 300'000u);
  for (const auto& ref : left) EXPECT_THROW(weft::get(ref, 20s), weft::ReconstructionFailedError);
}

TEST(TestingCluster, EndsInOrder) {
  int pid = 0;
  {
    Cluster cluster;
    auto second = cluster.add_node();
    cluster.remove_node(second);
    cluster.wait_for_nodes(1, 1s);
    EXPECT_FALSE(Runs(second.pid()));
    pid = cluster.head().pid();
    EXPECT_TRUE(Runs(pid));
  }
  EXPECT_FALSE(Runs(pid));
}

TEST(TestingCluster, MistakesAreToldClearly) {
  Cluster cluster({.name = "one"});
  EXPECT_THROW(cluster.add_node({.num_cpus = -1}), std::invalid_argument);
  EXPECT_THROW(cluster.add_node({.labels = {{"zone", "a b"}}}), std::invalid_argument);
  try {
    cluster.add_node({.name = "one"});
    FAIL() << "the name is taken";
  } catch (const weft::WeftError& error) {
    EXPECT_NE(std::string(error.what()).find("the name one belongs to node 1"), std::string::npos) << error.what();
  }
  EXPECT_THROW(cluster.wait_for_nodes(2, 10ms), weft::WeftError);
  cluster.shutdown();
  EXPECT_THROW(cluster.add_node(), weft::WeftError);
}

}  // namespace
