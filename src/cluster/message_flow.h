// The messages from one node daemon to another: each arrives once and in order, whichever links break.
// Pure: events in, actions out.
//
// Member has one for each other node. It belongs to one pair of lives: a daemon that starts again has another number,
// and the flow with the former one is dropped with what was in it.
//
// Messages are numbered from 1 in each direction, and both sides count: nothing is added to a message on the wire. Over
// each link the receiver first says how many it has taken (FlowTaken); the sender forgets those and goes on with the
// next one. So the messages on a link have numbers, and the receiver skips those that it took before, over another
// link. Later the receiver repeats how many it has taken, after some messages or bytes or a moment after the last, but
// only for messages of that same link, since the sender counts on from there. The sender keeps unconfirmed messages.
//
// The sender uses one link at a time, the newest. News of older links no longer matter.
//
// What is kept is bounded by pushing back: above `limit_bytes` the caller must not accept more from the processes that
// write (crowded()). A full flow is no sign that the other node is dead. Only the head decides that: if one node acted
// on it and the other did not, an actor could live twice. Messages of the daemon itself are still accepted.
//
// A flow that is needed (something was written, or the caller says so) is connected again whenever its link has ended,
// also if nothing is kept: a process that waits for the other's answer must hear that it cannot come. If connecting
// fails for a while, the caller tells the head (ComplainOfOther), which decides which of the two must go.
//
// Does not know what the messages are, and carries no chunks of objects: those are requested again (ObjectExchange).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace weft::core {

// ---- events -----------------------------------------------------------------------------------------------------
struct MessageWritten {  // for the other node
  std::string bytes;
  int64_t now_ns = 0;
};
struct FlowNeeded {  // something other than messages depends on the other node
  int64_t now_ns = 0;
};
struct FlowLinkOpened {
  uint64_t link = 0;  // the caller's name for it; never used again
  bool sends = false;
  bool takes = false;
  int64_t now_ns = 0;
};
struct FlowLinkClosed {  // or no longer to be used
  uint64_t link = 0;
  int64_t now_ns = 0;
};
struct ConnectingFailed {  // what ConnectFlow asked for
  int64_t now_ns = 0;
};
struct MessagePassed {  // the link has taken Next()
};
struct FlowLinkFull {  // it has not; nothing is passed until it has room
};
struct FlowLinkDrained {
  uint64_t link = 0;
};
struct TakenHeard {
  uint64_t link = 0;
  uint64_t through = 0;
};
struct MessageArrived {
  uint64_t link = 0;
  uint64_t bytes = 0;
  int64_t now_ns = 0;
};
struct FlowTicked {
  int64_t now_ns = 0;
};

// ---- actions ----------------------------------------------------------------------------------------------------
struct PassMessages {  // Next(), as long as there is one and the link takes it
  uint64_t link = 0;
};
struct TakeMessage {  // the one that has just arrived; without this action it was taken before
};
struct SayTaken {
  uint64_t link = 0;
  uint64_t through = 0;
};
struct ConnectFlow {  // FlowLinkOpened or ConnectingFailed follows
};
struct BreakFlowLink {  // the other node says something impossible
  uint64_t link = 0;
  std::string why;
};
struct ComplainOfOther {  // it is needed, and could not be reached since then
  int64_t since_ns = 0;
};
struct TakeBackComplaint {};
using FlowAction =
    std::variant<PassMessages, TakeMessage, SayTaken, ConnectFlow, BreakFlowLink, ComplainOfOther, TakeBackComplaint>;

