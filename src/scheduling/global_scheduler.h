// Decides on which node of the cluster work runs that its own node could not serve. Pure: events in, actions out.
//
// Called by the head on its loop thread, and by the simulator. The caller performs the actions in order. It has no
// notion of time.
//
// A request is one process's need of so many leases of one shape, sent on by the local scheduler of the node that asks.
// A lease is placed on a node where it fits now; what fits nowhere waits here, not in a queue of some node, so that it
// goes wherever room appears first. The node's local scheduler then grants the leases, or refuses if the picture was
// stale.
//
// The picture of a node is its last report, less what was placed there since: placements are numbered per node, and a
// report says which of them it has in it. So two requests are never sent to one free CPU, whatever crosses on the wire.
// A node that refused gets nothing more before its next report.
//
// Which node, of those where it fits now: the best by bytes of arguments already there (in steps of a megabyte); then
// the one that asks; then nodes without GPUs, and without resources that users have named, for work that needs none;
// then the lowest load. SPREAD: the node on which the longest ago something was placed. Affinity: that node and no
// other while it is there and large enough; a soft one goes elsewhere if not, a hard one is refused. Labels say which
// nodes come into question at all.
//
// Whose turn, when room appears: deeper requests first, so that waiting parents can end; then the job that was served
// least; then the earliest. Nothing waits behind something larger. What was passed over too often has a node kept free
// for it, as far as that node's own work allows.
//
// Work of one shape, selector and strategy is one class. Each class has a tournament tree over the nodes, whose root is
// the best node that fits now: a decision costs O(log nodes) and a failing one O(1). Trees are mended lazily, when
// their class is asked for.
//
// Does not grant leases (LocalScheduler), know who lives (Membership), or choose workers.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "scheduling/resources.h"
#include "wire/ids.h"
#include "wire/labels.h"
#include "wire/messages.h"

namespace weft::core {

// Numbered by the node that asks, which never uses a number again.
struct RequestId {
  NodeNumber requester;
  uint64_t number = 0;
  auto operator<=>(const RequestId&) const = default;
};

inline constexpr uint64_t kArgumentStep = uint64_t{1} << 20;  // fewer bytes of arguments are no reason

struct PlacementStrategy {
  enum class Kind : uint8_t { kDefault = 0, kSpread = 1, kAffinity = 2 };
  Kind kind = Kind::kDefault;
  NodeNumber node;    // of kAffinity
  bool soft = false;  // of kAffinity
  auto operator<=>(const PlacementStrategy&) const = default;
};

// ---- events -----------------------------------------------------------------------------------------------------
struct NodeJoined {  // the amounts are valid (IsValidShape)
  NodeNumber node;
  ResourceAmounts total;
  ResourceAmounts available;
  std::vector<int64_t> free_gpus;  // of each GPU by number; may be empty if all are free
  NodeLabels labels;
};
// Sent when something has changed. What accepted placements and the node's own queue will take as soon as a worker is
// ready is not available any more. What it calls available it must be able to grant: a node that refuses with the same
// report again and again (because it cannot start workers, say) is asked again and again.
struct NodeReported {
  NodeNumber node;
  uint64_t placements_seen = 0;  // the highest number of a placement that the amounts take into account
  ResourceAmounts available;
  std::vector<int64_t> free_gpus;
  uint32_t leases = 0;                                       // held, and actors
  std::vector<std::pair<ResourceAmounts, uint32_t>> queued;  // requested there and not granted, per shape
};
struct NodeSuspected {  // nothing new is placed there, until it is trusted again; also for a node that is to be emptied
  NodeNumber node;
  bool suspected = true;
};
struct NodeLeft {
  NodeNumber node;
};
struct WorkRequested {  // lasts until it is withdrawn, refused, or its node has left; a request that is known is
                        // replaced
  RequestId request;
  ProcessId process;
  uint64_t job = 0;       // work of different jobs takes turns
  ResourceAmounts shape;  // valid
  uint32_t count = 0;
  uint32_t depth = 0;
  bool actor = false;  // for messages
  PlacementStrategy strategy;
  std::vector<std::pair<NodeNumber, uint64_t>> argument_bytes;  // only nodes that hold some
  LabelSelector labels;
};
struct RequestChanged {
  // The requester has heard of everything that was placed for the request.
  static constexpr int64_t kAllHeard = INT64_MAX;
  RequestId request;
  uint32_t count = 0;  // wanted besides what was heard
  // PlaceWork less UnplaceWork, in leases, of which the requester had heard: what is on its way is not placed again.
  int64_t assigned_heard = kAllHeard;
};
struct RequestWithdrawn {
  RequestId request;
};
struct PlacementRefused {  // by the node; a report with this placement in it follows, or came just before
  NodeNumber node;
  uint64_t placement = 0;
  RequestId request;
  uint32_t count = 0;  // of its leases
};

// ---- actions ----------------------------------------------------------------------------------------------------
struct PlaceWork {  // to the node: grant these leases or refuse them; to the requester: they are on their way
  RequestId request;
  NodeNumber node;
  uint64_t placement = 0;  // rises by one per node
  ProcessId process;
  ResourceAmounts shape;
  uint32_t count = 0;
  uint32_t depth = 0;
};
struct UnplaceWork {  // to the node, if it lives: forget what is not granted; to the requester: do not wait for them
  RequestId request;
  NodeNumber node;
  uint64_t placement = 0;
  uint32_t count = 0;
};
struct RefuseWork {  // the request is forgotten
  RequestId request;
  std::string why;
};
struct WarnInfeasible {  // no node could ever serve it; it goes on waiting, since one may join
  RequestId request;
  std::string why;
};
using GlobalAction = std::variant<PlaceWork, UnplaceWork, RefuseWork, WarnInfeasible>;

class GlobalScheduler {
 public:
  // Planted bugs, to show that the tests find them. All off outside tests.
  struct Faults {
    bool forget_debits = false;              // any report counts as if it had every placement in it
    bool forget_who_waits = false;           // a node that joins is offered nothing
    bool keep_trees = false;                 // what is placed does not change the order of the nodes
    bool lose_what_was_on_the_way = false;   // to a node that has left
    bool serve_in_order_of_arrival = false;  // jobs take no turns
  };

