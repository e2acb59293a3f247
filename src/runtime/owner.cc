#include "runtime/owner.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace weft::core {
namespace {

// How many tasks of one worker are considered when another one is idle.
constexpr size_t kLookBehind = 256;
// Waking a worker takes about this long (35 to 95 us were measured). It does not pay for work that a busy worker will
// have done by then: the woken one would find nothing, and would take a core from others meanwhile.
constexpr uint64_t kWakeUpNs = 50'000;
// While no core is free for it, it would only take turns with the busy workers and with us.
constexpr uint64_t kCrowdedNs = 1'000'000;
// The cost of a task for its worker besides its body.
constexpr uint32_t kOverheadNs = 300;

// Itself or inside another argument, such as a list of references; pending and borrowed objects there are not known.
bool TakesStored(const Task* task) {
  const auto is_stored = [](const Object* object) { return object->value.kind() == ValueKind::kStored; };
  const auto* dependencies = task->dependencies.get();
  return std::any_of(dependencies, dependencies + task->num_dependencies, is_stored) ||
         (task->contained && std::any_of(task->contained->begin(), task->contained->end(), is_stored));
}

}  // namespace

// ---- set-up -------------------------------------------------------------------------------------------------------

Owner::~Owner() = default;

uint32_t Owner::InternShape(const ResourceAmounts& amounts) {
  auto [it, fresh] = shape_numbers_.try_emplace(amounts, static_cast<uint32_t>(shapes_.size()));
  if (fresh) shapes_.emplace_back().amounts = amounts;
  return it->second;
}

const Function* Owner::InternFunction(Function function) {
  auto& slot = functions_[function.key];
  if (!slot) slot = std::make_unique<Function>(std::move(function));
  return slot.get();
}

const Function* Owner::FindFunction(const FunctionKey& key) const {
  auto it = functions_.find(key);
  return it == functions_.end() ? nullptr : it->second.get();
}

const TaskTemplate* Owner::InternTemplate(TaskTemplate what) {
  auto& slot =
      template_index_[{static_cast<uint8_t>(what.kind), what.function, what.shape, what.num_returns, what.max_retries,
                       what.name, what.retry_exceptions, what.method, what.group, what.actor_options}];
  if (!slot) {
    what.number = static_cast<uint32_t>(templates_.size());
    slot = &templates_.emplace_back(std::move(what));
  }
  return slot;
}

// ---- tasks --------------------------------------------------------------------------------------------------------

Task* Owner::NewTask(const Submission& submission, std::vector<Object*>& result, bool* failed, Actions& out) {
  Task* task = tasks_.New();
  last_task_ = task->handle;
  task->what = submission.what;
  task->parent = submission.parent;
  task->arguments.Set(submission.arguments);
  uint32_t returns = task->what->num_returns;
  if (returns > 0) {
    task->first_return = NewOwned();
    task->first_return->producer = task;
  }
  if (returns > 1) {
    task->more_returns.reset(new Object*[returns - 1]);
    for (uint32_t i = 1; i < returns; ++i) {
      task->more_returns[i - 1] = NewOwned();
      task->more_returns[i - 1]->producer = task;
    }
  }
  for (uint32_t i = 0; i < returns; ++i) result.push_back(task->Return(i));
  *failed = AttachArguments(task, submission.dependencies, submission.contained, out);
  return task;
}

bool Owner::AttachArguments(Task* task, const std::vector<Object*>& dependencies, const std::vector<Object*>& contained,
                            Actions& out) {
  if (!contained.empty()) {
    task->contained = std::make_unique<std::vector<Object*>>(contained);
    for (Object* object : contained) Hold(object);
  }
  bool failed = false;
  if (!dependencies.empty()) {
    task->num_dependencies = static_cast<uint32_t>(dependencies.size());
    task->dependencies.reset(new Object*[task->num_dependencies]);
    for (uint32_t i = 0; i < task->num_dependencies; ++i) {
      Object* object = task->dependencies[i] = dependencies[i];
      if (!faults.skip_hold_on_dependency) Hold(object);
      if (!object->resolved()) {
        ++task->unresolved;
        if (!object->dependents) object->dependents = new std::vector<Task*>();
        object->dependents->push_back(task);
        Seek(object, out);
      } else if (object->value.kind() == ValueKind::kTaskError || object->value.kind() == ValueKind::kSystemError) {
        failed = true;
      }
    }
  }
  return failed;
}

