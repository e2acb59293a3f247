#include "transfer/chunk_server.h"

#include <algorithm>

#include "base/check.h"

namespace weft::core {

void ChunkServer::Refuse(NodeNumber node, uint64_t request, std::vector<ServeAction>& out) const {
  if (!faults.forget_the_refused) out.emplace_back(RefuseChunk{node, request});
}

void ChunkServer::Handle(const ObjectOffered& event, std::vector<ServeAction>& out) {
  WEFT_CHECK(event.size <= kMaxTransferBytes, "the caller checks the size before it makes room");
  Offer& offer = offers_[event.object];
  bool was_complete = offer.complete;
  offer.size = event.size;
  offer.complete = offer.complete || event.complete;
  if (offer.complete) {
    offer.has.clear();
    offer.count = ChunkCount(offer.size);
    if (was_complete) return;
    for (NodeNumber node : offer.told) out.emplace_back(TellHoldings{node, event.object, {}, true});
    offer.told.clear();
  } else {
    offer.has.resize(ChunkCount(event.size));
  }
}

void ChunkServer::Handle(const ChunkGained& event, std::vector<ServeAction>& out) {
  auto found = offers_.find(event.object);
  if (found == offers_.end() || found->second.complete) return;
  Offer& offer = found->second;
  WEFT_CHECK(event.chunk < offer.has.size(), "the plan gains chunks of the object");
  if (offer.has[event.chunk]) return;
  offer.has[event.chunk] = true;
  offer.complete = ++offer.count == offer.has.size();
  for (NodeNumber node : offer.told) {
    out.emplace_back(TellHoldings{node, event.object, {{event.chunk, 1}}, offer.complete});
  }
  if (!offer.complete) return;
  offer.has.clear();
  offer.told.clear();
}

void ChunkServer::Handle(const ObjectWithdrawn& event, std::vector<ServeAction>& out) {
  auto found = offers_.find(event.object);
  if (found == offers_.end()) return;
  for (NodeNumber node : found->second.told) out.emplace_back(TellGone{node, event.object});
  offers_.erase(found);
  for (auto& [node, link] : links_) {
    auto queue = link.queue.find(event.object);
    if (queue == link.queue.end()) continue;
    for (const Ask& ask : queue->second) {
      link.queued.erase(ask.request);
      Refuse(node, ask.request, out);
    }
    link.queue.erase(queue);
  }
}

void ChunkServer::Handle(const HoldingsAsked& event, std::vector<ServeAction>& out) {
  auto found = offers_.find(event.object);
  if (found == offers_.end()) {
    out.emplace_back(TellGone{event.node, event.object});
    return;
  }
  Offer& offer = found->second;
  TellHoldings tell{event.node, event.object, {}, offer.complete};
  for (uint32_t chunk = 0; chunk < offer.has.size(); ++chunk) {
    if (!offer.has[chunk]) continue;
    if (!tell.ranges.empty() && tell.ranges.back().first + tell.ranges.back().second == chunk) {
      ++tell.ranges.back().second;
    } else {
      tell.ranges.emplace_back(chunk, 1);
    }
  }
  if (!offer.complete) offer.told.insert(event.node);
  out.emplace_back(std::move(tell));
}

void ChunkServer::Handle(const ChunkAsked& event, std::vector<ServeAction>& out) {
  Link& link = links_[event.node];
  if (link.queued.contains(event.request) || link.sending.contains(event.request)) return;  // said twice
  auto found = offers_.find(event.object);
  bool here = found != offers_.end() && event.chunk < ChunkCount(found->second.size) &&
              (found->second.complete || found->second.has[event.chunk]);
  if (!here || link.queued.size() >= config_.max_queued) {
    Refuse(event.node, event.request, out);
    return;
  }
  link.queue[event.object].push_back({event.request, event.chunk});
  link.queued.emplace(event.request, event.object);
  Send(out);
}

void ChunkServer::Handle(const ChunkCancelled& event, std::vector<ServeAction>& out) {
  auto link = links_.find(event.node);
  if (link == links_.end()) return;
  auto queued = link->second.queued.find(event.request);
  if (queued == link->second.queued.end()) return;  // it is being sent, and that is its answer
  auto queue = link->second.queue.find(queued->second);
  std::erase_if(queue->second, [&](const Ask& ask) { return ask.request == event.request; });
  if (queue->second.empty()) link->second.queue.erase(queue);
  link->second.queued.erase(queued);
  Refuse(event.node, event.request, out);
}

void ChunkServer::Handle(const ChunkSent& event, std::vector<ServeAction>& out) {
  auto link = links_.find(event.node);
  if (link == links_.end()) return;
  auto sending = link->second.sending.find(event.request);
  if (sending == link->second.sending.end()) return;
  under_way_ -= sending->second;
  link->second.under_way -= sending->second;
  link->second.sending.erase(sending);
  Send(out);
}

void ChunkServer::Handle(const RequesterLinkLost& event, std::vector<ServeAction>& out) {
  for (auto& [object, offer] : offers_) offer.told.erase(event.node);
  auto link = links_.find(event.node);
  if (link == links_.end()) return;
  under_way_ -= link->second.under_way;
  links_.erase(link);
  Send(out);
}

bool ChunkServer::SendOne(NodeNumber node, Link& link, std::vector<ServeAction>& out) {
  if (link.queue.empty()) return false;
  auto turn = link.queue.upper_bound(link.last);
  if (turn == link.queue.end()) turn = link.queue.begin();
  ObjectId object = turn->first;
  Ask ask = turn->second.front();
  uint64_t size = ChunkSize(offers_.at(object).size, ask.chunk);
  if (link.under_way > 0 && link.under_way + size > config_.link_window) return false;
  if (under_way_ > 0 && under_way_ + size > config_.total_window) return false;
  turn->second.pop_front();
  if (turn->second.empty()) link.queue.erase(turn);
  link.queued.erase(ask.request);
  link.last = object;
  link.sending.emplace(ask.request, size);
  link.under_way += size;
  under_way_ += size;
  out.emplace_back(SendChunk{node, ask.request, object, ask.chunk});
  return true;
}

void ChunkServer::Send(std::vector<ServeAction>& out) {
  for (bool sent = true; sent;) {
    sent = false;
    auto link = links_.upper_bound(faults.first_come_first_served ? NodeNumber{} : last_link_);
    for (size_t i = 0; i < links_.size(); ++i, ++link) {
      if (link == links_.end()) link = links_.begin();
      if (!SendOne(link->first, link->second, out)) continue;
      sent = true;
      last_link_ = link->first;
      if (faults.first_come_first_served) break;
    }
  }
}

size_t ChunkServer::queued() const {
  size_t count = 0;
  for (const auto& [node, link] : links_) count += link.queued.size();
  return count;
}

void ChunkServer::CheckInvariants() const {
  uint64_t total = 0;
  for (const auto& [node, link] : links_) {
    uint64_t bytes = 0;
    for (const auto& [request, size] : link.sending) bytes += size;
    WEFT_CHECK(bytes == link.under_way, "what is under way is counted");
    WEFT_CHECK(bytes <= config_.link_window || link.sending.size() == 1, "a link has its window");
    total += bytes;
    size_t queued = 0;
    for (const auto& [object, queue] : link.queue) {
      WEFT_CHECK(!queue.empty() && offers_.contains(object), "what is queued is offered");
      queued += queue.size();
    }
    WEFT_CHECK(queued == link.queued.size() && queued <= config_.max_queued, "what is queued is counted");
    WEFT_CHECK(queued == 0 || !link.sending.empty() || under_way_ > 0, "a link is served");
  }
  WEFT_CHECK(total == under_way_, "what is under way is counted");
  for (const auto& [object, offer] : offers_) {
    WEFT_CHECK(
        offer.complete ? offer.told.empty() && offer.has.empty() : offer.count < offer.has.size() || offer.has.empty(),
        "a complete holder has nothing more to announce");
  }
}

}  // namespace weft::core
