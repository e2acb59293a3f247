// Random programs on nodes that die: whatever can be made again is, with the right value, and nothing is left over.
//
// The owner is the real one. Workers, stores and copies are played by this file, one step at a time: a worker reads
// where its arguments lie as they were told to it when its task was pushed, so a stale place is found out.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "runtime/owner_transcript.h"

namespace weft::core {
namespace {

constexpr ProcessId kPlayer{uint64_t{1} << 32 | 1};
constexpr uint32_t kNodes = 3;  // besides ours
constexpr ProcessId kBorrower{uint64_t{1} << 32 | 99};

struct Seen {
  uint64_t runs_again = 0, calls_again = 0, arguments_lost = 0, errors = 0, overtaken = 0, asked_again = 0, dropped = 0;
};

class Play {
 public:
  // Forgiving: tasks have few retries, and some arguments cannot be made again.
  Play(uint32_t seed, bool forgiving, const Owner::Faults& faults)
      : random_(seed), forgiving_(forgiving), owner_(kPlayer) {
    owner_.faults = faults;
    function_ = owner_.InternFunction(Function{.key = {1, 1}, .name = "f"});
    shape_ = owner_.InternShape({{"CPU", kResourceUnit}});
    for (uint32_t i = 0; i < kNodes; ++i) AddNode();
    actor_ = owner_.NewOwned();
    owner_.Resolve(actor_, ValueKind::kInline, "", {}, {}, actions_);
    actor_id_ = actor_->id;
    TaskTemplate what = What(0, 0);
    what.kind = TemplateKind::kCreation;
    owner_.CreateActor(actor_, {.what = owner_.InternTemplate(what), .arguments = "new"}, {.keep_for_restarts = true},
                       ++now_, actions_);
    Perform();
  }

  // What went wrong, or nothing.
  std::string Run() {
    for (int i = 0; i < 150 && wrong_.empty(); ++i) {
      Act();
      for (uint32_t steps = Below(4); steps > 0; --steps) Step();
      owner_.CheckInvariants();
    }
    for (const Held& held : held_) Look(held.object);
    Quiet();
    for (const Held& held : held_) Judge(held);
    while (!held_.empty()) Drop();
    if (actor_) LetGoOfActor();
    Quiet();
    if (owner_.live_objects() != 0) Wrong(std::to_string(owner_.live_objects()) + " objects are left");
    if (owner_.lineages() != 0 || owner_.lineage_bytes() != 0) Wrong("lineage is left");
    if (owner_.live_tasks() != 0) Wrong("tasks are left");
    for (const auto& [where, value] : store_) {
      if (Alive(where)) Wrong("something stored is left at " + std::to_string(where.offset));
    }
    return wrong_;
  }

  Seen seen;

 private:
  struct Held {
    Object* object;
    uint64_t expected;
  };
  struct Argument {
    enum { kInline, kStored, kEarlier } kind;
    ObjectId id;
    uint64_t value = 0;
    Location where;
  };
  struct Frame {
    uint64_t task, push;
    std::string name;
    uint32_t max_runs;
    std::vector<ObjectId> returns, borrowed;
    std::vector<Argument> arguments;
    uint64_t order = 0;  // of a call, unless it is made again
  };
  struct Worker {
    ProcessId process;
    bool alive = true, leased = false;
    bool actor = false;       // then it is never leased
    uint64_t last_order = 0;  // of the calls that ran here
    std::deque<Frame> frames;
    std::map<ObjectId, ReturnedValue> remembered;
    std::map<ObjectId, std::string> bytes;
  };
  struct Coming {
    Object* object;
    Location where;
  };

  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  void Wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  bool Alive(const Location& where) const { return !gone_.contains(NodeOf(where.segment)); }
  void AddNode() {
    const uint32_t node = next_node_++;
    workers_.emplace_back().process = ProcessId{uint64_t{node} << 32 | 1};
  }
  static uint64_t Mix(uint64_t a, uint64_t b) { return (a ^ (b + 0x9e3779b97f4a7c15 + (a << 6) + (a >> 2))) * 31; }

  // ---- the program

