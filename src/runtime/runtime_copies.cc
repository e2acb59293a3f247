// Runtime: objects that lie on another node. The daemon brings copies to this node; this file keeps which are used.
//
// A copy is used from the moment when it was asked for until its object is freed in this process, or no longer wanted.
// Then the daemon is told (ReleaseObject), and keeps or drops it. Several may wait for the same copy: the front end's
// threads and callbacks through the object, the executor for the arguments of a task that it has not claimed yet, and
// MapStored for the body of a function.
#include "runtime/executor.h"
#include "runtime/runtime.h"

namespace weft::core {

Runtime::Fetch& Runtime::BeginFetch(const Location& location) {
  auto [entry, fresh] = fetches_.try_emplace(location);
  Fetch& fetch = entry->second;
  if (fresh || fetch.state == Fetch::State::kFailed) {
    fetch.state = Fetch::State::kAsked;
    fetch.request = next_fetch_++;
    fetch_requests_.emplace(fetch.request, location);
    Send(FetchObject{.request = fetch.request, .location = location});
  }
  return fetch;
}

void Runtime::EndFetchIfUnused(const Location& location) {
  auto found = fetches_.find(location);
  if (found == fetches_.end() || !found->second.objects.empty() || found->second.others > 0) return;
  if (found->second.state != Fetch::State::kFailed) Send(ReleaseObject{.request = found->second.request});
  fetch_requests_.erase(found->second.request);
  fetches_.erase(found);
}

void Runtime::BringCopy(Object* object, const Location& location) {
  Fetch& fetch = BeginFetch(location);
  fetch.objects.push_back(object);
  if (fetch.state == Fetch::State::kHere) owner_->Brought(object, location, fetch.place, actions_);
}

void Runtime::LetGoOfCopy(Object* object, const Location& location) {
  auto found = fetches_.find(location);
  if (found == fetches_.end()) return;
  std::erase(found->second.objects, object);
  EndFetchIfUnused(location);
}

void Runtime::CopyArrived(uint64_t request, const Location& place) {
  auto asked = fetch_requests_.find(request);
  if (asked == fetch_requests_.end()) return;  // released meanwhile
  const Location location = asked->second;
  Fetch& fetch = fetches_.at(location);
  fetch_requests_.erase(asked);
  fetch.state = Fetch::State::kHere;
  fetch.place = place;
  for (Object* object : fetch.objects) owner_->Brought(object, location, place, actions_);
  if (executor_) executor_->CopyCame();
}

void Runtime::CopyFailed(uint64_t request, const std::string& error, bool node_gone) {
  auto asked = fetch_requests_.find(request);
  if (asked == fetch_requests_.end()) return;
  const Location location = asked->second;
  fetch_requests_.erase(asked);
  Fetch& fetch = fetches_.at(location);
  fetch.state = Fetch::State::kFailed;
  fetch.error = &*fetch_errors_.insert(error).first;
  fetch.node_gone = node_gone;
  const std::string* why = fetch.error;
  const std::vector<Object*> objects = std::exchange(fetch.objects, {});
  EndFetchIfUnused(location);
  // One that is lost may have been the last that held another one.
  for (Object* object : objects) owner_->Hold(object);
  for (Object* object : objects) owner_->NotBrought(object, location, why, node_gone, actions_);
  for (Object* object : objects) owner_->Unhold(object, actions_);
  if (executor_) executor_->CopyCame();
}

Result<Location> Runtime::CopyFor(const Location& location) {
  std::unique_lock lock(mutex_);
  Fetch& fetch = BeginFetch(location);  // stays where it is while we are in it
  // Also if a signal ends the wait: it goes on after that.
  if (!std::exchange(fetch.kept, true)) ++fetch.others;
  ++fetch.others;
  auto outcome = WaitForNews(lock, -1, [&] { return fetch.state != Fetch::State::kAsked; });
  --fetch.others;
  if (outcome == WaitOutcome::kStopped) return Error{ErrorKind::kGone, "the session has ended"};
  if (outcome == WaitOutcome::kInterrupted) return Error{ErrorKind::kTimeout, "interrupted"};
  if (fetch.state == Fetch::State::kHere) return fetch.place;
  const std::string& error = *fetch.error;
  if (std::exchange(fetch.kept, false)) --fetch.others;
  EndFetchIfUnused(location);
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