void Owner::Submit(const Submission& submission, int64_t now_ns, std::vector<Object*>& result, Actions& out) {
  now_ns_ = now_ns;
  submitter_waits_ = false;
  bool failed;
  Task* task = NewTask(submission, result, &failed, out);
  if (failed) {
    Retry(task, out);
  } else if (task->unresolved == 0 || !TryPushBehind(task, out)) {
    Enqueue(task, false);
  }
  Settle(out);
}

bool Owner::Usable(const LeasedWorker& worker) const {
  return worker.leased && !worker.recalled && !worker.blocked && !worker.full && !worker.dead;
}

void Owner::Enqueue(Task* task, bool at_front) {
  if (any_lost_) WaitAgain(task);
  if (task->unresolved > 0) {
    task->state = TaskState::kWaiting;
    return;
  }
  task->state = TaskState::kReady;
  task->shape = task->num_dependencies > 0 ? ShapeFor(task) : task->what->shape;
  Shape& shape = shapes_[task->shape];
  shape.ready.Add(task, TakesStored(task), at_front);
  MarkDirty(task->shape);
}

void Owner::MarkDirty(uint32_t number) {
  if (shapes_[number].dirty) return;
  shapes_[number].dirty = true;
  dirty_shapes_.push_back(number);
}

void Owner::Settle(Actions& out) {
  while (!resolved_.empty() || !dirty_shapes_.empty() || !dirty_actors_.empty() || !to_make_.empty()) {
    if (!to_make_.empty()) {
      const uint64_t handle = to_make_.back();
      to_make_.pop_back();
      if (Object* object = objects_.Find(handle)) MakeAgain(object, out);
    } else if (!resolved_.empty()) {
      Object* object = resolved_.back();
      resolved_.pop_back();
      Announce(object, out);
    } else if (!dirty_actors_.empty()) {
      Actor* actor = dirty_actors_.back();
      dirty_actors_.pop_back();
      actor->dirty = false;
      PumpActor(actor, out);
    } else {
      uint32_t shape = dirty_shapes_.back();
      dirty_shapes_.pop_back();
      shapes_[shape].dirty = false;
      Pump(shape, out);
    }
  }
  if (!dead_workers_.empty()) ForgetDeadWorkers(out);
}

uint64_t Owner::WorthWakingNs() const {
  return submitter_waits_ || busy_workers_.size() + 1 < cores ? kWakeUpNs : kCrowdedNs;
}

void Owner::SubmitterWaits(Actions& out) {
  submitter_waits_ = true;
  for (uint32_t number = 0; number < shapes_.size(); ++number) {
    if (shapes_[number].gathering_since_ns > 0) MarkDirty(number);
  }
  Settle(out);
}

// The worker with the fewest tasks; but an idle one is left alone while a busy one will have done everything before the
// idle one is awake.
int32_t Owner::WorkerFor(Shape& shape) const {
  int32_t best = -1, busy = -1;
  auto consider = [&](int32_t candidate) {
    const LeasedWorker& worker = workers_[candidate];
    if (!Usable(worker)) return;
    if (worker.pushed.size > 0 && (busy < 0 || worker.pushed.size < workers_[busy].pushed.size)) busy = candidate;
    if (worker.pushed.size >= max_pushed) return;
    if (best < 0 || worker.pushed.size < workers_[best].pushed.size) best = candidate;
  };
  for (int32_t candidate : shape.workers) consider(candidate);
  if (shape.node) [[unlikely]] {
    for (int32_t candidate : shapes_[shape.plain].workers) {
      if (NodeOf(workers_[candidate].process) == shape.node) consider(candidate);
    }
  }
  if (best < 0 || busy < 0 || workers_[best].pushed.size > 0) return best;
  const uint64_t ready_ns = shape.ready.size() * (uint64_t{shape.ready.first()->what->typical_ns} + kOverheadNs);
  if (workers_[busy].expected_ns + ready_ns >= WorthWakingNs()) return best;
  if (shape.gathering_since_ns == 0) shape.gathering_since_ns = now_ns_;
  return workers_[busy].pushed.size < max_pushed ? busy : -1;
}

