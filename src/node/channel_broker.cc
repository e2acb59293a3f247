#include "node/channel_broker.h"

#include <algorithm>
#include <variant>

namespace weft::core {

bool ChannelBroker::HasSubmitter(Pair pair) const {
  auto ports = ports_.find(pair.submitter);
  return ports != ports_.end() && ports->second.slots.contains({pair.worker, Side::kSubmitter});
}

std::optional<ChannelBroker::Slots> ChannelBroker::Open(Pair pair) {
  auto submitter = TakeSlot(pair.submitter);
  auto worker = TakeSlot(pair.worker);
  if (!submitter || !worker) {
    if (submitter) ports_[pair.submitter].freed_slots.push_back(*submitter);
    if (worker) ports_[pair.worker].freed_slots.push_back(*worker);
    return std::nullopt;
  }
  ports_[pair.submitter].slots[{pair.worker, Side::kSubmitter}] = *submitter;
  ports_[pair.worker].slots[{pair.submitter, Side::kWorker}] = *worker;
  return Slots{*submitter, *worker};
}

std::optional<uint32_t> ChannelBroker::OpenOne(Pair pair, Side here) {
  const ProcessId own = here == Side::kSubmitter ? pair.submitter : pair.worker;
  const ProcessId peer = here == Side::kSubmitter ? pair.worker : pair.submitter;
  Close(own, peer, here);  // an earlier connection between the same two
  auto slot = TakeSlot(own);
  if (slot) ports_[own].slots[{peer, here}] = *slot;
  return slot;
}

std::optional<uint32_t> ChannelBroker::TakeSlot(ProcessId process) {
  Ports& ports = ports_[process];
  // Slots of the dead are used again as late as possible: a late ring on one is then harmless.
  if (ports.next_slot < num_slots_) return ports.next_slot++;
  if (ports.freed_slots.empty()) return std::nullopt;
  const uint32_t slot = ports.freed_slots.front();
  ports.freed_slots.erase(ports.freed_slots.begin());
  return slot;
}

bool ChannelBroker::Want(Pair pair) { return wanted_.insert(pair).second; }

bool ChannelBroker::Await(Pair pair) { return awaited_.try_emplace(pair).second; }

bool ChannelBroker::Await(Pair pair, Message message) {
  const bool first = Await(pair);
  awaited_[pair].messages.push_back(std::move(message));
  return first;
}

std::vector<Message> ChannelBroker::Opened(Pair pair) {
  auto found = awaited_.find(pair);
  if (found == awaited_.end()) return {};
  std::vector<Message> messages = std::move(found->second.messages);
  awaited_.erase(found);
  return messages;
}

std::vector<Message> ChannelBroker::NotReached(Pair pair, bool worker_is_dead, int64_t now_ns) {
  auto found = awaited_.find(pair);
  if (found == awaited_.end()) return {};
  Awaited& awaited = found->second;
  if (awaited.give_up_ns == 0) awaited.give_up_ns = now_ns + kReachNs;
  std::vector<Message> changes, refused;
  for (Message& message : awaited.messages) {
    (std::holds_alternative<ActorChanged>(message) ? changes : refused).push_back(std::move(message));
  }
  awaited.messages = std::move(changes);
  if (awaited.messages.empty() || worker_is_dead || now_ns >= awaited.give_up_ns) {
    for (Message& message : GivenUp(pair)) refused.push_back(std::move(message));
    return refused;
  }
  awaited.dial_again_ns = now_ns + kDialAgainNs;
  next_dial_ns_ = std::min(next_dial_ns_, awaited.dial_again_ns);
  return refused;
}

void ChannelBroker::Overtake(ProcessId watcher, const ActorChanged& change) {
  for (auto entry = awaited_.lower_bound({watcher, ProcessId{}});
       entry != awaited_.end() && entry->first.submitter == watcher; ++entry) {
    std::erase_if(entry->second.messages, [&](const Message& message) {
      const auto* waiting = std::get_if<ActorChanged>(&message);
      return waiting != nullptr && waiting->actor == change.actor && waiting->worker != change.worker;
    });
  }
}

std::vector<ChannelBroker::Pair> ChannelBroker::Due(int64_t now_ns) {
  std::vector<Pair> due;
  if (now_ns < next_dial_ns_) return due;
  next_dial_ns_ = INT64_MAX;
  for (auto& [pair, awaited] : awaited_) {
    if (awaited.dial_again_ns <= now_ns) {
      awaited.dial_again_ns = INT64_MAX;
      due.push_back(pair);
    }
    next_dial_ns_ = std::min(next_dial_ns_, awaited.dial_again_ns);
  }
  return due;
}

void ChannelBroker::Ended(ProcessId process) {
  if (auto found = ports_.find(process); found != ports_.end()) {
    const Ports ports = std::move(found->second);
    ports_.erase(found);
    for (const auto& [key, slot] : ports.slots) {
      Close(key.first, process, key.second == Side::kSubmitter ? Side::kWorker : Side::kSubmitter);
    }
  }
  std::erase_if(wanted_, [&](const Pair& pair) { return pair.worker == process; });
  std::erase_if(awaited_, [&](const auto& entry) { return entry.first.submitter == process; });
}

void ChannelBroker::EndedElsewhere(ProcessId process) {
  for (auto& [own, ports] : ports_) {
    Close(own, process, Side::kSubmitter);
    Close(own, process, Side::kWorker);
  }
  std::erase_if(wanted_, [&](const Pair& pair) { return pair.submitter == process; });
  std::erase_if(awaited_, [&](const auto& entry) { return entry.first.worker == process; });
}

// `side`: the one that `process` is on.
void ChannelBroker::Close(ProcessId process, ProcessId peer, Side side) {
  auto ports = ports_.find(process);
  if (ports == ports_.end()) return;
  auto slot = ports->second.slots.find({peer, side});
  if (slot == ports->second.slots.end()) return;
  ports->second.freed_slots.push_back(slot->second);
  ports->second.slots.erase(slot);
}

}  // namespace weft::core
