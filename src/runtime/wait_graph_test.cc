// The judge of waits: what is stuck is found and named, and whatever is not known for certain is not called so.
#include "runtime/wait_graph.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "wire/languages.h"

namespace weft::core {
namespace {

constexpr ProcessId kDriver{1}, kFirst{2}, kSecond{3}, kThird{4};
constexpr int64_t kOne = kResourceUnit;

ObjectId Of(ProcessId owner, uint64_t index) { return {owner, index}; }

// What everybody would answer; a test changes it as it likes between two traversals.
struct World {
  std::map<ObjectId, ObjectFact> objects;
  std::map<ProcessId, ProcessFact> processes;
  std::map<ResourceAmounts, ShapeFact> shapes;
  uint64_t last_number = 100;

  // The result of a task that runs in `worker`.
  void Runs(ObjectId object, ProcessId worker, const std::string& name) {
    objects[object] = {.id = object,
                       .state = ObjectState::kPushed,
                       .pid = static_cast<int32_t>(object.owner.value) * 10,
                       .task = object.index,
                       .stamp = ++last_number,
                       .name = name,
                       .objects = {},
                       .shape = {},
                       .worker = worker,
                       .group = {}};
    ProcessFact& process = processes[worker];
    process.process = worker;
    process.pid = static_cast<int32_t>(worker.value) * 10;
    if (process.slots.empty()) process.slots = {{"", 1}};
  }
  // The same, and its body waits for all of these.
  WaitFact& Waits(ObjectId object, ProcessId worker, const std::string& name, std::vector<ObjectId> wanted) {
    Runs(object, worker, name);
    WaitFact wait;
    wait.wait = ++last_number;
    wait.execution = ++last_number;
    wait.submitter = object.owner;
    wait.task = object.index;
    wait.name = name;
    wait.wanted = static_cast<uint32_t>(wanted.size());
    wait.objects = std::move(wanted);
    return processes[worker].waits.emplace_back(wait);
  }
  void Arguments(ObjectId object, const std::string& name, std::vector<ObjectId> arguments) {
    objects[object] = {.id = object,
                       .state = ObjectState::kArguments,
                       .pid = 0,
                       .task = object.index,
                       .name = name,
                       .objects = std::move(arguments),
                       .shape = {},
                       .worker = {},
                       .group = {}};
  }
  void Ready(ObjectId object, const std::string& name, ResourceAmounts shape) {
    objects[object] = {.id = object,
                       .state = ObjectState::kReady,
                       .pid = 0,
                       .task = object.index,
                       .name = name,
                       .objects = {},
                       .shape = std::move(shape),
                       .worker = {},
                       .group = {}};
  }
  void Queued(ObjectId object, ProcessId actor, const std::string& name) {
    Runs(object, actor, name);
    objects[object].is_call = 1;
  }
};

WaitFact RootWait(std::vector<ObjectId> objects) {
  WaitFact wait;
  wait.wait = 1;
  wait.wanted = static_cast<uint32_t>(objects.size());
  wait.objects = std::move(objects);
  return wait;
}

WaitVerdict Traverse(WaitGraph& graph, const World& world, const WaitProof* earlier = nullptr) {
  WaitQuestion question;
  while (graph.NextQuestion(&question)) {
    if (question.kind == WaitQuestion::Kind::kObject) {
      auto found = world.objects.find(question.object);
      if (found != world.objects.end()) graph.Answer(found->second);
    } else if (question.kind == WaitQuestion::Kind::kProcess) {
      auto found = world.processes.find(question.object.owner);
      if (found != world.processes.end()) graph.Answer(found->second);
    } else {
      auto found = world.shapes.find(question.shape);
      if (found != world.shapes.end()) graph.Answer(found->second);
    }
  }
  return graph.Judge(earlier);
}

WaitVerdict Look(const World& world, const WaitFact& root, const WaitProof* earlier = nullptr) {
  WaitGraph graph(kDriver, root);
  return Traverse(graph, world, earlier);
}

bool Stuck(const World& world, const WaitFact& root) { return Look(world, root).kind == WaitVerdict::Kind::kStuck; }

// ---- coroutines: each holds a slot of its actor

// The driver calls a.f, whose coroutine awaits a.g; there are two slots.
World ACoroutineThatAwaitsItsOwnActor() {
  World world;
  world.Waits(Of(kDriver, 1), kFirst, "A.f", {Of(kFirst, 1)});
  world.objects[Of(kDriver, 1)].is_call = 1;
  world.processes[kFirst].slots = {{"", 2}, {"io", 1}};
  world.Queued(Of(kFirst, 1), kFirst, "A.g");
  return world;
}

TEST(WaitGraphTest, ACoroutineLeavesSlotsFree) {
  World world = ACoroutineThatAwaitsItsOwnActor();
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));
  // Another one that awaits the same takes the last of them.
  WaitFact& other = world.processes[kFirst].waits.emplace_back(world.processes[kFirst].waits[0]);
  other.wait = ++world.last_number;
  other.execution = ++world.last_number;
  other.task = 77;
  EXPECT_TRUE(Stuck(world, RootWait({Of(kDriver, 1)})));
  // One in another group takes none.
  world.processes[kFirst].waits[1].group = "io";
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));
}

