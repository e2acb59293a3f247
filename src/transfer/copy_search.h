// Looks for a copy of an object after the node of its primary copy is gone, by asking the other nodes what they have of
// it. Pure: events in, actions out.
//
// Called by the node daemon (node/object_exchange.h) on its loop thread. The node of the primary copy knows which nodes
// have copies. When it is gone no node knows, so all are asked, once per object, however many processes want it here.
// The first node that has all of it ends the search. The search waits for a node that is still pulling it: that node
// says when it has all, or has given up. A node that only searches has nothing to offer, so searches do not wait for
// each other.
//
// Does not pull (PullPlan), keep copies (CopyTable), or know about time: the caller ends a search that takes too long.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "wire/ids.h"

namespace weft::core {

// ---- events -----------------------------------------------------------------------------------------------------
struct CopySought {
  ProcessId process;  // 0: a pull that has lost its sources
  uint64_t request = 0;
  Location object;
  std::vector<NodeNumber> nodes;  // to ask, if no search for the object has begun yet
};
struct HolderAnswered {
  Location object;  // segment and generation only, if the node has nothing
  NodeNumber node;
  bool complete = false;
  bool gone = false;  // it has nothing of it
};
struct SeekerLeft {
  ProcessId process;
  uint64_t request = 0;
};
struct SeekerDied {
  ProcessId process;
};
struct AskedNodeLost {
  NodeNumber node;
};
struct SearchTimedOut {
  Location object;
};

// ---- actions ----------------------------------------------------------------------------------------------------
struct AskHolder {  // answered by HolderAnswered or AskedNodeLost
  NodeNumber node;
  Location object;
};
struct EndSearch {
  Location object;
  NodeNumber holder;  // has all of it; 0: no node does
  std::vector<std::pair<ProcessId, uint64_t>> seekers;
  bool for_pull = false;
};
using SearchAction = std::variant<AskHolder, EndSearch>;

class CopySearch {
 public:
  void Handle(const CopySought& event, std::vector<SearchAction>& out);
  void Handle(const HolderAnswered& event, std::vector<SearchAction>& out);
  void Handle(const SeekerLeft& event, std::vector<SearchAction>& out);
  void Handle(const SeekerDied& event, std::vector<SearchAction>& out);
  void Handle(const AskedNodeLost& event, std::vector<SearchAction>& out);
  void Handle(const SearchTimedOut& event, std::vector<SearchAction>& out);

  size_t size() const { return searches_.size(); }

 private:
  // A segment's generations name its objects; the rest of a location may be missing in an answer.
  using Key = std::pair<SegmentId, uint64_t>;
  struct Search {
    Location object;
    std::set<std::pair<ProcessId, uint64_t>> seekers;
    bool for_pull = false;
    std::set<NodeNumber> awaited;
  };
  using Searches = std::map<Key, Search>;

  static Key KeyOf(const Location& object) { return {object.segment, object.generation}; }
  Searches::iterator End(Searches::iterator search, NodeNumber holder, std::vector<SearchAction>& out);

  Searches searches_;
};

}  // namespace weft::core
