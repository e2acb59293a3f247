// The graph of waits, as far as one process has asked: decides which question to ask next and whether the wait that it
// began with can end, and describes it. Pure: no thread, clock or socket; facts come in, questions and a verdict go
// out.
//
// Called by Runtime under its lock (runtime_explain.cc) and by tests. One WaitGraph is one traversal: begin it, ask
// every question that NextQuestion gives, and pass in the answers, in any order, until none is open; then Judge. An
// answer that does not come is simply left out.
//
// What can go on. A node *may go on* unless the facts show that it cannot. A thread in get needs all its objects; a
// thread in wait needs as many as it wants. An object needs its task. The task needs all its arguments, or that its
// running body goes on, or (a call to an actor) a slot of the actor, or a worker with the resources that it asks for.
// Resources can be had if there are enough without those held by nodes that cannot go on; waiting tasks lend their
// CPUs, so CPUs never lack. Everything unknown may go on: a body that does not wait, a wait with a timeout, a task on
// its way to or from its worker, a process that did not answer, an idle actor (its handle may be dropped), anything
// beyond the limits. So the nodes that may go on are the least set with these rules, and the rest is stuck.
//
// Why a verdict of kDeadlock is never false. Facts are gathered one by one while the world goes on, so one traversal
// may see a circle that never was. Therefore there is a second one, which begins after the first has ended and is
// judged with the proof of the first: a fact counts only if both saw it. Every such fact has a number that is never
// used again (a wait, the run of a task, a lease, a task between two pushes) or cannot become true again once it was
// false (an object without a value). So it was true all the time between its two sightings, and all facts were true at
// once at the instant between the traversals. From then on, the first of the stuck nodes to go on would need another
// one that went on before: there is none. Replies are no exception: an owner reads its rings before it answers, so a
// reply written before the first traversal ended is known in the second. Only something from outside can help: a kill,
// a cancel, the death of a process. The error claims only that the wait cannot end by itself.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "wire/ids.h"
#include "wire/wait_facts.h"

namespace weft::core {

struct WaitQuestion {
  enum class Kind : uint8_t { kObject, kProcess, kShape } kind = Kind::kObject;
  ObjectId object;        // kObject: to its owner; kProcess: its owner is the process, and the index 0
  ResourceAmounts shape;  // kShape: to the daemon
};

// The facts behind a verdict of stuck; each is a kind and the numbers that name it.
using WaitProof = std::set<std::array<uint64_t, 5>>;

struct WaitVerdict {
  enum class Kind : uint8_t {
    kMayGoOn,        // or not enough is known
    kStuck,          // a deadlock if two traversals in a row say so
    kUnschedulable,  // it waits for resources that do not exist
  } kind = Kind::kMayGoOn;
  bool in_circle = false;  // it is part of the circle, and does not only wait for it
  std::string chain;       // kStuck, kUnschedulable: one line of text
  WaitProof proof;
};

class WaitGraph {
 public:
  // Begins with a waiting thread of `process`. `from_outside`: another process asks, so the text must name the thread.
  WaitGraph(ProcessId process, WaitFact wait, bool from_outside = false);
  // Begins with an object, to explain it.
  explicit WaitGraph(ObjectId object);

  // A second traversal from the same beginning.
  WaitGraph Again() const { return has_wait_ ? WaitGraph(process_, wait_, from_outside_) : WaitGraph(object_); }

  // A question that was not given before; false if there is none at the moment.
  bool NextQuestion(WaitQuestion* question);
  void Answer(ObjectFact fact);
  void Answer(ProcessFact fact);
  void Answer(ShapeFact fact);

  // With the facts so far. `earlier`: the proof of a traversal that ended before this one began, or nullptr.
  WaitVerdict Judge(const WaitProof* earlier);
  // The result as one line, and as many. After Judge.
  std::string Line() const;
  std::string Text() const;

  // No more questions than these; what was not asked may go on.
  size_t max_questions = 10'000;

 private:
  enum class NodeKind : uint8_t { kObject, kWait, kSlots, kShape };
  struct Node {
    NodeKind kind = NodeKind::kObject;
    ObjectId object;        // kObject
    ProcessId process;      // kWait, kSlots
    uint64_t wait = 0;      // kWait
    std::string group;      // kSlots; "*": all
    ResourceAmounts shape;  // kShape
    std::vector<int> children;
    std::vector<int> holders;  // kShape: which of the fact's holders the children are
    std::vector<int> parents;
    int64_t required = 0;          // children that must be able to go on
    int64_t able = 0;              // children that are
    std::vector<int64_t> lacking;  // kShape: per resource, what would be missing if all children stayed stuck
    bool free = false;             // may go on
  };

  void Ask(ObjectId object);
  void AskProcess(ProcessId process);
  void AskShape(const ResourceAmounts& shape);
  int NodeOf(NodeKind kind, ObjectId object, ProcessId process, uint64_t wait, const std::string& group,
             const ResourceAmounts& shape);
  void Build(int number, const WaitProof* earlier);
  const WaitFact* FindWait(ProcessId process, uint64_t wait) const;
  const WaitFact* FindRun(ProcessId worker, ProcessId submitter, uint64_t task) const;
  std::array<uint64_t, 5> IdentityOf(const Node& node) const;
  std::vector<int> PathFromRoot(bool stuck, bool* circle) const;
  std::string Sentence(const std::vector<int>& path, bool repeats) const;
  std::string NameOf(ObjectId object) const;
  std::string PidOf(ProcessId process) const;
  std::string Place(const ObjectFact& fact) const;  // where a task is that was pushed to a worker
  std::string WhoWaits(const Node& node) const;
  void Write(int number, int depth, std::set<int>& written, std::string& out, size_t& lines) const;

  const bool has_wait_;
  const ProcessId process_;  // of the wait
  const WaitFact wait_;
  const bool from_outside_;
  const ObjectId object_;  // if there is no wait
  std::deque<WaitQuestion> to_ask_;
  size_t asked_ = 0;
  std::map<ObjectId, ObjectFact> objects_;
  std::map<ProcessId, ProcessFact> processes_;
  std::map<ResourceAmounts, ShapeFact> shapes_;
  std::set<ObjectId> asked_objects_;
  std::set<ProcessId> asked_processes_;
  std::set<ResourceAmounts> asked_shapes_;
  std::vector<Node> nodes_;
  std::map<ObjectId, int> object_nodes_;
  std::map<std::pair<ProcessId, uint64_t>, int> wait_nodes_;
  std::map<std::pair<ProcessId, std::string>, int> slot_nodes_;
  std::map<ResourceAmounts, int> shape_nodes_;
  int root_ = -1;
};

}  // namespace weft::core
