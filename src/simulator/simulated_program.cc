// SimulatedProcess: the steps of user code, but for waiting and actors.
#include <algorithm>
#include <utility>

#include "simulator/simulated_process.h"

namespace weft::core {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr size_t kMostVariables = 12;

}  // namespace

void SimulatedProcess::StartDriver() {
  body_ = std::make_unique<Body>();
  body_->spec.number = world.options.seed + 1;
  body_->random = Random(DerivedNumber(world.options.seed, 3));
  body_->steps_left = world.workload.driver_steps;
  ScheduleStep(0);
}

void SimulatedProcess::ForgetGlobals() {
  world.Later(this, world.Delay(), Happening::kCount, [this] {
    for (Object* object : std::exchange(globals_, {})) Drop(object);
  });
}

void SimulatedProcess::Drop(Object* object) {
  uint32_t count = object->local_references.load();
  if (count == 0) world.Fail("a reference was dropped that was not held");
  if (count > 1) {
    object->local_references.store(count - 1);
  } else {
    dropped_.push_back(object);
  }
}

void SimulatedProcess::Keep(Object* object) {
  AddReference(object);
  if (object->id == actor_) world.loose.insert(actor_);
  if (world.IsActor(object->id)) {
    world.coverage.Did(Deed::kHandleReceived);
    body_->handles.push_back(object);
  } else {
    body_->variables.push_back(object);
  }
}

// References, and handles of actors, that go into a value.
void SimulatedProcess::AddContained(std::vector<Object*>& contained, uint64_t percent, size_t most) {
  Body& body = *body_;
  while (!body.variables.empty() && body.random.Chance(percent) && contained.size() < most) {
    contained.push_back(PickVariable());
  }
  if (!body.handles.empty() && body.random.Chance(percent)) {
    contained.push_back(body.handles[body.random.Below(body.handles.size())]);
  }
}

bool SimulatedProcess::MaySubmit() const {
  return world.tasks_left > 0 && body_->spec.depth < world.workload.max_depth + (driver_ ? 1 : 0);
}

void SimulatedProcess::NoteSubmitted(uint64_t instance, const TaskSpec& spec, const std::vector<Object*>& returns,
                                     const Submission& submission) {
  world.Submit(instance, spec, id, returns, submission);
  world.tasks.at(instance).handle = owner.last_task();
  pending_.push_back(instance);
  if (!owner.FindTask(owner.last_task())) known_finished_ = UINT64_MAX;  // failed at once
}

Object* SimulatedProcess::PickVariable() {
  auto& variables = body_->variables;
  // Mostly a recent one, so that there are chains.
  size_t back =
      body_->random.Below(body_->random.Chance(60) ? std::min<size_t>(3, variables.size()) : variables.size());
  return variables[variables.size() - 1 - back];
}

