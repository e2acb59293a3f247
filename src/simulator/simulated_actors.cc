// SimulatedProcess: actors and cancelling, as runtime_actors.cc and executor.cc have them.
#include <algorithm>
#include <utility>

#include "simulator/simulated_process.h"

namespace weft::core {
namespace {

constexpr size_t kMaxEarlyCancels = 256;

}  // namespace

// ---- making and finding -------------------------------------------------------------------------------------------

void SimulatedProcess::MakeActor() {
  Body& body = *body_;
  --world.actors_left;
  uint64_t number = DerivedNumber(body.spec.number, 9000 + body.children++);
  ActorSpec spec = DrawActor(number, body.spec.depth + 1, world.holders_left > 0, world.workload);
  if (!spec.to_hold.empty()) --world.holders_left;
  Object* handle = owner.NewOwned();
  owner.Resolve(handle, ValueKind::kInline, {}, {}, {}, actions_);
  TaskSpec constructing = spec.constructor;
  constructing.shape = spec.to_place;
  uint64_t instance = world.next_instance++;
  Submission constructor;
  constructor.what = TemplateOf(constructing);
  constructor.arguments = {reinterpret_cast<const char*>(&instance), sizeof instance};
  while (!body.variables.empty() && body.random.Chance(30) && constructor.dependencies.size() < 2) {
    constructor.dependencies.push_back(PickVariable());
  }
  AddContained(constructor.contained, 20, 2);
  world.Submit(instance, constructing, id, {}, constructor);
  world.tasks.at(instance).actor = handle->id;
  world.ActorSubmitted(handle->id, spec, id, instance);
  world.Note("create actor", id.value, handle->id.index, instance);
  CreateActor message{.actor = handle->id,
                      .to_place = spec.to_place,
                      .to_hold = spec.to_hold,
                      .max_restarts = spec.max_restarts,
                      .detached = spec.detached,
                      .get_if_exists = spec.get_if_exists,
                      .depth = owner.depth(),
                      .name = spec.name,
                      .name_space = {},
                      .class_name = "A",
                      .metadata = {}};
  message.deferred = !owner.CreateActor(handle, constructor,
                                        {.detached = spec.detached,
                                         .out_of_order = false,
                                         .keep_for_restarts = spec.max_restarts != 0,
                                         .class_name = "A"},
                                        world.now(), actions_);
  if (!spec.name.empty()) message.request = next_question_++;
  uint64_t question = message.request;
  Send(std::move(message));
  Perform();
  if (question == 0) {
    body.handles.push_back(handle);
  } else {
    body.creating = handle;
    AwaitAnswer(question);
  }
}

void SimulatedProcess::LookUpActor() {
  uint64_t question = next_question_++;
  Send(LookupActor{.request = question,
                   .name = "name " + std::to_string(body_->random.Below(world.workload.names)),
                   .name_space = {}});
  AwaitAnswer(question);
}

void SimulatedProcess::AwaitAnswer(uint64_t question) {
  body_->question = question;
  body_->handed_back = false;
  body_->wait_number = next_wait_++;
  if (!driver_) HandBackWhileWaiting();
}

void SimulatedProcess::EndQuestion() {
  Body& body = *body_;
  ActorAnswer answer = std::move(answers_.extract(std::exchange(body.question, 0)).mapped());
  Object* made = std::exchange(body.creating, nullptr);
  if (made && answer.error.empty() && answer.actor == made->id) {
    body.handles.push_back(made);
    return;
  }
  if (made) {
    owner.AbandonActor(made, actions_);
    Perform();
  }
  if (!answer.error.empty()) return;
  if (Object* found = FindReference(answer.actor)) body.handles.push_back(found);
}

Object* SimulatedProcess::FindReference(ObjectId reference) {
  world.loose.insert(reference);
  if (Object* object = owner.Find(reference)) {
    AddReference(object);
    return object;
  }
  if (reference.owner == id) return nullptr;
  Object* object = owner.Receive(reference, 1);
  if (!object->resolved()) {
    Route(reference.owner, {.kind = PeerMessageKind::kAddBorrower, .id = reference, .process = id, .count = 1});
  }
  return object;
}

void SimulatedProcess::Constructed(bool ok) {
  if (ok) constructed_ = true;
  Send(ActorConstructed{.actor = actor_, .ok = ok, .error = body_->reply.error});
  Flush();
}

// ---- calling and killing ------------------------------------------------------------------------------------------

void SimulatedProcess::CallActor() {
  Body& body = *body_;
  --world.tasks_left;
  Object* handle = body.handles[body.random.Below(body.handles.size())];
  const KnownActor& actor = world.actors.at(handle->id);
  uint64_t number = DerivedNumber(body.spec.number, 20'000 + body.children++);
  TaskSpec spec = DrawCall(number, body.spec.depth + 1, actor.spec.max_task_retries, world.workload);
  Submission submission;
  submission.what = TemplateOf(spec);
  while (!body.variables.empty() && body.random.Chance(30) && submission.dependencies.size() < 3) {
    submission.dependencies.push_back(PickVariable());
  }
  AddContained(submission.contained, 25, 3);
  submission.parent = body.execution;
  uint64_t instance = world.next_instance++;
  submission.arguments = {reinterpret_cast<const char*>(&instance), sizeof instance};
  std::vector<Object*> returns;
  owner.SubmitCall(handle, submission, world.now(), returns, actions_);
  NoteSubmitted(instance, spec, returns, submission);
  world.tasks.at(instance).actor = handle->id;
  world.Note("call", id.value, handle->id.index, instance);
  for (Object* object : returns) body.variables.push_back(object);
  Perform();
}

void SimulatedProcess::KillSomeActor() {
  Body& body = *body_;
  Object* handle = body.handles[body.random.Below(body.handles.size())];
  bool no_restart = body.random.Chance(40);
  world.Note("kill actor", id.value, handle->id.index, no_restart);
  owner.ActorKillAsked(handle, no_restart);
  world.KillAsked(handle->id, no_restart, id);
  Send(KillActor{.actor = handle->id, .no_restart = no_restart});
}

void SimulatedProcess::KillActors(const std::vector<ObjectId>& actors) {
  world.Later(this, world.Delay(), Happening::kCount, [this, actors] {
    for (ObjectId actor : actors) Send(KillActor{.actor = actor, .no_restart = 1});
    Flush();
  });
}

// ---- cancelling ---------------------------------------------------------------------------------------------------

void SimulatedProcess::CancelSomething() {
  Body& body = *body_;
  Object* object = PickVariable();
  for (Object* other : body.variables) {
    if (object->resolved() && !other->resolved()) object = other;
  }
  bool force = body.random.Chance(30), recursive = body.random.Chance(50);
  Drain();
  world.Note("cancel", id.value, object->id.owner.value, object->id.index);
  if (object->borrowed) {
    if (!object->resolved()) world.CancelAsked(object->id);
    owner.Cancel(object, force, recursive, world.now(), actions_);
  } else {
    // The front end refuses to end an actor so.
    CancelOwned(object, force && !(object->producer && object->producer->actor), recursive);
  }
  Perform();
}

void SimulatedProcess::CancelOwned(Object* object, bool force, bool recursive) {
  if (object->resolved()) {
    world.coverage.Did(Deed::kCancelledTooLate);
  } else if (object->producer) {
    NoteCancelled(*object->producer);
  }
  owner.Cancel(object, force, recursive, world.now(), actions_);
}

void SimulatedProcess::NoteCancelled(const Task& task) {
  world.CancelAsked(InstanceOf(task));
  if (task.state != TaskState::kPushed && task.state != TaskState::kRevoking) {
    world.coverage.Did(Deed::kCancelledWhileQueued);
  }
}

// The link thread of a worker hears it, while the body runs.
void SimulatedProcess::CancelRunning(ProcessId submitter, uint64_t task, bool force, bool recursive) {
  world.Helped();
  if (!body_ || !body_->channel || body_->ended || body_->channel->submitter != submitter || body_->task.task != task) {
    early_cancels_.push_back({submitter, task, force});
    if (early_cancels_.size() > kMaxEarlyCancels) early_cancels_.pop_front();
    return;
  }
  if (force && !actor_) {
    world.Note("ends itself", id.value);
    world.coverage.Did(Deed::kCancelledByForce);
    Die();
    throw ProcessCrashed{};
  }
  if (recursive) {
    bool any = false;
    owner.ForEachTask([&](Task* child) {
      if (child->parent != body_->execution || child->what->kind == TemplateKind::kCreation) return;
      any = true;
      NoteCancelled(*child);
    });
    if (any) world.coverage.Did(Deed::kCancelledChildren);
    owner.CancelChildren(body_->execution, force, world.now(), actions_);
    Perform();
  }
  body_->interrupted = true;
  if (body_->awaited && !body_->resuming) {
    body_->resuming = true;
    ScheduleStep(world.Delay());
  }
}

void SimulatedProcess::TakeEarlyCancel() {
  auto at = std::find_if(early_cancels_.begin(), early_cancels_.end(), [this](const EarlyCancel& cancel) {
    return cancel.submitter == body_->channel->submitter && cancel.task == body_->task.task;
  });
  if (at == early_cancels_.end()) return;
  bool force = at->force;
  early_cancels_.erase(at);
  if (force && !actor_) {
    Die();
    throw ProcessCrashed{};
  }
  body_->interrupted = true;
}

}  // namespace weft::core
