// Transcripts: what happens to a node's core, and what it then does.
#include "node/node_core.h"

#include <gtest/gtest.h>

#include <deque>

#include "wire/placement.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr NodeNumber kSelf{2}, kOther{3}, kHead{1};
const ResourceAmounts kCpuShape{{"CPU", kResourceUnit}};
const ResourceAmounts kGpuShape{{"gpu", kResourceUnit}};

std::string Text(ProcessId process) {
  return std::to_string(NodeOf(process).value) + "." + std::to_string(process.value & 0xffffffff);
}

// One line for each thing that the core does.
class Recorder : public NodeIo, public NodeLinks {
 public:
  std::vector<std::string> Take() { return std::exchange(lines_, {}); }

  void Send(ProcessId to, const Message& message, ProcessId) override { Add("tell " + Text(to) + " " + Name(message)); }
  void HoldBackFor(NodeNumber, ProcessId) override {}
  bool OpenRing(ChannelBroker::Pair pair, ChannelBroker& channels) override {
    Add("ring " + Text(pair.submitter) + " " + Text(pair.worker));
    return channels.Open(pair).has_value();
  }
  std::string Construct(uint32_t, const ConstructActor&) override { return ""; }
  Status Launch(const StartWorker& start) override {
    Add("launch " + Text(start.worker));
    core->WorkerStarted(start.worker, start.kind);
    return {};
  }
  void Kill(ProcessId process, const std::string&) override { Add("kill " + Text(process)); }
  void Refuse(ProcessId process, const std::string& why) override { Add("refuse " + Text(process) + " " + why); }
  bool Stop(ProcessId process) override {
    Add("stop " + Text(process));
    return true;
  }
  void Continue(ProcessId process) override { Add("continue " + Text(process)); }
  int32_t PidOf(ProcessId) const override { return 0; }
  void SetDemand(ProcessId, bool) override {}
  Loan TakeLoan(ProcessId) override { return Loan::kNone; }
  void ReturnLoan(ProcessId, Loan) override {}
  bool Lends(ProcessId) const override { return false; }
  bool RunsTask(ProcessId) const override { return true; }
  void OpenJob(const JobDescribed& described) override { core->OpenJob(described.driver, 0, 1, false); }
  JobDescribed DescribeJob(ProcessId driver) const override { return {driver, "", {}}; }
  void EndJob(ProcessId driver) override { Add("end job " + Text(driver)); }
  void FreeHere(SegmentId segment, std::vector<Location>, ProcessId) override {
    Add("free in " + std::to_string(segment.value));
  }
  void RemoteOwnerDied(ProcessId) override {}
  void Log(LogLevel, const char*, const std::string&) override {}

  NodeNumber self() const override { return kSelf; }
  NodeNumber head() const override { return kHead; }
  bool is_head() const override { return false; }
  bool Knows(NodeNumber node) const override { return nodes_.contains(node); }
  bool MayAppear(NodeNumber) const override { return false; }
  const std::map<NodeNumber, NodeDescription>& nodes() const override { return nodes_; }
  std::string Describe(NodeNumber node) const override { return "node " + std::to_string(node.value); }
  void Send(NodeNumber to, const NodeMessage& message) override {
    if (!std::holds_alternative<NodeLoad>(message)) Add("to node " + std::to_string(to.value) + " " + Name(message));
  }
  void SendToAll(const NodeMessage& message) override { Add("to all " + Name(message)); }
  void DialChannel(ProcessId submitter, ProcessId worker) override {
    Add("dial " + Text(submitter) + " " + Text(worker));
  }
  const JobDescribed* FindJob(ProcessId) const override { return nullptr; }
  void KnowJob(JobDescribed) override {}
  void ForgetJob(ProcessId) override {}
  void Persist(WriteBatch, std::function<void()> then, std::function<void(const std::string&)>) override { then(); }

  NodeCore* core = nullptr;

 private:
  void Add(std::string line) { lines_.push_back(std::move(line)); }
  static std::string Name(const Message& message) {
    if (auto* granted = std::get_if<LeaseGranted>(&message)) return "LeaseGranted of " + Text(granted->worker);
    if (std::holds_alternative<LeaseRecalled>(message)) return "LeaseRecalled";
    if (std::holds_alternative<LeaseRefused>(message)) return "LeaseRefused";
    if (auto* returned = std::get_if<ReturnLease>(&message)) {
      return "ReturnLease of node " + std::to_string(returned->lease.value >> 40);
    }
    if (auto* died = std::get_if<ProcessDied>(&message)) return "ProcessDied " + Text(died->process);
    if (std::holds_alternative<Routed>(message)) return "Routed";
    return "message " + std::to_string(message.index());
  }
  static std::string Name(const NodeMessage& message) {
    if (auto* request = std::get_if<LeaseRequest>(&message)) {
      const std::string number = std::to_string(request->request);
      if (request->withdrawn != 0) return "withdraws request " + number;
      return "requests " + std::to_string(request->count) + " as " + number;
    }
    if (auto* to = std::get_if<ForProcess>(&message))
      return "for " + Text(to->process) + " " + Name(Decode(to->message));
    if (auto* of = std::get_if<FromProcess>(&message)) {
      return "from " + Text(of->process) + " " + Name(Decode(of->message));
    }
    if (std::holds_alternative<JobDescribed>(message)) return "JobDescribed";
    if (std::holds_alternative<ChannelWanted>(message)) return "ChannelWanted";
    if (std::holds_alternative<ChannelBroken>(message)) return "ChannelBroken";
    if (std::holds_alternative<RoutedAcross>(message)) return "RoutedAcross";
    if (auto* vanished = std::get_if<ProcessVanished>(&message)) return "ProcessVanished " + Text(vanished->process);
    return "node message " + std::to_string(message.index());
  }

