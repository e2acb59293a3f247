#include "runtime/copies.h"

#include <utility>

namespace weft::core {

Copies::Copy& Copies::Ask(const Location& location) {
  auto [entry, fresh] = copies_.try_emplace(location);
  Copy& copy = entry->second;
  if (fresh || copy.state == Copy::State::kFailed) {
    copy.state = Copy::State::kAsked;
    copy.request = next_request_++;
    requests_.emplace(copy.request, location);
    send_(FetchObject{.request = copy.request, .location = location});
  }
  return copy;
}

Copies::Copy* Copies::Find(const Location& location) {
  auto found = copies_.find(location);
  return found == copies_.end() ? nullptr : &found->second;
}

void Copies::DropIfUnused(const Location& location) {
  auto found = copies_.find(location);
  if (found == copies_.end() || !found->second.objects.empty() || found->second.users > 0) return;
  if (found->second.state != Copy::State::kFailed) send_(ReleaseObject{.request = found->second.request});
  requests_.erase(found->second.request);
  copies_.erase(found);
}

const Copies::Copy& Copies::Use(Object* object, const Location& location) {
  Copy& copy = Ask(location);
  copy.objects.push_back(object);
  return copy;
}

void Copies::LetGo(Object* object, const Location& location) {
  Copy* copy = Find(location);
  if (copy == nullptr) return;
  std::erase(copy->objects, object);
  DropIfUnused(location);
}

void Copies::RemoveUser(const Location& location) {
  --copies_.at(location).users;
  DropIfUnused(location);
}

Copies::Copy& Copies::Keep(const Location& location) {
  Copy& copy = Ask(location);
  if (!std::exchange(copy.kept, true)) ++copy.users;
  return copy;
}

void Copies::Unkeep(const Location& location) {
  Copy& copy = copies_.at(location);
  if (std::exchange(copy.kept, false)) --copy.users;
  DropIfUnused(location);
}

const Copies::Copy* Copies::Arrived(uint64_t request, const Location& place, Location* location) {
  auto asked = requests_.find(request);
  if (asked == requests_.end()) return nullptr;
  *location = asked->second;
  requests_.erase(asked);
  Copy& copy = copies_.at(*location);
  copy.state = Copy::State::kHere;
  copy.place = place;
  return &copy;
}

std::optional<Copies::Failure> Copies::Failed(uint64_t request, const std::string& error, bool node_gone) {
  auto asked = requests_.find(request);
  if (asked == requests_.end()) return std::nullopt;
  const Location location = asked->second;
  requests_.erase(asked);
  Copy& copy = copies_.at(location);
  copy.state = Copy::State::kFailed;
  copy.error = &*errors_.insert(error).first;
  copy.node_gone = node_gone;
  Failure failure{location, copy.error, node_gone, std::exchange(copy.objects, {})};
  DropIfUnused(location);
  return failure;
}

}  // namespace weft::core
