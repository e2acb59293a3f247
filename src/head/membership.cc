#include "head/membership.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace weft::core {
namespace {

constexpr size_t kMaxNameBytes = 255;
// How often the head looks at its clock at least, in parts of a lease: a longer step means that it did not run.
constexpr int64_t kLooksPerLease = 8;

std::string Seconds(int64_t ns) {
  int64_t tenths = ns / 100'000'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

bool IsValidName(const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes) return false;
  return std::all_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) > ' ' && c != 127; });
}

}  // namespace

void Membership::Advance(int64_t now_ns) {
  int64_t step = started_ ? now_ns - now_ns_ : 0;
  const int64_t wakeup = next_wakeup_ns();
  started_ = true;
  if (step <= 0) return;  // our own clock does not go back
  now_ns_ = now_ns;
  // Beats may have come and lie unread. What of the step was not the caller's to sleep is forgiven.
  int64_t expected = config_.lease_ns / kLooksPerLease;
  if (faults.ignore_own_absence) return;
  const bool away = step > 2 * expected;
  const bool late = wakeup <= now_ns_ && now_ns_ - wakeup > config_.grace_ns / 4;
  if (!away && !late) return;
  deadlines_.clear();
  for (auto& [node, member] : members_) {
    if (away) member.deadline_ns += step - expected;
    // A node that lost its link just before had no chance to come back. After a short absence its lease is not made
    // longer.
    if (member.state == State::kSuspected) {
      const int64_t most = away ? INT64_MAX : member.last_beat_ns + config_.lease_ns;
      member.deadline_ns = std::max(member.deadline_ns, std::min(now_ns_ + config_.grace_ns, most));
    }
    deadlines_.emplace(member.deadline_ns, node);
  }
}

int64_t Membership::next_wakeup_ns() const {
  if (deadlines_.empty() || deposed_ || !joining_) return INT64_MAX;
  int64_t next = std::min(deadlines_.begin()->first, now_ns_ + config_.lease_ns / kLooksPerLease);
  // While a grace runs, often enough to see that we were not there for a part of it.
  if (next - now_ns_ <= config_.grace_ns) next = std::min(next, now_ns_ + config_.grace_ns / 4);
  for (const auto& [pair, complaint] : complaints_) {
    // One that could be judged otherwise waits for beats.
    for (const int64_t at : {complaint.said_ns + config_.gather_ns, JudgedAtNs(complaint)}) {
      if (at > now_ns_) next = std::min(next, at);
    }
  }
  return next;
}

NodeNumber Membership::NodeOf(uint64_t link) const {
  auto found = by_link_.find(link);
  return found == by_link_.end() ? NodeNumber{} : found->second;
}

void Membership::SetDeadline(NodeNumber node, Member& member, int64_t deadline_ns) {
  deadlines_.erase({member.deadline_ns, node});
  member.deadline_ns = deadline_ns;
  deadlines_.emplace(deadline_ns, node);
}

bool Membership::HeardOfNewer(uint64_t epoch, std::vector<MembershipAction>& out) {
  if (epoch <= config_.epoch) return false;
  if (!deposed_) out.emplace_back(StepDown{epoch});
  deposed_ = true;
  return true;
}

void Membership::Handle(const MembersRestored& event, std::vector<MembershipAction>&) {
  WEFT_CHECK(members_.empty() && next_.value == 1, "a head reads its tables once, at its start");
  Advance(event.now_ns);
  next_ = std::max(next_, event.next);
  former_lease_ns_ = std::max(config_.lease_ns, faults.forget_former_lease ? 0 : event.lease_ns);
  joining_ = false;
  for (const auto& [node, description] : event.members) {
    if (!node || by_identity_.contains(description.identity) || by_name_.contains(description.name)) continue;
    auto [entry, added] = members_.try_emplace(node);
    if (!added) continue;
    entry->second.description = description;
    entry->second.state = State::kAwaited;
    by_identity_[description.identity] = node;
    by_name_[description.name] = node;
    SetDeadline(node, entry->second, now_ns_ + (faults.declare_at_once ? 0 : former_lease_ns_));
    next_.value = std::max(next_.value, node.value + 1);
  }
}

void Membership::Handle(const JoiningBegan& event, std::vector<MembershipAction>&) {
  Advance(event.now_ns);
  if (std::exchange(joining_, true)) return;
  for (auto& [node, member] : members_) {
    if (member.state != State::kAwaited || faults.declare_at_once) continue;
    SetDeadline(node, member, now_ns_ + former_lease_ns_);
  }
}

