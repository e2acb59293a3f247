// Runtime: objects that lie on another node. Copies says which process uses which copy; here are the threads that wait
// for one, and the owner's objects that have got one.
#include "runtime/executor.h"
#include "runtime/runtime.h"

namespace weft::core {

void Runtime::BringCopy(Object* object, const Location& location) {
  const Copies::Copy& copy = copies_.Use(object, location);
  if (copy.state == Copies::Copy::State::kHere) owner_->Brought(object, location, copy.place, actions_);
}

void Runtime::CopyArrived(uint64_t request, const Location& place) {
  Location location;
  const Copies::Copy* copy = copies_.Arrived(request, place, &location);
  if (copy == nullptr) return;
  for (Object* object : copy->objects) owner_->Brought(object, location, place, actions_);
  if (executor_) executor_->CopyCame();
}

void Runtime::CopyFailed(uint64_t request, const std::string& error, bool node_gone) {
  const auto failure = copies_.Failed(request, error, node_gone);
  if (!failure) return;
  // One that is lost may have been the last that held another one.
  for (Object* object : failure->objects) owner_->Hold(object);
  for (Object* object : failure->objects) {
    owner_->NotBrought(object, failure->location, failure->error, node_gone, actions_);
  }
  for (Object* object : failure->objects) owner_->Unhold(object, actions_);
  if (executor_) executor_->CopyCame();
}

Result<Location> Runtime::CopyFor(const Location& location) {
  std::unique_lock lock(mutex_);
  // It stays also if a signal ends the wait, which goes on after that; and we are in it meanwhile.
  Copies::Copy& copy = copies_.Keep(location);
  ++copy.users;
  auto outcome = WaitForNews(lock, -1, [&] { return copy.state != Copies::Copy::State::kAsked; });
  --copy.users;
  if (outcome == WaitOutcome::kStopped) return Error{ErrorKind::kGone, "the session has ended"};
  if (outcome == WaitOutcome::kInterrupted) return Error{ErrorKind::kTimeout, "interrupted"};
  if (copy.state == Copies::Copy::State::kHere) return copy.place;
  const std::string& error = *copy.error;
  copies_.Unkeep(location);
  return Error{ErrorKind::kGone, error.substr(error.find('\n') + 1)};
}

// The value lies on another node, or did: no thread has waited for it here, or it is asked for once more.
Result<ValueView> Runtime::ReadElsewhere(Object* object) {
  ValueView view{.kind = ValueKind::kStored, .bytes = {}, .stored = true};
  Location place;
  {
    std::unique_lock lock(mutex_);
    while (!object->settled()) {  // again, if it was lost before we had the lock back
      // It may be being made again, which takes a CPU.
      Waiting waiting{.objects = {&object, 1}, .wanted = 1};
      auto outcome = WaitForEach(lock, waiting, true, false);
      NotifyPeers(lock);  // that the CPU which was lent is in use again
      lock.lock();
      if (outcome == WaitOutcome::kStopped) return Error{ErrorKind::kGone, "the session has ended"};
      if (outcome == WaitOutcome::kInterrupted) return Error{ErrorKind::kTimeout, "interrupted"};
    }
    const Place where = object->place.load(std::memory_order_relaxed);
    if (object->value.kind() != ValueKind::kStored || where == Place::kLost) {
      const bool lost = object->value.kind() == ValueKind::kStored;
      view.kind = lost ? ValueKind::kSystemError : object->value.kind();
      view.bytes = lost ? std::string_view(*object->copy->error) : object->value.bytes();
      view.stored = false;
      return view;
    }
    // If it is made again from here on, this copy stays for as long as the object does.
    place = where == Place::kCopied ? object->copy->place : object->value.location();
  }
  auto data = MapStored(place);
  if (!data) return data.error();
  view.bytes = {reinterpret_cast<const char*>(*data), place.size};
  return view;
}

}  // namespace weft::core
