#include "head/membership.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "base/check.h"
#include "base/random.h"
#include "cluster/node_lease.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMs;

NodeDescription Description(uint64_t identity, std::string name = "") {
  NodeDescription description;
  description.identity = {0, identity};
  description.name = name.empty() ? "n" + std::to_string(identity) : std::move(name);
  description.address = "10.0.0." + std::to_string(identity) + ":7000";
  description.resources = {{"CPU", kResourceUnit}};
  return description;
}

std::string Describe(const MembershipAction& action) {
  struct Visitor {
    std::string operator()(const AcceptNode& a) {
      return "accept " + std::to_string(a.node.value) + (a.again ? " again" : "") + " on " + std::to_string(a.link) +
             " epoch " + std::to_string(a.epoch);
    }
    std::string operator()(const RefuseNode& a) { return "refuse " + std::to_string(a.link) + ": " + a.why; }
    std::string operator()(const ConfirmLease& a) { return "confirm " + std::to_string(a.beat); }
    std::string operator()(const CloseMemberLink& a) { return "close " + std::to_string(a.link); }
    std::string operator()(const SuspectNode& a) { return "suspect " + std::to_string(a.node.value); }
    std::string operator()(const TrustNode& a) { return "trust " + std::to_string(a.node.value); }
    std::string operator()(const ExpelNode& a) {
      return "expel " + std::to_string(a.node.value) + " over " + std::to_string(a.link) + ": " + a.why;
    }
    std::string operator()(const DeclareDead& a) { return "dead " + std::to_string(a.node.value) + ": " + a.why; }
    std::string operator()(const StepDown& a) { return "step down for " + std::to_string(a.epoch); }
  };
  return std::visit(Visitor{}, action);
}

std::string Describe(const LeaseAction& action) {
  struct Visitor {
    std::string operator()(const SendJoin& a) { return "join, was " + std::to_string(a.was.value); }
    std::string operator()(const SendBeat& a) { return "beat " + std::to_string(a.beat); }
    std::string operator()(const LinkToHead&) { return "link"; }
    std::string operator()(const FreezeWork& a) { return "freeze: " + a.why; }
    std::string operator()(const ThawWork&) { return "thaw"; }
    std::string operator()(const GiveUpWork& a) { return "give up: " + a.why; }
  };
  return std::visit(Visitor{}, action);
}

template <class Machine, class Action>
class Transcript {
 public:
  template <class... Arguments>
  explicit Transcript(Arguments... arguments) : machine(arguments...) {}
  template <class Event>
  std::string operator()(const Event& event) {
    std::vector<Action> actions;
    machine.Handle(event, actions);
    machine.CheckInvariants();
    std::string text;
    for (const auto& action : actions) text += (text.empty() ? "" : "; ") + Describe(action);
    return text;
  }
  Machine machine;
};

class Head : public Transcript<Membership, MembershipAction> {
 public:
  explicit Head(uint64_t epoch = 1) : Transcript(Membership::Config{.epoch = epoch, .protocol = 7}) {}
  std::string Join(uint64_t link, const NodeDescription& node, int64_t ms, uint32_t was = 0, uint64_t epoch = 0) {
    return (*this)(JoinAsked{link, NodeNumber{was}, epoch, 1, 7, node, ms * kMs});
  }
  std::string Beat(uint64_t link, uint64_t beat, int64_t ms) { return (*this)(BeatCame{link, beat, 1, ms * kMs}); }
  std::string Close(uint64_t link, bool by_peer, int64_t ms) {
    return (*this)(MemberLinkClosed{link, by_peer, ms * kMs});
  }
  std::string Unreachable(uint32_t by, uint32_t node, int64_t ms) {
    return (*this)(UnreachableSaid{NodeNumber{by}, NodeNumber{node}, 3500 * kMs, "silence", ms * kMs});
  }
  std::string Reachable(uint32_t by, uint32_t node, int64_t ms) {
    return (*this)(ReachableSaid{NodeNumber{by}, NodeNumber{node}, ms * kMs});
  }
  // Looks at the clock as often as it should, until this time.
  std::string Until(int64_t ms) {
    std::string text;
    while (machine.next_wakeup_ns() <= ms * kMs) {
      last_ = std::max(machine.next_wakeup_ns(), last_);
      std::string said = (*this)(MembershipTicked{last_});
      if (!said.empty()) text += (text.empty() ? "" : "; ") + said;
    }
    (*this)(MembershipTicked{ms * kMs});
    return text;
  }

 private:
  int64_t last_ = 0;
};