void Membership::Handle(const JoinAsked& event, std::vector<MembershipAction>& out) {
  WEFT_CHECK(event.link != 0, "links are numbered from 1");
  Advance(event.now_ns);
  auto refuse = [&](RefuseNode::Kind kind, std::string why, int64_t wait_ns = 0) {
    out.emplace_back(RefuseNode{event.link, kind, std::move(why), wait_ns});
  };
  if (HeardOfNewer(event.epoch, out) || deposed_) {
    refuse(RefuseNode::Kind::kNotTheHead, "another head has taken over this cluster; join that one");
    return;
  }
  const NodeDescription& node = event.node;
  if (event.protocol != config_.protocol) {
    refuse(RefuseNode::Kind::kProtocol, "the node speaks protocol " + std::to_string(event.protocol) +
                                            " and the head protocol " + std::to_string(config_.protocol) +
                                            "; install the same version of weft on both");
    return;
  }
  auto known = by_identity_.find(node.identity);
  if (NodeNumber other = NodeOf(event.link); other && (known == by_identity_.end() || known->second != other)) {
    refuse(RefuseNode::Kind::kInvalid, "this link is node " + std::to_string(other.value) + "'s; one link, one node");
    return;
  }
  if (known != by_identity_.end()) {
    Attach(known->second, members_.at(known->second), event, out);
    return;
  }
  if (event.was) {
    refuse(RefuseNode::Kind::kDeclaredDead, "node " + std::to_string(event.was.value) + ", " + node.name +
                                                ", was declared dead; what it ran may run elsewhere by now");
    return;
  }
  if (!IsValidName(node.name)) {
    refuse(RefuseNode::Kind::kInvalid, "a node's name has 1 to 255 characters without spaces: weft start --name=...");
    return;
  }
  if (auto holder = by_name_.find(node.name); holder != by_name_.end()) {
    const Member& member = members_.at(holder->second);
    std::string holding = "the name " + node.name + " belongs to node " + std::to_string(holder->second.value) +
                          " at " + member.description.address;
    if (member.state == State::kAlive) {
      refuse(RefuseNode::Kind::kNameTaken, holding + "; stop that one, or choose another: weft start --name=...");
    } else {
      const int64_t wait_ns = std::max<int64_t>(member.deadline_ns - now_ns_, 0);
      refuse(RefuseNode::Kind::kTryAgain,
             member.state == State::kExpelled
                 ? holding + ", which must leave (" + member.why + "); it is free in " + Seconds(wait_ns) +
                       " at the latest"
                 : holding + ", whose link is lost; it is free in " + Seconds(wait_ns) + " unless that node comes back",
             wait_ns);
    }
    return;
  }
  if (auto pause = pauses_.find(node.name); pause != pauses_.end() && now_ns_ < pause->second.until_ns) {
    const int64_t wait_ns = pause->second.until_ns - now_ns_;
    refuse(RefuseNode::Kind::kTryAgain,
           "the node " + node.name + " had to leave (" + pause->second.why + ") and may come back in " +
               Seconds(wait_ns) + "; check the network between these two, and --host",
           wait_ns);
    return;
  }
  if (members_.size() >= config_.max_nodes || next_.value == UINT32_MAX) {
    refuse(RefuseNode::Kind::kFull,
           "the cluster has " + std::to_string(members_.size()) + " nodes, which is as many as this head keeps");
    return;
  }
  NodeNumber number{next_.value++};
  Member& member = members_[number];
  member.description = node;
  by_identity_[node.identity] = number;
  by_name_[node.name] = number;
  member.link = event.link;
  member.last_beat_ns = now_ns_;
  member.own = event.own;
  by_link_[event.link] = number;
  SetDeadline(number, member, now_ns_ + config_.lease_ns);
  out.emplace_back(AcceptNode{event.link, number, config_.epoch, event.beat, config_.lease_ns, false});
}

// A node that is known has a link again.
void Membership::Attach(NodeNumber node, Member& member, const JoinAsked& event, std::vector<MembershipAction>& out) {
  if (member.link != 0 && member.link != event.link) {
    by_link_.erase(member.link);
    out.emplace_back(CloseMemberLink{member.link});
  }
  member.link = event.link;
  by_link_[event.link] = node;
  if (member.state == State::kExpelled) {  // it may not have heard of it
    out.emplace_back(ExpelNode{event.link, node, member.description.name, member.why});
    return;
  }
  member.last_beat_ns = now_ns_;
  member.description.address = event.node.address;  // it may have moved; what it is and has stays
  SetDeadline(node, member, now_ns_ + config_.lease_ns);
  out.emplace_back(AcceptNode{event.link, node, config_.epoch, event.beat, config_.lease_ns, true});
  if (member.state == State::kSuspected) out.emplace_back(TrustNode{node});
  member.state = State::kAlive;
}