TEST(WaitGraphTest, ACoroutineMayBeEndedByItsLoop) {
  World world = ACoroutineThatAwaitsItsOwnActor();
  world.processes[kFirst].slots = {{"", 1}};
  EXPECT_TRUE(Stuck(world, RootWait({Of(kDriver, 1)})));
  world.processes[kFirst].waits[0].has_deadline = 2;
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));
  WaitGraph graph(kDriver, RootWait({Of(kDriver, 1)}));
  Traverse(graph, world);
  EXPECT_EQ(graph.Text().find("timeout"), std::string::npos) << graph.Text();
}

TEST(WaitGraphTest, ACoroutineMayBeEndedByATaskThatAwaitsSomethingElse) {
  World world = ACoroutineThatAwaitsItsOwnActor();
  world.processes[kFirst].slots = {{"", 1}};
  WaitFact& wait = world.processes[kFirst].waits[0];
  wait.objects.push_back(Of(kFirst, 2));  // of the other task
  wait.wanted = 1;
  world.Runs(Of(kFirst, 2), kSecond, "slow");
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));
  world.Waits(Of(kFirst, 2), kThird, "waits", {Of(kDriver, 1)});  // and that waits for the first one
  EXPECT_TRUE(Stuck(world, RootWait({Of(kDriver, 1)})));
}

TEST(WaitGraphTest, AGetInACoroutineHoldsUpTheWholeLoop) {
  World world = ACoroutineThatAwaitsItsOwnActor();
  world.processes[kFirst].slots = {{"", 1000}};
  world.processes[kFirst].waits[0].group = kAllGroups;
  EXPECT_TRUE(Stuck(world, RootWait({Of(kDriver, 1)})));
}

TEST(WaitGraphTest, FromOutsideTheThreadIsNamed) {
  World world;
  world.Runs(Of(kDriver, 1), kFirst, "slow");
  world.processes[kDriver].process = kDriver;
  world.processes[kDriver].pid = 10;
  WaitGraph graph(kDriver, RootWait({Of(kDriver, 1)}), true);
  Traverse(graph, world);
  EXPECT_TRUE(graph.Text().starts_with("a thread of pid 10 has waited")) << graph.Text();
  EXPECT_EQ(graph.Line(), "a thread of pid 10 waits for the result of task 'slow', which runs (pid 20)");
}

// ---- circles

TEST(WaitGraphTest, ATaskThatWaitsForItsOwnResult) {
  World world;
  world.Waits(Of(kDriver, 1), kFirst, "f", {Of(kDriver, 1)});
  auto verdict = Look(world, RootWait({Of(kDriver, 1)}));
  EXPECT_EQ(verdict.kind, WaitVerdict::Kind::kStuck);
  EXPECT_FALSE(verdict.in_circle);  // the driver only waits for it
  EXPECT_EQ(verdict.chain,
            "this get waits for the result of task 'f', which runs (pid 20) and waits for the result of task 'f'");

  WaitGraph own(kFirst, world.processes[kFirst].waits[0]);
  verdict = Traverse(own, world);
  EXPECT_EQ(verdict.kind, WaitVerdict::Kind::kStuck);
  EXPECT_TRUE(verdict.in_circle);
  EXPECT_EQ(verdict.chain, "'f' (pid 20) waits for the result of task 'f', which is the one that asks");
}