void Owner::Pump(uint32_t number, Actions& out) {
  Shape& shape = shapes_[number];
  while (shape.ready.first()) {
    const int32_t best = WorkerFor(shape);
    if (best < 0) break;
    Task* task = shape.ready.PopFront();
    if (any_lost_ && !StillReady(task, out)) continue;
    PushTo(best, task, out);
    PushDependentsBehind(task, out);
  }
  if (!shape.ready.first()) {
    for (const auto& [node, near] : shape.near) {
      if (shapes_[near].ready.first()) MarkDirty(near);  // a worker of this shape may have become free there
    }
    Rebalance(shape, out);
  }
  RequestLeases(number, out);
}

void Owner::PushTo(int32_t number, Task* task, Actions& out) {
  LeasedWorker& worker = workers_[number];
  task->state = TaskState::kPushed;
  task->worker = number;
  task->shape = worker.shape;
  task->push = ++pushes_;
  worker.pushed.PushBack(task);
  worker.used = true;
  task->expected_ns = std::max(task->what->typical_ns, task->what->typical_ns + kOverheadNs);
  worker.expected_ns += task->expected_ns;
  if (worker.busy_at < 0) {
    worker.busy_at = static_cast<int32_t>(busy_workers_.size());
    busy_workers_.push_back(number);
  }
  if (task->num_dependencies > 0 || task->contained) AddArgumentBorrower(task, worker.process, out);
  out.push_back({.kind = ActionKind::kPush, .worker = number, .task = task});
}

bool Owner::TryPushBehind(Task* task, Actions& out) {
  int32_t worker = -1;
  for (uint32_t i = 0; i < task->num_dependencies; ++i) {
    Object* object = task->dependencies[i];
    if (object->resolved()) continue;
    Task* producer = object->producer;
    if (!producer || producer->state != TaskState::kPushed) return false;
    if (worker >= 0 && producer->worker != worker) return false;
    worker = producer->worker;
  }
  if (worker < 0) return false;
  LeasedWorker& target = workers_[worker];
  if (!Usable(target) || target.shape != task->what->shape || target.pushed.size >= max_pushed) return false;
  PushTo(worker, task, out);
  return true;
}

void Owner::PushDependentsBehind(Task* first, Actions& out) {
  std::vector<Task*> work{first};
  while (!work.empty()) {
    Task* task = work.back();
    work.pop_back();
    for (uint32_t i = 0; i < task->what->num_returns; ++i) {
      if (!task->Return(i)->dependents) continue;
      for (Task* dependent : *task->Return(i)->dependents) {
        if (dependent->state == TaskState::kWaiting && TryPushBehind(dependent, out)) work.push_back(dependent);
      }
    }
  }
}

// An idle worker takes half of the tasks that the busiest one has not begun. Tasks behind their producers stay with
// them, so they do not count.
void Owner::Rebalance(Shape& shape, Actions& out) {
  if (shape.revoking > 0 || shape.workers.empty()) return;
  bool idle = false;
  for (int32_t number : shape.workers) idle = idle || (Usable(workers_[number]) && workers_[number].pushed.size == 0);
  if (!idle) return;
  const uint64_t worth_ns = 2 * WorthWakingNs();  // each half of it
  std::vector<Task*> movable, best;
  for (int32_t number : shape.workers) {
    const LeasedWorker& worker = workers_[number];
    if (worker.pushed.size < 2 || worker.pushed.size <= best.size() || worker.expected_ns < worth_ns) continue;
    movable.clear();
    size_t looked = 0;  // a long chain is not searched each time one of its links is done
    for (Task* task = worker.pushed.last; task != worker.pushed.first && looked < kLookBehind; ++looked) {
      if (task->state == TaskState::kPushed && task->unresolved == 0) movable.push_back(task);
      task = task->previous;
    }
    if (movable.size() > best.size()) best.swap(movable);
  }
  // The one that runs counts too: of two, one goes.
  size_t take = (best.size() + 1) / 2;
  for (size_t i = 0; i < take; ++i) Revoke(best[i], out);
}

