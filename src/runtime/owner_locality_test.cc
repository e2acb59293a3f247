// Which leases a task waits for, by where its arguments lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/owner.h"
#include "wire/placement.h"

namespace weft::core {
namespace {

using Requests = std::vector<std::string>;
const std::string kAnywhere;  // what a shape without placement says
const std::string kName = "f";
constexpr uint64_t kMegabyte = uint64_t{1} << 20;

ProcessId On(uint32_t node, uint32_t process = 1) { return {uint64_t{node} << 32 | process}; }

class OwnerLocality : public testing::Test {
 protected:
  ~OwnerLocality() override { owner_.CheckInvariants(); }

  Object* Stored(uint32_t node, uint64_t bytes) {
    Object* object = owner_.NewOwned();
    const Location location{SegmentId{On(node).value}, next_offset_ += kMegabyte, bytes, 1};
    owner_.Resolve(object, ValueKind::kStored, "", location, {}, actions_);
    return object;
  }
  Object* Inline() {
    Object* object = owner_.NewOwned();
    owner_.Resolve(object, ValueKind::kInline, "value", {}, {}, actions_);
    return object;
  }
  const TaskTemplate* What(const ResourceAmounts& amounts) {
    TaskTemplate what;
    what.function = owner_.InternFunction(Function{.key = {1, 1}, .name = kName});
    what.shape = owner_.InternShape(amounts);
    what.name = kName;
    return owner_.InternTemplate(what);
  }
  void Submit(std::vector<Object*> arguments) {
    std::vector<Object*> returns;
    owner_.Submit({.what = What(amounts_), .dependencies = std::move(arguments)}, 0, returns, actions_);
  }
  // The placements of the leases that were asked for since the last time.
  Requests Asked() {
    Requests asked;
    for (const Action& action : std::exchange(actions_, {})) {
      if (action.kind != ActionKind::kRequestLeases) continue;
      asked.emplace_back(PlacementOf(owner_.shape(static_cast<uint32_t>(action.worker))));
    }
    return asked;
  }

  ResourceAmounts amounts_{{"CPU", kResourceUnit}};
  Owner owner_{On(1)};
  Actions actions_;
  uint64_t next_offset_ = 0;
};

TEST_F(OwnerLocality, WithoutLargeArgumentsElsewhereAnyLeaseWillDo) {
  Submit({Inline(), Stored(1, 100 * kMegabyte), Stored(2, kMegabyte / 2)});
  EXPECT_EQ(Asked(), Requests{kAnywhere});
}

TEST_F(OwnerLocality, TasksGoWhereMostBytesAre) {
  Submit({Stored(2, 2 * kMegabyte), Stored(3, 5 * kMegabyte), Stored(2, 4 * kMegabyte)});
  EXPECT_EQ(Asked(), Requests{"~near:2"});
  Submit({Stored(2, 2 * kMegabyte), Stored(3, 5 * kMegabyte)});
  EXPECT_EQ(Asked(), Requests{"~near:3"});
}

TEST_F(OwnerLocality, WhatIsHereCountsToo) {
  Submit({Stored(1, 4 * kMegabyte), Stored(2, 4 * kMegabyte)});
  EXPECT_EQ(Asked(), Requests{kAnywhere});
  Object* copied = Stored(2, 4 * kMegabyte);
  owner_.WantHere(copied, actions_);
  owner_.Brought(copied, copied->value.location(), Location{SegmentId{On(1, 0).value}, 0, 4 * kMegabyte, 1}, actions_);
  Submit({copied});
  EXPECT_EQ(Asked(), Requests{});  // the first request stands for both
  EXPECT_EQ(owner_.ready_tasks(), 2u);
}

TEST_F(OwnerLocality, WhoeverSaysWhereIsNotContradicted) {
  AddPlacement(amounts_, Placement{.spread = true});
  Submit({Stored(2, 8 * kMegabyte)});
  EXPECT_EQ(Asked(), Requests{"~spread"});
}

TEST_F(OwnerLocality, TheLeaseOfThatShapeRunsIt) {
  Submit({Stored(2, 8 * kMegabyte)});
  const uint32_t near = static_cast<uint32_t>(actions_.back().worker);
  actions_.clear();
  owner_.LeaseGranted(near, LeaseId{1}, On(2), 0, actions_);
  bool pushed = false;
  for (const Action& action : actions_) pushed = pushed || action.kind == ActionKind::kPush;
  EXPECT_TRUE(pushed);
}

TEST_F(OwnerLocality, AWorkerThatIsThereAlreadyWillDo) {
  Submit({});
  const uint32_t plain = static_cast<uint32_t>(actions_.back().worker);
  Submit({});
  actions_.clear();
  owner_.LeaseGranted(plain, LeaseId{1}, On(2), 0, actions_);
  owner_.LeaseGranted(plain, LeaseId{2}, On(3), 0, actions_);
  std::vector<const Task*> running;
  for (const Action& action : std::exchange(actions_, {})) {
    if (action.kind == ActionKind::kPush) running.push_back(action.task);
  }
  ASSERT_EQ(running.size(), 2u);
  for (const Task* task : running) {
    const ProcessId worker = task->worker == 0 ? On(2) : On(3);
    owner_.Replied(worker, task->handle, ReplyKind::kValues, "", {ReturnedValue{.bytes = "1"}}, 1, actions_);
  }
  actions_.clear();
  Submit({Stored(3, 8 * kMegabyte)});
  ASSERT_FALSE(actions_.empty());
  EXPECT_EQ(actions_.back().kind, ActionKind::kPush);
  EXPECT_EQ(actions_.back().worker, 1);
}

TEST_F(OwnerLocality, AnIdleLeaseGivesWayToARequestThatIsNotGranted) {
  constexpr int64_t kMs = 1'000'000;
  Submit({});
  const uint32_t plain = static_cast<uint32_t>(actions_.back().worker);
  owner_.LeaseGranted(plain, LeaseId{1}, On(2), 0, actions_);
  const uint64_t task = actions_.back().task->handle;
  owner_.Replied(On(2), task, ReplyKind::kValues, "", {ReturnedValue{.bytes = "1"}}, 1 * kMs, actions_);
  EXPECT_EQ(owner_.NextUrgentTick(), 0);
  amounts_ = {{"CPU", kResourceUnit}, {"lamp", kResourceUnit}};
  actions_.clear();
  std::vector<Object*> returns;
  owner_.Submit({.what = What(amounts_)}, 5 * kMs, returns, actions_);
  EXPECT_EQ(Asked(), Requests{kAnywhere});
  EXPECT_EQ(owner_.NextUrgentTick(), 7 * kMs);
  owner_.Tick(6 * kMs, actions_);
  EXPECT_TRUE(actions_.empty()) << "it may be granted yet";
  owner_.Tick(7 * kMs, actions_);
  ASSERT_EQ(actions_.size(), 1u);
  EXPECT_EQ(actions_[0].kind, ActionKind::kReturnLease);
}

TEST_F(OwnerLocality, ManyNodesDoNotMakeShapesWithoutEnd) {
  for (uint32_t node = 2; node < 1000; ++node) Submit({Stored(node, 8 * kMegabyte)});
  const Requests asked = Asked();
  EXPECT_EQ(std::count(asked.begin(), asked.end(), kAnywhere), 1 + 4);  // told again when it has grown fourfold
  EXPECT_EQ(std::ssize(asked) - std::count(asked.begin(), asked.end(), kAnywhere), 128);
}

}  // namespace
}  // namespace weft::core
