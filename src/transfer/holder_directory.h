// Knows which nodes hold or pull an object, and tells the nodes that pull it which ones to ask. Pure: events in,
// actions out.
//
// Called by the daemon of the primary copy's node, on its loop thread, and by tests.
//
// A node that pulls an object is a source for others from the beginning. A newcomer is told a few nodes with complete
// copies and a few that pull, and these are told the newcomer. Each newcomer begins at another place of the object, as
// far as possible from where the others began. So they soon have different parts and exchange them: a broadcast takes
// about as long as one transfer, however many nodes receive it (PullPlan does the rest).
//
// Does not know which chunks a node has: nodes announce that to each other.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <variant>
#include <vector>

#include "wire/ids.h"

namespace weft::core {

// ---- events -----------------------------------------------------------------------------------------------------
struct CopyHeld {  // the node has all of it: it was made there, or a pull has ended
  ObjectId object;
  NodeNumber node;
};
struct SourcesAsked {  // the node pulls the object
  ObjectId object;
  NodeNumber node;
};
struct CopyGone {  // or the pull was given up
  ObjectId object;
  NodeNumber node;
};
struct HolderLost {
  NodeNumber node;
};
struct ObjectForgotten {
  ObjectId object;
};

// ---- actions ----------------------------------------------------------------------------------------------------
struct GiveSources {  // becomes SourcesGiven there
  ObjectId object;
  NodeNumber to;
  std::vector<NodeNumber> complete;
  std::vector<NodeNumber> partial;
  uint32_t start = 0;  // in 1/65536 of the object
  bool answer = false;
};
using HolderAction = std::variant<GiveSources>;

class HolderDirectory {
 public:
  struct Config {
    uint32_t complete = 2;  // given to one newcomer: enough to go on without asking when one is lost
    uint32_t partial = 6;   // each is a link, and each receiver's announcements go to that many
  };

  HolderDirectory() = default;
  explicit HolderDirectory(Config config) : config_(config) {}

  void Handle(const CopyHeld& event, std::vector<HolderAction>& out);
  void Handle(const SourcesAsked& event, std::vector<HolderAction>& out);
  void Handle(const CopyGone& event, std::vector<HolderAction>& out);
  void Handle(const HolderLost& event, std::vector<HolderAction>& out);
  void Handle(const ObjectForgotten& event, std::vector<HolderAction>& out);

  // Nodes with all of it.
  std::vector<NodeNumber> HoldersOf(ObjectId object) const;
  size_t object_count() const { return objects_.size(); }

  void CheckInvariants() const;

 private:
  struct Holder {
    bool complete = false;
    uint32_t given = 0;  // how often it was given as a source
    uint32_t start = 0;
  };
  struct Object {
    std::map<NodeNumber, Holder> holders;
    uint32_t pulls = 0;  // that ever began
  };
  std::vector<NodeNumber> Least(Object& object, bool complete, NodeNumber but, uint32_t count);
  void Leave(ObjectId object, NodeNumber node);

  Config config_;
  std::map<ObjectId, Object> objects_;
  std::map<NodeNumber, std::set<ObjectId>> by_node_;
};

}  // namespace weft::core