void Owner::Revoke(Task* task, Actions& out) {
  task->state = TaskState::kRevoking;
  if (!task->actor) ++shapes_[task->shape].revoking;
  out.push_back({.kind = ActionKind::kRevoke,
                 .worker = task->worker,
                 .task = task,
                 .number = task->handle,
                 .id = {self_, task->push}});
}

void Owner::RevokeEnded(Task* task) {
  if (!task->actor) {
    --shapes_[task->shape].revoking;
  } else if (task->to_follow) {
    task->to_follow = false;
    --task->actor->to_follow;
    MarkDirty(task->actor);
  }
}

void Owner::RevokeResolved(uint64_t task_handle, bool revoked, int64_t now_ns, Actions& out) {
  now_ns_ = now_ns;
  Task* task = tasks_.Find(task_handle);
  if (!task || task->state != TaskState::kRevoking) return;
  LeasedWorker& worker = workers_[task->worker];
  RevokeEnded(task);
  task->state = TaskState::kPushed;
  if (revoked) {
    TakeBack(task, out);
    task->cancelled && !faults.retry_cancelled ? FailCancelled(task, out) : Retry(task, out);
  } else if (worker.dead && task->cancelled) {
    TakeBack(task, out);
    FailCancelled(task, out);
  } else if (task->cancelled) {
    out.push_back({.kind = ActionKind::kCancelRunning,
                   .process = worker.process,
                   .number = (task->cancel_forced ? 1u : 0u) + (task->cancel_recursive ? 2u : 0u),
                   .id = {self_, task->handle}});
  } else if (worker.dead && task->actor) {
    TakeBack(task, out);
    int32_t limit = task->what->max_retries;
    if (task->what->kind == TemplateKind::kCreation) {
      Finish(task, out);  // the next incarnation gets another constructor
    } else if (task->actor->state != ActorState::kDead && (limit < 0 || task->attempt < static_cast<uint32_t>(limit))) {
      ++task->attempt;
      Requeue(task, out);
    } else {
      FailCall(task, true, out);
    }
  } else if (worker.dead) {
    std::string how = dead_.How(worker.process);
    TakeBack(task, out);
    int32_t limit = task->what->max_retries;
    if (limit < 0 || task->attempt < static_cast<uint32_t>(limit)) {
      if (!faults.retry_without_counting) ++task->attempt;
      Retry(task, out);
    } else {
      std::string text = "WorkerCrashedError\nthe worker that ran task '" + task->what->name + "' " + how;
      text += limit == 0 ? "; the task has max_retries=0, so it was not run again"
                         : "; it was run " + std::to_string(task->attempt + 1) +
                               " times (max_retries=" + std::to_string(limit) + ")";
      FailTask(task, ValueKind::kSystemError, text, out);
    }
  }
  if (worker.recalled && worker.pushed.size == 0) ReturnLease(worker, out);
  Settle(out);
}

void Owner::PushRefused(uint64_t task_handle, int64_t now_ns, Actions& out) {
  now_ns_ = now_ns;
  Task* task = tasks_.Find(task_handle);
  if (!task || (task->state != TaskState::kPushed && task->state != TaskState::kRevoking)) return;
  // It may have been revoked before it was sent: then it is back.
  const bool cancelled = task->state == TaskState::kRevoking && task->cancelled;
  if (task->state == TaskState::kRevoking) RevokeEnded(task);
  // Until its next result; if it owes none (its channel is full of revoked tasks), until Tick.
  workers_[task->worker].full = true;
  workers_[task->worker].full_since_ns = now_ns;
  TakeBack(task, out);
  cancelled ? FailCancelled(task, out) : Retry(task, out);
  Settle(out);
}

