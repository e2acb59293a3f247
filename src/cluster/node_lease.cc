#include "cluster/node_lease.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace weft::core {
namespace {

// Several may be late before the lease ends.
constexpr int64_t kBeatsPerLease = 6;
// Of the head's lease, what the node counts on. The rest is for clocks that differ in speed, by far more than they do.
constexpr int64_t OwnShare(int64_t lease_ns) { return lease_ns - lease_ns / 8; }
constexpr int64_t kMaxLeaseNs = int64_t{24} * 3600 * 1'000'000'000;  // far beyond any use, far from overflow
constexpr size_t kMaxUnconfirmed = 64;                               // older ones would not save the lease any more

}  // namespace

bool NodeLease::Adopt(uint64_t epoch) {
  if (!Accepts(epoch)) return false;
  epoch_ = std::max(epoch_, epoch);
  return true;
}

void NodeLease::Beat(int64_t now_ns, std::vector<LeaseAction>& out) {
  sent_.emplace(++last_beat_, now_ns);
  if (sent_.size() > kMaxUnconfirmed) sent_.erase(sent_.begin());
  next_beat_ns_ = now_ns + lease_ns_ / kBeatsPerLease;
  out.emplace_back(SendBeat{last_beat_, epoch_});
}

void NodeLease::Handle(const HeadLinked& event, std::vector<LeaseAction>& out) {
  linked_ = true;
  accepted_ = false;
  next_beat_ns_ = INT64_MAX;  // the next begins with the acceptance
  sent_.clear();              // what was sent over an earlier link is not answered
  sent_.emplace(++last_beat_, event.now_ns);
  out.emplace_back(SendJoin{node_, epoch_, last_beat_});
  Judge(event.now_ns, out);
}

// The head has extended its own count when the beat came, which was after it was sent.
void NodeLease::Confirm(uint64_t beat, int64_t now_ns) {
  auto sent = sent_.find(beat);
  if (sent == sent_.end()) return;  // never sent, or confirmed already
  int64_t from = faults.count_from_confirmation ? now_ns : sent->second;
  end_ns_ = std::max(end_ns_, from + OwnShare(lease_ns_));
  sent_.erase(sent_.begin(), std::next(sent));
  lost_end_ns_ = INT64_MAX;
}

void NodeLease::Handle(const HeadAccepted& event, std::vector<LeaseAction>& out) {
  if (!linked_ || accepted_ || !Adopt(event.epoch)) return;
  accepted_ = true;
  node_ = event.node;
  lease_ns_ = std::clamp<int64_t>(event.lease_ns, 1, kMaxLeaseNs);
  if (!faults.keep_former_lease) end_ns_ = INT64_MIN;  // this head counts from this beat, whatever the last one allowed
  Confirm(event.beat, event.now_ns);
  next_beat_ns_ = event.now_ns + lease_ns_ / kBeatsPerLease;
  Judge(event.now_ns, out);
}

void NodeLease::Handle(const LeaseConfirmed& event, std::vector<LeaseAction>& out) {
  if (!accepted_ || !Adopt(event.epoch)) return;
  Confirm(event.beat, event.now_ns);
  Judge(event.now_ns, out);
}

void NodeLease::Handle(const HeadLinkLost& event, std::vector<LeaseAction>& out) {
  if (!linked_) return;
  linked_ = accepted_ = false;
  next_beat_ns_ = INT64_MAX;
  sent_.clear();
  if (!faults.go_on_without_link) {
    lost_end_ns_ = std::min(lost_end_ns_, event.now_ns + config_.freeze_after_link_loss_ns);
  }
  out.emplace_back(LinkToHead{});
  Judge(event.now_ns, out);
}

void NodeLease::Handle(const HeadEnded& event, std::vector<LeaseAction>& out) {
  Judge(event.now_ns, out);
  if (linked_ || frozen_) return;  // it may have declared us dead before it ended
  lost_end_ns_ = INT64_MAX;
}

void NodeLease::Handle(const HeadDeclaredUsDead& event, std::vector<LeaseAction>& out) {
  if (!Adopt(event.epoch) || !node_) return;
  // What it had is another's now. It begins again, as a new node.
  node_ = NodeNumber{};
  linked_ = accepted_ = frozen_ = false;
  end_ns_ = 0;
  lost_end_ns_ = INT64_MAX;
  next_beat_ns_ = INT64_MAX;
  sent_.clear();
  out.emplace_back(GiveUpWork{event.why});
}

void NodeLease::Handle(const LeaseTicked& event, std::vector<LeaseAction>& out) {
  Judge(event.now_ns, out);
  if (accepted_ && event.now_ns >= next_beat_ns_) Beat(event.now_ns, out);
}

void NodeLease::Judge(int64_t now_ns, std::vector<LeaseAction>& out) {
  if (!node_) return;  // it has nothing yet
  bool over = now_ns >= std::min(end_ns_, lost_end_ns_);
  if (over == frozen_) return;
  frozen_ = over;
  if (!frozen_) {
    out.emplace_back(ThawWork{});
  } else if (now_ns >= end_ns_) {
    out.emplace_back(FreezeWork{"the head has not confirmed this node's lease in time"});
  } else {
    out.emplace_back(FreezeWork{"the link to the head is lost"});
  }
}

int64_t NodeLease::next_wakeup_ns() const {
  int64_t next = accepted_ ? next_beat_ns_ : INT64_MAX;
  if (node_ && !frozen_) next = std::min({next, end_ns_, lost_end_ns_});
  return next;
}

void NodeLease::CheckInvariants() const {
  WEFT_CHECK(!accepted_ || (linked_ && node_), "a node that is accepted has a link and a number");
  WEFT_CHECK(!frozen_ || node_, "a node without a number has nothing to freeze");
  WEFT_CHECK(sent_.size() <= kMaxUnconfirmed && (linked_ || sent_.empty()), "beats wait for answers over one link");
}

}  // namespace weft::core