void Membership::Handle(const BeatCame& event, std::vector<MembershipAction>& out) {
  Advance(event.now_ns);
  if (HeardOfNewer(event.epoch, out) || deposed_) return;
  NodeNumber node = NodeOf(event.link);
  if (!node) {
    // Of a link that is being closed: its node is dead or has a newer one.
    if (faults.confirm_the_dead) out.emplace_back(ConfirmLease{event.link, config_.epoch, event.beat});
    return;
  }
  Member& member = members_.at(node);
  if (member.state == State::kExpelled && !faults.confirm_the_expelled) return;
  member.last_beat_ns = now_ns_;
  if (member.state != State::kExpelled) SetDeadline(node, member, now_ns_ + config_.lease_ns);
  out.emplace_back(ConfirmLease{event.link, config_.epoch, event.beat});
  Judge(out);
}

void Membership::Handle(const MemberLinkClosed& event, std::vector<MembershipAction>& out) {
  Advance(event.now_ns);
  NodeNumber node = NodeOf(event.link);
  if (!node) return;
  Member& member = members_.at(node);
  by_link_.erase(event.link);
  member.link = 0;
  const bool expelled = member.state == State::kExpelled;
  if (!expelled) member.state = State::kSuspected;
  if (event.by_peer || faults.believe_any_closed_link) {
    SetDeadline(node, member, std::min(member.deadline_ns, now_ns_ + config_.grace_ns));
  }
  if (!deposed_ && !expelled) out.emplace_back(SuspectNode{node});
}

void Membership::Handle(const GoodbyeCame& event, std::vector<MembershipAction>& out) {
  Advance(event.now_ns);
  if (NodeNumber node = NodeOf(event.link); node && !deposed_) DeclareNodeDead(node, "it was stopped", true, out);
}

// ---- nodes that cannot reach each other ---------------------------------------------------------------------------

void Membership::Handle(const UnreachableSaid& event, std::vector<MembershipAction>& out) {
  Advance(event.now_ns);
  if (deposed_ || faults.ignore_complaints || event.by == event.node) return;
  if (!members_.contains(event.by) || !members_.contains(event.node)) return;  // dead meanwhile
  complaints_.try_emplace({event.by, event.node}, Complaint{now_ns_, event.for_ns, event.why});
  Judge(out);
}

void Membership::Handle(const ReachableSaid& event, std::vector<MembershipAction>&) {
  Advance(event.now_ns);
  if (!faults.never_take_back) complaints_.erase({event.by, event.node});
}

// With how many of the nodes that stay it has this trouble, whichever side reported it.
size_t Membership::TroubleOf(NodeNumber node) const {
  std::set<NodeNumber> others;
  for (const auto& [pair, complaint] : complaints_) {
    const NodeNumber other = pair.first == node ? pair.second : pair.first;
    if ((pair.first == node || pair.second == node) && members_.at(other).state != State::kExpelled) {
      others.insert(other);
    }
  }
  return others.size();
}

int64_t Membership::JudgedAtNs(const Complaint& complaint) const {
  if (complaint.both_ns == INT64_MAX) return INT64_MAX;
  return std::max(complaint.said_ns + config_.gather_ns, complaint.both_ns + config_.settle_ns);
}

void Membership::Judge(std::vector<MembershipAction>& out) {
  if (deposed_) return;
  for (auto& [pair, complaint] : complaints_) {
    const Member& one = members_.at(pair.first);
    const Member& other = members_.at(pair.second);
    // Of one that has no link its lease will tell, or it comes back; of one that must go there is nothing to say.
    if (one.state != State::kAlive || other.state != State::kAlive) {
      complaint.both_ns = INT64_MAX;
      continue;
    }
    if (std::min(one.last_beat_ns, other.last_beat_ns) <= complaint.said_ns) continue;
    complaint.both_ns = std::min(complaint.both_ns, now_ns_);
    if (JudgedAtNs(complaint) > now_ns_) continue;
    const size_t trouble_one = TroubleOf(pair.first), trouble_other = TroubleOf(pair.second);
    const bool one_goes =
        other.own ||
        (!one.own && (trouble_one > trouble_other || (trouble_one == trouble_other && pair.first > pair.second)));
    const std::string said = " for " + Seconds(complaint.for_ns + now_ns_ - complaint.said_ns) +
                             (complaint.why.empty() ? "" : ": " + complaint.why);
    auto named = [&](NodeNumber node) {
      return "node " + std::to_string(node.value) + " (" + members_.at(node).description.name + ")";
    };
    if (one_goes || faults.expel_both) Expel(pair.first, "it could not reach " + named(pair.second) + said, out);
    if (!one_goes || faults.expel_both) Expel(pair.second, named(pair.first) + " could not reach it" + said, out);
  }
}

