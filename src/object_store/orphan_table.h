// Decides when the objects of dead owners are freed. Pure: events in, actions out.
//
// Called by the node daemon, on its loop thread. Actions are performed by the caller, in order. An *orphan* is a sealed
// object in a segment of this node whose owner is dead. A *holder* has a reference to it or a view of it: a process of
// this node, or another node, named by the number of its daemon, for all of its processes.
//
// No process counts the references of a dead owner's objects, so the daemon asks: with the first orphan of an owner it
// asks every possible holder. Each answers once with what it has of that owner. From then on a holder may let go of
// orphans, and says so, or get one that is first registered here (HoldBegan). So the table never knows less than a
// holder has, and an orphan that no holder has once all have answered can be freed. A reference that is on its way from
// one process to another meanwhile does no harm: the receiver registers before it looks at the bytes.
//
// For other nodes it answers what the processes of this one hold of objects that lie there (NodeAsked).
//
// What if a process dies here: one that was asked and has not answered, or holds something, counts until HolderLeft,
// which must come when none of its mappings can be used any more. A stopped process (SIGSTOP) keeps everything.
//
// Does not talk to processes, touch memory, or know whether an owner is dead: the caller that reports an orphan does.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <variant>
#include <vector>

#include "wire/ids.h"

namespace weft::core {

class OrphanTable {
 public:
  // ---- events
  struct Found {  // objects of dead owners; known ones change nothing
    std::vector<SealedObject> objects;
  };
  struct HolderJoined {  // a process that can be asked, or another node; a known one changes nothing
    ProcessId holder;
  };
  struct HolderLeft {
    ProcessId holder;
  };
  struct Answered {
    ProcessId holder;
    ProcessId owner;
    std::vector<uint64_t> indexes;
    bool more = false;  // another part of the same answer follows
  };
  struct HoldBegan {
    ProcessId holder;
    ObjectId object;
  };
  struct HoldsEnded {
    ProcessId holder;
    ProcessId owner;
    std::vector<uint64_t> indexes;
  };
  struct NodeAsked {  // by another node's daemon
    ProcessId node;
    ProcessId owner;
  };
  struct SegmentForgotten {  // with all its objects
    SegmentId segment;
  };

  // ---- actions
  struct Ask {
    ProcessId holder;
    ProcessId owner;
    bool operator==(const Ask&) const = default;
  };
  struct Free {
    std::vector<Location> locations;
    bool operator==(const Free&) const = default;
  };
  struct AnswerNode {  // the answer to NodeAsked
    ProcessId node;
    ProcessId owner;
    std::vector<uint64_t> indexes;
    bool operator==(const AnswerNode&) const = default;
  };
  struct TellNodeEnded {  // no process here has these any more, which were in the answer
    ProcessId node;
    ProcessId owner;
    std::vector<uint64_t> indexes;
    bool operator==(const TellNodeEnded&) const = default;
  };
  using Action = std::variant<Ask, Free, AnswerNode, TellNodeEnded>;

  void Handle(const Found& event, std::vector<Action>& out);
  void Handle(const HolderJoined& event, std::vector<Action>& out);
  void Handle(const HolderLeft& event, std::vector<Action>& out);
  void Handle(const Answered& event, std::vector<Action>& out);
  void Handle(const HoldBegan& event, std::vector<Action>& out);
  void Handle(const HoldsEnded& event, std::vector<Action>& out);
  void Handle(const NodeAsked& event, std::vector<Action>& out);
  void Handle(const SegmentForgotten& event, std::vector<Action>& out);

  size_t orphan_count() const;
  size_t owner_count() const { return owners_.size(); }
  void CheckInvariants() const;

 private:
  struct Asking {  // a node that wants to know
    bool told = false;
    std::set<uint64_t> indexes;  // that it believes to be held here
  };
  struct Owner {
    std::map<uint64_t, std::set<Location>> orphans;  // by index; a task that ran twice may have left its result twice
    std::set<ProcessId> asked;
    std::set<ProcessId> unanswered;  // of them
    std::map<uint64_t, std::set<ProcessId>> holders;
    std::map<ProcessId, Asking> asking;
  };

  static bool IsNode(ProcessId holder) { return holder == DaemonOf(NodeOf(holder)); }
  static bool HeldHere(const Owner& owner, uint64_t index);
  void AskAll(ProcessId id, Owner& owner, bool nodes, std::vector<Action>& out);
  static void TakeUnheld(Owner& owner, uint64_t index, std::vector<Location>& freed);
  static void LetGo(Owner& owner, uint64_t index, ProcessId holder);
  // Frees what may be freed, answers the processes that can be answered, and forgets owners that no longer matter.
  void Consider(std::map<ProcessId, Owner>::iterator owner, std::vector<Action>& out);
  void ConsiderIndexes(std::map<ProcessId, Owner>::iterator owner, const std::vector<uint64_t>& indexes,
                       std::vector<Action>& out);
  void ForgetIfDone(std::map<ProcessId, Owner>::iterator owner);

  std::set<ProcessId> living_;  // processes that can hold something
  std::map<ProcessId, Owner> owners_;
};

}  // namespace weft::core
