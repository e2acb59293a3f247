// Decides which objects of other nodes this node keeps copies of, and until when. Pure: events in, actions out.
//
// Called by the node daemon (node/object_exchange.h) on its loop thread. The caller performs the actions in order; it
// may feed further events while it does so, whose actions are performed before the rest.
//
// An object is named by the location of its primary copy. For the first process that wants it, room is made and the
// object is pulled. Processes that come meanwhile wait for the same pull, and later ones get the copy that is there. An
// unused copy stays, since the next process may want it, until its object is freed, the node of the primary copy is
// gone (as long as the caller sees fit), or room is needed: then the copy that was unused longest goes first.
//
// The place of a copy is freed only when no chunk of it is being sent. Until then it is leaving, and a process that
// wants the object again waits. Every CopyWanted is answered exactly once, by TellFetched or TellUnfetchable, unless it
// was withdrawn or its process died.
//
// Does not move bytes (PullPlan), serve others (ChunkServer), allocate, or know about time.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "wire/ids.h"

namespace weft::core {

// ---- events -----------------------------------------------------------------------------------------------------
struct CopyWanted {
  ProcessId process;
  uint64_t request = 0;  // the process's number
  Location object;
};
struct CopyUnwanted {  // or no longer used
  ProcessId process;
  uint64_t request = 0;
};
struct CopyUserDied {
  ProcessId process;
};
struct RoomMade {
  Location object;
  Location place;
};
struct RoomRefused {
  Location object;
  std::string error;  // for the waiting processes, a system error
};
struct CopyCompleted {
  Location object;
};
struct CopyFailed {
  Location object;
  std::string error;
};
struct OriginFreed {
  Location object;
};
struct HomeLost {
  NodeNumber node;
};
struct SendingBegan {  // of a chunk of the copy
  Location object;
};
struct SendingEnded {
  Location object;
};
struct RoomNeeded {
  uint64_t bytes = 0;
};

// ---- actions ----------------------------------------------------------------------------------------------------
struct MakeRoom {  // answered by RoomMade or RoomRefused
  Location object;
};
struct BeginPull {  // answered by CopyCompleted or CopyFailed, unless WithdrawCopy comes first
  Location object;
  Location place;
};
struct WithdrawCopy {  // stop pulling and offering it, and tell the node of the primary copy
  Location object;
};
struct FreePlace {
  Location object;
  Location place;
};
struct TellFetched {
  ProcessId process;
  uint64_t request = 0;
  Location place;
};
struct TellUnfetchable {
  ProcessId process;
  uint64_t request = 0;
  std::string error;
  Location object;
};
using CopyAction = std::variant<MakeRoom, BeginPull, WithdrawCopy, FreePlace, TellFetched, TellUnfetchable>;

class CopyTable {
 public:
  // Planted bugs, to show that the tests find them. All off outside tests.
  struct Faults {
    bool free_what_is_sent = false;
    bool forget_the_dead = false;
    bool drop_the_youngest = false;
  };

  void Handle(const CopyWanted& event, std::vector<CopyAction>& out);
  void Handle(const CopyUnwanted& event, std::vector<CopyAction>& out);
  void Handle(const CopyUserDied& event, std::vector<CopyAction>& out);
  void Handle(const RoomMade& event, std::vector<CopyAction>& out);
  void Handle(const RoomRefused& event, std::vector<CopyAction>& out);
  void Handle(const CopyCompleted& event, std::vector<CopyAction>& out);
  void Handle(const CopyFailed& event, std::vector<CopyAction>& out);
  void Handle(const OriginFreed& event, std::vector<CopyAction>& out);
  void Handle(const HomeLost& event, std::vector<CopyAction>& out);
  void Handle(const SendingBegan& event, std::vector<CopyAction>& out);
  void Handle(const SendingEnded& event, std::vector<CopyAction>& out);
  // Drops unused copies, the oldest first, until so much is freed or none is left.
  void Handle(const RoomNeeded& event, std::vector<CopyAction>& out);

  bool empty() const { return copies_.empty(); }
  size_t size() const { return copies_.size(); }
  size_t unused() const { return unused_.size(); }
  bool IsComplete(const Location& object) const;
  // A copy is here, or will be, or is just leaving.
  bool Has(const Location& object) const { return copies_.contains(object); }

  void CheckInvariants() const;

  Faults faults;

 private:
  using Use = std::pair<ProcessId, uint64_t>;
  enum class Stage : uint8_t { kMakingRoom, kPulling, kComplete, kLeaving };
  struct Copy {
    Stage stage = Stage::kMakingRoom;
    Location place;
    std::set<Use> waiting;  // for the pull, or until a leaving copy is gone
    std::set<Use> users;
    uint32_t sending = 0;
    uint64_t unused_since = 0;  // in unused_; 0: not there
    bool forsaken = false;      // its object is freed, or the primary copy's node gone: goes with its last user
  };
  using Copies = std::map<Location, Copy>;

  void Consider(Copies::iterator copy, std::vector<CopyAction>& out);
  void Leave(Copies::iterator copy, std::vector<CopyAction>& out);
  void LeaveIfUnsent(Copies::iterator copy, std::vector<CopyAction>& out);
  void EndUse(const Use& use, std::vector<CopyAction>& out);
  void FailWaiting(Copy& copy, const std::string& error, std::vector<CopyAction>& out);

  Copies copies_;
  std::map<Use, Location> uses_;  // waiting and using
  std::map<uint64_t, Location> unused_;
  uint64_t next_unused_ = 1;
};

}  // namespace weft::core