void Membership::Expel(NodeNumber node, std::string why, std::vector<MembershipAction>& out) {
  Member& member = members_.at(node);
  member.state = State::kExpelled;
  member.why = std::move(why);
  std::erase_if(pauses_, [&](const auto& pause) { return pause.second.until_ns + config_.forget_ns <= now_ns_; });
  Pause& pause = pauses_[member.description.name];
  pause.length_ns =
      pause.length_ns == 0 ? config_.first_pause_ns : std::min(2 * pause.length_ns, config_.last_pause_ns);
  pause.until_ns = now_ns_ + pause.length_ns;
  pause.why = member.why;
  out.emplace_back(SuspectNode{node});
  out.emplace_back(ExpelNode{member.link, node, member.description.name, member.why});
  if (faults.declare_the_expelled_at_once) SetDeadline(node, member, now_ns_);
}

// ---- ends ---------------------------------------------------------------------------------------------------------

void Membership::Handle(const MembershipTicked& event, std::vector<MembershipAction>& out) {
  Advance(event.now_ns);
  if (!joining_) return;
  while (!deadlines_.empty() && !deposed_ && deadlines_.begin()->first <= now_ns_) {
    NodeNumber node = deadlines_.begin()->second;
    switch (members_.at(node).state) {
      case State::kAlive:
        DeclareNodeDead(node, "it was silent for " + Seconds(config_.lease_ns), false, out);
        break;
      case State::kSuspected:
        DeclareNodeDead(node, "its link was lost and it did not come back", false, out);
        break;
      case State::kAwaited:
        DeclareNodeDead(node,
                        "it did not come back within " + Seconds(config_.lease_ns) + " after the head had restarted",
                        false, out);
        break;
      case State::kExpelled:
        DeclareNodeDead(node, members_.at(node).why, false, out);
        break;
    }
  }
  Judge(out);
}

void Membership::DeclareNodeDead(NodeNumber node, std::string why, bool goodbye, std::vector<MembershipAction>& out) {
  auto entry = members_.find(node);
  Member& member = entry->second;
  out.emplace_back(DeclareDead{node, member.description.name, std::move(why), goodbye});
  if (member.link != 0) {
    by_link_.erase(member.link);
    out.emplace_back(CloseMemberLink{member.link});
  }
  deadlines_.erase({member.deadline_ns, node});
  by_identity_.erase(member.description.identity);
  by_name_.erase(member.description.name);
  std::erase_if(complaints_, [&](const auto& one) { return one.first.first == node || one.first.second == node; });
  members_.erase(entry);
}

void Membership::CheckInvariants() const {
  WEFT_CHECK(by_identity_.size() == members_.size() && by_name_.size() == members_.size() &&
                 deadlines_.size() == members_.size(),
             "every member is found by each of its names");
  size_t links = 0;
  for (const auto& [node, member] : members_) {
    WEFT_CHECK(node.value > 0 && node.value < next_.value, "a number is given out once");
    WEFT_CHECK(by_identity_.at(member.description.identity) == node, "an identity is one node's");
    WEFT_CHECK(by_name_.at(member.description.name) == node, "a name is one node's");
    WEFT_CHECK(deadlines_.contains({member.deadline_ns, node}), "every member has a deadline");
    WEFT_CHECK(member.state == State::kExpelled || (member.link != 0) == (member.state == State::kAlive),
               "a node that is alive has a link");
    WEFT_CHECK(member.state != State::kExpelled || !member.own || faults.expel_both, "the head stays");
    if (member.link == 0) continue;
    ++links;
    WEFT_CHECK(by_link_.at(member.link) == node, "a link is one node's");
  }
  WEFT_CHECK(links == by_link_.size(), "links are members'");
  for (const auto& [pair, complaint] : complaints_) {
    WEFT_CHECK(members_.contains(pair.first) && members_.contains(pair.second), "complaints are of and by members");
  }
}

}  // namespace weft::core
