// Transcripts of Member: what happens to it, and what it does then, a line each.
#include "cluster/member.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMs;

std::string Text(const NodeMessage& message) {
  if (auto* m = std::get_if<NodeJoins>(&message)) return "joins as " + m->name + " was " + std::to_string(m->was.value);
  if (auto* m = std::get_if<NodeBeat>(&message)) return "beat " + std::to_string(m->beat);
  if (auto* m = std::get_if<FlowTaken>(&message)) return "taken " + std::to_string(m->through);
  if (auto* m = std::get_if<JobEnded>(&message)) return "job " + std::to_string(m->job.value) + " ended";
  if (auto* m = std::get_if<NodeUnreachable>(&message)) return "cannot reach " + std::to_string(m->node.value);
  if (auto* m = std::get_if<NodeReachable>(&message)) return "reaches " + std::to_string(m->node.value) + " again";
  if (auto* m = std::get_if<NodeRefused>(&message)) return "refused: " + m->why;
  if (std::holds_alternative<NodeGoodbye>(message)) return "goodbye";
  if (std::holds_alternative<ChunksCut>(message)) return "chunks cut";
  return "message " + std::to_string(message.index());
}

// What a Member does, as text.
class Transcript : public Member::Io, public Member::Host, public Member::HeadSide {
 public:
  std::string Take() { return std::exchange(text_, {}); }

  Status Dial(uint64_t link, const std::string& address, const std::string& hello, int64_t) override {
    if (!dials) return Error{ErrorKind::kInvalid, "no such address"};
    NodeHello decoded;
    EXPECT_TRUE(DecodeHello(hello, &decoded));
    Add("dial " + address + " as " + std::to_string(link) +
        (static_cast<LinkPurpose>(decoded.purpose) == LinkPurpose::kJoin ? " to join" : ""));
    return {};
  }
  Result<std::string> Listen() override { return std::string("here:7"); }
  void Send(uint64_t link, std::string_view bytes) override {
    Add("send " + std::to_string(link) + " " + Text(DecodeNodeMessage(bytes)));
  }
  bool Pass(uint64_t link, std::string_view bytes) override {
    if (full) return false;
    Add("pass " + std::to_string(link) + " " + Text(DecodeNodeMessage(bytes)));
    return true;
  }
  void Close(uint64_t link, const std::string& breach) override {
    Add("close " + std::to_string(link) + (breach.empty() ? "" : " because " + breach));
  }
  void CloseWhenSent(uint64_t link) override { Add("close " + std::to_string(link) + " when sent"); }
  void Log(LogLevel, const char*, const std::string&) override {}

  void ClusterJoined(NodeNumber self) override { Add("joined as " + std::to_string(self.value)); }
  void ClusterRefused(const std::string& why) override { Add("refused: " + why); }
  void HeadForgot() override { Add("head forgot"); }
  void ClusterLeft(const std::string& why) override { Add("left: " + why); }
  void FreezeWork(const std::string&) override { Add("freeze"); }
  void ThawWork() override { Add("thaw"); }
  void NodeMessageCame(NodeNumber from, NodeMessage& message) override {
    Add("from " + std::to_string(from.value) + " " + Text(message));
  }
  void NodeIsGone(NodeNumber, const std::string& why) override { Add("gone: " + why); }
  void LinkBroken(NodeNumber node) override { Add("link of " + std::to_string(node.value) + " broken"); }
  void NodeHasRoom(NodeNumber node) override { Add("room " + std::to_string(node.value)); }

  void JoinCame(uint64_t link, NodeJoins& joins) override {
    Add("head hears over " + std::to_string(link) + " " + Text(joins));
  }
  void HeadHeard(NodeNumber from, NodeMessage& message) override {
    Add("head hears from " + std::to_string(from.value) + " " + Text(message));
  }
  void JoinLinkLost(uint64_t link, bool by_peer) override {
    Add("head loses " + std::to_string(link) + (by_peer ? " by peer" : ""));
  }
  NodeNumber MemberAt(uint64_t link) const override { return link == member_link ? member : NodeNumber{}; }

  bool dials = true;
  bool full = false;
  uint64_t member_link = 0;
  NodeNumber member;

