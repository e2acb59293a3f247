#include "runtime/outbox.h"

namespace weft::core {

void Outbox::Send(Message message, std::vector<UniqueFd> fds) {
  messages_.emplace_back(std::move(message), std::move(fds));
  any_.store(true, std::memory_order_relaxed);
}

void Outbox::Route(ProcessId to, const PeerMessage& message) {
  if (routed_.empty() || routed_.back().first != to || routed_.back().second.size() > gather_bytes) {
    routed_.emplace_back(to, std::string());
  }
  EncodePeerMessage(message, routed_.back().second);
  any_.store(true, std::memory_order_relaxed);
}

void Outbox::Free(const Location& location) {
  freed_.push_back(location);
  any_.store(true, std::memory_order_relaxed);
}

void Outbox::EndHold(ObjectId orphan) {
  auto* last = messages_.empty() ? nullptr : std::get_if<HoldsEnded>(&messages_.back().first);
  if (last && last->owner == orphan.owner && last->indexes.size() < kMaxOrphansListed) {
    last->indexes.push_back(orphan.index);
  } else {
    Send(HoldsEnded{.owner = orphan.owner, .indexes = {orphan.index}});
  }
}

std::vector<Outbox::Entry> Outbox::Take() {
  std::vector<Entry> taken;
  taken.reserve(routed_.size() + messages_.size() + 1);
  for (auto& [to, payload] : routed_) {
    taken.emplace_back(RouteTo{.to = to, .payload = std::move(payload)}, std::vector<UniqueFd>());
  }
  routed_.clear();
  for (Entry& entry : messages_) taken.push_back(std::move(entry));
  messages_.clear();
  if (!freed_.empty()) taken.emplace_back(FreeObjects{.locations = std::move(freed_)}, std::vector<UniqueFd>());
  freed_.clear();
  any_.store(false, std::memory_order_relaxed);
  return taken;
}

}  // namespace weft::core