  GlobalScheduler();
  ~GlobalScheduler();
  GlobalScheduler(const GlobalScheduler&) = delete;
  GlobalScheduler& operator=(const GlobalScheduler&) = delete;

  void Handle(const NodeJoined& event, std::vector<GlobalAction>& out);
  void Handle(const NodeReported& event, std::vector<GlobalAction>& out);
  void Handle(const NodeSuspected& event, std::vector<GlobalAction>& out);
  void Handle(const NodeLeft& event, std::vector<GlobalAction>& out);
  void Handle(const WorkRequested& event, std::vector<GlobalAction>& out);
  void Handle(const RequestChanged& event, std::vector<GlobalAction>& out);
  void Handle(const RequestWithdrawn& event, std::vector<GlobalAction>& out);
  void Handle(const PlacementRefused& event, std::vector<GlobalAction>& out);

  size_t node_count() const { return node_count_; }
  size_t request_count() const { return request_count_; }
  uint64_t waiting_leases() const { return waiting_leases_; }
  // What a node has left of a resource, after what was placed there.
  int64_t FreeOf(NodeNumber node, std::string_view resource) const;
  uint32_t WaitingOf(RequestId request) const;
  // What waits, per shape: what a cluster would have to grow by.
  std::map<ResourceAmounts, uint64_t> WaitingByShape() const;

  void CheckInvariants() const;

  Faults faults;

 private:
  struct Class;
  struct Request;
  struct Node;
  struct ClassKey;
  struct Job {
    int64_t turn = 0;       // what it was served, on the scale of all jobs that wait
    uint32_t requests = 0;  // known
    uint32_t waiting = 0;   // of them
  };
  struct Placing {  // during one event: several leases of a request for one node become one action
    RequestId request;
    uint32_t slot = 0;
    uint32_t count = 0;
  };
  static constexpr uint32_t kNoSlot = UINT32_MAX;

  uint32_t SlotOf(NodeNumber node) const;
  Request* Find(RequestId id) const;
  uint32_t Intern(std::string_view name);
  void Release(uint32_t resource);

  Class& ClassFor(const ClassKey& key);
  void DropUse(Class& c);
  void Drop(Class& c);
  bool Possible(const Class& c, const Node& node) const;
  uint64_t RankOf(const Class& c, uint32_t slot) const;
  void Refresh(Class& c);
  void Grow(Class& c);
  void Touch(uint32_t slot);

  void Admit(const WorkRequested& event, std::vector<GlobalAction>& out);
  void SetWaiting(Request& request, uint32_t count);
  void Forget(Request& request, std::vector<GlobalAction>& out);
  void WarnIfInfeasible(Request& request, std::vector<GlobalAction>& out);
  std::string WhyInfeasible(const Class& c) const;

  uint32_t Choose(const Request& request);
  void PlaceOne(Request& request, uint32_t slot);
  void PlaceWhatFits(Request& request);
  Request* Front(Class& c);
  bool GoesBefore(const Request& a, const Request& b) const;
  // Gives room to who waits; what waits for one node alone is looked at only if that node has changed.
  void Pump();
  void PassOver(Class& c, uint32_t slot, const Class& by);
  void StopKeeping(Class& c);
  void Flush(std::vector<GlobalAction>& out);
  void TakeFrom(Node& node, const Class& c, uint32_t count);
  void Recount(Node& node);
  void SetReported(Node& node, const ResourceAmounts& available, const std::vector<int64_t>& gpus);

  std::vector<std::unique_ptr<Node>> nodes_;  // by slot; null: the slot is free
  std::vector<uint32_t> free_slots_;
  std::vector<uint32_t> slot_of_;  // by number; they are given out in order, so there are few that are gone
  size_t node_count_ = 0;
  size_t request_count_ = 0;

  struct Resource {
    std::string name;
    uint32_t uses = 0;
  };
  std::vector<Resource> resources_;
  std::vector<uint32_t> free_resources_;
  std::map<std::string, uint32_t, std::less<>> resource_of_;

  std::map<ClassKey, std::unique_ptr<Class>> classes_;
  std::vector<Class*> trees_;           // the classes that have a tree
  std::map<uint64_t, Class*> idle_;     // those that nobody uses, by when that began
  std::map<uint64_t, Class*> waiting_;  // those with a tree that have requests waiting, by number
  std::map<uint64_t, Job> jobs_;
  std::vector<Placing> placing_;
  std::vector<uint32_t> touched_;  // during one event: changed nodes that classes of their own wait for
  uint64_t next_arrival_ = 1;
  uint64_t next_class_ = 1;
  uint64_t stamp_ = 1;  // of idleness and of SPREAD
  uint64_t waiting_leases_ = 0;
  int64_t virtual_time_ = 0;  // the turn of the job served last
};

}  // namespace weft::core