void Owner::FailPushed(uint64_t task_handle, std::string_view error, int64_t now_ns, Actions& out) {
  now_ns_ = now_ns;
  Task* task = tasks_.Find(task_handle);
  if (!task || (task->state != TaskState::kPushed && task->state != TaskState::kRevoking)) return;
  if (task->state == TaskState::kRevoking) RevokeEnded(task);
  TakeBack(task, out);
  FailForGood(task, error, out);
  Settle(out);
}

// Without its constructor an actor can never start.
void Owner::FailForGood(Task* task, std::string_view error, Actions& out) {
  if (task->what->kind == TemplateKind::kCreation) {
    task->actor->refused = true;
    task->actor->why = error.substr(error.find('\n') + 1);
    out.push_back({.kind = ActionKind::kKillActor, .id = task->actor->handle->id});
    DeclareActorDead(task->actor, out);
  }
  FailTask(task, ValueKind::kSystemError, error, out);
}

void Owner::Unlist(LeasedWorker& worker, Task* task) {
  worker.pushed.Remove(task);
  worker.expected_ns -= task->expected_ns;
  if (worker.pushed.size > 0 || worker.busy_at < 0) return;
  const int32_t last = busy_workers_.back();
  busy_workers_[static_cast<size_t>(worker.busy_at)] = last;
  busy_workers_.pop_back();
  workers_[static_cast<size_t>(last)].busy_at = worker.busy_at;
  worker.busy_at = -1;
}

void Owner::TakeBack(Task* task, Actions& out) {
  LeasedWorker& worker = workers_[task->worker];
  Unlist(worker, task);
  if (worker.pushed.size == 0) worker.idle_since_ns = now_ns_;
  RemoveArgumentBorrower(task, worker.process, out);
  task->worker = -1;
  task->state = TaskState::kWaiting;
}

void Owner::Retry(Task* task, Actions& out) {
  for (uint32_t i = 0; i < task->num_dependencies; ++i) {
    Object* object = task->dependencies[i];
    if (object->value.kind() == ValueKind::kTaskError || object->value.kind() == ValueKind::kSystemError) {
      std::string error(object->value.bytes());
      if (task->what->kind == TemplateKind::kCreation) {
        task->actor->error = object->value.kind() == ValueKind::kTaskError ? error : "";
        task->actor->why = "an argument of its constructor ended in an error";
        out.push_back({.kind = ActionKind::kKillActor, .id = task->actor->handle->id});
        DeclareActorDead(task->actor, out);
      }
      FailTask(task, object->value.kind(), error, out);
      return;
    }
  }
  if (task->actor) return Requeue(task, out);
  Enqueue(task, true);
}

void Owner::AddArgumentBorrower(Task* task, ProcessId worker, Actions& out) {
  auto add = [&](Object* object) {
    if (!task->borrowed_by_worker) task->borrowed_by_worker = std::make_unique<std::vector<Object*>>();
    task->borrowed_by_worker->push_back(object);
    if (object->id.owner != worker) AddBorrower(object, worker, out);
  };
  if (task->contained) {
    for (Object* object : *task->contained) add(object);
  }
  for (uint32_t i = 0; i < task->num_dependencies; ++i) {
    Object* object = task->dependencies[i];
    if (!object->resolved()) continue;
    // A view of a stored value may outlive the task, so the worker borrows the object itself.
    if (object->value.kind() == ValueKind::kStored) add(object);
    if (object->contained) {
      for (Object* inner : *object->contained) add(inner);
    }
  }
}

