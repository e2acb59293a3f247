// Owner: actors and cancelling. What a caller or the creator of an actor does with its calls while the actor starts,
// lives, restarts and dies.
#include <algorithm>

#include "runtime/owner.h"

namespace weft::core {
namespace {

// Separates a system error's message from the packed exception that caused it.
constexpr char kCauseMark = '\0';

}  // namespace

Actor* Owner::ActorOf(Object* handle) {
  if (handle->actor) return handle->actor;
  auto& slot = actors_[handle->id];
  slot = std::make_unique<Actor>();
  slot->handle = handle;
  handle->actor = slot.get();
  return slot.get();
}

bool Owner::AnyActors() const {
  return std::any_of(actors_.begin(), actors_.end(), [](const auto& entry) {
    return entry.second->created_here && entry.second->state != ActorState::kDead;
  });
}

bool Owner::CreateActor(Object* handle, const Submission& constructor, const ActorOptions& options, int64_t now_ns,
                        Actions& out) {
  now_ns_ = now_ns;
  Actor* actor = ActorOf(handle);
  actor->created_here = actor->watched = true;
  actor->detached = options.detached;
  actor->out_of_order = options.out_of_order;
  actor->class_name = options.class_name;
  actor->creation = constructor.what;
  if (options.detached) Hold(handle);  // until it is dead
  if (options.keep_for_restarts) {
    actor->creation_arguments = constructor.arguments;
    actor->creation_dependencies = constructor.dependencies;
    actor->creation_contained = constructor.contained;
    for (Object* object : actor->creation_dependencies) Hold(object);
    for (Object* object : actor->creation_contained) Hold(object);
  }
  std::vector<Object*> returns;
  bool failed;
  Task* task = NewTask(constructor, returns, &failed, out);
  task->actor = actor;
  task->order = 0;
  bool ready = task->unresolved == 0;
  actor->placed = ready;
  if (failed) {
    Retry(task, out);
  } else {
    task->state = TaskState::kQueued;
    actor->queue.PushFront(task);
  }
  Settle(out);
  return ready;
}

void Owner::KeepActor(Object* handle, const Submission& constructor, const std::string& class_name, Actions& out) {
  Actor* actor = ActorOf(handle);
  if (actor->created_here || actor->kept || actor->state == ActorState::kDead) return;
  actor->kept = true;
  actor->class_name = class_name;
  actor->creation = constructor.what;
  actor->creation_arguments = constructor.arguments;
  actor->creation_dependencies = constructor.dependencies;
  actor->creation_contained = constructor.contained;
  Hold(handle);  // until it is dead
  for (Object* object : actor->creation_dependencies) Hold(object);
  for (Object* object : actor->creation_contained) Hold(object);
  // Their values are needed while their owner lives.
  for (Object* object : actor->creation_dependencies) Seek(object, out);
  if (!actor->watched) {
    actor->watched = true;
    out.push_back({.kind = ActionKind::kWatchActor, .id = handle->id});
  }
  Settle(out);
}

void Owner::AbandonActor(Object* handle, Actions& out) {
  DeclareActorDead(handle->actor, out);
  handle->local_references.fetch_sub(1, std::memory_order_relaxed);
  Consider(handle, out);
  Settle(out);
}

void Owner::SubmitCall(Object* handle, const Submission& submission, int64_t now_ns, std::vector<Object*>& returns,
                       Actions& out) {
  now_ns_ = now_ns;
  bool failed;
  Task* task = NewTask(submission, returns, &failed, out);
  QueueCall(handle, task, failed, out);
  Settle(out);
}

void Owner::QueueCall(Object* handle, Task* task, bool failed, Actions& out) {
  Actor* actor = ActorOf(handle);
  task->actor = actor;
  task->order = actor->next_order++;
  actor->made_again += task->lineage != nullptr;
  task->holds_handle = true;
  Hold(handle);
  ++actor->pending_calls;
  if (!actor->watched) {
    actor->watched = true;
    out.push_back({.kind = ActionKind::kWatchActor, .id = handle->id});
  }
  if (failed) {
    Retry(task, out);
  } else if (actor->state == ActorState::kDead) {
    FailCall(task, false, out);
  } else {
    task->state = TaskState::kQueued;
    actor->queue.PushBack(task);
    MarkDirty(actor);
  }
}

bool Owner::WasOvertaken(const LeasedWorker& worker, const Task* call) {
  if (call->actor->out_of_order || call->lineage) return false;
  for (const Task* other = worker.pushed.last; other; other = other->previous) {
    if (other->order > call->order && !other->lineage) return true;
  }
  return false;
}

void Owner::ActorKillAsked(Object* handle, bool no_restart) {
  Actor* actor = ActorOf(handle);
  if (no_restart) {
    actor->killed = true;
  } else if (actor->worker >= 0) {
    actor->killed_incarnation = actor->incarnation;
  }
}

void Owner::MarkDirty(Actor* actor) {
  if (actor->dirty) return;
  actor->dirty = true;
  dirty_actors_.push_back(actor);
}

void Owner::PumpActor(Actor* actor, Actions& out) {
  if (actor->created_here && !actor->placed && actor->queue.first && actor->queue.first->unresolved == 0) {
    actor->placed = true;
    out.push_back({.kind = ActionKind::kPlaceActor, .id = actor->handle->id});
  }
  if (actor->worker < 0 || actor->killed || actor->incarnation == actor->killed_incarnation) return;
  // By a call that waits for its arguments: then only calls without a place in the order go on.
  bool held_up = false;
  for (Task* task = actor->queue.first; task;) {
    LeasedWorker& worker = workers_[actor->worker];
    if (worker.dead || worker.full || worker.pushed.size >= max_pushed_calls) return;
    Task* next = task->next;
    if (actor->to_follow > 0 && task->what->kind == TemplateKind::kCall) return;
    if (any_lost_ && HasFailedArgument(task)) {
      actor->queue.Remove(task);
      MarkDirty(actor);
      return Retry(task, out);
    }
    if (any_lost_) WaitAgain(task);
    if (task->unresolved > 0) {
      if (task->what->kind == TemplateKind::kCreation) return;
      held_up = held_up || (!actor->out_of_order && !task->lineage);
      if (held_up && actor->made_again == 0) return;
    } else if (!held_up || task->lineage) {
      actor->queue.Remove(task);
      if (task->what->kind == TemplateKind::kCreation) {
        task->holds_handle = true;
        Hold(actor->handle);
      }
      PushTo(actor->worker, task, out);
    }
    task = next;
  }
}

void Owner::PushConstructor(Actor* actor, Actions& out) {
  if (actor->queue.first && actor->queue.first->what->kind == TemplateKind::kCreation) return;
  Submission constructor{.what = actor->creation,
                         .arguments = actor->creation_arguments,
                         .dependencies = actor->creation_dependencies,
                         .contained = actor->creation_contained};
  std::vector<Object*> returns;
  bool failed;
  Task* task = NewTask(constructor, returns, &failed, out);
  task->actor = actor;
  task->attempt = actor->incarnation;
  task->state = TaskState::kQueued;
  actor->queue.PushFront(task);
}

void Owner::Requeue(Task* task, Actions& out) {
  Actor* actor = task->actor;
  if (task->what->kind == TemplateKind::kCreation) {
    if (actor->worker < 0) return Finish(task, out);  // the next incarnation gets another one
    task->state = TaskState::kQueued;
    actor->queue.PushFront(task);
    if (task->holds_handle) {
      task->holds_handle = false;
      Unhold(actor->handle, out);
    }
    return;
  }
  if (actor->state == ActorState::kDead) return FailCall(task, false, out);
  task->state = TaskState::kQueued;
  Task* before = actor->queue.first;
  while (before && (before->order < task->order || faults.requeue_calls_at_the_end)) before = before->next;
  if (!before) {
    actor->queue.PushBack(task);
  } else {
    actor->queue.InsertBefore(before, task);
  }
  MarkDirty(actor);
}

void Owner::FailCall(Task* task, bool may_have_run, Actions& out) {
  may_have_run = (may_have_run || task->attempt > 0) && !faults.say_that_calls_did_not_run;
  const Actor& actor = *task->actor;
  bool dead = actor.state == ActorState::kDead;
  std::string text = task->lineage   ? "ReconstructionFailedError\na result of the method '" + task->what->name +
                                           "' was lost, and making the call again"
                     : actor.refused ? "UnschedulableError\n"
                     : dead          ? "ActorDiedError\n"
                                     : "ActorUnavailableError\n";
  if (!task->lineage) text += "the call of '" + task->what->name + "'";
  text += " failed because its actor ";
  text += actor.refused ? "can never start" : dead ? "is dead" : "died and restarts";
  if (!actor.why.empty()) text += ": " + actor.why;
  text += may_have_run ? ". The call was running, so it may have had effects" : ". The call did not run";
  if (may_have_run && task->what->max_retries == 0) {
    text += "; max_task_retries=0, so it was not run again";
  }
  if (!actor.error.empty()) (text += kCauseMark) += actor.error;
  FailTask(task, ValueKind::kSystemError, text, out);
}

void Owner::ActorReported(const ActorChanged& change, int64_t now_ns, Actions& out) {
  now_ns_ = now_ns;
  auto state = static_cast<ActorState>(change.state);
  // Even for an actor that was dropped meanwhile: the runtime numbers its channels like our workers.
  const bool has_worker = state == ActorState::kStarting || state == ActorState::kAlive;
  if (has_worker) WorkerRecord(change.worker);
  auto it = actors_.find(change.actor);
  if (it == actors_.end()) return;
  Actor* actor = it->second.get();
  if (actor->state == ActorState::kDead || change.incarnation < actor->incarnation) return;
  // The last worker, if its death was heard first: now its calls can be decided.
  const int32_t before = actor->worker >= 0 && workers_[actor->worker].dead ? actor->worker : -1;
  const bool new_worker = has_worker && before >= 0 && workers_[before].process != change.worker;
  actor->why = change.why;
  actor->incarnation = change.incarnation;
  if (state == ActorState::kDead) {
    actor->error = change.error;
    actor->refused = change.refused != 0;
    DeclareActorDead(actor, out);
    if (before >= 0) RevokePushed(workers_[before], out);
    return Settle(out);
  }
  actor->state = state;
  if (has_worker) {
    LeasedWorker& worker = WorkerRecord(change.worker);
    bool fresh = actor->worker != static_cast<int32_t>(&worker - workers_.data());
    if (fresh && !worker.dead) {
      actor->worker = static_cast<int32_t>(&worker - workers_.data());
      worker.actor = actor;
      worker.full = false;
      if (actor->created_here || (actor->kept && change.construct != 0)) {
        actor->gpus = worker.gpus = change.gpus;
        PushConstructor(actor, out);
      }
    }
  } else {
    actor->worker = -1;
  }
  if (before >= 0 && (!has_worker || new_worker)) RevokePushed(workers_[before], out);
  MarkDirty(actor);
  Settle(out);
}

void Owner::DeclareActorDead(Actor* actor, Actions& out) {
  if (actor->state == ActorState::kDead) return;
  Object* handle = actor->handle;
  Hold(handle);  // the last call may hold it
  actor->state = ActorState::kDead;
  if (actor->worker >= 0) {
    // Calls that have not begun never will. The worker may stay for a while, perhaps because of a call to itself.
    for (Task* task = workers_[actor->worker].pushed.first; task; task = task->next) {
      if (task->state == TaskState::kPushed && task->what->kind == TemplateKind::kCall) Revoke(task, out);
    }
  }
  actor->worker = -1;
  while (Task* task = actor->queue.PopFront()) {
    if (task->what->kind == TemplateKind::kCreation) {
      Finish(task, out);
    } else {
      FailCall(task, false, out);
    }
  }
  auto dependencies = std::move(actor->creation_dependencies);
  auto contained = std::move(actor->creation_contained);
  actor->creation_arguments = {};
  for (Object* object : dependencies) Unhold(object, out);
  for (Object* object : contained) Unhold(object, out);
  if ((actor->created_here && actor->detached) || actor->kept) Unhold(handle, out);
  Unhold(handle, out);
}

void Owner::ForgetActor(Actor* actor, Actions& out) {
  if (actor->created_here && actor->state != ActorState::kDead && !faults.keep_actors_without_handles) {
    out.push_back({.kind = ActionKind::kReleaseActor, .id = actor->handle->id});
  }
  // What is left is a constructor that was not pushed.
  while (Task* task = actor->queue.PopFront()) Finish(task, out);
  auto dependencies = std::move(actor->creation_dependencies);
  auto contained = std::move(actor->creation_contained);
  for (Object* object : dependencies) Unhold(object, out);
  for (Object* object : contained) Unhold(object, out);
  for (LeasedWorker& worker : workers_) {
    if (worker.actor == actor) worker.actor = nullptr;
  }
  if (actor->dirty) std::erase(dirty_actors_, actor);
  actors_.erase(actor->handle->id);
}

// ---- cancelling ---------------------------------------------------------------------------------------------------

void Owner::Cancel(Object* object, bool force, bool recursive, int64_t now_ns, Actions& out) {
  now_ns_ = now_ns;
  if (object->resolved()) return;
  if (object->borrowed) {
    out.push_back({.kind = ActionKind::kAskCancel,
                   .process = object->id.owner,
                   .number = (force ? 1u : 0u) + (recursive ? 2u : 0u),
                   .id = object->id});
    return;
  }
  if (object->producer) CancelTask(object->producer, force, recursive, out);
  Settle(out);
}

void Owner::CancelChildren(uint64_t parent, bool force, int64_t now_ns, Actions& out) {
  now_ns_ = now_ns;
  std::vector<uint64_t> children;
  tasks_.ForEach([&](Task* task) {
    if (task->parent == parent && task->what->kind != TemplateKind::kCreation) children.push_back(task->handle);
  });
  for (uint64_t handle : children) {
    // A call cannot be forced: that would end the actor.
    if (Task* task = tasks_.Find(handle)) CancelTask(task, force && !task->actor, true, out);
  }
  Settle(out);
}

void Owner::CancelTask(Task* task, bool force, bool recursive, Actions& out) {
  task->cancelled = true;
  task->cancel_forced = task->cancel_forced || force;
  task->cancel_recursive = task->cancel_recursive || recursive;
  switch (task->state) {
    case TaskState::kReady:
      shapes_[task->shape].ready.Remove(task);
      FailCancelled(task, out);
      break;
    case TaskState::kQueued:
      MarkDirty(task->actor);  // those behind it wait no longer
      task->actor->queue.Remove(task);
      FailCancelled(task, out);
      break;
    case TaskState::kWaiting:
      FailCancelled(task, out);
      break;
    case TaskState::kPushed:
      Revoke(task, out);  // if it was claimed, its worker is told
      break;
    case TaskState::kRevoking:
    case TaskState::kFinished:
      break;
  }
}

void Owner::FailCancelled(Task* task, Actions& out) {
  FailTask(task, ValueKind::kSystemError, "TaskCancelledError\ntask '" + task->what->name + "' was cancelled", out);
}

}  // namespace weft::core
