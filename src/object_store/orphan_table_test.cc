#include "object_store/orphan_table.h"

#include <gtest/gtest.h>

#include <random>

namespace weft::core {
namespace {

constexpr ProcessId kOwner{7}, kAnn{1}, kBob{2}, kCat{3};
constexpr ProcessId kNode = DaemonOf(NodeNumber{5});
using Actions = std::vector<OrphanTable::Action>;
using Ask = OrphanTable::Ask;
using Free = OrphanTable::Free;
using AnswerNode = OrphanTable::AnswerNode;
using TellNodeEnded = OrphanTable::TellNodeEnded;

Location At(uint64_t number) { return {SegmentId{7}, number * 4096, 4096, number}; }
SealedObject Orphan(uint64_t index) { return {{kOwner, index}, At(index)}; }

class OrphanTableTest : public ::testing::Test {
 protected:
  template <class Event>
  Actions Do(const Event& event) {
    Actions out;
    table_.Handle(event, out);
    table_.CheckInvariants();
    return out;
  }
  void Join(std::initializer_list<ProcessId> holders) {
    for (ProcessId holder : holders) EXPECT_EQ(Do(OrphanTable::HolderJoined{holder}), Actions{});
  }
  Actions Answer(ProcessId holder, std::vector<uint64_t> indexes, bool more = false) {
    return Do(OrphanTable::Answered{holder, kOwner, std::move(indexes), more});
  }