void SimulatedProcess::DoStep() {
  Body& body = *body_;
  int64_t pause = static_cast<int64_t>(body.random.Below(20'000));
  auto drop_at = [&](size_t i) {
    Drop(body.variables[i]);
    body.variables.erase(body.variables.begin() + static_cast<ptrdiff_t>(i));
  };
  switch (DrawStep(body.random, driver_, world.workload)) {
    case Step::kSubmit:
      if (MaySubmit()) SubmitChild();
      break;
    case Step::kCreate:
      if (world.actors_left > 0) {
        MakeActor();
        if (body.question != 0) return;
      }
      break;
    case Step::kCall:
      if (body.handles.empty() || !MaySubmit()) break;
      CallActor();
      // As programs mostly do; and so circles come about.
      if (!driver_ && !body.variables.empty() && body.random.Chance(50)) return BeginGet(body.variables.back());
      break;
    case Step::kLookUp:
      return LookUpActor();
    case Step::kKill:
      if (!body.handles.empty()) KillSomeActor();
      break;
    case Step::kCancel:
      if (!body.variables.empty()) CancelSomething();
      break;
    case Step::kPut:
      PutValue();
      break;
    case Step::kGet:
      if (!body.variables.empty()) return BeginGet(PickVariable());
      break;
    case Step::kDrop:
      if (!body.handles.empty() && body.random.Chance(25)) {
        size_t i = body.random.Below(body.handles.size());
        Drop(body.handles[i]);
        body.handles.erase(body.handles.begin() + static_cast<ptrdiff_t>(i));
      } else if (!body.variables.empty()) {
        drop_at(body.random.Below(body.variables.size()));
      }
      break;
    case Step::kKeep:
      if (!body.variables.empty() && !world.closing) {
        Object* object = PickVariable();
        AddReference(object);
        globals_.push_back(object);
      }
      // An actor's state may hold handles, also of those who call it.
      if (!body.handles.empty() && !world.closing) {
        Object* object = body.handles[body.random.Below(body.handles.size())];
        AddReference(object);
        globals_.push_back(object);
      }
      break;
    case Step::kForget:
      if (!globals_.empty()) {
        size_t i = body.random.Below(globals_.size());
        Drop(globals_[i]);
        globals_.erase(globals_.begin() + static_cast<ptrdiff_t>(i));
      }
      break;
    case Step::kCompute:
      pause = static_cast<int64_t>(body.random.Below(static_cast<uint64_t>(world.workload.longest_compute_ns)));
      break;
  }
  while (!driver_ && body.variables.size() > kMostVariables) drop_at(0);
  while (body.handles.size() > kMostVariables) {
    Drop(body.handles.front());
    body.handles.erase(body.handles.begin());
  }
  if (driver_ && world.workload.long_pause && body.steps_left == world.workload.driver_steps / 2) pause = 11'000 * kMs;
  if (body.random.Chance(10)) Drain();
  ScheduleStep(pause);
}

const TaskTemplate* SimulatedProcess::TemplateOf(const TaskSpec& spec) {
  TaskTemplate what;
  what.function = function_;
  what.shape = owner.InternShape(spec.shape);
  what.num_returns = spec.num_returns;
  what.max_retries = spec.max_retries;
  what.kind = spec.kind;
  what.name = "function";
  if (spec.kind == TemplateKind::kCall) what.method = "method";
  if (spec.ending == Ending::kRaiseEarly) what.retry_exceptions.assign(1, '*');
  return owner.InternTemplate(std::move(what));
}

void SimulatedProcess::SubmitChild() {
  Body& body = *body_;
  --world.tasks_left;
  uint64_t number = DerivedNumber(body.spec.number, 1000 + body.children++);
  TaskSpec spec = DrawTask(number, body.spec.depth + 1, world.workload);
  Submission submission;
  submission.what = TemplateOf(spec);
  while (!body.variables.empty() && body.random.Chance(50) && submission.dependencies.size() < 4) {
    submission.dependencies.push_back(PickVariable());
    if (body.random.Chance(10)) submission.dependencies.push_back(submission.dependencies.back());
  }
  AddContained(submission.contained, 25, 3);
  submission.parent = body.execution;
  uint64_t instance = world.next_instance++;
  submission.arguments = {reinterpret_cast<const char*>(&instance), sizeof instance};
  std::vector<Object*> returns;
  owner.Submit(submission, world.now(), returns, actions_);
  NoteSubmitted(instance, spec, returns, submission);
  world.Note("submit", id.value, instance, submission.what->shape);
  for (Object* object : returns) body.variables.push_back(object);
  Perform();
}

void SimulatedProcess::PutValue() {
  Body& body = *body_;
  uint64_t number = DerivedNumber(body.spec.number, 5000 + body.children++);
  SimulatedValue value;
  std::vector<Object*> contained;
  AddContained(contained, 40, 3);
  for (Object* inner : contained) value.contained.push_back(inner->id);
  Object* object = owner.NewOwned();
  if (IsStored(number, 0, world.workload)) {
    value.kind = ValueKind::kStored;
    value.location = {SegmentId{id.value}, ++world.next_offset, 100'000, 1};
    world.store[value.location] = {object->id, id, true};
  } else {
    value.bytes = ValueBytes(number, 0);
  }
  world.Put(object->id, value);
  owner.Resolve(object, value.kind, value.bytes, value.location, contained, actions_);
  body.variables.push_back(object);
  Perform();
}

}  // namespace weft::core