TEST(WaitGraphTest, TwoActorsThatCallEachOther) {
  World world;
  // The driver calls a.g, which calls b.h, which calls a.k.
  world.Waits(Of(kDriver, 1), kFirst, "A.g", {Of(kFirst, 1)});
  world.objects[Of(kDriver, 1)].is_call = 1;
  world.Waits(Of(kFirst, 1), kSecond, "B.h", {Of(kSecond, 1)});
  world.objects[Of(kFirst, 1)].is_call = 1;
  world.Queued(Of(kSecond, 1), kFirst, "A.k");
  auto verdict = Look(world, RootWait({Of(kDriver, 1)}));
  EXPECT_EQ(verdict.kind, WaitVerdict::Kind::kStuck);
  EXPECT_EQ(verdict.chain,
            "this get waits for the result of A.g, which runs (pid 20) and waits for the result of B.h, which runs "
            "(pid 30) and waits for the result of A.k, which is queued behind 'A.g' (pid 20)");
  // With a second slot, A.k can run.
  world.processes[kFirst].slots = {{"", 2}};
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));
  // If that one is taken by a call which is stuck as well, it cannot.
  world.Waits(Of(kDriver, 2), kFirst, "A.g2", {Of(kSecond, 1)});
  EXPECT_TRUE(Stuck(world, RootWait({Of(kDriver, 1)})));
  // In a group of its own it can.
  world.objects[Of(kSecond, 1)].group = "io";
  world.processes[kFirst].slots.push_back({"io", 1});
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));
}

TEST(WaitGraphTest, ACircleThroughArguments) {
  World world;
  world.Arguments(Of(kDriver, 1), "f", {Of(kDriver, 2), Of(kDriver, 3)});
  world.Runs(Of(kDriver, 2), kFirst, "slow");
  world.Waits(Of(kDriver, 3), kSecond, "g", {Of(kDriver, 1)});
  auto verdict = Look(world, RootWait({Of(kDriver, 1)}));
  EXPECT_EQ(verdict.kind, WaitVerdict::Kind::kStuck);
  EXPECT_EQ(verdict.chain,
            "this get waits for the result of task 'f', which waits for its argument, the result of task 'g', which "
            "runs (pid 30) and waits for the result of task 'f'");
}

TEST(WaitGraphTest, OneStuckMemberOfAGetIsEnough) {
  World world;
  world.Runs(Of(kDriver, 1), kFirst, "slow");
  world.Waits(Of(kDriver, 2), kSecond, "f", {Of(kDriver, 2)});
  EXPECT_TRUE(Stuck(world, RootWait({Of(kDriver, 1), Of(kDriver, 2)})));
  WaitFact any = RootWait({Of(kDriver, 1), Of(kDriver, 2)});
  any.wanted = 1;
  EXPECT_FALSE(Stuck(world, any));
  any.objects = {Of(kDriver, 2), Of(kDriver, 2)};
  EXPECT_TRUE(Stuck(world, any));
  any.more_objects = 1;  // one that is not listed may come
  EXPECT_FALSE(Stuck(world, any));
}

// ---- what is not a deadlock

TEST(WaitGraphTest, WhatIsNotKnownMayGoOn) {
  World world;
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));  // nobody answers
  world.objects[Of(kDriver, 1)].id = Of(kDriver, 1);
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));  // the owner does not know
  world.Runs(Of(kDriver, 1), kFirst, "f");
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));  // it runs
  world.processes.clear();
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));  // its worker does not answer
  world.Queued(Of(kDriver, 1), kFirst, "A.f");
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));  // the actor is idle
  world.processes[kFirst].slots.clear();
  world.Waits(Of(kDriver, 2), kFirst, "A.g", {Of(kDriver, 1)});
  world.processes[kFirst].slots.clear();
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));  // it does not say how many calls it runs at once
}

TEST(WaitGraphTest, ATimeoutInTheCircle) {
  World world;
  world.Waits(Of(kDriver, 1), kFirst, "f", {Of(kDriver, 1)}).has_deadline = 1;
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));
}

TEST(WaitGraphTest, AnotherTaskInTheWorker) {
  // The worker says that it runs something else: the task is on its way, there or back.
  World world;
  world.Waits(Of(kDriver, 2), kFirst, "g", {Of(kDriver, 1)});
  world.Runs(Of(kDriver, 1), kFirst, "f");
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));
}

TEST(WaitGraphTest, AThreadThatIsNotATaskHoldsNothing) {
  World world;
  world.Runs(Of(kDriver, 1), kFirst, "f");
  world.Waits(Of(kDriver, 9), kFirst, "", {Of(kDriver, 1)}).execution = 0;
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));
}

