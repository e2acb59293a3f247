#include "actors/actor_names.h"

namespace weft::core {
namespace {

constexpr size_t kMostShown = 1 << 10;

std::string Quoted(const std::string& text) {
  std::string quoted(1, '"');
  quoted += text;
  quoted += '"';
  return quoted;
}

// The empty one is what a session has that was given none; nobody wrote it.
std::string In(const std::string& name_space) {
  return name_space.empty() ? "in the default namespace" : "in namespace " + Quoted(name_space);
}

}  // namespace

std::string CalledActor(const std::string& class_name, const std::string& name) {
  std::string text = "actor ";
  text += class_name.empty() ? "without a class" : class_name;
  if (!name.empty()) text.append(" ").append(Quoted(name));
  return text;
}

std::string NameIsTaken(const std::string& name_space, const std::string& name, const std::string& by) {
  std::string text = "the name ";
  text.append(Quoted(name)).append(" is taken ").append(In(name_space)).append(" by a living ").append(by);
  return text.append("; use another name, or the option get_if_exists");
}

std::string NameIsUnknown(const std::string& name_space, const std::string& name) {
  std::string text = "there is no living actor named ";
  text.append(Quoted(name.substr(0, kMostShown))).append(" ").append(In(name_space.substr(0, kMostShown)));
  return text.append("; it was never created, or it has ended");
}

const ActorNames::Holder* ActorNames::Take(const Name& name, Holder holder) {
  auto [entry, fresh] = holders_.try_emplace(name, std::move(holder));
  return fresh ? nullptr : &entry->second;
}

const ActorNames::Holder* ActorNames::Find(const Name& name) const {
  auto found = holders_.find(name);
  return found == holders_.end() ? nullptr : &found->second;
}

void ActorNames::Release(const Name& name, ObjectId actor) {
  auto found = holders_.find(name);
  if (found != holders_.end() && found->second.actor == actor) holders_.erase(found);
}

void ActorNames::NodeLeft(NodeNumber node) {
  std::erase_if(holders_, [node](const auto& entry) { return entry.second.home == node; });
}

std::vector<ActorNames::Name> ActorNames::List(bool all, const std::string& name_space) const {
  std::vector<Name> names;
  size_t bytes = 0;
  for (auto entry = all ? holders_.begin() : holders_.lower_bound({name_space, ""}); entry != holders_.end(); ++entry) {
    const Name& name = entry->first;
    if (!all && name.first != name_space) break;
    bytes += name.first.size() + name.second.size() + 8;
    if (bytes > kMaxNamesBytes) break;
    names.push_back(name);
  }
  return names;
}

}  // namespace weft::core
