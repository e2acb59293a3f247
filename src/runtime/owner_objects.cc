// Owner: objects. Which processes hold a reference, where the value is, which are told of it, and when it is freed.
#include <algorithm>
#include <utility>

#include "runtime/owner.h"

namespace weft::core {

std::string Owner::OwnerDied(const std::string& how) {
  return "OwnerDiedError\nthe process that owned the object " + how +
         "; what a process has put, and the results of its tasks, end with it and are not made again";
}

Object* Owner::NewOwned() {
  Object* object = objects_.New();
  object->id = {self_, object->handle};
  object->local_references.store(1, std::memory_order_relaxed);
  return object;
}

void Owner::Resolve(Object* object, ValueKind kind, std::string_view bytes, const Location& location,
                    const std::vector<Object*>& contained, Actions& out) {
  if (!contained.empty()) {
    object->contained = new std::vector<Object*>(contained);
    for (Object* inner : contained) Hold(inner);
  }
  if (kind == ValueKind::kStored) {
    SetStored(object, location);
  } else {
    object->value.SetBytes(kind, bytes);
  }
  Resolved(object);
  Settle(out);
}

Object* Owner::Find(ObjectId id) {
  if (id.owner == self_) {
    Object* object = objects_.Find(id.index);
    return object && !object->borrowed ? object : nullptr;
  }
  auto it = borrowed_.find(id);
  return it == borrowed_.end() ? nullptr : it->second;
}

Object* Owner::Receive(ObjectId id, uint32_t registrations) {
  Object* object = Find(id);
  if (!object) {
    if (id.owner == self_ || !id) return nullptr;
    object = objects_.New();
    object->id = id;
    object->borrowed = true;
    borrowed_.emplace(id, object);
    if (dead_.Contains(id.owner)) {
      object->value.SetBytes(ValueKind::kSystemError, OwnerDied(dead_.How(id.owner)));
    }
  }
  if (object->borrowed) object->registrations += registrations;
  object->local_references.fetch_add(1, std::memory_order_relaxed);
  return object;
}

void Owner::Unhold(Object* object, Actions& out) {
  WEFT_CHECK(object->holds > 0, "a hold given back twice");
  --object->holds;
  Consider(object, out);
}

void Owner::Consider(Object* object, Actions& out) {
  considered_.push_back(object);
  if (considering_) return;
  considering_ = true;
  while (!considered_.empty()) {
    Object* next = considered_.back();
    considered_.pop_back();
    Free(next, out);
  }
  considering_ = false;
}

void Owner::Free(Object* object, Actions& out) {
  if (objects_.Find(object->handle) != object) return;  // freed already
  if (object->local_references.load(std::memory_order_acquire) != 0 || object->holds != 0 || object->callbacks != 0) {
    return;
  }
  if (object->borrowed) {
    if (object->registrations > 0 && !dead_.Contains(object->id.owner)) {
      out.push_back(
          {.kind = ActionKind::kRemoveBorrower, .process = self_, .number = object->registrations, .id = object->id});
    }
    borrowed_.erase(object->id);
    if (!held_of_dead_.empty()) EndHold(object->id, out);
  } else {
    if (!object->resolved() && (!object->dropped || object->producer)) return;
    bool only_by_itself = object->actor && object->actor->worker >= 0 && object->borrowers &&
                          object->borrowers->size() == 1 &&
                          object->borrowers->contains(workers_[object->actor->worker].process);
    // An actor that knows itself does not keep itself.
    if (object->borrowers && !object->borrowers->empty() && !only_by_itself) {
      // A negative count: a registration is still on its way from the process that handed the reference on.
      if (!(faults.free_one_borrower_early && object->borrowers->size() == 1)) return;
    }
    if (object->lineage_holds > 0) return DropValue(object, out);
    if (object->value.kind() == ValueKind::kStored) {
      out.push_back({.kind = ActionKind::kFreeStored,
                     .number = object->crossed ? 1u : 0u,
                     .id = object->id,
                     .location = object->value.location()});
    }
    if (object->lineage) Detach(object, out);
  }
  if (object->copy || object->former) LetGoOfCopies(object, out);
  if (object->actor) ForgetActor(object->actor, out);
  if (object->contained) {
    for (Object* inner : *object->contained) Unhold(inner, out);
  }
  objects_.Delete(object);
}

void Owner::EndHold(ObjectId id, Actions& out) {
  auto held = held_of_dead_.find(id.owner);
  if (held == held_of_dead_.end() || held->second.erase(id.index) == 0) return;
  if (held->second.empty() && IsDead(id.owner)) held_of_dead_.erase(held);
  out.push_back({.kind = ActionKind::kEndHold, .id = id});
}

std::vector<uint64_t> Owner::HeldOf(ProcessId owner) {
  std::set<uint64_t> held;
  for (const auto& [id, object] : borrowed_) {
    if (id.owner == owner) held.insert(id.index);
  }
  std::vector<uint64_t> indexes(held.begin(), held.end());
  // A process that started after that death has not heard of it.
  if (!held.empty() || !IsDead(owner)) held_of_dead_[owner] = std::move(held);
  return indexes;
}

bool Owner::MustBeRegistered(ObjectId id) const {
  auto held = held_of_dead_.find(id.owner);
  if (held != held_of_dead_.end()) return !held->second.contains(id.index);
  return IsDead(id.owner);
}

std::string Owner::WhyOrphaned(ObjectId id) const { return OwnerDied(dead_.How(id.owner)); }

void Owner::ResultsLeft(const std::vector<SealedObject>& results, Actions& out) {
  for (const SealedObject& result : results) {
    const Object* object = result.object.owner == self_ ? Find(result.object) : nullptr;
    if (object && object->value.kind() == ValueKind::kStored && object->value.location() == result.location) continue;
    // Through the daemon, as the writer is dead.
    out.push_back({.kind = ActionKind::kFreeStored, .number = 1, .id = result.object, .location = result.location});
  }
}

void Owner::Want(Object* object, Actions& out) {
  Seek(object, out);
  if (!to_make_.empty()) Settle(out);
}

void Owner::Seek(Object* object, Actions& out) {
  if (!object->borrowed) {
    if (object->dropped && !object->producer) to_make_.push_back(object->handle);
    return;
  }
  if (object->resolved() || object->fetching) return;
  object->fetching = true;
  out.push_back({.kind = ActionKind::kFetch, .object = object, .process = object->id.owner, .id = object->id});
}

void Owner::WantHere(Object* object, Actions& out) {
  object->wanted_here = true;
  object->resolved() ? Bring(object, out) : Want(object, out);
}

// Before the value is visible, so that no thread takes it for one on this node.
void Owner::SetStored(Object* object, const Location& location) {
  if (object->copy && object->copy->of != location) PutAside(object);
  const bool away = NodeOf(location.segment) != NodeOf(self_);
  if (away) object->place.store(object->copy ? Place::kCopied : Place::kAway, std::memory_order_relaxed);
  object->value.SetStored(location);
  // After it, if it was made again: a thread that has seen that the former value was stored reads it with the lock.
  if (!away && object->place.load(std::memory_order_relaxed) != Place::kHere) {
    object->place.store(Place::kRemade, std::memory_order_release);
  }
}

void Owner::Bring(Object* object, Actions& out) {
  const Place place = object->place.load(std::memory_order_relaxed);
  if (place != Place::kAway && place != Place::kLost) return;
  object->place.store(Place::kComing, std::memory_order_relaxed);
  if (!object->copy) object->copy = new Object::Copy{.of = object->value.location(), .place = {}};
  out.push_back({.kind = ActionKind::kBring, .object = object, .location = object->value.location()});
}

void Owner::Brought(Object* object, const Location& of, const Location& place, Actions& out) {
  if (!object->copy || object->copy->of != of) return;  // made again meanwhile
  object->copy->place = place;
  object->place.store(Place::kCopied, std::memory_order_release);  // pairs with here()
  if (object->awaited()) out.push_back({.kind = ActionKind::kResolved, .object = object});
}

void Owner::NotBrought(Object* object, const Location& of, const std::string* error, bool node_gone, Actions& out) {
  if (!object->copy || object->copy->of != of) return;
  if (node_gone && object->value.kind() == ValueKind::kStored && object->value.location() == of) {
    const std::string_view how = std::string_view(*error).substr(error->find('\n') + 1);
    if (!object->borrowed) {
      Lost(object, of, how, out);
      return Settle(out);
    }
    if (AskAgain(object, out)) return;
  }
  object->copy->error = error;
  object->place.store(Place::kLost, std::memory_order_release);  // pairs with settled()
  if (object->awaited()) out.push_back({.kind = ActionKind::kResolved, .object = object});
}

void Owner::CameWithTask(Object* object, const Location& of, const Location& place) {
  if (object->copy && object->copy->of != of) PutAside(object);
  if (!object->copy) object->copy = new Object::Copy{.of = of, .place = {}};
  object->copy->place = place;
  if (object->resolved() && !object->here()) object->place.store(Place::kCopied, std::memory_order_release);
}

void Owner::AddBorrower(Object* object, ProcessId receiver, Actions& out) {
  if (object->id.owner == receiver && receiver == self_) Hold(object);  // returned by an actor to itself: see Replied
  if (object->id.owner == receiver || IsDead(receiver)) return;
  if (object->borrowed) {
    if (dead_.Contains(object->id.owner)) return;
    object->handed_on = true;
    out.push_back({.kind = ActionKind::kAddBorrower, .process = receiver, .number = 1, .id = object->id});
  } else {
    if (!object->borrowers) object->borrowers = new std::map<ProcessId, int64_t>();
    if (++(*object->borrowers)[receiver] == 0) object->borrowers->erase(receiver);
    object->crossed = object->crossed || NodeOf(receiver) != NodeOf(self_);
  }
}

void Owner::RemoveBorrower(Object* object, ProcessId receiver, Actions& out) {
  if (object->id.owner == receiver) return;
  if (object->borrowed) {
    if (dead_.Contains(object->id.owner)) return;
    // Even for a dead receiver: the owner may be younger than that death and never hear of it.
    out.push_back({.kind = ActionKind::kRemoveBorrower, .process = receiver, .number = 1, .id = object->id});
  } else if (!IsDead(receiver)) {
    BorrowsChanged(object->id, receiver, -1, out);
  }
}

void Owner::BorrowsChanged(ObjectId id, ProcessId borrower, int64_t count, Actions& out) {
  Object* object = Find(id);
  if (!object || object->borrowed || IsDead(borrower)) return;
  if (!object->borrowers) object->borrowers = new std::map<ProcessId, int64_t>();
  object->crossed = object->crossed || NodeOf(borrower) != NodeOf(self_);
  auto& have = (*object->borrowers)[borrower];
  have += count;
  if (have == 0) {
    object->borrowers->erase(borrower);
    Consider(object, out);
  }
}

void Owner::SendTo(Object* object, ProcessId requester, Actions& out) {
  if (object->contained) {
    for (Object* inner : *object->contained) AddBorrower(inner, requester, out);
  }
  Hold(object);  // until it is sent: the requester may give it back meanwhile, and nothing else may need it
  out.push_back({.kind = ActionKind::kSendValue, .object = object, .process = requester, .id = object->id});
}

void Owner::ValueAsked(ObjectId id, ProcessId requester, Actions& out) {
  if (IsDead(requester)) return;
  Object* object = Find(id);
  if (!object || object->borrowed) {
    out.push_back({.kind = ActionKind::kSendValue, .object = nullptr, .process = requester, .id = id});
  } else if (object->resolved()) {
    SendTo(object, requester, out);
  } else {
    if (!object->requesters) object->requesters = new std::vector<ProcessId>();
    object->requesters->push_back(requester);
    Seek(object, out);
    Settle(out);
  }
}

void Owner::ValueReceived(ObjectId id, const ReturnedValue& value, Actions& out) {
  Object* object = Find(id);
  if (object && object->borrowed && !object->resolved()) {
    ResolveReceived(object, value, out);
  } else {
    // It is no longer wanted; give back the references that came with it.
    for (ObjectId inner : value.contained) {
      Object* received = Receive(inner, inner.owner == self_ ? 0 : 1);
      if (!received) continue;
      received->local_references.fetch_sub(1, std::memory_order_relaxed);
      Consider(received, out);
    }
  }
  Settle(out);
}

void Owner::ResolveReceived(Object* object, const ReturnedValue& value, Actions&) {
  for (ObjectId inner : value.contained) {
    Object* received = Receive(inner, inner.owner == self_ ? 0 : 1);
    if (!received) continue;
    Hold(received);
    received->local_references.fetch_sub(1, std::memory_order_relaxed);
    if (!object->contained) object->contained = new std::vector<Object*>();
    object->contained->push_back(received);
  }
  if (value.kind == ValueKind::kStored) {
    SetStored(object, value.location);
    Resolved(object);
  } else {
    ResolveWith(object, value.kind, value.bytes);
  }
}

void Owner::ResolveWith(Object* object, ValueKind kind, std::string_view bytes) {
  object->value.SetBytes(kind, bytes);
  // If it was made again; after its value, as in SetStored.
  if (object->place.load(std::memory_order_relaxed) != Place::kHere) {
    object->place.store(Place::kRemade, std::memory_order_release);
  }
  Resolved(object);
}

void Owner::Resolved(Object* object) {
  object->producer = nullptr;
  object->dropped = false;
  Hold(object);
  resolved_.push_back(object);
}

void Owner::Announce(Object* object, Actions& out) {
  if (object->place.load(std::memory_order_relaxed) == Place::kAway) {
    // The thread that wanted to read it may be gone.
    const bool wanted = object->local_references.load(std::memory_order_acquire) != 0 || object->callbacks > 0;
    if (object->wanted_here && wanted) Bring(object, out);
    // Some waits only need the value to exist.
    if (object->interests) out.push_back({.kind = ActionKind::kResolved, .object = object});
  } else if (object->awaited()) {
    out.push_back({.kind = ActionKind::kResolved, .object = object});
  }
  if (object->requesters) {
    for (ProcessId requester : *object->requesters) {
      if (!IsDead(requester)) SendTo(object, requester, out);
    }
    delete object->requesters;
    object->requesters = nullptr;
  }
  if (object->dependents) {
    std::unique_ptr<std::vector<Task*>> dependents(object->dependents);
    object->dependents = nullptr;
    for (Task* task : *dependents) {
      WEFT_CHECK(task->unresolved > 0, "a dependency resolved twice");
      --task->unresolved;
    }
    bool failed = object->value.kind() == ValueKind::kTaskError || object->value.kind() == ValueKind::kSystemError;
    for (size_t i = 0; i < dependents->size(); ++i) {
      Task* task = (*dependents)[i];
      // A task that takes the object twice is listed twice, in a row: handle it once.
      if (i > 0 && (*dependents)[i - 1] == task) continue;
      if (task->state == TaskState::kQueued) {
        if (failed) {
          if (!faults.forget_calls_behind_a_failed_one) MarkDirty(task->actor);  // those behind it wait no longer
          task->actor->queue.Remove(task);
          Retry(task, out);
        } else if (task->unresolved == 0) {
          MarkDirty(task->actor);
        }
        continue;
      }
      if (task->state != TaskState::kWaiting) continue;  // pushed behind its producer
      if (failed) {
        Retry(task, out);
      } else if (task->unresolved == 0) {
        Enqueue(task, false);
      } else {
        TryPushBehind(task, out);
      }
    }
  }
  Unhold(object, out);
}

}  // namespace weft::core
