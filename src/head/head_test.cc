// Transcripts of Head, beside the Member of its own node: what nodes say to it, and what is sent to whom then. The
// control store is the simulated one, so that a test says when a change is in it.
#include "head/head.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "control_store/simulated_store.h"

namespace weft::core {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::string Number(NodeNumber node) { return std::to_string(node.value); }

std::string Text(const NodeMessage& message) {
  if (auto* m = std::get_if<NodeAccepted>(&message)) {
    return "accepted " + Number(m->node) + " by " + Number(m->head) + " epoch " + std::to_string(m->epoch);
  }
  if (auto* m = std::get_if<NodeRefused>(&message)) return "refused: " + m->why;
  if (auto* m = std::get_if<JoinLater>(&message)) return "later: " + m->why;
  if (auto* m = std::get_if<NodeAppeared>(&message)) return "appeared " + Number(m->node);
  if (auto* m = std::get_if<NodeVanished>(&message)) return "vanished " + Number(m->node);
  if (auto* m = std::get_if<NodesListed>(&message)) return "listed " + std::to_string(m->nodes.size());
  if (auto* m = std::get_if<BeatConfirmed>(&message)) return "confirmed " + std::to_string(m->beat);
  if (auto* m = std::get_if<JobDescribed>(&message)) return "job " + std::to_string(m->driver.value);
  if (auto* m = std::get_if<RequestAssigned>(&message)) return "served " + std::to_string(m->count);
  if (auto* m = std::get_if<RequestRefused>(&message)) return "not served: " + m->why;
  if (auto* m = std::get_if<WorkAssigned>(&message)) return "assigned " + std::to_string(m->count);
  if (auto* m = std::get_if<FlowTaken>(&message)) return "taken " + std::to_string(m->through);
  return "message " + std::to_string(message.index());
}

// One life of a head and its node: what they do, as text.
class Life : public Member::Io, public Member::Host, public Head::Host {
 public:
  Life(std::shared_ptr<SimulatedStorage> storage, int64_t& now, Head::Config config)
      : now_(now),
        store_(std::move(storage)),
        member(Configured(), *this, *this),
        head(config, member, store_, *this) {}

  static Member::Config Configured() {
    Member::Config config;
    config.self.identity = {1, 1};
    config.self.name = "first";
    config.self.resources = {{"CPU", kResourceUnit}};
    return config;
  }
  std::string Take() { return std::exchange(text_, {}); }
  // All that waits for the control store happens.
  std::string Stored() {
    while (store_.Perform() || store_.Deliver()) {
    }
    head.CheckInvariants();
    member.CheckInvariants();
    return Take();
  }

  Status Dial(uint64_t, const std::string&, const std::string&, int64_t) override { return {}; }
  Result<std::string> Listen() override { return std::string("here:7"); }
  void Send(uint64_t link, std::string_view bytes) override {
    Add("to " + std::to_string(link) + " " + Text(DecodeNodeMessage(bytes)));
  }
  bool Pass(uint64_t link, std::string_view bytes) override { return Send(link, bytes), true; }
  void Close(uint64_t link, const std::string&) override { Add("close " + std::to_string(link)); }
  void CloseWhenSent(uint64_t link) override { Add("close " + std::to_string(link) + " when sent"); }
  void Log(LogLevel, const char*, const std::string&) override {}
  void ClusterJoined(NodeNumber self) override { Add("joined as " + Number(self)); }
  void ClusterRefused(const std::string& why) override { Add("refused: " + why); }
  void HeadForgot() override { Add("head forgot"); }
  void ClusterLeft(const std::string& why) override { Add("left: " + why); }
  void FreezeWork(const std::string&) override { Add("freeze"); }
  void ThawWork() override { Add("thaw"); }
  void NodeMessageCame(NodeNumber from, NodeMessage& message) override {
    Add("own node hears from " + Number(from) + " " + Text(message));
  }
  void NodeIsGone(NodeNumber node, const std::string&) override { Add("gone " + Number(node)); }
  void LinkBroken(NodeNumber) override {}
  void NodeHasRoom(NodeNumber) override {}
  void HeadLeads(const std::string&) override { Add("leads"); }
  void HeadWaits() override { Add("waits"); }
  void HeadEnded(const std::string& why) override { Add("ended: " + why); }
  int64_t Now() const override { return now_; }
  int64_t UnixMs() const override { return 0; }