  void Act() {
    const uint32_t what = Below(100);
    if (what < 28) {
      Submit(false);
    } else if (what < 40) {
      Submit(actor_ != nullptr);
    } else if (what < 41) {
      if (forgiving_ && actor_ && Below(3) == 0) LetGoOfActor();
    } else if (what < 48) {
      Put();
    } else if (what < 70) {
      if (held_.size() > 3) Drop();
    } else if (what < 85) {
      if (!held_.empty()) Look(held_[Below(static_cast<uint32_t>(held_.size()))].object);
    } else if (what < 92) {
      AskAgain();
    } else {
      LoseNode();
    }
    Perform();
  }

  TaskTemplate What(uint32_t returns, int32_t retries) const {
    TaskTemplate what;
    what.function = function_;
    what.shape = shape_;
    what.num_returns = returns;
    what.max_retries = retries;
    what.name = "f";
    return what;
  }

  void Submit(bool call) {
    TaskTemplate what = What(1 + Below(2), forgiving_ ? static_cast<int32_t>(Below(4)) : -1);
    const std::string name = std::to_string(next_task_++);
    uint64_t expected = std::hash<std::string>()(name);
    std::vector<Object*> dependencies;
    for (uint32_t i = Below(4); i > 0 && !held_.empty(); --i) {
      const Held& held = held_[Below(static_cast<uint32_t>(held_.size()))];
      dependencies.push_back(held.object);
      expected = Mix(expected, held.expected);
    }
    std::vector<Object*> returns;
    if (call) what.kind = TemplateKind::kCall;
    const Submission submission{.what = owner_.InternTemplate(what), .arguments = name, .dependencies = dependencies};
    if (call) {
      owner_.SubmitCall(actor_, submission, ++now_, returns, actions_);
    } else {
      owner_.Submit(submission, ++now_, returns, actions_);
    }
    for (size_t i = 0; i < returns.size(); ++i) held_.push_back({returns[i], Mix(expected, i)});
  }

  void Put() {
    const uint64_t value = random_();
    Object* object = owner_.NewOwned();
    if (forgiving_ && Below(2) == 0) {
      owner_.Resolve(object, ValueKind::kStored, {}, Store(kPlayer, value), {}, actions_);
    } else {
      owner_.Resolve(object, ValueKind::kInline, std::to_string(value), {}, {}, actions_);
    }
    held_.push_back({object, value});
  }

  void Drop() {
    const uint32_t which = Below(static_cast<uint32_t>(held_.size()));
    Object* object = held_[which].object;
    held_.erase(held_.begin() + which);
    if (object->local_references.fetch_sub(1) == 1) owner_.Consider(object, actions_);
    Perform();
  }

  void Look(Object* object) {
    owner_.WantHere(object, actions_);
    Perform();
  }

  // Somebody elsewhere has found it gone.
  void AskAgain() {
    for (const Held& held : held_) {
      if (held.object->value.kind() != ValueKind::kStored || Alive(held.object->value.location())) continue;
      ++seen.asked_again;
      const Location where = held.object->value.location();
      owner_.ValueAskedAgain(held.object->id, kBorrower, where, actions_);
      return;
    }
  }

  void LetGoOfActor() {
    Object* handle = std::exchange(actor_, nullptr);
    if (handle->local_references.fetch_sub(1) == 1) owner_.Consider(handle, actions_);
    Perform();
  }

  Worker& AnyLiving() {
    std::vector<Worker*> living;
    for (Worker& worker : workers_) {
      if (worker.alive && !worker.actor) living.push_back(&worker);
    }
    return *living[Below(static_cast<uint32_t>(living.size()))];
  }

  void LoseNode() {
    const NodeNumber node = NodeOf(AnyLiving().process);
    gone_.insert(node);
    AddNode();
    std::vector<ProcessId> dead;
    bool actor = false;
    for (Worker& worker : workers_) {
      if (NodeOf(worker.process) != node || !worker.alive) continue;
      worker.alive = worker.leased = false;
      actor = actor || worker.actor;
      dead.push_back(worker.process);
    }
    const bool told_first = Below(2) == 0;
    if (actor && told_first) ReportActor(ActorState::kRestarting, {});
    for (ProcessId process : dead) owner_.ProcessDied(process, "was lost", ++now_, actions_);
    if (actor && !told_first) ReportActor(ActorState::kRestarting, {});
    if (actor) wants_worker_ = true;
  }