 private:
  void Add(const std::string& line) { text_ += (text_.empty() ? "" : "; ") + line; }
  std::string text_;
};

Member::Config Configured(std::vector<std::string> heads) {
  Member::Config config;
  config.self.name = "me";
  config.heads = std::move(heads);
  return config;
}

class MemberTest : public ::testing::Test {
 protected:
  std::string Says(uint64_t link, const NodeMessage& message) {
    member.LinkMessage(link, EncodeNodeMessage(message), now);
    return world.Take();
  }
  std::string Ready(uint64_t link) {
    member.LinkReady(link, "peer:1", now);
    return world.Take();
  }
  std::string Lost(uint64_t link, ErrorKind kind = ErrorKind::kGone, bool nobody_listens = false) {
    member.LinkLost(link, {kind, "it is lost", nobody_listens, "peer:1"}, now);
    return world.Take();
  }
  std::string Send(uint32_t to, const NodeMessage& message) {
    member.Send({to}, message, now);
    return world.Take();
  }
  std::string After(int64_t ns) {
    now += ns;
    member.Tick(now);
    member.TickFlows(now);
    member.CheckInvariants();
    return world.Take();
  }
  std::string Accept(uint64_t link, const NodeHello& hello) {
    if (!member.LinkAccepted(link, hello, now)) return "not wanted";
    return world.Take();
  }
  NodeMessage Appeared(uint32_t node) {
    return NodeAppeared{{node}, "name" + std::to_string(node), "there:" + std::to_string(node), {}, {}};
  }
  // As node 5 of a cluster with the head 1 and the node 2, over link 2.
  void Join() {
    ASSERT_TRUE(member.Start(now));
    Ready(2);
    EXPECT_EQ(Says(2, NodeAccepted{{5}, {1}, 1, 1, 8 * kSecond}), "send 2 taken 0; joined as 5");
    for (uint32_t node : {1, 2, 5}) Says(2, Appeared(node));
    Says(2, FlowTaken{0});
  }

  int64_t now = kSecond;
  Transcript world;
  Member member{Configured({"head:1"}), world, world};
};

TEST_F(MemberTest, JoinsAndSendsBeats) {
  ASSERT_TRUE(member.Start(now));
  EXPECT_EQ(world.Take(), "dial head:1 as 2 to join");
  EXPECT_EQ(Ready(2), "send 2 joins as me was 0");
  EXPECT_EQ(Says(2, NodeAccepted{{5}, {1}, 1, 1, 6 * kSecond}), "send 2 taken 0; joined as 5");
  EXPECT_EQ(member.self(), NodeNumber{5});
  EXPECT_EQ(After(kSecond), "send 2 beat 2");
  EXPECT_EQ(After(6 * kSecond), "freeze; send 2 beat 3");
  EXPECT_EQ(Says(2, BeatConfirmed{3, 1}), "thaw");
  member.Leave(now);
  EXPECT_EQ(world.Take(), "send 2 goodbye");
}

TEST_F(MemberTest, IsRefused) {
  ASSERT_TRUE(member.Start(now));
  EXPECT_EQ(Ready(2), "dial head:1 as 2 to join; send 2 joins as me was 0");
  EXPECT_EQ(Says(2, NodeRefused{0, "the name is taken"}), "refused: the name is taken");
  EXPECT_EQ(Lost(2, ErrorKind::kInvalid), "refused: it is lost");
}

TEST_F(MemberTest, WaitsAsLongAsTheHeadWants) {
  ASSERT_TRUE(member.Start(now));
  Ready(2);
  EXPECT_EQ(Says(2, JoinLater{3 * kSecond, "later"}), "close 2");
  EXPECT_EQ(After(2 * kSecond), "");
  EXPECT_EQ(After(kSecond), "dial head:1 as 3 to join");
  Ready(3);
  EXPECT_EQ(Says(3, JoinLater{3600 * kSecond, "in an hour"}), "refused: in an hour");
}

