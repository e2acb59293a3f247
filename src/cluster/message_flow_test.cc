#include "cluster/message_flow.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;

// ---- one flow by hand ---------------------------------------------------------------------------------------------

std::string Describe(const FlowAction& action) {
  struct Visitor {
    std::string operator()(const PassMessages& a) { return "pass over " + std::to_string(a.link); }
    std::string operator()(const TakeMessage&) { return "take"; }
    std::string operator()(const SayTaken& a) {
      return "say " + std::to_string(a.through) + " over " + std::to_string(a.link);
    }
    std::string operator()(const ConnectFlow&) { return "connect"; }
    std::string operator()(const BreakFlowLink& a) { return "break " + std::to_string(a.link) + ": " + a.why; }
    std::string operator()(const ComplainOfOther& a) {
      return "complain since " + std::to_string(a.since_ns / kMs) + " ms";
    }
    std::string operator()(const TakeBackComplaint&) { return "take back"; }
  };
  return std::visit(Visitor{}, action);
}

class ByHand {
 public:
  explicit ByHand(MessageFlow::Config config = {}) : flow(config) {}
  template <class Event>
  std::string operator()(const Event& event) {
    std::vector<FlowAction> actions;
    flow.Handle(event, actions);
    flow.CheckInvariants();
    std::string text;
    for (const auto& action : actions) text += (text.empty() ? "" : "; ") + Describe(action);
    return text;
  }
  // Everything that can be passed, in one string.
  std::string PassAll() {
    std::string all;
    while (const std::string* next = flow.Next()) {
      all += *next;
      (*this)(MessagePassed{});
    }
    return all;
  }
  MessageFlow flow;
};

TEST(MessageFlowTest, NothingIsSentBeforeTheOtherHasSaidWhatItHas) {
  ByHand flow;
  EXPECT_EQ(flow(MessageWritten{"a", 0}), "connect");
  EXPECT_EQ(flow(MessageWritten{"b", 0}), "") << "it is being connected";
  EXPECT_EQ(flow(FlowLinkOpened{.link = 1, .sends = true}), "");
  EXPECT_EQ(flow.PassAll(), "");
  EXPECT_EQ(flow(TakenHeard{1, 0}), "pass over 1");
  EXPECT_EQ(flow.PassAll(), "ab");
  EXPECT_EQ(flow(MessageWritten{"c", 0}), "pass over 1");
  EXPECT_EQ(flow.PassAll(), "c");
  EXPECT_EQ(flow.flow.kept_messages(), 3u) << "nobody has said that it was taken";
  EXPECT_EQ(flow(TakenHeard{1, 2}), "");
  EXPECT_EQ(flow.flow.kept_messages(), 1u);
  EXPECT_EQ(flow.flow.kept_bytes(), 1u);
}

TEST(MessageFlowTest, WhatTheOtherHasNotSeenIsSentAgain) {
  ByHand flow;
  flow(MessageWritten{"a", 0});
  flow(MessageWritten{"b", 0});
  flow(MessageWritten{"c", 0});
  flow(FlowLinkOpened{.link = 1, .sends = true});
  flow(TakenHeard{1, 0});
  EXPECT_EQ(flow.PassAll(), "abc");
  EXPECT_EQ(flow(FlowLinkClosed{1, 100 * kMs}), "");
  EXPECT_EQ(flow.flow.next_wakeup_ns(), 110 * kMs);
  EXPECT_EQ(flow(FlowTicked{110 * kMs}), "connect");
  flow(FlowLinkOpened{.link = 2, .sends = true});
  EXPECT_EQ(flow(TakenHeard{1, 3}), "") << "that was over the former link";
  EXPECT_EQ(flow(TakenHeard{2, 1}), "pass over 2");
  EXPECT_EQ(flow.PassAll(), "bc");
}

TEST(MessageFlowTest, WhatCameOverTwoLinksIsTakenOnce) {
  ByHand flow;
  EXPECT_EQ(flow(FlowLinkOpened{.link = 1, .takes = true}), "say 0 over 1");
  EXPECT_EQ(flow(MessageArrived{1, 1, 0}), "take");
  EXPECT_EQ(flow(FlowLinkOpened{.link = 2, .takes = true}), "say 1 over 2");
  // The rest of the first link is read late; it is numbered as it was sent.
  EXPECT_EQ(flow(MessageArrived{1, 1, 0}), "take");
  EXPECT_EQ(flow(MessageArrived{2, 1, 0}), "") << "message 2 again";
  EXPECT_EQ(flow(MessageArrived{2, 1, 0}), "take");
  EXPECT_EQ(flow(MessageArrived{1, 1, 0}), "") << "message 3 again";
  EXPECT_EQ(flow(FlowTicked{20 * kMs}), "say 3 over 2");
}

