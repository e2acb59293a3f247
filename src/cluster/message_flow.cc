#include "cluster/message_flow.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace weft::core {

// ---- sending ------------------------------------------------------------------------------------------------------

const std::string* MessageFlow::Next() const {
  if (out_link_ == 0 || !begun_ || full_) return nullptr;
  const uint64_t index = passed_ - forgotten_;
  return index < kept_.size() ? &kept_[index] : nullptr;
}

void MessageFlow::Pass(std::vector<FlowAction>& out) const {
  if (Next() != nullptr) out.emplace_back(PassMessages{out_link_});
}

void MessageFlow::Handle(MessageWritten event, std::vector<FlowAction>& out) {
  kept_bytes_ += event.bytes.size();
  kept_.push_back(std::move(event.bytes));
  Need(event.now_ns);
  if (out_link_ != 0) return Pass(out);
  Handle(FlowTicked{event.now_ns}, out);
}

void MessageFlow::Handle(const FlowNeeded& event, std::vector<FlowAction>& out) {
  Need(event.now_ns);
  if (out_link_ == 0) Handle(FlowTicked{event.now_ns}, out);
}

void MessageFlow::Need(int64_t now_ns) {
  needed_ = true;
  if (!connected()) Alone(now_ns);
}

void MessageFlow::Alone(int64_t now_ns) {
  if (needed_ && config_.connects) alone_since_ns_ = std::min(alone_since_ns_, now_ns);
}

void MessageFlow::Handle(const MessagePassed&, std::vector<FlowAction>&) {
  WEFT_CHECK(Next() != nullptr, "what is passed was there to be passed");
  most_passed_ = std::max(most_passed_, ++passed_);
  if (faults.forget_what_was_passed) Forget(passed_);
}

void MessageFlow::Handle(const FlowLinkFull&, std::vector<FlowAction>&) { full_ = true; }

void MessageFlow::Handle(const FlowLinkDrained& event, std::vector<FlowAction>& out) {
  if (event.link != out_link_) return;
  full_ = false;
  Pass(out);
}

void MessageFlow::Handle(const TakenHeard& event, std::vector<FlowAction>& out) {
  if (event.link != out_link_ && !faults.believe_old_links) return;
  if (event.through < forgotten_ && !faults.forget_what_was_passed) {
    out.emplace_back(BreakFlowLink{event.link, "it has forgotten messages that it had taken"});
    return;
  }
  if (event.through > (begun_ ? passed_ : most_passed_) && !faults.believe_old_links && !faults.say_all_taken) {
    out.emplace_back(BreakFlowLink{event.link, "it has taken messages that were not sent"});
    return;
  }
  Forget(event.through);
  if (event.link != out_link_ || begun_) return;
  begun_ = was_connected_ = true;
  passed_ = forgotten_;
  pause_ns_ = 0;
  alone_since_ns_ = INT64_MAX;
  if (complained_ && !faults.never_take_back) {
    complained_ = false;
    out.emplace_back(TakeBackComplaint{});
  }
  Pass(out);
}

void MessageFlow::Forget(uint64_t through) {
  while (forgotten_ < through && !kept_.empty()) {
    kept_bytes_ -= kept_.front().size();
    kept_.pop_front();
    ++forgotten_;
  }
  passed_ = std::max(passed_, forgotten_);
}

// ---- links --------------------------------------------------------------------------------------------------------

void MessageFlow::Handle(const FlowLinkOpened& event, std::vector<FlowAction>& out) {
  WEFT_CHECK(event.link != 0, "links are numbered from 1");
  if (event.sends) {
    out_link_ = event.link;
    begun_ = full_ = connecting_ = false;
    Alone(event.now_ns);
  }
  if (event.takes) {
    in_link_ = event.link;
    incoming_[event.link] = {taken_, taken_, 0};
    say_at_ns_ = INT64_MAX;
    out.emplace_back(SayTaken{event.link, taken_});
  }
}

void MessageFlow::Handle(const FlowLinkClosed& event, std::vector<FlowAction>&) {
  incoming_.erase(event.link);
  if (event.link == in_link_) {
    in_link_ = 0;
    say_at_ns_ = INT64_MAX;  // it is said over the next one
  }
  if (event.link != out_link_) return;
  out_link_ = 0;
  begun_ = full_ = false;
  Alone(event.now_ns);
  Pause(event.now_ns);
}