TEST(Membership, ASilentNodeIsDeadAfterTheLease) {
  Head head;
  EXPECT_EQ(head.Join(11, Description(1), 0), "accept 1 on 11 epoch 1");
  EXPECT_EQ(head.Join(12, Description(2), 0), "accept 2 on 12 epoch 1");
  EXPECT_EQ(head.Until(5000), "");
  EXPECT_EQ(head.Beat(11, 2, 5000), "confirm 2");
  EXPECT_EQ(head.Until(9999), "");
  EXPECT_EQ(head.Until(10'000), "dead 2: it was silent for 10.0 s; close 12");
  EXPECT_EQ(head.Until(15'000), "dead 1: it was silent for 10.0 s; close 11");
  EXPECT_EQ(head.machine.next_wakeup_ns(), INT64_MAX);
}

TEST(Membership, AClosedLinkIsSuspiciousAndSoonTheEnd) {
  Head head;
  head.Join(11, Description(1), 0);
  head.Join(12, Description(2), 0);
  EXPECT_EQ(head.Close(11, true, 100), "suspect 1");
  EXPECT_EQ(head.Close(12, true, 100), "suspect 2");
  EXPECT_EQ(head.Join(13, Description(1), 400, 1), "accept 1 again on 13 epoch 1; trust 1");
  EXPECT_EQ(head.Until(699), "");
  EXPECT_EQ(head.Until(1000), "dead 2: its link was lost and it did not come back");
  EXPECT_EQ(head.Close(13, false, 1000), "suspect 1") << "broken on this side: proves nothing";
  EXPECT_EQ(head.Until(10'399), "");
  EXPECT_EQ(head.Until(10'400), "dead 1: its link was lost and it did not come back");
}

TEST(Membership, ANewerLinkTakesThePlaceOfTheOlder) {
  Head head;
  head.Join(11, Description(1), 0);
  EXPECT_EQ(head.Join(12, Description(1), 10, 1), "close 11; accept 1 again on 12 epoch 1");
  EXPECT_EQ(head.Close(11, true, 20), "") << "of no importance any more";
  EXPECT_EQ(head.Beat(11, 3, 20), "");
  EXPECT_EQ(head.Until(9000), "");
}

TEST(Membership, NamesBelongToOneNodeAndNumbersToOneForEver) {
  Head head;
  head.Join(11, Description(1, "big"), 0);
  EXPECT_EQ(head.Join(12, Description(2, "big"), 0),
            "refuse 12: the name big belongs to node 1 at 10.0.0.1:7000; stop that one, or choose another: weft start "
            "--name=...");
  head.Close(11, true, 0);
  EXPECT_EQ(
      head.Join(13, Description(2, "big"), 100),
      "refuse 13: the name big belongs to node 1 at 10.0.0.1:7000, whose link is lost; it is free in 0.5 s unless "
      "that node comes back");
  EXPECT_EQ(head.Until(700), "dead 1: its link was lost and it did not come back");
  EXPECT_EQ(head.Join(14, Description(2, "big"), 700), "accept 2 on 14 epoch 1");
  EXPECT_EQ(head.Join(15, Description(1, "big"), 700, 1),
            "refuse 15: node 1, big, was declared dead; what it ran may run elsewhere by now");
  EXPECT_EQ(head.Join(16, Description(3, "a b"), 700),
            "refuse 16: a node's name has 1 to 255 characters without spaces: weft start --name=...");
  EXPECT_EQ(head(GoodbyeCame{14, 800 * kMs}), "dead 2: it was stopped; close 14");
  EXPECT_EQ(head.Join(17, Description(4, "big"), 800), "accept 3 on 17 epoch 1");
}

TEST(Membership, ALinkIsOneNodes) {
  Head head;
  head.Join(11, Description(1), 0);
  EXPECT_EQ(head.Join(11, Description(2), 0), "refuse 11: this link is node 1's; one link, one node");
  head.Join(12, Description(2), 0);
  EXPECT_EQ(head.Join(12, Description(1), 0), "refuse 12: this link is node 2's; one link, one node");
  EXPECT_EQ(head.Join(11, Description(1), 0), "accept 1 again on 11 epoch 1") << "said twice";
}

TEST(Membership, AnotherProtocolIsRefusedByName) {
  Head head;
  EXPECT_EQ(head(JoinAsked{11, {}, 0, 1, 8, Description(1), 0}),
            "refuse 11: the node speaks protocol 8 and the head protocol 7; install the same version of weft on both");
  EXPECT_EQ(head.machine.members().size(), 0);
}

TEST(Membership, ARestartedHeadWaitsOneLease) {
  Head head(2);
  MembersRestored restored{{{NodeNumber{3}, Description(1)}, {NodeNumber{5}, Description(2)}}, NodeNumber{9}, 0};
  EXPECT_EQ(head(restored), "");
  EXPECT_EQ(head(JoiningBegan{0}), "");
  EXPECT_EQ(head.Join(11, Description(1), 500, 3, 1), "accept 3 again on 11 epoch 2");
  EXPECT_EQ(head.Join(12, Description(7), 500), "accept 9 on 12 epoch 2") << "no number is given out twice";
  EXPECT_EQ(head.Until(9'999), "");
  EXPECT_EQ(head.Until(10'000), "dead 5: it did not come back within 10.0 s after the head had restarted");
}

TEST(Membership, ARestartedHeadGivesUpNobodyBeforeItLetsThemJoin) {
  Head head(2);
  EXPECT_EQ(head(MembersRestored{{{NodeNumber{3}, Description(1)}}, NodeNumber{9}, 0}), "");
  // The control store is away, so that it is not the head yet.
  for (int64_t ms = 0; ms <= 30'000; ms += 500) EXPECT_EQ(head(MembershipTicked{ms * kMs}), "");
  EXPECT_EQ(head(JoiningBegan{30'100 * kMs}), "");
  EXPECT_EQ(head.Until(40'099), "");
  EXPECT_EQ(head.Until(40'100), "dead 3: it did not come back within 10.0 s after the head had restarted");
}

TEST(Membership, AHeadThatHearsOfANewerOneStepsDown) {
  Head head(2);
  head.Join(11, Description(1), 0);
  EXPECT_EQ(head.Join(12, Description(2), 0, 4, 3),
            "step down for 3; refuse 12: another head has taken over this cluster; join that one");
  EXPECT_EQ(head.Beat(11, 2, 10), "");
  EXPECT_EQ(head.Until(100'000), "") << "it declares nobody dead any more";
  EXPECT_TRUE(head.machine.deposed());
}

TEST(Membership, TheHeadsOwnAbsenceIsNobodysFault) {
  Head head;
  head.Join(11, Description(1), 0);
  head.Until(1000);
  // The head was stopped for a minute. The node's beats lie in the socket.
  EXPECT_EQ(head(MembershipTicked{61'000 * kMs}), "");
  EXPECT_EQ(head.Beat(11, 2, 61'001), "confirm 2");
  EXPECT_EQ(head.Until(71'000), "");
  EXPECT_EQ(head.Until(71'001), "dead 1: it was silent for 10.0 s; close 11");
}

TEST(Membership, AHeadThatWakesLateGivesWhoLostItsLinkTheTimeThatItSlept) {
  Head head;
  head.Join(11, Description(1), 0);
  EXPECT_EQ(head(MemberLinkClosed{11, true, 100 * kMs}), "suspect 1");
  // For less than would be an absence. The node could not come back meanwhile.
  EXPECT_EQ(head(MembershipTicked{1500 * kMs}), "");
  EXPECT_EQ(head.Until(2099), "");
  EXPECT_EQ(head.Until(2101), "dead 1: its link was lost and it did not come back");
}

// ---- nodes that cannot reach each other

// A head, which is node 1, and nodes 2 to 4 with the links 12 to 14.
class Four : public Head {
 public:
  Four() {
    (*this)(JoinAsked{.link = 11, .beat = 1, .protocol = 7, .node = Description(1), .own = true});
    for (uint64_t i = 2; i <= 4; ++i) Join(10 + i, Description(i), 0);
  }
  std::string Beats(int64_t ms) {
    std::string text;
    for (uint64_t link = 11; link <= 14; ++link) {
      const std::string said = Beat(link, ++beat_, ms);
      if (const size_t more = said.find("; "); more != std::string::npos) {
        text += (text.empty() ? "" : "; ") + said.substr(more + 2);
      }
    }
    return text;
  }

 private:
  uint64_t beat_ = 1;
};

TEST(Membership, OfTwoThatCannotReachEachOtherTheLaterGoes) {
  Four head;
  EXPECT_EQ(head.Unreachable(3, 2, 1000), "");
  EXPECT_EQ(head.Unreachable(2, 3, 1200), "");
  EXPECT_EQ(head.Beats(1400), "") << "others may have to complain too";
  EXPECT_EQ(head.Until(2599), "");
  EXPECT_EQ(head.Until(2600), "suspect 3; expel 3 over 13: it could not reach node 2 (n2) for 5.1 s: silence");
  EXPECT_EQ(head.Until(2700), "") << "node 2 stays, whatever it says of node 3";
  EXPECT_EQ(head.Beat(13, 7, 2800), "") << "not confirmed any more";
  EXPECT_EQ(head.Until(2900), "");
  EXPECT_EQ(head.Close(13, true, 3000), "") << "it has given up";
  EXPECT_EQ(head.Until(3599), "");
  EXPECT_EQ(head.Until(3600), "dead 3: it could not reach node 2 (n2) for 5.1 s: silence");
}

TEST(Membership, WhoHasMoreTroubleGoesAndTheHeadStays) {
  Four head;
  head.Unreachable(3, 2, 1000);
  head.Beats(1100);
  head.Unreachable(4, 2, 2000);
  EXPECT_EQ(head.Until(2500), "suspect 2; expel 2 over 12: node 3 (n3) could not reach it for 5.0 s: silence");
  EXPECT_EQ(head.Until(3600), "") << "one of each pair is enough";

  Four other;
  other.Unreachable(1, 2, 1000);
  other.Unreachable(3, 1, 1000);
  other.Unreachable(4, 1, 1000);
  other.Beats(1100);
  EXPECT_EQ(other.Until(2500),
            "suspect 2; expel 2 over 12: node 1 (n1) could not reach it for 5.0 s: silence; "
            "suspect 3; expel 3 over 13: it could not reach node 1 (n1) for 5.0 s: silence; "
            "suspect 4; expel 4 over 14: it could not reach node 1 (n1) for 5.0 s: silence");
}

TEST(Membership, AComplaintCanBeTakenBack) {
  Four head;
  head.Unreachable(3, 2, 1000);
  head.Beats(1100);
  head.Reachable(3, 2, 2400);
  EXPECT_EQ(head.Until(4000), "");
  EXPECT_EQ(head.Unreachable(3, 9, 4000), "") << "of one that is dead";
  EXPECT_EQ(head.Unreachable(9, 3, 4000), "");
  EXPECT_EQ(head.Unreachable(3, 3, 4000), "");
}

TEST(Membership, WhoHangsIsJudgedByItsLease) {
  Four head;
  head.Unreachable(3, 2, 1000);
  // All but node 2 go on.
  for (int64_t ms = 1500; ms < 8000; ms += 1500) {
    for (uint64_t link : {11, 13, 14})
      EXPECT_EQ(head.Beat(link, static_cast<uint64_t>(ms), ms), "confirm " + std::to_string(ms));
    EXPECT_EQ(head.Until(ms + 1000), "");
  }
  EXPECT_EQ(head.Until(10'100), "dead 2: it was silent for 10.0 s; close 12");
}

TEST(Membership, WhoHadStoodStillHasAMomentToBeReachedAgain) {
  Four head;
  head.Unreachable(3, 2, 1000);
  for (int64_t ms = 2000; ms < 6000; ms += 1000) {
    for (uint64_t link : {11, 13, 14}) head.Beat(link, static_cast<uint64_t>(ms), ms);
    EXPECT_EQ(head.Until(ms + 900), "");
  }
  EXPECT_EQ(head.Beat(12, 2, 6000), "confirm 2");
  EXPECT_EQ(head.Until(7199), "");
  EXPECT_EQ(head.Reachable(3, 2, 7199), "");
  EXPECT_EQ(head.Until(9000), "");
}

TEST(Membership, OneThatDoesNotHearThatItMustGoIsDeadWhenItsLeaseEnds) {
  Four head;
  head.Unreachable(2, 3, 1000);
  head.Beats(1100);
  EXPECT_EQ(head.Until(2500), "suspect 3; expel 3 over 13: node 2 (n2) could not reach it for 5.0 s: silence");
  EXPECT_EQ(head.Close(13, false, 2600), "") << "broken on this side: proves nothing";
  EXPECT_EQ(head.Join(23, Description(3), 3000, 3),
            "expel 3 over 23: node 2 (n2) could not reach it for 5.0 s: silence")
      << "it comes back as what it was, and is told again";
  for (int64_t ms = 4000; ms <= 11'000; ms += 1000) {
    head.Beats(ms);
    EXPECT_EQ(head.Beat(23, 9, ms), "");
    EXPECT_EQ(head.Until(ms + 99), "");
  }
  EXPECT_EQ(head.Until(11'100), "dead 3: node 2 (n2) could not reach it for 5.0 s: silence; close 23");
}

TEST(Membership, WhoHadToGoComesBackAfterAPauseThatGrows) {
  Four head;
  uint32_t number = 4;
  uint64_t link = 14, identity = 40;
  int64_t ms = 1000;
  std::vector<int64_t> pauses;
  for (int round = 0; round < 7; ++round) {
    head.Unreachable(2, number, ms);
    head.Beats(ms + 300);
    head.Beat(link, 5, ms + 300);
    const std::string expelled = head.Until(ms + 1500);
    EXPECT_NE(expelled.find("expel " + std::to_string(number)), std::string::npos) << expelled;
    head.Close(link, true, ms + 1600);
    ASSERT_NE(head.Until(ms + 2200).find("dead"), std::string::npos);
    const int64_t out = ms + 1500;
    ms += 2300;
    for (;; ms += 1000) {
      head.Beats(ms);
      const std::string said = head.Join(++link, Description(++identity, "n4"), ms);
      if (said.starts_with("accept")) break;
      EXPECT_NE(said.find("refuse " + std::to_string(link) +
                          ": the node n4 had to leave (node 2 (n2) could not reach it for 5.0 s: silence) and may "
                          "come back in "),
                std::string::npos)
          << said;
    }
    pauses.push_back((ms - out) / 1000);
    number = head.machine.NodeOf(link).value;
  }
  EXPECT_EQ(pauses, (std::vector<int64_t>{10, 20, 40, 80, 160, 300, 300}));
  // After a long time in peace it begins anew.
  for (const int64_t until = ms + 901'000; ms < until; ms += 1000) {
    head.Beats(ms);
    head.Beat(link, 6, ms);
    ASSERT_EQ(head.Until(ms + 900), "");
  }
  head.Unreachable(2, number, ms);
  head.Beats(ms + 300);
  head.Beat(link, 7, ms + 300);
  EXPECT_NE(head.Until(ms + 1500).find("expel"), std::string::npos);
  head.Close(link, true, ms + 1600);
  head.Until(ms + 2200);
  const std::string said = head.Join(++link, Description(++identity, "n4"), ms + 2500);
  EXPECT_NE(said.find("may come back in 9.0 s"), std::string::npos) << said << ": the rest of ten seconds";
}

using Node = Transcript<NodeLease, LeaseAction>;

TEST(NodeLease, FreezesBeforeTheHeadGivesItUpAndThawsWhenConfirmed) {
  Node node;
  EXPECT_EQ(node(HeadLinked{100 * kMs}), "join, was 0");
  EXPECT_EQ(node(HeadAccepted{1, 1, NodeNumber{4}, 8 * kSecond, 2100 * kMs}), "");
  EXPECT_EQ(node.machine.end_ns(), 7100 * kMs) << "seven eighths, counted from the sending";
  EXPECT_EQ(node(LeaseTicked{4000 * kMs}), "beat 2");
  EXPECT_EQ(node(LeaseTicked{7099 * kMs}), "beat 3");
  EXPECT_EQ(node(LeaseTicked{7100 * kMs}), "freeze: the head has not confirmed this node's lease in time");
  EXPECT_EQ(node(LeaseConfirmed{1, 2, 9000 * kMs}), "thaw") << "good until 11 s";
  EXPECT_EQ(node(LeaseTicked{11'000 * kMs}), "freeze: the head has not confirmed this node's lease in time; beat 4");
  EXPECT_EQ(node(LeaseConfirmed{1, 2, 11'001 * kMs}), "") << "twice the same";
  EXPECT_EQ(node(LeaseConfirmed{1, 3, 20'000 * kMs}), "") << "too late to be worth anything";
  EXPECT_EQ(node(HeadDeclaredUsDead{1, "silent", 21'000 * kMs}), "give up: silent");
  EXPECT_EQ(node(HeadLinked{22'000 * kMs}), "join, was 0");
}

TEST(NodeLease, FreezesSoonWithoutItsLink) {
  Node node;
  node(HeadLinked{0});
  node(HeadAccepted{1, 1, NodeNumber{4}, 8 * kSecond, 0});
  EXPECT_EQ(node(HeadLinkLost{1000 * kMs}), "link");
  EXPECT_EQ(node.machine.next_wakeup_ns(), 1250 * kMs);
  EXPECT_EQ(node(LeaseTicked{1250 * kMs}), "freeze: the link to the head is lost");
  EXPECT_EQ(node(HeadLinked{1300 * kMs}), "join, was 4");
  EXPECT_EQ(node(HeadAccepted{1, 2, NodeNumber{4}, 8 * kSecond, 1400 * kMs}), "thaw");
}

TEST(NodeLease, TheEndOfTheHeadIsNoPartition) {
  Node node;
  node(HeadLinked{0});
  node(HeadAccepted{1, 1, NodeNumber{4}, 8 * kSecond, 0});
  node(HeadLinkLost{1000 * kMs});
  EXPECT_EQ(node(HeadEnded{1020 * kMs}), "");
  EXPECT_EQ(node.machine.next_wakeup_ns(), 7 * kSecond);
  EXPECT_EQ(node(LeaseTicked{7 * kSecond}), "freeze: the head has not confirmed this node's lease in time");

  // Seen too late: it may have declared us dead before it ended.
  Node late;
  late(HeadLinked{0});
  late(HeadAccepted{1, 1, NodeNumber{4}, 8 * kSecond, 0});
  late(HeadLinkLost{1000 * kMs});
  EXPECT_EQ(late(HeadEnded{1300 * kMs}), "freeze: the link to the head is lost");
}

TEST(NodeLease, AnOlderHeadIsNotObeyed) {
  Node node;
  node(HeadLinked{0});
  node(HeadAccepted{5, 1, NodeNumber{4}, 8 * kSecond, 0});
  EXPECT_FALSE(node.machine.Accepts(4));
  EXPECT_TRUE(node.machine.Accepts(6));
  EXPECT_EQ(node(HeadDeclaredUsDead{4, "by the former head", kSecond}), "");
  EXPECT_EQ(node(LeaseTicked{2 * kSecond}), "beat 2");
  node(LeaseConfirmed{4, 2, 2 * kSecond});
  EXPECT_EQ(node.machine.end_ns(), 7 * kSecond) << "not extended";
  node.machine.faults.obey_any_head = true;
  EXPECT_EQ(node(HeadDeclaredUsDead{4, "by the former head", 3 * kSecond}), "give up: by the former head")
      << "the planted bug shows";
}

// A head and some nodes with clocks of their own, which differ by hours and by 5 % in speed, and a network that delays,
// parts and resets. Heads and nodes are killed, restarted and stopped for a while.
//
// Pairs of nodes are parted from each other, too, for a while or for good; each complains of the other after some
// seconds. That an expelled node is told is a courtesy, which may fail: beats that are not confirmed say the same.
//
// Checked all along: a node that was declared dead does not work, on its own judgement, from that very moment; who is
// expelled cannot be reached by somebody who stays; of two that cannot reach each other both do not stay for long.
class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    head_clock_ = NewClock();
    StartHead();
    for (int i = 0; i < 3; ++i) AddNode();
  }

  void Run(int64_t until_ns) {
    Later(random_.Below(kSecond), [this] { Trouble(); });
    while (now_ < until_ns) Step();
  }

  // No more trouble: those that live are members again after a while, and nobody else is.
  void Settle() {
    quiet_ = true;
    Heal();
    for (auto& [id, node] : nodes_) node->parted = false;
    if (head_paused_) ResumeHead();
    if (head_ == nullptr) StartHead();
    for (auto& [id, node] : nodes_) {
      if (node->paused) Resume(*node);
    }
    int64_t until = now_ + 120 * kSecond;
    while (now_ < until) Step();
    size_t living = 0;
    for (auto& [id, node] : nodes_) {
      if (!node->alive) continue;
      ++living;
      WEFT_CHECK(node->lease.node() && !node->lease.frozen(), "who lives works");
      WEFT_CHECK(head_->members().contains(node->lease.node()), "who lives is a member");
    }
    WEFT_CHECK(head_->members().size() == living, "who is dead is no member");
  }

  // All is well, but for two nodes that cannot reach each other.
  void SettleParted() {
    quiet_ = true;
    Heal();
    for (auto& [id, node] : nodes_) {
      node->parted = false;
      if (node->paused) Resume(*node);
    }
    if (head_paused_) ResumeHead();
    if (head_ == nullptr) StartHead();
    std::vector<uint64_t> living;
    for (auto& [id, node] : nodes_) {
      if (node->alive) living.push_back(id);
    }
    if (living.size() < 2) return;
    Part(living[0], living[1], 1000 * kSecond);
    int64_t both_since = now_;
    for (const int64_t until = now_ + 100 * kSecond; now_ < until;) {
      Step();
      auto works = [&](uint64_t id) {
        const NodeLease& lease = nodes_.at(id)->lease;
        return lease.node() && !lease.frozen() && head_->members().contains(lease.node());
      };
      if (!works(living[0]) || !works(living[1])) both_since = now_;
      WEFT_CHECK(now_ - both_since < 45 * kSecond, "of two that cannot reach each other one goes");
    }
  }

  int deaths = 0, false_deaths = 0, freezes = 0, thaws = 0, restarts = 0, expelled = 0, taken_back = 0;
  std::function<void(Membership&)> plant_in_head = [](Membership&) {};
  std::function<void(NodeLease&)> plant_in_node = [](NodeLease&) {};
  // Plants must be there from the beginning.
  void Replant() {
    plant_in_head(*head_);
    for (auto& [id, node] : nodes_) plant_in_node(node->lease);
  }

 private:
  struct Clock {
    int64_t offset = 0;
    int64_t permille = 1000;
    int64_t At(int64_t now) const { return offset + now / 1000 * permille; }
    int64_t Back(int64_t local) const {
      return local == INT64_MAX ? INT64_MAX : ((local - offset) / permille + 1) * 1000;
    }
  };
  struct TestNode {
    uint64_t id = 0;
    uint64_t identity = 0;
    NodeLease lease;
    Clock clock;
    bool alive = true, paused = false, parted = false;
    uint64_t link = 0;                                // on its side; 0: none
    std::vector<std::function<void()>> held_to_head;  // by the partition, or while the receiver does not run
    std::vector<std::function<void()>> held_to_node;
    int64_t not_before = 0;          // the head wants it
    std::set<NodeNumber> complains;  // of these, as far as it knows
    uint64_t complained_to = 0;      // the head of this epoch
    NodeNumber complained_as;
  };

  Clock NewClock() {
    return {static_cast<int64_t>(random_.Below(7200)) * kSecond, static_cast<int64_t>(950 + random_.Below(101))};
  }
  void Later(int64_t delay, std::function<void()> what) { queue_.emplace(now_ + delay, std::move(what)); }

  void AddNode() {
    auto node = std::make_unique<TestNode>();
    node->id = next_id_++;
    node->identity = next_identity_++;
    node->clock = NewClock();
    plant_in_node(node->lease);
    nodes_[node->id] = std::move(node);
    Connect(next_id_ - 1);
  }

  void StartHead() {
    Membership::Config config;
    config.epoch = ++epoch_;
    // It need not be what an earlier one had; what is written is the longest that any member may have.
    if (random_.Chance(50)) config.lease_ns = static_cast<int64_t>(10 + random_.Below(21)) * kSecond;
    const int64_t former_ns = stored_lease_ns_;
    stored_lease_ns_ = stored_.empty() ? config.lease_ns : std::max(former_ns, config.lease_ns);
    config.first_pause_ns = 2 * kSecond;
    config.last_pause_ns = 20 * kSecond;
    told_.clear();
    expelled_.clear();
    head_ = std::make_unique<Membership>(config);
    plant_in_head(*head_);
    std::vector<MembershipAction> actions;
    head_->Handle(MembersRestored{{stored_.begin(), stored_.end()}, NodeNumber{next_number_}, former_ns, HeadNow()},
                  actions);
    head_->Handle(JoiningBegan{HeadNow()}, actions);
    ++restarts;
  }

  int64_t HeadNow() const { return head_clock_.At(now_); }

  // Tries until there is a link.
  void Connect(uint64_t id) {
    TestNode& node = *nodes_.at(id);
    if (!node.alive || node.link != 0) return;
    if (now_ < node.not_before) {
      Later(node.not_before - now_, [this, id] { Connect(id); });
      return;
    }
    if (!node.paused && !node.parted && head_ == nullptr) FeedNode(node, HeadEnded{node.clock.At(now_)});
    if (node.paused || node.parted || head_ == nullptr || head_paused_) {
      Later(50 * kMs, [this, id] { Connect(id); });
      return;
    }
    node.link = next_link_++;
    FeedNode(node, HeadLinked{node.clock.At(now_)});
  }

  // The network, one direction each; keeps the order because what is held is delivered first.
  void ToHead(TestNode& node, std::function<void()> what) {
    uint64_t id = node.id;
    Later(Delay(node, true), [this, id, what = std::move(what)] {
      TestNode& from = *nodes_.at(id);
      if (from.parted || head_paused_) {
        from.held_to_head.push_back(what);
      } else {
        what();
      }
    });
  }
  void ToNode(TestNode& node, std::function<void()> what) {
    uint64_t id = node.id;
    Later(Delay(node, false), [this, id, what = std::move(what)] {
      TestNode& to = *nodes_.at(id);
      if (to.parted || to.paused) {
        to.held_to_node.push_back(what);
      } else {
        what();
      }
    });
  }
  int64_t Delay(TestNode& node, bool to_head) {
    int64_t& last = last_arrival_[{node.id, to_head}];
    last = std::max(last + 1, now_ + static_cast<int64_t>(random_.Below(random_.Chance(5) ? 3 * kSecond : 20 * kMs)));
    return last - now_;
  }
  void Release(TestNode& node) {
    if (node.parted) return;
    if (!head_paused_) {
      auto held = std::move(node.held_to_head);
      node.held_to_head.clear();
      for (auto& what : held) what();
    }
    if (!node.paused) {
      auto held = std::move(node.held_to_node);
      node.held_to_node.clear();
      for (auto& what : held) what();
    }
  }

  template <class Event>
  void FeedHead(const Event& event) {
    if (head_ == nullptr) return;
    std::vector<MembershipAction> actions;
    head_->Handle(event, actions);
    head_->CheckInvariants();
    for (auto& action : actions) {
      if (auto* accept = std::get_if<AcceptNode>(&action)) {
        stored_[accept->node] = head_->members().at(accept->node).description;
        next_number_ = std::max(next_number_, accept->node.value + 1);
        SendToLink(accept->link, [this, a = *accept](TestNode& node) {
          FeedNode(node, HeadAccepted{a.epoch, a.beat, a.node, a.lease_ns, node.clock.At(now_)});
        });
      } else if (auto* refuse = std::get_if<RefuseNode>(&action)) {
        SendToLink(refuse->link, [this, r = *refuse](TestNode& node) {
          if (r.kind == RefuseNode::Kind::kDeclaredDead) {
            FeedNode(node, HeadDeclaredUsDead{epoch_, r.why, node.clock.At(now_)});
          } else {
            node.not_before = now_ + r.wait_ns;
            LoseLink(node);
          }
        });
      } else if (auto* expel = std::get_if<ExpelNode>(&action)) {
        Expelled(*expel);
      } else if (auto* confirm = std::get_if<ConfirmLease>(&action)) {
        SendToLink(confirm->link, [this, c = *confirm](TestNode& node) {
          FeedNode(node, LeaseConfirmed{c.epoch, c.beat, node.clock.At(now_)});
        });
      } else if (auto* close = std::get_if<CloseMemberLink>(&action)) {
        SendToLink(close->link, [this](TestNode& node) { LoseLink(node); });
      } else if (auto* dead = std::get_if<DeclareDead>(&action)) {
        ++deaths;
        stored_.erase(dead->node);
        std::erase_if(told_, [&](const auto& pair) { return pair.first == dead->node || pair.second == dead->node; });
        dead_.insert(dead->node);
        for (auto& [id, node] : nodes_) {
          if (node->lease.node() == dead->node && node->alive) ++false_deaths;
        }
      }
    }
  }

  // ---- pairs that cannot reach each other

  void Part(uint64_t one, uint64_t other, int64_t for_ns) {
    if (one == other || Parted(one, other)) return;
    cut_[{std::min(one, other), std::max(one, other)}] = now_ + for_ns;
    for (const auto& [by, of] : {std::pair(one, other), std::pair(other, one)}) {
      const int64_t notice = 3 * kSecond + static_cast<int64_t>(random_.Below(7 * kSecond));
      Later(notice, [this, by = by, of = of] { Notice(by, of); });
    }
  }
  bool Parted(uint64_t one, uint64_t other) const {
    auto found = cut_.find({std::min(one, other), std::max(one, other)});
    return found != cut_.end() && now_ < found->second;
  }
  void Heal() { cut_.clear(); }

  // Again and again, for as long as they are parted, since both may have new numbers; and once when they are not.
  void Notice(uint64_t by, uint64_t of) {
    const bool parted = Parted(by, of);
    TestNode& node = *nodes_.at(by);
    const NodeNumber other = nodes_.at(of)->lease.node();
    Later((parted ? 1000 : 300) * kMs, [this, by, of, parted] {
      if (parted) Notice(by, of);
    });
    if (!node.alive || node.paused || !node.lease.node() || node.link == 0) {
      if (!parted) Later(300 * kMs, [this, by, of] { Notice(by, of); });
      return;
    }
    // A flow lasts as long as both lives; a new head has heard nothing.
    if (node.complained_to != node.lease.epoch() || node.complained_as != node.lease.node()) node.complains.clear();
    node.complained_to = node.lease.epoch();
    node.complained_as = node.lease.node();
    if (parted && other && node.complains.insert(other).second) {
      Say(node, other, true);
    } else if (!parted && node.complains.erase(other) > 0) {
      Say(node, other, false);
      ++taken_back;
    }
  }

  // In the flow with the head of this epoch: it arrives, whatever happens to links.
  void Say(TestNode& node, NodeNumber other, bool unreachable) {
    const uint64_t epoch = node.lease.epoch();
    const NodeNumber by = node.lease.node();
    ToHead(node, [this, epoch, by, other, unreachable] {
      if (head_ == nullptr || epoch != epoch_) return;
      if (!unreachable) {
        told_.erase({by, other});
        FeedHead(ReachableSaid{by, other, HeadNow()});
      } else if (head_->members().contains(by) && head_->members().contains(other)) {
        told_.insert({by, other});
        FeedHead(UnreachableSaid{by, other, 0, "", HeadNow()});
      }
    });
  }

  void Expelled(const ExpelNode& expel) {
    if (expelled_.insert(expel.node).second) {
      ++expelled;
      bool with_cause = false;
      for (const auto& [by, of] : told_) {
        if (by != expel.node && of != expel.node) continue;
        with_cause = with_cause || !expelled_.contains(by == expel.node ? of : by);
      }
      WEFT_CHECK(with_cause, "who is expelled cannot be reached by one that stays");
    }
    if (random_.Chance(30)) return;
    SendToLink(expel.link, [this, why = expel.why](TestNode& node) {
      FeedNode(node, HeadDeclaredUsDead{epoch_, why, node.clock.At(now_)});
    });
  }

  void SendToLink(uint64_t link, std::function<void(TestNode&)> what) {
    for (auto& [id, node] : nodes_) {
      if (link_owner_[link] != id) continue;
      ToNode(*node, [this, id = id, link, what = std::move(what)] {
        TestNode& to = *nodes_.at(id);
        if (to.alive && to.link == link) what(to);
      });
      return;
    }
  }

  template <class Event>
  void FeedNode(TestNode& node, const Event& event) {
    if (!node.alive) return;
    std::vector<LeaseAction> actions;
    node.lease.Handle(event, actions);
    node.lease.CheckInvariants();
    for (auto& action : actions) {
      uint64_t link = node.link;
      if (auto* join = std::get_if<SendJoin>(&action)) {
        link_owner_[link] = node.id;
        JoinAsked asked{link, join->was, join->epoch, join->beat, 0, Description(node.identity), 0};
        ToHead(node, [this, asked]() mutable {
          asked.now_ns = HeadNow();
          FeedHead(asked);
        });
      } else if (auto* beat = std::get_if<SendBeat>(&action)) {
        ToHead(node, [this, link, b = *beat] { FeedHead(BeatCame{link, b.beat, b.epoch, HeadNow()}); });
      } else if (std::get_if<LinkToHead>(&action) != nullptr) {
        Later(10 * kMs, [this, id = node.id] { Connect(id); });
      } else if (std::get_if<FreezeWork>(&action) != nullptr) {
        ++freezes;
      } else if (std::get_if<ThawWork>(&action) != nullptr) {
        ++thaws;
      } else if (std::get_if<GiveUpWork>(&action) != nullptr) {
        node.identity = next_identity_++;
        // All that it ran has ended, and then it closes its link.
        if (const uint64_t closed = std::exchange(node.link, 0); closed != 0) {
          ToHead(node, [this, closed] { FeedHead(MemberLinkClosed{closed, true, HeadNow()}); });
        }
        Later(10 * kMs, [this, id = node.id] { Connect(id); });
      }
    }
  }

  // The node's side of its link is gone, and it knows.
  void LoseLink(TestNode& node) {
    if (node.link == 0) return;
    uint64_t link = std::exchange(node.link, 0);
    ToHead(node, [this, link] { FeedHead(MemberLinkClosed{link, true, HeadNow()}); });
    FeedNode(node, HeadLinkLost{node.clock.At(now_)});
  }

  void Resume(TestNode& node) {
    node.paused = false;
    FeedNode(node, LeaseTicked{node.clock.At(now_)});
    Release(node);
  }
  void ResumeHead() {
    head_paused_ = false;
    if (head_ != nullptr) FeedHead(MembershipTicked{HeadNow()});
    for (auto& [id, node] : nodes_) Release(*node);
  }

  void Trouble() {
    if (quiet_) return;
    Later(random_.Below(4 * kSecond), [this] { Trouble(); });
    TestNode& node = *std::next(nodes_.begin(), random_.Below(nodes_.size()))->second;
    switch (random_.Below(11)) {
      case 0:  // the daemon is killed, and another one starts
        if (!node.alive || random_.Chance(50)) break;
        node.alive = false;
        if (node.link != 0) {
          ToHead(node, [this, link = node.link] { FeedHead(MemberLinkClosed{link, true, HeadNow()}); });
        }
        if (nodes_.size() < 8) AddNode();
        break;
      case 1:
      case 2:
        node.parted = true;
        Later(random_.Below(20 * kSecond), [this, id = node.id] {
          nodes_.at(id)->parted = false;
          Release(*nodes_.at(id));
        });
        break;
      case 3:
        node.paused = true;
        Later(random_.Below(20 * kSecond), [this, id = node.id] {
          if (nodes_.at(id)->paused) Resume(*nodes_.at(id));
        });
        break;
      case 4:  // the link breaks on the node's side
        if (node.alive && !node.paused) LoseLink(node);
        break;
      case 5:  // or on the head's, which tells the node, if that can be told
        if (node.alive && node.link != 0 && !head_paused_) {
          uint64_t link = node.link;
          FeedHead(MemberLinkClosed{link, false, HeadNow()});
          ToNode(node, [this, id = node.id, link] {
            TestNode& to = *nodes_.at(id);
            if (to.link == link) LoseLink(to);
          });
        }
        break;
      case 6:
        if (head_ == nullptr || random_.Chance(50)) break;
        head_.reset();
        for (auto& [id, other] : nodes_) {
          ToNode(*other, [this, id = id, link = other->link] {
            TestNode& to = *nodes_.at(id);
            if (link != 0 && to.link == link) LoseLink(to);
          });
        }
        Later(random_.Below(15 * kSecond), [this] {
          if (head_ == nullptr) StartHead();
        });
        break;
      case 7:
        head_paused_ = true;
        Later(random_.Below(20 * kSecond), [this] {
          if (head_paused_) ResumeHead();
        });
        break;
      case 8:
      case 9:
        Part(node.id, std::next(nodes_.begin(), random_.Below(nodes_.size()))->second->id,
             static_cast<int64_t>(random_.Below(30 * kSecond)));
        break;
      default:
        break;
    }
  }

  void Step() {
    // The next of: what is on its way, and whoever wants to look at its clock.
    int64_t next = queue_.empty() ? now_ + kSecond : queue_.begin()->first;
    TestNode* ticks = nullptr;
    bool head_ticks = false;
    auto consider = [&](int64_t at, TestNode* node) {
      if (at >= next) return;
      next = std::max(at, now_);
      ticks = node;
      head_ticks = node == nullptr;
    };
    if (head_ != nullptr && !head_paused_) consider(head_clock_.Back(head_->next_wakeup_ns()), nullptr);
    for (auto& [id, node] : nodes_) {
      if (node->alive && !node->paused) consider(node->clock.Back(node->lease.next_wakeup_ns()), node.get());
    }
    now_ = std::max(now_, next);
    if (head_ticks) {
      FeedHead(MembershipTicked{HeadNow()});
    } else if (ticks != nullptr) {
      FeedNode(*ticks, LeaseTicked{ticks->clock.At(now_)});
    } else if (!queue_.empty() && queue_.begin()->first <= now_) {
      auto what = std::move(queue_.begin()->second);
      queue_.erase(queue_.begin());
      what();
    }
    for (auto& [id, node] : nodes_) {
      bool works = node->alive && !node->paused && node->lease.node() && !node->lease.frozen();
      WEFT_CHECK(!works || !dead_.contains(node->lease.node()), "who was declared dead does not work");
    }
  }

  Random random_;
  int64_t now_ = 0;
  bool quiet_ = false;
  std::multimap<int64_t, std::function<void()>> queue_;
  std::map<std::pair<uint64_t, bool>, int64_t> last_arrival_;
  std::map<uint64_t, std::unique_ptr<TestNode>> nodes_;
  std::map<uint64_t, uint64_t> link_owner_;
  std::unique_ptr<Membership> head_;
  Clock head_clock_;
  bool head_paused_ = false;
  uint64_t epoch_ = 0;
  std::map<NodeNumber, NodeDescription> stored_;
  uint32_t next_number_ = 1;
  int64_t stored_lease_ns_ = 0;
  std::set<NodeNumber> dead_;
  std::map<std::pair<uint64_t, uint64_t>, int64_t> cut_;  // ids, the lower first, and until when
  std::set<std::pair<NodeNumber, NodeNumber>> told_;      // who complains of whom, as this head was told
  std::set<NodeNumber> expelled_;                         // by this head
  uint64_t next_id_ = 1, next_identity_ = 1, next_link_ = 1;
};

TEST(Membership, WhoWasDeclaredDeadDoesNotWork) {
  int deaths = 0, false_deaths = 0, freezes = 0, thaws = 0, restarts = 0, expelled = 0, taken_back = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    world.Run(120 * kSecond);
    if (seed % 4 == 0) world.SettleParted();
    world.Settle();
    expelled += world.expelled;
    taken_back += world.taken_back;
    deaths += world.deaths;
    false_deaths += world.false_deaths;
    freezes += world.freezes;
    thaws += world.thaws;
    restarts += world.restarts;
  }
  EXPECT_GT(deaths, 1000);
  EXPECT_GT(false_deaths, 200);
  EXPECT_GT(freezes, 1000);
  EXPECT_GT(thaws, 500);
  EXPECT_GT(restarts, 500);
  EXPECT_GT(expelled, 500);
  EXPECT_GT(taken_back, 500);
}

void RunWithFaults(const std::function<void(Membership&)>& in_head, const std::function<void(NodeLease&)>& in_node) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    World world(seed);
    world.plant_in_head = in_head;
    world.plant_in_node = in_node;
    world.Replant();
    world.Run(120 * kSecond);
    if (seed % 4 == 0) world.SettleParted();
    world.Settle();
  }
}

TEST(MembershipDeathTest, PlantedBugsAreFound) {
  auto head = [](bool Membership::Faults::* fault) {
    RunWithFaults([=](Membership& machine) { machine.faults.*fault = true; }, [](NodeLease&) {});
  };
  auto node = [](bool NodeLease::Faults::* fault) {
    RunWithFaults([](Membership&) {}, [=](NodeLease& machine) { machine.faults.*fault = true; });
  };
  EXPECT_DEATH(head(&Membership::Faults::confirm_the_dead), "does not work");
  EXPECT_DEATH(head(&Membership::Faults::forget_former_lease), "does not work");
  EXPECT_DEATH(head(&Membership::Faults::declare_at_once), "does not work");
  EXPECT_DEATH(head(&Membership::Faults::believe_any_closed_link), "does not work");
  EXPECT_DEATH(head(&Membership::Faults::confirm_the_expelled), "does not work");
  EXPECT_DEATH(head(&Membership::Faults::declare_the_expelled_at_once), "does not work");
  EXPECT_DEATH(head(&Membership::Faults::expel_both), "by one that stays");
  EXPECT_DEATH(head(&Membership::Faults::never_take_back), "by one that stays");
  EXPECT_DEATH(head(&Membership::Faults::ignore_complaints), "one goes");
  EXPECT_DEATH(node(&NodeLease::Faults::count_from_confirmation), "does not work");
  EXPECT_DEATH(node(&NodeLease::Faults::go_on_without_link), "does not work");
  EXPECT_DEATH(node(&NodeLease::Faults::keep_former_lease), "does not work");
}

TEST(Membership, APlantedBugKillsTheInnocent) {
  Head head;
  head.machine.faults.ignore_own_absence = true;
  head.Join(11, Description(1), 0);
  head.Until(1000);
  EXPECT_EQ(head(MembershipTicked{61'000 * kMs}), "dead 1: it was silent for 10.0 s; close 11");
}

}  // namespace
}  // namespace weft::core