TEST(MessageFlowTest, TakingIsToldAfterSomeMessagesOrBytesOrAMoment) {
  ByHand flow;
  flow(FlowLinkOpened{.link = 1, .takes = true});
  for (int i = 0; i < 63; ++i) EXPECT_EQ(flow(MessageArrived{1, 10, 5 * kMs}), "take");
  EXPECT_EQ(flow(MessageArrived{1, 10, 5 * kMs}), "take; say 64 over 1");
  EXPECT_EQ(flow.flow.next_wakeup_ns(), INT64_MAX);
  EXPECT_EQ(flow(MessageArrived{1, 2 << 20, 6 * kMs}), "take; say 65 over 1");
  EXPECT_EQ(flow(MessageArrived{1, 10, 7 * kMs}), "take");
  EXPECT_EQ(flow(MessageArrived{1, 10, 9 * kMs}), "take");
  EXPECT_EQ(flow.flow.next_wakeup_ns(), 27 * kMs);
  EXPECT_EQ(flow(FlowTicked{26 * kMs}), "");
  EXPECT_EQ(flow(FlowTicked{27 * kMs}), "say 67 over 1");
  EXPECT_EQ(flow.flow.next_wakeup_ns(), INT64_MAX);
}

TEST(MessageFlowTest, AFullLinkIsWaitedFor) {
  ByHand flow;
  flow(MessageWritten{"a", 0});
  flow(FlowLinkOpened{.link = 1, .sends = true});
  flow(TakenHeard{1, 0});
  EXPECT_EQ(*flow.flow.Next(), "a");
  flow(FlowLinkFull{});
  EXPECT_EQ(flow.flow.Next(), nullptr);
  EXPECT_EQ(flow(MessageWritten{"b", 0}), "") << "a smaller one must not overtake it";
  EXPECT_EQ(flow(FlowLinkDrained{1}), "pass over 1");
  EXPECT_EQ(flow.PassAll(), "ab");
}

TEST(MessageFlowTest, WhoeverWritesTooMuchIsToldToWait) {
  ByHand flow({.limit_bytes = 100});
  flow(MessageWritten{std::string(60, 'x'), 0});
  EXPECT_FALSE(flow.flow.crowded());
  flow(MessageWritten{std::string(60, 'x'), 0});
  EXPECT_TRUE(flow.flow.crowded());
  flow(FlowLinkOpened{.link = 1, .sends = true});
  flow(TakenHeard{1, 0});
  flow.PassAll();
  EXPECT_TRUE(flow.flow.crowded()) << "the other may not have it";
  flow(TakenHeard{1, 1});
  EXPECT_FALSE(flow.flow.crowded());
}

TEST(MessageFlowTest, PausesBetweenAttemptsGrow) {
  ByHand flow({.first_complain_after_ns = 3600 * 1000 * kMs});
  EXPECT_EQ(flow.flow.next_wakeup_ns(), INT64_MAX);
  EXPECT_EQ(flow(MessageWritten{"a", 0}), "connect");
  int64_t now = 0;
  std::vector<int64_t> pauses;
  for (int i = 0; i < 9; ++i) {
    flow(ConnectingFailed{now});
    pauses.push_back((flow.flow.next_wakeup_ns() - now) / kMs);
    now = flow.flow.next_wakeup_ns();
    EXPECT_EQ(flow(FlowTicked{now}), "connect");
  }
  EXPECT_EQ(pauses, (std::vector<int64_t>{10, 20, 40, 80, 160, 320, 640, 1000, 1000}));
  flow(FlowLinkOpened{.link = 1, .sends = true});
  flow(TakenHeard{1, 0});
  flow.PassAll();
  flow(TakenHeard{1, 1});
  flow(FlowLinkClosed{1, now});
  EXPECT_EQ(flow.flow.next_wakeup_ns(), now + 10 * kMs) << "nothing is left to send, but an answer may be awaited";
  EXPECT_EQ(flow(MessageWritten{"b", now + kMs}), "") << "not at once after the link broke";
  EXPECT_EQ(flow.flow.next_wakeup_ns(), now + 10 * kMs);
}