  std::vector<std::string> lines_;
  std::map<NodeNumber, NodeDescription> nodes_{{kHead, {}}, {kSelf, {}}, {kOther, {}}};
};

using Lines = std::vector<std::string>;

class NodeCoreTest : public ::testing::Test {
 protected:
  NodeCoreTest() {
    io_.core = &core_;
    core_.Open({.resources = {{"CPU", kResourceUnit}},
                .place = {.node_id = NodeIdText(1, kSelf), .node = kSelf, .in_cluster = true}},
               &io_);
    core_.StartNumbersAt((uint64_t{kSelf.value} << 32) + 1);
  }

  void JoinDriver() {
    driver_ = core_.NextNumber();
    core_.OpenJob(driver_, 0, 1, false);
    core_.AddDriver(driver_);
    core_.DriverJoined(driver_, now_);
    Turn();
  }
  void Turn() {
    core_.Settle(now_);
    core_.EndTurn(now_);
  }
  void Says(ProcessId process, Message message) {
    ASSERT_TRUE(core_.MessageCame(process, message, now_));
    Turn();
  }
  void Hears(NodeNumber from, NodeMessage message) {
    ASSERT_TRUE(core_.NodeMessageCame(from, message, now_));
    Turn();
  }
  void Request(const ResourceAmounts& shape, uint32_t count) {
    RequestLeases request;
    request.shape = shape;
    request.count = count;
    Says(driver_, request);
  }
  // One that is of this node, and ready.
  ProcessId Worker() {
    const ProcessId worker{driver_.value + 1};
    core_.WorkerBecameReady(worker, now_);
    Turn();
    return worker;
  }

  int64_t now_ = kMs;
  Recorder io_;
  NodeCore core_{io_, 16};
  ProcessId driver_;
};

TEST_F(NodeCoreTest, AWorkerIsLaunchedForARequestAndGrantedWhenItIsReady) {
  JoinDriver();
  Request(kCpuShape, 1);
  EXPECT_EQ(io_.Take(), Lines{"launch 2.2"});
  Worker();
  EXPECT_EQ(io_.Take(), (Lines{"ring 2.1 2.2", "tell 2.1 LeaseGranted of 2.2"}));
}

TEST_F(NodeCoreTest, WhatThisNodeLacksIsRequestedOfTheHeadOnceItsJobIsDescribed) {
  JoinDriver();
  Request(kGpuShape, 2);
  EXPECT_EQ(io_.Take(), (Lines{"to node 0 JobDescribed", "to node 0 requests 2 as 1"}));
  Request(kGpuShape, 0);
  EXPECT_EQ(io_.Take(), Lines{"to node 0 withdraws request 1"});
}

// From the request to the head and back: by another node's grant, over a connection that is made first.
TEST_F(NodeCoreTest, AGrantOfAnotherNodeWaitsForItsConnection) {
  JoinDriver();
  Request(kGpuShape, 1);
  io_.Take();
  Hears(kHead, RequestAssigned{1, 1});
  EXPECT_EQ(io_.Take(), Lines{"to node 0 requests 0 as 1"});
  const ProcessId worker{(uint64_t{kOther.value} << 32) + 7};
  Hears(kOther, ChannelWanted{driver_, worker});
  EXPECT_EQ(io_.Take(), Lines{"dial 2.1 3.7"});
  Hears(kOther, ForProcess{driver_, Encode(LeaseGranted{kGpuShape, LeaseId{(uint64_t{3} << 40) + 1}, worker, {}})});
  EXPECT_EQ(io_.Take(), Lines{"to node 0 requests 1 as 1"});  // it has arrived, but may yet be returned
  std::vector<uint32_t> used;
  core_.ChannelConnected(driver_, worker, true, "", [&](uint32_t slot) { used.push_back(slot); }, now_);
  Turn();
  EXPECT_EQ(used, std::vector<uint32_t>{0});
  EXPECT_EQ(io_.Take(), (Lines{"tell 2.1 LeaseGranted of 3.7", "to node 0 withdraws request 1"}));
}

