// Knows which nodes belong to the cluster and which of them live. Pure: events in, actions out.
//
// Called by Head, on its loop thread. The caller performs the actions in order, and persists AcceptNode and DeclareDead
// before any node hears of them. Each event brings the time, from the head's own monotonic clock; next_wakeup_ns says
// when MembershipTicked is needed. No other clock matters: only durations and the numbers of beats travel.
//
// A node keeps its membership by sending beats. The head counts the membership lease from the arrival of a beat; the
// node (NodeLease) counts a shorter one from when it sent the last beat that was confirmed. So a node knows that it may
// be declared dead before the head does it, whatever the network does in between.
//
// A node is alive; suspected, when its link is closed; awaited, after a restart of the head; or dead, which is final:
// its number is forgotten and never given out again. Silence longer than the lease is death. A link that the peer
// closed (its kernel said so: the daemon has ended or has closed the link itself, and then its NodeLease knows) is
// death after a short grace, unless the node is back; a link that broke on our side proves nothing, and the lease
// decides. A restarted head waits one lease for those that it knows from before.
//
// Nodes report which others they cannot reach, and when they can again. A process that waits for such a node would wait
// for ever, so one node of the pair must go: not the head; the one that more nodes have this trouble with; else the one
// that joined later. The head judges a moment after the complaint, when others have had time to complain too, and a
// moment after both have sent a beat: the lease deals with a node that hangs or is cut off. The node that must go is
// *expelled*: it is told to give up what it runs, and its beats are not confirmed any more. It is dead when it has
// closed its link itself, or when its lease has ended; not before. Its name is let in again after a pause, twice as
// long each time, so that a node behind a bad cable does not come and go all the time.
//
// The head's own absence is nobody's fault: if it did not run for a while, all deadlines move by that much.
// While a short grace runs, it looks often enough to notice a short absence too, and lets the grace begin again.
//
// Each head has an epoch, higher than all before. A head that hears of a higher epoch than its own is the head no
// longer (StepDown).
//
// Does not open links, authenticate (the handshake has), choose epochs, or store anything.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "wire/ids.h"
#include "wire/node_description.h"

namespace weft::core {

// ---- events -----------------------------------------------------------------------------------------------------
struct MembersRestored {  // once, before all others, by a head that reads an earlier one's tables
  std::vector<std::pair<NodeNumber, NodeDescription>> members;
  NodeNumber next;       // the first number that was never given out
  int64_t lease_ns = 0;  // the longest that they may have from earlier heads
  int64_t now_ns = 0;
};
// After MembersRestored: from now on it lets nodes join. Until then, be it for long because the control store is away,
// none can come back, and so none is given up.
struct JoiningBegan {
  int64_t now_ns = 0;
};
struct JoinAsked {     // over a link that is authenticated
  uint64_t link = 0;   // the caller's name for it; never used again
  NodeNumber was;      // the number that it had from an earlier head or over an earlier link; 0: none
  uint64_t epoch = 0;  // of the newest head that it has heard of
  uint64_t beat = 0;   // joining is a beat, too
  uint32_t protocol = 0;
  NodeDescription node;
  int64_t now_ns = 0;
  bool own = false;  // the head's own membership
};
struct BeatCame {
  uint64_t link = 0;
  uint64_t beat = 0;
  uint64_t epoch = 0;
  int64_t now_ns = 0;
};
struct MemberLinkClosed {
  uint64_t link = 0;
  bool by_peer = false;  // end of stream or reset, as against an error or a decision of our own
  int64_t now_ns = 0;
};
struct GoodbyeCame {  // the node has ended its work and leaves
  uint64_t link = 0;
  int64_t now_ns = 0;
};
struct UnreachableSaid {
  NodeNumber by;
  NodeNumber node;
  int64_t for_ns = 0;  // already
  std::string why;
  int64_t now_ns = 0;
};
struct ReachableSaid {  // again
  NodeNumber by;
  NodeNumber node;
  int64_t now_ns = 0;
};
struct MembershipTicked {
  int64_t now_ns = 0;
};

// ---- actions ----------------------------------------------------------------------------------------------------
struct AcceptNode {
  uint64_t link = 0;
  NodeNumber node;
  uint64_t epoch = 0;
  uint64_t beat = 0;
  int64_t lease_ns = 0;
  bool again = false;  // it is known, and keeps what it had
};
struct RefuseNode {  // then the link is closed
  enum class Kind : uint8_t {
    kProtocol,
    kNameTaken,
    kTryAgain,      // after wait_ns: the name's former holder is about to be declared dead, or was expelled
    kDeclaredDead,  // it must give up all that it had, and join as a new one
    kInvalid,
    kFull,
    kNotTheHead,
  };
  uint64_t link = 0;
  Kind kind = Kind::kInvalid;
  std::string why;
  int64_t wait_ns = 0;
};
struct ConfirmLease {
  uint64_t link = 0;
  uint64_t epoch = 0;
  uint64_t beat = 0;
};
struct CloseMemberLink {  // a newer one has taken its place, or its node is dead
  uint64_t link = 0;
};
struct SuspectNode {  // start nothing new there
  NodeNumber node;
};
struct TrustNode {  // it is back
  NodeNumber node;
};
struct ExpelNode {  // tell it over this link to give up all that it has; it closes the link then
  uint64_t link = 0;
  NodeNumber node;
  std::string name;
  std::string why;
};
struct DeclareDead {
  NodeNumber node;
  std::string name;
  std::string why;
  bool goodbye = false;
};
struct StepDown {  // there is a newer head: decide nothing any more
  uint64_t epoch = 0;
};
using MembershipAction = std::variant<AcceptNode, RefuseNode, ConfirmLease, CloseMemberLink, SuspectNode, TrustNode,
                                      ExpelNode, DeclareDead, StepDown>;

class Membership {
 public:
  struct Config {
    uint64_t epoch = 1;
    uint32_t protocol = 0;
    int64_t lease_ns = 10'000'000'000;
    int64_t grace_ns = 600'000'000;  // a dead daemon is noticed within a second; a lost link is replaced in less
    // From a complaint until it is judged: links to one node end within a second and a quarter of each other.
    int64_t gather_ns = 1'500'000'000;
    // And since both are known to run: one that had stood still has links again by then, and the complaint is taken
    // back.
    int64_t settle_ns = 1'200'000'000;
    // How long one that was expelled stays out: the first time, at most, and how long after that it counts as new.
    int64_t first_pause_ns = 10'000'000'000;
    int64_t last_pause_ns = 300'000'000'000;
    int64_t forget_ns = 600'000'000'000;
    size_t max_nodes = 65'536;
  };
  enum class State : uint8_t { kAlive, kSuspected, kAwaited, kExpelled };
  struct Member {
    NodeDescription description;
    State state = State::kAlive;
    uint64_t link = 0;  // 0: none
    int64_t deadline_ns = 0;
    int64_t last_beat_ns = 0;
    bool own = false;
    std::string why;  // it was expelled
  };