TEST(MessageFlowTest, OneThatIsNeededAndNotReachedIsComplainedOfUntilItIs) {
  ByHand flow;
  EXPECT_EQ(flow(FlowNeeded{0}), "connect");
  EXPECT_EQ(flow(FlowNeeded{kMs}), "");
  flow(ConnectingFailed{3000 * kMs});
  EXPECT_EQ(flow(FlowTicked{3010 * kMs}), "connect");
  EXPECT_EQ(flow.flow.next_wakeup_ns(), 8500 * kMs);
  EXPECT_EQ(flow(FlowTicked{8499 * kMs}), "");
  EXPECT_EQ(flow(FlowTicked{8500 * kMs}), "complain since 0 ms");
  EXPECT_EQ(flow(FlowTicked{9000 * kMs}), "") << "said once";
  flow(FlowLinkOpened{.link = 1, .sends = true, .now_ns = 9000 * kMs});
  EXPECT_EQ(flow(TakenHeard{1, 0}), "take back") << "and not before it has spoken";
  EXPECT_EQ(flow.flow.next_wakeup_ns(), INT64_MAX);
  flow(FlowLinkClosed{1, 20'000 * kMs});
  EXPECT_EQ(flow(FlowTicked{20'010 * kMs}), "connect");
  flow(FlowLinkOpened{.link = 2, .sends = true, .now_ns = 21'000 * kMs});
  EXPECT_EQ(flow(FlowTicked{23'500 * kMs}), "complain since 20000 ms") << "it has not spoken";
  flow(FlowLinkClosed{2, 24'000 * kMs});
  flow(FlowTicked{24'020 * kMs});
  flow(FlowLinkOpened{.link = 3, .sends = true, .now_ns = 24'100 * kMs});
  EXPECT_EQ(flow(TakenHeard{3, 0}), "take back");
}

TEST(MessageFlowTest, NobodyComplainsOfWhomHeDoesNotNeed) {
  ByHand taker;
  taker(FlowLinkOpened{.link = 1, .takes = true});
  taker(MessageArrived{1, 1, 0});
  taker(FlowTicked{20 * kMs});
  taker(FlowLinkClosed{1, kMs});
  EXPECT_EQ(taker.flow.next_wakeup_ns(), INT64_MAX) << "who sends will complain";
  ByHand of_head({.connects = false});
  EXPECT_EQ(of_head(MessageWritten{"a", 0}), "");
  EXPECT_EQ(of_head.flow.next_wakeup_ns(), INT64_MAX) << "its lease is there for that";
}

TEST(MessageFlowTest, WhatCannotBeEndsTheLink) {
  ByHand flow;
  EXPECT_EQ(flow(MessageArrived{7, 1, 0}), "break 7: it sent messages before it was told to");
  flow(MessageWritten{"a", 0});
  flow(FlowLinkOpened{.link = 1, .sends = true});
  EXPECT_EQ(flow(TakenHeard{1, 1}), "break 1: it has taken messages that were not sent");
  flow(TakenHeard{1, 0});
  flow.PassAll();
  flow(TakenHeard{1, 1});
  EXPECT_EQ(flow(TakenHeard{1, 2}), "break 1: it has taken messages that were not sent");
  EXPECT_EQ(flow(TakenHeard{1, 0}), "break 1: it has forgotten messages that it had taken");
}

// ---- two flows and links that break -------------------------------------------------------------------------------

// Two daemons, and links between them that break at any time, after which each end may still read some of what was on
// its way, and notices the end when it likes. Either each dials a link of its own for what it says, or one dials for
// both and the other drops the older link for the newer one, as the head does.
class Pair {
 public:
  static constexpr int64_t kComplainNs = 40 * kMs;
  Pair(uint64_t seed, bool shared, MessageFlow::Faults faults) : random_(seed), shared_(shared) {
    for (int side : {0, 1}) {
      MessageFlow::Config config;
      config.connects = !shared;
      config.told_messages = 1 + random_.Below(6);
      config.limit_bytes = 200;
      config.complain_after_ns = config.first_complain_after_ns = kComplainNs;
      sides_[side].flow.emplace(config);
      sides_[side].flow->faults = faults;
    }
  }

  // What went wrong; empty: nothing.
  std::string Run() {
    for (int step = 0; step < 600 && wrong_.empty(); ++step) Step(true);
    // In peace everything must arrive, and be known to have arrived.
    for (int step = 0; step < 6000 && wrong_.empty() && !Done(); ++step) Step(false);
    if (wrong_.empty() && !Done()) wrong_ = "not everything arrived";
    for (const Side& side : sides_) {
      if (wrong_.empty() && side.complains && side.flow->connected()) wrong_ = "a complaint was not taken back";
    }
    return wrong_;
  }

  static inline uint64_t complaints = 0;

 private:
  struct Said {
    bool is_message = false;  // else what was taken
    std::string text;
  };
  struct Link {
    int dialler = 0;
    bool broken = false;
    std::array<bool, 2> closed{};                // noticed by this side
    std::array<std::deque<Said>, 2> on_the_way;  // to this side
  };
  struct Side {
    std::optional<MessageFlow> flow;
    uint64_t written = 0;
    uint64_t taken = 0;
    uint64_t attempt = 0;  // to connect; 0: none
    bool complains = false;
    int64_t connected_ns = 0;  // last, or when it was not needed
  };

  bool Done() const {
    return sides_[0].taken == sides_[1].written && sides_[1].taken == sides_[0].written &&
           sides_[0].flow->kept_messages() == 0 && sides_[1].flow->kept_messages() == 0;
  }

  template <class Event>
  bool Feed(int side, const Event& event) {
    std::vector<FlowAction> actions;
    auto look = [&, &one = sides_[side]] {
      if (one.written == 0 || one.flow->connected()) one.connected_ns = now_;
    };
    look();
    sides_[side].flow->Handle(event, actions);
    const bool faulty = sides_[side].flow->faults.believe_old_links || sides_[side].flow->faults.say_all_taken ||
                        sides_[side].flow->faults.forget_what_was_passed || sides_[side].flow->faults.never_take_back;
    if (!faulty) sides_[side].flow->CheckInvariants();
    bool take = false;
    for (const FlowAction& action : actions) {
      if (std::holds_alternative<TakeMessage>(action)) take = true;
      if (const auto* say = std::get_if<SayTaken>(&action))
        Put(1 - side, say->link, {false, std::to_string(say->through)});
      if (const auto* pass = std::get_if<PassMessages>(&action)) PassOn(side, pass->link);
      if (std::holds_alternative<ConnectFlow>(action)) sides_[side].attempt = 1;
      if (std::holds_alternative<ComplainOfOther>(action)) {
        if (std::exchange(sides_[side].complains, true)) wrong_ = "it complains twice";
        if (now_ - sides_[side].connected_ns < kComplainNs) wrong_ = "it complains too early";
        ++complaints;
      }
      if (std::holds_alternative<TakeBackComplaint>(action)) sides_[side].complains = false;
      if (const auto* ended = std::get_if<BreakFlowLink>(&action)) {
        wrong_ = "side " + std::to_string(side) + " says of the other: " + ended->why;
      }
    }
    look();
    return take;
  }

  void Put(int to, uint64_t link, Said what) {
    Link& one = links_.at(link);
    if (!one.broken) one.on_the_way[to].push_back(std::move(what));
  }

  void PassOn(int side, uint64_t link) {
    while (const std::string* next = sides_[side].flow->Next()) {
      if (random_.Below(5) == 0) {
        Feed(side, FlowLinkFull{});
        full_.insert({side, link});
        return;
      }
      Put(1 - side, link, {true, *next});
      Feed(side, MessagePassed{});
    }
  }

  void Open(int dialler) {
    const uint64_t number = next_link_++;
    links_[number].dialler = dialler;
    sides_[dialler].attempt = 0;
    Feed(dialler, FlowLinkOpened{number, true, shared_, now_});
    Feed(1 - dialler, FlowLinkOpened{number, shared_, true, now_});
  }

  void Close(int side, uint64_t number) {
    Link& link = links_.at(number);
    if (link.closed[side]) return;
    link.closed[side] = true;
    link.on_the_way[side].clear();
    Feed(side, FlowLinkClosed{number, now_});
  }

  void Read(int side, uint64_t number) {
    Link& link = links_.at(number);
    if (link.closed[side] || link.on_the_way[side].empty()) return;
    const Said what = std::move(link.on_the_way[side].front());
    link.on_the_way[side].pop_front();
    if (!what.is_message) {
      Feed(side, TakenHeard{number, std::stoull(what.text)});
      return;
    }
    if (!Feed(side, MessageArrived{number, what.text.size(), now_})) return;
    const std::string expected = std::to_string(++sides_[side].taken);
    if (what.text != expected) wrong_ = "message " + what.text + " came in the place of " + expected;
  }

  void Step(bool breaks) {
    now_ += static_cast<int64_t>(random_.Below(5)) * kMs;
    const int side = static_cast<int>(random_.Below(2));
    switch (random_.Below(breaks ? 9 : 6)) {
      case 0: {
        const auto full = std::exchange(full_, {});
        for (const auto& [whose, link] : full) Feed(whose, FlowLinkDrained{link});
        break;
      }
      case 1:
        for (int one : {0, 1}) {
          Feed(one, FlowTicked{now_});
          const bool alone = !shared_ && now_ - sides_[one].connected_ns > kComplainNs;
          if (wrong_.empty() && alone && !sides_[one].complains) wrong_ = "it does not complain";
        }
        if (!shared_ && sides_[side].attempt != 0) {
          sides_[side].attempt = 0;
          if (breaks && random_.Below(3) == 0) {
            Feed(side, ConnectingFailed{now_});
          } else {
            Open(side);
          }
        }
        // Who dials for both does so when its last link is known to be over.
        if (shared_ && (links_.empty() || links_.rbegin()->second.closed[0])) Open(0);
        break;
      case 2:
      case 3:
      case 4:
        if (!links_.empty()) {
          auto any = links_.begin();
          std::advance(any, random_.Below(links_.size()));
          const uint64_t number = any->first;
          for (uint64_t count = random_.Below(4); count > 0; --count) Read(side, number);
        }
        break;
      case 5:  // the ends of broken links are noticed, sooner or later
        for (auto& [number, link] : links_) {
          if (link.broken && link.on_the_way[side].empty() && random_.Below(2) == 0) Close(side, number);
        }
        std::erase_if(links_, [&](const auto& entry) {
          return entry.second.closed[0] && entry.second.closed[1] && entry.first + 1 != next_link_;
        });
        break;
      case 6:
      case 7:
        for (uint64_t count = 1 + random_.Below(4); count > 0 && !sides_[side].flow->crowded(); --count) {
          if (sides_[side].written == 0) sides_[side].connected_ns = now_;
          Feed(side, MessageWritten{std::to_string(++sides_[side].written), now_});
        }
        break;
      case 8:
        if (!links_.empty() && random_.Below(3) == 0) {
          auto any = links_.begin();
          std::advance(any, random_.Below(links_.size()));
          any->second.broken = true;
          for (auto& on_the_way : any->second.on_the_way) {
            while (!on_the_way.empty() && random_.Below(2) == 0) on_the_way.pop_back();
          }
        }
        break;
    }
  }

  Random random_;
  const bool shared_;
  std::array<Side, 2> sides_;
  std::map<uint64_t, Link> links_;
  std::set<std::pair<int, uint64_t>> full_;
  uint64_t next_link_ = 1;
  int64_t now_ = 0;
  std::string wrong_;
};

std::string RunSeeds(bool shared, MessageFlow::Faults faults, uint64_t count) {
  for (uint64_t seed = 1; seed <= count; ++seed) {
    if (const std::string wrong = Pair(seed, shared, faults).Run(); !wrong.empty()) {
      return "seed " + std::to_string(seed) + ": " + wrong;
    }
  }
  return "";
}

TEST(MessageFlowTest, NothingIsLostDoubledOrOvertakenOverLinksThatBreak) {
  Pair::complaints = 0;
  EXPECT_EQ(RunSeeds(false, {}, 400), "");
  EXPECT_GT(Pair::complaints, 400u);
  EXPECT_EQ(RunSeeds(true, {}, 400), "");
}

TEST(MessageFlowTest, PlantedBugsAreFound) {
  auto found = [](auto plant) {
    MessageFlow::Faults faults;
    plant(faults);
    const std::string one_way = RunSeeds(false, faults, 100);
    return one_way.empty() ? RunSeeds(true, faults, 100) : one_way;
  };
  EXPECT_NE(found([](auto& faults) { faults.forget_what_was_passed = true; }), "");
  EXPECT_NE(found([](auto& faults) { faults.take_again = true; }), "");
  EXPECT_NE(found([](auto& faults) { faults.say_all_taken = true; }), "");
  EXPECT_NE(found([](auto& faults) { faults.believe_old_links = true; }), "");
  EXPECT_NE(found([](auto& faults) { faults.give_up_connecting = true; }), "");
  EXPECT_NE(found([](auto& faults) { faults.never_complain = true; }), "");
  EXPECT_NE(found([](auto& faults) { faults.never_take_back = true; }), "");
}

}  // namespace
}  // namespace weft::core
