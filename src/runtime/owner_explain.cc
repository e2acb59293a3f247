// Owner: what it knows about why an object is pending. The conclusions are drawn elsewhere (wait_graph.h).
#include "runtime/owner.h"

namespace weft::core {
namespace {

// Of a task's arguments; a task waits for all, so a few of them suffice to show that it cannot go on.
constexpr size_t kMaxArgumentsListed = 1000;

void List(const Task* task, ObjectFact& fact) {
  for (uint32_t i = 0; i < task->num_dependencies; ++i) {
    if (task->dependencies[i]->resolved()) continue;
    if (fact.objects.size() < kMaxArgumentsListed) {
      fact.objects.push_back(task->dependencies[i]->id);
    } else {
      ++fact.more_objects;
    }
  }
}

// Empty for a value; an error of a body belongs to the front end and is not read here.
std::string HowItFailed(const Value& value) {
  if (value.kind() == ValueKind::kTaskError) return "its task raised an exception";
  if (value.kind() != ValueKind::kSystemError) return {};
  std::string text(value.bytes().substr(0, value.bytes().find('\0')));
  if (size_t end = text.find('\n'); end != std::string::npos) text.replace(end, 1, ": ");
  return text;
}

}  // namespace

ObjectFact Owner::Explain(ObjectId id) {
  ObjectFact fact;
  fact.id = id;
  Object* object = Find(id);
  if (!object || object->borrowed) return fact;
  if (object->actor && object->actor->created_here) {
    ExplainActor(*object->actor, fact);
    return fact;
  }
  if (object->resolved()) {
    fact.state = ObjectState::kThere;
    fact.front = HowItFailed(object->value);
    return fact;
  }
  Task* task = object->producer;
  if (!task) return fact;
  fact.task = task->handle;
  fact.stamp = task->push;
  fact.name = task->what->name;
  fact.is_call = task->what->kind == TemplateKind::kCall;
  if (task->cancelled) return fact;  // about to end
  switch (task->state) {
    case TaskState::kWaiting:
      fact.state = ObjectState::kArguments;
      List(task, fact);
      break;
    case TaskState::kReady:
      fact.state = ObjectState::kReady;
      fact.shape = shapes_[task->shape].amounts;
      break;
    case TaskState::kPushed:
      fact.state = ObjectState::kPushed;
      fact.worker = workers_[task->worker].process;
      fact.group = task->what->group;
      for (Task* other = task->previous; other; other = other->previous) ++fact.ahead;
      if (fact.ahead > 0) fact.front = workers_[task->worker].pushed.first->what->name;
      break;
    case TaskState::kQueued:
      ExplainQueued(*task, fact);
      break;
    case TaskState::kRevoking:
    case TaskState::kFinished:
      break;  // about to change
  }
  return fact;
}

// A call that was not sent to its actor yet.
void Owner::ExplainQueued(const Task& task, ObjectFact& fact) const {
  const Actor& actor = *task.actor;
  if (task.unresolved > 0) {
    fact.state = ObjectState::kArguments;
    List(&task, fact);
    return;
  }
  if (!actor.out_of_order && !task.lineage) {
    for (const Task* other = actor.queue.first; other && other != &task; other = other->next) {
      if (other->unresolved == 0 || other->lineage || other->what->kind == TemplateKind::kCreation) continue;
      fact.state = ObjectState::kBehind;
      fact.front = other->what->name;
      List(other, fact);
      return;
    }
  }
  if (actor.worker < 0) {
    fact.state = ObjectState::kForActor;
    fact.objects.push_back(actor.handle->id);
    return;
  }
  // Its channel is full: what it needs is a slot, like those before it.
  fact.state = ObjectState::kPushed;
  fact.worker = workers_[actor.worker].process;
  fact.group = task.what->group;
  fact.ahead = static_cast<uint32_t>(workers_[actor.worker].pushed.size);
  if (const Task* first = workers_[actor.worker].pushed.first) fact.front = first->what->name;
}

// The handle of an actor of ours: whether the actor has a process.
void Owner::ExplainActor(const Actor& actor, ObjectFact& fact) const {
  fact.is_actor = 1;
  fact.name = actor.class_name;
  fact.stamp = actor.incarnation;
  if (actor.worker >= 0 || actor.state == ActorState::kDead) {
    fact.state = ObjectState::kThere;
    if (actor.state == ActorState::kDead) fact.front = actor.why.empty() ? "it is dead" : actor.why;
  } else if (actor.state == ActorState::kPending && !actor.placed && actor.queue.first) {
    fact.state = ObjectState::kArguments;
    List(actor.queue.first, fact);
  } else if (actor.state == ActorState::kPending) {
    fact.state = ObjectState::kPlacing;
    fact.shape = shapes_[actor.creation->shape].amounts;
  }
}

}  // namespace weft::core