 private:
  void Add(const std::string& line) { text_ += (text_.empty() ? "" : "; ") + line; }
  int64_t& now_;
  std::string text_;
  SimulatedStore store_;

 public:
  Member member;
  Head head;
};

class HeadTest : public ::testing::Test {
 protected:
  HeadTest() {
    config.ledger.candidate = {.name = "head", .lease_ms = 1'000};
    config.ledger.node_name = "first";
    config.ledger.lease_ns = config.membership.lease_ns = 6 * kSecond;
  }
  void StartLife() { life = std::make_unique<Life>(storage, now, config); }
  void Lead() {
    StartLife();
    life->head.Start();
    life->Stored();
  }
  // A node dials, over this link, and says that it wants to join.
  std::string Join(uint64_t link, const std::string& name, uint32_t was = 0, uint64_t kind = 2) {
    EXPECT_TRUE(life->member.LinkAccepted(link, {.purpose = static_cast<uint8_t>(LinkPurpose::kJoin)}, now));
    return Says(link, NodeJoins{.was = {was},
                                .beat = 1,
                                .identity = {kind, std::hash<std::string>()(name)},
                                .name = name,
                                .address = name + ":1",
                                .resources = {{"CPU", 2 * kResourceUnit}}});
  }
  std::string Says(uint64_t link, const NodeMessage& message) {
    life->member.LinkMessage(link, EncodeNodeMessage(message), now);
    return life->Take();
  }
  std::string After(int64_t ns) {
    now += ns;
    storage->now_ns = now;
    life->member.Tick(now);
    life->head.Tick(now);
    return life->Take();
  }

  int64_t now = kSecond;
  Head::Config config;
  std::shared_ptr<SimulatedStorage> storage = std::make_shared<SimulatedStorage>();
  std::unique_ptr<Life> life;
};

TEST_F(HeadTest, LeadsAndTakesInItsOwnNode) {
  StartLife();
  life->head.Start();
  EXPECT_EQ(life->Take(), "");
  EXPECT_EQ(life->Stored(), "leads; joined as 1");
  EXPECT_EQ(life->member.nodes().size(), 1u);
  // Its own lease never ends, however long it stands still.
  EXPECT_EQ(After(1000 * kSecond), "");
  EXPECT_EQ(After(7 * kSecond), "");
  EXPECT_EQ(life->head.membership()->members().size(), 1u);
}

TEST_F(HeadTest, TellsOfANodeWhenItIsPersisted) {
  Lead();
  EXPECT_EQ(Join(10, "two"), "");
  EXPECT_EQ(Says(10, NodeBeat{2, 1}), "");
  EXPECT_FALSE(life->member.Knows({2}));
  EXPECT_EQ(life->Stored(),
            "to 10 accepted 2 by 1 epoch 1; to 10 appeared 1; to 10 appeared 2; to 10 listed 2; "
            "to 10 taken 0");
  EXPECT_TRUE(life->member.Knows({2}));
  EXPECT_EQ(Says(10, NodeBeat{2, 1}), "to 10 confirmed 2");
  Join(11, "three");
  EXPECT_EQ(life->Stored().substr(0, 16), "to 10 appeared 3");
  EXPECT_EQ(Join(12, "two", 0, 3),
            "to 12 refused: the name two belongs to node 2 at two:1; stop that one, or choose another: "
            "weft start --name=...; close 12 when sent");
}

TEST_F(HeadTest, TellsOfADeathWhenItIsPersisted) {
  Lead();
  Join(10, "two");
  Join(11, "three");
  life->Stored();
  life->member.LinkLost(10, {.why = "reset"}, now);
  EXPECT_EQ(life->Take(), "");
  for (int i = 0; i < 8; ++i) EXPECT_EQ(After(kSecond / 10), "");  // a head that stood still would wait again
  EXPECT_FALSE(life->head.membership()->members().contains({2}));
  storage->away = true;
  EXPECT_EQ(life->Stored(), "");
  EXPECT_TRUE(life->member.Knows({2}));
  storage->away = false;
  EXPECT_EQ(life->Stored(), "to 11 vanished 2; gone 2");
  EXPECT_EQ(Join(12, "two", 2).substr(0, 20), "to 12 refused: node ");
  ASSERT_EQ(life->head.departed().size(), 1u);
  EXPECT_EQ(life->head.departed()[0].description.name, "two");
}

TEST_F(HeadTest, HearsAGoodbye) {
  Lead();
  Join(10, "two");
  life->Stored();
  EXPECT_EQ(Says(10, NodeGoodbye{}), "close 10 when sent");
  EXPECT_EQ(life->Stored(), "gone 2");
}

TEST_F(HeadTest, GivesWorkToTheNodeThatHasRoom) {
  Lead();
  Join(10, "two");
  life->Stored();
  Says(10, FlowTaken{0});
  const ProcessId driver{uint64_t{1} << 32 | 5};
  const NodeMessage job = JobDescribed{driver, "", {}};
  life->member.Send({}, job, now);
  EXPECT_EQ(life->Take(), "to 10 job 4294967301");
  LeaseRequest request{
      .request = 1, .process = driver, .job = driver, .shape = {{"CPU", 2 * kResourceUnit}}, .count = 1};
  life->member.Send({}, request, now);
  EXPECT_EQ(life->Take(), "own node hears from 1 served 1; to 10 assigned 1");
  EXPECT_EQ(Says(10, WorkDeclined{.requester = {1}, .request = 1, .placement = 1, .count = 1}),
            "own node hears from 1 served -1");
  request.withdrawn = 1;
  life->member.Send({}, request, now);
  EXPECT_EQ(life->head.scheduler()->request_count(), 0u);
  request = {.request = 2, .process = driver, .job = driver, .shape = {{"CPU", 9 * kResourceUnit}}, .count = 1};
  life->member.Send({}, request, now);
  EXPECT_EQ(life->Take().substr(0, 34), "own node hears from 1 not served: ");
}

TEST_F(HeadTest, WaitsForTheMembersOfAnEarlierHead) {
  Lead();
  Join(10, "two");
  Join(11, "three");
  life->Stored();
  StartLife();  // and the former is no more
  life->head.Start();
  EXPECT_EQ(life->Stored(), "leads; joined as 65");
  EXPECT_TRUE(life->member.Knows({2}) && life->member.Knows({3}) && !life->member.Knows({1}));
  EXPECT_EQ(Join(10, "two", 2),
            "to 10 accepted 2 by 65 epoch 2; to 10 appeared 2; to 10 appeared 3; "
            "to 10 appeared 65; to 10 listed 3; to 10 taken 0");
  for (int i = 0; i < 7; ++i) {
    After(kSecond);
    Says(10, NodeBeat{static_cast<uint64_t>(2 + i), 2});
  }
  EXPECT_EQ(life->Stored(), "to 10 vanished 3; gone 3");
}

TEST_F(HeadTest, IgnoresTheStoreOnceItsNodeEnds) {
  Lead();
  Join(10, "two");
  life->head.Stop();
  EXPECT_EQ(life->Stored(), "");
  EXPECT_FALSE(life->member.Knows({2}));
}

TEST_F(HeadTest, EndsWhenAnotherLeads) {
  Lead();
  auto former = std::move(life);
  Lead();
  EXPECT_EQ(life->member.self(), NodeNumber{65});
  now += 2 * kSecond;
  former->head.Tick(now);
  EXPECT_EQ(former->Stored().substr(0, 43), "ended: another head has taken over this clu");
}

TEST_F(HeadTest, StandsByWhileAnotherLeads) {
  Lead();
  auto leader = std::move(life);
  config.ledger.candidate.name = "other";
  config.ledger.standby = true;
  StartLife();
  life->head.Start();
  EXPECT_EQ(life->Stored(), "waits");
  EXPECT_TRUE(leader->head.Resign());
  leader->Stored();
  After(kSecond);
  EXPECT_EQ(life->Stored(), "leads; joined as 65");
  config.ledger.standby = false;
  config.ledger.candidate.name = "third";
  StartLife();
  life->head.Start();
  EXPECT_EQ(life->Stored().substr(0, 34), "ended: another head leads this clu");
}

}  // namespace
}  // namespace weft::core