TEST(WaitGraphTest, NothingIsAskedTwiceAndNotWithoutEnd) {
  World world;
  for (uint64_t i = 1; i < 100; ++i) world.Arguments(Of(kDriver, i), "f", {Of(kDriver, i + 1)});
  world.Waits(Of(kDriver, 100), kFirst, "g", {Of(kDriver, 1)});
  EXPECT_TRUE(Stuck(world, RootWait({Of(kDriver, 1)})));
  WaitGraph graph(kDriver, RootWait({Of(kDriver, 1)}));
  graph.max_questions = 50;
  EXPECT_EQ(Traverse(graph, world).kind, WaitVerdict::Kind::kMayGoOn);
}

// ---- resources

TEST(WaitGraphTest, AParentHoldsWhatItsChildNeeds) {
  World world;
  ResourceAmounts shape{{"CPU", kOne}, {"gpu", kOne}};
  world.Waits(Of(kDriver, 1), kFirst, "parent", {Of(kFirst, 1)});
  world.Ready(Of(kFirst, 1), "child", shape);
  world.shapes[shape] = {
      .shape = shape,
      .total = {{"CPU", 4 * kOne}, {"gpu", kOne}},
      .free = {{"CPU", 3 * kOne}},
      .holders = {{.lease = {7}, .worker = kFirst, .pid = 20, .kept = {{"gpu", kOne}}, .actor = {}}}};
  auto verdict = Look(world, RootWait({Of(kDriver, 1)}));
  EXPECT_EQ(verdict.kind, WaitVerdict::Kind::kStuck);
  EXPECT_EQ(verdict.chain,
            "this get waits for the result of task 'parent', which runs (pid 20) and waits for the result of task "
            "'child', which waits for a worker with 1 CPU, 1 gpu (0 of 1 gpu free), held by 'parent' (pid 20)");
  // A second one that another task holds will come free.
  world.shapes[shape].total = {{"CPU", 4 * kOne}, {"gpu", 2 * kOne}};
  world.shapes[shape].holders.push_back(
      {.lease = {8}, .worker = kSecond, .pid = 30, .kept = {{"gpu", kOne}}, .actor = {}});
  world.Runs(Of(kDriver, 2), kSecond, "other");
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));
  // Unless that one waits for the first.
  world.Waits(Of(kDriver, 2), kSecond, "other", {Of(kDriver, 1)});
  EXPECT_TRUE(Stuck(world, RootWait({Of(kDriver, 1)})));
  // Half of it is enough for a smaller child.
  ResourceAmounts half{{"gpu", kOne / 2}};
  world.Ready(Of(kFirst, 1), "child", half);
  world.shapes[half] = world.shapes[shape];
  world.shapes[half].shape = half;
  world.shapes[half].holders[1].kept = {{"gpu", kOne / 2}};
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));
}

TEST(WaitGraphTest, ResourcesThatNobodyHas) {
  World world;
  ResourceAmounts shape{{"gpu", kOne}};
  world.Ready(Of(kDriver, 1), "f", shape);
  world.shapes[shape].shape = shape;
  auto verdict = Look(world, RootWait({Of(kDriver, 1)}));
  EXPECT_EQ(verdict.kind, WaitVerdict::Kind::kUnschedulable);
  EXPECT_EQ(verdict.chain,
            "this get waits for the result of task 'f', which waits for a worker with 1 gpu (0 gpu exist)");
}

TEST(WaitGraphTest, AnActorThatNeedsWhatItsCreatorHolds) {
  World world;
  ResourceAmounts shape{{"gpu", kOne}};
  world.Waits(Of(kDriver, 1), kFirst, "parent", {Of(kFirst, 2)});
  ObjectFact& call = world.objects[Of(kFirst, 2)];
  call.id = Of(kFirst, 2);
  call.state = ObjectState::kForActor;
  call.is_call = 1;
  call.name = "Printer.one";
  call.objects = {Of(kFirst, 1)};
  ObjectFact& handle = world.objects[Of(kFirst, 1)];
  handle.id = Of(kFirst, 1);
  handle.state = ObjectState::kPlacing;
  handle.is_actor = 1;
  handle.name = "Printer";
  handle.shape = shape;
  ShapeFact& fact = world.shapes[shape];
  fact.shape = shape;
  fact.total = {{"gpu", kOne}};
  fact.holders = {{.lease = {7}, .worker = kFirst, .pid = 20, .kept = {{"gpu", kOne}}, .actor = {}}};
  auto verdict = Look(world, RootWait({Of(kDriver, 1)}));
  EXPECT_EQ(verdict.kind, WaitVerdict::Kind::kStuck);
  EXPECT_EQ(verdict.chain,
            "this get waits for the result of task 'parent', which runs (pid 20) and waits for the result of "
            "Printer.one, which waits for actor Printer, which waits for a process with 1 gpu (0 of 1 gpu free), held "
            "by 'parent' (pid 20)");
  handle.state = ObjectState::kThere;  // it has a process
  EXPECT_FALSE(Stuck(world, RootWait({Of(kDriver, 1)})));
}

