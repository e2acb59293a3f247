// The names of actors in a whole cluster: which actor has which, and where that is known. Pure.
//
// Kept by the head, called on its loop thread. A name belongs to one actor from the moment that its home asks for it
// until the home says that the actor ends, or the home's node is gone. Whether the actor lives is the home's business
// (ActorDirectory, which keeps the names of a private session itself).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "wire/ids.h"

namespace weft::core {

class ActorNames {
 public:
  struct Holder {
    ObjectId actor;
    NodeNumber home;
    std::string class_name;
    std::string metadata;  // what a front end needs to make a handle
  };
  using Name = std::pair<std::string, std::string>;  // namespace, name

  // Who has the name already; nullptr: it is the new holder's from now on.
  const Holder* Take(const Name& name, Holder holder);
  const Holder* Find(const Name& name) const;
  // Nothing happens if the name is another's by now.
  void Release(const Name& name, ObjectId actor);
  // Everything that was known there alone is gone.
  void NodeLeft(NodeNumber node);
  // Those of one namespace, or all; in order, as many as fit into a message.
  std::vector<Name> List(bool all, const std::string& name_space) const;
  size_t size() const { return holders_.size(); }

 private:
  std::map<Name, Holder> holders_;
};

// What users are told, by whoever keeps the names.
std::string NameIsTaken(const std::string& name_space, const std::string& name, const std::string& by);
std::string NameIsUnknown(const std::string& name_space, const std::string& name);
// "actor Counter "c"", for messages.
std::string CalledActor(const std::string& class_name, const std::string& name);

// What fits into one message beside everything else (kMaxMessageBytes).
inline constexpr size_t kMaxNamesBytes = 3 << 20;

}  // namespace weft::core
