// Owner: what it knows of why an object is pending. The facts are judged elsewhere (wait_graph.h).
#include "runtime/owner.h"

namespace weft::core {
namespace {

// Of a task's arguments; a task waits for all, so those that are listed suffice to show that it cannot go on.
constexpr size_t kMaxArgumentsListed = 1000;

}  // namespace

ObjectFact Owner::Explain(ObjectId id) {
  ObjectFact fact;
  fact.id = id;
  Object* object = Find(id);
  if (!object || object->borrowed) return fact;
  if (object->resolved()) {
    fact.state = ObjectState::kThere;
    return fact;
  }
  Task* task = object->producer;
  if (!task) return fact;
  fact.task = task->handle;
  fact.stamp = task->push;
  fact.name = task->what->name;
  switch (task->state) {
    case TaskState::kWaiting:
      fact.state = ObjectState::kArguments;
      for (uint32_t i = 0; i < task->num_dependencies; ++i) {
        if (task->dependencies[i]->resolved()) continue;
        if (fact.objects.size() < kMaxArgumentsListed) {
          fact.objects.push_back(task->dependencies[i]->id);
        } else {
          ++fact.more_objects;
        }
      }
      break;
    case TaskState::kReady:
      fact.state = ObjectState::kReady;
      fact.shape = shapes_[task->what->shape].amounts;
      break;
    case TaskState::kPushed:
      fact.state = ObjectState::kPushed;
      fact.worker = workers_[task->worker].process;
      for (Task* other = task->previous; other; other = other->previous) ++fact.ahead;
      if (fact.ahead > 0) fact.front = workers_[task->worker].pushed.first->what->name;
      break;
    case TaskState::kRevoking:
    case TaskState::kFinished:
      break;  // about to change
  }
  return fact;
}

}  // namespace weft::core
