// The copies of objects of other nodes that this process uses. Pure: calls in, messages to the daemon out.
//
// Called by Runtime and Executor, with the runtime's lock. The daemon brings a copy to this node; all uses of the same
// object here share one entry. The entry lives while it has uses: objects of the owner's table, or *users* without one
// (arguments of a task that is not claimed yet, a thread in MapStored). When the last one goes, the daemon is told
// (ReleaseObject), and keeps or drops its copy. The next use of a copy that failed asks for it again.
//
// Does not wait, map memory or know what happens to an object whose copy failed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "wire/ids.h"
#include "wire/messages.h"

namespace weft::core {

struct Object;

class Copies {
 public:
  struct Copy {
    enum class State : uint8_t { kAsked, kHere, kFailed } state = State::kAsked;
    uint64_t request = 0;
    Location place;                      // kHere
    const std::string* error = nullptr;  // kFailed: a system error; lives as long as this table
    bool node_gone = false;              // kFailed because the node it lay on is gone
    std::vector<Object*> objects;        // that use it or wait for it
    uint32_t users = 0;
    bool kept = false;  // one of the users is Keep
  };
  struct Failure {
    Location location;
    const std::string* error = nullptr;
    bool node_gone = false;
    std::vector<Object*> objects;  // that have waited for it
  };
  using Send = std::function<void(Message)>;

  explicit Copies(Send send) : send_(std::move(send)) {}

  // The entry, asked for unless the copy is here or on its way. It stays in place while it has uses.
  Copy& Ask(const Location& location);
  Copy* Find(const Location& location);
  bool IsAsked(const Location& location) { return Find(location)->state == Copy::State::kAsked; }

  // The object uses the copy, or waits for it.
  const Copy& Use(Object* object, const Location& location);
  void LetGo(Object* object, const Location& location);
  void AddUser(const Location& location) { ++Ask(location).users; }
  void RemoveUser(const Location& location);
  // Adds a user that stays, once for each copy, as long as this process lives or until Unkeep.
  Copy& Keep(const Location& location);
  void Unkeep(const Location& location);

  // The daemon's answers. Nothing: the copy was released meanwhile.
  const Copy* Arrived(uint64_t request, const Location& place, Location* location);
  std::optional<Failure> Failed(uint64_t request, const std::string& error, bool node_gone);
  size_t size() const { return copies_.size(); }

 private:
  void DropIfUnused(const Location& location);

  const Send send_;
  std::map<Location, Copy> copies_;  // by where the object lies
  std::unordered_map<uint64_t, Location> requests_;
  uint64_t next_request_ = 1;
  std::set<std::string> errors_;  // each once
};

}  // namespace weft::core