  void ReportActor(ActorState state, ProcessId worker) {
    owner_.ActorReported({actor_id_, static_cast<uint8_t>(state), incarnation_, worker}, ++now_, actions_);
  }

  void StartActor() {
    wants_worker_ = false;
    ++incarnation_;
    const ProcessId process{uint64_t{NodeOf(AnyLiving().process).value} << 32 | (1000 + incarnation_)};
    workers_.emplace_back().process = process;
    workers_.back().actor = true;
    ReportActor(ActorState::kStarting, process);
  }

  void Judge(const Held& held) {
    const Object& object = *held.object;
    if (!object.settled()) return Wrong("waited in vain");
    if (object.value.kind() == ValueKind::kSystemError) {
      ++seen.errors;
      // The one thing that is not made good: see CallsWaitOrFailButNeverChangeTheirOrder.
      const bool overtaken = Text(&object).find("calls that were made after it have gone on") != std::string::npos;
      seen.overtaken += overtaken;
      if (!forgiving_ && !overtaken) Wrong("an error: " + Text(&object));
      return;
    }
    uint64_t value = 0;
    if (object.value.kind() == ValueKind::kInline) {
      value = std::stoull(std::string(object.value.bytes()));
    } else if (object.place == Place::kCopied) {
      value = object.copy->place.offset;
    } else if (object.place == Place::kLost) {
      return Wrong("lost, though nobody said so");
    } else {
      value = store_.at(object.value.location());
    }
    if (value != held.expected) Wrong("a wrong value");
  }

  // ---- the world