TEST_F(MemberTest, GivesUpOnAHeadThatDoesNotAnswer) {
  ASSERT_TRUE(member.Start(now));
  world.Take();
  EXPECT_EQ(After(14 * kSecond), "");
  EXPECT_EQ(After(kSecond), "refused: the head at head:1 does not answer");
}

TEST_F(MemberTest, DialsTheHeadAgainAndTellsANewOneEverything) {
  Join();
  EXPECT_EQ(Lost(2), "link of 1 broken");
  EXPECT_EQ(After(10 * kMs), "dial head:1 as 3 to join");
  EXPECT_EQ(Lost(3, ErrorKind::kTimeout), "link of 1 broken");
  EXPECT_EQ(After(10 * kMs), "");
  EXPECT_EQ(After(300 * kMs), "freeze; dial head:1 as 4 to join");
  EXPECT_EQ(Ready(4), "send 4 joins as me was 5");
  EXPECT_EQ(Says(4, NodeAccepted{{5}, {7}, 2, 2, 8 * kSecond}), "send 4 taken 0; head forgot; thaw");
  EXPECT_EQ(Says(4, NodeAccepted{{5}, {1}, 1, 2, 8 * kSecond}), "");  // of the former one
  EXPECT_EQ(Says(4, NodesListed{{{2}, {5}, {7}}}), "gone: node 1, name1: the head no longer knows it");
  EXPECT_EQ(Says(4, NodeRefused{1, "it was silent"}), "left: it was silent");
}

TEST_F(MemberTest, BelievesInItsLeaseWhenTheHeadHasEnded) {
  Join();
  Lost(2);
  EXPECT_EQ(After(10 * kMs), "dial head:1 as 3 to join");
  EXPECT_EQ(Lost(3, ErrorKind::kUnavailable, true), "link of 1 broken");
  EXPECT_EQ(After(300 * kMs), "dial head:1 as 4 to join");  // and nothing freezes
}

TEST_F(MemberTest, DialsANodeForItsFirstMessage) {
  Join();
  EXPECT_EQ(Send(2, JobEnded{{8}}), "dial there:2 as 3");
  EXPECT_EQ(Send(2, JobEnded{{9}}), "");
  EXPECT_EQ(Ready(3), "");
  EXPECT_EQ(Says(3, FlowTaken{0}), "pass 3 job 8 ended; pass 3 job 9 ended");
  EXPECT_EQ(member.kept_messages(), 2u);
  EXPECT_EQ(Says(3, FlowTaken{1}), "");
  EXPECT_EQ(Lost(3), "");
  EXPECT_EQ(After(20 * kMs), "dial there:2 as 4");
  EXPECT_EQ(Ready(4), "");
  EXPECT_EQ(Says(4, FlowTaken{1}), "pass 4 job 9 ended");
  EXPECT_EQ(Says(4, FlowTaken{9}), "close 4 because it has taken messages that were not sent");
}

TEST_F(MemberTest, WaitsForALinkThatIsFull) {
  Join();
  Send(2, JobEnded{{8}});
  Ready(3);
  world.full = true;
  EXPECT_EQ(Says(3, FlowTaken{0}), "");
  world.full = false;
  EXPECT_EQ(Send(2, JobEnded{{9}}), "");
  member.LinkDrained(3, now);
  EXPECT_EQ(world.Take(), "pass 3 job 8 ended; pass 3 job 9 ended");
}

TEST_F(MemberTest, SendsToItselfAndToTheHead) {
  Join();
  EXPECT_EQ(Send(5, JobEnded{{8}}), "from 5 job 8 ended");
  EXPECT_EQ(Send(0, JobEnded{{8}}), "pass 2 job 8 ended");
  EXPECT_EQ(Send(3, JobEnded{{8}}), "");  // it was gone before
  EXPECT_EQ(Send(6, JobEnded{{8}}), "");  // it may appear
  EXPECT_EQ(member.kept_messages(), 2u);
  Says(2, Appeared(6));
  EXPECT_EQ(After(20 * kMs), "dial there:6 as 3");
}