TEST(WaitGraphTest, ACallBehindOneWhoseArgumentNeverComes) {
  World world;
  world.Waits(Of(kDriver, 1), kFirst, "A.run", {Of(kFirst, 2)});
  world.objects[Of(kDriver, 1)].is_call = 1;
  ObjectFact& call = world.objects[Of(kFirst, 2)];
  call.id = Of(kFirst, 2);
  call.state = ObjectState::kBehind;
  call.is_call = 1;
  call.name = "B.one";
  call.front = "B.take";
  call.objects = {Of(kDriver, 1)};
  EXPECT_TRUE(Stuck(world, RootWait({Of(kDriver, 1)})));
  world.objects[Of(kDriver, 1)].state = ObjectState::kThere;
  EXPECT_FALSE(Stuck(world, RootWait({Of(kFirst, 2)})));
}

// ---- twice

TEST(WaitGraphTest, ACircleSeenTwiceIsOne) {
  World world;
  world.Waits(Of(kDriver, 1), kFirst, "f", {Of(kFirst, 1)});
  world.Waits(Of(kFirst, 1), kSecond, "g", {Of(kDriver, 1)});
  auto first = Look(world, RootWait({Of(kDriver, 1)}));
  ASSERT_EQ(first.kind, WaitVerdict::Kind::kStuck);
  EXPECT_EQ(Look(world, RootWait({Of(kDriver, 1)}), &first.proof).kind, WaitVerdict::Kind::kStuck);
}

TEST(WaitGraphTest, ACircleThatLooksTheSameButIsNotTheSameIsNone) {
  World world;
  ResourceAmounts shape{{"gpu", kOne}};
  world.Waits(Of(kDriver, 1), kFirst, "f", {Of(kFirst, 1)});
  world.Ready(Of(kFirst, 1), "g", shape);
  world.shapes[shape] = {
      .shape = shape,
      .total = {{"gpu", kOne}},
      .free = {},
      .holders = {{.lease = {7}, .worker = kFirst, .pid = 20, .kept = {{"gpu", kOne}}, .actor = {}}}};
  const WaitFact root = RootWait({Of(kDriver, 1)});
  auto first = Look(world, root);
  ASSERT_EQ(first.kind, WaitVerdict::Kind::kStuck);
  ASSERT_EQ(Look(world, root, &first.proof).kind, WaitVerdict::Kind::kStuck);
  std::vector<std::function<void(World&)>> changes = {
      [](World& w) { ++w.processes[kFirst].waits[0].wait; },                   // it waits again
      [](World& w) { ++w.processes[kFirst].waits[0].execution; },              // the task runs again
      [](World& w) { ++w.objects[Of(kDriver, 1)].stamp; },                     // was pushed again
      [](World& w) { ++w.objects[Of(kFirst, 1)].stamp; },                      // was pushed and handed back
      [&](World& w) { ++w.shapes[shape].holders[0].lease.value; },             // another lease of the same worker
      [](World& w) { w.objects[Of(kFirst, 1)].state = ObjectState::kThere; },  // came meanwhile
      [](World& w) { w.objects.erase(Of(kFirst, 1)); },                        // the owner did not answer
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    World changed = world;
    changes[i](changed);
    EXPECT_EQ(Look(changed, root, &first.proof).kind, WaitVerdict::Kind::kMayGoOn) << "change " << i;
  }
}

// ---- words