void Owner::RemoveArgumentBorrower(Task* task, ProcessId worker, Actions& out) {
  if (!task->borrowed_by_worker) return;
  auto borrowed = std::move(task->borrowed_by_worker);
  for (Object* object : *borrowed) RemoveBorrower(object, worker, out);
}

void Owner::FailTask(Task* task, ValueKind kind, std::string_view error, Actions& out) {
  for (uint32_t i = 0; i < task->what->num_returns; ++i) ResolveWith(task->Return(i), kind, error);
  Finish(task, out);
}

void Owner::Finish(Task* task, Actions& out) {
  // A task that fails while other arguments are still pending no longer waits for them.
  if (task->unresolved > 0) {
    for (uint32_t i = 0; i < task->num_dependencies; ++i) {
      if (auto* dependents = task->dependencies[i]->dependents) std::erase(*dependents, task);
    }
  }
  task->state = TaskState::kFinished;
  ++finished_tasks_;
  if (task->lineage) EndRunAgain(task, out);
  if (task->what->kind == TemplateKind::kCall) --task->actor->pending_calls;
  Object* handle = task->holds_handle ? task->actor->handle : nullptr;
  auto dependencies = std::move(task->dependencies);
  auto contained = std::move(task->contained);
  uint32_t count = task->num_dependencies;
  tasks_.Delete(task);
  if (handle) Unhold(handle, out);
  if (!faults.skip_hold_on_dependency) {
    for (uint32_t i = 0; i < count; ++i) Unhold(dependencies[i], out);
  }
  if (contained) {
    for (Object* object : *contained) Unhold(object, out);
  }
}