TEST_F(MemberTest, TakesWhatANodeSendsOverItsNewestLink) {
  Join();
  const NodeHello hello{.purpose = static_cast<uint8_t>(LinkPurpose::kNode), .node = {2}, .to = {5}};
  EXPECT_EQ(Accept(10, hello), "send 10 taken 0");
  EXPECT_EQ(Says(10, JobEnded{{8}}), "from 2 job 8 ended");
  EXPECT_EQ(Accept(11, hello), "close 10; link of 2 broken; send 11 taken 1");
  EXPECT_EQ(Says(10, JobEnded{{8}}), "");
  EXPECT_EQ(After(30 * kMs), "");
  EXPECT_EQ(Accept(12, {.purpose = static_cast<uint8_t>(LinkPurpose::kNode), .node = {2}, .to = {4}}), "not wanted");
  EXPECT_EQ(Says(11, NodeMessage{}), "close 11 because it sent what cannot be understood; link of 2 broken");
}

TEST_F(MemberTest, HearsANodeOnlyWhenTheHeadHasToldOfIt) {
  Join();
  EXPECT_EQ(Accept(10, {.purpose = static_cast<uint8_t>(LinkPurpose::kNode), .node = {6}, .to = {5}}), "");
  EXPECT_EQ(Says(2, Appeared(6)), "send 10 taken 0");
  EXPECT_EQ(Says(10, JobEnded{{8}}), "from 6 job 8 ended");
}

TEST_F(MemberTest, ForgetsANodeThatIsGone) {
  Join();
  Send(2, JobEnded{{8}});
  Accept(10, {.purpose = static_cast<uint8_t>(LinkPurpose::kNode), .node = {2}, .to = {5}});
  EXPECT_EQ(Says(2, NodeVanished{{2}, "it was silent"}), "close 3; close 10; gone: node 2, name2: it was silent");
  EXPECT_EQ(member.kept_messages(), 0u);
  EXPECT_EQ(member.Describe({2}), "node 2 (name2), which is no longer in the cluster (it was silent)");
  EXPECT_EQ(Send(2, JobEnded{{8}}), "");
  EXPECT_EQ(Accept(11, {.purpose = static_cast<uint8_t>(LinkPurpose::kNode), .node = {2}, .to = {5}}), "not wanted");
}

TEST_F(MemberTest, ComplainsOfANodeThatItCannotReach) {
  Join();
  world.dials = false;
  EXPECT_EQ(Send(2, JobEnded{{8}}), "");
  std::string said;
  for (int i = 0; i < 90; ++i) {
    if (std::string more = After(100 * kMs); more.find("cannot") != std::string::npos) said += more;
    Says(2, BeatConfirmed{static_cast<uint64_t>(i), 1});
  }
  EXPECT_EQ(said, "pass 2 cannot reach 2");
  world.dials = true;
  const std::string dialled = After(kSecond);
  const std::string number = dialled.substr(dialled.find(" as ") + 4);
  Ready(std::stoul(number));
  EXPECT_EQ(Says(std::stoul(number), FlowTaken{0}), "pass 2 reaches 2 again; pass " + number + " job 8 ended");
}

TEST_F(MemberTest, ComplainsOfAHeadThatTakesNoChannels) {
  Join();
  EXPECT_EQ(*member.ChannelNeeded({1}, now), "there:1");
  member.ChannelFailed({1}, now, "refused", now);
  member.ChannelFailed({2}, now, "refused", now);
  EXPECT_EQ(world.Take(), "");
  now += 8 * kSecond;
  member.ChannelFailed({2}, now, "refused", now);  // their flow would tell
  EXPECT_EQ(world.Take(), "");
  member.ChannelFailed({1}, now, "refused", now);
  EXPECT_EQ(world.Take(), "pass 2 cannot reach 1");
  member.ChannelMade({1}, now);
  EXPECT_EQ(world.Take(), "pass 2 reaches 1 again");
  EXPECT_FALSE(member.ChannelNeeded({9}, now).ok());
}

TEST_F(MemberTest, SaysThatChunksAreLostWithTheirLink) {
  Join();
  EXPECT_EQ(member.LinkForChunks({1}, now), 3u);
  EXPECT_EQ(world.Take(), "dial there:1 as 3");
  EXPECT_EQ(member.LinkForChunks({1}, now), 3u);
  EXPECT_EQ(Ready(3), "");
  EXPECT_EQ(Lost(3), "pass 2 chunks cut");
  EXPECT_EQ(Says(2, ChunksCut{}), "link of 1 broken");
  EXPECT_EQ(member.LinkForChunks({9}, now), 0u);
}