TEST(WaitGraphTest, Words) {
  World world;
  ResourceAmounts shape{{"CPU", kOne}};
  world.Arguments(Of(kDriver, 1), "f", {Of(kDriver, 2), Of(kDriver, 3)});
  world.Runs(Of(kDriver, 2), kFirst, "g");
  world.Ready(Of(kDriver, 3), "h", shape);
  world.shapes[shape] = {.shape = shape, .total = {{"CPU", 2 * kOne}}, .free = {}, .starting = 1, .holders = {}};
  WaitGraph graph(Of(kDriver, 1));
  EXPECT_EQ(Traverse(graph, world).kind, WaitVerdict::Kind::kMayGoOn);
  EXPECT_EQ(graph.Text(),
            "the result of task 'f' waits for 2 arguments:\n"
            "  the result of task 'g' runs (pid 20)\n"
            "  the result of task 'h' waits for a worker with 1 CPU:\n"
            "    0 of 2 CPU free\n"
            "    1 workers are being started");
  WaitGraph waiting(kDriver, RootWait({Of(kDriver, 2), Of(kDriver, 3)}));
  Traverse(waiting, world);
  EXPECT_EQ(waiting.Line(), "this get waits for the result of task 'g', which runs (pid 20) (and 1 other object)");
}

TEST(WaitGraphTest, WordsNameResourcesAlone) {
  World world;
  ResourceAmounts shape{{"CPU", kOne}, {std::string(kPythonWorker), 1}};
  world.Ready(Of(kDriver, 1), "h", shape);
  world.shapes[shape] = {.shape = shape,
                         .total = {{"CPU", 2 * kOne}, {std::string(kPythonWorker), int64_t{1} << 40}},
                         .free = {},
                         .starting = 1,
                         .holders = {}};
  WaitGraph graph(Of(kDriver, 1));
  Traverse(graph, world);
  EXPECT_EQ(graph.Text(),
            "the result of task 'h' waits for a worker with 1 CPU:\n"
            "  0 of 2 CPU free\n"
            "  1 workers are being started");
}

TEST(WaitGraphTest, TextOfACircleEnds) {
  World world;
  world.Waits(Of(kDriver, 1), kFirst, "f", {Of(kFirst, 1)});
  world.Waits(Of(kFirst, 1), kSecond, "g", {Of(kDriver, 1)});
  WaitGraph graph(Of(kDriver, 1));
  EXPECT_EQ(Traverse(graph, world).kind, WaitVerdict::Kind::kStuck);
  EXPECT_EQ(graph.Text(),
            "the result of task 'f' runs (pid 20) and waits:\n"
            "  'f' (pid 20) has waited 0.0 s for 1 object:\n"
            "    the result of task 'g' runs (pid 30) and waits:\n"
            "      'g' (pid 30) has waited 0.0 s for 1 object:\n"
            "        the result of task 'f' (see above)");
}

// ---- facts on the wire

TEST(WaitFactsTest, SurviveTheWay) {
  World world;
  world.Waits(Of(kDriver, 1), kFirst, "f", {Of(kFirst, 1), Of(kFirst, 2)});
  ProcessFact process;
  ASSERT_TRUE(DecodeFact(EncodeFact(world.processes[kFirst]), process));
  EXPECT_EQ(process.process, kFirst);
  ASSERT_EQ(process.waits.size(), 1u);
  EXPECT_EQ(process.waits[0].name, "f");
  EXPECT_EQ(process.waits[0].objects, (std::vector<ObjectId>{Of(kFirst, 1), Of(kFirst, 2)}));
  ObjectFact object;
  ASSERT_TRUE(DecodeFact(EncodeFact(world.objects[Of(kDriver, 1)]), object));
  EXPECT_EQ(object.stamp, world.objects[Of(kDriver, 1)].stamp);
  EXPECT_EQ(object.worker, kFirst);
}

TEST(WaitFactsTest, NonsenseIsRefused) {
  World world;
  world.Waits(Of(kDriver, 1), kFirst, "f", {Of(kFirst, 1), Of(kFirst, 2)});
  std::string bytes = EncodeFact(world.processes[kFirst]);
  ProcessFact process;
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeFact(std::string_view(bytes).substr(0, size), process)) << size;
  }
  EXPECT_FALSE(DecodeFact(bytes + "x", process));
  // A count that promises more than there is.
  std::string lie = bytes;
  lie[12] = lie[13] = lie[14] = lie[15] = '\xff';
  EXPECT_FALSE(DecodeFact(lie, process));
}

}  // namespace
}  // namespace weft::core
