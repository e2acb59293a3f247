// Owner: lineage. Keeps what is needed of tasks and calls whose results are stored, and makes results that were lost
// with their node again by running the task once more.
//
// Only results in a segment of a cluster node have a lineage, and only if their task or call has retries; nothing is
// kept of others. A lineage keeps the records of those arguments that are small or have a lineage themselves. Other
// arguments (made by put, borrowed, handles of actors) and the actor of a call it only knows by name: it must not keep
// large values or actors that nothing refers to, and without them the task cannot run again.
//
// A call that is made again runs in the incarnation of that time, after the calls that were sent before it. It
// has no place in the order of calls: a call that was made later may wait for its result, and one that it needs itself
// may be made again after it.
#include <algorithm>

#include "runtime/owner.h"

namespace weft::core {
namespace {

bool Failed(const Object* object) {
  return object->value.kind() == ValueKind::kTaskError || object->value.kind() == ValueKind::kSystemError;
}

bool HasRetries(const TaskTemplate& what, uint32_t attempt) {
  return what.max_retries < 0 || attempt < static_cast<uint32_t>(what.max_retries);
}

// Its record suffices, or its value is small.
bool MayBeKept(const Object* object) {
  if (object->borrowed || object->actor) return false;
  return object->lineage != nullptr || (object->value.kind() == ValueKind::kInline && !object->contained);
}

}  // namespace

// ---- keeping ------------------------------------------------------------------------------------------------------

void Owner::Retain(Task* task, Actions& out) {
  const TaskTemplate& what = *task->what;
  for (uint32_t i = 0; i < what.num_returns; ++i) {
    if (task->Return(i)->value.kind() == ValueKind::kStored) task->Return(i)->made_by = &what;
  }
  if (task->lineage || !HasRetries(what, task->attempt)) return;
  Lineage& lineage = lineages_.emplace_back();
  lineage.place = std::prev(lineages_.end());
  lineage.what = &what;
  if (task->actor) lineage.actor = task->actor->handle->id;
  lineage.attempt = task->attempt;
  lineage.arguments.TakeFrom(task->arguments);
  lineage.bytes = sizeof(Lineage) + lineage.arguments.size();
  auto keep = [&](Object* object, std::vector<Lineage::Argument>& arguments) {
    const bool kept = MayBeKept(object);
    arguments.push_back({object->id, kept ? object : nullptr});
    lineage.bytes += sizeof(Lineage::Argument);
    if (!kept) return;
    ++object->lineage_holds;
    lineage.bytes += sizeof(Object);
    if (object->value.kind() == ValueKind::kInline) lineage.bytes += object->value.bytes().size();
  };
  for (uint32_t i = 0; i < task->num_dependencies; ++i) keep(task->dependencies[i], lineage.dependencies);
  if (task->contained) {
    for (Object* object : *task->contained) keep(object, lineage.contained);
  }
  lineage.returns.resize(what.num_returns);
  for (uint32_t i = 0; i < what.num_returns; ++i) {
    Object* object = task->Return(i);
    if (object->value.kind() != ValueKind::kStored) continue;
    lineage.returns[i] = object;
    object->lineage = &lineage;
    ++lineage.living;
  }
  lineage_bytes_ += lineage.bytes;
  // One that runs again counts as the youngest in use, whatever its age.
  for (auto oldest = lineages_.begin(); lineage_bytes_ > max_lineage_bytes && oldest != lineages_.end();) {
    Lineage* dropped = &*oldest++;
    if (dropped->task) continue;
    for (Object* object : dropped->returns) {
      if (object) object->lineage_dropped = true;
    }
    DropLineage(dropped, out);
  }
}

void Owner::DropLineage(Lineage* lineage, Actions& out) {
  for (Object* object : lineage->returns) {
    if (object) object->lineage = nullptr;
  }
  std::vector<Object*> kept;
  for (const auto* arguments : {&lineage->dependencies, &lineage->contained}) {
    for (const Lineage::Argument& argument : *arguments) {
      if (!argument.record) continue;
      --argument.record->lineage_holds;
      kept.push_back(argument.record);
    }
  }
  lineage_bytes_ -= lineage->bytes;
  lineages_.erase(lineage->place);
  for (Object* object : kept) Consider(object, out);
}

void Owner::Detach(Object* object, Actions& out) {
  Lineage* lineage = std::exchange(object->lineage, nullptr);
  std::replace(lineage->returns.begin(), lineage->returns.end(), object, static_cast<Object*>(nullptr));
  if (--lineage->living == 0 && !lineage->task) DropLineage(lineage, out);
}

void Owner::DropValue(Object* object, Actions& out) {
  if (object->value.kind() != ValueKind::kStored || faults.keep_values_for_lineage) return;
  out.push_back({.kind = ActionKind::kFreeStored,
                 .number = object->crossed ? 1u : 0u,
                 .id = object->id,
                 .location = object->value.location()});
  LetGoOfCopies(object, out);
  ForgetValue(object, out);
  object->dropped = true;
}

void Owner::LetGoOfCopies(Object* object, Actions& out) {
  if (object->copy) out.push_back({.kind = ActionKind::kLetGo, .object = object, .location = object->copy->of});
  delete std::exchange(object->copy, nullptr);
  auto* all = std::exchange(object->former, nullptr);
  if (!all) return;
  for (const Object::Former& former : *all) {
    out.push_back({.kind = ActionKind::kLetGo, .object = object, .location = former.of});
    if (!former.contained) continue;
    for (Object* inner : *former.contained) Unhold(inner, out);
    delete former.contained;
  }
  delete all;
}

// It will not be asked for at the place where it was.
void Owner::ForgetValue(Object* object, Actions& out) {
  const Place place = object->place.load(std::memory_order_relaxed);
  if (object->copy && place == Place::kCopied) {
    PutAside(object);
    object->former->back().contained = std::exchange(object->contained, nullptr);
  } else if (object->copy) {
    out.push_back({.kind = ActionKind::kLetGo, .object = object, .location = object->copy->of});
    delete std::exchange(object->copy, nullptr);
  }
  object->value.Clear();
  if (auto* contained = std::exchange(object->contained, nullptr)) {
    for (Object* inner : *contained) Unhold(inner, out);
    delete contained;
  }
}

// Views of it, and threads that decode it now, need it as long as the object lives.
void Owner::PutAside(Object* object) {
  if (!object->former) object->former = new std::vector<Object::Former>();
  object->former->push_back({object->copy->of, nullptr});
  delete std::exchange(object->copy, nullptr);
}

// ---- losing -------------------------------------------------------------------------------------------------------

std::string Owner::HowLost(const Location& where) {
  return "an object of " + std::to_string(where.size) + " bytes lay on node " +
         std::to_string(NodeOf(where.segment).value) + ", which is gone";
}

std::string Owner::WhyNoActor(const Lineage& lineage) {
  const Object* handle = lineage.actor ? Find(lineage.actor) : nullptr;
  if (lineage.actor && !handle) {
    return "no handle of its actor is left in this process; keep one for as long as the result is needed";
  }
  const Actor* actor = handle ? handle->actor : nullptr;
  if (!actor || (actor->state != ActorState::kDead && !actor->killed)) return {};
  return actor->why.empty() ? "its actor is dead" : "its actor is dead: " + actor->why;
}

std::string Owner::WhyNotAgain(const Object* object, std::string_view how_lost) {
  std::string text(how_lost);
  if (!object->made_by) {
    return "ObjectLostError\n" + text +
           "; it was made with put(), which cannot be repeated: make such a value in a task, which can run again, or "
           "keep it on the node of the program";
  }
  const TaskTemplate& what = *object->made_by;
  const bool call = what.kind == TemplateKind::kCall;
  if (call && what.max_retries == 0) {
    return "ObjectLostError\n" + text + "; the method '" + what.name +
           "' of an actor returned it, and was not called again, since that may change the actor and it has "
           "max_task_retries=0: call it again, or set max_task_retries, and lost results are made again by calling it";
  }
  text = "ReconstructionFailedError\n" + text;
  text += call ? "; the method '" + what.name + "' of an actor, which returned it, was not called again: "
               : "; task '" + what.name + "', which made it, was not run again: ";
  if (const Lineage* lineage = object->lineage; lineage && HasRetries(what, lineage->attempt)) {
    if (const std::string why = WhyNoActor(*lineage); !why.empty()) return text + why;
    return text +
           "an argument of it no longer exists (it was made with put(), or belongs to another process or an actor); "
           "keep a reference to such an argument for as long as the result is needed";
  }
  if (object->lineage_dropped) {
    return text + "what is needed for that was dropped, since a process keeps at most " +
           std::to_string(max_lineage_bytes >> 20) + " MiB of it; hold fewer results, or pass large arguments by put()";
  }
  if (what.max_retries == 0) return text + "it has max_retries=0";
  const std::string option = call ? "max_task_retries=" : "max_retries=";
  return text + "it has no retries left (" + option + std::to_string(what.max_retries) + ")";
}

bool Owner::CanRunAgain(const Lineage& lineage) {
  if (!HasRetries(*lineage.what, lineage.attempt) || !WhyNoActor(lineage).empty()) return false;
  for (const auto* arguments : {&lineage.dependencies, &lineage.contained}) {
    for (const Lineage::Argument& argument : *arguments) {
      if (!argument.record && !Find(argument.id)) return false;
    }
  }
  return true;
}

bool Owner::Lost(Object* object, const Location& where, std::string_view how_lost, Actions& out) {
  any_lost_ = true;
  // Made again already, or just now.
  if (object->value.kind() != ValueKind::kStored || object->value.location() != where) return true;
  if (object->lineage && object->lineage->task) {
    // It runs already, for another of its results; afterwards it runs once more if this one is still wanted.
    ForgetValue(object, out);
    object->dropped = true;
    return true;
  }
  if (object->lineage && CanRunAgain(*object->lineage)) {
    RunAgain(object->lineage, NodeOf(where.segment), out);
    return true;
  }
  if (object->place.load(std::memory_order_relaxed) == Place::kCopied) return false;
  const std::string error = WhyNotAgain(object, how_lost);
  ForgetValue(object, out);
  if (object->lineage) Detach(object, out);
  ResolveWith(object, ValueKind::kSystemError, error);
  return false;
}

bool Owner::AskAgain(Object* object, Actions& out) {
  any_lost_ = true;
  if (dead_.Contains(object->id.owner)) return false;
  const Location lost = object->value.location();
  ForgetValue(object, out);
  object->fetching = true;
  out.push_back({.kind = ActionKind::kAskAgain,
                 .object = object,
                 .process = object->id.owner,
                 .id = object->id,
                 .location = lost});
  return true;
}

void Owner::ValueAskedAgain(ObjectId id, ProcessId requester, const Location& lost, Actions& out) {
  Object* object = Find(id);
  if (IsDead(requester)) return;
  if (object && !object->borrowed && !Lost(object, lost, HowLost(lost), out) &&
      object->value.kind() == ValueKind::kStored) {
    // This process has a copy, and may go on using it.
    Hold(object);
    out.push_back({.kind = ActionKind::kSendValue,
                   .object = object,
                   .process = requester,
                   .number = 1,
                   .id = id,
                   .location = lost});
  } else {
    ValueAsked(id, requester, out);
  }
  Settle(out);
}

std::string Owner::ArgumentsLost(const Task* task, std::string_view error, const std::vector<ReturnedValue>& lost,
                                 Actions& out) {
  const std::string_view how = error.substr(error.find('\n') + 1);
  std::string hopeless;
  for (uint32_t i = 0; i < task->num_dependencies; ++i) {
    Object* object = task->dependencies[i];
    if (object->value.kind() != ValueKind::kStored) continue;
    const Location where = object->value.location();
    if (std::none_of(lost.begin(), lost.end(), [&](const ReturnedValue& each) { return each.location == where; })) {
      continue;
    }
    if (object->borrowed) {
      if (!AskAgain(object, out)) hopeless = error;
    } else if (!Lost(object, where, how, out) && !Failed(object)) {
      hopeless = WhyNotAgain(object, how);
    }
  }
  return hopeless;
}

// ---- making again -------------------------------------------------------------------------------------------------

void Owner::MakeAgain(Object* object, Actions& out) {
  if (!object->dropped || object->producer || (object->lineage && object->lineage->task)) return;
  if (object->lineage && CanRunAgain(*object->lineage)) return RunAgain(object->lineage, NodeNumber{}, out);
  const std::string error =
      WhyNotAgain(object, "a value that was freed is needed once more, to make another one again that was lost");
  if (object->lineage) Detach(object, out);
  ResolveWith(object, ValueKind::kSystemError, error);
}

// Makes all its lost or dropped results again with one run; the other results of that run are ignored.
void Owner::RunAgain(Lineage* lineage, NodeNumber lost, Actions& out) {
  any_lost_ = true;
  Task* task = tasks_.New();
  task->what = lineage->what;
  task->lineage = lineage;
  lineage->task = task;
  if (!faults.make_again_without_counting) ++lineage->attempt;
  task->attempt = lineage->attempt;
  task->arguments.Set(lineage->arguments.view());
  const uint32_t returns = lineage->what->num_returns;
  if (returns > 1) task->more_returns.reset(new Object*[returns - 1]);
  for (uint32_t i = 0; i < returns; ++i) {
    Object* object = lineage->returns[i];
    const bool stored = object && object->value.kind() == ValueKind::kStored;
    if (stored && NodeOf(object->value.location().segment) == lost) {
      ForgetValue(object, out);
    } else if (!object || !object->dropped) {
      object = NewOwned();
      object->local_references.store(0, std::memory_order_relaxed);
    }
    object->producer = task;
    (i == 0 ? task->first_return : task->more_returns[i - 1]) = object;
  }
  std::vector<Object*> dependencies, contained;
  for (const Lineage::Argument& argument : lineage->dependencies) {
    dependencies.push_back(argument.record ? argument.record : Find(argument.id));
  }
  for (const Lineage::Argument& argument : lineage->contained) {
    contained.push_back(argument.record ? argument.record : Find(argument.id));
  }
  const bool failed = AttachArguments(task, dependencies, contained, out);
  out.push_back({.kind = ActionKind::kRunAgain, .task = task, .number = task->handle});
  if (lineage->actor) {
    QueueCall(Find(lineage->actor), task, failed, out);
  } else if (failed) {
    Retry(task, out);
  } else if (task->unresolved == 0 || !TryPushBehind(task, out)) {
    Enqueue(task, false);
  }
}

void Owner::EndRunAgain(Task* task, Actions& out) {
  Lineage* lineage = std::exchange(task->lineage, nullptr);
  lineage->task = nullptr;
  if (task->actor) --task->actor->made_again;
  lineage->attempt = task->attempt;
  for (Object*& object : lineage->returns) {
    if (!object || object->value.kind() == ValueKind::kStored) continue;
    if (object->dropped) {  // or lost, meanwhile
      const bool wanted = object->local_references.load(std::memory_order_acquire) > 0 || object->holds > 0 ||
                          object->callbacks > 0 || (object->borrowers && !object->borrowers->empty());
      if (wanted) to_make_.push_back(object->handle);
      continue;
    }
    object->lineage = nullptr;
    object = nullptr;
    --lineage->living;
  }
  if (lineage->living == 0 || !HasRetries(*lineage->what, lineage->attempt)) DropLineage(lineage, out);
}

// ---- tasks whose arguments are pending again ------------------------------------------------------------------------

bool Owner::HasFailedArgument(const Task* task) {
  for (uint32_t i = 0; i < task->num_dependencies; ++i) {
    if (Failed(task->dependencies[i])) return true;
  }
  return false;
}

void Owner::WaitAgain(Task* task) {
  uint32_t pending = 0;
  for (uint32_t i = 0; i < task->num_dependencies; ++i) pending += !task->dependencies[i]->resolved();
  if (pending <= task->unresolved) return;  // it waits for these already, or they are about to be announced
  for (uint32_t i = 0; i < task->num_dependencies; ++i) {
    if (auto* dependents = task->dependencies[i]->dependents) std::erase(*dependents, task);
  }
  task->unresolved = 0;
  for (uint32_t i = 0; i < task->num_dependencies; ++i) {
    Object* object = task->dependencies[i];
    if (object->resolved()) continue;
    ++task->unresolved;
    if (!object->dependents) object->dependents = new std::vector<Task*>();
    object->dependents->push_back(task);
  }
}

bool Owner::StillReady(Task* task, Actions& out) {
  if (HasFailedArgument(task)) {
    Retry(task, out);
    return false;
  }
  WaitAgain(task);
  if (task->unresolved == 0) return true;
  task->state = TaskState::kWaiting;
  return false;
}

}  // namespace weft::core