  OrphanTable table_;
};

TEST_F(OrphanTableTest, FreesAtOnceWhatNobodyCanHold) {
  EXPECT_EQ(Do(OrphanTable::Found{{Orphan(1), Orphan(2)}}), (Actions{Free{{At(1), At(2)}}}));
  EXPECT_EQ(table_.owner_count(), 0u);
}

TEST_F(OrphanTableTest, FreesWhenAllHaveAnswered) {
  Join({kAnn, kBob});
  EXPECT_EQ(Do(OrphanTable::Found{{Orphan(1), Orphan(2)}}), (Actions{Ask{kAnn, kOwner}, Ask{kBob, kOwner}}));
  EXPECT_EQ(Answer(kAnn, {}), Actions{});
  EXPECT_EQ(Answer(kBob, {2}), (Actions{Free{{At(1)}}}));
  EXPECT_EQ(table_.orphan_count(), 1u);
  EXPECT_EQ(Do(OrphanTable::HoldsEnded{kBob, kOwner, {2}}), (Actions{Free{{At(2)}}}));
  EXPECT_EQ(table_.owner_count(), 0u);
}

TEST_F(OrphanTableTest, AnAnswerInPartsCountsWithItsLast) {
  Join({kAnn});
  Do(OrphanTable::Found{{Orphan(1), Orphan(2), Orphan(3)}});
  EXPECT_EQ(Answer(kAnn, {1}, true), Actions{});
  EXPECT_EQ(Answer(kAnn, {3}), (Actions{Free{{At(2)}}}));
}

TEST_F(OrphanTableTest, WhoDiesHoldsNothingAndOwesNothing) {
  Join({kAnn, kBob});
  Do(OrphanTable::Found{{Orphan(1)}});
  Answer(kAnn, {1});
  EXPECT_EQ(Do(OrphanTable::HolderLeft{kBob}), Actions{});
  EXPECT_EQ(Do(OrphanTable::HolderLeft{kAnn}), (Actions{Free{{At(1)}}}));
}

TEST_F(OrphanTableTest, WhoJoinsIsAskedBeforeAnythingIsFreed) {
  Join({kAnn});
  Do(OrphanTable::Found{{Orphan(1)}});
  Answer(kAnn, {1});
  EXPECT_EQ(Do(OrphanTable::HolderJoined{kBob}), (Actions{Ask{kBob, kOwner}}));
  EXPECT_EQ(Do(OrphanTable::HoldsEnded{kAnn, kOwner, {1}}), Actions{});
  EXPECT_EQ(Answer(kBob, {}), (Actions{Free{{At(1)}}}));
}

TEST_F(OrphanTableTest, AHoldIsRegisteredBeforeTheFormerHolderLetsGo) {
  Join({kAnn, kBob});
  Do(OrphanTable::Found{{Orphan(1)}});
  Answer(kAnn, {1});
  Answer(kBob, {});
  Do(OrphanTable::HoldBegan{kBob, {kOwner, 1}});
  EXPECT_EQ(Do(OrphanTable::HoldsEnded{kAnn, kOwner, {1}}), Actions{});
  EXPECT_EQ(Do(OrphanTable::HoldsEnded{kBob, kOwner, {1}}), (Actions{Free{{At(1)}}}));
}

TEST_F(OrphanTableTest, AHoldMayBeKnownBeforeTheOrphanIs) {
  Join({kAnn, kBob});
  Do(OrphanTable::HoldBegan{kBob, {kOwner, 1}});
  EXPECT_EQ(Do(OrphanTable::Found{{Orphan(1)}}), (Actions{Ask{kAnn, kOwner}, Ask{kBob, kOwner}}));
  Answer(kAnn, {});
  EXPECT_EQ(Answer(kBob, {1}), Actions{});
  EXPECT_EQ(Do(OrphanTable::HoldsEnded{kBob, kOwner, {1}}), (Actions{Free{{At(1)}}}));
}

TEST_F(OrphanTableTest, MoreOfAnOwnerWhoWasAskedAboutIsFreedWithoutAsking) {
  Join({kAnn});
  Do(OrphanTable::Found{{Orphan(1)}});
  Answer(kAnn, {1, 3});
  EXPECT_EQ(Do(OrphanTable::Found{{Orphan(2), Orphan(3)}}), (Actions{Free{{At(2)}}}));
  EXPECT_EQ(Do(OrphanTable::Found{{Orphan(3)}}), Actions{});  // twice is once
  EXPECT_EQ(Do(OrphanTable::HoldsEnded{kAnn, kOwner, {3, 1}}), (Actions{Free{{At(3), At(1)}}}));
}

TEST_F(OrphanTableTest, TwoPlacesOfOneObjectGoTogether) {
  Join({kAnn});
  Do(OrphanTable::Found{{Orphan(1), {{kOwner, 1}, At(9)}}});
  EXPECT_EQ(Answer(kAnn, {}), (Actions{Free{{At(1), At(9)}}}));
}

TEST_F(OrphanTableTest, LeavesFunctionBodiesAlone) {
  EXPECT_EQ(Do(OrphanTable::Found{{{{kOwner, kForSession}, At(1)}}}), Actions{});
  EXPECT_EQ(table_.owner_count(), 0u);
}

TEST_F(OrphanTableTest, BelievesNoAnswerThatWasNotAskedFor) {
  Join({kAnn});
  EXPECT_EQ(Answer(kAnn, {1}), Actions{});
  EXPECT_EQ(table_.owner_count(), 0u);
  Do(OrphanTable::HoldBegan{kBob, {kOwner, 1}});  // nobody knows it
  EXPECT_EQ(table_.owner_count(), 0u);
}

TEST_F(OrphanTableTest, ForgetsWhatWentWithItsSegment) {
  Join({kAnn});
  Do(OrphanTable::Found{{Orphan(1)}});
  EXPECT_EQ(Do(OrphanTable::SegmentForgotten{SegmentId{7}}), Actions{});
  EXPECT_EQ(table_.owner_count(), 0u);
  EXPECT_EQ(Answer(kAnn, {}), Actions{});
}

TEST_F(OrphanTableTest, AsksOtherNodesToo) {
  Join({kAnn, kNode});
  EXPECT_EQ(Do(OrphanTable::Found{{Orphan(1)}}), (Actions{Ask{kAnn, kOwner}, Ask{kNode, kOwner}}));
  Answer(kNode, {1});
  EXPECT_EQ(Answer(kAnn, {}), Actions{});
  EXPECT_EQ(Do(OrphanTable::HoldsEnded{kNode, kOwner, {1}}), (Actions{Free{{At(1)}}}));
}

TEST_F(OrphanTableTest, AnswersOtherNodes) {
  Join({kAnn, kBob, kNode});
  EXPECT_EQ(Do(OrphanTable::NodeAsked{kNode, kOwner}), (Actions{Ask{kAnn, kOwner}, Ask{kBob, kOwner}}));
  EXPECT_EQ(Answer(kAnn, {1, 2}), Actions{});
  EXPECT_EQ(Answer(kBob, {2}), (Actions{AnswerNode{kNode, kOwner, {1, 2}}}));
  EXPECT_EQ(Do(OrphanTable::HoldsEnded{kAnn, kOwner, {1, 2}}), (Actions{TellNodeEnded{kNode, kOwner, {1}}}));
  EXPECT_EQ(Do(OrphanTable::HolderLeft{kBob}), (Actions{TellNodeEnded{kNode, kOwner, {2}}}));
  EXPECT_EQ(table_.owner_count(), 0u);
}

TEST_F(OrphanTableTest, ANodeWithoutProcessesHoldsNothing) {
  EXPECT_EQ(Do(OrphanTable::NodeAsked{kNode, kOwner}), (Actions{AnswerNode{kNode, kOwner, {}}}));
  EXPECT_EQ(table_.owner_count(), 0u);
}

TEST_F(OrphanTableTest, ANodeThatIsGoneIsToldNothing) {
  Join({kAnn, kNode});
  Do(OrphanTable::NodeAsked{kNode, kOwner});
  EXPECT_EQ(Do(OrphanTable::HolderLeft{kNode}), Actions{});
  EXPECT_EQ(Answer(kAnn, {1}), Actions{});
  EXPECT_EQ(table_.owner_count(), 0u);
}

// Processes that hand references around and die, with messages that arrive late: nothing is freed that somebody holds,
// and in the end nothing is left.
TEST_F(OrphanTableTest, NothingHeldIsFreedAndAllIsFreedInTheEnd) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    auto draw = [&](size_t below) { return static_cast<size_t>(random() % below); };
    OrphanTable table;
    struct Process {
      std::set<uint64_t> holds;
      std::set<uint64_t> registered;  // as the daemon knows, or will
      std::vector<ProcessId> questions;
      std::vector<std::variant<OrphanTable::Answered, OrphanTable::HoldsEnded, OrphanTable::HoldBegan>> sent;
      bool asked = false;
    };
    std::map<ProcessId, Process> processes;
    std::set<uint64_t> freed, found;
    uint64_t next_process = 100;
    Actions actions;
    auto perform = [&] {
      table.CheckInvariants();
      for (const auto& action : std::exchange(actions, {})) {
        if (auto* ask = std::get_if<Ask>(&action)) processes.at(ask->holder).questions.push_back(ask->owner);
        if (auto* free = std::get_if<Free>(&action)) {
          for (const Location& location : free->locations) {
            const uint64_t index = location.generation;
            ASSERT_TRUE(freed.insert(index).second) << "freed twice, seed " << seed;
            for (const auto& [id, process] : processes) {
              ASSERT_FALSE(process.registered.contains(index) && process.holds.contains(index))
                  << "freed what is held, seed " << seed;
            }
          }
        }
      }
    };
    auto deliver = [&](ProcessId id) {
      Process& process = processes.at(id);
      if (process.sent.empty()) return;
      auto message = process.sent.front();
      process.sent.erase(process.sent.begin());
      if (auto* began = std::get_if<OrphanTable::HoldBegan>(&message)) {
        table.Handle(*began, actions);
        // The answer: it may look, if the object is there still.
        process.registered.insert(began->object.index);
        if (freed.contains(began->object.index)) process.holds.erase(began->object.index);
      } else {
        std::visit([&](const auto& event) { table.Handle(event, actions); }, message);
      }
      perform();
    };
    auto answer = [&](ProcessId id) {
      Process& process = processes.at(id);
      if (process.questions.empty()) return;
      process.questions.erase(process.questions.begin());
      process.asked = true;
      process.registered.insert(process.holds.begin(), process.holds.end());
      process.sent.push_back(OrphanTable::Answered{id, kOwner, {process.holds.begin(), process.holds.end()}, false});
    };
    for (uint64_t i = 0; i < 4; ++i) {
      Process process;
      for (uint64_t index = 1; index <= 6; ++index) {
        if (draw(3) == 0) process.holds.insert(index);
      }
      process.registered = process.holds;  // what it had when the owner died
      processes[ProcessId{next_process}] = process;
      table.Handle(OrphanTable::HolderJoined{ProcessId{next_process++}}, actions);
    }
    for (int step = 0; step < 120; ++step) {
      if (processes.empty()) break;
      auto at = std::next(processes.begin(), static_cast<ptrdiff_t>(draw(processes.size())));
      Process& process = at->second;
      switch (draw(7)) {
        case 0: {
          const uint64_t index = 1 + draw(6);
          if (!found.insert(index).second) break;
          table.Handle(OrphanTable::Found{{Orphan(index)}}, actions);
          perform();
          break;
        }
        case 1:
          answer(at->first);
          break;
        case 2:
        case 3:
          deliver(at->first);
          break;
        case 4: {  // lets go
          if (process.holds.empty()) break;
          const uint64_t index = *process.holds.begin();
          if (!process.registered.contains(index)) break;  // it waits for the answer
          process.holds.erase(index);
          process.registered.erase(index);
          process.sent.push_back(OrphanTable::HoldsEnded{at->first, kOwner, {index}});
          break;
        }
        case 5: {  // hands on; the hander holds it until the other has it
          auto to = std::next(processes.begin(), static_cast<ptrdiff_t>(draw(processes.size())));
          if (process.holds.empty() || to == at) break;
          const uint64_t index = *process.holds.rbegin();
          if (!process.registered.contains(index) || !to->second.holds.insert(index).second) break;
          to->second.sent.push_back(OrphanTable::HoldBegan{to->first, {kOwner, index}});
          break;
        }
        case 6: {
          const ProcessId id = at->first;
          if (draw(2) == 0) {
            const ProcessId fresh{next_process++};
            processes[fresh];
            table.Handle(OrphanTable::HolderJoined{fresh}, actions);
          } else {
            processes.erase(id);
            table.Handle(OrphanTable::HolderLeft{id}, actions);
          }
          perform();
          break;
        }
      }
      if (HasFatalFailure()) return;
    }
    while (!processes.empty()) {
      const ProcessId id = processes.begin()->first;
      processes.erase(id);
      table.Handle(OrphanTable::HolderLeft{id}, actions);
      perform();
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(table.owner_count(), 0u);
    EXPECT_EQ(freed, found) << "seed " << seed;
  }
}

}  // namespace
}  // namespace weft::core