  // Planted bugs, to show that the tests find them. All off outside tests.
  struct Faults {
    bool confirm_the_dead = false;         // beats of nodes that were declared dead are confirmed
    bool declare_at_once = false;          // a restarted head does not wait for those it knows
    bool forget_former_lease = false;      // it waits for them as long as its own lease is
    bool believe_any_closed_link = false;  // the short grace, whoever closed it
    bool ignore_own_absence = false;
    bool confirm_the_expelled = false;
    bool declare_the_expelled_at_once = false;
    bool expel_both = false;
    bool never_take_back = false;  // complaints
    bool ignore_complaints = false;
  };

  explicit Membership(Config config) : config_(config) {}

  void Handle(const MembersRestored& event, std::vector<MembershipAction>& out);
  void Handle(const JoiningBegan& event, std::vector<MembershipAction>& out);
  void Handle(const JoinAsked& event, std::vector<MembershipAction>& out);
  void Handle(const BeatCame& event, std::vector<MembershipAction>& out);
  void Handle(const MemberLinkClosed& event, std::vector<MembershipAction>& out);
  void Handle(const GoodbyeCame& event, std::vector<MembershipAction>& out);
  void Handle(const UnreachableSaid& event, std::vector<MembershipAction>& out);
  void Handle(const ReachableSaid& event, std::vector<MembershipAction>& out);
  void Handle(const MembershipTicked& event, std::vector<MembershipAction>& out);

  // INT64_MAX if there is nobody.
  int64_t next_wakeup_ns() const;
  const std::map<NodeNumber, Member>& members() const { return members_; }
  NodeNumber next_number() const { return next_; }
  bool deposed() const { return deposed_; }
  // Of a member that is linked; 0 if it is none.
  NodeNumber NodeOf(uint64_t link) const;

  void CheckInvariants() const;

  Faults faults;

 private:
  void Advance(int64_t now_ns);
  void SetDeadline(NodeNumber node, Member& member, int64_t deadline_ns);
  void Attach(NodeNumber node, Member& member, const JoinAsked& event, std::vector<MembershipAction>& out);
  void DeclareNodeDead(NodeNumber node, std::string why, bool goodbye, std::vector<MembershipAction>& out);
  bool HeardOfNewer(uint64_t epoch, std::vector<MembershipAction>& out);
  void Judge(std::vector<MembershipAction>& out);
  size_t TroubleOf(NodeNumber node) const;
  void Expel(NodeNumber node, std::string why, std::vector<MembershipAction>& out);

  struct Complaint {
    int64_t said_ns = 0;
    int64_t for_ns = 0;
    std::string why;
    int64_t both_ns = INT64_MAX;  // when both had sent a beat since
  };
  int64_t JudgedAtNs(const Complaint& complaint) const;
  struct Pause {  // of one that was expelled
    int64_t length_ns = 0;
    int64_t until_ns = 0;
    std::string why;
  };

  Config config_;
  std::map<NodeNumber, Member> members_;
  std::map<NodeIdentity, NodeNumber> by_identity_;
  std::map<std::string, NodeNumber> by_name_;
  std::map<uint64_t, NodeNumber> by_link_;
  std::set<std::pair<int64_t, NodeNumber>> deadlines_;
  std::map<std::pair<NodeNumber, NodeNumber>, Complaint> complaints_;  // by whom, and of whom; both are members
  std::map<std::string, Pause> pauses_;                                // by name
  NodeNumber next_{1};
  int64_t now_ns_ = 0;
  int64_t former_lease_ns_ = 0;  // of those that were restored
  bool started_ = false;         // now_ns_ is known
  bool joining_ = true;          // nodes may come
  bool deposed_ = false;
};

}  // namespace weft::core
