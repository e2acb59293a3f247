#include "head/membership.h"

#include <algorithm>

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
  started_ = true;
  if (step <= 0) return;  // our own clock does not go back
  now_ns_ = now_ns;
  // Beats may have come and lie unread. What of the step was not the caller's to sleep is forgiven.
  int64_t expected = config_.lease_ns / kLooksPerLease;
  if (step <= 2 * expected || faults.ignore_own_absence) return;
  deadlines_.clear();
  for (auto& [node, member] : members_) {
    member.deadline_ns += step - expected;
    deadlines_.emplace(member.deadline_ns, node);
  }
}

int64_t Membership::next_wakeup_ns() const {
  if (deadlines_.empty() || deposed_) return INT64_MAX;
  return std::min(deadlines_.begin()->first, now_ns_ + config_.lease_ns / kLooksPerLease);
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
  for (const auto& [node, description] : event.members) {
    if (!node || by_identity_.contains(description.identity) || by_name_.contains(description.name)) continue;
    auto [entry, added] = members_.try_emplace(node);
    if (!added) continue;
    entry->second.description = description;
    entry->second.state = State::kAwaited;
    by_identity_[description.identity] = node;
    by_name_[description.name] = node;
    SetDeadline(node, entry->second, now_ns_ + (faults.declare_at_once ? 0 : config_.lease_ns));
    next_.value = std::max(next_.value, node.value + 1);
  }
}

void Membership::Handle(const JoinAsked& event, std::vector<MembershipAction>& out) {
  WEFT_CHECK(event.link != 0, "links are numbered from 1");
  Advance(event.now_ns);
  auto refuse = [&](RefuseNode::Kind kind, std::string why) {
    out.emplace_back(RefuseNode{event.link, kind, std::move(why)});
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
    std::string who = "the name " + node.name + " belongs to node " + std::to_string(holder->second.value) + " at " +
                      member.description.address;
    if (member.state == State::kAlive) {
      refuse(RefuseNode::Kind::kNameTaken, who + "; stop that one, or choose another: weft start --name=...");
    } else {
      refuse(RefuseNode::Kind::kTryAgain, who + ", whose link is lost; it is free in " +
                                              Seconds(std::max<int64_t>(member.deadline_ns - now_ns_, 0)) +
                                              " unless that node comes back");
    }
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
  SetDeadline(node, members_.at(node), now_ns_ + config_.lease_ns);
  out.emplace_back(ConfirmLease{event.link, config_.epoch, event.beat});
}

void Membership::Handle(const MemberLinkClosed& event, std::vector<MembershipAction>& out) {
  Advance(event.now_ns);
  NodeNumber node = NodeOf(event.link);
  if (!node) return;
  Member& member = members_.at(node);
  by_link_.erase(event.link);
  member.link = 0;
  member.state = State::kSuspected;
  if (event.by_peer || faults.believe_any_closed_link) {
    SetDeadline(node, member, std::min(member.deadline_ns, now_ns_ + config_.grace_ns));
  }
  if (!deposed_) out.emplace_back(SuspectNode{node});
}

void Membership::Handle(const FarewellCame& event, std::vector<MembershipAction>& out) {
  Advance(event.now_ns);
  if (NodeNumber node = NodeOf(event.link); node && !deposed_) Bury(node, "it was stopped", true, out);
}

void Membership::Handle(const MembershipTicked& event, std::vector<MembershipAction>& out) {
  Advance(event.now_ns);
  while (!deadlines_.empty() && !deposed_ && deadlines_.begin()->first <= now_ns_) {
    NodeNumber node = deadlines_.begin()->second;
    switch (members_.at(node).state) {
      case State::kAlive:
        Bury(node, "it was silent for " + Seconds(config_.lease_ns), false, out);
        break;
      case State::kSuspected:
        Bury(node, "its link was lost and it did not come back", false, out);
        break;
      case State::kAwaited:
        Bury(node, "it did not come back within " + Seconds(config_.lease_ns) + " after the head had restarted", false,
             out);
        break;
    }
  }
}

void Membership::Bury(NodeNumber node, std::string why, bool farewell, std::vector<MembershipAction>& out) {
  auto entry = members_.find(node);
  Member& member = entry->second;
  out.emplace_back(DeclareDead{node, member.description.name, std::move(why), farewell});
  if (member.link != 0) {
    by_link_.erase(member.link);
    out.emplace_back(CloseMemberLink{member.link});
  }
  deadlines_.erase({member.deadline_ns, node});
  by_identity_.erase(member.description.identity);
  by_name_.erase(member.description.name);
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
    WEFT_CHECK((member.link != 0) == (member.state == State::kAlive), "who is alive has a link");
    if (member.link == 0) continue;
    ++links;
    WEFT_CHECK(by_link_.at(member.link) == node, "a link is one node's");
  }
  WEFT_CHECK(links == by_link_.size(), "links are members'");
}

}  // namespace weft::core