void Owner::Replied(ProcessId from, uint64_t task_handle, ReplyKind kind, std::string_view error,
                    const std::vector<ReturnedValue>& values, int64_t now_ns, Actions& out, uint32_t run_ns) {
  now_ns_ = now_ns;
  // Objects of its own that an actor returns to itself are held while the reply is in the channel.
  auto let_go = [&] {
    for (size_t i = 0; from == self_ && i < values.size(); ++i) {
      for (ObjectId id : values[i].contained) {
        if (Object* object = id.owner == self_ ? Find(id) : nullptr) Unhold(object, out);
      }
    }
  };
  Task* task = tasks_.Find(task_handle);
  bool owed = task && (task->state == TaskState::kPushed || task->state == TaskState::kRevoking) &&
              workers_[task->worker].process == from;
  if (!owed) {
    if (!(faults.accept_late_replies && task && task->worker >= 0 && kind == ReplyKind::kValues)) return let_go();
  }
  LeasedWorker& worker = workers_[task->worker];
  if (task->state == TaskState::kRevoking) RevokeEnded(task);
  Unlist(worker, task);
  task->worker = -1;
  task->state = TaskState::kWaiting;
  if (worker.pushed.size == 0) worker.idle_since_ns = now_ns;
  worker.full = false;
  if (run_ns > 0 && !worker.actor) {
    // A run that lost its core in the middle says nothing about the others, so no single run counts for much.
    const int64_t typical = task->what->typical_ns;
    const int64_t sample = std::min(int64_t{run_ns}, 4 * typical + 1'000);
    const bool first = task->what->typical_ns == TaskTemplate::kUnknownNs;
    task->what->typical_ns = static_cast<uint32_t>(first ? sample : typical + (sample - typical) / 8);
    shapes_[worker.shape].gathering_since_ns = 0;
  }
  bool handed_back =
      kind == ReplyKind::kHandedBack || kind == ReplyKind::kHandedBackBlocked || kind == ReplyKind::kArgumentLost;
  if (handed_back) {
    if (kind == ReplyKind::kHandedBackBlocked) worker.blocked = true;
    RemoveArgumentBorrower(task, from, out);
    if (task->what->kind == TemplateKind::kCreation) {
      // Calls behind it would now be ahead of it, and wait for it: they follow it again.
      for (Task* call = worker.pushed.first; call; call = call->next) {
        if (call->state != TaskState::kPushed) continue;
        call->to_follow = true;
        ++task->actor->to_follow;
        Revoke(call, out);
      }
    }
    std::string hopeless;
    if (kind == ReplyKind::kArgumentLost) hopeless = ArgumentsLost(task, error, values, out);
    // Calls that were pushed behind it may run before it comes back.
    if (hopeless.empty() && kind == ReplyKind::kArgumentLost && task->what->kind == TemplateKind::kCall &&
        WasOvertaken(worker, task) && !HasFailedArgument(task)) {
      hopeless = std::string(error) + "; the call of '" + task->what->name +
                 "' did not run, since calls that were made after it have gone on: call it again";
    }
    if (task->cancelled) {
      FailCancelled(task, out);
    } else if (!hopeless.empty()) {
      FailForGood(task, hopeless, out);
    } else if (!faults.forget_handed_back) {
      Retry(task, out);
    }
  } else {
    worker.blocked = false;
    // The worker took the registrations over when it claimed the task and gives them back itself.
    task->borrowed_by_worker.reset();
    int32_t limit = task->what->max_retries;
    if (kind == ReplyKind::kRetryableError && !task->cancelled &&
        (limit < 0 || task->attempt < static_cast<uint32_t>(limit))) {
      ++task->attempt;
      Retry(task, out);
    } else if (kind == ReplyKind::kValues && values.size() == task->what->num_returns) {
      bool in_cluster = false;
      for (uint32_t i = 0; i < values.size(); ++i) {
        ResolveReceived(task->Return(i), values[i], out);
        in_cluster = in_cluster || (values[i].kind == ValueKind::kStored && NodeOf(values[i].location.segment));
      }
      if (in_cluster) Retain(task, out);
      Finish(task, out);
    } else if (kind == ReplyKind::kValues) {
      FailTask(task, ValueKind::kSystemError, "WorkerCrashedError\nthe worker sent a malformed reply", out);
    } else if (kind == ReplyKind::kCancelled || kind == ReplyKind::kExited || kind == ReplyKind::kRefused) {
      FailTask(task, ValueKind::kSystemError, error, out);
      if (faults.forget_lease_of_cancelled) DropLease(worker);
    } else {
      FailTask(task, ValueKind::kTaskError, error, out);
    }
  }
  if (worker.recalled && worker.pushed.size == 0) ReturnLease(worker, out);
  // Refill in batches: not before half of the worker's queue is done.
  if (worker.actor) {
    if (worker.actor->queue.first && (worker.pushed.size <= max_pushed_calls / 2 || handed_back))
      MarkDirty(worker.actor);
    let_go();
    return Settle(out);
  }
  let_go();
  Shape& shape = shapes_[worker.shape];
  bool refill = shape.ready.first() ? worker.pushed.size <= max_pushed / 2 : worker.pushed.size == 0;
  if (worker.leased && (refill || handed_back)) MarkDirty(worker.shape);
  Settle(out);
}

// ---- questions ----------------------------------------------------------------------------------------------------

size_t Owner::ready_tasks() const {
  size_t sum = 0;
  for (const Shape& shape : shapes_) sum += shape.ready.size();
  return sum;
}

bool Owner::AnyBorrowed() {
  bool any = false;
  objects_.ForEach([&](Object* object) { any = any || (object->borrowers && !object->borrowers->empty()); });
  return any;
}

size_t Owner::RepliesUntilWanted(const LeasedWorker& worker) const {
  size_t count = 0;
  for (const Task* task = worker.pushed.first; task; task = task->next) {
    ++count;
    for (uint32_t i = 0; i < task->what->num_returns; ++i) {
      const Object* object = task->Return(i);
      if (object->waiters > 0 || object->callbacks > 0 || object->requesters) return count;
      if (!object->dependents) continue;
      for (const Task* dependent : *object->dependents) {
        if (dependent->state == TaskState::kWaiting) return count;
      }
    }
  }
  const bool more =
      worker.actor ? worker.actor->queue.first != nullptr : shapes_[worker.shape].ready.first() != nullptr;
  const size_t half = (worker.actor ? max_pushed_calls : max_pushed) / 2;
  if (more && count > half) return count - half;
  return count;
}

void Owner::CheckInvariants() {
  size_t listed = 0;
  for (const Shape& shape : shapes_) {
    shape.ready.ForEach([&](const Task* task) {
      WEFT_CHECK(task->state == TaskState::kReady && task->unresolved == 0, "a queued task is not ready");
      ++listed;
    });
  }
  for (const auto& [id, actor] : actors_) {
    uint64_t order = 0;
    for (Task* task = actor->queue.first; task; task = task->next) {
      WEFT_CHECK(task->state == TaskState::kQueued && task->actor == actor.get(), "a queued call is not in its queue");
      WEFT_CHECK(task->order >= order, "calls are out of order");
      order = task->order;
      ++listed;
    }
    WEFT_CHECK(actor->state != ActorState::kDead || !actor->queue.first, "calls wait for a dead actor");
  }
  for (size_t number = 0; number < workers_.size(); ++number) {
    size_t count = 0;
    for (Task* task = workers_[number].pushed.first; task; task = task->next, ++count) {
      WEFT_CHECK(task->worker == static_cast<int32_t>(number), "a pushed task is in the wrong list");
      WEFT_CHECK(task->state == TaskState::kPushed || task->state == TaskState::kRevoking, "a listed task not pushed");
    }
    WEFT_CHECK(count == workers_[number].pushed.size, "a list counted wrongly");
    const int32_t at = workers_[number].busy_at;
    WEFT_CHECK((at >= 0) == (count > 0), "a worker with tasks is busy");
    WEFT_CHECK(at < 0 || busy_workers_.at(static_cast<size_t>(at)) == static_cast<int32_t>(number), "listed elsewhere");
    listed += count;
  }
  size_t waiting = 0;
  tasks_.ForEach([&](Task* task) {
    if (task->state == TaskState::kWaiting) {
      WEFT_CHECK(task->unresolved > 0, "a task waits for nothing");
      ++waiting;
    }
    WEFT_CHECK(task->state != TaskState::kFinished, "a finished task was kept");
    for (uint32_t i = 0; i < task->num_dependencies; ++i) {
      WEFT_CHECK(objects_.Find(task->dependencies[i]->handle) == task->dependencies[i], "an argument was freed");
      WEFT_CHECK(task->dependencies[i]->holds > 0, "an argument is not held");
    }
  });
  WEFT_CHECK(listed + waiting == tasks_.alive(), "a task is in no list or in two");
  std::unordered_map<const Object*, uint32_t> needed;
  uint64_t bytes = 0;
  for (const Lineage& lineage : lineages_) {
    bytes += lineage.bytes;
    uint32_t living = 0;
    for (const Object* object : lineage.returns) {
      if (!object) continue;
      WEFT_CHECK(object->lineage == &lineage, "a result and its lineage know each other");
      ++living;
    }
    WEFT_CHECK(living > 0 && living == lineage.living, "a lineage is kept for its results");
    WEFT_CHECK(!lineage.task || tasks_.Find(lineage.task->handle) == lineage.task, "what runs again is there");
    for (const auto* arguments : {&lineage.dependencies, &lineage.contained}) {
      for (const Lineage::Argument& argument : *arguments) {
        if (argument.record) ++needed[argument.record];
      }
    }
  }
  WEFT_CHECK(bytes == lineage_bytes_, "lineage is counted");
  objects_.ForEach([&](Object* object) {
    if (object->contained) {
      for (Object* inner : *object->contained) WEFT_CHECK(inner->holds > 0, "a contained object is not held");
    }
    WEFT_CHECK(object->lineage_holds == needed[object], "objects needed to make another one again are counted");
    needed.erase(object);
    WEFT_CHECK(!object->dropped || !object->resolved(), "what has a value was not dropped");
  });
  WEFT_CHECK(needed.empty(), "what is needed to make another one again was freed");
}

}  // namespace weft::core