class MessageFlow {
 public:
  struct Config {
    bool connects = true;  // false: links come from elsewhere (those between the head and its members)
    uint64_t limit_bytes = 64 << 20;
    // After so much, or so long after the first message of it, the sender is told what was taken.
    uint64_t told_messages = 64;
    uint64_t told_bytes = 1 << 20;
    int64_t told_ns = 20'000'000;
    // Pauses between attempts to connect, doubled each time.
    int64_t first_pause_ns = 10'000'000;
    int64_t last_pause_ns = 1'000'000'000;
    // How long to be without a link over which the other has spoken before complaining. Enough for several attempts
    // over a network that loses packets; together with the silence that ends a link (5 s) less than the 10 s of a
    // silent node. Longer the first time, since no silence went before.
    int64_t complain_after_ns = 3'500'000'000;
    int64_t first_complain_after_ns = 8'500'000'000;
  };
  // Planted bugs, to show that the test finds them. All off outside tests.
  struct Faults {
    bool forget_what_was_passed = false;  // a message that a link has taken counts as confirmed
    bool take_again = false;
    bool say_all_taken = false;  // even what came over other links
    bool believe_old_links = false;
    bool give_up_connecting = false;
    bool never_complain = false;
    bool never_take_back = false;  // complaints
  };

  MessageFlow() = default;
  explicit MessageFlow(Config config) : config_(config) {}

  void Handle(MessageWritten event, std::vector<FlowAction>& out);
  void Handle(const FlowNeeded& event, std::vector<FlowAction>& out);
  void Handle(const FlowLinkOpened& event, std::vector<FlowAction>& out);
  void Handle(const FlowLinkClosed& event, std::vector<FlowAction>& out);
  void Handle(const ConnectingFailed& event, std::vector<FlowAction>& out);
  void Handle(const MessagePassed& event, std::vector<FlowAction>& out);
  void Handle(const FlowLinkFull& event, std::vector<FlowAction>& out);
  void Handle(const FlowLinkDrained& event, std::vector<FlowAction>& out);
  void Handle(const TakenHeard& event, std::vector<FlowAction>& out);
  void Handle(const MessageArrived& event, std::vector<FlowAction>& out);
  void Handle(const FlowTicked& event, std::vector<FlowAction>& out);

  // The next message for the link; nullptr: none at present. Valid until the next event.
  const std::string* Next() const;
  uint64_t link() const { return out_link_; }  // the link that is used to send; 0: none
  uint64_t kept_bytes() const { return kept_bytes_; }
  size_t kept_messages() const { return kept_.size(); }
  bool connected() const { return out_link_ != 0 && begun_; }
  bool complains() const { return complained_; }
  bool crowded() const { return kept_bytes_ > config_.limit_bytes; }
  int64_t next_wakeup_ns() const;

  void CheckInvariants() const;

  Faults faults;

 private:
  struct Incoming {  // a link on which the other sends
    uint64_t arrived = 0;
    uint64_t said = 0;
    uint64_t unsaid_bytes = 0;
  };
  void Say(uint64_t link, Incoming& incoming, std::vector<FlowAction>& out);
  void Forget(uint64_t through);
  int64_t ComplainAtNs() const;  // INT64_MAX: no cause, or already done
  void Need(int64_t now_ns);
  void Alone(int64_t now_ns);
  void Pause(int64_t now_ns);
  void Pass(std::vector<FlowAction>& out) const;

  Config config_;
  // Sending.
  std::deque<std::string> kept_;  // forgotten_ + 1 and so on
  uint64_t kept_bytes_ = 0;
  uint64_t forgotten_ = 0;  // the other has taken these
  uint64_t passed_ = 0;     // over this link
  uint64_t most_passed_ = 0;
  uint64_t out_link_ = 0;
  bool begun_ = false;  // the other has said what it has taken
  bool full_ = false;
  bool connecting_ = false;
  bool needed_ = false;
  bool was_connected_ = false;
  bool complained_ = false;
  int64_t alone_since_ns_ = INT64_MAX;  // needed and not connected; INT64_MAX: it is
  int64_t connect_at_ns_ = INT64_MIN;
  int64_t pause_ns_ = 0;
  // Taking.
  uint64_t taken_ = 0;
  uint64_t in_link_ = 0;  // the newest
  std::map<uint64_t, Incoming> incoming_;
  int64_t say_at_ns_ = INT64_MAX;
};

}  // namespace weft::core
