// A node's own view of its membership lease: until when it may believe that the head counts it as alive. Pure: events
// in, actions out.
//
// Called by Member, on its loop thread. Each event brings the time, from the node's own monotonic clock; next_wakeup_ns
// says when LeaseTicked is needed. After it has not run for a while, the caller handles LeaseTicked before anything
// else.
//
// The node sends a beat several times per lease; the head confirms each. The node counts from when it *sent* the last
// beat that was confirmed, and a little less than the head's lease, for clocks that differ in speed. At that end, or
// soon after the link to the head was lost and unless the head has ended, it freezes what the head could start
// elsewhere (actors, and tasks that may be retried): a node cannot tell a dead head from a partition. It thaws when a
// beat is confirmed again, and gives up what it has when it hears that it was declared dead.
//
// Every message of a head names its epoch. Those of an older head than the newest that was heard of are refused.
//
// Does not send, freeze or kill; see Membership for the head's side.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "wire/ids.h"

namespace weft::core {

// ---- events -----------------------------------------------------------------------------------------------------
struct HeadLinked {  // authenticated, nothing said yet; answers with SendJoin
  int64_t now_ns = 0;
};
struct HeadAccepted {
  uint64_t epoch = 0;
  uint64_t beat = 0;
  NodeNumber node;
  int64_t lease_ns = 0;
  int64_t now_ns = 0;
};
struct LeaseConfirmed {
  uint64_t epoch = 0;
  uint64_t beat = 0;
  int64_t now_ns = 0;
};
struct HeadLinkLost {
  int64_t now_ns = 0;
};
// The head that accepted us last does not listen any more, though its machine answers: its process has ended. Whoever
// takes its place waits for a whole lease before it takes anybody for dead, so ours counts, without a link. Only if
// that is seen soon after the loss of the link.
struct HeadEnded {
  int64_t now_ns = 0;
};
struct HeadDeclaredUsDead {
  uint64_t epoch = 0;
  std::string why;
  int64_t now_ns = 0;
};
struct LeaseTicked {
  int64_t now_ns = 0;
};

// ---- actions ----------------------------------------------------------------------------------------------------
struct SendJoin {  // with these and the node's description
  NodeNumber was;
  uint64_t epoch = 0;
  uint64_t beat = 0;
};
struct SendBeat {
  uint64_t beat = 0;
  uint64_t epoch = 0;
};
struct LinkToHead {  // make a link, again and again until there is one
};
struct FreezeWork {
  std::string why;
};
struct ThawWork {};
struct GiveUpWork {  // end all that it runs, take a new identity, and link to the head again
  std::string why;
};
using LeaseAction = std::variant<SendJoin, SendBeat, LinkToHead, FreezeWork, ThawWork, GiveUpWork>;

class NodeLease {
 public:
  struct Config {
    // After the loss of the link. Less than half of Membership's grace: the head may have noticed it a little before.
    int64_t freeze_after_link_loss_ns = 250'000'000;
  };
  // Planted bugs, to show that the tests find them. All off outside tests.
  struct Faults {
    bool count_from_confirmation = false;  // from when the answer came, not from when the beat was sent
    bool obey_any_head = false;
    bool keep_former_lease = false;   // the end that an earlier head has allowed counts at the next, too
    bool go_on_without_link = false;  // until the lease ends, though the head believes in the link's end sooner
  };

  NodeLease() = default;
  explicit NodeLease(Config config) : config_(config) {}

  void Handle(const HeadLinked& event, std::vector<LeaseAction>& out);
  void Handle(const HeadAccepted& event, std::vector<LeaseAction>& out);
  void Handle(const LeaseConfirmed& event, std::vector<LeaseAction>& out);
  void Handle(const HeadLinkLost& event, std::vector<LeaseAction>& out);
  void Handle(const HeadEnded& event, std::vector<LeaseAction>& out);
  void Handle(const HeadDeclaredUsDead& event, std::vector<LeaseAction>& out);
  void Handle(const LeaseTicked& event, std::vector<LeaseAction>& out);

  // Whether a message of a head with this epoch is to be obeyed.
  bool Accepts(uint64_t epoch) const { return epoch >= epoch_ || faults.obey_any_head; }
  int64_t next_wakeup_ns() const;
  NodeNumber node() const { return node_; }
  uint64_t epoch() const { return epoch_; }
  bool frozen() const { return frozen_; }
  // Until when it holds, on the node's clock.
  int64_t end_ns() const { return end_ns_; }

  void CheckInvariants() const;

  Faults faults;

 private:
  bool Adopt(uint64_t epoch);
  void Confirm(uint64_t beat, int64_t now_ns);
  void Judge(int64_t now_ns, std::vector<LeaseAction>& out);
  void Beat(int64_t now_ns, std::vector<LeaseAction>& out);

  Config config_;
  NodeNumber node_;
  uint64_t epoch_ = 0;
  int64_t lease_ns_ = 0;
  bool linked_ = false;
  bool accepted_ = false;  // over this link
  bool frozen_ = false;
  int64_t end_ns_ = 0;               // of the lease
  int64_t lost_end_ns_ = INT64_MAX;  // of what is allowed without a link
  uint64_t last_beat_ = 0;
  int64_t next_beat_ns_ = INT64_MAX;
  std::map<uint64_t, int64_t> sent_;  // beats that are not confirmed, and when they were sent
};

}  // namespace weft::core