TEST_F(NodeCoreTest, AGrantThatCannotBeConnectedIsReturned) {
  JoinDriver();
  Request(kGpuShape, 1);
  io_.Take();
  const ProcessId worker{(uint64_t{kOther.value} << 32) + 7};
  Hears(kOther, ForProcess{driver_, Encode(LeaseGranted{kGpuShape, LeaseId{(uint64_t{3} << 40) + 1}, worker, {}})});
  io_.Take();
  core_.ChannelConnected(driver_, worker, true, "nobody answers", [](uint32_t) { FAIL(); }, now_);
  EXPECT_EQ(io_.Take(), Lines{"to node 3 from 2.1 ReturnLease of node 3"});
}

TEST_F(NodeCoreTest, AProcessOfAnotherNodeConnectsBeforeItHearsOfItsGrant) {
  const ProcessId driver{(uint64_t{kOther.value} << 32) + 1};
  Hears(kOther, JobDescribed{driver, "", {}});
  WorkAssigned assigned;
  assigned.requester = kOther;
  assigned.process = assigned.job = driver;
  assigned.shape = kCpuShape;
  assigned.count = 1;
  Hears(kHead, assigned);
  EXPECT_EQ(io_.Take(), Lines{"launch 2.1"});
  core_.WorkerBecameReady(ProcessId{(uint64_t{2} << 32) + 1}, now_);
  Turn();
  EXPECT_EQ(io_.Take(), (Lines{"to node 3 ChannelWanted", "to node 3 for 3.1 LeaseGranted of 2.1"}));
}

TEST_F(NodeCoreTest, WorkOfOthersStandsStillWhileThisNodeIsCutOff) {
  const ProcessId driver{(uint64_t{kOther.value} << 32) + 1};
  Hears(kOther, JobDescribed{driver, "", {}});
  WorkAssigned assigned;
  assigned.process = assigned.job = driver;
  assigned.shape = kCpuShape;
  assigned.count = 1;
  Hears(kHead, assigned);
  EXPECT_EQ(core_.FreezeWork(), 0u);  // it is starting
  io_.Take();
  core_.WorkerBecameReady(ProcessId{(uint64_t{2} << 32) + 1}, now_);
  Turn();
  EXPECT_EQ(io_.Take().back(), "stop 2.1");
  core_.ThawWork();
  EXPECT_EQ(io_.Take(), Lines{"continue 2.1"});
}

TEST_F(NodeCoreTest, EverybodyHearsOfADeathAndOfTheLossOfANode) {
  JoinDriver();
  Request(kCpuShape, 1);
  const ProcessId worker = Worker();
  io_.Take();
  core_.ProcessClosing(worker, now_);
  core_.ProcessIsGone(worker, 0, "was killed", "was killed", now_);
  Turn();
  const Lines lines = io_.Take();
  ASSERT_GE(lines.size(), 2u);
  EXPECT_EQ(lines[0], "to all ProcessVanished 2.2");
  EXPECT_EQ(lines[1], "tell 2.1 ProcessDied 2.2");
  core_.NodeIsGone(kOther, "power", now_);
  EXPECT_EQ(io_.Take(), Lines{"tell 2.1 ProcessDied 3.0"});
}

TEST_F(NodeCoreTest, AMessageToTheDeadIsAnsweredByItsDeath) {
  JoinDriver();
  Says(driver_, RouteTo{ProcessId{driver_.value + 9}, "x"});
  EXPECT_EQ(io_.Take(), Lines{"tell 2.1 ProcessDied 2.10"});
  Says(driver_, RouteTo{ProcessId{(uint64_t{kOther.value} << 32) + 7}, "x"});
  EXPECT_EQ(io_.Take(), Lines{"to node 3 RoutedAcross"});
}

TEST_F(NodeCoreTest, ANewHeadHearsAllAgain) {
  JoinDriver();
  Request(kGpuShape, 2);
  io_.Take();
  core_.HeadForgot(now_);
  Turn();
  const Lines lines = io_.Take();
  EXPECT_EQ(lines.back(), "to node 0 requests 2 as 2");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "to node 0 JobDescribed"), 1);
}

TEST_F(NodeCoreTest, AJobWhoseDriverDiedElsewhereEnds) {
  const ProcessId driver{(uint64_t{kOther.value} << 32) + 1};
  Hears(kOther, JobDescribed{driver, "", {}});
  WorkAssigned assigned;
  assigned.process = assigned.job = driver;
  assigned.shape = kCpuShape;
  assigned.count = 1;
  Hears(kHead, assigned);
  io_.Take();
  Hears(kOther, ProcessVanished{driver, 0, "was killed"});
  EXPECT_EQ(io_.Take(), (Lines{"end job 3.1", "kill 2.1"}));
}

}  // namespace
}  // namespace weft::core