  Location Store(ProcessId writer, uint64_t value) {
    const Location where{{writer.value}, next_place_, 100'000, next_place_};
    ++next_place_;
    store_[where] = value;
    return where;
  }

  void Quiet() {
    for (int i = 0; i < 20'000; ++i) {
      if (!Step()) return;
    }
    Wrong("it never ends");
  }

  // One thing that can happen, if any can.
  bool Step() {
    if (!wrong_.empty()) return false;
    std::vector<uint32_t> busy;
    for (uint32_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].alive && !workers_[i].frames.empty()) busy.push_back(i);
    }
    std::vector<uint32_t> free;
    for (uint32_t i = 0; i < workers_.size() && requested_ > 0; ++i) {
      if (workers_[i].alive && !workers_[i].leased && !workers_[i].actor) free.push_back(i);
    }
    if (wants_worker_ && (Below(3) == 0 || (coming_.empty() && busy.empty() && free.empty()))) {
      StartActor();
      Perform();
      return true;
    }
    if (!coming_.empty() && (Below(3) == 0 || (busy.empty() && free.empty()))) {
      const Coming came = coming_.front();
      coming_.pop_front();
      if (Alive(came.where)) {
        if (!store_.contains(came.where)) Wrong("it was freed while it was fetched");
        // The copy's place is not looked at; its offset has the value.
        owner_.Brought(came.object, came.where, {{kPlayer.value}, store_[came.where], 100'000, 1}, actions_);
      } else {
        owner_.NotBrought(came.object, came.where, &kError, true, actions_);
      }
    } else if (!free.empty() && (busy.empty() || Below(2) == 0)) {
      Worker& worker = workers_[free[Below(static_cast<uint32_t>(free.size()))]];
      --requested_;
      worker.leased = true;
      owner_.LeaseGranted(shape_, LeaseId{worker.process.value}, worker.process, ++now_, actions_);
    } else if (!busy.empty()) {
      Execute(workers_[busy[Below(static_cast<uint32_t>(busy.size()))]]);
    } else {
      return false;
    }
    Perform();
    return true;
  }

  void Execute(Worker& worker) {
    const Frame frame = worker.frames.front();
    worker.frames.pop_front();
    std::vector<ReturnedValue> values;
    uint64_t value = std::hash<std::string>()(frame.name);
    for (const Argument& argument : frame.arguments) {
      uint64_t part = argument.value;
      Location where = argument.where;
      if (argument.kind == Argument::kEarlier) {
        auto found = worker.remembered.find(argument.id);
        // What it remembers may be of a former run; the generation of its place tells.
        if (found == worker.remembered.end() ||
            (found->second.kind == ValueKind::kStored && !store_.contains(found->second.location))) {
          return owner_.Replied(worker.process, frame.task, ReplyKind::kHandedBack, "", {}, ++now_, actions_);
        }
        where = found->second.location;
        if (found->second.kind == ValueKind::kInline) part = std::stoull(worker.bytes.at(argument.id));
      }
      if (where.size > 0) {
        if (!Alive(where)) {
          values.push_back({.kind = ValueKind::kStored, .bytes = {}, .location = where, .contained = {}});
          continue;
        }
        if (!store_.contains(where)) return Wrong("an argument was freed");
        part = store_.at(where);
      }
      value = Mix(value, part);
    }
    if (!values.empty()) {
      ++seen.arguments_lost;
      return owner_.Replied(worker.process, frame.task, ReplyKind::kArgumentLost, kError, values, ++now_, actions_);
    }
    if (frame.name == "new") {
      owner_.Replied(worker.process, frame.task, ReplyKind::kValues, "", {}, ++now_, actions_);
      return ReportActor(ActorState::kAlive, worker.process);
    }
    if (++runs_[frame.name] > frame.max_runs) Wrong("a task ran more often than it may");
    if (frame.order > 0 && frame.order <= worker.last_order) Wrong("calls ran out of order");
    worker.last_order = std::max(worker.last_order, frame.order);
    std::vector<std::string> bytes(frame.returns.size());
    for (size_t i = 0; i < frame.returns.size(); ++i) {
      const uint64_t result = Mix(value, i);
      bytes[i] = std::to_string(result);
      ReturnedValue returned{.kind = ValueKind::kInline, .bytes = bytes[i], .location = {}, .contained = {}};
      if (Below(5) > 0) returned = {ValueKind::kStored, {}, Store(worker.process, result), {}};
      worker.remembered[frame.returns[i]] = returned;
      worker.bytes[frame.returns[i]] = bytes[i];
      values.push_back(returned);
    }
    owner_.Replied(worker.process, frame.task, ReplyKind::kValues, "", values, ++now_, actions_);
    for (ObjectId id : frame.borrowed) owner_.BorrowsChanged(id, worker.process, -1, actions_);
  }

  void Push(int32_t number, Task* task) {
    const ProcessId process = owner_.workers()[static_cast<size_t>(number)].process;
    Frame frame{.task = task->handle, .push = task->push, .name = std::string(task->arguments.view()), .max_runs = 0};
    const int32_t limit = task->what->max_retries;
    frame.max_runs = limit < 0 ? UINT32_MAX : static_cast<uint32_t>(limit) + 1;
    if (!task->lineage) frame.order = task->order;
    for (uint32_t i = 0; i < task->what->num_returns; ++i) frame.returns.push_back(task->Return(i)->id);
    if (task->borrowed_by_worker) {
      for (const Object* object : *task->borrowed_by_worker) frame.borrowed.push_back(object->id);
    }
    for (uint32_t i = 0; i < task->num_dependencies; ++i) {
      const Object* object = task->dependencies[i];
      Argument argument{.kind = Argument::kEarlier, .id = object->id, .value = 0, .where = {}};
      if (object->value.kind() == ValueKind::kInline) {
        argument.kind = Argument::kInline;
        argument.value = std::stoull(std::string(object->value.bytes()));
      } else if (object->value.kind() == ValueKind::kStored) {
        argument.kind = Argument::kStored;
        argument.where = object->value.location();
      }
      frame.arguments.push_back(argument);
    }
    for (Worker& worker : workers_) {
      if (worker.process == process) worker.frames.push_back(std::move(frame));
    }
  }

  void Perform() {
    for (size_t i = 0; i < actions_.size(); ++i) {
      const Action action = actions_[i];
      switch (action.kind) {
        case ActionKind::kPush:
          Push(action.worker, action.task);
          break;
        case ActionKind::kRevoke: {
          // What was begun has ended: nothing is claimed here for longer than a step.
          const ProcessId process = owner_.workers()[static_cast<size_t>(action.worker)].process;
          for (Worker& worker : workers_) {
            if (worker.process != process) continue;
            std::erase_if(worker.frames, [&](const Frame& frame) { return frame.task == action.number; });
          }
          owner_.RevokeResolved(action.number, true, ++now_, actions_);
          break;
        }
        case ActionKind::kRequestLeases:
          requested_ = action.number;
          break;
        case ActionKind::kReturnLease:
          for (Worker& worker : workers_) {
            if (worker.process.value == action.number) worker.leased = false;
          }
          break;
        case ActionKind::kFreeStored:
          if (store_.erase(action.location) == 0) Wrong("freed twice");
          break;
        case ActionKind::kBring:
          coming_.push_back({action.object, action.location});
          break;
        case ActionKind::kLetGo:
          std::erase_if(coming_, [&](const Coming& coming) {
            return coming.object == action.object && coming.where == action.location;
          });
          break;
        case ActionKind::kSendValue:
          if (action.object) owner_.Unhold(action.object, actions_);
          break;
        case ActionKind::kRunAgain:
          ++seen.runs_again;
          if (const Task* task = owner_.FindTask(action.number)) seen.calls_again += task->actor != nullptr;
          break;
        case ActionKind::kPlaceActor:
          wants_worker_ = true;
          break;
        case ActionKind::kReleaseActor:
          wants_worker_ = false;
          for (Worker& worker : workers_) {
            if (!worker.actor || !worker.alive) continue;
            worker.alive = false;
            owner_.ProcessDied(worker.process, "has ended", ++now_, actions_);
          }
          break;
        default:
          break;
      }
    }
    actions_.clear();
    owner_.ForEachObject([&](Object* object) {
      seen.dropped += object->dropped;
      const bool used = object->local_references > 0 || object->holds > 0 || object->callbacks > 0 ||
                        (object->borrowers && !object->borrowers->empty());
      if (!used && object->lineage_holds > 0 && object->value.kind() == ValueKind::kStored) {
        Wrong("a value is kept for lineage alone");
      }
    });
  }

  const std::string kError = "ObjectLostError\nits node is gone";
  std::mt19937 random_;
  const bool forgiving_;
  Owner owner_;
  const Function* function_;
  uint32_t shape_;
  Actions actions_;
  int64_t now_ = 1;
  uint64_t requested_ = 0, next_place_ = 1, next_task_ = 1;
  uint32_t next_node_ = 2, incarnation_ = 0;
  Object* actor_ = nullptr;  // nullptr: let go of
  ObjectId actor_id_;
  bool wants_worker_ = true;  // the actor
  std::deque<Worker> workers_;
  std::set<NodeNumber> gone_;
  std::map<Location, uint64_t> store_;
  std::deque<Coming> coming_;
  std::vector<Held> held_;
  std::map<std::string, uint32_t> runs_;
  std::string wrong_;
};

Seen Sum(bool forgiving) {
  Seen sum;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    Play play(seed, forgiving, {});
    const std::string wrong = play.Run();
    EXPECT_EQ(wrong, "") << "seed " << seed;
    if (!wrong.empty()) break;
    sum.runs_again += play.seen.runs_again;
    sum.calls_again += play.seen.calls_again;
    sum.overtaken += play.seen.overtaken;
    sum.arguments_lost += play.seen.arguments_lost;
    sum.errors += play.seen.errors;
    sum.asked_again += play.seen.asked_again;
    sum.dropped += play.seen.dropped;
  }
  EXPECT_GT(sum.runs_again, 300u);
  EXPECT_GT(sum.calls_again, 100u);
  EXPECT_GT(sum.arguments_lost, 100u);
  EXPECT_GT(sum.asked_again, 100u);
  EXPECT_GT(sum.dropped, 100u);
  return sum;
}

TEST(OwnerLineageSeeds, WhatMayRunAgainIsAlwaysMadeAgain) {
  const Seen sum = Sum(false);
  EXPECT_EQ(sum.errors, sum.overtaken);
}

TEST(OwnerLineageSeeds, WhatMayNotEndsInAnErrorAndNeverRunsTooOften) { EXPECT_GT(Sum(true).errors, 50u); }

TEST(OwnerLineageSeeds, PlantedBugsAreFound) {
  auto found = [](bool Owner::Faults::* fault) {
    Owner::Faults faults;
    faults.*fault = true;
    for (uint32_t seed = 1; seed <= 100; ++seed) {
      if (!Play(seed, true, faults).Run().empty()) return true;
    }
    return false;
  };
  EXPECT_TRUE(found(&Owner::Faults::make_again_without_counting));
  EXPECT_TRUE(found(&Owner::Faults::keep_values_for_lineage));
}

}  // namespace
}  // namespace weft::core