TEST_F(MemberTest, SendsAwayANodeThatTakesItForTheHead) {
  Join();
  EXPECT_EQ(Accept(10, {.purpose = static_cast<uint8_t>(LinkPurpose::kJoin)}), "");
  EXPECT_EQ(Says(10, NodeJoins{}),
            "send 10 refused: at here:7 is the node me, not the head; say --address=head:1; close 10 when sent");
  Accept(11, {.purpose = static_cast<uint8_t>(LinkPurpose::kJoin)});
  EXPECT_EQ(Says(11, NodeJoins{.was = {4}}), "close 11 when sent");
}

class HeadsMemberTest : public MemberTest {
 protected:
  std::string Tell(uint64_t link, const NodeMessage& message) {
    head.SayFromHead(link, message, now);
    return world.Take();
  }
  std::string Hear(uint64_t link, const NodeMessage& message) {
    head.LinkMessage(link, EncodeNodeMessage(message), now);
    return world.Take();
  }
  Member head{Configured({}), world, world};
};

TEST_F(HeadsMemberTest, JoinsTheHeadOfItsOwnNode) {
  ASSERT_TRUE(head.Start(now, &world));
  EXPECT_FALSE(head.LinkAccepted(10, {.purpose = static_cast<uint8_t>(LinkPurpose::kJoin)}, now));
  EXPECT_EQ(world.Take(), "head hears over 1 joins as me was 0");
  EXPECT_EQ(Tell(Member::kOwnLink, Appeared(1)), "");
  EXPECT_EQ(Tell(Member::kOwnLink, NodeAccepted{{1}, {1}, 1, 1, 6 * kSecond}), "joined as 1");
  head.Send({}, NodeLoad{}, now);
  EXPECT_EQ(world.Take().substr(0, 18), "head hears from 1 ");
  head.Send({}, JobEnded{{8}}, now);
  EXPECT_EQ(world.Take(), "from 1 job 8 ended");
  head.Send({1}, NodeLoad{}, now);  // what is for the node is not for the head
  EXPECT_EQ(world.Take().substr(0, 7), "from 1 ");
}

TEST_F(HeadsMemberTest, TalksToMembersOverTheLinksThatTheyJoinBy) {
  ASSERT_TRUE(head.Start(now, &world));
  Tell(Member::kOwnLink, NodeAccepted{{1}, {1}, 1, 1, 6 * kSecond});
  ASSERT_TRUE(head.LinkAccepted(10, {.purpose = static_cast<uint8_t>(LinkPurpose::kJoin)}, now));
  EXPECT_EQ(Hear(10, NodeJoins{.name = "two"}), "head hears over 10 joins as two was 0");
  EXPECT_EQ(Hear(10, NodeBeat{1, 1}), "");  // no member yet
  Tell(Member::kOwnLink, Appeared(2));
  world.member_link = 10;
  world.member = {2};
  head.Adopt(10, {2}, now);
  EXPECT_EQ(world.Take(), "send 10 taken 0");
  EXPECT_EQ(Hear(10, NodeBeat{1, 1}), "head hears from 2 beat 1");
  head.Send({2}, JobEnded{{8}}, now);
  EXPECT_EQ(Hear(10, FlowTaken{0}), "pass 10 job 8 ended");
  EXPECT_EQ(Hear(10, JobEnded{{9}}), "from 2 job 9 ended");
  EXPECT_EQ(head.LinkForChunks({2}, now), 10u);
  head.LinkLost(10, {.why = "lost"}, now);
  EXPECT_EQ(world.Take(), "link of 2 broken; head loses 10 by peer");
  EXPECT_EQ(head.LinkForChunks({2}, now), 0u);
  EXPECT_EQ(Tell(Member::kOwnLink, NodeVanished{{2}, "gone"}), "gone: node 2, name2: gone");
}

}  // namespace
}  // namespace weft::core