void MessageFlow::Handle(const ConnectingFailed& event, std::vector<FlowAction>&) {
  connecting_ = false;
  Pause(event.now_ns);
}

void MessageFlow::Pause(int64_t now_ns) {
  pause_ns_ = pause_ns_ == 0 ? config_.first_pause_ns : std::min(2 * pause_ns_, config_.last_pause_ns);
  connect_at_ns_ = now_ns + pause_ns_;
}

// ---- taking -------------------------------------------------------------------------------------------------------

void MessageFlow::Handle(const MessageArrived& event, std::vector<FlowAction>& out) {
  auto found = incoming_.find(event.link);
  if (found == incoming_.end()) {
    out.emplace_back(BreakFlowLink{event.link, "it sent messages before it was told to"});
    return;
  }
  Incoming& incoming = found->second;
  const uint64_t number = ++incoming.arrived;
  if (number == taken_ + 1 || faults.take_again) {
    taken_ = std::max(taken_, number);
    out.emplace_back(TakeMessage{});
  }
  incoming.unsaid_bytes += event.bytes;
  if (incoming.arrived - incoming.said >= config_.told_messages || incoming.unsaid_bytes >= config_.told_bytes) {
    Say(event.link, incoming, out);
  } else if (event.link == in_link_) {
    say_at_ns_ = std::min(say_at_ns_, event.now_ns + config_.told_ns);
  }
}

void MessageFlow::Say(uint64_t link, Incoming& incoming, std::vector<FlowAction>& out) {
  incoming.said = faults.say_all_taken ? taken_ : incoming.arrived;
  incoming.unsaid_bytes = 0;
  if (link == in_link_) say_at_ns_ = INT64_MAX;
  out.emplace_back(SayTaken{link, incoming.said});
}

// ---- time ---------------------------------------------------------------------------------------------------------

void MessageFlow::Handle(const FlowTicked& event, std::vector<FlowAction>& out) {
  if (say_at_ns_ <= event.now_ns) Say(in_link_, incoming_.at(in_link_), out);
  if (ComplainAtNs() <= event.now_ns && !faults.never_complain) {
    complained_ = true;
    out.emplace_back(ComplainOfOther{alone_since_ns_});
  }
  if (!config_.connects || out_link_ != 0 || connecting_ || !needed_ || connect_at_ns_ > event.now_ns) return;
  if (faults.give_up_connecting && pause_ns_ > 4 * config_.first_pause_ns) return;
  connecting_ = true;
  out.emplace_back(ConnectFlow{});
}

int64_t MessageFlow::ComplainAtNs() const {
  if (complained_ || alone_since_ns_ == INT64_MAX) return INT64_MAX;
  return alone_since_ns_ + (was_connected_ ? config_.complain_after_ns : config_.first_complain_after_ns);
}

int64_t MessageFlow::next_wakeup_ns() const {
  int64_t next = say_at_ns_;
  if (config_.connects && out_link_ == 0 && !connecting_ && needed_) next = std::min(next, connect_at_ns_);
  if (!faults.never_complain) next = std::min(next, ComplainAtNs());
  return next;
}

void MessageFlow::CheckInvariants() const {
  uint64_t bytes = 0;
  for (const std::string& message : kept_) bytes += message.size();
  WEFT_CHECK(bytes == kept_bytes_, "the bytes that are kept are counted");
  WEFT_CHECK(passed_ >= forgotten_ && passed_ - forgotten_ <= kept_.size(), "what was taken was passed, and written");
  WEFT_CHECK((alone_since_ns_ == INT64_MAX) == (!config_.connects || !needed_ || connected()),
             "it is known since when one that is needed is not connected");
  WEFT_CHECK(!complained_ || alone_since_ns_ != INT64_MAX, "one that is connected does not complain");
  WEFT_CHECK(in_link_ == 0 || incoming_.contains(in_link_), "the newest link is one of those that are open");
  for (const auto& [link, incoming] : incoming_) {
    WEFT_CHECK(incoming.arrived <= taken_ && incoming.said <= incoming.arrived, "what arrived is taken, here or there");
  }
}

}  // namespace weft::core
